//! `sapwood import`: sessions from files, or from where agents leave them. Line by line, so that a long file needs no memory; what is damaged is reported
//! with its line, and the good part is taken in. Importing again adds only what is new.

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
use sapwood::{Engine, Scope};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{DIM, RED, clean, plural};

/// From so many files on, what they share of the store is looked up once for all of them.
const KIN_FILES_MIN: usize = 50;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Origin {
    /// Whatever the file's first lines say
    Auto,
    /// Sapwood's own JSONL
    Sapwood,
    Operator,
    Pi,
    ClaudeCode,
    Codex,
    Opencode,
    GeminiCli,
    RoleFiles,
    /// OpenAI's or Anthropic's messages: an array, or one a line
    Messages,
}

impl Origin {
    fn format(self) -> Option<Format> {
        Some(match self {
            Origin::Auto => return None,
            Origin::Sapwood => Format::Sapwood,
            Origin::Operator => Format::Operator,
            Origin::Pi => Format::Pi,
            Origin::ClaudeCode => Format::ClaudeCode,
            Origin::Codex => Format::Codex,
            Origin::Opencode => Format::OpenCode,
            Origin::GeminiCli => Format::GeminiCli,
            Origin::RoleFiles => Format::RoleFiles,
            Origin::Messages => Format::Messages,
        })
    }
}

/// Take sessions in from files
///
/// Without a path it looks where the agents of this machine leave their sessions. Importing again adds only what is new.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files, directories, or - for stdin; the usual places if not given
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[arg(long, value_enum, default_value = "auto", value_name = "FORMAT")]
    from: Origin,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// What became of one session of a file.
#[derive(Debug, Serialize)]
struct Report {
    session: Option<String>,
    source: String,
    format: Option<&'static str>,
    added: u64,
    skipped: u64,
    problems: Vec<Trouble>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// Whether the session is in the store now, as far as the file is good.
    #[serde(skip)]
    taken: bool,
}

#[derive(Debug, Serialize)]
struct Trouble {
    line: Option<u64>,
    code: std::borrow::Cow<'static, str>,
    message: String,
}

pub async fn run(app: &mut App, args: ImportArgs) -> Result<()> {
    let paths = if args.paths.is_empty() { usual_places()? } else { args.paths.clone() };
    let found = source::expand(&paths);
    if args.paths.is_empty() && found.files.is_empty() && found.unread.is_empty() {
        return Err(nothing_there());
    }
    let bar = source::bar(&found.files, app.format());
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let mut taken = 0;
    for (directory, failure) in found.unread {
        bar.suspend(|| print(app, &unopened(&directory, failure, mode)))?;
    }
    // Whoever names a directory expects something in it; the usual places are there whether anything is or not.
    for directory in found.bare.iter().filter(|_| !args.paths.is_empty()) {
        let failure = Failure::new("import.empty", "there is no session file in it");
        bar.suspend(|| print(app, &unopened(directory, failure, mode)))?;
    }
    let kin = (found.files.len() >= KIN_FILES_MIN).then(SiblingSessions::default);
    for path in found.files {
        taken += match source::Source::open(&path, bar.clone()) {
            Ok(source) => take_file(app, source, args.from.format(), mode, kin.as_ref(), &bar).await?,
            Err(failure) => {
                bar.suspend(|| print(app, &unopened(&path, failure, mode)))?;
                0
            }
        };
    }
    bar.finish_and_clear();
    match taken {
        0 => Err(Failure::new("import.nothing", "nothing could be imported")),
        _ => Ok(()),
    }
}

async fn take_file(
    app: &mut App,
    source: source::Source,
    given: Option<Format>,
    mode: Mode,
    kin: Option<&SiblingSessions>,
    bar: &indicatif::ProgressBar,
) -> Result<u64> {
    match given.or_else(|| source.detect()).unwrap_or(Format::Sapwood) {
        Format::Sapwood => intake::take_file(app, source, mode).await,
        format => {
            let target = foreign::Target { engine: &app.engine, scope: &app.scope, mode, kin };
            let reports = foreign::take_file(target, source, format).await?;
            bar.suspend(|| reports.iter().try_for_each(|report| print(app, report)))?;
            Ok(reports.iter().map(|report| u64::from(report.taken)).sum())
        }
    }
}

/// Takes a file in without a word, as the command does, and says how many entries came; for `sapwood bench`.
pub async fn take_quietly(engine: &Engine, scope: &Scope, path: &Path, format: Format) -> Result<u64> {
    let target = foreign::Target { engine, scope, mode: Mode::Write, kin: None };
    let source = source::Source::open(path, indicatif::ProgressBar::hidden())?;
    Ok(foreign::take_file(target, source, format).await?.iter().map(|report| report.added).sum())
}

fn usual_places() -> Result<Vec<PathBuf>> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let here = std::env::current_dir().unwrap_or_default();
    let places = discover::usual_places(home.as_deref(), &here);
    if places.is_empty() { Err(nothing_there()) } else { Ok(places) }
}

fn nothing_there() -> Failure {
    let message = "no agent has left sessions in the usual places";
    Failure::new("import.nothing", message).with_hint("give the path of a file or directory")
}

fn trouble_of(problem: &Problem) -> Trouble {
    Trouble { line: Some(problem.line), code: problem.what.code().into(), message: problem.what.to_string() }
}

fn unopened(path: &Path, failure: Failure, mode: Mode) -> Report {
    let trouble = Trouble { line: None, code: failure.code, message: failure.message };
    Report {
        session: None,
        source: path.display().to_string(),
        format: None,
        added: 0,
        skipped: 0,
        problems: vec![trouble],
        dry_run: mode == Mode::DryRun,
        taken: false,
    }
}

fn print(app: &mut App, report: &Report) -> Result<()> {
    if app.out.is_json() {
        app.out.json(report)?;
        return Ok(app.out.flush()?);
    }
    let would = if report.dry_run { "would be " } else { "" };
    let session = report.session.as_deref().unwrap_or("no session");
    writeln!(
        app.out,
        "{}: {session}, {} {would}added, {} there already{}",
        clean(&report.source),
        plural(report.added, "entry"),
        report.skipped,
        if report.problems.is_empty() {
            String::new()
        } else {
            format!(", {}", plural(report.problems.len() as u64, "problem"))
        },
    )?;
    for problem in &report.problems {
        let place = problem.line.map_or(String::new(), |line| format!("line {line}: "));
        writeln!(app.out, "  {RED}✗{RED:#} {place}{} {DIM}{}{DIM:#}", clean(&problem.message), problem.code)?;
    }
    Ok(app.out.flush()?)
}
