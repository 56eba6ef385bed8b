//! Extend a stored session by the entries of a file in Sapwood's format. The n-th entry of a file has seq n. The ids of
//! existing entries are compared with the file, and the rest is appended. A log that differs stays unchanged.

use std::collections::{HashMap, VecDeque};

use sapwood_core::entry::Draft;
use sapwood_core::port::store::Expect;
use sapwood_core::{BlobHash, EntryId, Right, Scope, Seq};
use sapwood_formats::header::Header;
use sapwood_formats::import::sapwood::Importer;

use super::intake::IntakeResult;
use super::options::{ImportOptions, Mode, PAGE_RECORDS};
use super::writer::ImportWriter;
use crate::{Engine, Result};

/// A session in Sapwood's format that is being imported.
pub(super) struct OwnIntake {
    engine: Engine,
    scope: Scope,
    mode: Mode,
    target: Target,
    /// Blobs whose entry has not been read yet, and their total size.
    blobs: HashMap<BlobHash, Vec<u8>>,
    blob_bytes: usize,
    added: u64,
    skipped: u64,
}

enum Target {
    /// The header has not been read yet.
    Unknown,
    /// Existing entries are compared first.
    Comparing(LogComparison),
    Import(Box<ImportWriter>),
    Counted,
    /// No more entries are written: the store's log differs from the file, or a write failed.
    Refused {
        differs_at: Option<Seq>,
    },
}

/// The comparison of a file with a stored session.
struct LogComparison {
    header: Box<Header>,
    /// Whether the session is stored.
    exists: bool,
    compared: Seq,
    after: Seq,
    page: VecDeque<EntryId>,
}

impl OwnIntake {
    pub(super) fn new(engine: &Engine, scope: &Scope, options: &ImportOptions) -> Self {
        Self {
            engine: engine.clone(),
            scope: scope.clone(),
            mode: options.mode,
            target: Target::Unknown,
            blobs: HashMap::new(),
            blob_bytes: 0,
            added: 0,
            skipped: 0,
        }
    }

    /// Import the drafts read so far. After a failure, no more drafts are imported.
    pub(super) async fn take(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        for bytes in importer.take_blobs() {
            self.buffer_blob(bytes);
        }
        if let (Target::Unknown, Some(header)) = (&self.target, importer.header()) {
            self.open(header).await?;
        }
        for draft in drafts.drain(..) {
            if let Err(error) = self.take_one(draft).await {
                self.target = Target::Refused { differs_at: None };
                return Err(error);
            }
        }
        Ok(())
    }

    /// Bytes of buffered blobs whose entry has not been read yet.
    pub(super) fn held_bytes(&self) -> usize {
        self.blob_bytes
    }

    pub(super) async fn finish(mut self) -> Result<IntakeResult> {
        // Also create a session without entries.
        if matches!(&self.target, Target::Comparing(comparison) if !comparison.exists) {
            self.begin().await?;
        }
        let taken =
            IntakeResult { added: self.added, skipped: self.skipped, is_stored: true, differs_at: None };
        Ok(match self.target {
            Target::Import(import) => {
                import.finish().await?;
                taken
            }
            Target::Comparing(_) | Target::Counted => taken,
            Target::Refused { differs_at } => {
                IntakeResult { added: 0, is_stored: false, differs_at, ..taken }
            }
            Target::Unknown => IntakeResult::default(),
        })
    }

    fn buffer_blob(&mut self, bytes: Vec<u8>) {
        self.blob_bytes += bytes.len();
        let replaced = self.blobs.insert(BlobHash::of(&bytes), bytes);
        self.blob_bytes -= replaced.map_or(0, |bytes| bytes.len());
    }

    async fn open(&mut self, header: &Header) -> Result<()> {
        let exists = self.engine.directory().exists(&self.scope, &header.id).await?;
        let (header, page) = (Box::new(header.clone()), VecDeque::new());
        let comparison = LogComparison { header, exists, compared: Seq::ZERO, after: Seq::ZERO, page };
        self.target = Target::Comparing(comparison);
        Ok(())
    }

    async fn take_one(&mut self, draft: Draft) -> Result<()> {
        if let Target::Comparing(comparison) = &mut self.target {
            match comparison.next_id(&self.engine, &self.scope).await? {
                None => self.begin().await?,
                found if found == draft.id => {
                    self.skipped += 1;
                    self.blobs_of(&draft);
                    return Ok(());
                }
                Some(_) => self.target = Target::Refused { differs_at: Some(comparison.compared) },
            }
        }
        let blobs = self.blobs_of(&draft);
        match &mut self.target {
            Target::Import(import) => {
                // Blobs must be stored before the entries that reference them.
                for bytes in blobs {
                    self.engine.store.put_blob(&self.scope, bytes).await?;
                }
                self.added += 1;
                import.push(draft).await
            }
            Target::Counted => {
                self.added += 1;
                Ok(())
            }
            Target::Unknown | Target::Comparing(_) | Target::Refused { .. } => Ok(()),
        }
    }

    /// Start appending after all existing entries were compared. Fails with a conflict if the log has grown since.
    async fn begin(&mut self) -> Result<()> {
        let Target::Comparing(comparison) = &self.target else { return Ok(()) };
        self.target = match self.mode {
            Mode::Write => {
                let (new, expect) = (comparison.header.new_session(), Expect::Head(comparison.compared));
                Target::Import(Box::new(ImportWriter::begin(&self.engine, &self.scope, new, expect).await?))
            }
            Mode::DryRun => {
                if comparison.exists {
                    self.engine
                        .directory()
                        .check_right(&self.scope, &comparison.header.id, Right::Own)
                        .await?;
                }
                Target::Counted
            }
        };
        Ok(())
    }

    /// The buffered blobs of this entry.
    fn blobs_of(&mut self, draft: &Draft) -> Vec<Vec<u8>> {
        if self.blobs.is_empty() {
            return Vec::new();
        }
        let named = draft.body.blobs();
        let blobs: Vec<Vec<u8>> = named.iter().filter_map(|blob| self.blobs.remove(blob)).collect();
        self.blob_bytes -= blobs.iter().map(Vec::len).sum::<usize>();
        blobs
    }
}

impl LogComparison {
    /// The id of the next entry of the stored session; `None` at its end.
    async fn next_id(&mut self, engine: &Engine, scope: &Scope) -> Result<Option<EntryId>> {
        if self.page.is_empty() && self.exists {
            let page = engine.store.read_after(scope, &self.header.id, self.after, PAGE_RECORDS).await?;
            self.after = page.last().map_or(self.after, |last| last.meta.seq);
            self.page.extend(page.iter().map(|record| record.meta.id));
        }
        let next = self.page.pop_front();
        if next.is_some() {
            self.compared = self.compared.next();
        }
        Ok(next)
    }
}
