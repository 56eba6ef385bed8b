//! Erases a session: deletes its files. Entries that forks need are retained in a file that cannot
//! be opened as a session.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use sapwood_core::entry::{LOG_VERSION, Record};
use sapwood_core::port::store::{AuditAction, Result};
use sapwood_core::{BlobHash, Right, Scope, Seq, SessionId, TimestampMs};

use super::audit::PendingAuditLine;
use super::blob;
use super::disk::{self, At, LockKind, io_error, replace, sync_dir};
use super::file::{BodyHandle, LogFile};
use super::header::Header;
use super::session_log::{KeptEntry, OpenedLog, erased_file};
use super::tenant::TenantDir;
use super::{head_file, repair};
use crate::mem_log::{PathWalk, RowStore, StoredBody, row_at};
use crate::validate::{damaged, session_note};

/// A session whose files are to be deleted, except for the entries that forks need.
struct SessionToErase {
    stem: String,
    header: Header,
    rows: Arc<RowStore<BodyHandle>>,
}

impl TenantDir {
    pub fn erase(&mut self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
        self.open_for(scope, session, Right::Own)?;
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let session_log = self.open_for(scope, session, Right::Own)?;
        let mut lines = std::mem::take(&mut session_log.deferred);
        let (header, rows) = (session_log.header.clone(), Arc::clone(session_log.log.rows()));
        let stem = session_log.disk.as_ref().map(|disk| disk.file.stem.clone());
        let mut blobs: BTreeSet<BlobHash> = BTreeSet::new();
        match stem {
            Some(stem) => self.erase_files(SessionToErase { stem, header, rows }, &mut blobs)?,
            None => blobs.extend(rows.own_blobs()),
        }
        self.open_logs.remove(session);
        self.evict_read();
        self.collect_blobs(&blobs)?;
        self.erase_memories(session)?;
        let note = session_note(AuditAction::Erase, session);
        lines.push(PendingAuditLine::of(scope, note, now));
        self.write_audit_lines(lines)
    }

    /// Deletes a session's files. If the session is a fork of an erased session, also deletes the
    /// retained entries of that session that no other fork needs.
    fn erase_files(&mut self, first: SessionToErase, blobs: &mut BTreeSet<BlobHash>) -> Result<()> {
        let mut next = Some(first);
        while let Some(SessionToErase { stem, header, rows }) = next.take() {
            blobs.extend(rows.own_blobs());
            let needed = self.needed_by_forks(&stem, &header, &rows)?;
            if needed.is_empty() {
                disk::remove(&self.layout.erased(&stem))?;
            } else {
                let kept = read_kept(&rows, &needed)?;
                replace(&self.layout.erased(&stem), &erased_file(&header, &kept), self.options.durability)?;
            }
            let layout = &self.layout;
            let log = layout.log(&stem);
            let beside = [head_file::path_beside(&log), repair::path_of_damage(&log)];
            for path in
                [layout.torn(&stem), layout.lease(&stem), layout.authority(&stem)].iter().chain(&beside)
            {
                disk::remove(path)?;
            }
            disk::remove(&log)?;
            sync_dir(&self.layout.log(&stem), self.options.durability)?;
            // The index also contains some of the session's content.
            self.index.load(&self.layout)?;
            self.index.remove(&stem);
            self.index.rewrite(&self.layout)?;
            let base = header.base.filter(|_| needed.is_empty());
            next = base.map(|base| self.read_erased(&base.file)).transpose()?.flatten();
        }
        Ok(())
    }

    /// Reads the retained entries of an erased session. Returns `None` if the session is not erased.
    fn read_erased(&mut self, stem: &str) -> Result<Option<SessionToErase>> {
        if self.layout.log(stem).exists() {
            return Ok(None);
        }
        let Some(file) = LogFile::open(self.layout.erased(stem), stem)? else { return Ok(None) };
        let header = OpenedLog::read(file)?.header;
        let rows = self.rows_of(stem, Seq::ZERO, 0)?;
        Ok(rows.map(|rows| SessionToErase { stem: stem.to_owned(), header, rows }))
    }

    /// Returns the file's own entries that are on the path to a fork point.
    fn needed_by_forks(
        &self,
        stem: &str,
        header: &Header,
        rows: &Arc<RowStore<BodyHandle>>,
    ) -> Result<BTreeSet<Seq>> {
        let first = if header.base.is_some() { header.inherited } else { 0 };
        let mut needed = BTreeSet::new();
        for at in self.fork_points(stem)? {
            for (seq, _) in PathWalk::from(rows, Some(at)) {
                if seq.0 <= first || !needed.insert(seq) {
                    break;
                }
            }
        }
        Ok(needed)
    }

    /// Returns the seqs at which other files fork from this file.
    fn fork_points(&self, stem: &str) -> Result<Vec<Seq>> {
        let mut points = Vec::new();
        let entries = match fs::read_dir(&self.layout.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(points),
            Err(source) => return Err(io_error(&self.layout.dir, source)),
        };
        for entry in entries {
            let path = entry.at(&self.layout.dir)?.path();
            let (Some(name), Some(ending)) = (path.file_stem(), path.extension()) else { continue };
            let is_log = ending == "jsonl" || ending == "erased";
            let Some(name) = name.to_str().filter(|name| is_log && super::layout::id_of_stem(name).is_some())
            else {
                continue;
            };
            let Some(file) = LogFile::open(path.clone(), name)? else { continue };
            let header = OpenedLog::read(file)?.header;
            points.extend(header.base.filter(|base| base.file == stem).map(|base| base.seq));
        }
        Ok(points)
    }

    /// Deletes the given blobs unless a session refers to them.
    fn collect_blobs(&mut self, blobs: &BTreeSet<BlobHash>) -> Result<()> {
        let mut unused: BTreeSet<BlobHash> = blobs.clone();
        if unused.is_empty() {
            return Ok(());
        }
        let all_read = self.for_each(|session_log| {
            unused.retain(|blob| !session_log.log.refers_to(blob));
            Ok(())
        })?;
        if !all_read {
            // The references of an unreadable log are unknown, so nothing is deleted, and a warning
            // is recorded.
            let what =
                "blobs of an erased session were kept because another session's log is damaged".to_owned();
            self.warn("blobs", self.layout.blobs().display().to_string(), what);
            return Ok(());
        }
        unused.iter().try_for_each(|blob| blob::remove(&self.layout, blob))
    }
}

/// Reads the entries to retain.
pub fn read_kept(rows: &Arc<RowStore<BodyHandle>>, needed: &BTreeSet<Seq>) -> Result<Vec<KeptEntry>> {
    let mut kept = Vec::with_capacity(needed.len());
    for seq in needed {
        let row =
            row_at(rows, *seq).ok_or_else(|| damaged("an erased session", format!("no entry {seq}")))?;
        let parent = row.meta.parent.and_then(|parent| row_at(rows, parent)).map(|row| row.meta.id);
        let body = row.body.load(row.meta.kind)?;
        let record = Record { meta: row.meta.clone(), version: LOG_VERSION, body };
        kept.push(KeptEntry { record, parent, proof: row.proof });
    }
    Ok(kept)
}
