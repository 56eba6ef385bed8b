//! Extend a stored session by the steps of a foreign file. Each step is filtered, reconciled with the log and passed to
//! the writer before the next one. If another caller appends after the log was last read, the import fails with a
//! conflict.

use sapwood_core::entry::{Draft, Entry};
use sapwood_core::port::store::{Expect, NewSession};
use sapwood_core::{BlobHash, Kind, Right, Scope, Seq, SessionId, StoreError, TimestampMs};
use sapwood_formats::import::reconcile::Reconciler;
use sapwood_formats::import::steps::StepBatch;
use sapwood_formats::import::{Format, Problem, ProblemKind};

use super::options::{ImportOptions, Mode, PAGE_RECORDS};
use super::siblings::list_siblings;
use super::writer::ImportWriter;
use crate::{Engine, Result};

/// A foreign session that is being imported.
pub struct Intake {
    engine: Engine,
    scope: Scope,
    format: Format,
    options: ImportOptions,
    reconciler: Reconciler,
    target: Target,
    drafts: Vec<Draft>,
    /// The end of the log when it was last read.
    read_upto: Seq,
}

enum Target {
    /// The session's id is not known yet.
    Unknown,
    /// The stored entries were compared, and no new entry was found yet. The first write creates the session.
    Ready {
        new: Box<NewSession>,
        is_known: bool,
    },
    Import(Box<ImportWriter>),
    Counted {
        is_known: bool,
        /// The existing session, if the caller's right to extend it has not been checked yet.
        unchecked: Option<SessionId>,
    },
    /// The store has a different session under this id.
    Refused,
}

/// The result of an intake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IntakeResult {
    pub added: u64,
    /// Records that the store already had.
    pub skipped: u64,
    /// Whether the session is now stored, except for unreadable parts of its source.
    pub is_stored: bool,
    /// The first entry at which the store's log differs. Nothing was added in that case.
    pub differs_at: Option<Seq>,
}

impl Intake {
    pub(super) fn new(engine: &Engine, scope: &Scope, format: Format, options: ImportOptions) -> Self {
        Self {
            engine: engine.clone(),
            scope: scope.clone(),
            format,
            options,
            reconciler: Reconciler::new(format.agent()),
            target: Target::Unknown,
            drafts: Vec::new(),
            read_upto: Seq::ZERO,
        }
    }

    /// Import the steps read so far. Does nothing until the session's id is known.
    pub async fn take(&mut self, batch: &mut StepBatch) -> Result<()> {
        if matches!(self.target, Target::Unknown) {
            let Some(mut session) = batch.session.clone() else { return Ok(()) };
            if session.at == TimestampMs::default() {
                // Neither the source nor its file has a time, so use the time of the import.
                session.at = self.engine.clock.now();
            }
            self.target = self.open(session, batch).await?;
        } else {
            self.refresh().await?;
        }
        for mut step in batch.take_steps() {
            let blobs = std::mem::take(&mut step.blobs);
            self.reconciler.take(step, &mut self.drafts, &mut batch.problems);
            self.write(blobs).await?;
        }
        Ok(())
    }

    pub async fn finish(mut self, batch: &mut StepBatch) -> Result<IntakeResult> {
        self.take(batch).await?;
        self.reconciler.finish(&mut self.drafts);
        self.write(Vec::new()).await?;
        let (added, skipped) = (self.reconciler.added, self.reconciler.skipped);
        let taken = IntakeResult { skipped, is_stored: true, ..IntakeResult::default() };
        Ok(match self.target {
            Target::Import(import) => IntakeResult { added: import.finish().await?, ..taken },
            Target::Ready { is_known, .. } => IntakeResult { is_stored: is_known, ..taken },
            Target::Counted { is_known, .. } => {
                IntakeResult { added, is_stored: is_known || added > 0, ..taken }
            }
            Target::Refused | Target::Unknown => IntakeResult::default(),
        })
    }

    async fn open(&mut self, new: NewSession, batch: &mut StepBatch) -> Result<Target> {
        self.reconciler.begin_at(new.at);
        let is_known = match self.engine.store.summary(&self.scope, &new.id).await {
            Err(StoreError::NoSession { .. }) => false,
            Err(error) => return Err(error.into()),
            Ok(summary) if summary.origin != new.origin && summary.head.seq > Seq::ZERO => {
                batch.problems.push(Problem { line: batch.line, what: ProblemKind::Differs });
                return Ok(Target::Refused);
            }
            Ok(_) => {
                self.read_stored(&new.id).await?;
                true
            }
        };
        if !is_known && self.format.repeats() {
            self.read_siblings(&new).await?;
        }
        Ok(match self.options.mode {
            Mode::DryRun => Target::Counted { is_known, unchecked: is_known.then_some(new.id) },
            Mode::Write => Target::Ready { new: Box::new(new), is_known },
        })
    }

    /// Read sessions that began at the same time, because they may repeat the same records. Records in both
    /// sessions count only in the session that was imported first.
    async fn read_siblings(&mut self, new: &NewSession) -> Result<()> {
        let others = match &self.options.siblings {
            Some(siblings) => siblings.others_started_at(&self.engine, &self.scope, new).await?,
            None => list_siblings(&self.engine, &self.scope, new).await?,
        };
        for other in others {
            self.read_sibling(&other).await?;
        }
        Ok(())
    }

    async fn read_sibling(&mut self, other: &SessionId) -> Result<()> {
        let kinds = [Kind::AssistantMessage, Kind::UsageReported];
        let reconciler = &mut self.reconciler;
        let learn = |entry: Entry| reconciler.register_elsewhere(entry.meta.id, &entry.body);
        match self.engine.log().each_of_kinds(&self.scope, other, &kinds, learn).await {
            // The session was never written, or was erased since it was listed.
            Err(error) if error.code() == "session.not_found" => Ok(()),
            read => read,
        }
    }

    /// Read entries that other callers appended since the previous call. They may append until this import writes its
    /// first batch, and reading the file may be slow.
    async fn refresh(&mut self) -> Result<()> {
        if let Target::Ready { new, is_known: true } = &self.target {
            let session = new.id.clone();
            self.read_stored(&session).await?;
        }
        Ok(())
    }

    /// Read the entries added to the session since the previous call.
    async fn read_stored(&mut self, session: &SessionId) -> Result<()> {
        let before = self.read_upto;
        loop {
            let records =
                self.engine.store.read_after(&self.scope, session, self.read_upto, PAGE_RECORDS).await?;
            let Some(last) = records.last() else { break };
            self.read_upto = last.meta.seq;
            for record in &records {
                let meta = &record.meta;
                self.reconciler.register(meta.id, meta.parent.map(|parent| parent.0), meta.kind.stance());
                // Unreadable bodies are not compared.
                if self.format.rewrites()
                    && let Ok(body) = record.decode()
                {
                    self.reconciler.register_body(&body);
                }
            }
        }
        if self.read_upto == before {
            // No new entries, so the leaf has not moved.
            return Ok(());
        }
        let head = self.engine.store.summary(&self.scope, session).await?.head;
        if head.seq == self.read_upto {
            self.reconciler.register_leaf(head.leaf.map(|leaf| leaf.0));
        }
        // Otherwise there is a concurrent writer, and the append will fail with a conflict.
        Ok(())
    }

    /// Write the drafts of a step. Blobs that no draft refers to belong to a step that the store already has.
    async fn write(&mut self, blobs: Vec<(BlobHash, Vec<u8>)>) -> Result<()> {
        if self.drafts.is_empty() {
            return Ok(());
        }
        self.begin_writing().await?;
        let Target::Import(import) = &mut self.target else {
            self.drafts.clear();
            return Ok(());
        };
        // Blobs must be stored before the entries that reference them.
        for (blob, bytes) in blobs {
            if self.drafts.iter().any(|draft| draft.body.blobs().contains(&blob)) {
                self.engine.store.put_blob(&self.scope, bytes).await?;
            }
        }
        for draft in self.drafts.drain(..) {
            import.push(draft).await?;
        }
        Ok(())
    }

    /// Start writing at the first new entry. A dry run instead checks the caller's right to extend the session, so that
    /// it fails in the same cases as an import.
    async fn begin_writing(&mut self) -> Result<()> {
        match &mut self.target {
            Target::Ready { new, is_known } => {
                if let Some(siblings) = self.options.siblings.as_ref().filter(|_| !*is_known) {
                    siblings.add(new);
                }
                let expect = Expect::Head(self.read_upto);
                let import = ImportWriter::begin(&self.engine, &self.scope, (**new).clone(), expect).await?;
                self.target = Target::Import(Box::new(import));
            }
            Target::Counted { unchecked, .. } => {
                if let Some(session) = unchecked.take() {
                    self.engine.directory().check_right(&self.scope, &session, Right::Own).await?;
                }
            }
            Target::Unknown | Target::Import(_) | Target::Refused => {}
        }
        Ok(())
    }
}
