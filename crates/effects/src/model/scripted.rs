//! The scripted model plays a cassette: for each call, an ordered list of reply events, pauses and errors. A call
//! that is not in the cassette or does not match `expect` fails. A cassette is a TOML or JSON file:
//!
//! ```toml
//! by = "history"                # or "order", which is the default
//! window_tokens = 8000
//! price = { input = 3000, output = 15000 }        # billionths of a dollar per token
//!
//! [[calls]]
//! expect = "weather"            # must be in the last message
//! pieces = [
//!   { reasoning = "I should look." },
//!   { wait_ms = 20 },
//!   { call = { id = "c1", name = "read_file", input = { path = "a.txt" } } },
//!   { usage = { input = 20, output = 5 } },
//! ]
//!
//! [[calls]]
//! pieces = [{ error = { kind = "overloaded", status = 529 } }]
//!
//! [[calls]]
//! pieces = [{ text = "It is " }, { text = "sunny." }, { stop = "stop" }]
//! ```
//!
//! By default calls are played in order, counted in this process. With `by = "history"`, the number of assistant
//! messages in the request selects the call, so that a restarted process continues where the log ends.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::stream;
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request, Signature};
use sapwood_core::project::context::Role;
use serde::Deserialize;
use serde_json::Value;

/// Maximum size of a cassette file.
pub const CASSETTE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cassette {
    #[serde(default)]
    pub by: CallSelection,
    pub calls: Vec<CassetteCall>,
    #[serde(default)]
    pub window_tokens: Option<u64>,
    #[serde(default)]
    pub output_tokens_max: Option<u64>,
    #[serde(default)]
    pub price: Option<Price>,
}

/// How the cassette entry for a model call is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallSelection {
    #[default]
    Order,
    History,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CassetteCall {
    /// Text that the last message must contain.
    #[serde(default)]
    pub expect: Option<String>,
    pub pieces: Vec<CassetteStep>,
}

/// A reply event, a pause or an error. A list without `stop`, `cut` or `error` ends with an implicit stop, which is
/// tool use if the list contains calls.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CassetteStep {
    Text(String),
    Reasoning(String),
    ReasoningEnd {
        #[serde(default)]
        signature: Option<String>,
        #[serde(default)]
        redacted: bool,
    },
    /// A complete tool call.
    Call {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    CallBegan {
        index: u32,
        id: String,
        name: String,
    },
    CallInput {
        index: u32,
        text: String,
    },
    Usage(Usage),
    Stop(Stop),
    WaitMs(u64),
    /// Ends the stream early.
    Cut(String),
    Error(SimulatedError),
}

/// Errors that a provider can return.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SimulatedError {
    RateLimited {
        #[serde(default)]
        retry_after_ms: Option<u64>,
    },
    Overloaded {
        status: u16,
    },
    Unreachable,
    Silent {
        waited_ms: u64,
    },
    Malformed,
    Overflow,
    KeyRefused,
    Refused {
        status: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CassetteError {
    #[error("cassette {path}: {why}")]
    Unreadable { path: String, why: String },
}

/// Whether a model name refers to a cassette.
pub fn is_scripted(model: &str) -> bool {
    model.starts_with("scripted:") || model.starts_with("scripted/")
}

/// Read a regular file of at most [`CASSETTE_BYTES_MAX`] bytes as text. Refuses devices, pipes and larger files.
fn read_regular(path: &Path) -> std::io::Result<String> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    // Without this flag, opening a pipe waits for a writer.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(CASSETTE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CASSETTE_BYTES_MAX {
        return Err(std::io::Error::other(format!("it exceeds the limit of {CASSETTE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}

fn not_a_cassette(line: usize) -> String {
    format!("line {line} is not part of a valid cassette")
}

fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// A loaded cassette with its call counter.
#[derive(Debug)]
pub struct Scripted {
    cassette: Cassette,
    played: AtomicU32,
}

impl Scripted {
    pub fn new(cassette: Cassette) -> Self {
        Self { cassette, played: AtomicU32::new(0) }
    }

    /// Read a cassette: `.json` files as JSON, others as TOML. Errors never quote the file's content.
    pub fn read(path: &Path) -> Result<Self, CassetteError> {
        let fail = |why: String| CassetteError::Unreadable { path: path.display().to_string(), why };
        let text = read_regular(path).map_err(|error| fail(error.to_string()))?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let cassette = if is_json {
            serde_json::from_str(&text).map_err(|error| fail(not_a_cassette(error.line())))
        } else {
            toml::from_str(&text).map_err(|error| fail(not_a_cassette(line_of(&text, &error))))
        };
        cassette.map(Self::new)
    }

    /// Number of calls played in this process.
    pub fn calls_played(&self) -> u32 {
        self.played.load(Ordering::SeqCst)
    }

    pub fn facts(&self) -> ModelFacts {
        ModelFacts {
            window_tokens: self.cassette.window_tokens,
            output_tokens_max: self.cassette.output_tokens_max,
            price: self.cassette.price,
        }
    }

    pub fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let model = request.model.clone();
        let counted = self.played.fetch_add(1, Ordering::SeqCst);
        let call = match self.cassette.by {
            CallSelection::Order => counted,
            CallSelection::History => count_assistant_messages(request),
        };
        let unscripted = ModelError::Unscripted { model: model.clone(), call };
        let entry = self.cassette.calls.get(call as usize).ok_or(unscripted)?;
        if let Some(expected) = &entry.expect
            && !request.last_text().contains(expected.as_str())
        {
            let why = format!("the last message lacks the text that call {call} of the cassette expects");
            return Err(ModelError::Refused { model, status: 0, why });
        }
        let items = timed_items(&model, &entry.pieces);
        Ok(Box::pin(stream::unfold(items.into_iter(), |mut items| async move {
            let next = items.next()?;
            if next.wait_ms > 0 {
                tokio::time::sleep(Duration::from_millis(next.wait_ms)).await;
            }
            Some((next.item, items))
        })))
    }
}

/// A stream item and the pause before it.
struct TimedItem {
    wait_ms: u64,
    item: Result<ReplyEvent, ModelError>,
}

fn timed_items(model: &str, steps: &[CassetteStep]) -> Vec<TimedItem> {
    let mut items = Vec::new();
    let mut wait_ms = 0;
    let mut calls = 0;
    for step in steps {
        if let CassetteStep::WaitMs(ms) = step {
            wait_ms += ms;
            continue;
        }
        for item in step_items(model, step, &mut calls) {
            let is_end = matches!(item, Ok(ReplyEvent::Stop(_)) | Err(_));
            items.push(TimedItem { wait_ms: std::mem::take(&mut wait_ms), item });
            if is_end {
                return items;
            }
        }
    }
    let stop = if calls > 0 { Stop::ToolUse } else { Stop::Stop };
    items.push(TimedItem { wait_ms, item: Ok(ReplyEvent::Stop(stop)) });
    items
}

fn step_items(model: &str, step: &CassetteStep, calls: &mut u32) -> Vec<Result<ReplyEvent, ModelError>> {
    let event = match step {
        CassetteStep::Text(text) => ReplyEvent::Text(text.clone()),
        CassetteStep::Reasoning(text) => ReplyEvent::Reasoning(text.clone()),
        CassetteStep::ReasoningEnd { signature, redacted } => ReplyEvent::ReasoningEnd {
            signature: signature.as_deref().map(|text| Signature(text.into())),
            redacted: *redacted,
        },
        CassetteStep::Call { id, name, input } => {
            let index = *calls;
            *calls += 1;
            let began = ReplyEvent::CallBegan { index, call_id: id.clone(), name: name.clone() };
            let text = if input.is_null() { "{}".to_owned() } else { input.to_string() };
            return vec![Ok(began), Ok(ReplyEvent::CallInput { index, text })];
        }
        CassetteStep::CallBegan { index, id, name } => {
            *calls = (*calls).max(index.saturating_add(1));
            ReplyEvent::CallBegan { index: *index, call_id: id.clone(), name: name.clone() }
        }
        CassetteStep::CallInput { index, text } => {
            ReplyEvent::CallInput { index: *index, text: text.clone() }
        }
        CassetteStep::Usage(usage) => ReplyEvent::Usage(*usage),
        CassetteStep::Stop(stop) => ReplyEvent::Stop(*stop),
        CassetteStep::WaitMs(_) => return Vec::new(),
        CassetteStep::Cut(why) => {
            return vec![Err(ModelError::Cut { model: model.to_owned(), why: why.clone() })];
        }
        CassetteStep::Error(failure) => return vec![Err(error_of(model, failure))],
    };
    vec![Ok(event)]
}

fn error_of(model: &str, failure: &SimulatedError) -> ModelError {
    let model = model.to_owned();
    let why = "simulated by the cassette".to_owned();
    match *failure {
        SimulatedError::RateLimited { retry_after_ms } => ModelError::RateLimited { model, retry_after_ms },
        SimulatedError::Overloaded { status } => {
            ModelError::Overloaded { model, status, retry_after_ms: None }
        }
        SimulatedError::Unreachable => ModelError::Unreachable { model, why },
        SimulatedError::Silent { waited_ms } => ModelError::Silent { model, waited_ms },
        SimulatedError::Malformed => ModelError::Malformed { model, what: why },
        SimulatedError::Overflow => ModelError::Overflow { model, why },
        SimulatedError::KeyRefused => ModelError::KeyRefused { model, status: 401, why },
        SimulatedError::Refused { status } => ModelError::Refused { model, status, why },
    }
}

fn count_assistant_messages(request: &Request) -> u32 {
    let count = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}
