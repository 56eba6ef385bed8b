//! Errors as clients see them: `application/problem+json` with a stable code, and the table from codes to statuses.
//! Internal details are logged and never sent.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sapwood::core::StoreError;
use sapwood::core::id::IdError;
use sapwood::formats::MessageError;

use crate::hint::hint_for;
use crate::request_id::RequestId;
use crate::wire;

pub type Result<T, E = Problem> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub code: &'static str,
    pub detail: String,
    pub retry_after_s: Option<u64>,
    /// Internal details, for the log only.
    pub internal: Option<String>,
}

impl Problem {
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        let (mut detail, mut internal) = (detail.into(), None);
        if status_of(code).is_server_error() && !has_public_detail(code) {
            // Clients must not see paths, SQL and other internals.
            internal =
                Some(std::mem::replace(&mut detail, "internal error: see the server's log".to_owned()));
        }
        Self { code, detail, retry_after_s: None, internal }
    }

    /// Logs the internal details with the request id of the response.
    pub fn log(&self, request: RequestId) {
        if let Some(detail) = &self.internal {
            tracing::error!(%request, code = self.code, detail, "a request failed");
        }
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new("input.invalid", detail)
    }

    pub fn invalid_credential() -> Self {
        Self::new("auth.invalid", "this key or token is unknown, revoked or expired")
    }

    pub fn too_large(what: &str, limit_bytes: usize) -> Self {
        Self::new("input.too_large", format!("{what} is over the limit of {limit_bytes} bytes"))
    }

    /// Returns the error for a server that is out of capacity. Unlike an internal error, its detail is sent to the
    /// client.
    pub fn busy(detail: &str, retry_after_s: u64) -> Self {
        let (detail, retry_after_s) = (detail.to_owned(), Some(retry_after_s));
        Self { code: "server.busy", detail, retry_after_s, internal: None }
    }

    /// Returns the error for a server that has reached its limit on requests in flight.
    pub fn full(detail: &str, retry_after_s: u64) -> Self {
        Self { code: "server.full", ..Self::busy(detail, retry_after_s) }
    }

    /// Returns the error for a request that has exceeded its time limit.
    pub fn late(limit: Duration) -> Self {
        Self::new("request.timeout", format!("the request took longer than {} s", limit.as_secs()))
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Removes the internal details, so that they are not logged again.
    pub fn without_internals(self) -> Self {
        Self { internal: None, ..self }
    }

    pub fn status(&self) -> StatusCode {
        status_of(self.code)
    }

    pub fn wire(&self) -> wire::Problem {
        let status = self.status();
        wire::Problem {
            kind: format!("urn:sapwood:error:{}", self.code),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code: self.code.to_owned(),
            detail: self.detail.clone(),
            hint: hint_for(self.code).map(str::to_owned),
        }
    }
}

/// Whether the detail of a server error is written for clients. It contains no paths, SQL or other internals.
fn has_public_detail(code: &str) -> bool {
    let is_model = matches!(code, "model.none" | "model.no_key" | "compact.no_model");
    is_model || matches!(code, "server.stopping" | "approval.no_links" | "tool.no_directory")
}

/// Returns the HTTP status for an error code. The codes are documented in docs/errors.
pub fn status_of(code: &str) -> StatusCode {
    match code {
        "auth.required" | "auth.invalid" => StatusCode::UNAUTHORIZED,
        "auth.origin"
        | "key.scope"
        | "session.denied"
        | "memory.denied"
        | "graft.withheld"
        | "hook.refused"
        | "model.not_allowed"
        | "model.denied"
        | "operator.required"
        | "trigger.target_denied" => StatusCode::FORBIDDEN,
        "route.not_found" | "approval.link_not_found" => StatusCode::NOT_FOUND,
        "route.method" => StatusCode::METHOD_NOT_ALLOWED,
        "request.timeout" => StatusCode::REQUEST_TIMEOUT,
        "rate.limited" | "share.exceeded" | "allowance.exceeded" => StatusCode::TOO_MANY_REQUESTS,
        "range.unsatisfiable" => StatusCode::RANGE_NOT_SATISFIABLE,
        "input.too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "input.media_type" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "session.conflict"
        | "session.key_reused"
        | "memory.conflict"
        | "session.exists"
        | "session.stale_fence"
        | "session.leased"
        | "session.archived"
        | "session.held"
        | "session.not_compacted"
        | "turn.running"
        | "turn.interrupted"
        | "turn.none"
        | "turn.ended"
        | "turn.queue_full"
        | "approval.expired"
        | "turn_limit"
        | "trigger.taken"
        | "trigger.imported"
        | "flow.ended"
        | "flow.imported"
        | "agent.mismatch"
        | "store.format"
        | "session.not_configured"
        | "session.configured"
        | "compact.not_smaller"
        | "budget_exceeded" => StatusCode::CONFLICT,
        "address.ambiguous"
        | "entry.misplaced"
        | "session.reserved_id"
        | "agent.invalid"
        | "flow.invalid"
        | "model.unknown"
        | "workflow.invalid"
        | "workflow.version"
        | "tool.unknown"
        | "tool.invalid" => StatusCode::BAD_REQUEST,
        "store.busy" | "store.unreachable" | "store.untrusted" | "store.locked" | "store.read_only"
        | "model.none" | "model.no_key" | "approval.no_links" | "compact.no_model" | "tool.no_directory"
        | "server.stopping" | "server.busy" | "server.full" => StatusCode::SERVICE_UNAVAILABLE,
        "store.disk_full" => StatusCode::INSUFFICIENT_STORAGE,
        "compact.failed" | "tool.server" => StatusCode::BAD_GATEWAY,
        other if other.ends_with(".not_found") => StatusCode::NOT_FOUND,
        other if other.starts_with("input.") => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.wire())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // The OpenAI routes read the problem to change the error format.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<sapwood::Error> for Problem {
    fn from(error: sapwood::Error) -> Self {
        match &error {
            // Clients must not learn who owns the session.
            sapwood::Error::TriggerTaken { .. } => {
                Self::new(error.code(), "the trigger's session belongs to another user")
            }
            sapwood::Error::ModelUnavailable { .. } => {
                let hint = "choose another model: PATCH the session with `model`, or name one in the request";
                Self::new(error.code(), format!("{error}; {hint}"))
            }
            _ => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<MessageError> for Problem {
    fn from(error: MessageError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_details_are_not_sent_to_clients() {
        let error = StoreError::Backend { place: "/secret/path".to_owned(), what: "SELECT".to_owned() };
        let problem = Problem::from(error);
        assert_eq!(problem.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!problem.detail.contains("secret") && !problem.detail.contains("SELECT"));
        assert!(
            problem.internal.is_some_and(|internal| internal.contains("/secret/path")),
            "the log contains the details"
        );
    }

    #[test]
    fn client_mistakes_are_not_internal_server_errors() {
        let taken = sapwood::Error::TriggerTaken {
            session: "trigger.nightly".parse().unwrap(),
            owner: sapwood::Principal::User("olga".parse().unwrap()),
        };
        let problem = Problem::from(taken);
        assert_eq!(problem.status(), StatusCode::CONFLICT);
        assert!(
            !problem.detail.contains("olga") && !problem.detail.contains("nightly"),
            "{}",
            problem.detail
        );
        for (code, status) in
            [("tool.unknown", 400), ("tool.invalid", 400), ("tool.no_directory", 503), ("tool.server", 502)]
        {
            assert_eq!(status_of(code).as_u16(), status, "{code}");
        }
    }
}
