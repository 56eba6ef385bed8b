//! `sapwood migrate`: copies a whole store to another store.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use sapwood::core::Store;
use sapwood::core::port::store::Finding;
use sapwood::engine::migrate::{MigratedSession, Migration, MigrationTotal, Mode};
use sapwood::store::OpenOptions;

use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::key;
use crate::render::{Format, Out, RED, clean, plural};

/// Copy all data from one store to another and verify it
///
/// Copies sessions, blobs, API keys, memories and the audit log of all tenants, or of the tenant given with --tenant. The
/// source is only read and may be in use. Running the command again continues where it stopped and adds new data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood migrate --from sqlite:sapwood.db --to postgres://sapwood@localhost/sapwood
  sapwood migrate --from sqlite:sapwood.db --to jsonl:backup --dry-run")]
pub struct MigrateArgs {
    /// Source store: sqlite:FILE, jsonl:DIR or postgres://USER@HOST/DB
    #[arg(long, value_name = "URL")]
    from: String,
    /// Target store; created if it does not exist
    #[arg(long, value_name = "URL")]
    to: String,
    /// Show what would be copied, without copying it
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(args: MigrateArgs, global: &Global) -> Result<()> {
    if args.from == args.to {
        return Err(Failure::usage(
            "source and target are the same store",
            "choose another target with --to",
        ));
    }
    let (from, to) = (open(&args.from, global)?, open(&args.to, global)?);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Copy };
    let mut out = Out::new(global.format());
    let mut migration = Migration::new(from, to, mode);
    if let Some(tenant) = &global.tenant {
        migration = migration.only(tenant.parse().map_err(sapwood::Error::from)?);
    }
    let total = copy(migration, &mut out, Sessions::Print).await?;
    print_total(&mut out, &total, mode)
}

/// Which sessions are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sessions {
    /// Every session with `--json`, otherwise those with a problem.
    Print,
    /// Only those with a problem, on stderr.
    Problems,
}

/// Runs a migration with a progress display.
pub async fn copy(migration: Migration, out: &mut Out, sessions: Sessions) -> Result<MigrationTotal> {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(120));
    let (mut count, mut failed) = (0, None);
    let mut on_session = |moved: &MigratedSession| {
        count += 1;
        bar.set_message(format!("{}, last {}", plural(count, "session"), moved.session));
        let printed = bar.suspend(|| match (sessions, &moved.problem) {
            (Sessions::Print, _) => print_session(out, moved),
            (Sessions::Problems, Some(problem)) => {
                let session = format!("session {} of tenant {}", moved.session, moved.tenant);
                anstream::eprintln!("{RED}✗{RED:#} {session}: {}", clean(problem));
                Ok(())
            }
            (Sessions::Problems, None) => Ok(()),
        });
        failed = failed.take().or(printed.err());
    };
    let total = migration.run(&mut on_session).await;
    bar.finish_and_clear();
    if let Ok(total) = &total {
        for Finding { place, what, .. } in &total.left_out {
            anstream::eprintln!("{RED}✗{RED:#} {}: {}", clean(place), clean(what));
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(total?),
    }
}

/// Opens a store. Only SQLite stores can be encrypted and use a key.
fn open(url: &str, global: &Global) -> Result<Arc<dyn Store>> {
    let mut paths = AppPaths::find(global)?;
    paths.url = url.to_owned();
    let key = if url.starts_with("sqlite:") { key::find(&paths)? } else { None };
    let options = OpenOptions { key, ..OpenOptions::default() };
    Ok(sapwood::store::open(url, options).map_err(sapwood::Error::from)?)
}

fn print_session(out: &mut Out, moved: &MigratedSession) -> Result<()> {
    if out.is_json() {
        out.json(moved)?;
    } else if let Some(problem) = &moved.problem {
        writeln!(
            out,
            "{RED}✗{RED:#} session {} of tenant {}: {}",
            moved.session,
            moved.tenant,
            clean(problem)
        )?;
    }
    Ok(out.flush()?)
}

fn print_total(out: &mut Out, total: &MigrationTotal, mode: Mode) -> Result<()> {
    if out.format == Format::Json {
        out.json(&serde_json::json!({ "total": total }))?;
    } else {
        let (would, compared) = match mode {
            Mode::DryRun => ("would be ", ""),
            Mode::Copy => ("", "; all logs and contexts are identical in both stores"),
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
                Failure::new("migrate.problems", plural(problems, "session") + " could not be migrated");
            Err(failure.with_hint("see the reasons above; the other sessions were migrated"))
        }
    }
}
