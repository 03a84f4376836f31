//! The request that carries a call to another sidecar.

use super::call::{Call, Order, Plan};
use crate::context::header;
use crate::proxy::body::Body;
use crate::proxy::headers;
use crate::proxy::respond;
use http::header::{CONTENT_TYPE, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Uri};
use std::time::Duration;
use tokio::time::Instant;

impl Call {
    /// Builds the request that goes to the chosen instance.
    pub fn request(&self, plan: &Plan, order: &Order) -> Request<Body> {
        let head = &order.head;
        let instance = &plan.offer.instance;
        let (method, path) = instance.route().unwrap_or(("POST", "/hermes/invoke"));
        let mut request = Request::new(Body::whole(order.input.clone()));
        *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap_or(Method::POST);
        *request.uri_mut() = target(path, head);
        let key = self.idempotency_key(head);
        let version = head.version;
        let mut out = head.headers.clone();
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        headers::strip_length(&mut out);
        out.remove(EXPECT);
        let mut fields = self.fields.clone();
        fields.agent = Some(plan.agent.clone());
        fields.application = Some(self.outbound.config.application.clone());
        fields.trace_id = self.trace.correlation().cloned();
        fields.deadline = Some(told(plan.call_ends.left(Instant::now())));
        fields.force_refresh = None;
        fields.write(&mut out);
        self.trace.write(&mut out);
        respond::say_digest(&mut out, order.digest);
        if let Some(key) = key {
            out.insert(header::IDEMPOTENCY_KEY, key);
        }
        if !out.contains_key(CONTENT_TYPE) {
            out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Ok(host) = HeaderValue::try_from(instance.authority()) {
            out.insert(HOST, host);
        }
        headers::add_via(&mut out, version, &self.outbound.config.pseudonym);
        *request.headers_mut() = out;
        request
    }

    /// The application's own key, but not that of a call it serves; else the call's id.
    fn idempotency_key(&self, head: &Parts) -> Option<HeaderValue> {
        let call_id = &self.ids.call_id;
        let key = headers::idempotency_key(&head.headers, call_id)?;
        if self.heritage.served_keys.contains(&key) {
            return HeaderValue::from_str(call_id.as_str()).ok();
        }
        Some(key)
    }
}

/// The time the callee is told: a little less than is left, so that its answer still arrives.
fn told(left: Duration) -> Duration {
    left.saturating_sub((left / 10).min(Duration::from_millis(20)))
}

/// The contract's path, with the query that came along on the native form.
fn target(path: &str, head: &Parts) -> Uri {
    let text = match head.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    text.parse().unwrap_or_default()
}
