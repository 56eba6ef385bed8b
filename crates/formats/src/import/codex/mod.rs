//! Import of Codex rollouts: lines `{timestamp, ordinal?, type, payload}`.
//!
//! - Messages to and from the model are in `response_item`. `event_msg` mostly repeats them for display, so only token
//!   counts and rollbacks are read from it.
//! - Token counts are cumulative: a response's usage is the increase since the previous count. The count follows
//!   the response, sometimes after its tool results, so a response is buffered until its count is read. A response
//!   without a count at the end of the file gets a separate key, so that a later import can add the count.
//! - A count without a pending response belongs to the next compaction. If no compaction follows, the count becomes a
//!   separate usage entry.
//! - `compacted` contains the history that replaces the old one. The record becomes a compaction that keeps
//!   nothing, followed by the new history.
//! - `thread_rolled_back` drops the last turns, and Codex's own messages right before the first dropped turn. The
//!   dropped part stays in the log as a branch. Messages before the first turn of the thread are kept. Settings belong
//!   to Codex, not to the thread, so dropped settings are added again.
//! - A fork contains only its own records and references its base. The caller passes the base's lines first, through
//!   [`Reader::push_inherited`]. Their usage is counted in the base. If a base is missing, responses are identified
//!   only by the fork's own earlier responses and the number of bases found. A later import that finds more bases
//!   derives the same keys, so it does not count the usage again.
//! - Older forks begin with copies of their source's records, starting with its `session_meta`. The copies are written
//!   at the same time. Their usage is counted in the source.
//!
//! Memory: one response, the user texts that an old compaction repeats, and a few bytes per turn.

mod bases;
mod content;
mod line;
mod user_texts;

use sapwood_core::content::{Part, Reasoning, joined_text};
use sapwood_core::entry::{
    AssistantMessage, Compaction, ContextChanged, CustomMessage, EngineRecord, ModelChanged, Stop, Strategy,
    SystemNote, ThinkingChanged, ToolResult, Trigger, Usage, UsageReported, UserMessage, WrittenBy,
};
use sapwood_core::{BlobHash, Body, TimestampMs};
use serde_json::value::RawValue;

use crate::import::blocks::{part_bytes, tool_result};
use crate::import::steps::{
    Author, EarlierEntries, PathKind, RecordKey, StepAction, StepBatch, StepParent, lineage, model_name,
    plausible_usage,
};
use crate::import::text::{arguments_json, input_json};
use crate::import::{Format, ProblemKind, Reader, keep_record, read_json_line};
use bases::Bases;
use content::{is_context, outline, output_parts};
pub use line::HistoryBase;
use line::{
    CodexEvent, CodexItem, CodexLine, Compacted, Instructions, REPEATED_EVENTS, SessionMeta, TokenInfo,
    Tokens, TurnContext,
};
use user_texts::UserTexts;

/// Maximum size of a response and the results buffered with it, in bytes.
const RESPONSE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of results that wait for the usage of their response.
const RESULTS_MAX: usize = 4_096;
/// Maximum number of turns that a rollback can drop.
const TURNS_MAX: usize = 1 << 20;
/// Maximum pause in milliseconds between two records that a fork copies. All copies are written at the same time.
const COPY_PAUSE_MS: i64 = 1_000;
/// The key part of a response whose usage is not known yet.
const WITHOUT_USAGE_PART: usize = 1;

/// A response of the model, and the results that were read before its usage.
#[derive(Default)]
struct OpenResponse {
    at: Option<TimestampMs>,
    line: u64,
    parts: Vec<Part>,
    usage: Option<Usage>,
    results: Vec<(Option<TimestampMs>, u64, ToolResult)>,
    bytes: usize,
    is_inherited: bool,
}

/// Usage without a pending response.
struct UnassignedUsage {
    key: RecordKey,
    at: Option<TimestampMs>,
    /// Contains the model at that time, because the next turn may use another model.
    by: WrittenBy,
}

/// The start of a user turn.
struct TurnStart {
    before: StepParent,
    /// The number of settings added before the turn.
    settings: u32,
    /// Whether the turn's text is among the texts that an old compaction repeats.
    has_text: bool,
}

#[derive(Default)]
pub struct Importer {
    name: String,
    /// When the first record was written.
    began_at: Option<TimestampMs>,
    open: Option<OpenResponse>,
    /// The previous key. Rollouts have no ids and are append-only, so every key is derived from the previous key.
    last: Option<RecordKey>,
    /// The key of the latest response that is not inherited, derived only from earlier such responses.
    last_own: Option<RecordKey>,
    provider: Option<String>,
    model: Option<String>,
    effort: Option<String>,
    total: Option<Tokens>,
    unassigned: Option<UnassignedUsage>,
    turns: Vec<TurnStart>,
    /// The position and the number of settings before the latest run of Codex messages, if no other message followed.
    prelude: Option<(StepParent, u32)>,
    settings: u32,
    under: Option<StepParent>,
    user_texts: UserTexts,
    bases: Bases,
    /// Whether the file's counts continue those of another rollout.
    is_fork: bool,
    /// When the latest record copied by an older fork was written; `None` outside the copied records.
    copied_at: Option<TimestampMs>,
    inherits: bool,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| self.take_line(line, batch));
    }

    /// The ordinal of a line without one is its zero-based line number.
    fn push_inherited(&mut self, line: &[u8], number: u64, end_ordinal: u64, batch: &mut StepBatch) {
        self.bases.found += usize::from(number == 1);
        let ordinal =
            serde_json::from_slice::<CodexLine<'_>>(line.trim_ascii()).ok().and_then(|line| line.ordinal);
        if ordinal.unwrap_or(number.saturating_sub(1)) >= end_ordinal {
            return;
        }
        self.inherits = true;
        self.push_line(line, number, batch);
        self.inherits = false;
    }

    fn finish(&mut self, batch: &mut StepBatch) {
        self.close(batch);
        self.emit_unassigned(batch);
        if batch.session.is_none() && self.last.is_some() {
            batch.open_headless(Format::Codex, &self.name, self.began_at);
        }
    }
}

impl Importer {
    /// Create an importer. `name` is the file name without its extension. It names the session if the first line is
    /// lost. The session of the complete file must have another name, because the keys of its records are different.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Parse the first line of a rollout and return its base, if any.
    pub fn base_of(first_line: &[u8]) -> Option<HistoryBase> {
        let line: CodexLine<'_> = serde_json::from_slice(first_line).ok()?;
        let meta: SessionMeta = serde_json::from_str(line.payload?.get()).ok()?;
        meta.history_base.filter(|_| line.kind == "session_meta")
    }

    fn take_line(&mut self, line: &[u8], batch: &mut StepBatch) -> Result<(), serde_json::Error> {
        let read: CodexLine<'_> = serde_json::from_slice(line)?;
        let payload = read.payload.map_or("{}", RawValue::get);
        let at = read.timestamp.and_then(|time| time.0).or(batch.at);
        self.began_at = self.began_at.or(at);
        if !self.inherits && self.open.as_ref().is_some_and(|open| open.is_inherited) {
            self.close(batch);
        }
        self.copied_at =
            self.copied_at.zip(at).filter(|(last, at)| at.0 - last.0 <= COPY_PAUSE_MS).map(|(_, at)| at);
        match read.kind.as_ref() {
            "session_meta" => {
                let meta: SessionMeta = serde_json::from_str(payload)?;
                batch.at = at;
                self.open_session(meta, batch);
            }
            "turn_context" => {
                let context: TurnContext = serde_json::from_str(payload)?;
                batch.at = at;
                self.take_settings(context, batch);
            }
            "response_item" => {
                let item: CodexItem<'_> = serde_json::from_str(payload)?;
                batch.at = at;
                self.emit_unassigned(batch);
                self.take_item(item, line, batch);
            }
            "event_msg" => {
                let event: CodexEvent<'_> = serde_json::from_str(payload)?;
                batch.at = at;
                self.take_event(event, line, batch);
            }
            "compacted" => {
                let compacted: Compacted<'_> = serde_json::from_str(payload)?;
                batch.at = at;
                self.close(batch);
                self.take_compaction(compacted, batch);
            }
            kind => {
                batch.at = at;
                keep(if kind.is_empty() { "record" } else { kind }, line, batch);
            }
        }
        Ok(())
    }

    fn open_session(&mut self, meta: SessionMeta, batch: &mut StepBatch) {
        if batch.session.is_none() && !self.inherits {
            let id = meta.id.unwrap_or_else(|| "unnamed".to_owned());
            let at = meta.timestamp.and_then(|time| time.0).or(batch.at);
            let session = batch.open(Format::Codex, &id, at);
            session.cwd.clone_from(&meta.cwd);
            let base = meta.history_base.as_ref().map(|base| base.thread_id.clone());
            session.parent = base
                .or(meta.forked_from_id)
                .filter(|parent| *parent != id)
                .map(|id| lineage(Format::Codex, &id));
            self.is_fork = session.parent.is_some();
            self.bases.base = meta.history_base;
        } else if self.is_fork && !self.inherits {
            self.copied_at = batch.at;
        } else if self.inherits && self.bases.found == 1 && batch.line == 1 {
            self.bases.lacks_base = meta.history_base.is_some();
        }
        self.provider = meta.model_provider.or(self.provider.take());
        let system = meta.base_instructions.map(|instructions| match instructions {
            Instructions::Text(text) | Instructions::Object { text } => text,
        });
        if self.last.is_none() && (system.is_some() || meta.cwd.is_some()) {
            let changed = ContextChanged { system, cwd: meta.cwd, ..ContextChanged::default() };
            self.add(changed.into(), Author::Agent, batch);
        }
    }

    fn take_settings(&mut self, context: TurnContext, batch: &mut StepBatch) {
        if context.model.is_some() && context.model != self.model {
            self.close(batch);
            self.model.clone_from(&context.model);
            self.add_setting(ModelChanged { model: self.model_name() }.into(), batch);
        }
        if context.effort.is_some() && context.effort != self.effort {
            self.close(batch);
            self.effort.clone_from(&context.effort);
            self.add_setting(ThinkingChanged { level: context.effort.unwrap_or_default() }.into(), batch);
        }
    }

    /// Add a setting. A setting is not a message, so it does not end a run of Codex messages.
    fn add_setting(&mut self, setting: Body, batch: &mut StepBatch) {
        let prelude = self.prelude.take();
        self.add(setting, Author::Agent, batch);
        (self.prelude, self.settings) = (prelude, self.settings + 1);
    }

    fn take_item(&mut self, item: CodexItem<'_>, line: &[u8], batch: &mut StepBatch) {
        match item.kind.as_ref() {
            "message" if item.role == "assistant" => {
                let parts = item.content.into_parts(batch);
                self.add_model_parts(parts, batch);
            }
            "message" => {
                self.close(batch);
                let parts = item.content.into_parts(batch);
                self.add_message(&item.role, parts, batch);
            }
            "reasoning" => {
                let mut parts = item.content.into_parts(batch);
                if parts.is_empty() {
                    parts = item.summary.into_parts(batch);
                }
                let text = joined_text(&parts);
                let redacted = text.is_empty();
                if !redacted || item.encrypted_content.is_some() {
                    self.add_model_parts(vec![Part::Reasoning(Reasoning { text, redacted })], batch);
                }
            }
            "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
                let call_id = item.call_id.or(item.id).unwrap_or_default();
                let name = item.name.unwrap_or_else(|| item.kind.trim_end_matches("_call").to_owned());
                let input = match item.arguments {
                    Some(arguments) => arguments_json(&arguments),
                    None => input_json(item.input.or(item.action)),
                };
                self.add_model_parts(vec![Part::tool_call(call_id, name, input)], batch);
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "tool_search_output" => {
                self.add_result(item.call_id.or(item.id).unwrap_or_default(), item.output, batch);
            }
            kind => {
                keep(kind, line, batch);
            }
        }
    }

    /// Add parts written by the model to the current response.
    fn add_model_parts(&mut self, parts: Vec<Part>, batch: &mut StepBatch) {
        if self.open.as_ref().is_some_and(|open| !open.results.is_empty() || open.usage.is_some()) {
            self.close(batch);
        }
        let (at, line, is_inherited) = (batch.at, batch.line, self.inherits);
        let open = self.open.get_or_insert_with(|| OpenResponse {
            at,
            line,
            is_inherited,
            ..OpenResponse::default()
        });
        open.bytes += parts.iter().map(part_bytes).sum::<usize>();
        open.parts.extend(parts);
        if open.bytes >= RESPONSE_BYTES_MAX {
            self.close(batch);
        }
    }

    /// Add a message that the model did not write.
    fn add_message(&mut self, role: &str, parts: Vec<Part>, batch: &mut StepBatch) {
        if parts.is_empty() {
            return;
        }
        if role != "user" {
            let note = SystemNote { text: batch.text_only(&parts), reason: None };
            return self.add_prelude(note.into(), batch);
        }
        let text = joined_text(&parts);
        if is_context(&text) {
            // Codex wrote this text. It starts no turn and must not become the session preview.
            let custom_type = format!("{}:context", Format::Codex.as_str());
            let context = CustomMessage { custom_type, parts, display: false, details: None };
            return self.add_prelude(context.into(), batch);
        }
        self.user_texts.push(text);
        self.add_turn(UserMessage { parts, origin: None }, true, batch);
    }

    /// Add a message by Codex itself. A rollback of the following turn also drops this message.
    fn add_prelude(&mut self, body: Body, batch: &mut StepBatch) {
        let before = self.prelude.take().unwrap_or((self.parent(), self.settings));
        self.add(body, Author::Agent, batch);
        self.prelude = Some(before);
    }

    fn add_turn(&mut self, message: UserMessage, has_text: bool, batch: &mut StepBatch) {
        let here = (self.parent(), self.settings);
        let (before, settings) = self.prelude.filter(|_| !self.turns.is_empty()).unwrap_or(here);
        if self.turns.len() < TURNS_MAX {
            self.turns.push(TurnStart { before, settings, has_text });
        }
        self.add(message.into(), Author::Caller, batch);
    }

    fn add_result(&mut self, call_id: String, output: Option<&RawValue>, batch: &mut StepBatch) {
        let (parts, is_error) = output_parts(output, batch);
        let result = tool_result(call_id, None, parts, is_error);
        let Some(open) = &mut self.open else { return self.add(result.into(), Author::Agent, batch) };
        open.bytes += result.parts.iter().map(part_bytes).sum::<usize>();
        open.results.push((batch.at, batch.line, result));
        if open.results.len() >= RESULTS_MAX || open.bytes >= RESPONSE_BYTES_MAX {
            self.close(batch);
        }
    }

    fn take_event(&mut self, event: CodexEvent<'_>, line: &[u8], batch: &mut StepBatch) {
        match event.kind.as_ref() {
            "token_count" => self.count(event.info.unwrap_or_default(), batch),
            "thread_rolled_back" => {
                self.close(batch);
                self.emit_unassigned(batch);
                let count = usize::try_from(event.num_turns.unwrap_or(0)).unwrap_or(usize::MAX);
                self.roll_back(count, batch);
            }
            kind if REPEATED_EVENTS.contains(&kind) => {}
            kind => {
                keep(if kind.is_empty() { "event" } else { kind }, line, batch);
            }
        }
    }

    fn count(&mut self, info: TokenInfo, batch: &mut StepBatch) {
        let Some(total) = info.total_token_usage.or(info.last_token_usage) else { return };
        let is_first = self.total.is_none();
        let before = self.total.replace(total).unwrap_or_default();
        if total == before {
            return;
        }
        let grew = total.input_tokens >= before.input_tokens && total.output_tokens >= before.output_tokens;
        let tokens = match info.last_token_usage {
            // In a fork with a missing base, the total includes earlier usage, which is counted in the base.
            Some(last) if is_first && self.is_fork => last,
            // The total was reset, so use the tokens of the last call.
            Some(last) if !grew => last,
            _ if !grew => total,
            _ => total.since(before),
        };
        let Some(usage) =
            plausible_usage(tokens.usage()).filter(|_| !self.inherits && self.copied_at.is_none())
        else {
            return;
        };
        match &mut self.open {
            Some(open) if open.usage.is_none() => open.usage = Some(usage),
            _ => {
                self.emit_unassigned(batch);
                let before = self.last_own.unwrap_or_else(|| RecordKey::of("codex owed"));
                let key = RecordKey::after(before, format!("owed {total:?}").as_bytes());
                self.unassigned = Some(UnassignedUsage { key, at: batch.at, by: self.attribute(usage) });
            }
        }
    }

    /// Add usage without a response as a separate entry.
    fn emit_unassigned(&mut self, batch: &mut StepBatch) {
        let Some(unassigned) = self.unassigned.take() else { return };
        let at = std::mem::replace(&mut batch.at, unassigned.at);
        batch.note(unassigned.key, UsageReported::of(&unassigned.by));
        batch.at = at;
    }

    fn attribute(&self, usage: Usage) -> WrittenBy {
        let model = self.model.as_ref().map_or_else(|| "unknown".to_owned(), |_| self.model_name());
        WrittenBy { model, calls: 1, usage, cost_nano_usd: None }
    }

    fn model_name(&self) -> String {
        model_name(self.provider.as_deref(), self.model.as_deref().unwrap_or_default())
    }

    fn roll_back(&mut self, count: usize, batch: &mut StepBatch) {
        let kept = self.turns.len().saturating_sub(count);
        let dropped = self.turns.split_off(kept);
        let Some(first) = dropped.first() else { return };
        self.user_texts.drop_last(dropped.iter().filter(|turn| turn.has_text).count());
        let key = self.next_key(b"rolled back");
        batch.step(key, StepAction::Rewind(first.before));
        (self.under, self.prelude) = (Some(first.before), None);
        if first.settings < self.settings {
            self.repeat_settings(key, batch);
        }
    }

    /// Add the settings again. Later keys are not derived from these entries, because the source has no records for
    /// them.
    fn repeat_settings(&mut self, key: RecordKey, batch: &mut StepBatch) {
        let model = self.model.as_ref().map(|_| ModelChanged { model: self.model_name() }.into());
        let effort = self.effort.clone().map(|level| ThinkingChanged { level }.into());
        for (number, body) in (1..).zip([model, effort]) {
            let Some::<Body>(body) = body else { continue };
            batch.add(key.part(number), self.parent(), Author::Agent, body);
            self.under = Some(StepParent::RecordKey(key.part(number)));
        }
    }

    fn take_compaction(&mut self, compacted: Compacted<'_>, batch: &mut StepBatch) {
        let unassigned = self.unassigned.take();
        let own = unassigned.as_ref().map(|unassigned| unassigned.key);
        let written_by = unassigned.map(|unassigned| unassigned.by);
        let compaction = Compaction { written_by, ..Compaction::new(Strategy::Imported, Trigger::Imported) };
        self.add_compaction(own, compaction.into(), batch);
        self.turns.clear();
        match compacted.replacement_history {
            Some(items) => {
                self.user_texts.clear();
                for raw in items {
                    match serde_json::from_str::<CodexItem<'_>>(raw.get()) {
                        Ok(item) => self.take_item(item, raw.get().as_bytes(), batch),
                        Err(error) => batch.report(ProblemKind::PartSkipped { why: error.to_string() }),
                    }
                }
            }
            None => {
                let user_texts = self.user_texts.repeat().unwrap_or_else(|| {
                    let why =
                        "the repeated user messages, because the total size limit was reached".to_owned();
                    batch.report(ProblemKind::PartSkipped { why });
                    Vec::new()
                });
                let repeated_count = user_texts.len();
                let message = Some(compacted.message).filter(|text| !text.is_empty());
                for (number, text) in user_texts.into_iter().chain(message).enumerate() {
                    // The message also starts a turn, but the next compaction does not repeat it.
                    let user_message = UserMessage { parts: vec![Part::text(text)], origin: None };
                    self.add_turn(user_message, number < repeated_count, batch);
                }
            }
        }
        self.close(batch);
    }

    /// Add a compaction. `own` is the key that its usage would have as a separate entry.
    fn add_compaction(&mut self, own: Option<RecordKey>, body: Body, batch: &mut StepBatch) {
        let under = self.parent();
        let chained = self.next_key(&outline(&body));
        let (mut key, mut counted) = (chained, Vec::new());
        if let Some(own) = own {
            (key, counted) = self.bases.keys(chained, RecordKey::after(own, b"compaction"));
            // Keys under which an earlier import may have counted this usage.
            counted.extend([own, chained]);
        }
        let earlier = EarlierEntries { counted, ..EarlierEntries::default() };
        let (by, path) = (Author::Agent, PathKind::Main);
        batch.step(key, StepAction::Add { body, under, by, path, refs: Vec::new(), earlier });
        (self.under, self.prelude) = (Some(StepParent::RecordKey(key)), None);
    }

    /// End the current response, and add it with its results.
    fn close(&mut self, batch: &mut StepBatch) {
        let Some(open) = self.open.take() else { return };
        let (at, line) = (batch.at, batch.line);
        (batch.at, batch.line) = (open.at, open.line);
        let called = open.parts.iter().any(|part| part.as_tool_call().is_some());
        let (parts, model) = (open.parts, self.model.as_ref().map(|_| self.model_name()));
        let stop = if called { Stop::ToolUse } else { Stop::Stop };
        let message = AssistantMessage { parts, model, usage: open.usage, cost_nano_usd: None, stop };
        self.add_response(message, open.is_inherited, batch);
        for (at, line, result) in open.results {
            (batch.at, batch.line) = (at, line);
            self.add(result.into(), Author::Agent, batch);
        }
        (batch.at, batch.line) = (at, line);
    }

    /// Add a response. Its key depends on whether its usage is known.
    fn add_response(&mut self, message: AssistantMessage, is_inherited: bool, batch: &mut StepBatch) {
        let has_usage = message.usage.is_some();
        let (body, under) = (Body::from(message), self.parent());
        let content = outline(&body);
        let mut with_usage = self.next_key(&content);
        let mut counted = Vec::new();
        if !is_inherited {
            let own = RecordKey::after(self.last_own.unwrap_or_else(|| RecordKey::of("codex own")), &content);
            self.last_own = Some(own);
            (with_usage, counted) = self.bases.keys(with_usage, own);
        }
        let without_usage = with_usage.part(WITHOUT_USAGE_PART);
        let (key, other) = if has_usage { (with_usage, without_usage) } else { (without_usage, with_usage) };
        let earlier = EarlierEntries { same: Some(other), counted, ..EarlierEntries::default() };
        let (by, path) = (Author::Agent, PathKind::Main);
        batch.step(key, StepAction::Add { body, under, by, path, refs: Vec::new(), earlier });
        (self.under, self.prelude) = (Some(StepParent::RecordKey(key)), None);
    }

    fn add(&mut self, body: Body, by: Author, batch: &mut StepBatch) {
        let under = self.parent();
        let key = self.next_key(&outline(&body));
        batch.add(key, under, by, body);
        (self.under, self.prelude) = (Some(StepParent::RecordKey(key)), None);
    }

    fn parent(&self) -> StepParent {
        self.under.unwrap_or(StepParent::Root)
    }

    fn next_key(&mut self, content: &[u8]) -> RecordKey {
        let key = match self.last {
            Some(last) => RecordKey::after(last, content),
            None => RecordKey::after(RecordKey::of("codex"), content),
        };
        self.last = Some(key);
        key
    }
}

/// Store a record without an equivalent outside the tree.
fn keep(kind: &str, line: &[u8], batch: &mut StepBatch) {
    let key = RecordKey::of(&format!("{} {}", batch.line, BlobHash::of(line)));
    keep_record(Format::Codex, kind, key, line, batch);
}
