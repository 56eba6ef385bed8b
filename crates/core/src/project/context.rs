//! The context: the messages and settings sent to a model. A pure function of a [`PathSlice`].
//!
//! The context is always well formed (I6): every tool call is directly followed by exactly one result, even after cuts,
//! crashes, imports and interleaving. A missing result is replaced by "interrupted". A result without its call is
//! dropped.

use std::collections::{HashMap, HashSet};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::content::{Part, joined_text};
use crate::entry::{
    Body, Compaction, Entry, Graft, GraftWhat, Kind, Meta, Outcome, SessionContext, Stop, ToolResult, Usage,
};
use crate::id::{EntryId, Seq, TurnId};
use crate::port::store::PathSlice;
use crate::settings::Settings;
use crate::summary_frame::{frame_branch_summary, frame_summary};
use crate::tokens::{Estimate, count_parts};

/// The result shown to the model for a call without a result.
pub const INTERRUPTED: &str = "The tool call was interrupted before it returned a result.";

/// The author of a message in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A user. Summaries also have this role; they are framed, see [`crate::summary_frame`].
    User,
    /// The model.
    Assistant,
    /// A tool, with the result of a call.
    Tool,
    /// The engine or a hook, with a note for the model.
    System,
}

impl Role {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::System => "system",
        }
    }
}

/// One message of a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content.
    pub parts: Vec<Part>,
    /// The source entry; `None` for a synthesized result.
    pub entry: Option<(Seq, EntryId)>,
    /// Set for tool results.
    pub answers: Option<Answers>,
    /// The text of a summary, without the frame that it has in `parts`.
    pub summary: Option<String>,
}

/// Which call a tool message answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The id of the call.
    pub call_id: String,
    /// The name of the tool, if known.
    pub tool: Option<String>,
    /// Whether the call failed.
    pub is_error: bool,
}

impl Message {
    /// The text parts, joined by line breaks. A summary without its frame.
    pub fn text(&self) -> String {
        self.summary.clone().unwrap_or_else(|| joined_text(&self.parts))
    }

    /// Replace the text and keep the media.
    pub fn show_as(&mut self, text: &str) {
        self.parts.retain(|part| matches!(part, Part::Media(_)));
        self.parts.insert(0, Part::text(text));
    }

    /// Estimate the tokens without a tokenizer: four bytes of text per token.
    pub fn tokens(&self) -> u64 {
        count_parts(&Estimate, &self.parts)
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut message = serializer.serialize_struct("Message", 8)?;
        message.serialize_field("role", &self.role)?;
        message.serialize_field("text", &self.text())?;
        message.serialize_field("parts", &self.parts)?;
        if let Some(answers) = &self.answers {
            message.serialize_field("call_id", &answers.call_id)?;
            message.serialize_field("tool", &answers.tool)?;
            message.serialize_field("is_error", &answers.is_error)?;
        }
        message.serialize_field("entry", &self.entry.map(|(_, id)| id))?;
        message.serialize_field("seq", &self.entry.map(|(seq, _)| seq))?;
        message.end()
    }
}

/// What a model receives when it is called at an entry of the tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Context {
    /// The system prompt.
    pub system: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The reasoning effort, such as `off` or `high`.
    pub thinking: String,
    /// The names of the active skills.
    pub skills: Vec<String>,
    /// The session's context: directory, active file, selection, git ref, variables.
    #[serde(rename = "context", skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionContext>,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Estimated number of tokens.
    pub tokens: u64,
    /// The latest compaction, which determines where this context starts.
    #[serde(skip)]
    pub compaction: Option<LatestCompaction>,
    /// The provider's last usage report for this context.
    #[serde(skip)]
    pub reported: Option<Reported>,
}

/// The latest compaction on a path.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestCompaction {
    /// The id of the compaction's entry.
    pub id: EntryId,
    /// The compaction.
    pub body: Compaction,
}

/// The reported usage of an answer after the latest compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// The entry that reports the usage.
    pub seq: Seq,
    /// The tokens of the call, as the provider reported them.
    pub usage: Usage,
}

impl Context {
    /// The number of leading summary messages: one or zero.
    pub fn summaries(&self) -> usize {
        let is_summary = |message: &Message| {
            self.compaction.as_ref().is_some_and(|c| message.entry.is_some_and(|(_, id)| id == c.id))
        };
        usize::from(self.messages.first().is_some_and(is_summary))
    }
}

/// How to treat a turn that was interrupted by a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenTurn {
    /// Keep its entries.
    #[default]
    Keep,
    /// Leave out the whole turn.
    LeaveOut,
}

/// Build the context of a path.
pub fn build_context(slice: PathSlice, open_turn: OpenTurn) -> Context {
    let mut start = context_start(&slice.entries);
    let omitted = OmittedEntries::of(&slice, start.first_kept, open_turn);
    let reported = last_report(&slice.entries);
    let mut settings = slice.settings_before;
    let mut shown = Vec::with_capacity(slice.entries.len() + 1);
    shown.extend(start.summary.take());
    for (index, entry) in slice.entries.into_iter().enumerate() {
        settings.apply(&entry.body);
        if index >= start.first_kept && !omitted.covers(&entry.meta, &entry.body) {
            shown.extend(message_of(&entry.meta, entry.body));
        }
    }
    if let Some(latest_compaction) = &start.compaction {
        shorten_results(&mut shown, &latest_compaction.body);
    }
    let session = slice.config.map(|config| {
        config.apply_to(&mut settings);
        config.context
    });
    let mut messages = close_pairs(shown);
    name_results(&mut messages);
    Context { session, ..context_of(settings, messages, start.compaction, reported) }
}

/// The messages of entries that are not a whole path, such as an abandoned branch. Compactions among them are ignored.
pub fn messages_of(entries: Vec<Entry>) -> Vec<Message> {
    let shown = entries.into_iter().filter_map(|entry| message_of(&entry.meta, entry.body));
    let mut messages = close_pairs(shown.collect());
    name_results(&mut messages);
    messages
}

/// Replace kept results with the shortened texts stored in the compaction.
fn shorten_results(messages: &mut [Message], compaction: &Compaction) {
    if compaction.shortened.is_empty() {
        return;
    }
    let texts: HashMap<EntryId, &str> =
        compaction.shortened.iter().map(|shortened| (shortened.entry, shortened.text.as_str())).collect();
    for message in messages.iter_mut().filter(|message| message.answers.is_some()) {
        if let Some(text) = message.entry.and_then(|(_, id)| texts.get(&id)) {
            message.show_as(text);
        }
    }
}

/// The last answer with usage after the latest compaction.
fn last_report(entries: &[Entry]) -> Option<Reported> {
    let is_compaction = |entry: &&Entry| entry.meta.kind == Kind::Compaction;
    entries.iter().rev().take_while(|entry| !is_compaction(entry)).find_map(|entry| match &entry.body {
        Body::AssistantMessage(message) if message.stop != Stop::Error => {
            message.usage.map(|usage| Reported { seq: entry.meta.seq, usage })
        }
        _ => None,
    })
}

fn context_of(
    settings: Settings,
    messages: Vec<Message>,
    compaction: Option<LatestCompaction>,
    reported: Option<Reported>,
) -> Context {
    let system = settings.system_prompt();
    let system_tokens = system.as_ref().map_or(0, |system| system.len().div_ceil(4) as u64);
    Context {
        compaction,
        reported,
        tokens: system_tokens + messages.iter().map(Message::tokens).sum::<u64>(),
        thinking: settings.thinking_level().to_owned(),
        system,
        model: settings.model,
        skills: settings.skills.unwrap_or_default(),
        session: None,
        messages,
    }
}

/// Where the context starts according to the latest compaction; without a compaction, at the start of the slice.
#[derive(Default)]
struct ContextStart {
    first_kept: usize,
    summary: Option<Message>,
    compaction: Option<LatestCompaction>,
}

fn context_start(entries: &[Entry]) -> ContextStart {
    let latest = entries.iter().enumerate().rev().find_map(|(at, entry)| match &entry.body {
        Body::Compaction(compaction) => Some((at, compaction)),
        _ => None,
    });
    let Some((at, compaction)) = latest else { return ContextStart::default() };
    let first_kept = match compaction.first_kept {
        None => at,
        // An entry that is not found is before the slice, because it is on the path (I2). The whole slice is then kept
        // (I7).
        Some(id) => entries[..at].iter().position(|entry| entry.meta.id == id).unwrap_or(0),
    };
    let summary = compaction
        .summary
        .as_ref()
        .map(|text| summary_message(&entries[at].meta, text.clone(), frame_summary(text)));
    let latest_compaction = LatestCompaction { id: entries[at].meta.id, body: compaction.clone() };
    ContextStart { first_kept, summary, compaction: Some(latest_compaction) }
}

/// Determines which entries of failed and interrupted turns the context omits.
struct OmittedEntries {
    turns: HashSet<TurnId>,
    /// Turns that failed before any output. Their user messages are omitted, too.
    silent: HashSet<TurnId>,
    inherited: u32,
}

impl OmittedEntries {
    fn of(slice: &PathSlice, first_kept: usize, open_turn: OpenTurn) -> Self {
        let rolled_back = slice.open_turn.filter(|_| open_turn == OpenTurn::LeaveOut);
        let failed = slice.ended_turns.iter().filter(|(_, outcome)| *outcome == Outcome::Failed);
        let mut silent: HashSet<TurnId> = failed.map(|(turn, _)| *turn).collect();
        if !silent.is_empty() {
            for (index, entry) in slice.entries.iter().enumerate() {
                // A turn that began before the context may have had output, so its user message stays. A slice that
                // starts later must produce the same context.
                let may_have_output = index < first_kept || has_output(&entry.body);
                if let Some(turn) = entry.meta.turn.filter(|_| may_have_output) {
                    silent.remove(&turn);
                }
            }
        }
        Self { turns: rolled_back.into_iter().collect(), silent, inherited: slice.inherited }
    }

    fn covers(&self, meta: &Meta, body: &Body) -> bool {
        if matches!(body, Body::AssistantMessage(message) if message.stop == Stop::Error) {
            return true;
        }
        // A later failure of the source's turn does not affect the entries that a fork shares (I8).
        let Some(turn) = meta.turn.filter(|_| meta.seq.0 > self.inherited) else { return false };
        self.turns.contains(&turn) || (meta.kind == Kind::UserMessage && self.silent.contains(&turn))
    }
}

pub(super) fn has_output(body: &Body) -> bool {
    match body {
        Body::ToolResult(_) => true,
        Body::AssistantMessage(message) => message.stop != Stop::Error,
        _ => false,
    }
}

fn user_text(meta: &Meta, text: String) -> Message {
    message(Role::User, meta, vec![Part::text(text)])
}

/// A summary as the model receives it, in its frame. Readers see the plain text.
pub(super) fn summary_message(meta: &Meta, text: String, framed: String) -> Message {
    Message { summary: Some(text), ..user_text(meta, framed) }
}

fn message(role: Role, meta: &Meta, parts: Vec<Part>) -> Message {
    Message { role, parts, entry: Some((meta.seq, meta.id)), answers: None, summary: None }
}

pub(super) fn message_of(meta: &Meta, body: Body) -> Option<Message> {
    match body {
        Body::UserMessage(body) => Some(message(Role::User, meta, without_calls(body.parts))),
        Body::AssistantMessage(body) => Some(message(Role::Assistant, meta, body.parts)),
        Body::ToolResult(body) => Some(tool_message(meta, body)),
        Body::SystemNote(body) => Some(message(Role::System, meta, vec![Part::text(body.text)])),
        Body::CustomMessage(body) => Some(message(Role::User, meta, without_calls(body.parts))),
        Body::BranchSummary(body) => {
            let framed = frame_branch_summary(&body.summary);
            Some(summary_message(meta, body.summary, framed))
        }
        Body::Graft(body) => Some(user_text(meta, graft_text(&body))),
        // Settings, compactions, and entries outside the tree.
        _ => None,
    }
}

fn tool_message(meta: &Meta, result: ToolResult) -> Message {
    let answers = Answers { call_id: result.call_id, tool: result.tool, is_error: result.is_error };
    Message { answers: Some(answers), ..message(Role::Tool, meta, without_calls(result.parts)) }
}

/// Drop tool calls. Only an assistant may call tools; a call in another message, as in some imports, would never get a
/// result (I6).
fn without_calls(mut parts: Vec<Part>) -> Vec<Part> {
    parts.retain(|part| part.as_tool_call().is_none());
    parts
}

fn graft_text(graft: &Graft) -> String {
    let what = match &graft.what {
        GraftWhat::Artifact { name } => format!("artifact {name:?}"),
        GraftWhat::Digest => "digest".to_owned(),
        GraftWhat::Rounds { first, last } => format!("rounds {first} to {last}"),
    };
    format!("[grafted: {what} of session {}]", graft.source)
}

/// Move each result directly after its call (I6).
fn close_pairs(messages: Vec<Message>) -> Vec<Message> {
    if is_closed(&messages) {
        return messages;
    }
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    let mut pairs = OpenPairs::default();
    for message in messages {
        match &message.answers {
            Some(answers) => {
                if let Some(slot) = pairs.answer(&answers.call_id) {
                    pairs.results[slot] = Some(message);
                }
            }
            None => {
                pairs.open(kept.len(), &message);
                kept.push(message);
            }
        }
    }
    pairs.interleave(kept)
}

/// Fill in missing tool names of results from their calls. Requires that each result directly follows its call.
fn name_results(messages: &mut [Message]) {
    for index in 0..messages.len() {
        let (before, rest) = messages.split_at_mut(index + 1);
        let calls = before[index].parts.iter().filter_map(Part::as_tool_call);
        for (call, result) in calls.zip(rest) {
            if let Some(answers) = result.answers.as_mut().filter(|answers| answers.tool.is_none()) {
                answers.tool = Some(call.name.clone());
            }
        }
    }
}

/// Whether every call is already followed by its result, in order. In this common case no message has to move.
fn is_closed(messages: &[Message]) -> bool {
    let mut rest = messages.iter();
    while let Some(message) = rest.next() {
        if message.answers.is_some() {
            return false;
        }
        for call in message.parts.iter().filter_map(Part::as_tool_call) {
            let result = rest.next().and_then(|next| next.answers.as_ref());
            if result.is_none_or(|answers| answers.call_id != call.call_id) {
                return false;
            }
        }
    }
    true
}

/// Calls in order, each with the index of its message and, once found, its result.
#[derive(Default)]
struct OpenPairs {
    calls: Vec<(usize, String, String)>,
    results: Vec<Option<Message>>,
    waiting: HashMap<String, Vec<usize>>,
}

impl OpenPairs {
    fn open(&mut self, at: usize, message: &Message) {
        let first = self.calls.len();
        for call in message.parts.iter().filter_map(Part::as_tool_call) {
            self.calls.push((at, call.call_id.clone(), call.name.clone()));
            self.results.push(None);
        }
        // Iterate in reverse, so that among calls with the same id in one message the first is answered first.
        for slot in (first..self.calls.len()).rev() {
            self.waiting.entry(self.calls[slot].1.clone()).or_default().push(slot);
        }
    }

    /// The nearest earlier call with this id that has no result yet. Providers reuse ids across turns.
    fn answer(&mut self, call_id: &str) -> Option<usize> {
        self.waiting.get_mut(call_id)?.pop()
    }

    fn interleave(self, kept: Vec<Message>) -> Vec<Message> {
        if self.calls.is_empty() {
            return kept;
        }
        let mut closed = Vec::with_capacity(kept.len() + self.calls.len());
        let mut pairs = self.calls.into_iter().zip(self.results).peekable();
        for (at, message) in kept.into_iter().enumerate() {
            closed.push(message);
            while let Some(((_, call_id, tool), result)) = pairs.next_if(|((call_at, ..), _)| *call_at == at)
            {
                closed.push(result.unwrap_or_else(|| interrupted(call_id, tool)));
            }
        }
        closed
    }
}

pub(super) fn interrupted(call_id: String, tool: String) -> Message {
    let answers = Answers { call_id, tool: Some(tool), is_error: true };
    Message {
        role: Role::Tool,
        parts: vec![Part::text(INTERRUPTED)],
        entry: None,
        answers: Some(answers),
        summary: None,
    }
}
