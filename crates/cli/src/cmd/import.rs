//! `sapwood import`: imports sessions from files, or from the directories where agents store them.
//!
//! Files are read line by line, so memory use does not depend on their size. Damaged lines are reported with their
//! numbers and the rest is imported. Repeating an import adds only new entries.

mod discover;
mod foreign;
mod intake;
mod source;
mod zstd;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sapwood::engine::import::{Mode, SiblingSessions};
use sapwood::formats::import::{Format, Problem};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{DIM, RED, clean, plural};

/// Number of files from which store lookups are shared between files.
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
        Some(match self {
            ImportFormatArg::Auto => return None,
            ImportFormatArg::Sapwood => Format::Sapwood,
            ImportFormatArg::Operator => Format::Operator,
            ImportFormatArg::Pi => Format::Pi,
            ImportFormatArg::ClaudeCode => Format::ClaudeCode,
            ImportFormatArg::Codex => Format::Codex,
            ImportFormatArg::Opencode => Format::OpenCode,
            ImportFormatArg::GeminiCli => Format::GeminiCli,
            ImportFormatArg::RoleFiles => Format::RoleFiles,
            ImportFormatArg::Messages => Format::Messages,
        })
    }
}

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

#[derive(Debug, Serialize)]
struct ReportedProblem {
    line: Option<u64>,
    code: std::borrow::Cow<'static, str>,
    message: String,
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
    for path in found.files {
        taken += match source::Source::open(&path, bar.clone()) {
            Ok(source) => import_file(app, source, args.from.format(), mode, siblings.as_ref(), &bar).await?,
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

async fn import_file(
    app: &mut App,
    source: source::Source,
    given: Option<Format>,
    mode: Mode,
    siblings: Option<&SiblingSessions>,
    bar: &indicatif::ProgressBar,
) -> Result<u64> {
    match given.or_else(|| source.detect()).unwrap_or(Format::Sapwood) {
        Format::Sapwood => intake::import_file(app, source, mode).await,
        format => {
            let target = foreign::ImportTarget { engine: &app.engine, scope: &app.scope, mode, siblings };
            let reports = foreign::import_file(target, source, format).await?;
            bar.suspend(|| reports.iter().try_for_each(|report| print(app, report)))?;
            Ok(reports.iter().map(|report| u64::from(report.taken)).sum())
        }
    }
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

fn to_reported(problem: &Problem) -> ReportedProblem {
    ReportedProblem {
        line: Some(problem.line),
        code: problem.what.code().into(),
        message: problem.what.to_string(),
    }
}

fn problem_report(path: &Path, failure: Failure, mode: Mode) -> ImportReport {
    let problem = ReportedProblem { line: None, code: failure.code, message: failure.message };
    ImportReport {
        session: None,
        source: path.display().to_string(),
        format: None,
        added: 0,
        skipped: 0,
        problems: vec![problem],
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
