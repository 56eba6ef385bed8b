//! Import a file in Sapwood's format, which may contain several concatenated exports.

use std::collections::VecDeque;

use sapwood_core::{Draft, Scope};
use sapwood_formats::import::sapwood::Importer;

use super::options::ImportOptions;
use super::own_intake::OwnIntake;
use super::report::ImportReport;
use crate::{Engine, EngineError};

/// Number of entries after which a batch is stored.
const BATCH_DRAFTS: usize = 512;
/// Number of input bytes after which a batch is stored.
const BATCH_BYTES: usize = 2 << 20;

/// An import of a file in Sapwood's format.
pub struct OwnImport {
    engine: Engine,
    scope: Scope,
    options: ImportOptions,
    current: OwnSession,
    /// Sessions that were read completely, and are not imported yet.
    ended: VecDeque<OwnSession>,
    /// Bytes read since entries were last stored.
    input_bytes: usize,
}

/// A session that is being imported.
struct OwnSession {
    importer: Importer,
    drafts: Vec<Draft>,
    intake: OwnIntake,
    failure: Option<EngineError>,
}

impl OwnImport {
    pub(super) fn begin(engine: &Engine, scope: &Scope, options: ImportOptions) -> Self {
        let current = OwnSession::new(OwnIntake::new(engine, scope, &options));
        let (engine, scope) = (engine.clone(), scope.clone());
        Self { engine, scope, options, current, ended: VecDeque::new(), input_bytes: 0 }
    }

    /// Read a line, including its line break. Call [`OwnImport::next_report`] and [`OwnImport::store_if_full`] after a few
    /// lines.
    pub fn push_line(&mut self, line: &[u8], number: u64) {
        self.input_bytes += line.len();
        if self.current.push_line(line, number) {
            let next = OwnSession::new(OwnIntake::new(&self.engine, &self.scope, &self.options));
            self.ended.push_back(std::mem::replace(&mut self.current, next));
            self.current.push_line(line, number);
        }
    }

    /// Import the next session that was read completely, if any.
    pub async fn next_report(&mut self) -> Option<ImportReport> {
        Some(self.ended.pop_front()?.finish().await)
    }

    /// Store the entries read so far if they fill a batch. Returns whether none of them remain buffered.
    pub async fn store_if_full(&mut self) -> bool {
        let is_full = self.current.drafts.len() >= BATCH_DRAFTS || self.input_bytes >= BATCH_BYTES;
        if is_full {
            self.input_bytes = 0;
            self.current.store().await;
        }
        is_full
    }

    /// Bytes of blobs that are incomplete, or whose entry has not been read yet.
    pub fn held_bytes(&self) -> usize {
        self.current.importer.held_bytes() + self.current.intake.held_bytes()
    }

    /// Whether the import gave up on the rest of the current session. Other sessions may follow it.
    pub fn is_given_up(&self) -> bool {
        self.current.failure.is_some()
    }

    /// Import the rest of the last session. Call it after the last report of [`OwnImport::next_report`].
    pub async fn finish(self) -> ImportReport {
        self.current.finish().await
    }
}

impl OwnSession {
    fn new(intake: OwnIntake) -> Self {
        Self { importer: Importer::default(), drafts: Vec::new(), intake, failure: None }
    }

    /// Read a line. Returns whether it is the header of another session.
    fn push_line(&mut self, line: &[u8], number: u64) -> bool {
        self.importer.push_line(line, number, &mut self.drafts);
        let is_end = self.importer.take_end(number);
        if self.importer.header().is_none() && !self.importer.problems().is_empty() {
            // These entries have no valid header. Skip them: another session may follow.
            self.importer.skip_rest();
        }
        is_end
    }

    async fn store(&mut self) {
        if self.failure.is_some() {
            self.drafts.clear();
            self.importer.take_blobs();
            return;
        }
        self.failure = self.intake.take(&mut self.importer, &mut self.drafts).await.err();
    }

    async fn finish(mut self) -> ImportReport {
        self.store().await;
        let taken = match self.failure {
            Some(failure) => Err(failure),
            None => self.intake.finish().await,
        };
        let session = self.importer.header().map(|header| header.id.clone());
        ImportReport::new(session, taken, self.importer.problems())
    }
}
