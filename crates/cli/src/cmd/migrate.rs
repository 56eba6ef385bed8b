//! `sapwood migrate`: everything from one store to another.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use sapwood::core::Store;
use sapwood::engine::migrate::{Migration, Mode, Moved, Total};
use sapwood::store::OpenOptions;

use crate::app::AppPaths;
use crate::args::Global;
use crate::failure::{Failure, Result};
use crate::key;
use crate::render::{Format, Out, RED, clean, plural};

/// Copy every session, blob and key from one store to another, and compare them
///
/// The source is only read and may be in use. Running it again continues where it ended and adds what is new since.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The store to read: sqlite:FILE, jsonl:DIR or postgres://USER@HOST/DB
    #[arg(long, value_name = "URL")]
    from: String,
    /// The store to fill; it is made if it is not there
    #[arg(long, value_name = "URL")]
    to: String,
    /// Say what would be copied, and copy nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(args: MigrateArgs, global: &Global) -> Result<()> {
    if args.from == args.to {
        return Err(Failure::usage("the two stores are the same", "name another one with --to"));
    }
    let (from, to) = (open(&args.from, global)?, open(&args.to, global)?);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Copy };
    let mut out = Out::new(global.format());
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(120));
    let (mut sessions, mut failed) = (0, None);
    let migration = Migration::new(from, to, mode);
    let mut tell = |moved: &Moved| {
        sessions += 1;
        bar.set_message(format!("{}, last {}", plural(sessions, "session"), moved.session));
        let printed = bar.suspend(|| print_session(&mut out, moved));
        failed = failed.take().or(printed.err());
    };
    let total = migration.run(&mut tell).await;
    bar.finish_and_clear();
    if let Some(failure) = failed {
        return Err(failure);
    }
    print_total(&mut out, &total?, mode)
}

/// A key opens what can be encrypted; the other side has none.
fn open(url: &str, global: &Global) -> Result<Arc<dyn Store>> {
    let mut place = AppPaths::find(global)?;
    place.url = url.to_owned();
    let key = if url.starts_with("sqlite:") { key::find(&place)? } else { None };
    let options = OpenOptions { key, ..OpenOptions::default() };
    Ok(sapwood::store::open(url, options).map_err(sapwood::Error::from)?)
}

fn print_session(out: &mut Out, moved: &Moved) -> Result<()> {
    if out.is_json() {
        out.json(moved)?;
    } else if let Some(problem) = &moved.problem {
        writeln!(out, "{RED}✗{RED:#} {} of {}: {}", moved.session, moved.tenant, clean(problem))?;
    }
    Ok(out.flush()?)
}

fn print_total(out: &mut Out, total: &Total, mode: Mode) -> Result<()> {
    if out.format == Format::Json {
        out.json(&serde_json::json!({ "total": total }))?;
    } else {
        let (would, compared) = match mode {
            Mode::DryRun => ("would be ", ""),
            Mode::Copy => ("", "; every log and context is the same on both sides"),
        };
        writeln!(
            out,
            "{}, {}: {} {would}added{}",
            plural(total.sessions, "session"),
            plural(total.entries, "entry"),
            plural(total.added, "entry"),
            if total.problems == 0 { compared } else { "" },
        )?;
    }
    out.flush()?;
    match total.problems {
        0 => Ok(()),
        problems => {
            let failure =
                Failure::new("migrate.problems", plural(problems, "session") + " could not be moved");
            Err(failure.with_hint("the lines above say why; the others are there"))
        }
    }
}
