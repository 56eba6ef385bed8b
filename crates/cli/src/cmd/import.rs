//! `sapwood import`: imports sessions from files, or from the directories where agents store them.
//!
//! Files are read line by line, so memory use does not depend on their size; only a single JSON document is read whole.
//! Damaged lines are reported with their numbers and the rest is imported. Repeating an import adds only new entries.

mod database;
mod discover;
mod foreign;
mod own;
mod source;
mod zstd;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use sapwood::Engine;
use sapwood::engine::import::{
    ImportOptions, ImportReport as SessionReport, Mode, ReportedProblem, SiblingSessions,
};
use sapwood::formats::import::Format;
use sapwood::store::in_memory::MemoryStore;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{DIM, RED, clean, note, plural};

/// Minimum number of files for which store lookups are shared between the files.
const SHARED_LOOKUP_FILES_MIN: usize = 50;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ImportFormatArg {
    /// Detect the format from the first lines
    Auto,
    /// Sapwood's native JSON Lines
    Sapwood,
    /// operator session files
    Operator,
    /// pi session files
    Pi,
    /// Claude Code transcripts
    ClaudeCode,
    /// Codex rollouts
    Codex,
    /// OpenCode database
    Opencode,
    /// Gemini CLI chats
    GeminiCli,
    /// transcript.json of a role
    RoleFiles,
    /// OpenAI or Anthropic messages: an array, or one per line
    Messages,
}

impl ImportFormatArg {
    fn format(self) -> Option<Format> {
        let value = self.to_possible_value()?;
        Format::ALL.iter().copied().find(|format| format.as_str() == value.get_name())
    }
}

/// Maximum size of a file that is shown without importing it.
const LOADED_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of problems that are printed for such a file.
const PROBLEMS_SHOWN_MAX: usize = 10;

/// Import sessions from files
///
/// Without a path, imports from the default locations of the agents on this machine. Repeating an import adds only new
/// entries.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood import
  sapwood import session.jsonl
  sapwood import ~/.claude/projects --from claude-code --dry-run")]
pub struct ImportArgs {
    /// Files, directories, or - for stdin; default: the agents' default locations
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Input format
    #[arg(long, value_enum, default_value = "auto", value_name = "FORMAT")]
    from: ImportFormatArg,
    /// Show what would be imported, without importing it
    #[arg(long)]
    dry_run: bool,
}

/// Result of importing one session of a file.
#[derive(Debug, Serialize)]
struct ImportReport {
    session: Option<String>,
    source: String,
    format: Option<&'static str>,
    added: u64,
    skipped: u64,
    problems: Vec<ReportedProblem>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// Whether the valid part of the session is in the store now.
    #[serde(skip)]
    taken: bool,
}

impl ImportReport {
    /// Describes an imported session. A failure becomes a problem of the session, except for a store failure, which ends
    /// the command.
    fn new(
        mut report: SessionReport,
        source: &str,
        format: Option<Format>,
        mode: Mode,
        if_empty: &str,
    ) -> Result<Self> {
        match report.failure.map(Failure::from) {
            Some(failure) if failure.code.starts_with("store.") => return Err(failure),
            failure => report.problems.extend(failure.map(to_problem)),
        }
        if !report.is_stored && report.problems.is_empty() {
            report.problems.push(to_problem(Failure::new("import.empty", if_empty)));
        }
        Ok(Self {
            session: report.session.map(|session| session.to_string()),
            source: source.to_owned(),
            format: format.map(Format::as_str),
            added: report.added,
            skipped: report.skipped,
            problems: report.problems,
            dry_run: mode == Mode::DryRun,
            taken: report.is_stored,
        })
    }
}

pub async fn run(app: &mut App, args: ImportArgs) -> Result<()> {
    let paths = if args.paths.is_empty() { default_locations()? } else { args.paths.clone() };
    let found = source::expand(&paths);
    if args.paths.is_empty() && found.files.is_empty() && found.unreadable.is_empty() {
        return Err(nothing_found());
    }
    let bar = source::bar(&found.files, app.format());
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let mut taken = 0;
    for (directory, failure) in found.unreadable {
        bar.suspend(|| print(app, &problem_report(&directory, failure, mode)))?;
    }
    // Report empty directories only if the user named them: the default locations may exist and be empty.
    for directory in found.empty.iter().filter(|_| !args.paths.is_empty()) {
        let failure = Failure::new("import.empty", "the directory contains no session files");
        bar.suspend(|| print(app, &problem_report(directory, failure, mode)))?;
    }
    let siblings = (found.files.len() >= SHARED_LOOKUP_FILES_MIN).then(SiblingSessions::default);
    let options = ImportOptions { siblings, ..ImportOptions::new(mode) };
    for path in found.files {
        taken += match source::Source::open(&path, bar.clone()) {
            Ok(source) => import_file(app, source, args.from.format(), options.clone(), &bar).await?,
            Err(failure) => {
                bar.suspend(|| print(app, &problem_report(&path, failure, mode)))?;
                0
            }
        };
    }
    bar.finish_and_clear();
    match taken {
        0 => Err(Failure::new("import.nothing", "no session could be imported")),
        _ => Ok(()),
    }
}

/// Imports a file into a store in memory, for a command that only shows it. Problems are printed to stderr.
pub async fn load(app: &App, path: &Path) -> Result<Engine> {
    let bytes = std::fs::metadata(path).map_err(|error| Failure::file(path, &error))?.len();
    if bytes > LOADED_BYTES_MAX {
        let message = format!("{} has {bytes} bytes, over the limit of {LOADED_BYTES_MAX}", path.display());
        let hint = "import it with `sapwood import`, then show the session";
        return Err(Failure::new("input.too_large", message).with_hint(hint));
    }
    // A file may have more sessions than a store in memory keeps by default. Its size bounds them.
    let engine = sapwood::engine_over(Arc::new(MemoryStore::with_cap(usize::MAX)));
    let source = source::Source::open(path, indicatif::ProgressBar::hidden())?;
    let (scope, options) = (app.scope.clone(), ImportOptions::new(Mode::Write));
    let mut reports = Vec::new();
    match source.detect().unwrap_or(Format::Sapwood) {
        Format::Sapwood => {
            let file = own::OwnFile { engine: engine.clone(), scope, options };
            file.read(source, |report| {
                reports.push(report);
                Ok(())
            })
            .await?;
        }
        format => {
            let target = foreign::ImportTarget { engine: &engine, scope: &scope, options };
            match format {
                Format::OpenCode => reports = database::import(&target, path).await?,
                format => reports.push(foreign::import_file(target, source, format).await?),
            }
        }
    }
    let problems = reports.iter().flat_map(|report| &report.problems);
    for problem in problems.take(PROBLEMS_SHOWN_MAX) {
        let line = problem.line.map_or(String::new(), |line| format!("line {line}: "));
        note(app.format(), &format!("{line}{}", problem.message));
    }
    match reports.iter().any(|report| report.taken) {
        true => Ok(engine),
        false => Err(Failure::new("import.nothing", format!("{} contains no session", path.display()))
            .with_hint("give a session file; run `sapwood help import` to list the formats")),
    }
}

async fn import_file(
    app: &mut App,
    source: source::Source,
    given: Option<Format>,
    options: ImportOptions,
    bar: &indicatif::ProgressBar,
) -> Result<u64> {
    let format = given.or_else(|| source.detect()).unwrap_or(Format::Sapwood);
    if format == Format::Sapwood {
        return own::import_file(app, source, options).await;
    }
    let target = foreign::ImportTarget { engine: &app.engine, scope: &app.scope, options };
    let reports = match format {
        Format::OpenCode => database::import(&target, &source.path).await?,
        _ => vec![foreign::import_file(target, source, format).await?],
    };
    bar.suspend(|| reports.iter().try_for_each(|report| print(app, report)))?;
    Ok(reports.iter().map(|report| u64::from(report.taken)).sum())
}

fn default_locations() -> Result<Vec<PathBuf>> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let here = std::env::current_dir().unwrap_or_default();
    let locations = discover::default_locations(home.as_deref(), &here);
    if locations.is_empty() { Err(nothing_found()) } else { Ok(locations) }
}

fn nothing_found() -> Failure {
    let message = "no sessions found in the default locations";
    Failure::new("import.nothing", message).with_hint("give the path of a file or directory")
}

fn to_problem(failure: Failure) -> ReportedProblem {
    ReportedProblem { line: None, code: failure.code, message: failure.message }
}

fn problem_report(path: &Path, failure: Failure, mode: Mode) -> ImportReport {
    ImportReport {
        session: None,
        source: path.display().to_string(),
        format: None,
        added: 0,
        skipped: 0,
        problems: vec![to_problem(failure)],
        dry_run: mode == Mode::DryRun,
        taken: false,
    }
}

fn print(app: &mut App, report: &ImportReport) -> Result<()> {
    if app.out.is_json() {
        app.out.json(report)?;
        return Ok(app.out.flush()?);
    }
    let session = report.session.as_deref().unwrap_or("no session");
    writeln!(
        app.out,
        "{}: {session}, {}{}",
        clean(&report.source),
        counts_of(report),
        if report.problems.is_empty() {
            String::new()
        } else {
            format!(", {}", plural(report.problems.len() as u64, "problem"))
        },
    )?;
    for problem in &report.problems {
        let location = problem.line.map_or(String::new(), |line| format!("line {line}: "));
        writeln!(
            app.out,
            "  {RED}✗{RED:#} {location}{} {DIM}{}{DIM:#}",
            clean(&problem.message),
            problem.code
        )?;
    }
    Ok(app.out.flush()?)
}

fn counts_of(report: &ImportReport) -> String {
    let would = if report.dry_run { "would be " } else { "" };
    match (report.added, report.skipped) {
        (0, skipped) if skipped > 0 && report.problems.is_empty() => {
            format!("up to date ({})", plural(skipped, "entry"))
        }
        (added, 0) => format!("{} {would}added", plural(added, "entry")),
        (added, skipped) => format!("{} {would}added, {skipped} already present", plural(added, "entry")),
    }
}
