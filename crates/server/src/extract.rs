//! Strict extractors for bodies, queries and paths. Invalid input is rejected with the reason.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use sapwood::SessionId;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;

/// Maximum length of invalid input quoted in an error.
const ECHO_CHARS_MAX: usize = 200;

/// Time limit for reading and discarding the rest of an oversized body.
const POUR_TIME_MAX: Duration = Duration::from_secs(10);

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
        Ok(Self(read_body(request, "the body", limit).await?))
    }
}

/// A JSON body that may be omitted.
pub struct Maybe<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<State> for Maybe<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self> {
        let headers = request.headers().clone();
        let bytes = read_body(request, "the body", state.settings.body_bytes_max).await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        check_is_json(&headers)?;
        read_object(&bytes).map(Self)
    }
}

/// Reads a body up to a limit.
pub async fn read_body(request: Request, what: &'static str, limit_bytes: usize) -> Result<Bytes> {
    let mut incoming = Incoming::of(request, what, limit_bytes).await?;
    let first = incoming.frame().await?.unwrap_or_default();
    let Some(second) = incoming.frame().await? else { return Ok(first) };
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&second);
    while let Some(bytes) = incoming.frame().await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all.freeze())
}

/// A body that is read as it arrives, up to a limit.
pub struct Incoming {
    body: axum::body::Body,
    what: &'static str,
    limit_bytes: usize,
    /// When the first read began.
    began: Option<Instant>,
    came_bytes: u64,
    /// Whether the body timed out, was too large, or was interrupted, so that no more bytes can be read.
    is_broken: bool,
}

impl Incoming {
    /// Rejects a `Content-Length` over the limit before reading the body.
    pub async fn of(request: Request, what: &'static str, limit_bytes: usize) -> Result<Self> {
        let headers = request.headers();
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let announced = announced.and_then(|length| length.parse::<u64>().ok());
        let waits = headers.contains_key(header::EXPECT);
        let body = request.into_body();
        let mut incoming = Self { body, what, limit_bytes, began: None, came_bytes: 0, is_broken: false };
        if announced.is_some_and(|length| length > limit_bytes as u64) {
            // A client that sent `Expect: 100-continue` gets the error at once.
            if !waits {
                incoming.pour_away().await;
            }
            return Err(Problem::too_large(what, limit_bytes));
        }
        Ok(incoming)
    }

    /// Returns the next bytes, or `None` at the end. The deadline grows with the bytes received.
    pub async fn next(&mut self, request_time_max: Duration) -> Result<Option<Bytes>> {
        let patience = upload_time(request_time_max, self.came_bytes);
        // Bytes that arrived early must not extend the wait for the next bytes.
        let now = Instant::now();
        let deadline = (*self.began.get_or_insert(now) + patience).min(now + request_time_max);
        let late = |_| Problem::late(request_time_max);
        let came = tokio::time::timeout_at(deadline, self.frame()).await.map_err(late).flatten();
        self.is_broken = came.is_err();
        came
    }

    /// Discards the rest of a rejected body, if it can still be read.
    pub async fn drop_rest(&mut self) {
        if !self.is_broken {
            self.pour_away().await;
        }
    }

    async fn frame(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame =
                frame.map_err(|error| Problem::invalid(format!("failed to read {}: {error}", self.what)))?;
            // Trailers are ignored.
            let Ok(bytes) = frame.into_data() else { continue };
            self.came_bytes += bytes.len() as u64;
            if self.came_bytes > self.limit_bytes as u64 {
                self.pour_away().await;
                return Err(Problem::too_large(self.what, self.limit_bytes));
            }
            return Ok(Some(bytes));
        }
        Ok(None)
    }

    /// Reads and discards the rest, up to twice the limit in total. Many clients write their whole body before they
    /// read the response, and would otherwise only see a broken connection.
    async fn pour_away(&mut self) {
        let pour = async {
            while let Some(Ok(frame)) = self.body.frame().await {
                self.came_bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
                if self.came_bytes > 2 * self.limit_bytes as u64 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(POUR_TIME_MAX, pour).await;
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
pub struct At<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<State> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| short(&error.body_text()))
    }
}

/// Path parameters of a route that reads a session. If the caller does not own the session, an audit line is written
/// before the read. The handler must still check the right to read, because one audit line covers several reads.
pub struct Seen<T>(pub T);

/// Path parameters that contain a session id.
pub trait NamesSession {
    fn session(&self) -> &SessionId;
}

impl NamesSession for SessionId {
    fn session(&self) -> &SessionId {
        self
    }
}

impl NamesSession for (SessionId, String) {
    fn session(&self) -> &SessionId {
        &self.0
    }
}

impl<T: DeserializeOwned + NamesSession + Send> FromRequestParts<State> for Seen<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let At(path) = At::<T>::from_request_parts(parts, state).await?;
        let caller = Caller::from_request_parts(parts, state).await?;
        state.note_read(&caller, path.session()).await?;
        Ok(Self(path))
    }
}

/// An `input.invalid` problem with a shortened text.
pub fn short(text: &str) -> Problem {
    Problem::invalid(text.chars().take(ECHO_CHARS_MAX).collect::<String>())
}

/// A header as text.
pub fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Problem::invalid(format!("header `{name}` is not ASCII text")))
}
