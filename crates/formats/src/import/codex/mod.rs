//! Import of Codex rollouts: lines `{timestamp, ordinal?, type, payload}`.
//!
//! - Messages to and from the model are in `response_item`. `event_msg` mostly repeats them for the screen,
//!   so only token counts and rollbacks are read from it.
//! - Token counts are cumulative: a response's usage is the increase since the previous count. The count follows
//!   the response, sometimes after its tool results, so a response is buffered until its count is read. A response
//!   without a count at the end of the file gets a separate key, so that a later import can add the count.
//! - A count without a pending response belongs to the next compaction, or else becomes a separate usage
//!   entry.
//! - `compacted` contains the history that replaces the old one. The record becomes a compaction that keeps
//!   nothing, followed by the new history.
//! - `thread_rolled_back` drops the last turns, and Codex's own messages right before the first of them. The
//!   dropped part stays in the log as a branch. Messages before the very first turn are kept. Settings belong
//!   to Codex, not to the thread, so dropped settings are added again.
//! - A fork contains only its own tail and references its base. The caller passes the base's lines first, through
//!   [`Importer::push_inherited`]; their usage counts in the base. If a base is missing, responses are identified
//!   by the fork's own earlier responses and the number of bases found, so that they are not counted again when
//!   another base is found. Older forks begin with copies of their source's records, starting with its
//!   `session_meta` and all written at once. The usage of these copies is counted in the source.
//!
//! Memory: one response, the user texts that an old compaction repeats, and a few bytes per turn.

mod line;

use std::collections::VecDeque;

use sapwood_core::content::{Part, Reasoning, joined_text};
use sapwood_core::entry::{
    AssistantMessage, Compaction, ContextChanged, CustomMessage, ModelChanged, Stop, Strategy, SystemNote,
    ThinkingChanged, ToolResult, Trigger, Usage, UserMessage, WrittenBy,
};
use sapwood_core::project::usage::usage_note;
use sapwood_core::{BlobHash, Body, TimestampMs};
use serde_json::value::RawValue;

use crate::import::blocks::{Content, part_bytes};
use crate::import::reconcile::usage_key;
use crate::import::steps::{
    Act, By, Earlier, Path, RecordKey, StepBatch, Under, believable, lineage, model_name,
};
use crate::import::text::{arguments_json, input_json};
use crate::import::{Format, Reader, Trouble, keep_record, read_json_line};
pub use line::Base;
use line::{Compacted, Event, Instructions, Item, Line, Output, SessionMeta, TokenInfo, Tokens, TurnContext};

/// Maximum size of the user texts that an old compaction repeats. Codex itself stops at 20,000 tokens.
const REPEATED_BYTES_MAX: usize = 80_000;
/// Maximum total size of repeated texts in a file. A limit is needed because a short line can cause a large
/// repetition.
const REPEATED_IN_ALL_BYTES_MAX: usize = 64 << 20;
/// Approximate size of a repeated message in addition to its text.
const MESSAGE_BYTES: usize = 200;
/// Maximum size of a response and the results buffered with it.
const JOINED_BYTES_MAX: usize = 8 << 20;
/// Maximum number of results that wait for the usage of their response.
const HELD_MAX: usize = 4_096;
/// Maximum number of turns that a rollback can drop.
const TURNS_MAX: usize = 1 << 20;
/// Maximum pause in milliseconds between records copied by a fork, which are written at once.
const COPY_PAUSE_MS: i64 = 1_000;
/// The key part of a response whose usage is not known yet.
const UNPAID_PART: usize = 1;
/// The first key part for imports in which only some of the bases were found.
const FOUND_PART: usize = 1;

/// A response of the model, and the results that were read before its usage.
#[derive(Default)]
struct Response {
    at: Option<TimestampMs>,
    line: u64,
    parts: Vec<Part>,
    usage: Option<Usage>,
    held: Vec<(Option<TimestampMs>, u64, ToolResult)>,
    bytes: usize,
    is_inherited: bool,
}

/// Usage without a pending response.
struct Owed {
    key: RecordKey,
    at: Option<TimestampMs>,
    /// Records the model at that time, because the next turn may use another model.
    by: WrittenBy,
}

/// The start of a user turn.
struct Turn {
    before: Under,
    /// The number of settings added before the turn.
    settings: u32,
    /// Whether the turn's text is among the texts that an old compaction repeats.
    has_words: bool,
}

#[derive(Default)]
pub struct Importer {
    name: String,
    /// When the first record was written.
    began_at: Option<TimestampMs>,
    open: Option<Response>,
    /// Rollouts have no ids and are append-only, so every key is derived from the previous one.
    last: Option<RecordKey>,
    /// The key of the latest response that is not inherited, derived only from earlier such responses.
    last_own: Option<RecordKey>,
    provider: Option<String>,
    model: Option<String>,
    effort: Option<String>,
    total: Option<Tokens>,
    owed: Option<Owed>,
    turns: Vec<Turn>,
    /// The position before the most recent Codex messages, if nothing else followed them.
    prelude: Option<(Under, u32)>,
    settings: u32,
    under: Option<Under>,
    words: VecDeque<String>,
    words_bytes: usize,
    repeated_bytes: usize,
    base: Option<Base>,
    /// Whether the file's counts continue those of another rollout.
    is_fork: bool,
    /// When the last record copied by a fork was written. A fork copies its source's records at once,
    /// starting with `session_meta`.
    copied_at: Option<TimestampMs>,
    inherits: bool,
    /// The number of bases found.
    found: usize,
    /// Whether the oldest base found has a missing base itself.
    lacks_base: bool,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, harvest: &mut StepBatch) {
        read_json_line(line, number, harvest, |line, harvest| self.take_line(line, harvest));
    }

    fn finish(&mut self, harvest: &mut StepBatch) {
        self.close(harvest);
        self.count_owed(harvest);
        if harvest.session.is_none() && self.last.is_some() {
            harvest.open_headless(Format::Codex, &self.name, self.began_at);
        }
    }
}

impl Importer {
    /// Create an importer. `name` is the file name without its extension, used as the session name if the first
    /// line is lost. The name must differ from the session of the complete file, because records are identified by
    /// the records before them.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Return the rollout that this one continues, after the first line was read.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// Parse the first line of a rollout and return its base, if any.
    pub fn base_of(first_line: &[u8]) -> Option<Base> {
        let line: Line<'_> = serde_json::from_slice(first_line).ok()?;
        let meta: SessionMeta = serde_json::from_str(line.payload?.get()).ok()?;
        meta.history_base.filter(|_| line.kind == "session_meta")
    }

    /// Read a line of a base. Records from `end_ordinal` on are skipped. Lines without an ordinal are
    /// counted.
    pub fn push_inherited(&mut self, line: &[u8], number: u64, end_ordinal: u64, harvest: &mut StepBatch) {
        self.found += usize::from(number == 1);
        let ordinal =
            serde_json::from_slice::<Line<'_>>(line.trim_ascii()).ok().and_then(|line| line.ordinal);
        if ordinal.unwrap_or(number.saturating_sub(1)) >= end_ordinal {
            return;
        }
        self.inherits = true;
        self.push_line(line, number, harvest);
        self.inherits = false;
    }

    fn take_line(&mut self, line: &[u8], harvest: &mut StepBatch) -> Result<(), serde_json::Error> {
        let read: Line<'_> = serde_json::from_slice(line)?;
        let payload = read.payload.map_or("{}", RawValue::get);
        let at = read.timestamp.and_then(|time| time.0).or(harvest.at);
        self.began_at = self.began_at.or(at);
        if !self.inherits && self.open.as_ref().is_some_and(|open| open.is_inherited) {
            self.close(harvest);
        }
        self.copied_at =
            self.copied_at.zip(at).filter(|(last, at)| at.0 - last.0 <= COPY_PAUSE_MS).map(|(_, at)| at);
        match read.kind.as_ref() {
            "session_meta" => {
                let meta: SessionMeta = serde_json::from_str(payload)?;
                harvest.at = at;
                self.open_session(meta, harvest);
            }
            "turn_context" => {
                let context: TurnContext = serde_json::from_str(payload)?;
                harvest.at = at;
                self.take_settings(context, harvest);
            }
            "response_item" => {
                let item: Item<'_> = serde_json::from_str(payload)?;
                harvest.at = at;
                self.count_owed(harvest);
                self.take_item(item, line, harvest);
            }
            "event_msg" => {
                let event: Event<'_> = serde_json::from_str(payload)?;
                harvest.at = at;
                self.take_event(event, line, harvest);
            }
            "compacted" => {
                let compacted: Compacted<'_> = serde_json::from_str(payload)?;
                harvest.at = at;
                self.close(harvest);
                self.take_compaction(compacted, harvest);
            }
            kind => {
                harvest.at = at;
                let key = RecordKey::of(&format!("{} {}", harvest.line, BlobHash::of(line)));
                keep_record(Format::Codex, if kind.is_empty() { "record" } else { kind }, key, line, harvest);
            }
        }
        Ok(())
    }

    fn open_session(&mut self, meta: SessionMeta, harvest: &mut StepBatch) {
        if harvest.session.is_none() && !self.inherits {
            let id = meta.id.unwrap_or_else(|| "unnamed".to_owned());
            let at = meta.timestamp.and_then(|time| time.0).or(harvest.at);
            let session = harvest.open(Format::Codex, &id, at);
            session.cwd.clone_from(&meta.cwd);
            let base = meta.history_base.as_ref().map(|base| base.thread_id.clone());
            session.parent = base
                .or(meta.forked_from_id)
                .filter(|parent| *parent != id)
                .map(|id| lineage(Format::Codex, &id));
            self.is_fork = session.parent.is_some();
            self.base = meta.history_base;
        } else if self.is_fork && !self.inherits {
            self.copied_at = harvest.at;
        } else if self.inherits && self.found == 1 && harvest.line == 1 {
            self.lacks_base = meta.history_base.is_some();
        }
        self.provider = meta.model_provider.or(self.provider.take());
        let system = meta.base_instructions.map(|instructions| match instructions {
            Instructions::Text(text) | Instructions::Object { text } => text,
        });
        if self.last.is_none() && (system.is_some() || meta.cwd.is_some()) {
            let changed = ContextChanged { system, cwd: meta.cwd, ..ContextChanged::default() };
            self.add(changed.into(), By::Agent, harvest);
        }
    }

    fn take_settings(&mut self, context: TurnContext, harvest: &mut StepBatch) {
        if context.model.is_some() && context.model != self.model {
            self.close(harvest);
            self.model.clone_from(&context.model);
            self.set(ModelChanged { model: self.model_name() }.into(), harvest);
        }
        if context.effort.is_some() && context.effort != self.effort {
            self.close(harvest);
            self.effort.clone_from(&context.effort);
            self.set(ThinkingChanged { level: context.effort.unwrap_or_default() }.into(), harvest);
        }
    }

    /// Add a setting. A setting is not a message, so it does not end a run of Codex messages.
    fn set(&mut self, setting: Body, harvest: &mut StepBatch) {
        let prelude = self.prelude.take();
        self.add(setting, By::Agent, harvest);
        (self.prelude, self.settings) = (prelude, self.settings + 1);
    }

    fn take_item(&mut self, item: Item<'_>, line: &[u8], harvest: &mut StepBatch) {
        match item.kind.as_ref() {
            "message" if item.role == "assistant" => {
                let parts = item.content.into_parts(harvest);
                self.say(parts, harvest);
            }
            "message" => {
                self.close(harvest);
                let parts = item.content.into_parts(harvest);
                self.hear(&item.role, parts, harvest);
            }
            "reasoning" => {
                let mut parts = item.content.into_parts(harvest);
                if parts.is_empty() {
                    parts = item.summary.into_parts(harvest);
                }
                let text = joined_text(&parts);
                let redacted = text.is_empty();
                if !redacted || item.encrypted_content.is_some() {
                    self.say(vec![Part::Reasoning(Reasoning { text, redacted })], harvest);
                }
            }
            "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
                let call_id = item.call_id.or(item.id).unwrap_or_default();
                let name = item.name.unwrap_or_else(|| item.kind.trim_end_matches("_call").to_owned());
                let input = match item.arguments {
                    Some(arguments) => arguments_json(&arguments),
                    None => input_json(item.input.or(item.action)),
                };
                self.say(vec![Part::tool_call(call_id, name, input)], harvest);
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "tool_search_output" => {
                self.answer(item.call_id.or(item.id).unwrap_or_default(), item.output, harvest);
            }
            kind => {
                let key = RecordKey::of(&format!("{} {}", harvest.line, BlobHash::of(line)));
                keep_record(Format::Codex, kind, key, line, harvest);
            }
        }
    }

    /// Add text of the model to the current response.
    fn say(&mut self, parts: Vec<Part>, harvest: &mut StepBatch) {
        if self.open.as_ref().is_some_and(|open| !open.held.is_empty() || open.usage.is_some()) {
            self.close(harvest);
        }
        let (at, line, is_inherited) = (harvest.at, harvest.line, self.inherits);
        let open =
            self.open.get_or_insert_with(|| Response { at, line, is_inherited, ..Response::default() });
        open.bytes += parts.iter().map(part_bytes).sum::<usize>();
        open.parts.extend(parts);
        if open.bytes >= JOINED_BYTES_MAX {
            self.close(harvest);
        }
    }

    fn hear(&mut self, role: &str, parts: Vec<Part>, harvest: &mut StepBatch) {
        if parts.is_empty() {
            return;
        }
        if role != "user" {
            let note = SystemNote { text: harvest.words(&parts), reason: None };
            return self.add_prelude(note.into(), harvest);
        }
        let text = joined_text(&parts);
        if is_context(&text) {
            // Text by Codex is not a user message: it starts no turn and is not shown as the session preview.
            let custom_type = format!("{}:context", Format::Codex.as_str());
            let context = CustomMessage { custom_type, parts, display: false, details: None };
            return self.add_prelude(context.into(), harvest);
        }
        self.remember(text);
        self.add_turn(UserMessage { parts, origin: None }, true, harvest);
    }

    /// Add a message by Codex itself. A rollback of the following turn also drops this message.
    fn add_prelude(&mut self, body: Body, harvest: &mut StepBatch) {
        let before = self.prelude.take().unwrap_or((self.place(), self.settings));
        self.add(body, By::Agent, harvest);
        self.prelude = Some(before);
    }

    fn add_turn(&mut self, said: UserMessage, has_words: bool, harvest: &mut StepBatch) {
        let here = (self.place(), self.settings);
        let (before, settings) = self.prelude.filter(|_| !self.turns.is_empty()).unwrap_or(here);
        if self.turns.len() < TURNS_MAX {
            self.turns.push(Turn { before, settings, has_words });
        }
        self.add(said.into(), By::Caller, harvest);
    }

    /// Remember the latest user texts, up to the amount that a compaction without a history repeats.
    fn remember(&mut self, text: String) {
        self.words_bytes += text.len();
        self.words.push_back(text);
        while self.words_bytes > REPEATED_BYTES_MAX {
            let Some(oldest) = self.words.pop_front() else { break };
            self.words_bytes -= oldest.len();
        }
    }

    fn answer(&mut self, call_id: String, output: Option<&RawValue>, harvest: &mut StepBatch) {
        let (parts, is_error) = output_parts(output, harvest);
        let result = ToolResult {
            call_id,
            tool: None,
            parts,
            is_error,
            duration_ms: None,
            interrupted: false,
            full: None,
        };
        let Some(open) = &mut self.open else { return self.add(result.into(), By::Agent, harvest) };
        open.bytes += result.parts.iter().map(part_bytes).sum::<usize>();
        open.held.push((harvest.at, harvest.line, result));
        if open.held.len() >= HELD_MAX || open.bytes >= JOINED_BYTES_MAX {
            self.close(harvest);
        }
    }

    fn take_event(&mut self, event: Event<'_>, line: &[u8], harvest: &mut StepBatch) {
        match event.kind.as_ref() {
            "token_count" => self.count(event.info.unwrap_or_default(), harvest),
            "thread_rolled_back" => {
                self.close(harvest);
                self.count_owed(harvest);
                let count = usize::try_from(event.num_turns.unwrap_or(0)).unwrap_or(usize::MAX);
                self.roll_back(count, harvest);
            }
            // Repeated in response items, or only for the screen.
            "user_message"
            | "agent_message"
            | "agent_reasoning"
            | "agent_reasoning_raw_content"
            | "agent_reasoning_section_break"
            | "context_compacted"
            | "task_started"
            | "task_complete"
            | "turn_started"
            | "turn_complete"
            | "item_started"
            | "item_completed"
            | "exec_command_begin"
            | "exec_command_end"
            | "exec_command_output_delta"
            | "patch_apply_begin"
            | "patch_apply_end"
            | "mcp_tool_call_begin"
            | "mcp_tool_call_end"
            | "web_search_begin"
            | "web_search_end"
            | "turn_diff"
            | "raw_response_item" => {}
            kind => {
                let key = RecordKey::of(&format!("{} {}", harvest.line, BlobHash::of(line)));
                keep_record(Format::Codex, if kind.is_empty() { "event" } else { kind }, key, line, harvest);
            }
        }
    }

    fn count(&mut self, info: TokenInfo, harvest: &mut StepBatch) {
        let Some(total) = info.total_token_usage.or(info.last_token_usage) else { return };
        let is_first = self.total.is_none();
        let before = self.total.replace(total).unwrap_or_default();
        if total == before {
            return;
        }
        let grew = total.input_tokens >= before.input_tokens && total.output_tokens >= before.output_tokens;
        let tokens = match info.last_token_usage {
            // A fork with a missing base: the total includes earlier usage, which counts in the base.
            Some(last) if is_first && self.is_fork => last,
            // The total was reset, so use the tokens of the last call.
            Some(last) if !grew => last,
            _ if !grew => total,
            _ => total.since(before),
        };
        let Some(usage) = believable(tokens.usage()).filter(|_| !self.inherits && self.copied_at.is_none())
        else {
            return;
        };
        match &mut self.open {
            Some(open) if open.usage.is_none() => open.usage = Some(usage),
            _ => {
                self.count_owed(harvest);
                let before = self.last_own.unwrap_or_else(|| RecordKey::of("codex owed"));
                let key = RecordKey::after(before, format!("owed {total:?}").as_bytes());
                self.owed = Some(Owed { key, at: harvest.at, by: self.bill(usage) });
            }
        }
    }

    /// Add usage without a response as a separate entry.
    fn count_owed(&mut self, harvest: &mut StepBatch) {
        let Some(owed) = self.owed.take() else { return };
        let at = std::mem::replace(&mut harvest.at, owed.at);
        harvest.note(owed.key, usage_note(&owed.by));
        harvest.at = at;
    }

    fn bill(&self, usage: Usage) -> WrittenBy {
        let model = self.model.as_ref().map_or_else(|| "unknown".to_owned(), |_| self.model_name());
        WrittenBy { model, calls: 1, usage, cost_nano_usd: None }
    }

    fn model_name(&self) -> String {
        model_name(self.provider.as_deref(), self.model.as_deref().unwrap_or_default())
    }

    fn roll_back(&mut self, count: usize, harvest: &mut StepBatch) {
        let kept = self.turns.len().saturating_sub(count);
        let dropped = self.turns.split_off(kept);
        let Some(first) = dropped.first() else { return };
        for _ in dropped.iter().filter(|turn| turn.has_words) {
            let Some(words) = self.words.pop_back() else { break };
            self.words_bytes -= words.len();
        }
        let key = self.next_key(b"rolled back");
        harvest.step(key, Act::Rewind(first.before));
        (self.under, self.prelude) = (Some(first.before), None);
        if first.settings < self.settings {
            self.tell_settings_again(key, harvest);
        }
    }

    /// Add the settings again. The source has no record for this repetition, so later keys are not derived from it.
    fn tell_settings_again(&mut self, key: RecordKey, harvest: &mut StepBatch) {
        let model = self.model.as_ref().map(|_| ModelChanged { model: self.model_name() }.into());
        let effort = self.effort.clone().map(|level| ThinkingChanged { level }.into());
        for (number, body) in (1..).zip([model, effort]) {
            let Some::<Body>(body) = body else { continue };
            harvest.add(key.part(number), self.place(), By::Agent, body);
            self.under = Some(Under::RecordKey(key.part(number)));
        }
    }

    fn take_compaction(&mut self, compacted: Compacted<'_>, harvest: &mut StepBatch) {
        let owed = self.owed.take();
        let own = owed.as_ref().map(|owed| owed.key);
        let written_by = owed.map(|owed| owed.by);
        let compaction = Compaction { written_by, ..Compaction::new(Strategy::Imported, Trigger::Imported) };
        self.add_compaction(own, compaction.into(), harvest);
        self.turns.clear();
        match compacted.replacement_history {
            Some(items) => {
                self.words.clear();
                self.words_bytes = 0;
                for raw in items {
                    match serde_json::from_str::<Item<'_>>(raw.get()) {
                        Ok(item) => self.take_item(item, raw.get().as_bytes(), harvest),
                        Err(error) => harvest.report(Trouble::LeftOut { why: error.to_string() }),
                    }
                }
            }
            None => {
                self.words.retain(|text| !text.is_empty());
                self.repeated_bytes += self.words_bytes + self.words.len() * MESSAGE_BYTES;
                let is_too_much = self.repeated_bytes > REPEATED_IN_ALL_BYTES_MAX;
                let words: Vec<String> = self.words.iter().filter(|_| !is_too_much).cloned().collect();
                let has_words = words.len();
                if is_too_much {
                    let why =
                        "the repeated user messages, because the total size limit was reached".to_owned();
                    harvest.report(Trouble::LeftOut { why });
                }
                let message = Some(compacted.message).filter(|text| !text.is_empty());
                for (number, text) in words.into_iter().chain(message).enumerate() {
                    // The message also starts a turn, but the next compaction does not repeat it.
                    let said = UserMessage { parts: vec![Part::text(text)], origin: None };
                    self.add_turn(said, number < has_words, harvest);
                }
            }
        }
        self.close(harvest);
    }

    /// Add a compaction. `own` is the key of its usage as a separate entry.
    fn add_compaction(&mut self, own: Option<RecordKey>, body: Body, harvest: &mut StepBatch) {
        let under = self.place();
        let chained = self.next_key(&outline(&body));
        let (mut key, mut counted) = (chained, Vec::new());
        if let Some(own) = own {
            (key, counted) = self.known_as(chained, RecordKey::after(own, b"compaction"));
            // Keys under which an earlier import may have counted this usage.
            counted.extend([own, chained]);
        }
        let earlier = Earlier { counted, ..Earlier::default() };
        let (by, path) = (By::Agent, Path::Main);
        harvest.step(key, Act::Add { body, under, by, path, names: Vec::new(), earlier });
        (self.under, self.prelude) = (Some(Under::RecordKey(key)), None);
    }

    /// End the response, and add it with its results.
    fn close(&mut self, harvest: &mut StepBatch) {
        let Some(open) = self.open.take() else { return };
        let (at, line) = (harvest.at, harvest.line);
        (harvest.at, harvest.line) = (open.at, open.line);
        let called = open.parts.iter().any(|part| part.as_tool_call().is_some());
        let message = AssistantMessage {
            parts: open.parts,
            model: self.model.as_ref().map(|_| self.model_name()),
            usage: open.usage,
            cost_nano_usd: None,
            stop: if called { Stop::ToolUse } else { Stop::Stop },
        };
        self.add_response(message, open.is_inherited, harvest);
        for (at, line, result) in open.held {
            (harvest.at, harvest.line) = (at, line);
            self.add(result.into(), By::Agent, harvest);
        }
        (harvest.at, harvest.line) = (at, line);
    }

    /// Add a response. Its key changes once its usage is known.
    fn add_response(&mut self, message: AssistantMessage, is_inherited: bool, harvest: &mut StepBatch) {
        let is_paid = message.usage.is_some();
        let (body, under) = (Body::from(message), self.place());
        let content = outline(&body);
        let mut paid = self.next_key(&content);
        let mut counted = Vec::new();
        if !is_inherited {
            let own = RecordKey::after(self.last_own.unwrap_or_else(|| RecordKey::of("codex own")), &content);
            self.last_own = Some(own);
            (paid, counted) = self.known_as(paid, own);
        }
        let unpaid = paid.part(UNPAID_PART);
        let (key, other) = if is_paid { (paid, unpaid) } else { (unpaid, paid) };
        let earlier = Earlier { same: Some(other), counted, ..Earlier::default() };
        let (by, path) = (By::Agent, Path::Main);
        harvest.step(key, Act::Add { body, under, by, path, names: Vec::new(), earlier });
        (self.under, self.prelude) = (Some(Under::RecordKey(key)), None);
    }

    /// Return the key for a response, and the keys under which an import with fewer bases may have counted
    /// it. The chained key changes when another base is found; `own` does not.
    fn known_as(&self, chained: RecordKey, own: RecordKey) -> (RecordKey, Vec<RecordKey>) {
        if self.base.is_none() {
            return (chained, Vec::new());
        }
        let with = |found: usize| if found == 0 { own } else { own.part(FOUND_PART + found) };
        let counted = (0..self.found).flat_map(|found| [with(found), usage_key(with(found))]).collect();
        let is_whole = self.found > 0 && !self.lacks_base;
        (if is_whole { chained } else { with(self.found) }, counted)
    }

    fn add(&mut self, body: Body, by: By, harvest: &mut StepBatch) {
        let under = self.place();
        let key = self.next_key(&outline(&body));
        harvest.add(key, under, by, body);
        (self.under, self.prelude) = (Some(Under::RecordKey(key)), None);
    }

    fn place(&self) -> Under {
        self.under.unwrap_or(Under::Root)
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

/// Return the content that identifies a body at its position. Rollouts are append-only, so the beginning and
/// the length are sufficient.
fn outline(body: &Body) -> Vec<u8> {
    const SHOWN_BYTES: usize = 1_024;
    let mut bytes = body.kind().as_str().as_bytes().to_vec();
    let mut show = |text: &[u8]| {
        bytes.extend_from_slice(&text[..text.len().min(SHOWN_BYTES)]);
        bytes.extend_from_slice(&text.len().to_le_bytes());
    };
    for part in body.parts() {
        match part {
            Part::Text(text) => show(text.text.as_bytes()),
            Part::Reasoning(reasoning) => show(reasoning.text.as_bytes()),
            Part::ToolCall(call) => {
                show(call.call_id.as_bytes());
                show(call.input.get().as_bytes());
            }
            Part::Media(media) => show(media.blob.as_bytes()),
        }
    }
    if body.parts().is_empty() {
        show(body.text().as_bytes());
    }
    bytes
}

/// Whether Codex itself inserted this text as a user message.
fn is_context(text: &str) -> bool {
    const OPENINGS: &[&str] = &[
        "<environment_context>",
        "<user_instructions>",
        "# AGENTS.md instructions",
        "<INSTRUCTIONS>",
        "<turn_aborted>",
        "<user_shell_command>",
        "<skill>",
        "<subagent_notification>",
    ];
    OPENINGS.iter().any(|opening| text.trim_start().starts_with(opening))
}

/// Read a tool's output: text, blocks, or an object around either. Old versions put JSON into the text.
fn output_parts(output: Option<&RawValue>, harvest: &mut StepBatch) -> (Vec<Part>, bool) {
    let Some(raw) = output else { return (Vec::new(), false) };
    if raw.get().starts_with('{')
        && let Ok(output) = serde_json::from_str::<Output<'_>>(raw.get())
    {
        let mut parts = output.content_items.into_parts(harvest);
        if parts.is_empty() {
            parts = output.content.into_parts(harvest);
        }
        return (parts, output.success == Some(false));
    }
    let content = serde_json::from_str::<Content<'_>>(raw.get()).unwrap_or_default();
    (content.into_parts(harvest), false)
}
