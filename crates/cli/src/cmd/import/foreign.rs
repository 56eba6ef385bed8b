//! Imports another program's file. One thread reads and parses the file, and the calling task writes new entries. Only
//! a few batches are in flight, so memory use does not depend on the file's size.

use std::path::{Path, PathBuf};

use sapwood::engine::import::{Intake, IntakeResult, Mode, SiblingSessions};
use sapwood::formats::import::codex::{HistoryBase, Importer as Codex};
use sapwood::formats::import::steps::{Portion, StepBatch};
use sapwood::formats::import::{
    DOCUMENT_BYTES_MAX, Format, LINE_BYTES_MAX, PROBLEMS_MAX, Problem, ProblemKind as Fault, Reader, reader,
};
use sapwood::store::opencode::{Cursor, Database, DatabaseError as Unreadable};
use sapwood::{Engine, Scope};
use tokio::sync::mpsc;

use super::source::Source;
use super::{ImportReport, to_reported};
use crate::failure::{Failure, Result};

/// Maximum number of steps, and of input bytes, per batch.
const BATCH_STEPS: usize = 512;
const BATCH_BYTES: usize = 2 << 20;
/// Maximum number of batches that the reader queues while the previous batch is written.
const BATCHES_MAX: usize = 8;
/// Maximum length of a chain of rollouts that continue each other.
const BASES_MAX: usize = 64;

/// The engine and scope into which sessions are imported.
#[derive(Clone, Copy)]
pub struct ImportTarget<'a> {
    pub engine: &'a Engine,
    pub scope: &'a Scope,
    pub mode: Mode,
    /// Store lookups that are shared between files.
    pub siblings: Option<&'a SiblingSessions>,
}

impl ImportTarget<'_> {
    fn begin(&self, format: Format) -> Intake {
        let intake = self.engine.imports().begin_intake(self.scope, format, self.mode);
        match self.siblings {
            Some(siblings) => intake.with_siblings(siblings),
            None => intake,
        }
    }
}

/// Imports one file. Returns a report per session: a database contains many sessions.
pub async fn import_file(
    target: ImportTarget<'_>,
    source: Source,
    format: Format,
) -> Result<Vec<ImportReport>> {
    if format == Format::OpenCode {
        return import_database(target, &source.path).await;
    }
    let name = source.name.clone();
    let (sender, batches) = mpsc::channel(BATCHES_MAX);
    let reading = std::thread::spawn(move || read_file(source, format, &sender));
    let report = import_batches(target, format, &name, batches).await?;
    let read =
        reading.join().map_err(|_| Failure::new("file.io", format!("{name}: the reader thread panicked")))?;
    Ok(vec![with_failure(report, read)])
}

fn with_failure(mut report: ImportReport, read: Result<()>) -> ImportReport {
    if let Err(failure) = read {
        report.problems.push(super::ReportedProblem {
            line: None,
            code: failure.code,
            message: failure.message,
        });
    }
    report
}

async fn import_batches(
    target: ImportTarget<'_>,
    format: Format,
    name: &str,
    mut batches: mpsc::Receiver<Portion>,
) -> Result<ImportReport> {
    let mut intake = target.begin(format);
    let mut step_batch = StepBatch::default();
    let mut failure = None;
    while let Some(batch) = batches.recv().await {
        step_batch.absorb(batch);
        if let Err(error) = intake.take(&mut step_batch).await {
            failure = Some(error.into());
            break;
        }
        if should_give_up(&mut step_batch) {
            break;
        }
    }
    drop(batches);
    let taken = match failure {
        Some(failure) => Err(failure),
        None => finish(intake, &mut step_batch).await,
    };
    report_of(format, target.mode, name, step_batch, taken)
}

async fn finish(intake: Intake, step_batch: &mut StepBatch) -> Result<IntakeResult> {
    Ok(intake.finish(step_batch).await?)
}

fn should_give_up(step_batch: &mut StepBatch) -> bool {
    let should_give_up = step_batch.problems.len() >= PROBLEMS_MAX || step_batch.is_nameless();
    if should_give_up {
        step_batch.problems.truncate(PROBLEMS_MAX - 1);
        step_batch.problems.push(Problem { line: step_batch.line, what: Fault::GivenUp });
    }
    should_give_up
}

/// Builds the report of a session. A failure becomes a problem of the session, except for a store failure, which ends
/// the command.
fn report_of(
    format: Format,
    mode: Mode,
    name: &str,
    step_batch: StepBatch,
    taken: Result<IntakeResult>,
) -> Result<ImportReport> {
    let mut problems: Vec<super::ReportedProblem> = step_batch.problems.iter().map(to_reported).collect();
    let taken = match taken {
        Ok(taken) => taken,
        Err(failure) if failure.code.starts_with("store.") => return Err(failure),
        Err(failure) => {
            problems.push(super::ReportedProblem {
                line: None,
                code: failure.code,
                message: failure.message,
            });
            IntakeResult { added: 0, skipped: 0, is_stored: false }
        }
    };
    if !taken.is_stored && problems.is_empty() {
        let message = "the file contains no session".to_owned();
        problems.push(super::ReportedProblem { line: None, code: "import.empty".into(), message });
    }
    Ok(ImportReport {
        session: step_batch.session.map(|session| session.id.to_string()),
        source: name.to_owned(),
        format: Some(format.as_str()),
        added: taken.added,
        skipped: taken.skipped,
        problems,
        dry_run: mode == Mode::DryRun,
        taken: taken.is_stored,
    })
}

/// Collects the steps of a reader into batches and sends them to the writer.
struct BatchSender<'a> {
    step_batch: StepBatch,
    bytes: usize,
    to: &'a mpsc::Sender<Portion>,
}

/// The receiver was dropped, so reading stops.
struct ReceiverDropped;

impl BatchSender<'_> {
    fn after(&mut self, line_bytes: usize) -> std::result::Result<(), ReceiverDropped> {
        self.bytes += line_bytes;
        if self.step_batch.steps.len() >= BATCH_STEPS || self.bytes >= BATCH_BYTES {
            return self.send();
        }
        Ok(())
    }

    fn send(&mut self) -> std::result::Result<(), ReceiverDropped> {
        self.bytes = 0;
        self.to.blocking_send(self.step_batch.take_portion()).map_err(|_| ReceiverDropped)
    }
}

/// Reads and parses a file. If the source fails, the part read so far is imported as if the file ended there.
fn read_file(mut source: Source, format: Format, to: &mpsc::Sender<Portion>) -> Result<()> {
    let step_batch = StepBatch::of_file(source.dated);
    let mut batch_sender = BatchSender { step_batch, bytes: 0, to };
    if format == Format::Codex {
        let mut codex = Codex::new(&source_name(&source.path, format));
        let read = read_codex(&mut source, &mut codex, &mut batch_sender);
        return end(&source, &mut codex, batch_sender, read);
    }
    let Some(mut reader) = reader(format, &source_name(&source.path, format)) else { return Ok(()) };
    let read = read_foreign(&mut source, format, reader.as_mut(), &mut batch_sender);
    end(&source, reader.as_mut(), batch_sender, read)
}

fn end(
    source: &Source,
    reader: &mut dyn Reader,
    mut batch_sender: BatchSender<'_>,
    read: Result<ReadOutcome>,
) -> Result<()> {
    if matches!(read, Ok(ReadOutcome::Stopped)) {
        return Ok(());
    }
    reader.finish(&mut batch_sender.step_batch);
    if source.is_torn() {
        batch_sender.step_batch.line = source.line_number().max(1);
        batch_sender.step_batch.report(Fault::Torn);
    }
    // If the receiver has stopped, this batch is not needed.
    let _ = batch_sender.send();
    read.map(|_| ())
}

/// How far a source was read.
enum ReadOutcome {
    Complete,
    /// The receiver was dropped.
    Stopped,
}

fn read_foreign(
    source: &mut Source,
    format: Format,
    reader: &mut dyn Reader,
    batch_sender: &mut BatchSender<'_>,
) -> Result<ReadOutcome> {
    if format.is_document(b"") {
        // A document, or one line of it, may contain a whole conversation. Send portions while parsing it.
        let to = batch_sender.to.clone();
        batch_sender.step_batch.send_to(move |portion| to.blocking_send(portion).is_ok());
    }
    if !source.is_document(format)? {
        return read_lines(source, batch_sender, &mut |line, number, step_batch| {
            reader.push_line(line, number, step_batch);
        });
    }
    match source.read_all(DOCUMENT_BYTES_MAX)? {
        Some(bytes) => reader.push_document(&bytes, &mut batch_sender.step_batch),
        None => batch_sender.step_batch.report(Fault::TooLong),
    }
    if let Some(feed) = feed_beside(&source.path, format) {
        reader.push_document(&feed, &mut batch_sender.step_batch);
    }
    Ok(ReadOutcome::Complete)
}

fn read_lines(
    source: &mut Source,
    batch_sender: &mut BatchSender<'_>,
    each: &mut dyn FnMut(&[u8], u64, &mut StepBatch),
) -> Result<ReadOutcome> {
    while let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? {
        let bytes = line.len();
        each(line, number, &mut batch_sender.step_batch);
        if batch_sender.after(bytes).is_err() {
            return Ok(ReadOutcome::Stopped);
        }
    }
    Ok(ReadOutcome::Complete)
}

/// Reads a rollout, preceded by the rollouts that it continues.
fn read_codex(
    source: &mut Source,
    codex: &mut Codex,
    batch_sender: &mut BatchSender<'_>,
) -> Result<ReadOutcome> {
    let base = Codex::base_of(source.first_line());
    if let Some(base) = base
        && let Some((line, number)) = source.next_line(LINE_BYTES_MAX)?
    {
        codex.push_line(line, number, &mut batch_sender.step_batch);
        read_bases(&source.path, base, codex, batch_sender)?;
    }
    read_lines(source, batch_sender, &mut |line, number, step_batch| {
        codex.push_line(line, number, step_batch)
    })
}

fn read_bases(
    path: &Path,
    base: HistoryBase,
    codex: &mut Codex,
    batch_sender: &mut BatchSender<'_>,
) -> Result<()> {
    let mut chain: Vec<(PathBuf, HistoryBase)> = Vec::new();
    let mut next = Some(base);
    while let Some(base) = next.take().filter(|_| chain.len() < BASES_MAX) {
        let known = |found: &PathBuf| found != path && chain.iter().all(|(before, _)| before != found);
        let Some(found) = find_rollout(path, &base.thread_id).filter(known) else {
            batch_sender.step_batch.report(Fault::MissingBase { base: base.thread_id });
            break;
        };
        let source = Source::open(&found, indicatif::ProgressBar::hidden())?;
        next = Codex::base_of(source.first_line());
        chain.push((found, base));
    }
    for (path, base) in chain.into_iter().rev() {
        let mut source = Source::open(&path, indicatif::ProgressBar::hidden())?;
        let end = base.end_ordinal_exclusive;
        let read = read_lines(&mut source, batch_sender, &mut |line, number, step_batch| {
            codex.push_inherited(line, number, end, step_batch);
        })?;
        if matches!(read, ReadOutcome::Stopped) {
            break;
        }
    }
    Ok(())
}

/// Finds the rollout of a thread: its file name ends with the thread id. Searches Codex's directories, or else the
/// directory of the given file.
fn find_rollout(beside: &Path, thread: &str) -> Option<PathBuf> {
    let root =
        beside.ancestors().find(|path| path.ends_with("sessions") || path.ends_with("archived_sessions"));
    let files: Vec<PathBuf> = match root {
        Some(root) => {
            let home = root.parent().unwrap_or(root);
            let roots = [home.join("sessions"), home.join("archived_sessions")];
            let roots: Vec<PathBuf> = roots.into_iter().filter(|root| root.is_dir()).collect();
            super::source::expand(&roots).files
        }
        None => {
            let directory = beside.parent().filter(|parent| !parent.as_os_str().is_empty());
            let entries = std::fs::read_dir(directory.unwrap_or(Path::new("."))).ok()?;
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        }
    };
    files.into_iter().find(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.trim_end_matches(".zst").trim_end_matches(".jsonl");
        stem.ends_with(thread) && file != beside
    })
}

/// Name that identifies a source without a session id: the file stem, or the absolute path for plain messages.
fn source_name(path: &Path, format: Format) -> String {
    if path.as_os_str() == "-" {
        return "-".to_owned();
    }
    if format == Format::Messages {
        return std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // A compressed file has two extensions.
    stem.strip_suffix(".jsonl").unwrap_or(&stem).to_owned()
}

/// Reads a role's feed.json, which is next to its transcript.
fn feed_beside(path: &Path, format: Format) -> Option<Vec<u8>> {
    let feed = path.with_file_name("feed.json");
    let small = feed.metadata().is_ok_and(|metadata| metadata.len() <= DOCUMENT_BYTES_MAX as u64);
    if format == Format::RoleFiles && small { std::fs::read(feed).ok() } else { None }
}

/// Imports all sessions of a database. Returns a report per session, and one for the database if it cannot be read
/// completely.
async fn import_database(target: ImportTarget<'_>, path: &Path) -> Result<Vec<ImportReport>> {
    let mut reports = Vec::new();
    let name = path.display().to_string();
    let opened = Database::open(path).and_then(|database| Ok((database.sessions()?, database)));
    let fault = match opened {
        Ok((sessions, database)) => {
            for session in &sessions.ids {
                reports.push(import_database_session(target, &database, session, &name).await?);
            }
            sessions.fault
        }
        Err(fault) => Some(fault),
    };
    if let Some(fault) = fault {
        let taken = Err(Failure::new(fault.code(), fault.to_string()));
        reports.push(report_of(Format::OpenCode, target.mode, &name, StepBatch::default(), taken)?);
    }
    Ok(reports)
}

async fn import_database_session(
    target: ImportTarget<'_>,
    database: &Database,
    session: &str,
    name: &str,
) -> Result<ImportReport> {
    let mut intake = target.begin(Format::OpenCode);
    let mut step_batch = StepBatch::default();
    let mut reader = sapwood::formats::import::opencode::Importer::default();
    let mut rows = SessionRows { session, after: None, number: 0 };
    let taken = loop {
        match rows.read_page(database, &mut reader, &mut step_batch) {
            Ok(true) if !should_give_up(&mut step_batch) => {}
            Ok(_) => break Ok(None),
            Err(fault) => break Ok(Some(fault)),
        }
        if let Err(error) = intake.take(&mut step_batch).await {
            break Err(error.into());
        }
    };
    let (taken, fault) = match taken {
        Ok(fault) => {
            // Import the part that was read before the error.
            reader.finish(&mut step_batch);
            (finish(intake, &mut step_batch).await, fault)
        }
        Err(failure) => (Err(failure), None),
    };
    let report = report_of(Format::OpenCode, target.mode, name, step_batch, taken)?;
    let fault = fault.map(|fault| Failure::new(fault.code(), format!("session {session}: {fault}")));
    Ok(with_failure(report, fault.map_or(Ok(()), Err)))
}

/// Reads a session's rows page by page.
struct SessionRows<'a> {
    session: &'a str,
    after: Option<Cursor>,
    number: u64,
}

impl SessionRows<'_> {
    /// Reads one page. Returns whether there may be more.
    fn read_page(
        &mut self,
        database: &Database,
        reader: &mut dyn Reader,
        step_batch: &mut StepBatch,
    ) -> std::result::Result<bool, Unreadable> {
        if self.number == 0 {
            self.number = 1;
            reader.push_line(&database.session_line(self.session)?, self.number, step_batch);
        }
        let (lines, next) = database.message_lines(self.session, self.after.take())?;
        for line in lines {
            self.number += 1;
            reader.push_line(&line, self.number, step_batch);
        }
        self.after = next;
        Ok(self.after.is_some())
    }
}
