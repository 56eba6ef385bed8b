//! Import of Sapwood's own JSONL. Appending the drafts to an empty session produces the same seqs, ids and parents,
//! so exporting again writes the same bytes (I11). The drafts are valid for any file.
//!
//! Damaged lines are reported and skipped, and the rest is imported as far as possible. Children of a lost
//! entry are attached to the entry before it, a lost `leaf_moved` is restored, and a line of an unknown type
//! is kept as custom_info.
//!
//! Memory: 20 bytes per imported entry; no other state grows. References (a label's target, a moved leaf, a
//! compaction's first kept entry) may point to any entry. A draft with an unknown reference would make its whole
//! batch fail.

use std::collections::HashMap;

use sapwood_core::entry::codec::CodecError;
use sapwood_core::entry::jsonl::{Line, read_line};
use sapwood_core::entry::{CustomInfo, LOG_VERSION, LeafMoved, Stance};
use sapwood_core::port::store::{BLOB_BYTES_MAX, BODY_BYTES_MAX};
use sapwood_core::{BlobHash, Body, Draft, EntryId, Json, Kind, Principal, Seq, TimestampMs, TurnId};
use serde::Deserialize;

use super::entry_table::{ENTRIES_MAX, Index, Rows};
use super::text::decode_base64;
use super::{LINE_BYTES_MAX, PROBLEMS_MAX, Problem, Trouble};
use crate::header::{HEADER_TYPE, Header};

/// A line up to this length cannot contain a body that is too large.
const BODY_BYTES_SURE: usize = BODY_BYTES_MAX - (4 << 10);

/// The beginning of a line with a blob chunk.
const BLOB_HEAD: &[u8] = b"{\"type\":\"blob\",";

/// Imports one file, line by line.
#[derive(Default)]
pub struct Importer {
    header: Option<Header>,
    rows: Rows,
    leaf: Option<Index>,
    /// Positions that replace missing parents. Bounded by [`PROBLEMS_MAX`].
    stand_ins: HashMap<EntryId, Option<Index>>,
    /// The leaf at the latest unreadable line: the most likely parent of the lost entry.
    lost_from: Option<Option<Index>>,
    /// The expected seq of the next line; unknown after an unreadable line.
    due: Option<Seq>,
    problems: Vec<Problem>,
    seen: Seen,
    /// A blob that continues in the next line.
    partial: Option<Partial>,
    blobs: Vec<Vec<u8>>,
}

struct Partial {
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
enum Seen {
    #[default]
    Nothing,
    /// A header, valid or not, or an entry without a header.
    Beginning,
    /// No more lines are imported.
    End,
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

    /// Return the header for changes, for callers that do not trust all its fields.
    pub fn header_mut(&mut self) -> Option<&mut Header> {
        self.header.as_mut()
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether this line was the header of another session. Removes the problem report, because the caller
    /// also imports that session.
    pub fn take_end(&mut self, number: u64) -> bool {
        let is_end = |last: &mut Problem| last.line == number && last.what == Trouble::SecondHeader;
        self.problems.pop_if(is_end).is_some()
    }

    /// Skip the rest of this session.
    pub fn skip_rest(&mut self) {
        self.seen = Seen::End;
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
        if self.seen == Seen::End {
            self.look_for_header(line, number);
            return;
        }
        if self.rows.len() >= ENTRIES_MAX {
            self.give_up(number);
            return;
        }
        if line.len() > LINE_BYTES_MAX {
            self.lose(number, Trouble::TooLong);
            return;
        }
        let whole = line.ends_with(b"\n");
        let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(line).trim_ascii();
        if line.is_empty() {
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
        if self.seen == Seen::Nothing {
            self.report(number, Trouble::NoHeader);
            self.seen = Seen::Beginning;
            self.due = Some(Seq(1));
        }
        let version = self.header.as_ref().map_or(LOG_VERSION, |header| header.version);
        match read_line(version, line) {
            // The canonical body may be slightly longer than the body in the line.
            Ok(read) if line.len() > BODY_BYTES_SURE && read.encoded().len() > BODY_BYTES_MAX => {
                self.stand_ins.insert(read.id, self.leaf);
                self.lose(number, Trouble::TooLong);
            }
            Ok(read) => self.take(read, number, drafts),
            Err(error) => self.take_unreadable(line, whole, error, number, drafts),
        }
    }

    fn take_blob(&mut self, line: &[u8], number: u64) {
        let bad = |why: &str| Trouble::BadLine { why: why.to_owned() };
        let Ok(piece) = serde_json::from_slice::<BlobLine<'_>>(line) else {
            return self.report(number, bad("a blob chunk cannot be read"));
        };
        let Some(bytes) = decode_base64(&piece.data) else {
            return self.report(number, bad("a blob chunk is not valid base64"));
        };
        let partial = self.partial.take().filter(|partial| partial.blob == piece.blob);
        let mut partial = partial.unwrap_or(Partial { blob: piece.blob, piece: 0, bytes: Vec::new() });
        if piece.piece != partial.piece + 1 || partial.bytes.len() + bytes.len() > BLOB_BYTES_MAX {
            return self.report(number, bad("a blob chunk is missing, or the blob is too large"));
        }
        partial.piece = piece.piece;
        partial.bytes.extend_from_slice(&bytes);
        if piece.piece < piece.pieces {
            self.partial = Some(partial);
        } else if BlobHash::of(&partial.bytes) == piece.blob {
            self.blobs.push(partial.bytes);
        } else {
            self.report(number, bad("a blob does not match its hash"));
        }
    }

    fn take_header(&mut self, line: &[u8], number: u64) {
        if self.seen != Seen::Nothing {
            self.report(number, Trouble::SecondHeader);
            self.seen = Seen::End;
            return;
        }
        self.seen = Seen::Beginning;
        self.due = Some(Seq(1));
        match serde_json::from_slice::<Header>(line) {
            Ok(header) if header.version > LOG_VERSION => {
                self.report(number, Trouble::TooNew { found: header.version });
                self.seen = Seen::End;
            }
            Ok(header) if header.base.is_some() => {
                self.report(number, Trouble::StoreFork);
                self.seen = Seen::End;
            }
            Ok(header) => self.header = Some(header),
            Err(error) => self.report(number, Trouble::BadHeader { why: error.to_string() }),
        }
    }

    /// Look for the header of another session after the end of this session.
    fn look_for_header(&mut self, line: &[u8], number: u64) {
        let is_told = self.problems.last().is_some_and(|last| last.what == Trouble::SecondHeader);
        if !is_told && line.len() <= LINE_BYTES_MAX && is_header(line.trim_ascii()) {
            self.problems.push(Problem { line: number, what: Trouble::SecondHeader });
        }
    }

    fn take(&mut self, line: Line, number: u64, drafts: &mut Vec<Draft>) {
        self.check_seq(line.seq, number);
        if !self.check_id(line.id, number) {
            return;
        }
        let parent = self.parent_of(line.parent_id, number);
        match line.kind().stance() {
            Stance::InTree => self.take_in_tree(line, parent, number, drafts),
            Stance::Beside => self.take_beside(line, parent, number, drafts),
        }
    }

    fn take_in_tree(&mut self, line: Line, parent: Option<Index>, number: u64, drafts: &mut Vec<Draft>) {
        if let Some(trouble) = self.kept_wrongly(&line.body, parent) {
            self.stand_ins.insert(line.id, parent);
            self.report(number, trouble);
            return;
        }
        if parent != self.leaf {
            let moved = self.leaf_moved(parent, &line);
            let Some(moved) = moved else {
                self.stand_ins.insert(line.id, parent);
                self.report(number, Trouble::WrongOrder { id: line.id });
                return;
            };
            self.report_unless_lost(number, Trouble::Rehung);
            self.keep(moved, Stance::Beside, drafts);
            self.leaf = parent;
        }
        self.keep(line.into_draft(), Stance::InTree, drafts);
    }

    fn take_beside(&mut self, line: Line, parent: Option<Index>, number: u64, drafts: &mut Vec<Draft>) {
        let (kind, mut line) = (line.kind(), line);
        if parent != self.leaf {
            self.report_unless_lost(number, Trouble::BesideLeaf);
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
                // A target that is not in the tree has a replacement, possibly the position before the first
                // entry.
                if let Some(place) = moved_to.filter(|_| self.in_tree(*to).is_none()) {
                    line.body = LeafMoved { to: place.map(|index| self.rows.id(index)) }.into();
                }
                unknown
            }
            _ => None,
        };
        if let Some(id) = target {
            if kind == Kind::LeafMoved {
                self.lost_from.get_or_insert(self.leaf);
            }
            self.report(number, Trouble::UnknownTarget { kind, id });
            return;
        }
        self.keep(line.into_draft(), Stance::Beside, drafts);
        if let Some(place) = moved_to {
            self.leaf = place;
        }
    }

    /// Check the first kept entry of a compaction with this parent.
    fn kept_wrongly(&self, body: &Body, parent: Option<Index>) -> Option<Trouble> {
        let Body::Compaction(compaction) = body else { return None };
        let id = compaction.first_kept?;
        let Some(kept) = self.in_tree(id) else {
            return Some(Trouble::UnknownTarget { kind: Kind::Compaction, id });
        };
        // Parents are older than their children, so stop when the walk has passed the target.
        let mut at = parent;
        while let Some(index) = at.filter(|index| *index > kept) {
            at = self.rows.parent(index);
        }
        (at != Some(kept)).then_some(Trouble::KeptOffPath { id })
    }

    /// Salvage a line that is not an entry of this version, and remember its parent for its children.
    fn take_unreadable(
        &mut self,
        line: &[u8],
        whole: bool,
        error: CodecError,
        number: u64,
        drafts: &mut Vec<Draft>,
    ) {
        let why = error.to_string();
        let Ok(envelope) = serde_json::from_slice::<Envelope>(line) else {
            let torn =
                !whole && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof());
            self.lose(number, if torn { Trouble::Torn } else { Trouble::BadLine { why } });
            return;
        };
        self.check_seq(envelope.seq, number);
        let parent = self.parent_of(envelope.parent_id, number);
        let unknown = matches!(error, CodecError::UnknownType(_));
        let text = std::str::from_utf8(line).ok().filter(|_| unknown && line.len() <= BODY_BYTES_SURE);
        let Some(data) = text.and_then(|text| Json::parse(text).ok()) else {
            self.stand_ins.insert(envelope.id, parent);
            self.report(number, Trouble::BadLine { why });
            return;
        };
        let found: String = envelope.kind.chars().take(64).collect();
        self.report(number, Trouble::UnknownType { found: found.clone() });
        if self.check_id(envelope.id, number) {
            self.stand_ins.insert(envelope.id, parent);
            let body = CustomInfo { custom_type: format!("unknown:{found}"), data }.into();
            let (id, at) = (Some(envelope.id), envelope.timestamp);
            self.keep(Draft { id, at, by: envelope.by, turn: envelope.turn, body }, Stance::Beside, drafts);
        }
    }

    fn check_seq(&mut self, found: Option<Seq>, number: u64) {
        if let (Some(expected), Some(found)) = (self.due, found)
            && expected != found
        {
            self.report(number, Trouble::Gap { expected, found });
        }
        self.due = found.and_then(|found| found.0.checked_add(1)).map(Seq);
    }

    fn check_id(&mut self, id: EntryId, number: u64) -> bool {
        if self.rows.last_id().is_none_or(|last| last < id) {
            return true;
        }
        let known = self.rows.find(id).is_some();
        if !known {
            self.stand_ins.entry(id).or_insert(self.leaf);
        }
        self.report(number, if known { Trouble::Duplicate { id } } else { Trouble::WrongOrder { id } });
        false
    }

    /// Find the tree position for this parent id.
    fn parent_of(&mut self, parent: Option<EntryId>, number: u64) -> Option<Index> {
        let parent = parent?;
        if let Some(place) = self.find(parent) {
            return place;
        }
        let place = self.lost_from.unwrap_or(self.leaf);
        self.stand_ins.insert(parent, place);
        self.report(number, Trouble::MissingParent { parent });
        place
    }

    /// Return the position of an entry in the tree, or of the replacement for a missing entry. `Some(None)` is the
    /// position before the first entry.
    fn find(&self, id: EntryId) -> Option<Option<Index>> {
        if let Some(place) = self.stand_ins.get(&id) {
            return Some(*place);
        }
        let index = self.rows.find(id)?;
        match self.rows.stance(index) {
            Stance::InTree => Some(Some(index)),
            Stance::Beside => Some(self.rows.parent(index)),
        }
    }

    fn in_tree(&self, id: EntryId) -> Option<Index> {
        let index = self.rows.find(id)?;
        (self.rows.stance(index) == Stance::InTree).then_some(index)
    }

    /// Build the entry that moves the leaf to the parent of `line`. Its id is between the previous id and the
    /// line's id, and is the same for each import of the file.
    fn leaf_moved(&self, to: Option<Index>, line: &Line) -> Option<Draft> {
        let last = self.rows.last_id()?;
        let id = EntryId::after(Some(last), TimestampMs(0), 0);
        let body = LeafMoved { to: to.map(|index| self.rows.id(index)) }.into();
        let draft = Draft { id: Some(id), at: line.at, by: line.by.clone(), turn: None, body };
        (id > last && id < line.id).then_some(draft)
    }

    fn keep(&mut self, draft: Draft, stance: Stance, drafts: &mut Vec<Draft>) {
        let (Some(id), Ok(index)) = (draft.id, Index::try_from(self.rows.len())) else { return };
        self.rows.push(id, self.leaf, stance);
        if stance == Stance::InTree {
            self.leaf = Some(index);
        }
        drafts.push(draft);
    }

    /// Record a line that is completely unreadable.
    fn lose(&mut self, number: u64, trouble: Trouble) {
        if self.seen == Seen::Nothing {
            self.seen = Seen::Beginning;
        }
        self.lost_from = Some(self.leaf);
        self.due = None;
        self.report(number, trouble);
    }

    /// Report a problem, unless an earlier loss explains it.
    fn report_unless_lost(&mut self, number: u64, trouble: Trouble) {
        if self.stand_ins.is_empty() && self.lost_from.is_none() {
            self.report(number, trouble);
        }
    }

    fn report(&mut self, line: u64, what: Trouble) {
        if self.seen == Seen::End {
            return;
        }
        if self.problems.len() + 1 >= PROBLEMS_MAX {
            self.give_up(line);
            return;
        }
        self.problems.push(Problem { line, what: what.brief() });
    }

    fn give_up(&mut self, line: u64) {
        self.problems.push(Problem { line, what: Trouble::GivenUp });
        self.seen = Seen::End;
    }
}

fn is_header(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(rename = "type", borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    // Entries are recognised by their first bytes, so that they are not parsed twice.
    if line.starts_with(b"{\"type\":\"") && !line.starts_with(b"{\"type\":\"session_header\"") {
        return false;
    }
    serde_json::from_slice::<Typed<'_>>(line).is_ok_and(|typed| typed.kind == HEADER_TYPE)
}
