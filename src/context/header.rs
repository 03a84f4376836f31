//! Names of the header fields that carry the context.

use http::HeaderName;

/// Every field of ours begins so; what is not believed is removed by this prefix.
pub const PREFIX: &str = "hermes-";

pub const TASK_ID: HeaderName = HeaderName::from_static("hermes-task-id");
pub const STEP_ID: HeaderName = HeaderName::from_static("hermes-step-id");
pub const CALL_ID: HeaderName = HeaderName::from_static("hermes-call-id");
pub const ATTEMPT: HeaderName = HeaderName::from_static("hermes-attempt");
pub const AGENT: HeaderName = HeaderName::from_static("hermes-agent");
pub const APPLICATION: HeaderName = HeaderName::from_static("hermes-application");
pub const TRACE_ID: HeaderName = HeaderName::from_static("hermes-trace-id");
pub const REGION: HeaderName = HeaderName::from_static("hermes-region");
pub const UTC_OFFSET: HeaderName = HeaderName::from_static("hermes-utc-offset");
pub const SLA_LEVEL: HeaderName = HeaderName::from_static("hermes-sla-level");
pub const REQUESTER: HeaderName = HeaderName::from_static("hermes-requester");
pub const SCENARIO: HeaderName = HeaderName::from_static("hermes-scenario");
pub const REQUIRED_TAGS: HeaderName = HeaderName::from_static("hermes-required-tags");
pub const FORCE_REFRESH: HeaderName = HeaderName::from_static("hermes-force-refresh");
pub const DEADLINE_MS: HeaderName = HeaderName::from_static("hermes-deadline-ms");
pub const PATH: HeaderName = HeaderName::from_static("hermes-path");
pub const SANDBOX: HeaderName = HeaderName::from_static("hermes-sandbox");
pub const EXECUTED: HeaderName = HeaderName::from_static("hermes-executed");
pub const DEGRADED: HeaderName = HeaderName::from_static("hermes-degraded");
pub const STATE: HeaderName = HeaderName::from_static("hermes-state");
pub const LOAD: HeaderName = HeaderName::from_static("hermes-load");
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
pub const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
