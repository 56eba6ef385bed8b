//! Import of Claude Code transcripts: one record per line, in a tree by `uuid` and `parentUuid`.
//!
//! - One response is written as several records with the same `message.id`, each with the usage of the whole
//!   response. The records are merged into one entry, and usage is counted once. Tool results may occur between
//!   them, so records are buffered until the response ends.
//! - Results of parallel calls are children of different records of the response. The import puts the results in a
//!   chain, and attaches children of any result to the last result.
//! - `compact_boundary` cuts the tree at `logicalParentUuid`, and the summary after it becomes a compaction. Its
//!   `preservedSegment` is kept verbatim: the compaction keeps from the segment's head, and later children of its
//!   tail are attached to the compaction. If the segment follows the boundary itself (`anchorUuid`), the summary
//!   covers the messages after the segment and is placed after the segment.
//! - `forkedFrom` marks a record copied from another session, where its usage is counted.
//! - An `attachment` of type `queued_command` is a message that the user sent while the agent was working.
//! - A record with a known `uuid` is skipped: resumed sessions repeat some records.
//! - `isSidechain` marks a subagent's conversation, which is in the tree, but not on the main path. `isMeta` records,
//!   titles, snapshots and all other records are stored outside the tree.
//!
//! Memory: one response, and about 12 bytes per record and per response.

mod record;

use std::collections::{HashSet, VecDeque};

use sapwood_core::content::joined_text;
use sapwood_core::entry::{
    AssistantMessage, BranchSummary, Compaction, CustomMessage, SessionNamed, Stop, Strategy, Trigger, Usage,
};
use sapwood_core::{BlobHash, Body, TimestampMs};

use self::record::{ClaudeMessage, ClaudeRecord, ClaudeUsage, CompactMetadata, PreservedSegment};
use super::blocks::{Block, Content, part_bytes};
use super::messages::user_bodies;
use super::steps::{
    Author, EarlierEntries, PathKind, RecordKey, RecordRef, StepAction, StepBatch, StepParent, lineage,
    model_name, plausible_usage, usage_since,
};
use super::{Format, ProblemKind, Reader, keep_record, read_json_line};

/// Maximum number of records buffered while a response may continue.
const PENDING_MAX: usize = 4_096;
/// Maximum size of a response and the records buffered with it.
const RESPONSE_BYTES_MAX: usize = 8 << 20;
const PROVIDER: &str = "anthropic";
/// Number of responses whose usage is remembered, in case one continues after other records.
const COUNTED_MAX: usize = 64;
/// The key part that maps a record to its response. The record's plain key maps to the last result of the
/// response.
const FIRST_PART: usize = 2;

/// A response of the model that may still continue.
struct OpenResponse {
    message_id: String,
    first: String,
    uuids: Vec<String>,
    /// The usage reported by each record.
    reported_usage: Vec<Option<Usage>>,
    /// Whether the response was copied from another session, where its usage is counted.
    is_copied: bool,
    under: StepParent,
    at: Option<TimestampMs>,
    line: u64,
    bytes: usize,
    message: AssistantMessage,
    pending: Vec<PendingRecord>,
}

/// A record attached to a response that may still continue.
struct PendingRecord {
    uuid: String,
    bodies: Vec<Body>,
    at: Option<TimestampMs>,
    line: u64,
}

#[derive(Default)]
pub struct Importer {
    name: String,
    main: Option<OpenResponse>,
    side: Option<OpenResponse>,
    /// Responses whose usage was counted.
    counted: HashSet<u64, foldhash::fast::RandomState>,
    /// Usage of the latest counted responses.
    recent_usage: VecDeque<(u64, Usage)>,
    /// Records that were already read.
    seen: HashSet<u64, foldhash::fast::RandomState>,
    /// The latest compaction boundary on the main path, until its summary is read.
    main_boundary: Option<(String, CompactMetadata)>,
    /// The latest compaction boundary on a subagent's path, until its summary is read.
    side_boundary: Option<(String, CompactMetadata)>,
    /// Whether this is a subagent's own file, whose side path is the main path.
    is_subagent: bool,
    loose: u64,
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch) {
        read_json_line(line, number, batch, |line, batch| {
            let mut record: ClaudeRecord<'_> = serde_json::from_slice(line)?;
            record.shorten_ids();
            batch.at = record.timestamp.and_then(|time| time.0).or(batch.at);
            self.open(&record, batch);
            self.take(record, line, batch);
            Ok(())
        });
    }

    fn finish(&mut self, batch: &mut StepBatch) {
        for path in [PathKind::Side, PathKind::Main] {
            self.close(path, batch);
        }
        if batch.session.is_none() {
            // Titles and snapshots alone are not a conversation. Claude Code creates many such files.
            batch.steps.clear();
        }
    }
}

impl Importer {
    /// Create an importer. `name` is the file name without its extension; newer versions name a file after
    /// its session.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn open(&mut self, record: &ClaudeRecord<'_>, batch: &mut StepBatch) {
        let Some(session) = record.session_id.as_deref().filter(|_| batch.session.is_none()) else {
            return;
        };
        if record.uuid.is_none() {
            return;
        }
        let subagent = record.agent_id.as_deref().filter(|_| record.is_sidechain == Some(true));
        self.is_subagent = subagent.is_some();
        let named: Option<sapwood_core::EntryId> = self.name.parse().ok();
        let id = match (subagent, named) {
            (Some(agent), _) => format!("{session}:agent-{agent}"),
            (None, Some(_)) => self.name.clone(),
            (None, None) => session.to_owned(),
        };
        let new = batch.open(Format::ClaudeCode, &id, record.timestamp.and_then(|time| time.0));
        new.cwd.clone_from(&record.cwd);
        let source = record.forked_from.as_ref().and_then(|from| from.session_id.as_deref());
        let parent = if subagent.is_some() { Some(session) } else { source.filter(|source| *source != id) };
        new.parent = parent.map(|parent| lineage(Format::ClaudeCode, parent));
    }

    fn take(&mut self, record: ClaudeRecord<'_>, line: &[u8], batch: &mut StepBatch) {
        let Some(uuid) = record.uuid.clone() else { return self.take_loose(record, line, batch) };
        if !self.seen.insert(short_hash(&uuid)) {
            return batch.report(ProblemKind::DuplicateRecord);
        }
        let path = if record.is_sidechain == Some(true) && !self.is_subagent {
            PathKind::Side
        } else {
            PathKind::Main
        };
        if record.kind == "system" && record.subtype.as_deref() == Some("compact_boundary") {
            return self.take_boundary(&uuid, record, path, batch);
        }
        let parent = record.parent_uuid.as_deref();
        let under = parent.map_or(StepParent::Root, |parent| StepParent::RecordKey(RecordKey::of(parent)));
        let is_meta = record.is_meta == Some(true) && record.is_compact_summary != Some(true);
        let queued = record.attachment.filter(|attachment| attachment.kind == "queued_command");
        match (record.kind.as_ref(), record.message, queued) {
            ("assistant", Some(message), _) if !is_meta => {
                let failed = record.is_api_error_message == Some(true);
                self.take_answer(uuid, under, path, message, failed, batch);
                if let Some(open) = self.response(path).as_mut().filter(|_| record.forked_from.is_some()) {
                    open.is_copied = true;
                }
            }
            ("user", Some(message), _) if record.is_compact_summary == Some(true) => {
                self.close(path, batch);
                self.take_summary(&uuid, under, path, message, batch);
            }
            ("user", Some(message), _) if !is_meta => {
                self.take_user(uuid, under, parent, path, message.content, batch);
            }
            ("attachment", _, Some(queued)) if !is_meta => {
                self.take_user(uuid, under, parent, path, queued.prompt, batch);
            }
            (kind, ..) => {
                keep_record(Format::ClaudeCode, kind, RecordKey::of(&uuid).part(1), line, batch);
                let pending = PendingRecord { uuid, bodies: Vec::new(), at: batch.at, line: batch.line };
                self.buffer_or_add(pending, under, parent, path, batch);
            }
        }
    }

    fn take_boundary(&mut self, uuid: &str, record: ClaudeRecord<'_>, path: PathKind, batch: &mut StepBatch) {
        self.close(path, batch);
        *self.boundary(path) = Some((uuid.to_owned(), record.compact_metadata.unwrap_or_default()));
        let under = record.logical_parent_uuid.or(record.parent_uuid);
        batch.alias(
            RecordKey::of(uuid),
            under.map_or(StepParent::Leaf, |uuid| StepParent::RecordKey(RecordKey::of(&uuid))),
            path,
        );
    }

    /// Add a record without a `uuid` outside the tree: a title, a file snapshot, …
    fn take_loose(&mut self, record: ClaudeRecord<'_>, line: &[u8], batch: &mut StepBatch) {
        self.loose += 1;
        let key = RecordKey::of(&format!("loose {} {}", self.loose, BlobHash::of(line)));
        let kind = if record.kind.is_empty() { "record" } else { record.kind.as_ref() };
        keep_record(Format::ClaudeCode, kind, key, line, batch);
        if let Some(title) = record.custom_title.filter(|title| !title.trim().is_empty()) {
            batch.note(key.part(1), SessionNamed { title });
        }
    }

    fn take_answer(
        &mut self,
        uuid: String,
        under: StepParent,
        path: PathKind,
        message: ClaudeMessage<'_>,
        failed: bool,
        batch: &mut StepBatch,
    ) {
        let message_id = message.id.unwrap_or_else(|| uuid.clone());
        let continues = self.response(path).as_ref().is_some_and(|open| {
            open.message_id == message_id && open.bytes < RESPONSE_BYTES_MAX && open.uuids.len() < PENDING_MAX
        });
        if !continues {
            self.close(path, batch);
            let (parts, stop) = (Vec::new(), Stop::Stop);
            let empty = AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop };
            *self.response(path) = Some(OpenResponse {
                message_id,
                first: uuid.clone(),
                uuids: Vec::new(),
                reported_usage: Vec::new(),
                is_copied: false,
                under,
                at: batch.at,
                line: batch.line,
                bytes: 0,
                message: empty,
                pending: Vec::new(),
            });
        }
        let parts = message.content.into_parts(batch);
        let Some(open) = self.response(path) else { return };
        open.uuids.push(uuid);
        open.bytes += parts.iter().map(part_bytes).sum::<usize>();
        open.message.parts.extend(parts);
        let model = message.model.filter(|model| model != "<synthetic>");
        let model = model.map(|model| model_name(Some(PROVIDER), &model));
        open.message.model = model.or(open.message.model.take());
        open.message.usage = message.usage.and_then(ClaudeUsage::usage).or(open.message.usage);
        open.reported_usage.push(open.message.usage);
        open.message.stop =
            if failed { Stop::Error } else { stop_of(message.stop_reason.as_deref(), &open.message) };
    }

    fn take_user(
        &mut self,
        uuid: String,
        under: StepParent,
        parent: Option<&str>,
        path: PathKind,
        content: Content<'_>,
        batch: &mut StepBatch,
    ) {
        let blocks = content.into_blocks();
        let only_results = !blocks.is_empty() && blocks.iter().all(Block::is_result);
        let bodies = user_bodies(blocks, batch).into_iter().map(without_commands).collect();
        let pending = PendingRecord { uuid, bodies, at: batch.at, line: batch.line };
        if only_results {
            self.buffer_or_add(pending, under, parent, path, batch);
        } else {
            self.close(path, batch);
            add_pending(pending, under, path, batch);
        }
    }

    /// Buffer a record whose parent is a response that may continue. Add any other record immediately.
    fn buffer_or_add(
        &mut self,
        pending: PendingRecord,
        under: StepParent,
        parent: Option<&str>,
        path: PathKind,
        batch: &mut StepBatch,
    ) {
        if let Some(open) = self.response(path)
            && let Some(parent) = parent
            && open.pending.len() < PENDING_MAX
            && (open.uuids.iter().any(|uuid| uuid == parent)
                || open.pending.iter().any(|pending| pending.uuid == parent))
        {
            open.bytes += pending.bodies.iter().flat_map(Body::parts).map(part_bytes).sum::<usize>();
            open.pending.push(pending);
            if open.bytes >= RESPONSE_BYTES_MAX {
                self.close(path, batch);
            }
            return;
        }
        add_pending(pending, under, path, batch);
    }

    fn take_summary(
        &mut self,
        uuid: &str,
        under: StepParent,
        path: PathKind,
        message: ClaudeMessage<'_>,
        batch: &mut StepBatch,
    ) {
        let (boundary, mut metadata) = self.boundary(path).take().unwrap_or_default();
        let parts = message.content.into_parts(batch);
        let kept = metadata.take_segment();
        if let (Some(anchor), Some(tail)) = (&kept.anchor_uuid, &kept.tail_uuid)
            && *anchor == boundary
        {
            return add_partial_summary(uuid, &boundary, tail, path, batch.text_only(&parts), batch);
        }
        let compaction = Compaction {
            summary: Some(batch.text_only(&parts)),
            trigger: match metadata.trigger.as_deref() {
                Some("manual") => Trigger::Manual,
                Some("auto") => Trigger::Pressure,
                _ => Trigger::Imported,
            },
            tokens_before: metadata.pre_tokens,
            tokens_after: metadata.post_tokens,
            ..Compaction::new(Strategy::Imported, Trigger::Imported)
        };
        let key = RecordKey::of(&format!("{uuid}/0"));
        let PreservedSegment { head_uuid, tail_uuid, .. } = kept;
        let refs = head_uuid.map_or_else(Vec::new, |head| {
            let entries = [RecordKey::of(&head).part(FIRST_PART), RecordKey::of(&format!("{head}/0"))];
            entries
                .map(RecordRef::Entry)
                .into_iter()
                .chain([RecordRef::Record(RecordKey::of(&head))])
                .collect()
        });
        let (body, by) = (compaction.into(), Author::Agent);
        batch.step(key, StepAction::Add { body, under, by, path, refs, earlier: EarlierEntries::default() });
        for uuid in tail_uuid.as_deref().into_iter().chain([uuid]) {
            batch.alias(RecordKey::of(uuid), StepParent::RecordKey(key), path);
        }
    }

    fn boundary(&mut self, path: PathKind) -> &mut Option<(String, CompactMetadata)> {
        match path {
            PathKind::Main => &mut self.main_boundary,
            PathKind::Side => &mut self.side_boundary,
        }
    }

    fn response(&mut self, path: PathKind) -> &mut Option<OpenResponse> {
        match path {
            PathKind::Main => &mut self.main,
            PathKind::Side => &mut self.side,
        }
    }

    /// Set the usage to count for a response. Returns whether the response continues a response that was already
    /// counted. In that case, only the additional usage remains.
    fn count(&mut self, response: &mut OpenResponse) -> bool {
        let id = short_hash(&response.message_id);
        let Some(usage) = response.message.usage.filter(|_| !response.is_copied) else {
            response.message.usage = None;
            response.reported_usage.fill(None);
            return false;
        };
        let before = self.recent_usage.iter().position(|(counted, _)| *counted == id);
        let before = before.and_then(|at| self.recent_usage.remove(at)).map(|(_, usage)| usage);
        self.recent_usage.truncate(COUNTED_MAX - 1);
        self.recent_usage.push_front((id, usage));
        if self.counted.insert(id) {
            return false;
        }
        // A response that is no longer remembered is a repetition, not a continuation.
        let before = before.unwrap_or(usage);
        let increase = |reported_usage: Usage| usage_since(reported_usage, before);
        response.reported_usage.iter_mut().for_each(|reported_usage| {
            *reported_usage = Some(reported_usage.map(increase).unwrap_or_default())
        });
        response.message.usage = plausible_usage(increase(usage));
        true
    }

    /// End the open response, and add it with its buffered records.
    fn close(&mut self, path: PathKind, batch: &mut StepBatch) {
        let Some(mut response) = self.response(path).take() else { return };
        let (at, line) = (batch.at, batch.line);
        let continues = self.count(&mut response);
        (batch.at, batch.line) = (response.at, response.line);
        let version = |records: usize| RecordKey::of(&format!("{}+{records}", response.first));
        let key = version(response.reported_usage.len());
        let shorter = (1..)
            .zip(&response.reported_usage)
            .map(|(records, reported_usage)| (version(records), *reported_usage));
        let shorter = shorter.take(response.reported_usage.len().saturating_sub(1)).collect();
        let earlier = EarlierEntries { shorter, continues, ..EarlierEntries::default() };
        let (body, under, by) = (response.message.into(), response.under, Author::Agent);
        batch.step(key, StepAction::Add { body, under, by, path, refs: Vec::new(), earlier });
        let last = add_results(response.pending.iter_mut(), key, path, batch);
        (batch.at, batch.line) = (at, line);
        for uuid in &response.uuids {
            batch.alias(RecordKey::of(uuid).part(FIRST_PART), StepParent::RecordKey(key), PathKind::Side);
        }
        let pending = response.pending.into_iter().map(|pending| pending.uuid);
        for uuid in response.uuids.into_iter().chain(pending) {
            batch.alias(RecordKey::of(&uuid), StepParent::RecordKey(last), path);
        }
    }
}

/// Add a summary of the messages after `tail`. The conversation continues after the summary, and the summarised
/// part becomes an abandoned branch.
fn add_partial_summary(
    uuid: &str,
    boundary: &str,
    tail: &str,
    path: PathKind,
    summary: String,
    batch: &mut StepBatch,
) {
    let key = RecordKey::of(&format!("{uuid}/0"));
    let body = BranchSummary::new(summary);
    let (body, under, refs) = (
        body.into(),
        StepParent::RecordKey(RecordKey::of(tail)),
        vec![RecordRef::Entry(RecordKey::of(boundary))],
    );
    let (by, earlier) = (Author::Agent, EarlierEntries::default());
    batch.step(key, StepAction::Add { body, under, by, path, refs, earlier });
    batch.alias(RecordKey::of(uuid), StepParent::RecordKey(key), path);
}

/// Add the buffered records of a response as a chain after it, and return the key of the last entry.
fn add_results<'a>(
    waiting: impl Iterator<Item = &'a mut PendingRecord>,
    response: RecordKey,
    path: PathKind,
    batch: &mut StepBatch,
) -> RecordKey {
    let mut last = response;
    for pending in waiting {
        (batch.at, batch.line) = (pending.at, pending.line);
        for (number, body) in std::mem::take(&mut pending.bodies).into_iter().enumerate() {
            let key = RecordKey::of(&format!("{}/{number}", pending.uuid));
            let earlier = EarlierEntries { answers: Some(response), ..EarlierEntries::default() };
            let (under, by) = (StepParent::RecordKey(last), by_of(&body));
            batch.step(key, StepAction::Add { body, under, by, path, refs: Vec::new(), earlier });
            last = key;
        }
    }
    last
}

/// Convert Claude Code's record of a command to a custom message. The custom message is part of the context, but it is
/// not a user message and therefore cannot become the session preview.
fn without_commands(body: Body) -> Body {
    const OPENINGS: &[&str] = &[
        "<command-name>",
        "<command-message>",
        "<local-command-stdout>",
        "<local-command-stderr>",
        "<bash-input>",
        "<bash-stdout>",
        "<bash-stderr>",
    ];
    match body {
        Body::UserMessage(message) if starts_with_any(&joined_text(&message.parts), OPENINGS) => {
            let custom_type = format!("{}:command", Format::ClaudeCode.as_str());
            CustomMessage { custom_type, parts: message.parts, display: true, details: None }.into()
        }
        other => other,
    }
}

fn starts_with_any(text: &str, openings: &[&str]) -> bool {
    openings.iter().any(|opening| text.trim_start().starts_with(opening))
}

/// Hash an id for the lookup tables.
fn short_hash(id: &str) -> u64 {
    let mut short = [0; 8];
    short.copy_from_slice(&BlobHash::of(id.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(short)
}

fn add_pending(pending: PendingRecord, under: StepParent, path: PathKind, batch: &mut StepBatch) {
    let mut last = under;
    for (number, body) in pending.bodies.into_iter().enumerate() {
        let key = RecordKey::of(&format!("{}/{number}", pending.uuid));
        batch.add_on(path, key, last, by_of(&body), body);
        last = StepParent::RecordKey(key);
    }
    batch.alias(RecordKey::of(&pending.uuid), last, path);
}

fn by_of(body: &Body) -> Author {
    if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent }
}

fn stop_of(reason: Option<&str>, message: &AssistantMessage) -> Stop {
    match reason {
        Some("max_tokens" | "model_context_window_exceeded") => Stop::Length,
        Some("tool_use") => Stop::ToolUse,
        Some("refusal") => Stop::ContentFilter,
        Some(_) => Stop::Stop,
        None if message.parts.iter().any(|part| part.as_tool_call().is_some()) => Stop::ToolUse,
        None => Stop::Stop,
    }
}
