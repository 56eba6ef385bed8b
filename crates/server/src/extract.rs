//! Strict extractors for bodies, queries and paths. Invalid input is rejected with the reason.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use sapwood::SessionId;
use sapwood::core::nesting::{BODY_NESTING_MAX, nesting};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::auth::Caller;
use crate::byte_quota::BodyBytes;
use crate::problem::{Problem, Result};
use crate::state::State;

/// Maximum length of invalid input quoted in an error.
const ECHO_CHARS_MAX: usize = 200;

/// Time limit for reading and discarding the rest of an oversized body.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(10);

/// Minimum upload rate. Slower uploads time out.
const UPLOAD_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A JSON body, deserialized to `T`.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<State> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self> {
        let bytes = RawJson::from_request(request, state).await?.0;
        read_object(&bytes).map(Body)
    }
}

/// A JSON body as bytes, parsed by the handler.
pub struct RawJson(pub Bytes);

impl FromRequest<State> for RawJson {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self> {
        check_is_json(request.headers())?;
        let limit = state.settings.body_bytes_max;
        let bytes = read_body(request, "the body", limit).await?;
        check_nesting(&bytes)?;
        Ok(Self(bytes))
    }
}

/// A JSON body that may be omitted.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<State> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self> {
        let headers = request.headers().clone();
        let bytes = read_body(request, "the body", state.settings.body_bytes_max).await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        check_is_json(&headers)?;
        check_nesting(&bytes)?;
        read_object(&bytes).map(Self)
    }
}

/// Reads a body up to a limit. The bytes count toward the caller's quota until the response is ready.
pub async fn read_body(request: Request, what: &'static str, limit_bytes: usize) -> Result<Bytes> {
    let quota = request.extensions().get::<BodyBytes>().cloned();
    let mut incoming = IncomingBody::of(request, what, limit_bytes).await?;
    let Some(first) = incoming.counted_frame(quota.as_ref()).await? else { return Ok(Bytes::new()) };
    let Some(second) = incoming.counted_frame(quota.as_ref()).await? else { return Ok(first) };
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&second);
    while let Some(bytes) = incoming.counted_frame(quota.as_ref()).await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all.freeze())
}

/// A body that is read as it arrives, up to a limit.
pub struct IncomingBody {
    body: axum::body::Body,
    what: &'static str,
    limit_bytes: usize,
    /// When the first read began.
    started: Option<Instant>,
    received_bytes: u64,
    /// Whether the body timed out, was too large, or was interrupted, so that no more bytes can be read.
    is_broken: bool,
}

impl IncomingBody {
    /// Takes the body of a request. Rejects a `Content-Length` over the limit before reading the body.
    pub async fn of(request: Request, what: &'static str, limit_bytes: usize) -> Result<Self> {
        let headers = request.headers();
        let content_length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let content_length = content_length.and_then(|length| length.parse::<u64>().ok());
        let expects_continue = headers.contains_key(header::EXPECT);
        let body = request.into_body();
        let mut incoming =
            Self { body, what, limit_bytes, started: None, received_bytes: 0, is_broken: false };
        if content_length.is_some_and(|length| length > limit_bytes as u64) {
            // A client that sent `Expect: 100-continue` gets the error at once.
            if !expects_continue {
                incoming.discard().await;
            }
            return Err(Problem::too_large(what, limit_bytes));
        }
        Ok(incoming)
    }

    /// Returns the next bytes, or `None` at the end. The deadline grows with the bytes received.
    pub async fn next(&mut self, request_time_max: Duration) -> Result<Option<Bytes>> {
        let allowance = upload_time(request_time_max, self.received_bytes);
        // Bytes that arrived early must not extend the wait for the next bytes.
        let now = Instant::now();
        let deadline = (*self.started.get_or_insert(now) + allowance).min(now + request_time_max);
        let timed_out = |_| Problem::late(request_time_max);
        let received = tokio::time::timeout_at(deadline, self.frame()).await.map_err(timed_out).flatten();
        self.is_broken = received.is_err();
        received
    }

    /// Discards the rest of a rejected body, if it can still be read.
    pub async fn discard_rest(&mut self) {
        if !self.is_broken {
            self.discard().await;
        }
    }

    /// Returns the next bytes and counts them. If the quota is used up, discards the rest.
    async fn counted_frame(&mut self, quota: Option<&BodyBytes>) -> Result<Option<Bytes>> {
        let frame = self.frame().await?;
        if let (Some(bytes), Some(quota)) = (&frame, quota)
            && let Err(problem) = quota.grow(bytes.len())
        {
            self.discard().await;
            return Err(problem);
        }
        Ok(frame)
    }

    async fn frame(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame =
                frame.map_err(|error| Problem::invalid(format!("failed to read {}: {error}", self.what)))?;
            // Trailers are ignored.
            let Ok(bytes) = frame.into_data() else { continue };
            self.received_bytes += bytes.len() as u64;
            if self.received_bytes > self.limit_bytes as u64 {
                self.discard().await;
                return Err(Problem::too_large(self.what, self.limit_bytes));
            }
            return Ok(Some(bytes));
        }
        Ok(None)
    }

    /// Reads and discards the rest, up to twice the limit in total. Many clients write their whole body before they
    /// read the response, and would otherwise only see a broken connection.
    async fn discard(&mut self) {
        let discarding = async {
            while let Some(Ok(frame)) = self.body.frame().await {
                self.received_bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
                if self.received_bytes > 2 * self.limit_bytes as u64 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DISCARD_TIME_MAX, discarding).await;
    }
}

/// Returns the time limit for receiving this many bytes.
pub fn upload_time(request_time_max: Duration, bytes: u64) -> Duration {
    request_time_max + Duration::from_secs(bytes / UPLOAD_BYTES_PER_SECOND_MIN)
}

/// Requires a JSON content type, which browsers do not send across sites without a preflight request.
fn check_is_json(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new("input.media_type", "the body must be application/json"))
}

/// Refuses deep JSON before it is parsed, stored or converted. Some fields are kept as text, and the parser does not count
/// their levels.
fn check_nesting(bytes: &[u8]) -> Result<()> {
    match nesting(bytes) > BODY_NESTING_MAX {
        true => {
            let why = format!("the body is nested deeper than {BODY_NESTING_MAX} levels");
            Err(Problem::new("input.json", why))
        }
        false => Ok(()),
    }
}

/// Parses a JSON object. Arrays are rejected explicitly because serde also accepts an array of a struct's fields.
fn read_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let is_array = bytes.trim_ascii_start().first() == Some(&b'[');
    match serde_json::from_slice(bytes) {
        Ok(_) if is_array => Err(Problem::invalid("the body must be a JSON object, not an array")),
        read => read.map_err(|error| invalid_json(&error)),
    }
}

fn invalid_json(error: &serde_json::Error) -> Problem {
    let why: String = error.to_string().chars().take(ECHO_CHARS_MAX).collect();
    Problem::new(if error.is_data() { "input.invalid" } else { "input.json" }, why)
}

/// The query parameters, deserialized to `T`.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<State> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| short(&error.body_text()))
    }
}

/// The path parameters.
pub struct PathParams<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<State> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| short(&error.body_text()))
    }
}

/// Path parameters of a route that reads a session. If the caller does not own the session, an audit line is written
/// before the read. The handler must still check the right to read, because one audit line covers several reads.
pub struct AuditedPath<T>(pub T);

/// Path parameters that contain a session id.
pub trait HasSessionId {
    fn session(&self) -> &SessionId;
}

impl HasSessionId for SessionId {
    fn session(&self) -> &SessionId {
        self
    }
}

impl HasSessionId for (SessionId, String) {
    fn session(&self) -> &SessionId {
        &self.0
    }
}

impl<T: DeserializeOwned + HasSessionId + Send> FromRequestParts<State> for AuditedPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let PathParams(path) = PathParams::<T>::from_request_parts(parts, state).await?;
        let caller = Caller::from_request_parts(parts, state).await?;
        state.audit_read(&caller, path.session()).await?;
        Ok(Self(path))
    }
}

/// Returns an `input.invalid` problem with a shortened text.
pub fn short(text: &str) -> Problem {
    Problem::invalid(text.chars().take(ECHO_CHARS_MAX).collect::<String>())
}

/// Returns a header as text. Fails if it is not ASCII.
pub fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Problem::invalid(format!("header `{name}` is not ASCII text")))
}
