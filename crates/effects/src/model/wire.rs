//! Performs one exchange with a provider: sends a JSON body and decodes the streamed response to reply events. This
//! module enforces the rules that apply to all providers: idle time and size are limited, a stream that ends early is
//! an error, and [`ReplyEvent::Stop`] is returned exactly once, as the last event.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, Stream};
use futures_util::{StreamExt, TryStreamExt};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Response};
use sapwood_core::entry::Stop;
use sapwood_core::port::model::{ModelError, ReplyEvent, ReplyStream};
use serde_json::Value;
use tokio::time::timeout;

use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::sse::{FRAME_BYTES_MAX, FrameError, FrameSplitter, Framing};

/// Maximum size of one response, including framing.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Maximum size of an error response.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// A request in the provider's format.
#[derive(Debug)]
pub struct WireRequest {
    pub url: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Value,
    pub framing: Framing,
}

/// Decodes frames to reply events. Never returns [`ReplyEvent::Stop`], which the caller derives from
/// [`Decode::progress`].
pub trait Decode: Send {
    fn decode(&mut self, frame: &str, events: &mut Vec<ReplyEvent>) -> Result<(), DecodeError>;
    fn progress(&self) -> ReplyProgress;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyProgress {
    Incomplete,
    /// Complete if no more data arrives: only the end marker is missing.
    CompleteAtEof(Stop),
    /// Complete. Further data is ignored.
    Complete(Stop),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The frame cannot be parsed.
    Malformed(String),
    /// The provider reports an error.
    Provider(ProviderError),
}

impl DecodeError {
    pub fn missing(what: &str) -> Self {
        DecodeError::Malformed(format!("{what} is missing"))
    }
}

pub fn parse_frame(frame: &str) -> Result<Value, DecodeError> {
    serde_json::from_str(frame).map_err(|error| DecodeError::Malformed(error.to_string()))
}

/// An HTTP client for one call to one provider.
pub struct Wire {
    pub client: Client,
    pub model: String,
    pub key: Option<ProviderKey>,
    pub idle_ms: u64,
}

impl Wire {
    /// Send the request and return when the response starts.
    pub async fn open(
        self,
        request: WireRequest,
        decoder: Box<dyn Decode>,
    ) -> Result<ReplyStream, ModelError> {
        let headers: HeaderMap = request.headers.into_iter().collect();
        let sent = self.client.post(&request.url).headers(headers).json(&request.body).send();
        let response = match timeout(Duration::from_millis(self.idle_ms), sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(error)),
            Err(_) => return Err(self.silent()),
        };
        if !response.status().is_success() || !may_stream(response.headers()) {
            return Err(self.read_error(response).await);
        }
        let body = response.bytes_stream().map_ok(|bytes| bytes.to_vec());
        let reader = ResponseReader {
            wire: self,
            body: Box::pin(body),
            frames: FrameSplitter::new(request.framing),
            decoder,
            events: VecDeque::new(),
            bytes: 0,
            state: ResponseState::Open,
        };
        Ok(Box::pin(stream::unfold(reader, ResponseReader::next)))
    }

    fn silent(&self) -> ModelError {
        ModelError::Silent { model: self.model.clone(), waited_ms: self.idle_ms }
    }

    fn unreachable(&self, error: reqwest::Error) -> ModelError {
        ModelError::Unreachable { model: self.model.clone(), why: self.explain(error) }
    }

    /// Format the whole chain of causes, without the URL, which may contain a password.
    fn explain(&self, error: reqwest::Error) -> String {
        let error = error.without_url();
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !why.contains(&text) {
                why = format!("{why}: {text}");
            }
            cause = error.source();
        }
        self.scrub(&why)
    }

    fn scrub(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.scrub(text))
    }

    async fn read_error(&self, response: Response) -> ModelError {
        let status = response.status();
        let headers = response.headers().clone();
        let body =
            timeout(Duration::from_millis(self.idle_ms), read_start(response)).await.unwrap_or_default();
        let body = self.scrub(&String::from_utf8_lossy(&body));
        if status.is_redirection() {
            let to =
                headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("an unknown location");
            let why =
                format!("the provider redirects to {to}, but requests with a key do not follow redirects");
            return ModelError::Refused { model: self.model.clone(), status: status.as_u16(), why };
        }
        let error = ProviderError::from_response(status.as_u16(), &headers, &body, now_ms());
        if status.is_success() && !body.contains("\"error\"") {
            let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("no type");
            let what = format!("a response of type {kind} instead of a stream");
            return ModelError::Malformed { model: self.model.clone(), what };
        }
        if status.is_success() {
            let body = serde_json::from_str(&body).unwrap_or(Value::String(body));
            return ProviderError::from_event(&body).into_error(&self.model);
        }
        error.into_error(&self.model)
    }
}

/// Whether the content type allows a stream. Some gateways send errors and login pages with a success status.
fn may_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    !(kind.starts_with("text/html") || kind.starts_with("application/json"))
}

async fn read_start(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let remaining = ERROR_BYTES_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
        if body.len() == ERROR_BYTES_MAX {
            break;
        }
    }
    body
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

type BodyStream = Pin<Box<dyn Stream<Item = Result<Vec<u8>, reqwest::Error>> + Send>>;

/// State of a response. Queued events are returned before the end or error that follows them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ResponseState {
    Open,
    Complete(Stop),
    Failed(ModelError),
    Ended,
}

/// Reads a response and yields its reply events.
struct ResponseReader {
    wire: Wire,
    body: BodyStream,
    frames: FrameSplitter,
    decoder: Box<dyn Decode>,
    events: VecDeque<ReplyEvent>,
    bytes: usize,
    state: ResponseState,
}

impl ResponseReader {
    async fn next(mut self) -> Option<(Result<ReplyEvent, ModelError>, Self)> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some((Ok(event), self));
            }
            match std::mem::replace(&mut self.state, ResponseState::Ended) {
                ResponseState::Ended => return None,
                ResponseState::Complete(stop) => return Some((Ok(ReplyEvent::Stop(stop)), self)),
                ResponseState::Failed(error) => return Some((Err(error), self)),
                ResponseState::Open => self.state = ResponseState::Open,
            }
            if let Err(error) = self.read_chunk().await {
                self.state = ResponseState::Failed(error);
            }
        }
    }

    /// Read and decode the next chunk of the body.
    async fn read_chunk(&mut self) -> Result<(), ModelError> {
        let idle = Duration::from_millis(self.wire.idle_ms);
        match timeout(idle, self.body.next()).await {
            Ok(Some(Ok(bytes))) => self.decode_bytes(&bytes),
            Ok(Some(Err(error))) => {
                let why = self.wire.explain(error);
                self.end_input(why)
            }
            Ok(None) => self.end_input("the stream ended before its end marker".to_owned()),
            Err(_) => {
                let waited_ms = self.wire.idle_ms;
                self.end_or_fail(|model| ModelError::Silent { model, waited_ms })
            }
        }
    }

    fn decode_bytes(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        self.bytes += bytes.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(self.too_large(ANSWER_BYTES_MAX));
        }
        let mut frames = Vec::new();
        let framed = self.frames.push(bytes, &mut frames);
        for frame in frames {
            if self.state == ResponseState::Open {
                self.decode_frame(&frame).map_err(|error| self.decode_error(error))?;
            }
        }
        match framed {
            Err(error) if self.state == ResponseState::Open => Err(self.frame_error(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn decode_frame(&mut self, frame: &str) -> Result<(), DecodeError> {
        let mut events = Vec::new();
        self.decoder.decode(frame, &mut events)?;
        self.events.extend(events);
        if let ReplyProgress::Complete(stop) = self.decoder.progress() {
            self.state = ResponseState::Complete(stop);
        }
        Ok(())
    }

    /// Handle a closed or broken connection. A partial frame at the end is reported as a cut
    /// stream, not as malformed data.
    fn end_input(&mut self, why: String) -> Result<(), ModelError> {
        let mut frames = Vec::new();
        let mut is_intact = self.frames.finish(&mut frames).is_ok();
        for frame in frames {
            if self.state == ResponseState::Open && is_intact {
                match self.decode_frame(&frame) {
                    Err(DecodeError::Malformed(_)) => is_intact = false,
                    other => other.map_err(|error| self.decode_error(error))?,
                }
            }
        }
        if self.state == ResponseState::Open {
            return self.end_or_fail(|model| ModelError::Cut { model, why });
        }
        Ok(())
    }

    /// Handle the end of the data: a complete reply without its end marker ends normally, and any
    /// other reply fails with `error`.
    fn end_or_fail(&mut self, error: impl FnOnce(String) -> ModelError) -> Result<(), ModelError> {
        match self.decoder.progress() {
            ReplyProgress::CompleteAtEof(stop) | ReplyProgress::Complete(stop) => {
                self.state = ResponseState::Complete(stop);
                Ok(())
            }
            ReplyProgress::Incomplete => Err(error(self.wire.model.clone())),
        }
    }

    fn decode_error(&self, error: DecodeError) -> ModelError {
        match error {
            DecodeError::Malformed(what) => {
                ModelError::Malformed { model: self.wire.model.clone(), what: self.wire.scrub(&what) }
            }
            DecodeError::Provider(mut error) => {
                error.message = self.wire.scrub(&error.message);
                error.into_error(&self.wire.model)
            }
        }
    }

    fn frame_error(&self, error: FrameError) -> ModelError {
        match error {
            FrameError::TooLarge => self.too_large(FRAME_BYTES_MAX),
            FrameError::NotUtf8 => ModelError::Malformed {
                model: self.wire.model.clone(),
                what: "bytes that are not UTF-8".into(),
            },
        }
    }

    fn too_large(&self, limit: usize) -> ModelError {
        ModelError::TooLarge { model: self.wire.model.clone(), limit, unit: "bytes" }
    }
}
