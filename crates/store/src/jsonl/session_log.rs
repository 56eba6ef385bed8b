//! A session's log and its file: reads entries that other processes appended, and appends new
//! entries.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::entry::jsonl::{EntryLine, Extra, read_line, write_line_with};
use sapwood_core::entry::proof::{ParentLink, Proof};
use sapwood_core::port::store::{Appended, BODY_BYTES_MAX, Result};
use sapwood_core::{Draft, EntryId, Kind, Record, Seq, StoreError};

use super::audit::PendingAuditLine;
use super::authority_file;
use super::disk::At;
use super::file::{BodyHandle, LineRange, LogFile};
use super::header::{BaseRef, Header};
use super::line_sum::{self, LineState};
use super::sealed_lines;
use crate::Durability;
use crate::mem_log::{
    InMemoryLog, LogRow, PlannedBatch, RowStore, first_not_before, fork_point_at, place_shared, row_at,
    row_of,
};
use crate::proving::{ContentProof, salt_of};
use crate::validate::damaged;

/// Maximum length of a line: a body and its envelope.
const LINE_BYTES_MAX: u64 = BODY_BYTES_MAX as u64 + (64 << 10);

pub struct SessionLog {
    pub log: InMemoryLog<BodyHandle>,
    /// `None` until the session is written to disk (see `PersistFrom`).
    pub disk: Option<OnDisk>,
    pub header: Header,
    pub has_message: bool,
    pub has_answer: bool,
    pub used: u64,
    /// Audit lines that are written once the session is on disk.
    pub deferred: Vec<PendingAuditLine>,
}

pub struct OnDisk {
    pub file: Arc<LogFile>,
    /// All bytes up to this offset have been read and are complete batches.
    pub len: u64,
    pub lines: u64,
    /// Whether the last line lacks a line break, for example after a manual edit.
    lacks_line_break: bool,
    /// Whether this process has appended lines that the file's head does not cover yet.
    pub is_head_due: bool,
}

/// A line and its position in the file.
struct PlacedLine {
    line: EntryLine,
    state: LineState,
    raw: Vec<u8>,
    offset: u64,
}

/// Checks and parses a line. A line with a hash was written with a checksum.
fn parse_line(version: u32, raw: &[u8]) -> std::result::Result<(EntryLine, LineState), String> {
    let state = line_sum::check(raw).map_err(|error| error.to_string())?;
    let line = read_line(version, raw).map_err(|error| error.to_string())?;
    if state == LineState::Unproven && line.proof.is_some() {
        return Err("its checksum is missing".to_owned());
    }
    Ok((line, state))
}

impl SessionLog {
    /// Creates a session that is not on disk.
    pub fn pending(log: InMemoryLog<BodyHandle>) -> Self {
        let header = Header::of(&log.summary, None);
        let (has_message, has_answer) = (log.summary.messages > 0, false);
        // Entries that a fork shares by reference are skipped, so that forking costs the same
        // regardless of their number.
        let first = if log.rows().base().is_some() { log.summary.inherited + 1 } else { 1 };
        let mut session_log =
            Self { log, disk: None, header, has_message, has_answer, used: 0, deferred: Vec::new() };
        session_log.note_kinds(first);
        session_log
    }

    /// Records whether the entries from `first` on include a message or an assistant message.
    fn note_kinds(&mut self, first: u32) {
        for seq in first..=self.log.summary.head.seq.0 {
            let kind = self.log.kind_at(Seq(seq));
            self.has_message |= kind.is_some_and(Kind::is_message);
            self.has_answer |= kind == Some(Kind::AssistantMessage);
        }
    }

    /// Commits a planned batch to a log that is not on disk.
    pub fn commit_pending(&mut self, mut planned: PlannedBatch) -> Appended {
        let first = self.log.summary.head.seq.0 + 1;
        let bodies = std::mem::take(&mut planned.bodies).into_iter();
        let appended = self.log.commit(planned, bodies.map(|body| BodyHandle::Memory(body.into())).collect());
        self.note_kinds(first);
        appended
    }

    /// Reads the batches appended since the last call. Returns the size, in bytes, of an incomplete
    /// batch at the end of the file.
    pub fn catch_up(&mut self, length: u64) -> Result<u64> {
        let Some(disk) = &mut self.disk else { return Ok(0) };
        if length <= disk.len {
            return Ok(0);
        }
        // Read the authority record before the entries: an import writes them in that order.
        self.log.summary.authority = authority_file::read(&authority_file::path_beside(&disk.file.path))?;
        let mut reader = BufReader::new(disk.file.handle()?);
        reader.seek(SeekFrom::Start(disk.len)).at(&disk.file.path)?;
        let mut batch: Vec<PlacedLine> = Vec::new();
        let mut offset = disk.len;
        let mut number = disk.lines;
        while let Some(raw) = next_line(&mut reader, &disk.file)? {
            let (start, is_whole) = (offset, raw.ends_with(b"\n"));
            offset += raw.len() as u64;
            number += 1;
            if raw.trim_ascii().is_empty() && batch.is_empty() && is_whole {
                (disk.len, disk.lines, disk.lacks_line_break) = (offset, number, false);
                continue;
            }
            let (line, state) = match parse_line(self.header.version, &raw) {
                Ok(parsed) => parsed,
                Err(_) if is_torn(&raw, &mut reader, &disk.file, self.header.version)? => break,
                Err(error) => return Err(bad_line(&disk.file, number, &error)),
            };
            let is_last = !line.more;
            batch.push(PlacedLine { line, state, raw, offset: start });
            if is_last {
                commit_batch(
                    &mut self.log,
                    &disk.file,
                    number,
                    self.header.version,
                    std::mem::take(&mut batch),
                )?;
                (disk.len, disk.lines, disk.lacks_line_break) = (offset, number, !is_whole);
            }
        }
        Ok(length - disk.len.min(length))
    }

    /// Appends a planned batch to the file, then commits it to the log.
    pub fn append(&mut self, planned: PlannedBatch, durability: Durability) -> Result<Appended> {
        let Some(disk) = &mut self.disk else { return Ok(self.commit_pending(planned)) };
        let mut bytes = Vec::new();
        if disk.lacks_line_break {
            bytes.push(b'\n');
        }
        let version = (self.header.version != LOG_VERSION).then_some(LOG_VERSION);
        let spans = write_batch(&self.log, &planned, version, &mut bytes);
        disk.file.append(disk.len, &bytes, durability)?;
        let stored = spans.into_iter().map(|LineSpan { start, fields, end }| BodyHandle::Fields {
            line: LineRange {
                file: Arc::clone(&disk.file),
                offset: disk.len + start as u64,
                len: (end - start) as u32,
                state: LineState::Proven,
            },
            fields: (fields - start) as u32,
        });
        let stored = stored.collect();
        disk.is_head_due = true;
        disk.len += bytes.len() as u64;
        disk.lines += planned.batch.len() as u64 + u64::from(disk.lacks_line_break);
        disk.lacks_line_break = false;
        Ok(self.log.commit(planned, stored))
    }

    /// Returns the whole file content of a session that is not on disk yet, including a batch that
    /// is not in the log yet.
    /// Entries without a hash get one.
    pub fn to_file(&self, planned: Option<&PlannedBatch>) -> Result<Vec<u8>> {
        let (mut out, mut proofs) = (Vec::new(), LateProofs::default());
        self.header.write(&mut out);
        let mut keyed: HashMap<EntryId, Extra<'_>> = HashMap::new();
        for (key, answer) in self.log.answers() {
            let entries = &answer.entries;
            let has_more = Extra { more: true, ..Extra::default() };
            keyed.extend(entries.iter().map(|(_, id)| (*id, has_more)));
            let ends = Extra { key: Some(key), request: answer.request.as_deref(), ..Extra::default() };
            keyed.extend(entries.last().map(|(_, id)| (*id, ends)));
        }
        let first = if self.header.base.is_some() { self.header.inherited + 1 } else { 1 };
        for seq in (first..=self.log.summary.head.seq.0).map(Seq) {
            let record = self.log.read_entry(seq)?;
            let parent = record.meta.parent.and_then(|parent| self.log.id_at(parent));
            let proof = Some(proofs.proof_of(self.log.rows(), &record));
            let extra = Extra { proof, ..keyed.get(&record.meta.id).copied().unwrap_or_default() };
            write_sealed(&record, parent, extra, &mut out);
        }
        if let Some(planned) = planned {
            write_batch(&self.log, planned, None, &mut out);
        }
        Ok(out)
    }
}

/// The proofs of entries that had none, by seq.
#[derive(Default)]
pub struct LateProofs(HashMap<Seq, Proof>);

impl LateProofs {
    /// Returns an entry's proof, and computes it if there is none. Parents come before their children.
    pub fn proof_of(&mut self, rows: &Arc<RowStore<BodyHandle>>, record: &Record) -> Proof {
        let stored = row_at(rows, record.meta.seq).and_then(|row| row.proof);
        let proof = stored.unwrap_or_else(|| {
            let above = record.meta.parent.and_then(|parent| row_at(rows, parent).map(|row| (parent, row)));
            let link = above.map_or(ParentLink::Root, |(parent, row)| {
                ParentLink::to(row.meta.id, self.0.get(&parent).or(row.proof.as_ref()))
            });
            let content = ContentProof::of(salt_of(&[], 0), &record.body);
            content.prove(link, &record.meta, LOG_VERSION)
        });
        self.0.insert(record.meta.seq, proof);
        proof
    }
}

/// The position of a line in a buffer, without its line break, and the start of its body's fields.
struct LineSpan {
    start: usize,
    fields: usize,
    end: usize,
}

/// Writes a line with its checksum.
fn write_sealed(record: &Record, parent: Option<EntryId>, extra: Extra<'_>, out: &mut Vec<u8>) -> LineSpan {
    let start = out.len();
    let fields = write_line_with(record, parent, extra, out);
    out.pop();
    line_sum::add(out, start);
    out.push(b'\n');
    LineSpan { start, fields, end: out.len() - 1 }
}

/// Writes the lines of a batch. Returns their positions in `out`.
fn write_batch(
    log: &InMemoryLog<BodyHandle>,
    planned: &PlannedBatch,
    version: Option<u32>,
    out: &mut Vec<u8>,
) -> Vec<LineSpan> {
    let last = planned.batch.len().saturating_sub(1);
    let first = log.summary.head.seq.next();
    let id_of = |seq: Seq| match seq.0.checked_sub(first.0) {
        Some(index) => planned.batch.get(index as usize).map(|placed| placed.entry.meta.id),
        None => log.id_at(seq),
    };
    let mut spans = Vec::with_capacity(planned.batch.len());
    for (index, record) in planned.records().enumerate() {
        let (key, request) = match index == last {
            true => (planned.key.as_deref(), planned.request.as_deref()),
            false => (None, None),
        };
        let extra = Extra { version, key, request, more: index < last, proof: planned.proofs[index] };
        spans.push(write_sealed(&record, record.meta.parent.and_then(id_of), extra, out));
    }
    spans
}

/// Reads one line with its line break, which may be missing at the end of the file. Returns `None`
/// at the end.
fn next_line(reader: &mut impl BufRead, file: &LogFile) -> Result<Option<Vec<u8>>> {
    let mut raw = Vec::new();
    let read = reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut raw).at(&file.path)?;
    if read as u64 == LINE_BYTES_MAX && !raw.ends_with(b"\n") {
        return Err(damaged(file.place(), format!("a line is longer than {LINE_BYTES_MAX} bytes")));
    }
    Ok((read > 0).then_some(raw))
}

/// Returns whether an unreadable line is part of an incomplete append. A last line without its end is
/// torn. Any other bad line is damage, unless it has a hole (zeros, which no valid line contains) and
/// only the rest of one batch follows. A power failure can leave such a hole if later sectors reach
/// the disk before earlier ones.
fn is_torn(raw: &[u8], reader: &mut impl BufRead, file: &LogFile, version: u32) -> Result<bool> {
    // The line was at the end of the file when it was read; its writer may have finished since.
    if !raw.ends_with(b"\n") {
        return Ok(sealed_lines::is_torn(raw, true));
    }
    if !sealed_lines::has_hole(raw) {
        return Ok(false);
    }
    let mut is_over = false;
    while let Some(next) = next_line(reader, file)? {
        if is_over {
            return Ok(false);
        }
        is_over = match read_line(version, &next) {
            Ok(line) => !line.more,
            Err(_) => !sealed_lines::has_hole(&next),
        };
    }
    Ok(true)
}

fn bad_line(file: &LogFile, number: u64, what: impl ToString) -> StoreError {
    damaged(format!("{}:{number}", file.place()), what)
}

/// Adds a batch that was read from the file to the log. Fails if a seq or parent is wrong.
fn commit_batch(
    log: &mut InMemoryLog<BodyHandle>,
    file: &Arc<LogFile>,
    last_number: u64,
    version: u32,
    batch: Vec<PlacedLine>,
) -> Result<()> {
    let first_number = last_number + 1 - batch.len() as u64;
    let owner = log.summary.owner.clone();
    let drafts: Vec<Draft> = batch.iter().map(|placed| placed.line.clone().into_draft()).collect();
    let mut planned =
        log.place(drafts, &owner, |_| true).map_err(|error| bad_line(file, first_number, error))?;
    let last = batch.last().map(|placed| &placed.line);
    planned.key = last.and_then(|line| line.key.clone());
    planned.request = last.and_then(|line| line.request.clone());
    planned.proofs = batch.iter().map(|placed| placed.line.proof).collect();
    let mut stored = Vec::with_capacity(batch.len());
    for (index, (placed, record)) in batch.iter().zip(planned.records()).enumerate() {
        let number = first_number + index as u64;
        if placed.line.seq.is_some_and(|seq| seq != record.meta.seq) {
            let (found, expected) = (placed.line.seq.unwrap_or_default(), record.meta.seq);
            return Err(bad_line(
                file,
                number,
                format!("the entry's seq is {found}, expected {expected} (I1)"),
            ));
        }
        let parent = record.meta.parent.and_then(|seq| {
            let in_batch = planned.batch.iter().find(|placed| placed.entry.meta.seq == seq);
            in_batch.map(|placed| placed.entry.meta.id).or_else(|| log.id_at(seq))
        });
        if placed.line.parent_id != parent {
            return Err(bad_line(file, number, "the entry's parent is not the leaf it was written at (I2)"));
        }
        stored.push(handle_of(file, placed, &record, version));
    }
    log.commit(planned, stored);
    Ok(())
}

/// Returns the location of a line's body: the range of its body fields if this version would write
/// the same line, else the whole line.
fn handle_of(file: &Arc<LogFile>, placed: &PlacedLine, record: &Record, version: u32) -> BodyHandle {
    let mut written = Vec::with_capacity(placed.raw.len());
    let EntryLine { key, request, more, proof, .. } = &placed.line;
    let (key, request) = (key.as_deref(), request.as_deref());
    let extra = Extra { version: None, key, request, more: *more, proof: *proof };
    let fields = match placed.state {
        LineState::Proven => write_sealed(record, placed.line.parent_id, extra, &mut written).fields,
        LineState::Unproven => write_line_with(record, placed.line.parent_id, extra, &mut written),
    };
    let is_same = written == placed.raw && version == LOG_VERSION;
    let len = placed.raw.len() - usize::from(placed.raw.ends_with(b"\n"));
    let (file, offset, state) = (Arc::clone(file), placed.offset, placed.state);
    let line = LineRange { file, offset, len: len as u32, state };
    match is_same {
        true => BodyHandle::Fields { line, fields: fields as u32 },
        false => BodyHandle::Line { line, version },
    }
}

/// An open session file whose header has been read.
pub struct OpenedLog {
    pub file: Arc<LogFile>,
    pub header: Header,
    header_len: u64,
}

impl OpenedLog {
    pub fn read(file: LogFile) -> Result<Self> {
        let mut reader = BufReader::new(file.handle()?);
        reader.seek(SeekFrom::Start(0)).at(&file.path)?;
        let raw = next_line(&mut reader, &file)?.unwrap_or_default();
        let header = Header::read(&file.place(), &raw)?;
        Ok(Self { file: Arc::new(file), header, header_len: raw.len() as u64 })
    }

    /// Reads the session up to its last complete batch. `base` is the row store of the session that
    /// it was forked from. Also returns the size of an incomplete batch at the end.
    pub fn into_session_log(self, base: Option<Arc<RowStore<BodyHandle>>>) -> Result<(SessionLog, u64)> {
        let rows = Arc::new(self.empty_rows(base)?);
        let (mut len, mut lines) = (self.header_len, 1);
        if self.header.base.is_none() && self.header.inherited > 0 {
            (len, lines) = self.read_kept(&rows, Some(self.header.inherited))?;
        }
        let inherited = Seq(self.header.inherited);
        let point = (inherited.0 > 0).then(|| fork_point_at(&rows, inherited)).transpose();
        let point = point.map_err(|error| damaged(self.file.place(), error))?;
        let mut log = InMemoryLog::new(self.header.summary(point), rows);
        log.summary.authority = authority_file::read(&authority_file::path_beside(&self.file.path))?;
        let disk = OnDisk { file: self.file, len, lines, lacks_line_break: false, is_head_due: false };
        let length = disk.file.file().metadata().at(&disk.file.path)?.len();
        let mut session_log = SessionLog {
            log,
            disk: Some(disk),
            header: self.header,
            has_message: true,
            has_answer: true,
            used: 0,
            deferred: Vec::new(),
        };
        let torn = session_log.catch_up(length)?;
        Ok((session_log, torn))
    }

    /// Reads the retained entries of an erased session.
    pub fn into_erased(self, base: Option<Arc<RowStore<BodyHandle>>>) -> Result<Arc<RowStore<BodyHandle>>> {
        let rows = Arc::new(self.empty_rows(base)?);
        self.read_kept(&rows, None)?;
        Ok(rows)
    }

    fn empty_rows(&self, base: Option<Arc<RowStore<BodyHandle>>>) -> Result<RowStore<BodyHandle>> {
        match (&self.header.base, base) {
            (None, _) => Ok(RowStore::whole(self.header.inherited)),
            (Some(BaseRef { seq, .. }), Some(rows)) => {
                Ok(RowStore::forked(crate::mem_log::ForkBase { rows, at: *seq }, self.header.inherited))
            }
            (Some(BaseRef { file, .. }), None) => {
                Err(damaged(self.file.place(), format!("it is a fork of {file}, which does not exist")))
            }
        }
    }

    /// Reads `count` entries, or all, that were retained for forks or copied into a fork. Returns the
    /// offset of the next line and the number of lines before it.
    fn read_kept(&self, rows: &Arc<RowStore<BodyHandle>>, count: Option<u32>) -> Result<(u64, u64)> {
        let mut reader = BufReader::new(self.file.handle()?);
        reader.seek(SeekFrom::Start(self.header_len)).at(&self.file.path)?;
        let mut ids: HashMap<EntryId, Seq> = HashMap::new();
        let (mut offset, mut number) = (self.header_len, 1);
        while count.is_none_or(|count| ids.len() < count as usize) {
            let Some(raw) = next_line(&mut reader, &self.file)? else { break };
            number += 1;
            let start = offset;
            offset += raw.len() as u64;
            let (line, state) =
                parse_line(self.header.version, &raw).map_err(|error| bad_line(&self.file, number, error))?;
            let shared = |id: EntryId| first_not_before(rows, Seq(self.header.inherited), id);
            let parent = line.parent_id.map(|id| ids.get(&id).copied().unwrap_or_else(|| shared(id)));
            let seq = line.seq.unwrap_or(Seq(ids.len() as u32 + 1));
            let bad = |error: StoreError| bad_line(&self.file, number, error);
            let kept = place_shared(rows, line.clone().into_draft(), seq, parent).map_err(bad)?;
            ids.insert(line.id, seq);
            let (record, proof) = (kept.entry.to_record(), line.proof);
            let placed = PlacedLine { line, state, raw, offset: start };
            let body = handle_of(&self.file, &placed, &record, self.header.version);
            rows.push(LogRow { proof, ..row_of(kept, body) });
        }
        match count {
            Some(count) if ids.len() < count as usize => Err(damaged(
                self.file.place(),
                format!("only {} of its first {count} entries exist", ids.len()),
            )),
            _ => Ok((offset, number)),
        }
    }
}

/// Returns the file content of an erased session: its header without personal data, and the entries
/// that forks need.
pub fn erased_file(header: &Header, kept: &[KeptEntry]) -> Vec<u8> {
    let mut out = Vec::new();
    header.erased().write(&mut out);
    for KeptEntry { record, parent, proof } in kept {
        write_sealed(record, *parent, Extra { proof: *proof, ..Extra::default() }, &mut out);
    }
    out
}

/// An entry of an erased session that a fork needs.
pub struct KeptEntry {
    pub record: Record,
    pub parent: Option<EntryId>,
    pub proof: Option<Proof>,
}
