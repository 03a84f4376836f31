//! A whole reply, and what every problem body must hold.

use bytes::Bytes;
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// Sends `request` and reads the whole answer.
    pub async fn to(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap(),
        }
    }

    /// Reads what `exchange` gave back; the body must have been sent with a length or to the end.
    pub fn read(bytes: &[u8]) -> Self {
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let at = at.unwrap_or_else(|| panic!("no reply: {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..at]).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let name = reqwest::header::HeaderName::try_from(name).unwrap();
            headers.append(name, value.trim().parse().unwrap());
        }
        Self {
            status: status.parse().unwrap(),
            headers,
            body: Bytes::copy_from_slice(&bytes[at + 4..]),
        }
    }

    /// Returns a header's one value; empty without it.
    pub fn header(&self, name: &str) -> &str {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().map_or("", |value| value.to_str().unwrap());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// Reads the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Asserts that it is the problem `kind` with this status and all that problems carry.
    pub fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "wanted {kind}: {self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        let body = self.json();
        assert_eq!(body["type"], format!("urn:hermes:problem:{kind}"), "{body}");
        assert_eq!(body["status"], status, "{body}");
        for text in ["title", "detail"] {
            assert!(!body[text].as_str().unwrap().is_empty(), "{text}: {body}");
        }
        assert_eq!(body["error"], body["detail"]);
        let told = |name| body.get(name).map_or("", |value| value.as_str().unwrap());
        assert_eq!(told("state"), self.header("hermes-state"), "{self:?}");
        for (field, header) in [("task_id", "hermes-task-id"), ("call_id", "hermes-call-id")] {
            assert_eq!(told(field), self.header(header), "{field}: {self:?}");
        }
        body
    }
}
