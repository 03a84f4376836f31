//! Paths of another agent that are no contract's route: routed alike, passed on unchecked.

use super::Outbound;
use crate::context::{AgentName, Fields, Trace};
use crate::proxy::body::Body;
use crate::proxy::forward;
use crate::proxy::headers;
use crate::proxy::respond::Trouble;
use crate::route;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use tokio::time::Instant;

impl Outbound {
    pub(super) async fn pass_through(
        &self,
        agent: &AgentName,
        path: &str,
        head: Parts,
        body: Incoming,
        own: Fields,
    ) -> Response<Body> {
        let heritage = self.inherit(own);
        let fields = heritage.fields;
        let began = Instant::now();
        let response = match self.passed(agent, path, head, body, &fields).await {
            Ok(response) => response,
            Err(trouble) => self.refuse(&trouble, &fields),
        };
        let status = response.status().as_u16();
        self.meters.request_ended(Some(status), began.elapsed());
        response
    }

    async fn passed(
        &self,
        agent: &AgentName,
        path: &str,
        head: Parts,
        body: Incoming,
        fields: &Fields,
    ) -> Result<Response<Body>, Trouble> {
        let found = self.find(agent, Instant::now()).await?;
        let view = found.view();
        let task = fields.task_id.as_ref().map_or("", |id| id.as_str());
        let offer = self.choose(&found, &view, agent, fields, route::key(task))?;
        drop(view);
        let authority = offer.instance.authority();
        let request = self.outgoing(agent, path, &authority, head, body, fields);
        let upstream = self.upstreams.at(authority);
        let silence = self.config.stream_idle_timeout;
        let mut response = forward::stream(&upstream, request, silence)
            .await
            .map_err(|failed| failed.into_trouble(upstream.authority()))?;
        headers::strip_hop_by_hop(response.headers_mut());
        let version = response.version();
        headers::add_via(response.headers_mut(), version, &self.config.pseudonym);
        Ok(response)
    }

    fn outgoing(
        &self,
        agent: &AgentName,
        path: &str,
        authority: &str,
        head: Parts,
        body: Incoming,
        fields: &Fields,
    ) -> Request<Body> {
        let framed = head.headers.contains_key(CONTENT_LENGTH)
            || head.headers.contains_key(TRANSFER_ENCODING);
        let body = if framed {
            Body::stream(body, self.config.stream_idle_timeout, None)
        } else {
            Body::empty()
        };
        let target = match head.uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let trace = Trace::of(&head.headers, fields.trace_id.clone());
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = target.parse::<Uri>().unwrap_or_default();
        let mut out = head.headers;
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        out.remove(EXPECT);
        let mut told = fields.clone();
        told.agent = Some(agent.clone());
        told.application = Some(self.config.application.clone());
        told.write(&mut out);
        trace.write(&mut out);
        if let Ok(host) = HeaderValue::try_from(authority) {
            out.insert(HOST, host);
        }
        headers::add_via(&mut out, head.version, &self.config.pseudonym);
        *request.headers_mut() = out;
        request
    }
}
