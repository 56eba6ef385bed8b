//! Import of sessions of pi and operator. Both formats have the same tree, but pi uses camelCase keys and ISO
//! times, and operator uses snake_case keys and either seconds or ISO times. Every record has an id and a
//! parent. Labels, names and extension data are part of the tree in pi, but outside the tree in Sapwood. The
//! children of such a record are therefore attached to its parent.
//!
//! pi's leaf is the last line. operator writes a `leaf` record when the leaf moves. pi version 1 has no ids: its
//! records are a straight chain, and `firstKeptEntryIndex` also counts the header. Version 2 has the role name
//! `hookMessage` instead of `custom`. A fork (`parentSession`) begins with copied records that are older than the
//! fork. Their usage is counted in the parent.
//!
//! Memory: constant, except for version 1, which needs 10 bytes per line.

use std::borrow::Cow;

use sapwood_core::content::Part;
use sapwood_core::entry::{
    AssistantMessage, BranchSummary, Compaction, ContextChanged, CustomInfo, CustomMessage, Details,
    ModelChanged, SessionNamed, Stop, Strategy, ThinkingChanged, Trigger, Usage, UserMessage, fit_title,
};
use sapwood_core::{BlobHash, Body, EntryId, Json, TimestampMs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::blocks::{Content, tool_result};
use super::steps::{
    Author, PathKind, RecordKey, StepAction, StepBatch, StepParent, lineage, model_name, plausible_usage,
};
use super::text::{Time, input_json};
use super::{Format, ProblemKind, Reader, keep_record, read_json_line};
use crate::export::OMITTED_SUMMARY;
use crate::message::COST_NANO_USD_MAX;

/// The key of the header's instructions.
const SYSTEM: &str = "system prompt";
/// The custom type of a context change in an export.
const CONTEXT_CHANGED: &str = "sapwood.context_changed";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Pi,
    Operator,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PiRecord<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    id: Option<String>,
    #[serde(alias = "parent_id")]
    parent_id: Option<String>,
    timestamp: Option<Time>,
    version: Option<u32>,
    cwd: Option<String>,
    #[serde(alias = "parent_session")]
    parent_session: Option<String>,
    #[serde(borrow)]
    message: Option<PiMessage<'a>>,
    summary: Option<String>,
    #[serde(alias = "first_kept_entry_id")]
    first_kept_entry_id: Option<String>,
    first_kept_entry_index: Option<u64>,
    #[serde(alias = "tokens_before")]
    tokens_before: Option<f64>,
    #[serde(alias = "from_hook")]
    from_hook: Option<bool>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
    #[serde(alias = "from_id")]
    from_id: Option<String>,
    #[serde(alias = "target_id")]
    target_id: Option<String>,
    label: Option<String>,
    name: Option<String>,
    #[serde(alias = "thinking_level", alias = "level")]
    thinking_level: Option<String>,
    provider: Option<String>,
    #[serde(alias = "model_id", alias = "model")]
    model_id: Option<String>,
    #[serde(alias = "custom_type")]
    custom_type: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Content<'a>,
    display: Option<bool>,
    #[serde(alias = "system_prompt")]
    system_prompt: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PiMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Content<'a>,
    provider: Option<String>,
    #[serde(alias = "model_id")]
    model: Option<String>,
    usage: Option<PiUsage>,
    #[serde(alias = "stop_reason")]
    stop_reason: Option<String>,
    #[serde(alias = "tool_call_id", alias = "call_id")]
    tool_call_id: Option<String>,
    #[serde(alias = "tool_name")]
    tool_name: Option<String>,
    #[serde(alias = "is_error")]
    is_error: Option<bool>,
    command: Option<String>,
    output: Option<String>,
    #[serde(alias = "exit_code")]
    exit_code: Option<i64>,
    cancelled: Option<bool>,
    truncated: Option<bool>,
    #[serde(alias = "full_output_path")]
    full_output_path: Option<String>,
    #[serde(alias = "exclude_from_context")]
    exclude_from_context: Option<bool>,
    #[serde(alias = "custom_type")]
    custom_type: Option<String>,
    display: Option<bool>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
    summary: Option<String>,
    #[serde(alias = "tokens_before")]
    tokens_before: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PiUsage {
    #[serde(alias = "input_tokens")]
    input: Option<f64>,
    #[serde(alias = "output_tokens")]
    output: Option<f64>,
    #[serde(alias = "cache_read")]
    cache_read: Option<f64>,
    #[serde(alias = "cache_write")]
    cache_write: Option<f64>,
    cost: Option<Cost>,
}

/// The files named in a summary.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SummaryFiles {
    #[serde(alias = "read_files")]
    read_files: Vec<String>,
    #[serde(alias = "modified_files")]
    modified_files: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cost {
    total: Option<f64>,
}

pub struct Importer {
    dialect: Dialect,
    /// Version 1: the key of each line, including the header.
    chain: Option<Vec<RecordKey>>,
    lines: u64,
    /// The file name without its extension, used if there is no header.
    name: String,
    /// The time of the first record, used if there is no header.
    began_at: Option<TimestampMs>,
    /// The instructions in the header. Records without a parent are attached to them.
    system: Option<String>,
    /// When a fork was created. Older records were copied from its parent, and their usage is counted there.
    forked_at: Option<TimestampMs>,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| {
            let record: PiRecord<'_> = serde_json::from_slice(line)?;
            batch.at = record.timestamp.and_then(|time| time.0).or(batch.at);
            match record.kind.as_ref() {
                "session" | "session_header" if batch.session.is_none() => self.open(record, batch),
                _ => self.take(record, line, batch),
            }
            Ok(())
        });
    }

    fn finish(&mut self, batch: &mut StepBatch) {
        if batch.session.is_none() && self.lines > 0 {
            let name = self.file_session(&self.name);
            batch.open_headless(self.format(), &name, self.began_at);
        }
    }
}

impl Importer {
    pub fn new(dialect: Dialect, name: &str) -> Self {
        let name = name.to_owned();
        Self { dialect, chain: None, lines: 0, name, began_at: None, system: None, forked_at: None }
    }

    fn format(&self) -> Format {
        match self.dialect {
            Dialect::Pi => Format::Pi,
            Dialect::Operator => Format::Operator,
        }
    }

    /// Derive the session id from a file name. operator names the file after the session.
    fn file_session(&self, path: &str) -> String {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let stem = name.strip_suffix(".jsonl").unwrap_or(name);
        match self.dialect {
            Dialect::Pi => pi_session(stem).to_owned(),
            Dialect::Operator => stem.to_owned(),
        }
    }

    fn open(&mut self, header: PiRecord<'_>, batch: &mut StepBatch) {
        let Some(id) = header.id else {
            batch.report(ProblemKind::BadHeader { why: "the id is missing".to_owned() });
            return;
        };
        let format = self.format();
        if self.dialect == Dialect::Pi && header.version.unwrap_or(1) < 2 {
            self.chain = Some(vec![RecordKey::of("header")]);
        }
        let parent = header.parent_session.as_deref().map(|path| self.file_session(path));
        let session = batch.open(format, &id, header.timestamp.and_then(|time| time.0));
        session.cwd = header.cwd.filter(|cwd| !cwd.is_empty());
        session.title = header.name.as_deref().and_then(fit_title);
        session.parent = parent.map(|id| lineage(format, &id));
        self.forked_at = header.timestamp.and_then(|time| time.0).filter(|_| session.parent.is_some());
        if let Some(system) = header.system_prompt {
            self.system = Some(system.clone());
            let changed = ContextChanged { system: Some(system), ..ContextChanged::default() };
            batch.add(RecordKey::of(SYSTEM), StepParent::Root, Author::Agent, changed);
        }
    }

    fn root(&self) -> StepParent {
        self.system.as_ref().map_or(StepParent::Root, |_| StepParent::RecordKey(RecordKey::of(SYSTEM)))
    }

    /// Whether the record repeats the header's instructions. Sapwood's export writes them both in the header and as
    /// extension data.
    fn is_of_header(&self, record: &PiRecord<'_>) -> bool {
        #[derive(Deserialize)]
        struct ContextData {
            system: Option<String>,
        }
        let is_context = record.custom_type.as_deref() == Some(CONTEXT_CHANGED) && record.parent_id.is_none();
        let context = record.data.filter(|_| is_context && self.system.is_some());
        let context = context.and_then(|raw| serde_json::from_str::<ContextData>(raw.get()).ok());
        context.is_some_and(|context| context.system == self.system)
    }

    fn take(&mut self, record: PiRecord<'_>, line: &[u8], batch: &mut StepBatch) {
        self.lines += 1;
        self.began_at = self.began_at.or(batch.at);
        let (key, under) = self.key_and_parent(&record, line);
        if self.is_of_header(&record) {
            return batch.alias(key, under, PathKind::Main);
        }
        let Some(kind) = self.kind_of(&record) else {
            keep_record(self.format(), record.kind.as_ref(), key.part(1), line, batch);
            return batch.alias(key, under, PathKind::Main);
        };
        match kind {
            RecordKind::Message => self.take_message(record, key, under, line, batch),
            RecordKind::Compaction => self.take_compaction(record, key, under, batch),
            RecordKind::Setting(body) => batch.add(key, under, Author::Agent, body),
            RecordKind::BranchSummary(body) => {
                batch.add_summary(key, under, record.from_id.as_deref().map(RecordKey::of), body);
            }
            RecordKind::Custom => {
                let parts = record.content.into_parts(batch);
                let body = CustomMessage {
                    custom_type: record.custom_type.unwrap_or_else(|| "custom".to_owned()),
                    parts,
                    display: record.display.unwrap_or(false),
                    details: record.details.map(|raw| input_json(Some(raw))),
                };
                batch.add(key, under, Author::Agent, body);
            }
            RecordKind::OutsideTree(action) => {
                batch.step(key.part(1), action);
                batch.alias(key, under, PathKind::Main);
            }
            RecordKind::Leaf(target) => {
                let to = target.map_or(self.root(), |target| StepParent::RecordKey(RecordKey::of(&target)));
                batch.alias(key, to, PathKind::Main);
                batch.step(key.part(1), StepAction::Rewind(to));
            }
        }
    }

    fn key_and_parent(&mut self, record: &PiRecord<'_>, line: &[u8]) -> (RecordKey, StepParent) {
        match &mut self.chain {
            Some(chain) => {
                let before = chain.last().copied().unwrap_or_else(|| RecordKey::of("header"));
                let is_first = chain.len() <= 1;
                let key = RecordKey::after(before, line);
                chain.push(key);
                (key, if is_first { self.root() } else { StepParent::RecordKey(before) })
            }
            None => {
                let loose = || RecordKey::of(&format!("loose {} {}", self.lines, BlobHash::of(line)));
                let key = record.id.as_deref().map_or_else(loose, RecordKey::of);
                (
                    key,
                    record
                        .parent_id
                        .as_deref()
                        .map_or(self.root(), |parent| StepParent::RecordKey(RecordKey::of(parent))),
                )
            }
        }
    }

    fn kind_of(&self, record: &PiRecord<'_>) -> Option<RecordKind> {
        Some(match record.kind.as_ref() {
            "message" => RecordKind::Message,
            "compaction" => RecordKind::Compaction,
            "branch_summary" | "branch" => match record.summary.clone().filter(|summary| !summary.is_empty())
            {
                None => return None,
                Some(summary) => RecordKind::BranchSummary(BranchSummary {
                    details: details_of(record.details),
                    from_hook: record.from_hook.unwrap_or(false),
                    ..BranchSummary::new(summary)
                }),
            },
            "thinking_level_change" => {
                RecordKind::Setting(ThinkingChanged { level: record.thinking_level.clone()? }.into())
            }
            "model_change" => {
                let model = model_name(record.provider.as_deref(), record.model_id.as_deref()?);
                RecordKind::Setting(ModelChanged { model }.into())
            }
            "custom_message" => RecordKind::Custom,
            "label" => RecordKind::OutsideTree(StepAction::Label {
                target: RecordKey::of(record.target_id.as_deref()?),
                text: record.label.clone().filter(|label| !label.is_empty()),
            }),
            "session_info" => {
                let title = record.name.clone().filter(|name| !name.trim().is_empty())?;
                RecordKind::OutsideTree(StepAction::Note(SessionNamed { title }.into()))
            }
            "custom" | "custom_info" => {
                let custom_type = record.custom_type.clone()?;
                let data = record
                    .data
                    .map_or_else(|| Json::from_value(&serde_json::Value::Null), |raw| input_json(Some(raw)));
                RecordKind::OutsideTree(StepAction::Note(CustomInfo { custom_type, data }.into()))
            }
            "leaf" => RecordKind::Leaf(record.target_id.clone()),
            _ => return None,
        })
    }

    fn take_message(
        &self,
        record: PiRecord<'_>,
        key: RecordKey,
        under: StepParent,
        line: &[u8],
        batch: &mut StepBatch,
    ) {
        let is_older = |at: TimestampMs| self.forked_at.is_some_and(|forked_at| at < forked_at);
        let is_copied = record.timestamp.and_then(|time| time.0).is_some_and(is_older);
        let mut message = record.message.unwrap_or_default();
        message.usage = message.usage.filter(|_| !is_copied);
        let body: Body = match message.role.as_ref() {
            "user" => UserMessage { parts: message.content.into_parts(batch), origin: None }.into(),
            "assistant" => self.assistant(message, batch).into(),
            "toolResult" | "tool_result" | "tool" => {
                let tool = message.tool_name.filter(|tool| !tool.is_empty());
                let (call_id, parts) =
                    (message.tool_call_id.unwrap_or_default(), message.content.into_parts(batch));
                tool_result(call_id, tool, parts, message.is_error.unwrap_or(false)).into()
            }
            "bashExecution" | "bash_execution" if message.exclude_from_context != Some(true) => {
                CustomMessage {
                    custom_type: "bashExecution".to_owned(),
                    parts: vec![Part::text(execution_text(&message))],
                    display: true,
                    details: None,
                }
                .into()
            }
            "custom" | "hookMessage" | "hook_message" => CustomMessage {
                custom_type: message.custom_type.unwrap_or_else(|| "custom".to_owned()),
                parts: message.content.into_parts(batch),
                display: message.display.unwrap_or(false),
                details: message.details.map(|raw| input_json(Some(raw))),
            }
            .into(),
            "branchSummary" | "branch_summary" => {
                let summary = message.summary.unwrap_or_default();
                let details = details_of(message.details);
                BranchSummary { details, ..BranchSummary::new(summary) }.into()
            }
            "compactionSummary" | "compaction_summary" => {
                let details = details_of(message.details);
                Compaction { details, ..compaction(message.summary, message.tokens_before, false) }.into()
            }
            _ => {
                keep_record(self.format(), "message", key.part(1), line, batch);
                return batch.alias(key, under, PathKind::Main);
            }
        };
        batch.add(key, under, by_of(&body), body);
    }

    fn take_compaction(
        &self,
        record: PiRecord<'_>,
        key: RecordKey,
        under: StepParent,
        batch: &mut StepBatch,
    ) {
        let by_index = record.first_kept_entry_index.and_then(|index| {
            let index = usize::try_from(index).ok().filter(|index| *index > 0)?;
            self.chain.as_ref()?.get(index).copied()
        });
        let kept = record.first_kept_entry_id.as_deref().map(RecordKey::of).or(by_index);
        let details = details_of(record.details);
        let body = compaction(record.summary, record.tokens_before, record.from_hook.unwrap_or(false));
        batch.add_summary(key, under, kept, Compaction { details, ..body });
    }

    fn assistant(&self, message: PiMessage<'_>, batch: &mut StepBatch) -> AssistantMessage {
        let mut answer = assistant(message, batch);
        // pi does not send interrupted or failed answers to the model again. The log still contains their text.
        if self.dialect == Dialect::Pi && answer.stop == Stop::Aborted {
            answer.stop = Stop::Error;
        }
        answer
    }
}

/// The kind of a record, with the data that its step needs.
enum RecordKind {
    Message,
    Compaction,
    Custom,
    Setting(Body),
    BranchSummary(BranchSummary),
    OutsideTree(StepAction),
    Leaf(Option<String>),
}

fn by_of(body: &Body) -> Author {
    if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent }
}

/// Return the session id in pi's file name `<time>_<uuid>.jsonl`. Any other name is returned unchanged, because a part
/// of it may not be unique.
fn pi_session(stem: &str) -> &str {
    let is_time = |text: &str| {
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape == "0000-00-00T00-00-00-000Z"
    };
    let cut = stem.split_once('_').filter(|(time, id)| is_time(time) && id.parse::<EntryId>().is_ok());
    cut.map_or(stem, |(_, id)| id)
}

fn compaction(summary: Option<String>, tokens_before: Option<f64>, from_hook: bool) -> Compaction {
    Compaction {
        // Sapwood's export writes this placeholder for a missing summary.
        summary: summary.filter(|summary| !summary.is_empty() && summary != OMITTED_SUMMARY),
        tokens_before: tokens_before.and_then(to_whole),
        from_hook,
        ..Compaction::new(Strategy::Imported, Trigger::Imported)
    }
}

/// Read the file lists. Details of another shape are ignored.
fn details_of(raw: Option<&RawValue>) -> Details {
    let files = raw.and_then(|raw| serde_json::from_str::<SummaryFiles>(raw.get()).ok()).unwrap_or_default();
    Details { files_read: files.read_files, files_changed: files.modified_files, ..Details::default() }
}

fn assistant(message: PiMessage<'_>, batch: &mut StepBatch) -> AssistantMessage {
    let parts = message.content.into_parts(batch);
    let called = parts.iter().any(|part| part.as_tool_call().is_some());
    let counts = message.usage.unwrap_or_default();
    let count = |number: Option<f64>| number.and_then(to_whole).unwrap_or(0);
    let usage = Usage {
        input: count(counts.input),
        output: count(counts.output),
        cache_read: count(counts.cache_read),
        cache_write: count(counts.cache_write),
        reasoning: 0,
    };
    let model = message.model.filter(|model| !model.is_empty() && model != "unknown");
    let cost = counts.cost.and_then(|cost| cost.total).map(|dollars| (dollars * 1e9).round());
    AssistantMessage {
        parts,
        model: model.map(|model| model_name(message.provider.as_deref(), &model)),
        usage: plausible_usage(usage),
        cost_nano_usd: cost.and_then(to_whole).filter(|cost| *cost <= COST_NANO_USD_MAX),
        stop: match message.stop_reason.as_deref() {
            Some("length" | "max_tokens") => Stop::Length,
            Some("toolUse" | "tool_use") => Stop::ToolUse,
            Some("error") => Stop::Error,
            Some("aborted") => Stop::Aborted,
            None if called => Stop::ToolUse,
            _ => Stop::Stop,
        },
    }
}

fn to_whole(number: f64) -> Option<u64> {
    (0.0..9e15).contains(&number).then_some(number.round() as u64)
}

/// Describe a command that the user ran, with the text that pi sends to the model.
fn execution_text(message: &PiMessage<'_>) -> String {
    let mut text = format!("Ran `{}`\n", message.command.as_deref().unwrap_or_default());
    match message.output.as_deref().filter(|output| !output.is_empty()) {
        Some(output) => text.push_str(&format!("```\n{output}\n```")),
        None => text.push_str("(no output)"),
    }
    match message.exit_code {
        _ if message.cancelled == Some(true) => text.push_str("\n\n(command cancelled)"),
        Some(code) if code != 0 => text.push_str(&format!("\n\nCommand exited with code {code}")),
        _ => {}
    }
    if let Some(path) = message.full_output_path.as_ref().filter(|_| message.truncated == Some(true)) {
        text.push_str(&format!("\n\n[Output truncated. Full output: {path}]"));
    }
    text
}
