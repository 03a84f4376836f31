//! Paths of another agent that are no contract's route: routed alike, passed on unchecked.

use super::Outbound;
use crate::context::{AgentName, Fields, Trace};
use crate::contract::watch::Agent;
use crate::proxy::body::Body;
use crate::proxy::passing::{Passing, Way};
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::route;
use crate::socket::Speaks;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Response};

impl Outbound {
    pub(super) async fn pass_through(
        &self,
        found: &Agent,
        agent: &AgentName,
        head: Parts,
        body: Received,
        own: Fields,
    ) -> Response<Body> {
        let (fields, _) = self.inherit(own);
        match self.passed(found, agent, head, body, &fields).await {
            Ok(response) => response,
            Err(trouble) => self.refusals.refuse(&trouble, &fields),
        }
    }

    async fn passed(
        &self,
        found: &Agent,
        agent: &AgentName,
        head: Parts,
        body: Received,
        fields: &Fields,
    ) -> Result<Response<Body>, Trouble> {
        let view = found.view();
        let task = fields.task_id.as_ref().map_or("", |id| id.as_str());
        let offer = self.choose(found, &view, agent, fields, route::key(task))?;
        drop(view);
        let (way, trace) = (
            self.way(),
            Trace::of(&head.headers, fields.trace_id.clone()),
        );
        let mut passing = Passing::new(head, body, &trace, &way);
        let told = Fields {
            agent: Some(agent.clone()),
            application: Some(self.config.application.clone()),
            ..fields.clone()
        };
        told.write(passing.request.headers_mut());
        let upstream = self.peer(&offer.instance)?;
        if let Ok(host) = HeaderValue::try_from(upstream.authority()) {
            passing.request.headers_mut().insert(HOST, host);
        }
        let speaks = match passing.came_as_http2 {
            true => Speaks::Http2,
            false => Speaks::Either,
        };
        passing.send(&upstream, speaks, &way).await
    }

    /// What all that is passed on has in common.
    pub(super) fn way(&self) -> Way<'_> {
        Way {
            limits: &self.config.limits.head,
            tunnels: &self.tunnels,
            proxy: &self.config.pseudonym,
        }
    }
}
