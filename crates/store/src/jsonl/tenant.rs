//! One tenant's directory: its sessions, and a cache of the sessions that have been read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::{Arc, Weak};

use sapwood_core::port::store::{Finding, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Right, Scope, Seq, SessionId, StoreError};

use super::JsonlOptions;
use super::audit::{self, PendingAuditLine};
use super::disk::{self, At, LockKind, io_error};
use super::file::{BodyHandle, LogFile};
use super::header::Header;
use super::index::Index;
use super::layout::{Layout, id_of_stem};
use super::session_log::{OpenedLog, SessionLog};
use super::{blob, head_file};
use crate::authorize::authorize;
use crate::lease::LeaseClock;
use crate::mem_log::RowStore;
use crate::permissions;
use crate::validate::damaged;

/// Maximum numbers of cached sessions, on disk and pending. Evicted sessions on disk are read again.
/// Evicted pending sessions, which are not written yet, are lost.
const OPEN_LOGS_MAX: usize = 256;
const PENDING_MAX: usize = 4_096;
/// Maximum depth of nested forks, each of which needs an open file. A deeper fork copies its shared
/// entries.
pub const FORK_DEPTH_MAX: usize = 64;
/// Maximum number of stored warnings. Further warnings are dropped.
const WARNINGS_MAX: usize = 1_000;

pub struct TenantDir {
    pub layout: Layout,
    pub options: JsonlOptions,
    pub lease_clock: Arc<dyn LeaseClock>,
    pub open_logs: HashMap<SessionId, SessionLog>,
    pub index: Index,
    pub verified_blobs: blob::VerifiedBlobs,
    pub warnings: Vec<Finding>,
    /// The sessions that the last list or search left out, by file.
    pub unreadable: BTreeMap<String, Finding>,
    erased: HashMap<String, Weak<RowStore<BodyHandle>>>,
    stems: HashMap<SessionId, String>,
    lock_file: Option<Arc<File>>,
    /// Whether this process has written audit lines that the file's head does not cover yet.
    is_audit_head_due: bool,
    uses: u64,
}

impl TenantDir {
    pub fn new(layout: Layout, options: JsonlOptions, lease_clock: Arc<dyn LeaseClock>) -> Self {
        blob::sweep(&layout);
        Self {
            layout,
            options,
            lease_clock,
            open_logs: HashMap::new(),
            index: Index::default(),
            verified_blobs: blob::VerifiedBlobs::default(),
            warnings: Vec::new(),
            unreadable: BTreeMap::new(),
            erased: HashMap::new(),
            stems: HashMap::new(),
            lock_file: None,
            is_audit_head_due: false,
            uses: 0,
        }
    }

    /// Returns the file whose lock protects the directory: shared for appends, exclusive for
    /// creating and removing files.
    pub fn lock_file(&mut self) -> Result<Arc<File>> {
        if let Some(file) = &self.lock_file {
            return Ok(Arc::clone(file));
        }
        permissions::create_dir(&self.layout.dir).at(&self.layout.dir)?;
        let file = Arc::new(disk::open_to_append(&self.layout.lock())?);
        self.lock_file = Some(Arc::clone(&file));
        Ok(file)
    }

    pub fn warn(&mut self, rule: &'static str, place: String, what: String) {
        let finding = Finding { rule, place, what, repaired: false };
        if self.warnings.len() < WARNINGS_MAX && !self.warnings.contains(&finding) {
            self.warnings.push(finding);
        }
    }

    /// Returns the name without extension and the length of every session file.
    pub fn scan(&mut self) -> Result<Vec<(String, u64)>> {
        let entries = match fs::read_dir(&self.layout.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(io_error(&self.layout.dir, source)),
        };
        let mut found = Vec::new();
        self.stems.clear();
        for entry in entries {
            let entry = entry.at(&self.layout.dir)?;
            let name = entry.file_name();
            let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) else { continue };
            let Some(id) = id_of_stem(stem) else { continue };
            // The file was removed in the meantime.
            let Ok(metadata) = entry.metadata() else { continue };
            self.stems.insert(id, stem.to_owned());
            found.push((stem.to_owned(), metadata.len()));
        }
        found.sort();
        Ok(found)
    }

    fn find_stem(&mut self, session: &SessionId) -> Result<Option<String>> {
        if let Some(stem) = self.stems.get(session).filter(|stem| self.layout.log(stem).exists()) {
            return Ok(Some(stem.clone()));
        }
        self.scan()?;
        Ok(self.stems.get(session).cloned())
    }

    /// Returns whether the id is taken, even if the caller may not see the session.
    pub fn exists(&mut self, session: &SessionId) -> Result<bool> {
        Ok(self.open_logs.get(session).is_some_and(|session_log| session_log.disk.is_none())
            || self.find_stem(session)?.is_some())
    }

    /// Returns the current state of the session, including entries that other processes appended.
    pub fn open(&mut self, session: &SessionId) -> Result<&mut SessionLog> {
        self.uses += 1;
        let is_current = match self.open_logs.get_mut(session) {
            Some(session_log) => refresh(session_log)?,
            None => false,
        };
        if !is_current {
            self.open_logs.remove(session);
            let missing = || StoreError::NoSession { session: session.clone() };
            let stem = self.find_stem(session)?.ok_or_else(missing)?;
            let session_log = self.load(&stem, 0)?.ok_or_else(missing)?;
            self.evict_excess();
            self.open_logs.insert(session.clone(), session_log);
        }
        let used = self.uses;
        let session_log = self
            .open_logs
            .get_mut(session)
            .ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        session_log.used = used;
        Ok(session_log)
    }

    /// Opens a session for which this caller has the given right.
    pub fn open_for(&mut self, scope: &Scope, session: &SessionId, right: Right) -> Result<&mut SessionLog> {
        let session_log = self.open(session)?;
        authorize(scope, &session_log.log.summary, right)?;
        Ok(session_log)
    }

    /// Adds a session that is not on disk to the cache.
    pub fn insert_pending(&mut self, mut session_log: SessionLog) {
        self.uses += 1;
        session_log.used = self.uses;
        self.evict_excess();
        self.open_logs.insert(session_log.log.summary.id.clone(), session_log);
    }

    /// Evicts the least recently used sessions, so that one more session fits into the limits.
    fn evict_excess(&mut self) {
        for (is_pending, most) in [(false, OPEN_LOGS_MAX), (true, PENDING_MAX)] {
            let of_kind =
                self.open_logs.iter().filter(|(_, session_log)| session_log.disk.is_none() == is_pending);
            let mut uses: Vec<(u64, SessionId)> =
                of_kind.map(|(id, session_log)| (session_log.used, id.clone())).collect();
            if uses.len() < most {
                continue;
            }
            uses.sort();
            for (_, id) in uses.iter().take(uses.len() + 1 - most) {
                if let Some(evicted) = self.open_logs.remove(id) {
                    self.write_head(&evicted);
                }
            }
        }
    }

    /// Records the ends of the files that this process has written to.
    pub fn write_heads(&mut self) {
        for session_log in self.open_logs.values() {
            self.write_head(session_log);
        }
        for disk in self.open_logs.values_mut().filter_map(|session_log| session_log.disk.as_mut()) {
            disk.is_head_due = false;
        }
        if std::mem::take(&mut self.is_audit_head_due) {
            audit::write_head(&self.layout, self.options.durability, &self.lease_clock.read().boot);
        }
    }

    fn write_head(&self, session_log: &SessionLog) {
        let Some(disk) = session_log.disk.as_ref().filter(|disk| disk.is_head_due) else { return };
        // The session may have been erased, or its file replaced.
        let (Ok(Some(_)), Ok(handle)) = (disk.file.length_if_current(), disk.file.handle()) else { return };
        let boot = self.lease_clock.read().boot;
        head_file::write(&disk.file.path, &handle, disk.len, self.options.durability, &boot);
    }

    pub fn write_audit_lines(&mut self, lines: Vec<PendingAuditLine>) -> Result<()> {
        self.is_audit_head_due |= !lines.is_empty();
        audit::write_lines(&self.layout, lines, self.options.durability)
    }

    fn leave_out(&mut self, stem: &str, rule: &'static str, place: String, what: String) {
        let finding = Finding { rule, place: place.clone(), what: what.clone(), repaired: false };
        self.unreadable.insert(stem.to_owned(), finding);
        self.warn(rule, place, what);
    }

    /// Reads a session's file. Returns `None` if it does not exist.
    pub fn load(&mut self, stem: &str, depth: usize) -> Result<Option<SessionLog>> {
        let head = head_file::read(&self.layout.log(stem), &self.lease_clock.read().boot)?;
        let Some(file) = LogFile::open(self.layout.log(stem), stem)? else { return Ok(None) };
        let opened = OpenedLog::read(file)?;
        if id_of_stem(stem).as_ref() != Some(&opened.header.id) || opened.header.erased {
            return Err(damaged(
                format!("{}:1", opened.file.place()),
                "the header belongs to another session",
            ));
        }
        let base = self.base_of(&opened.header, depth)?;
        let (mut session_log, torn) = opened.into_session_log(base)?;
        if let Some(disk) = &session_log.disk {
            head_file::check(head.as_ref(), &disk.file.path, &disk.file.handle()?, disk.len)?;
        }
        if torn > 0 {
            self.cut_torn_if_unlocked(&mut session_log)?;
        }
        Ok(Some(session_log))
    }

    /// Returns the row store that a fork is based on.
    fn base_of(&mut self, header: &Header, depth: usize) -> Result<Option<Arc<RowStore<BodyHandle>>>> {
        let Some(base) = &header.base else { return Ok(None) };
        if depth > FORK_DEPTH_MAX {
            let what =
                format!("it is a fork nested more than {FORK_DEPTH_MAX} levels deep, or a fork of itself");
            return Err(damaged(self.layout.log(&base.file).display(), what));
        }
        self.rows_of(&base.file, base.seq, depth + 1)
    }

    /// Returns the rows of a file, live or erased, at least up to `seq`.
    pub fn rows_of(
        &mut self,
        stem: &str,
        seq: Seq,
        depth: usize,
    ) -> Result<Option<Arc<RowStore<BodyHandle>>>> {
        let id = id_of_stem(stem).ok_or_else(|| damaged(stem, "it is not a valid session file name"))?;
        let is_this_file =
            |session_log: &SessionLog| session_log.disk.as_ref().is_some_and(|disk| disk.file.stem == stem);
        if let Some(session_log) = self.open_logs.get_mut(&id).filter(|session_log| is_this_file(session_log))
            && (session_log.log.summary.head.seq >= seq || refresh(session_log)?)
        {
            return Ok(Some(Arc::clone(session_log.log.rows())));
        }
        if let Some(rows) = self.erased.get(stem).and_then(Weak::upgrade) {
            return Ok(Some(rows));
        }
        if let Some(session_log) = self.load(stem, depth)? {
            let rows = Arc::clone(session_log.log.rows());
            self.open_logs.insert(id, session_log);
            return Ok(Some(rows));
        }
        let Some(file) = LogFile::open(self.layout.erased(stem), stem)? else { return Ok(None) };
        let opened = OpenedLog::read(file)?;
        let base = self.base_of(&opened.header, depth)?;
        let rows = opened.into_erased(base)?;
        self.erased.insert(stem.to_owned(), Arc::downgrade(&rows));
        Ok(Some(rows))
    }

    /// Cuts off an incomplete batch, unless another process is still writing it.
    fn cut_torn_if_unlocked(&mut self, session_log: &mut SessionLog) -> Result<()> {
        let Some(file) = session_log.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else { return Ok(()) };
        let handle = file.handle()?;
        let Some(_locked) = disk::try_lock(&handle, LockKind::Exclusive, &file.path)? else { return Ok(()) };
        self.cut_torn(session_log)
    }

    /// Reads to the end of the file and cuts off an incomplete batch. The caller holds the log's
    /// lock.
    pub fn cut_torn(&mut self, session_log: &mut SessionLog) -> Result<()> {
        let Some(file) = session_log.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else { return Ok(()) };
        let length = file.file().metadata().at(&file.path)?.len();
        if session_log.catch_up(length)? == 0 {
            return Ok(());
        }
        let end = session_log.disk.as_ref().map_or(0, |disk| disk.len);
        let torn = self.layout.torn(&file.stem);
        match file.cut(end, &torn, self.options.durability) {
            Ok(bytes) => {
                let what = format!("{bytes} bytes of an unfinished append were moved to {}", torn.display());
                self.warn("torn", file.place(), what);
                Ok(())
            }
            Err(StoreError::ReadOnly { .. }) => {
                self.warn(
                    "torn",
                    file.place(),
                    "its last append is incomplete, and the file is read-only".to_owned(),
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns every session's summary: from memory, from the index, or from its log. An unreadable
    /// log is left out and reported as a warning.
    pub fn summaries(&mut self) -> Result<Vec<Summary>> {
        self.index.load(&self.layout)?;
        self.unreadable.clear();
        let pending = self.open_logs.values().filter(|session_log| session_log.disk.is_none());
        let mut summaries: Vec<Summary> =
            pending.map(|session_log| session_log.log.summary.clone()).collect();
        for (stem, len) in self.scan()? {
            if let Some(summary) = self.summary_of(&stem, len)? {
                summaries.push(summary);
            }
        }
        if self.index.has_unsaved()
            && let Ok(lock_file) = self.lock_file()
            && let Ok(Some(_locked)) = disk::try_lock(&lock_file, LockKind::Shared, &self.layout.lock())
        {
            // The index is only a cache, so a read-only directory can still be listed.
            let _ = self.index.save(&self.layout);
        }
        Ok(summaries)
    }

    fn summary_of(&mut self, stem: &str, len: u64) -> Result<Option<Summary>> {
        let Some(id) = id_of_stem(stem) else { return Ok(None) };
        let is_read = |session_log: &&SessionLog| {
            session_log.disk.as_ref().is_some_and(|disk| disk.file.stem == stem && disk.len == len)
        };
        if let Some(session_log) = self.open_logs.get(&id).filter(is_read) {
            self.index.put(stem, len, &session_log.log.summary);
            return Ok(Some(session_log.log.summary.clone()));
        }
        if let Some(summary) = self.index.get(stem, len) {
            return Ok(Some(summary.clone()));
        }
        match self.open(&id) {
            Ok(session_log) => {
                let (summary, len) =
                    (session_log.log.summary.clone(), session_log.disk.as_ref().map_or(0, |disk| disk.len));
                self.index.put(stem, len, &summary);
                Ok(Some(summary))
            }
            Err(StoreError::NoSession { .. }) => Ok(None),
            Err(StoreError::Damaged { place, what }) => {
                self.leave_out(stem, "damaged", place, what);
                Ok(None)
            }
            Err(StoreError::TooNew { place, .. }) => {
                self.leave_out(stem, "too_new", place, "it was written by a newer Sapwood".to_owned());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Calls `visit` with every session. Returns whether all sessions were readable.
    pub fn for_each(&mut self, mut visit: impl FnMut(&mut SessionLog) -> Result<()>) -> Result<bool> {
        let mut all_read = true;
        self.unreadable.clear();
        for id in self.ids()? {
            match self.open(&id) {
                Ok(session_log) => visit(session_log)?,
                Err(StoreError::NoSession { .. }) => {}
                Err(StoreError::Damaged { place, what }) => {
                    all_read = false;
                    self.leave_out(id.as_str(), "damaged", place, what);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all_read)
    }

    /// Returns whether the blob exists and the caller is an operator, uploaded it, or may read a session
    /// that refers to it. Otherwise the blob must be reported as unknown (I9).
    pub fn may_use(&mut self, scope: &Scope, hash: &BlobHash) -> Result<bool> {
        if !blob::exists(&self.layout, hash) {
            return Ok(false);
        }
        if scope.reach == Reach::Tenant || blob::was_put_by(&self.layout, hash, &scope.principal)? {
            return Ok(true);
        }
        let mut is_visible = false;
        self.for_each(|session_log| {
            is_visible |= authorize(scope, &session_log.log.summary, Right::Read).is_ok()
                && session_log.log.refers_to(hash);
            Ok(())
        })?;
        Ok(is_visible)
    }

    pub fn check_use(&mut self, scope: &Scope, hash: &BlobHash) -> Result<()> {
        match self.may_use(scope, hash)? {
            true => Ok(()),
            false => Err(StoreError::NoBlob { blob: *hash }),
        }
    }

    pub fn ids(&mut self) -> Result<BTreeSet<SessionId>> {
        let pending = self.open_logs.iter().filter(|(_, session_log)| session_log.disk.is_none());
        let mut ids: BTreeSet<SessionId> = pending.map(|(id, _)| id.clone()).collect();
        self.scan()?;
        ids.extend(self.stems.keys().cloned());
        Ok(ids)
    }

    /// Evicts all sessions that were read from files.
    pub fn evict_read(&mut self) {
        self.write_heads();
        self.open_logs.retain(|_, session_log| session_log.disk.is_none());
        self.erased.clear();
    }
}

/// Reads new entries. Returns false if the file was replaced or truncated.
fn refresh(session_log: &mut SessionLog) -> Result<bool> {
    let Some(disk) = &session_log.disk else { return Ok(true) };
    match disk.file.length_if_current()? {
        Some(length) if length >= disk.len => {
            session_log.catch_up(length)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
