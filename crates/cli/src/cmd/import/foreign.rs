//! Imports another program's file. A thread reads and parses the file, and the calling task writes new entries.

use std::path::{Path, PathBuf};

use sapwood::engine::import::{ForeignImport, ImportOptions, StepReader};
use sapwood::formats::import::codex::{HistoryBase, Importer as Codex};
use sapwood::formats::import::{DOCUMENT_BYTES_MAX, Format, LINE_BYTES_MAX, ProblemKind};
use sapwood::{Engine, Scope};

use super::source::Source;
use super::{ImportReport, to_problem};
use crate::failure::Result;

/// Maximum length of a chain of rollouts that continue each other.
const BASES_MAX: usize = 64;

/// The engine and scope into which sessions are imported.
pub struct ImportTarget<'a> {
    pub engine: &'a Engine,
    pub scope: &'a Scope,
    pub options: ImportOptions,
}

impl ImportTarget<'_> {
    pub fn begin(&self, format: Format, name: &str) -> Result<ForeignImport> {
        Ok(self.engine.imports().begin_foreign(self.scope, format, name, self.options.clone())?)
    }

    /// Imports the rest of the steps and returns the report.
    pub async fn finish(&self, import: ForeignImport, format: Format, name: &str) -> Result<ImportReport> {
        let report = import.finish().await;
        ImportReport::new(report, name, Some(format), self.options.mode, "the file contains no session")
    }
}

/// Imports one file, which is not a database.
pub async fn import_file(
    mut target: ImportTarget<'_>,
    mut source: Source,
    format: Format,
) -> Result<ImportReport> {
    target.options.file_time = Some(source.dated);
    let name = source.name.clone();
    let mut import = target.begin(format, &source_name(&source.path, format))?;
    // If the source fails, the part read so far is imported as if the file ended there.
    let read = import.read(move |reader| read_source(&mut source, format, reader)).await;
    let mut report = target.finish(import, format, &name).await?;
    report.problems.extend(read.and_then(Result::err).map(to_problem));
    Ok(report)
}

fn read_source(source: &mut Source, format: Format, reader: &mut StepReader) -> Result<()> {
    let read = match (format, source.is_document(format)) {
        (Format::Codex, _) => read_codex(source, reader),
        (_, Ok(true)) => read_document(source, format, reader),
        (_, Ok(false)) => read_lines(source, |line, number| reader.push_line(line, number)),
        (_, Err(failure)) => Err(failure),
    };
    if source.is_torn() {
        reader.report(Some(source.line_number().max(1)), ProblemKind::Torn);
    }
    read
}

fn read_document(source: &mut Source, format: Format, reader: &mut StepReader) -> Result<()> {
    match source.read_all(DOCUMENT_BYTES_MAX)? {
        Some(bytes) => reader.push_document(&bytes),
        None => reader.report(None, ProblemKind::TooLong),
    }
    if let Some(feed) = feed_beside(&source.path, format) {
        reader.push_document(&feed);
    }
    Ok(())
}

/// Passes lines to `push` until it returns false.
fn read_lines(source: &mut Source, mut push: impl FnMut(&[u8], u64) -> bool) -> Result<()> {
    while let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? {
        if !push(line, number) {
            break;
        }
    }
    Ok(())
}

/// Reads a rollout, preceded by the rollouts that it continues.
fn read_codex(source: &mut Source, reader: &mut StepReader) -> Result<()> {
    if let Some(base) = Codex::base_of(source.first_line())
        && let Some((line, number)) = source.next_line(LINE_BYTES_MAX)?
    {
        reader.push_line(line, number);
        read_bases(&source.path, base, reader)?;
    }
    read_lines(source, |line, number| reader.push_line(line, number))
}

fn read_bases(path: &Path, base: HistoryBase, reader: &mut StepReader) -> Result<()> {
    let mut chain: Vec<(PathBuf, HistoryBase)> = Vec::new();
    let mut next = Some(base);
    while let Some(base) = next.take().filter(|_| chain.len() < BASES_MAX) {
        let known = |found: &PathBuf| found != path && chain.iter().all(|(before, _)| before != found);
        let Some(found) = find_rollout(path, &base.thread_id).filter(known) else {
            reader.report(None, ProblemKind::MissingBase { base: base.thread_id });
            break;
        };
        let source = Source::open(&found, indicatif::ProgressBar::hidden())?;
        next = Codex::base_of(source.first_line());
        chain.push((found, base));
    }
    for (path, base) in chain.into_iter().rev() {
        let mut source = Source::open(&path, indicatif::ProgressBar::hidden())?;
        let end = base.end_ordinal_exclusive;
        read_lines(&mut source, |line, number| reader.push_inherited(line, number, end))?;
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
