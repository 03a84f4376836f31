//! How a listener refuses requests: counted, answered with a problem, their bodies let go by.

use super::attempt::Recorder;
use super::body::Body;
use super::intake;
use super::received::Received;
use super::respond::{self, Trouble};
use crate::context::Fields;
use crate::task::Problem;
use crate::telemetry::metrics::Direction;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Response};
use std::sync::Arc;

/// What one listener refuses with.
#[derive(Debug, Clone)]
pub struct Refusals {
    direction: Direction,
    recorder: Arc<Recorder>,
    pseudonym: HeaderValue,
}

impl Refusals {
    /// `pseudonym` is the listener's name in `Via` and `Proxy-Status`.
    pub fn new(direction: Direction, recorder: Arc<Recorder>, pseudonym: HeaderValue) -> Self {
        Self {
            direction,
            recorder,
            pseudonym,
        }
    }

    /// Refuses a request whose body has not been read.
    pub async fn turn_away(
        &self,
        trouble: &Trouble,
        names: &Fields,
        head: &Parts,
        body: Received,
    ) -> Response<Body> {
        let goes_on = intake::turn_away(head, body).await;
        let mut response = self.refuse(trouble, names);
        // A head that two readers could read differently ends its connection, too.
        if !goes_on || trouble.problem == Problem::BadRequest {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    /// Answers a request that was refused before a task came into being.
    pub fn refuse(&self, trouble: &Trouble, names: &Fields) -> Response<Body> {
        self.recorder
            .metrics
            .rejected(self.direction, trouble.problem);
        respond::trouble(trouble, names, &self.pseudonym)
    }
}
