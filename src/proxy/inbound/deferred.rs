//! Calls that their caller prefers to be answered later.

use super::call::Call;
use super::{Inbound, Served, repeat};
use crate::context::{Fields, Ids};
use crate::deferred::{Name, Seat};
use crate::proxy::body::Body;
use crate::proxy::headers;
use crate::proxy::intake::Source;
use crate::proxy::later::{self, Asked, Later, Prefer};
use crate::proxy::respond::Trouble;
use crate::task::{Problem, State};
use http::Response;
use http::request::Parts;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Inbound {
    /// Finds a seat for a call that is to be answered later.
    pub(super) fn seat(
        &self,
        served: &Served,
        fields: &Fields,
        head: &Parts,
    ) -> Result<Seat, Trouble> {
        let mut seat = self.deferred.seat().ok_or_else(|| {
            let mut crowded = later::crowded();
            if !served.contract.contract.idempotent && repeat::may_be_known(fields, head) {
                // An earlier request of this call may be under way, and the record was not
                // asked: that it was not carried out cannot be said.
                crowded.executed = None;
            }
            crowded
        })?;
        let Some(call_id) = fields.call_id.clone() else {
            return Ok(seat);
        };
        let key = headers::idempotency_key(&head.headers, &call_id);
        let name = Name {
            scope: repeat::scope(fields, &head.headers),
            call_id,
        };
        match key.is_none_or(|key| self.deferred.claim(&mut seat, name, key)) {
            true => Ok(seat),
            false => Err(taken()),
        }
    }

    /// Has a call carried out by itself, and returns what its caller is told at first.
    pub(super) async fn deferred(
        self: Arc<Self>,
        prefer: Prefer,
        seat: Seat,
        (served, head, source, mut fields, began): (Arc<Served>, Parts, Source, Fields, Instant),
    ) -> Response<Body> {
        let ids = Ids::settle(&mut fields);
        let scope = repeat::scope(&fields, &head.headers);
        let later = Later::new(ids.task_id, ids.call_id);
        let presence = Arc::new(later.presence());
        let meters = served.meters.clone();
        let call = Call::new(
            self.clone(),
            served,
            fields,
            presence,
            Some(later.clone()),
            began,
        );
        let asked = Asked {
            scope,
            names: call.names(),
            prefer,
            began,
            meters,
            refusals: &self.refusals,
            seat,
        };
        let call = call.run(head, source);
        later::defer(&self.deferred, &self.keeper, later, asked, call).await
    }

    /// Hands out the reply of a call to the application that made it.
    pub(super) async fn fetch(&self, head: &Parts, fields: &Fields) -> Response<Body> {
        let Some(call_id) = later::call_at(head.uri.path()) else {
            return self.refusals.refuse(&later::unknown(), &Fields::default());
        };
        let name = Name {
            scope: repeat::scope(fields, &head.headers),
            call_id,
        };
        let answered = later::answer(&self.deferred, &name, head).await;
        answered.unwrap_or_else(|told| self.refusals.refuse(&told.trouble, &told.names))
    }
}

/// Refuses a call whose id is another one's.
fn taken() -> Trouble {
    let detail = "another call of this Hermes-Call-Id is under way, under another \
                  Idempotency-Key; give each call an id of its own";
    let in_flight = Trouble::new(Problem::InFlight, detail).stands(State::Executing);
    in_flight.retry_after(Duration::from_secs(1))
}
