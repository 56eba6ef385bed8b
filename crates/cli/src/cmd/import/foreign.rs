//! Imports another program's file. One thread reads and parses the file, and the calling task writes new entries. Only
//! a few batches are in flight, so memory use does not depend on the file's size.

use std::path::{Path, PathBuf};

use sapwood::engine::import::{Intake, Mode, SiblingSessions, Taken};
use sapwood::formats::import::codex::{Base, Importer as Codex};
use sapwood::formats::import::steps::{Portion, StepBatch};
use sapwood::formats::import::{
    DOCUMENT_BYTES_MAX, Format, LINE_BYTES_MAX, PROBLEMS_MAX, Problem, Reader, Trouble as Fault, reader,
};
use sapwood::store::opencode::{Cursor, Database, Fault as Unreadable};
use sapwood::{Engine, Scope};
use tokio::sync::mpsc;

use super::source::Source;
use super::{Report, trouble_of};
use crate::failure::{Failure, Result};

/// Maximum number of steps, and of input bytes, per batch.
const BATCH_STEPS: usize = 512;
const BATCH_BYTES: usize = 2 << 20;
/// Maximum number of queued batches, read ahead while the previous batch is written.
const BATCHES_MAX: usize = 8;
/// Maximum length of a chain of rollouts that continue each other.
const BASES_MAX: usize = 64;

/// The engine and scope that sessions are imported into.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub engine: &'a Engine,
    pub scope: &'a Scope,
    pub mode: Mode,
    /// Lookups that are shared between files.
    pub kin: Option<&'a SiblingSessions>,
}

impl Target<'_> {
    fn begin(&self, format: Format) -> Intake {
        let intake = self.engine.begin_intake(self.scope, format, self.mode);
        match self.kin {
            Some(kin) => intake.among(kin),
            None => intake,
        }
    }
}

/// Imports one file. Returns a report per session: a database contains many sessions.
pub async fn take_file(target: Target<'_>, source: Source, format: Format) -> Result<Vec<Report>> {
    if format == Format::OpenCode {
        return take_database(target, &source.path).await;
    }
    let name = source.name.clone();
    let (sender, batches) = mpsc::channel(BATCHES_MAX);
    let reading = std::thread::spawn(move || read_file(source, format, &sender));
    let report = take_batches(target, format, &name, batches).await?;
    let read =
        reading.join().map_err(|_| Failure::new("file.io", format!("{name}: the reader thread panicked")))?;
    Ok(vec![with_failure(report, read)])
}

fn with_failure(mut report: Report, read: Result<()>) -> Report {
    if let Err(failure) = read {
        report.problems.push(super::Trouble { line: None, code: failure.code, message: failure.message });
    }
    report
}

async fn take_batches(
    target: Target<'_>,
    format: Format,
    name: &str,
    mut batches: mpsc::Receiver<Portion>,
) -> Result<Report> {
    let mut intake = target.begin(format);
    let mut harvest = StepBatch::default();
    let mut broken = None;
    while let Some(batch) = batches.recv().await {
        harvest.absorb(batch);
        if let Err(error) = intake.take(&mut harvest).await {
            broken = Some(error.into());
            break;
        }
        if is_hopeless(&mut harvest) {
            break;
        }
    }
    drop(batches);
    let taken = match broken {
        Some(failure) => Err(failure),
        None => finish(intake, &mut harvest).await,
    };
    report_of(format, target.mode, name, harvest, taken)
}

async fn finish(intake: Intake, harvest: &mut StepBatch) -> Result<Taken> {
    Ok(intake.finish(harvest).await?)
}

fn is_hopeless(harvest: &mut StepBatch) -> bool {
    let is_hopeless = harvest.problems.len() >= PROBLEMS_MAX || harvest.is_nameless();
    if is_hopeless {
        harvest.problems.truncate(PROBLEMS_MAX - 1);
        harvest.problems.push(Problem { line: harvest.line, what: Fault::GivenUp });
    }
    is_hopeless
}

/// Builds the report of a session. A failure becomes a problem of the session, except for a store failure, which ends
/// the command.
fn report_of(
    format: Format,
    mode: Mode,
    name: &str,
    harvest: StepBatch,
    taken: Result<Taken>,
) -> Result<Report> {
    let mut problems: Vec<super::Trouble> = harvest.problems.iter().map(trouble_of).collect();
    let taken = match taken {
        Ok(taken) => taken,
        Err(failure) if failure.code.starts_with("store.") => return Err(failure),
        Err(failure) => {
            problems.push(super::Trouble { line: None, code: failure.code, message: failure.message });
            Taken { added: 0, skipped: 0, is_in: false }
        }
    };
    if !taken.is_in && problems.is_empty() {
        let message = "the file contains no session".to_owned();
        problems.push(super::Trouble { line: None, code: "import.empty".into(), message });
    }
    Ok(Report {
        session: harvest.session.map(|session| session.id.to_string()),
        source: name.to_owned(),
        format: Some(format.as_str()),
        added: taken.added,
        skipped: taken.skipped,
        problems,
        dry_run: mode == Mode::DryRun,
        taken: taken.is_in,
    })
}

/// Collects the steps of a reader into batches and sends them to the writer.
struct Sending<'a> {
    harvest: StepBatch,
    bytes: usize,
    to: &'a mpsc::Sender<Portion>,
}

/// The receiver was dropped, so reading stops.
struct Gone;

impl Sending<'_> {
    fn after(&mut self, line_bytes: usize) -> std::result::Result<(), Gone> {
        self.bytes += line_bytes;
        if self.harvest.steps.len() >= BATCH_STEPS || self.bytes >= BATCH_BYTES {
            return self.send();
        }
        Ok(())
    }

    fn send(&mut self) -> std::result::Result<(), Gone> {
        self.bytes = 0;
        self.to.blocking_send(self.harvest.take_portion()).map_err(|_| Gone)
    }
}

/// Reads and parses a file. If the source fails, the part read so far is imported as if the file ended there.
fn read_file(mut source: Source, format: Format, to: &mpsc::Sender<Portion>) -> Result<()> {
    let harvest = StepBatch::of_file(source.dated);
    let mut sending = Sending { harvest, bytes: 0, to };
    if format == Format::Codex {
        let mut codex = Codex::new(&source_name(&source.path, format));
        let read = read_codex(&mut source, &mut codex, &mut sending);
        return end(&source, &mut codex, sending, read);
    }
    let Some(mut reader) = reader(format, &source_name(&source.path, format)) else { return Ok(()) };
    let read = read_foreign(&mut source, format, reader.as_mut(), &mut sending);
    end(&source, reader.as_mut(), sending, read)
}

fn end(source: &Source, reader: &mut dyn Reader, mut sending: Sending<'_>, read: Result<Read>) -> Result<()> {
    if matches!(read, Ok(Read::Stopped)) {
        return Ok(());
    }
    reader.finish(&mut sending.harvest);
    if source.is_torn() {
        sending.harvest.line = source.line_number().max(1);
        sending.harvest.report(Fault::Torn);
    }
    // If the receiver has stopped, this batch is not needed.
    let _ = sending.send();
    read.map(|_| ())
}

/// How far a source was read.
enum Read {
    ToTheEnd,
    /// The receiver was dropped.
    Stopped,
}

fn read_foreign(
    source: &mut Source,
    format: Format,
    reader: &mut dyn Reader,
    sending: &mut Sending<'_>,
) -> Result<Read> {
    if format.is_document(b"") {
        // A document, or one line of it, may contain a whole conversation. Send portions while parsing it.
        let to = sending.to.clone();
        sending.harvest.pour_into(move |portion| to.blocking_send(portion).is_ok());
    }
    if !source.is_document(format)? {
        return read_lines(source, sending, &mut |line, number, harvest| {
            reader.push_line(line, number, harvest);
        });
    }
    match source.read_all(DOCUMENT_BYTES_MAX)? {
        Some(bytes) => reader.push_document(&bytes, &mut sending.harvest),
        None => sending.harvest.report(Fault::TooLong),
    }
    if let Some(feed) = feed_beside(&source.path, format) {
        reader.push_document(&feed, &mut sending.harvest);
    }
    Ok(Read::ToTheEnd)
}

fn read_lines(
    source: &mut Source,
    sending: &mut Sending<'_>,
    each: &mut dyn FnMut(&[u8], u64, &mut StepBatch),
) -> Result<Read> {
    while let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? {
        let bytes = line.len();
        each(line, number, &mut sending.harvest);
        if sending.after(bytes).is_err() {
            return Ok(Read::Stopped);
        }
    }
    Ok(Read::ToTheEnd)
}

/// Reads a rollout, preceded by the rollouts that it continues.
fn read_codex(source: &mut Source, codex: &mut Codex, sending: &mut Sending<'_>) -> Result<Read> {
    let base = Codex::base_of(source.first_line());
    if let Some(base) = base
        && let Some((line, number)) = source.next_line(LINE_BYTES_MAX)?
    {
        codex.push_line(line, number, &mut sending.harvest);
        read_bases(&source.path, base, codex, sending)?;
    }
    read_lines(source, sending, &mut |line, number, harvest| codex.push_line(line, number, harvest))
}

fn read_bases(path: &Path, base: Base, codex: &mut Codex, sending: &mut Sending<'_>) -> Result<()> {
    let mut chain: Vec<(PathBuf, Base)> = Vec::new();
    let mut next = Some(base);
    while let Some(base) = next.take().filter(|_| chain.len() < BASES_MAX) {
        let known = |found: &PathBuf| found != path && chain.iter().all(|(before, _)| before != found);
        let Some(found) = find_rollout(path, &base.thread_id).filter(known) else {
            sending.harvest.report(Fault::MissingBase { base: base.thread_id });
            break;
        };
        let source = Source::open(&found, indicatif::ProgressBar::hidden())?;
        next = Codex::base_of(source.first_line());
        chain.push((found, base));
    }
    for (path, base) in chain.into_iter().rev() {
        let mut source = Source::open(&path, indicatif::ProgressBar::hidden())?;
        let end = base.end_ordinal_exclusive;
        let read = read_lines(&mut source, sending, &mut |line, number, harvest| {
            codex.push_inherited(line, number, end, harvest);
        })?;
        if matches!(read, Read::Stopped) {
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

/// Name of a source whose format has no ids: the file stem, or the absolute path for plain messages.
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
async fn take_database(target: Target<'_>, path: &Path) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    let name = path.display().to_string();
    let opened = Database::open(path).and_then(|database| Ok((database.sessions()?, database)));
    let fault = match opened {
        Ok((sessions, database)) => {
            for session in &sessions.ids {
                reports.push(take_database_session(target, &database, session, &name).await?);
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

async fn take_database_session(
    target: Target<'_>,
    database: &Database,
    session: &str,
    name: &str,
) -> Result<Report> {
    let mut intake = target.begin(Format::OpenCode);
    let mut harvest = StepBatch::default();
    let mut reader = sapwood::formats::import::opencode::Importer::default();
    let mut rows = Rows { session, after: None, number: 0 };
    let taken = loop {
        match rows.read_page(database, &mut reader, &mut harvest) {
            Ok(true) if !is_hopeless(&mut harvest) => {}
            Ok(_) => break Ok(None),
            Err(fault) => break Ok(Some(fault)),
        }
        if let Err(error) = intake.take(&mut harvest).await {
            break Err(error.into());
        }
    };
    let (taken, fault) = match taken {
        Ok(fault) => {
            // Import the part that was read before the error.
            reader.finish(&mut harvest);
            (finish(intake, &mut harvest).await, fault)
        }
        Err(failure) => (Err(failure), None),
    };
    let report = report_of(Format::OpenCode, target.mode, name, harvest, taken)?;
    let fault = fault.map(|fault| Failure::new(fault.code(), format!("session {session}: {fault}")));
    Ok(with_failure(report, fault.map_or(Ok(()), Err)))
}

/// Reads a session's rows page by page.
struct Rows<'a> {
    session: &'a str,
    after: Option<Cursor>,
    number: u64,
}

impl Rows<'_> {
    /// Reads one page. Returns whether there may be more.
    fn read_page(
        &mut self,
        database: &Database,
        reader: &mut dyn Reader,
        harvest: &mut StepBatch,
    ) -> std::result::Result<bool, Unreadable> {
        if self.number == 0 {
            self.number = 1;
            reader.push_line(&database.session_line(self.session)?, self.number, harvest);
        }
        let (lines, next) = database.message_lines(self.session, self.after.take())?;
        for line in lines {
            self.number += 1;
            reader.push_line(&line, self.number, harvest);
        }
        self.after = next;
        Ok(self.after.is_some())
    }
}
