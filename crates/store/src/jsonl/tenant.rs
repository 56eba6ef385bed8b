//! One tenant's directory: the sessions in it, and the cache of those that have been read.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::{Arc, Weak};

use sapwood_core::port::store::{Finding, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Right, Scope, Seq, SessionId, StoreError};

use super::JsonlOptions;
use super::blob;
use super::disk::{self, At, LockKind, io_error};
use super::file::{Handle, LogFile};
use super::header::Header;
use super::index::Index;
use super::layout::{Layout, id_of_stem};
use super::session_log::{Opened, SessionLog};
use crate::authorize::authorize;
use crate::lease::LeaseClock;
use crate::mem_log::RowStore;
use crate::permissions;
use crate::validate::damaged;

/// Sessions kept in memory. Evicted sessions on disk are read again; pending sessions, which are
/// not yet written, are lost.
const BOOKS_MAX: usize = 256;
const PENDING_MAX: usize = 4_096;
/// Maximum depth of nested forks, each of which needs an open file. A deeper fork copies its shared
/// entries.
pub const FORKS_DEEP_MAX: usize = 64;
/// Maximum number of warnings kept until the caller reads them.
const WARNINGS_MAX: usize = 1_000;

pub struct TenantDir {
    pub layout: Layout,
    pub options: JsonlOptions,
    pub lease_clock: Arc<dyn LeaseClock>,
    pub books: HashMap<SessionId, SessionLog>,
    pub index: Index,
    pub sound: blob::Sound,
    pub warnings: Vec<Finding>,
    erased: HashMap<String, Weak<RowStore<Handle>>>,
    stems: HashMap<SessionId, String>,
    lock_file: Option<Arc<File>>,
    uses: u64,
}

impl TenantDir {
    pub fn new(layout: Layout, options: JsonlOptions, lease_clock: Arc<dyn LeaseClock>) -> Self {
        blob::sweep(&layout);
        Self {
            layout,
            options,
            lease_clock,
            books: HashMap::new(),
            index: Index::default(),
            sound: blob::Sound::default(),
            warnings: Vec::new(),
            erased: HashMap::new(),
            stems: HashMap::new(),
            lock_file: None,
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
        Ok(self.books.get(session).is_some_and(|book| book.disk.is_none())
            || self.find_stem(session)?.is_some())
    }

    /// Returns the current state of the session, including entries that other processes appended.
    pub fn open(&mut self, session: &SessionId) -> Result<&mut SessionLog> {
        self.uses += 1;
        let is_current = match self.books.get_mut(session) {
            Some(book) => refresh(book)?,
            None => false,
        };
        if !is_current {
            self.books.remove(session);
            let missing = || StoreError::NoSession { session: session.clone() };
            let stem = self.find_stem(session)?.ok_or_else(missing)?;
            let book = self.load(&stem, 0)?.ok_or_else(missing)?;
            self.make_room();
            self.books.insert(session.clone(), book);
        }
        let used = self.uses;
        let book =
            self.books.get_mut(session).ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        book.used = used;
        Ok(book)
    }

    /// Opens a session for which this caller has the given right.
    pub fn open_for(&mut self, scope: &Scope, session: &SessionId, right: Right) -> Result<&mut SessionLog> {
        let book = self.open(session)?;
        authorize(scope, &book.log.summary, right)?;
        Ok(book)
    }

    /// Stores a session that is not on disk.
    pub fn insert_pending(&mut self, mut book: SessionLog) {
        self.uses += 1;
        book.used = self.uses;
        self.make_room();
        self.books.insert(book.log.summary.id.clone(), book);
    }

    /// Evicts the least recently used sessions above the limit.
    fn make_room(&mut self) {
        for (is_pending, most) in [(false, BOOKS_MAX), (true, PENDING_MAX)] {
            let of_kind = self.books.iter().filter(|(_, book)| book.disk.is_none() == is_pending);
            let mut uses: Vec<(u64, SessionId)> = of_kind.map(|(id, book)| (book.used, id.clone())).collect();
            if uses.len() < most {
                continue;
            }
            uses.sort();
            for (_, id) in uses.iter().take(uses.len() + 1 - most) {
                self.books.remove(id);
            }
        }
    }

    /// Reads a session's file. Returns `None` if it does not exist.
    pub fn load(&mut self, stem: &str, depth: usize) -> Result<Option<SessionLog>> {
        let Some(file) = LogFile::open(self.layout.log(stem), stem)? else { return Ok(None) };
        let opened = Opened::read(file)?;
        if id_of_stem(stem).as_ref() != Some(&opened.header.id) || opened.header.erased {
            return Err(damaged(
                format!("{}:1", opened.file.place()),
                "the header belongs to another session",
            ));
        }
        let base = self.base_of(&opened.header, depth)?;
        let (mut book, torn) = opened.into_book(base)?;
        if torn > 0 {
            self.cut_if_free(&mut book)?;
        }
        Ok(Some(book))
    }

    /// Returns the row store that a fork is based on.
    fn base_of(&mut self, header: &Header, depth: usize) -> Result<Option<Arc<RowStore<Handle>>>> {
        let Some(base) = &header.base else { return Ok(None) };
        if depth > FORKS_DEEP_MAX {
            let what =
                format!("it is a fork nested more than {FORKS_DEEP_MAX} levels deep, or a fork of itself");
            return Err(damaged(self.layout.log(&base.file).display(), what));
        }
        self.shelf_of(&base.file, base.seq, depth + 1)
    }

    /// Returns the rows of a file, live or erased, at least up to `seq`.
    pub fn shelf_of(&mut self, stem: &str, seq: Seq, depth: usize) -> Result<Option<Arc<RowStore<Handle>>>> {
        let id = id_of_stem(stem).ok_or_else(|| damaged(stem, "it is not a valid name of a session file"))?;
        let is_that = |book: &SessionLog| book.disk.as_ref().is_some_and(|disk| disk.file.stem == stem);
        if let Some(book) = self.books.get_mut(&id).filter(|book| is_that(book))
            && (book.log.summary.head.seq >= seq || refresh(book)?)
        {
            return Ok(Some(Arc::clone(book.log.shelf())));
        }
        if let Some(shelf) = self.erased.get(stem).and_then(Weak::upgrade) {
            return Ok(Some(shelf));
        }
        if let Some(book) = self.load(stem, depth)? {
            let shelf = Arc::clone(book.log.shelf());
            self.books.insert(id, book);
            return Ok(Some(shelf));
        }
        let Some(file) = LogFile::open(self.layout.erased(stem), stem)? else { return Ok(None) };
        let opened = Opened::read(file)?;
        let base = self.base_of(&opened.header, depth)?;
        let shelf = opened.into_erased(base)?;
        self.erased.insert(stem.to_owned(), Arc::downgrade(&shelf));
        Ok(Some(shelf))
    }

    /// Cuts off an incomplete batch, unless another process is still writing it.
    fn cut_if_free(&mut self, book: &mut SessionLog) -> Result<()> {
        let Some(file) = book.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else { return Ok(()) };
        let handle = file.handle()?;
        let Some(_locked) = disk::try_lock(&handle, LockKind::Exclusive, &file.path)? else { return Ok(()) };
        self.cut_torn(book)
    }

    /// Reads to the end of the file and cuts off an incomplete batch. The caller holds the log's
    /// lock.
    pub fn cut_torn(&mut self, book: &mut SessionLog) -> Result<()> {
        let Some(file) = book.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else { return Ok(()) };
        let length = file.file().metadata().at(&file.path)?.len();
        if book.catch_up(length)? == 0 {
            return Ok(());
        }
        let end = book.disk.as_ref().map_or(0, |disk| disk.len);
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
        let pending = self.books.values().filter(|book| book.disk.is_none());
        let mut summaries: Vec<Summary> = pending.map(|book| book.log.summary.clone()).collect();
        for (stem, len) in self.scan()? {
            if let Some(summary) = self.summary_of(&stem, len)? {
                summaries.push(summary);
            }
        }
        if self.index.is_ahead()
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
        let is_read = |book: &&SessionLog| {
            book.disk.as_ref().is_some_and(|disk| disk.file.stem == stem && disk.len == len)
        };
        if let Some(book) = self.books.get(&id).filter(is_read) {
            self.index.put(stem, len, &book.log.summary);
            return Ok(Some(book.log.summary.clone()));
        }
        if let Some(summary) = self.index.get(stem, len) {
            return Ok(Some(summary.clone()));
        }
        match self.open(&id) {
            Ok(book) => {
                let (summary, len) =
                    (book.log.summary.clone(), book.disk.as_ref().map_or(0, |disk| disk.len));
                self.index.put(stem, len, &summary);
                Ok(Some(summary))
            }
            Err(StoreError::NoSession { .. }) => Ok(None),
            Err(StoreError::Damaged { place, what }) => {
                self.warn("damaged", place, what);
                Ok(None)
            }
            Err(StoreError::TooNew { place, .. }) => {
                self.warn("too_new", place, "it was written by a newer Sapwood".to_owned());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads every session. Returns whether all of them were readable.
    pub fn for_each(&mut self, mut look: impl FnMut(&mut SessionLog) -> Result<()>) -> Result<bool> {
        let mut all_read = true;
        for id in self.ids()? {
            match self.open(&id) {
                Ok(book) => look(book)?,
                Err(StoreError::NoSession { .. }) => {}
                Err(StoreError::Damaged { place, what }) => {
                    all_read = false;
                    self.warn("damaged", place, what);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all_read)
    }

    /// Returns whether the caller put the blob, or may read a session that refers to it. Otherwise
    /// the blob is reported as unknown (I9).
    pub fn may_use(&mut self, scope: &Scope, hash: &BlobHash) -> Result<bool> {
        if !blob::is_there(&self.layout, hash) {
            return Ok(false);
        }
        if scope.reach == Reach::Tenant || blob::was_put_by(&self.layout, hash, &scope.principal)? {
            return Ok(true);
        }
        let mut shows = false;
        self.for_each(|book| {
            shows |= authorize(scope, &book.log.summary, Right::Read).is_ok() && book.log.refers_to(hash);
            Ok(())
        })?;
        Ok(shows)
    }

    pub fn check_use(&mut self, scope: &Scope, hash: &BlobHash) -> Result<()> {
        match self.may_use(scope, hash)? {
            true => Ok(()),
            false => Err(StoreError::NoBlob { blob: *hash }),
        }
    }

    /// Returns the ids of all sessions.
    pub fn ids(&mut self) -> Result<BTreeSet<SessionId>> {
        let pending = self.books.iter().filter(|(_, book)| book.disk.is_none());
        let mut ids: BTreeSet<SessionId> = pending.map(|(id, _)| id.clone()).collect();
        self.scan()?;
        ids.extend(self.stems.keys().cloned());
        Ok(ids)
    }

    /// Evicts all sessions that were read from files.
    pub fn forget_read(&mut self) {
        self.books.retain(|_, book| book.disk.is_none());
        self.erased.clear();
    }
}

/// Reads new entries. Returns false if the file was replaced or truncated.
fn refresh(book: &mut SessionLog) -> Result<bool> {
    let Some(disk) = &book.disk else { return Ok(true) };
    match disk.file.length_if_current()? {
        Some(length) if length >= disk.len => {
            book.catch_up(length)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
