//! Import another program's file. Each step passes once through the reader, the settings filter, the reconciler and
//! the writer. Only a few batches of steps are in memory at a time.
//!
//! Short lines are read by the calling task. Documents and long lines may contain a whole conversation. A blocking
//! thread reads them, and the calling task stores their portions concurrently.

use std::panic::resume_unwind;

use sapwood_core::Scope;
use sapwood_formats::import::steps::{Portion, StepBatch};
use sapwood_formats::import::{Format, PROBLEMS_MAX, Problem, ProblemKind, Reader, reader};
use tokio::sync::mpsc;

use super::intake::Intake;
use super::options::ImportOptions;
use super::report::ImportReport;
use crate::{Engine, EngineError, Result};

/// Lines longer than this are read like a document.
const LONG_LINE_BYTES: usize = 1 << 20;

/// Converts input to steps. Can be moved to another thread.
pub struct StepReader {
    reader: Box<dyn Reader + Send>,
    batch: StepBatch,
}

impl StepReader {
    /// Read a line, including its line break. Returns whether to read more.
    pub fn push_line(&mut self, line: &[u8], number: u64) -> bool {
        self.reader.push_line(line, number, &mut self.batch);
        self.batch.count_input(line.len());
        !self.batch.is_given_up()
    }

    /// Read a line of a file that this file continues, if its ordinal is below `end_ordinal`. Returns whether to
    /// read more.
    pub fn push_inherited(&mut self, line: &[u8], number: u64, end_ordinal: u64) -> bool {
        self.reader.push_inherited(line, number, end_ordinal, &mut self.batch);
        self.batch.count_input(line.len());
        !self.batch.is_given_up()
    }

    /// Read a file that is one JSON document.
    pub fn push_document(&mut self, bytes: &[u8]) {
        self.reader.push_document(bytes, &mut self.batch);
    }

    /// Report a problem, at the current line unless another line is given.
    pub fn report(&mut self, line: Option<u64>, what: ProblemKind) {
        self.batch.line = line.unwrap_or(self.batch.line);
        self.batch.report(what);
    }
}

/// An import of another program's file.
pub struct ForeignImport {
    /// `None` while another thread reads.
    reader: Option<StepReader>,
    /// A long line and the lines after it, which are not read yet.
    deferred: Vec<(Vec<u8>, u64)>,
    /// The session, and the problems of the steps that were stored.
    stored: StepBatch,
    intake: Intake,
    options: ImportOptions,
    failure: Option<EngineError>,
}

impl ForeignImport {
    /// Start importing another program's file. `name` names the session if the file contains no id. Fails for Sapwood's
    /// own format, which [`OwnImport`](super::OwnImport) imports.
    pub(super) fn begin(
        engine: &Engine,
        scope: &Scope,
        format: Format,
        name: &str,
        options: ImportOptions,
    ) -> Result<Self> {
        let Some(reader) = reader(format, name) else {
            let why = format!("{} is not another program's format", format.as_str());
            return Err(EngineError::Invalid { what: "the format", why });
        };
        let batch = StepBatch::of_file(options.file_time);
        Ok(Self {
            reader: Some(StepReader { reader, batch }),
            deferred: Vec::new(),
            stored: StepBatch::default(),
            intake: Intake::new(engine, scope, format, options.clone()),
            options,
            failure: None,
        })
    }

    /// Read a line, including its line break. Call [`ForeignImport::store_if_full`] after a few lines.
    pub fn push_line(&mut self, line: &[u8], number: u64) {
        if line.len() > LONG_LINE_BYTES || !self.deferred.is_empty() {
            self.deferred.push((line.to_vec(), number));
        } else if let Some(reader) = &mut self.reader {
            reader.push_line(line, number);
        }
    }

    /// Store the steps read so far if they fill a batch or a line was long. Returns whether none of them remain buffered.
    pub async fn store_if_full(&mut self) -> bool {
        let had_long_line = !self.deferred.is_empty();
        self.read_deferred().await;
        let Some(batch) = self.reader.as_mut().map(|reader| &mut reader.batch) else { return false };
        // Steps without a session id stay in the reader, which gives up if there are too many.
        if !(batch.is_full() || had_long_line) || batch.session.is_none() {
            return false;
        }
        let portion = batch.take_portion();
        self.store(portion).await;
        true
    }

    /// Read input on a blocking thread, and store its steps concurrently.
    pub async fn read<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&mut StepReader) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = match &self.options.threads {
            Some(threads) => threads.clone().acquire_owned().await.ok(),
            None => None,
        };
        let mut reader = self.reader.take()?;
        let (sender, mut portions) = mpsc::channel(self.options.queued_batches);
        reader.batch.send_to(move |portion| sender.blocking_send(portion).is_ok());
        let reading = tokio::task::spawn_blocking(move || {
            // The permit is held while the thread reads, even if the client disconnects.
            let _permit = permit;
            let value = read(&mut reader);
            reader.batch.stop_sending();
            (reader, value)
        });
        while let Some(portion) = portions.recv().await {
            self.store(portion).await;
            if self.is_given_up() {
                break;
            }
        }
        drop(portions);
        let (reader, value) = match reading.await {
            Ok(read) => read,
            // A join error that is not a panic occurs only if the runtime shuts down.
            Err(error) => resume_unwind(error.try_into_panic().unwrap_or_else(|error| Box::new(error))),
        };
        self.reader = Some(reader);
        Some(value)
    }

    /// Whether the import gave up on the rest of the file, so that the caller can stop reading.
    pub fn is_given_up(&self) -> bool {
        self.failure.is_some()
            || self.stored.problems.len() >= PROBLEMS_MAX
            || self.reader.as_ref().is_some_and(|reader| reader.batch.is_given_up())
    }

    /// Import the rest of the steps.
    pub async fn finish(mut self) -> ImportReport {
        self.read_deferred().await;
        if let Some(StepReader { reader, batch }) = &mut self.reader {
            reader.finish(batch);
            let portion = batch.take_portion();
            self.store(portion).await;
        }
        if self.failure.is_none() && self.is_given_up() {
            self.stored.problems.truncate(PROBLEMS_MAX - 1);
            self.stored.problems.push(Problem { line: self.stored.line, what: ProblemKind::GivenUp });
        }
        let taken = match self.failure {
            Some(failure) => Err(failure),
            None => self.intake.finish(&mut self.stored).await,
        };
        let session = self.stored.session.map(|session| session.id);
        ImportReport::new(session, taken, &self.stored.problems)
    }

    async fn read_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let deferred = std::mem::take(&mut self.deferred);
        self.read(move |reader| deferred.iter().all(|(line, number)| reader.push_line(line, *number))).await;
    }

    async fn store(&mut self, portion: Portion) {
        self.stored.absorb(portion);
        if self.failure.is_none() {
            self.failure = self.intake.take(&mut self.stored).await.err();
        }
    }
}
