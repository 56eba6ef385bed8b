//! The demo model needs no key and no network, and returns the same answer to the same request. It understands a few
//! plain requests ([`intent`]), calls tools, writes as many words as requested, and counts tokens, so that users can
//! try Sapwood on a new machine. [`reply`] is pure. Only the pauses between words depend on time.

mod intent;
mod summary;
mod words;

use std::time::Duration;

use futures_util::stream;
use sapwood_core::content::ToolCall;
use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{
    ModelError, ReplyEvent, ReplyStream, Request, RequestMessage, RequestPart, Thinking,
};
use sapwood_core::project::context::Role;

use intent::Intent;

const PACE_MS_DEFAULT: u64 = 15;
/// Rule of thumb: bytes of text per token.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens counted for each media part, regardless of its size.
const MEDIA_TOKENS: u64 = 800;
/// Maximum length of a tool result quoted in an answer.
const QUOTE_CHARS_MAX: usize = 600;

const INTRODUCTION: &str = "\
Hello, I am Sapwood's demo model. I run inside this program, need no key, and send no data anywhere.

Sapwood stores conversations with AI agents as durable sessions. Every message, tool call and result is an entry in an \
append-only tree, so a session can be branched, forked, searched, shared and resumed after a crash.

Things to try with me:

- `list` or `read FILE`: I call the tools of this session, and you see their results
- `write notes.txt: some text`, `run CMD`, `git status`: these may ask for your approval
- `read a.txt and read b.txt`: two calls at once
- `use TOOL {\"json\": \"input\"}`: any tool by name
- `write 2000 words`: fills the context, so that the context gauge rises
- `think about trees`: shows reasoning, then an answer
- `what did I say?`: I quote from the context I was given

To use a real model, set a key such as ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or start Ollama, and select the \
model by name: PROVIDER/NAME.";

#[derive(Debug, Clone, Copy)]
pub struct Demo {
    pace_ms: u64,
}

impl Demo {
    pub fn new(pace_ms: Option<u64>) -> Self {
        Self { pace_ms: pace_ms.unwrap_or(PACE_MS_DEFAULT) }
    }

    pub fn call(&self, request: &Request, window_tokens: Option<u64>) -> Result<ReplyStream, ModelError> {
        let input = input_tokens(request);
        if let Some(window) = window_tokens.filter(|window| input > *window) {
            let why = format!("the request has {input} tokens, and the demo model's window has {window}");
            return Err(ModelError::Overflow { model: request.model.clone(), why });
        }
        let pace = Duration::from_millis(self.pace_ms);
        let events = reply(request).into_iter();
        Ok(Box::pin(stream::unfold(events, move |mut events| async move {
            let event = events.next()?;
            if !pace.is_zero() && matches!(event, ReplyEvent::Text(_) | ReplyEvent::Reasoning(_)) {
                tokio::time::sleep(pace).await;
            }
            Some((Ok(event), events))
        })))
    }
}

/// The complete answer to a request.
pub fn reply(request: &Request) -> Vec<ReplyEvent> {
    let intent = match request.messages.last() {
        Some(message) if message.role == Role::Tool => Intent::Report,
        _ => intent::parse_intent(&last_user_text(request), &request.tools),
    };
    let mut events = Vec::new();
    if request.thinking != Thinking::Off || matches!(intent, Intent::Think(_)) {
        events.extend(word_events(&intent.thought(), ReplyEvent::Reasoning));
        events.push(ReplyEvent::ReasoningEnd { signature: None, redacted: false });
    }
    let calls = intent.calls();
    let text = text_of(&intent, request);
    let (text, stop) = limit_text(text, request.output_tokens_max, !calls.is_empty());
    events.extend(word_events(&text, ReplyEvent::Text));
    for (position, (name, input)) in calls.iter().enumerate() {
        let index = position as u32;
        events.push(ReplyEvent::CallBegan { index, call_id: call_id(request, position), name: name.clone() });
        events.push(ReplyEvent::CallInput { index, text: input.to_string() });
    }
    let output = events.iter().map(event_bytes).sum::<usize>().div_ceil(BYTES_PER_TOKEN);
    events.push(ReplyEvent::Usage(Usage {
        input: input_tokens(request),
        output: output as u64,
        ..Usage::default()
    }));
    events.push(ReplyEvent::Stop(stop));
    events
}

fn text_of(intent: &Intent, request: &Request) -> String {
    match intent {
        Intent::Hello => INTRODUCTION.to_owned(),
        Intent::Calls(calls) => {
            let names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
            format!("Calling {}.", names.join(" and "))
        }
        Intent::NoTool(what) => {
            let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!("To {what}, I need a tool that this session does not have. Available tools: {names}.")
        }
        Intent::Words(count) => words::write_words(*count),
        Intent::Think(what) => {
            format!(
                "I have thought about {what}: it grows ring by ring, and each new ring keeps the older ones."
            )
        }
        Intent::Recall => recall(request),
        Intent::Summary => summarise(request),
        Intent::Report => report(request),
        Intent::Other(text) => format!(
            "You said: \"{}\"\n\nI am only a demo, not a real model, so I cannot say much about that. Type `help` to see \
             what I can do.",
            quote(text)
        ),
    }
}

/// Report the latest tool results.
fn report(request: &Request) -> String {
    let results = request.messages.iter().rev().take_while(|message| message.role == Role::Tool);
    let mut lines: Vec<String> =
        results.flat_map(|message| message.parts.iter()).filter_map(report_line).collect();
    lines.reverse();
    lines.join("\n\n")
}

fn report_line(part: &RequestPart) -> Option<String> {
    let RequestPart::ToolResult { tool, parts, is_error, .. } = part else { return None };
    let text = quote(&joined(parts));
    Some(match (is_error, text.is_empty()) {
        (true, _) => format!("{tool} failed: {text}"),
        (false, true) => format!("{tool} finished without output."),
        (false, false) => format!("{tool} returned:\n\n```\n{text}\n```"),
    })
}

fn recall(request: &Request) -> String {
    let texts: Vec<String> = user_texts(request).collect();
    let earlier = texts.len().saturating_sub(1);
    match (texts.first(), texts.get(earlier.saturating_sub(1))) {
        (Some(first), Some(last)) if earlier > 0 => format!(
            "My context has {} messages. Your first message was \"{}\", and your previous one was \"{}\".",
            request.messages.len(),
            quote(first),
            quote(last)
        ),
        _ => "This is your first message.".to_owned(),
    }
}

/// Summarize the conversation in the request, or the transcript that the last message contains.
fn summarise(request: &Request) -> String {
    if let Some(summary) = summary::summarise_transcript(&last_user_text(request)) {
        return summary;
    }
    let texts: Vec<String> = user_texts(request).collect();
    let earlier = texts.split_last().map(|(_, earlier)| earlier).unwrap_or_default();
    let lines = earlier
        .iter()
        .map(|text| format!("- the user said: {}", quote(text.lines().next().unwrap_or_default())));
    let calls =
        request.messages.iter().flat_map(|message| message.parts.iter()).filter_map(|part| match part {
            RequestPart::ToolCall(ToolCall { name, .. }) => Some(format!("- the assistant called {name}")),
            _ => None,
        });
    let lines: Vec<String> = lines.chain(calls).collect();
    if lines.is_empty() {
        "The conversation is empty.".to_owned()
    } else {
        format!("So far:\n{}", lines.join("\n"))
    }
}

fn user_texts(request: &Request) -> impl Iterator<Item = String> {
    let user_messages = request.messages.iter().filter(|message| message.role == Role::User);
    user_messages.map(|message| joined(&message.parts)).filter(|text| !text.trim().is_empty())
}

fn last_user_text(request: &Request) -> String {
    let is_user = |message: &&RequestMessage| message.role == Role::User;
    request.messages.iter().rfind(is_user).map(|message| joined(&message.parts)).unwrap_or_default()
}

fn joined(parts: &[RequestPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        RequestPart::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn limit_text(text: String, tokens_max: Option<u32>, has_calls: bool) -> (String, Stop) {
    let stop = if has_calls { Stop::ToolUse } else { Stop::Stop };
    let bytes_max = tokens_max.map_or(usize::MAX, |tokens| (tokens as usize).saturating_mul(BYTES_PER_TOKEN));
    if text.len() <= bytes_max {
        return (text, stop);
    }
    let at = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    (text[..at].to_owned(), Stop::Length)
}

fn word_events(text: &str, event: fn(String) -> ReplyEvent) -> Vec<ReplyEvent> {
    text.split_inclusive(' ').map(|word| event(word.to_owned())).collect()
}

fn event_bytes(event: &ReplyEvent) -> usize {
    match event {
        ReplyEvent::Text(text) | ReplyEvent::Reasoning(text) | ReplyEvent::CallInput { text, .. } => {
            text.len()
        }
        ReplyEvent::CallBegan { name, .. } => name.len(),
        ReplyEvent::ReasoningEnd { .. } | ReplyEvent::Usage(_) | ReplyEvent::Stop(_) => 0,
    }
}

fn input_tokens(request: &Request) -> u64 {
    let system = request.system.as_ref().map_or(0, String::len);
    let tools: usize =
        request.tools.iter().map(|tool| tool.description.len() + tool.input_schema.get().len()).sum();
    let bytes = (system + tools).div_ceil(BYTES_PER_TOKEN) as u64;
    let parts = request.messages.iter().flat_map(|message| message.parts.iter());
    bytes + parts.map(part_tokens).sum::<u64>()
}

fn part_tokens(part: &RequestPart) -> u64 {
    let tokens = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
    match part {
        RequestPart::Text(text) | RequestPart::Reasoning { text, .. } => tokens(text.len()),
        RequestPart::ToolCall(call) => tokens(call.name.len() + call.input.get().len()),
        RequestPart::ToolResult { parts, .. } => parts.iter().map(part_tokens).sum(),
        RequestPart::Media { .. } => MEDIA_TOKENS,
    }
}

/// Create a call id that is the same for the same request, and unique among the requests of a session.
fn call_id(request: &Request, position: usize) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for part in request.messages.iter().flat_map(|message| message.parts.iter()) {
        match part {
            RequestPart::Text(text) => mix(text.as_bytes()),
            RequestPart::ToolCall(call) => mix(call.call_id.as_bytes()),
            RequestPart::ToolResult { call_id, .. } => mix(call_id.as_bytes()),
            RequestPart::Reasoning { .. } | RequestPart::Media { .. } => mix(b"."),
        }
        mix(&[0xff]);
    }
    format!("demo_{hash:016x}_{position}")
}

#[cfg(test)]
mod tests;
