//! A hook that calls a server: the event is sent as a signed POST, and the response is the answer. Like tools, hooks
//! reach only https URLs of listed hosts at public addresses.

use async_trait::async_trait;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use sapwood_core::port::hook::{ANSWER_BYTES_MAX, Hook, HookAnswer, HookError, HookEvent};

use super::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, sign};
use crate::egress::{AllowedHosts, Egress, EgressError, EgressLimits, EgressRequest, Extent};
use crate::secret::Secret;

/// Request timeout of the HTTP client. The engine enforces the hook's configured timeout.
const REQUEST_MS_MAX: u64 = 300_000;
/// Header with the hook's name, so that a server can identify the hook before it reads the body.
const HOOK_HEADER: &str = "sapwood-hook";

pub struct HttpHook {
    url: String,
    secret: Secret,
    egress: Egress,
}

impl HttpHook {
    /// Fails if the URL's host is not in `allowed_hosts`.
    pub fn new(url: &str, secret: Secret, allowed_hosts: &[String]) -> Result<Self, EgressError> {
        let limits = EgressLimits { request_ms_max: REQUEST_MS_MAX, body_bytes_max: ANSWER_BYTES_MAX };
        Self::with_egress(url, secret, Egress::new(AllowedHosts::parse(allowed_hosts)?, limits)?)
    }

    /// Like [`Self::new`], with an existing client.
    pub fn with_egress(url: &str, secret: Secret, egress: Egress) -> Result<Self, EgressError> {
        egress.admit(url)?;
        Ok(Self { url: url.to_owned(), secret, egress })
    }

    fn headers(&self, event: &HookEvent, body: &str) -> Result<HeaderMap, HookError> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| failed(error.to_string()));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(HeaderName::from_static(HOOK_HEADER), value(event.hook.as_str())?);
        headers.insert(HeaderName::from_static(TIMESTAMP_HEADER), value(&event.at.0.to_string())?);
        let signature = sign(&self.secret, event.at.0, body.as_bytes());
        headers.insert(HeaderName::from_static(SIGNATURE_HEADER), value(&signature)?);
        Ok(headers)
    }
}

fn failed(why: String) -> HookError {
    HookError::Failed { why }
}

#[async_trait]
impl Hook for HttpHook {
    async fn call(&self, event: &HookEvent) -> Result<HookAnswer, HookError> {
        let body = serde_json::to_string(event).map_err(|error| failed(error.to_string()))?;
        let headers = self.headers(event, &body)?;
        let request =
            EgressRequest { method: Method::POST, url: self.url.clone(), headers, body: Some(body) };
        let response = self.egress.fetch(request).await.map_err(|error| failed(error.to_string()))?;
        if !response.status.is_success() {
            return Err(failed(format!("the server returned {}", response.status)));
        }
        match response.extent {
            Extent::Whole => HookAnswer::read(&response.body),
            Extent::CutAtLimit => {
                Err(HookError::Answer { why: format!("it exceeds {ANSWER_BYTES_MAX} bytes") })
            }
        }
    }

    fn describe(&self) -> String {
        self.url.clone()
    }
}
