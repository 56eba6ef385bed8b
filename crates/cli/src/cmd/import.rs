//! `sapwood import`: sessions from files. Line by line, so that a long file needs no memory; what is damaged is reported
//! with its line, and the good part is taken in. Importing again adds only what is new.

mod intake;
mod source;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::render::{DIM, RED, clean, plural};
use crate::wiring::App;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Origin {
    /// Whatever the file's first line says
    Auto,
    /// Sapwood's own JSONL
    Sapwood,
}

/// Take sessions in from files
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files, directories of .jsonl files, or - for stdin
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[arg(long, value_enum, default_value = "auto")]
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
    // Today both mean the same: there is one format.
    let (Origin::Auto | Origin::Sapwood) = args.from;
    let mut taken = 0;
    for path in source::expand(&args.paths)? {
        let source = match source::Source::open(&path, app.format()) {
            Ok(source) => source,
            Err(failure) => {
                print(app, &unopened(&path, failure, args.dry_run))?;
                continue;
            }
        };
        taken += intake::take_file(app, source, args.dry_run).await?;
    }
    match taken {
        0 => Err(Failure::new("import.nothing", "nothing could be imported")),
        _ => Ok(()),
    }
}

fn unopened(path: &std::path::Path, failure: Failure, dry_run: bool) -> Report {
    let trouble = Trouble { line: None, code: failure.code, message: failure.message };
    Report {
        session: None,
        source: path.display().to_string(),
        format: None,
        added: 0,
        skipped: 0,
        problems: vec![trouble],
        dry_run,
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
