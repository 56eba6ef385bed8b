//! Import of Sapwood's own JSONL. Appending the drafts to an empty session produces the same seqs, ids and parents,
//! so exporting again writes the same bytes (I11). The drafts are valid for any file.
//!
//! Damaged lines are reported and skipped, and the remaining lines are imported. Children of a lost entry are attached
//! to the entry before it, a lost `leaf_moved` is restored, and a line of an unknown type is stored as custom_info.
//!
//! Memory: 20 bytes per imported entry, and no other state grows. The ids of all entries are needed because references
//! (a label's target, a moved leaf, a compaction's first kept entry) may point to any entry. A draft with an unknown
//! reference would make its whole batch fail.

use std::collections::HashMap;

use sapwood_core::entry::codec::CodecError;
use sapwood_core::entry::jsonl::{EntryLine, read_line};
use sapwood_core::entry::{CustomInfo, LOG_VERSION, LeafMoved, Stance};
use sapwood_core::nesting::{LINE_NESTING_MAX, nesting};
use sapwood_core::port::store::{BLOB_BYTES_MAX, BODY_BYTES_MAX};
use sapwood_core::{BlobHash, Body, Draft, EntryId, Json, Kind, Principal, Seq, TimestampMs, TurnId};
use serde::Deserialize;

use super::entry_table::{ENTRIES_MAX, EntryTable, RowIndex};
use super::text::decode_base64;
use super::{LINE_BYTES_MAX, PROBLEMS_MAX, Problem, ProblemKind};
use crate::header::{HEADER_TYPE, Header};

/// A line up to this length cannot contain a body that is too large.
const BODY_BYTES_SURE: usize = BODY_BYTES_MAX - (4 << 10);

/// The beginning of a line with a blob chunk.
const BLOB_HEAD: &[u8] = b"{\"type\":\"blob\",";

/// Imports one file, line by line.
#[derive(Default)]
pub struct Importer {
    header: Option<Header>,
    rows: EntryTable,
    leaf: Option<RowIndex>,
    /// Positions that replace missing parents. Bounded by [`PROBLEMS_MAX`].
    replacements: HashMap<EntryId, Option<RowIndex>>,
    /// The leaf at the latest unreadable line, which is the most likely parent of the lost entry.
    lost_from: Option<Option<RowIndex>>,
    /// The expected seq of the next line; unknown after an unreadable line.
    expected_seq: Option<Seq>,
    problems: Vec<Problem>,
    state: ReadState,
    /// A blob that continues in the next line.
    partial: Option<PartialBlob>,
    blobs: Vec<Vec<u8>>,
}

struct PartialBlob {
    blob: BlobHash,
    piece: usize,
    bytes: Vec<u8>,
}

/// A chunk of a blob.
#[derive(Deserialize)]
struct BlobLine<'a> {
    blob: BlobHash,
    piece: usize,
    pieces: usize,
    #[serde(borrow)]
    data: std::borrow::Cow<'a, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ReadState {
    #[default]
    BeforeHeader,
    /// A header, valid or not, or an entry without a header was read.
    InSession,
    /// No more lines are imported.
    Ended,
}

/// The envelope of a line with an unreadable body.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "type")]
    kind: String,
    id: EntryId,
    #[serde(default)]
    seq: Option<Seq>,
    #[serde(default)]
    parent_id: Option<EntryId>,
    timestamp: TimestampMs,
    #[serde(default)]
    by: Option<Principal>,
    #[serde(default)]
    turn: Option<TurnId>,
}

impl Importer {
    /// Return the session header, after its line was read.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether this line was the header of another session. Removes the problem report, because the caller
    /// also imports that session.
    pub fn take_end(&mut self, number: u64) -> bool {
        let is_end = |last: &mut Problem| last.line == number && last.what == ProblemKind::SecondHeader;
        self.problems.pop_if(is_end).is_some()
    }

    /// Skip the rest of this session.
    pub fn skip_rest(&mut self) {
        self.state = ReadState::Ended;
    }

    /// Return the blobs read since the previous call. The entries that refer to these blobs are read later.
    pub fn take_blobs(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.blobs)
    }

    /// Return the number of buffered bytes of an unfinished blob.
    pub fn held_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.bytes.len())
    }

    /// Return the number of entries imported so far.
    pub fn entries(&self) -> usize {
        self.rows.len()
    }

    /// Read the next line, including its line break if it has one (only the last line of a file may lack it),
    /// and append the resulting entries to `drafts`. The n-th draft in total gets seq n in an empty session.
    pub fn push_line(&mut self, line: &[u8], number: u64, drafts: &mut Vec<Draft>) {
        if self.state == ReadState::Ended {
            self.check_for_header(line, number);
            return;
        }
        if self.rows.len() >= ENTRIES_MAX {
            self.give_up(number);
            return;
        }
        if line.len() > LINE_BYTES_MAX {
            self.lose_line(number, ProblemKind::TooLong);
            return;
        }
        let is_complete = line.ends_with(b"\n");
        let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return;
        }
        if nesting(line) > LINE_NESTING_MAX {
            let why = format!("it is nested deeper than {LINE_NESTING_MAX} levels");
            self.lose_line(number, ProblemKind::BadLine { why });
            return;
        }
        if line.starts_with(BLOB_HEAD) {
            self.take_blob(line, number);
            return;
        }
        if is_header(line) {
            self.take_header(line, number);
            return;
        }
        if self.state == ReadState::BeforeHeader {
            self.report(number, ProblemKind::NoHeader);
            self.state = ReadState::InSession;
            self.expected_seq = Some(Seq(1));
        }
        let version = self.header.as_ref().map_or(LOG_VERSION, |header| header.version);
        match read_line(version, line) {
            // The canonical body may be slightly longer than the body in the line.
            Ok(read) if line.len() > BODY_BYTES_SURE && read.encoded().len() > BODY_BYTES_MAX => {
                self.replacements.insert(read.id, self.leaf);
                self.lose_line(number, ProblemKind::TooLong);
            }
            Ok(read) => self.take(read, number, drafts),
            Err(error) => self.take_unreadable(line, is_complete, error, number, drafts),
        }
    }

    fn take_blob(&mut self, line: &[u8], number: u64) {
        let bad = |why: &str| ProblemKind::BadLine { why: why.to_owned() };
        let Ok(chunk) = serde_json::from_slice::<BlobLine<'_>>(line) else {
            return self.report(number, bad("a blob chunk cannot be read"));
        };
        let Some(bytes) = decode_base64(&chunk.data) else {
            return self.report(number, bad("a blob chunk is not valid base64"));
        };
        let partial = self.partial.take().filter(|partial| partial.blob == chunk.blob);
        let mut partial = partial.unwrap_or(PartialBlob { blob: chunk.blob, piece: 0, bytes: Vec::new() });
        if chunk.piece != partial.piece + 1 || partial.bytes.len() + bytes.len() > BLOB_BYTES_MAX {
            return self.report(number, bad("a blob chunk is missing, or the blob is too large"));
        }
        partial.piece = chunk.piece;
        partial.bytes.extend_from_slice(&bytes);
        if chunk.piece < chunk.pieces {
            self.partial = Some(partial);
        } else if BlobHash::of(&partial.bytes) == chunk.blob {
            self.blobs.push(partial.bytes);
        } else {
            self.report(number, bad("a blob does not match its hash"));
        }
    }

    fn take_header(&mut self, line: &[u8], number: u64) {
        if self.state != ReadState::BeforeHeader {
            self.report(number, ProblemKind::SecondHeader);
            self.state = ReadState::Ended;
            return;
        }
        self.state = ReadState::InSession;
        self.expected_seq = Some(Seq(1));
        match serde_json::from_slice::<Header>(line) {
            Ok(header) if header.version > LOG_VERSION => {
                self.report(number, ProblemKind::TooNew { found: header.version });
                self.state = ReadState::Ended;
            }
            Ok(header) if header.base.is_some() => {
                self.report(number, ProblemKind::StoreFork);
                self.state = ReadState::Ended;
            }
            Ok(header) => self.header = Some(header),
            Err(error) => self.report(number, ProblemKind::BadHeader { why: error.to_string() }),
        }
    }

    /// Report the header of another session after the end of this session, once.
    fn check_for_header(&mut self, line: &[u8], number: u64) {
        let is_reported = self.problems.last().is_some_and(|last| last.what == ProblemKind::SecondHeader);
        if !is_reported && line.len() <= LINE_BYTES_MAX && is_header(line.trim_ascii()) {
            self.problems.push(Problem { line: number, what: ProblemKind::SecondHeader });
        }
    }

    fn take(&mut self, line: EntryLine, number: u64, drafts: &mut Vec<Draft>) {
        self.check_seq(line.seq, number);
        if !self.check_id(line.id, number) {
            return;
        }
        let parent = self.parent_of(line.parent_id, number);
        match line.kind().stance() {
            Stance::InTree => self.take_in_tree(line, parent, number, drafts),
            Stance::OutsideTree => self.take_outside_tree(line, parent, number, drafts),
        }
    }

    fn take_in_tree(
        &mut self,
        line: EntryLine,
        parent: Option<RowIndex>,
        number: u64,
        drafts: &mut Vec<Draft>,
    ) {
        if let Some(problem) = self.first_kept_problem(&line.body, parent) {
            self.replacements.insert(line.id, parent);
            self.report(number, problem);
            return;
        }
        if parent != self.leaf {
            let moved = self.leaf_moved(parent, &line);
            let Some(moved) = moved else {
                self.replacements.insert(line.id, parent);
                self.report(number, ProblemKind::WrongOrder { id: line.id });
                return;
            };
            self.report_unless_lost(number, ProblemKind::Reattached);
            self.push_draft(moved, Stance::OutsideTree, drafts);
            self.leaf = parent;
        }
        self.push_draft(line.into_draft(), Stance::InTree, drafts);
    }

    fn take_outside_tree(
        &mut self,
        line: EntryLine,
        parent: Option<RowIndex>,
        number: u64,
        drafts: &mut Vec<Draft>,
    ) {
        let (kind, mut line) = (line.kind(), line);
        if parent != self.leaf {
            self.report_unless_lost(number, ProblemKind::NotAtLeaf);
        }
        let mut moved_to = None;
        let target = match &mut line.body {
            Body::Label(label) => Some(label.target).filter(|target| self.in_tree(*target).is_none()),
            Body::LeafMoved(LeafMoved { to: None }) => {
                moved_to = Some(None);
                None
            }
            Body::LeafMoved(LeafMoved { to: Some(to) }) => {
                moved_to = self.find(*to);
                let unknown = moved_to.is_none().then_some(*to);
                // Replace a target that is not in the tree. The replacement may be the position before the first entry.
                if let Some(position) = moved_to.filter(|_| self.in_tree(*to).is_none()) {
                    line.body = LeafMoved { to: position.map(|index| self.rows.id(index)) }.into();
                }
                unknown
            }
            _ => None,
        };
        if let Some(id) = target {
            if kind == Kind::LeafMoved {
                self.lost_from.get_or_insert(self.leaf);
            }
            self.report(number, ProblemKind::UnknownTarget { kind, id });
            return;
        }
        self.push_draft(line.into_draft(), Stance::OutsideTree, drafts);
        if let Some(position) = moved_to {
            self.leaf = position;
        }
    }

    /// Check the first kept entry of a compaction with this parent.
    fn first_kept_problem(&self, body: &Body, parent: Option<RowIndex>) -> Option<ProblemKind> {
        let Body::Compaction(compaction) = body else { return None };
        let id = compaction.first_kept?;
        let Some(kept) = self.in_tree(id) else {
            return Some(ProblemKind::UnknownTarget { kind: Kind::Compaction, id });
        };
        // Parents have smaller indexes than their children, so stop at or before the target's index.
        let mut at = parent;
        while let Some(index) = at.filter(|index| *index > kept) {
            at = self.rows.parent(index);
        }
        (at != Some(kept)).then_some(ProblemKind::KeptOffPath { id })
    }

    /// Import a line of an unknown type as custom_info, and report any other unreadable line. If the envelope is
    /// readable, store the line's parent for its children.
    fn take_unreadable(
        &mut self,
        line: &[u8],
        is_complete: bool,
        error: CodecError,
        number: u64,
        drafts: &mut Vec<Draft>,
    ) {
        let why = error.to_string();
        let Ok(envelope) = serde_json::from_slice::<Envelope>(line) else {
            let torn = !is_complete
                && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof());
            self.lose_line(number, if torn { ProblemKind::Torn } else { ProblemKind::BadLine { why } });
            return;
        };
        self.check_seq(envelope.seq, number);
        let parent = self.parent_of(envelope.parent_id, number);
        let unknown = matches!(error, CodecError::UnknownType(_));
        let text = std::str::from_utf8(line).ok().filter(|_| unknown && line.len() <= BODY_BYTES_SURE);
        let Some(data) = text.and_then(|text| Json::parse(text).ok()) else {
            self.replacements.insert(envelope.id, parent);
            self.report(number, ProblemKind::BadLine { why });
            return;
        };
        let found: String = envelope.kind.chars().take(64).collect();
        self.report(number, ProblemKind::UnknownType { found: found.clone() });
        if self.check_id(envelope.id, number) {
            self.replacements.insert(envelope.id, parent);
            let body = CustomInfo { custom_type: format!("unknown:{found}"), data }.into();
            let (id, at) = (Some(envelope.id), envelope.timestamp);
            self.push_draft(
                Draft { id, at, by: envelope.by, turn: envelope.turn, body },
                Stance::OutsideTree,
                drafts,
            );
        }
    }

    fn check_seq(&mut self, found: Option<Seq>, number: u64) {
        if let (Some(expected), Some(found)) = (self.expected_seq, found)
            && expected != found
        {
            self.report(number, ProblemKind::Gap { expected, found });
        }
        self.expected_seq = found.and_then(|found| found.0.checked_add(1)).map(Seq);
    }

    fn check_id(&mut self, id: EntryId, number: u64) -> bool {
        if self.rows.last_id().is_none_or(|last| last < id) {
            return true;
        }
        let known = self.rows.find(id).is_some();
        if !known {
            self.replacements.entry(id).or_insert(self.leaf);
        }
        self.report(
            number,
            if known { ProblemKind::Duplicate { id } } else { ProblemKind::WrongOrder { id } },
        );
        false
    }

    fn parent_of(&mut self, parent: Option<EntryId>, number: u64) -> Option<RowIndex> {
        let parent = parent?;
        if let Some(position) = self.find(parent) {
            return position;
        }
        let position = self.lost_from.unwrap_or(self.leaf);
        self.replacements.insert(parent, position);
        self.report(number, ProblemKind::MissingParent { parent });
        position
    }

    /// Return the position of an entry in the tree, or of the replacement for a missing entry. `Some(None)` is the
    /// position before the first entry.
    fn find(&self, id: EntryId) -> Option<Option<RowIndex>> {
        if let Some(position) = self.replacements.get(&id) {
            return Some(*position);
        }
        let index = self.rows.find(id)?;
        match self.rows.stance(index) {
            Stance::InTree => Some(Some(index)),
            Stance::OutsideTree => Some(self.rows.parent(index)),
        }
    }

    fn in_tree(&self, id: EntryId) -> Option<RowIndex> {
        let index = self.rows.find(id)?;
        (self.rows.stance(index) == Stance::InTree).then_some(index)
    }

    /// Build the entry that moves the leaf to the parent of `line`. Its id is between the previous id and the
    /// line's id, and is the same for each import of the file.
    fn leaf_moved(&self, to: Option<RowIndex>, line: &EntryLine) -> Option<Draft> {
        let last = self.rows.last_id()?;
        let id = EntryId::after(Some(last), TimestampMs(0), 0);
        let body = LeafMoved { to: to.map(|index| self.rows.id(index)) }.into();
        let draft = Draft { id: Some(id), at: line.at, by: line.by.clone(), turn: None, body };
        (id > last && id < line.id).then_some(draft)
    }

    fn push_draft(&mut self, draft: Draft, stance: Stance, drafts: &mut Vec<Draft>) {
        let (Some(id), Ok(index)) = (draft.id, RowIndex::try_from(self.rows.len())) else { return };
        self.rows.push(id, self.leaf, stance);
        if stance == Stance::InTree {
            self.leaf = Some(index);
        }
        drafts.push(draft);
    }

    /// Record and report a line that is completely unreadable.
    fn lose_line(&mut self, number: u64, problem: ProblemKind) {
        if self.state == ReadState::BeforeHeader {
            self.state = ReadState::InSession;
        }
        self.lost_from = Some(self.leaf);
        self.expected_seq = None;
        self.report(number, problem);
    }

    /// Report a problem, unless an earlier lost line explains the problem.
    fn report_unless_lost(&mut self, number: u64, problem: ProblemKind) {
        if self.replacements.is_empty() && self.lost_from.is_none() {
            self.report(number, problem);
        }
    }

    fn report(&mut self, line: u64, what: ProblemKind) {
        if self.state == ReadState::Ended {
            return;
        }
        if self.problems.len() + 1 >= PROBLEMS_MAX {
            self.give_up(line);
            return;
        }
        self.problems.push(Problem { line, what: what.brief() });
    }

    fn give_up(&mut self, line: u64) {
        self.problems.push(Problem { line, what: ProblemKind::GivenUp });
        self.state = ReadState::Ended;
    }
}

fn is_header(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct TypeOnly<'a> {
        #[serde(rename = "type", borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    // Entries are recognized by their first bytes, so that they are not parsed twice.
    if line.starts_with(b"{\"type\":\"") && !line.starts_with(b"{\"type\":\"session_header\"") {
        return false;
    }
    serde_json::from_slice::<TypeOnly<'_>>(line).is_ok_and(|typed| typed.kind == HEADER_TYPE)
}
