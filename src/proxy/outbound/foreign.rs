//! Hosts of `outbound.allow_hosts`: requests that pass unchecked to who is no agent.
//!
//! - no field of ours but `Via` goes there: the context is nobody else's business, nor is the
//!   idempotency key of a call that is served here
//! - trace fields are kept as they come, but for our token; no redirect is followed, nothing is
//!   decoded or kept
//! - a link-local address is taken only where the list names it literally: a name that resolves
//!   to one is most likely a trick to reach the machine's metadata service

use super::Outbound;
use crate::context::{self, Fields, Origin, Trace, header};
use crate::identity::Authority;
use crate::proxy::active::{Parent, Step};
use crate::proxy::body::Body;
use crate::proxy::headers;
use crate::proxy::passing::Passing;
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::socket::{Endpoint, Place, Speaks};
use crate::task::Problem;
use http::Response;
use http::request::Parts;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for a name to be resolved.
const LOOKUP: Duration = Duration::from_secs(5);

impl Outbound {
    pub(super) async fn pass_on(
        &self,
        host: &str,
        port: u16,
        mut head: Parts,
        body: Received,
        fields: &Fields,
    ) -> Response<Body> {
        if self.hands_on_served_key(fields, &head) {
            head.headers.remove(header::IDEMPOTENCY_KEY);
        }
        match self.passed_on(host, port, head, body).await {
            Ok(response) => response,
            Err(trouble) => self.refusals.refuse(&trouble, &Fields::default()),
        }
    }

    /// Says whether a request carries the key under which this application was asked: one who
    /// hands on all it was sent would have a host take different requests for one.
    fn hands_on_served_key(&self, fields: &Fields, head: &Parts) -> bool {
        let Some(key) = headers::own_idempotency_key(&head.headers) else {
            return false;
        };
        let is_served = |step: &Arc<Step>| {
            let served = step.key.as_ref();
            served.is_some_and(|served| served.as_bytes() == key.as_bytes())
        };
        match self.active.parent_of(fields, &Origin::of(&head.headers)) {
            Parent::Step(step) => is_served(&step),
            Parent::Task(step) => self.active.of_task(&step.task_id).iter().any(is_served),
            Parent::None | Parent::Unknown => false,
        }
    }

    async fn passed_on(
        &self,
        host: &str,
        port: u16,
        head: Parts,
        body: Received,
    ) -> Result<Response<Body>, Trouble> {
        let addresses = resolve(host, port).await?;
        let (way, trace) = (self.way(), Trace::of(&head.headers, None));
        let traced = [header::TRACEPARENT, header::TRACESTATE];
        let traced = traced.map(|name| {
            let values = head.headers.get_all(&name).iter().cloned();
            (name, values.collect::<Vec<_>>())
        });
        let mut passing = Passing::new(head, body, &trace, &way);
        let sent = passing.request.headers_mut();
        for (name, values) in traced {
            sent.remove(&name);
            let has_ours = name == header::TRACESTATE;
            for value in values {
                let value = match has_ours {
                    true => context::without_ours(&value),
                    false => Some(value),
                };
                if let Some(value) = value {
                    sent.append(&name, value);
                }
            }
        }
        let port = Some(port);
        let authority = Authority { host, port }.to_string();
        let place = Place::Resolved {
            authority,
            addresses,
        };
        let upstream = self.upstreams.at(Endpoint { place, tls: None });
        let speaks = match passing.came_as_http2 {
            true => Speaks::Http2,
            false => Speaks::Http1,
        };
        let mut answer = passing.send(&upstream, speaks, &way).await?;
        // What a foreign host says in our name is not ours.
        headers::strip_context(answer.headers_mut());
        Ok(answer)
    }
}

/// Finds the addresses of a host, without those that no name may lead to.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Trouble> {
    if let Ok(literal) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(literal, port)]);
    }
    let looked_up = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, port))).await;
    let unknown = |detail: &str| Trouble::new(Problem::UpstreamUnreachable, detail).executed(false);
    let found: Vec<SocketAddr> = match looked_up {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => {
            tracing::warn!(host, %error, "a listed host could not be resolved");
            return Err(unknown(
                "the host's name could not be resolved; nothing was sent",
            ));
        }
        Err(_elapsed) => return Err(unknown("the host's name was not resolved in time")),
    };
    let mut permitted: Vec<SocketAddr> = found
        .iter()
        .filter(|address| !is_link_local(address.ip()))
        .copied()
        .collect();
    match (permitted.is_empty(), found.is_empty()) {
        // Sorted: the same addresses in another order are the same place.
        (false, _) => Ok({
            permitted.sort_unstable();
            permitted
        }),
        (true, true) => Err(unknown("the host's name has no address")),
        (true, false) => {
            let detail = "the host's name leads to a link-local address, which is refused unless \
                          outbound.allow_hosts lists that address itself";
            Err(Trouble::new(Problem::HostRefused, detail))
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_never_leads_to_a_link_local_address() {
        // The resolver reads these spellings as addresses, as it would a name that points there.
        for spelling in ["169.254.43518", "0xa9.254.169.254", "2852039166"] {
            let refused = resolve(spelling, 80).await.unwrap_err();
            assert_eq!(refused.problem, Problem::HostRefused, "{spelling}");
            assert!(refused.detail.contains("outbound.allow_hosts"));
        }
        let literal = resolve("169.254.169.254", 80).await.unwrap();
        assert_eq!(literal, ["169.254.169.254:80".parse().unwrap()]);
        assert_eq!(
            resolve("127.1", 81).await.unwrap(),
            ["127.0.0.1:81".parse().unwrap()]
        );
        for address in ["169.254.0.1", "::ffff:169.254.169.254", "fe80::1"] {
            assert!(is_link_local(address.parse().unwrap()), "{address}");
        }
        for address in ["127.0.0.1", "169.253.0.1", "fd00::1", "::1"] {
            assert!(!is_link_local(address.parse().unwrap()), "{address}");
        }
    }
}
