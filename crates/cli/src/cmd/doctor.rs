//! `sapwood doctor`: checks the integrity of a store.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use sapwood::core::port::store::{Checksums, Finding, Repair};
use sapwood::engine::doctor::{Diagnosis, diagnose};
use sapwood::store::DamagedLog;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{GREEN, RED, clean, plural};

/// Check the store and report damage
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood doctor
  sapwood doctor --repair
  sapwood doctor --seal")]
pub struct DoctorArgs {
    /// Rebuild derived data; the log itself is never changed
    #[arg(long)]
    repair: bool,
    /// Add checksums to a store of an earlier version; a SQLite file is rewritten, which needs free disk space for two copies
    #[arg(long)]
    seal: bool,
}

impl DoctorArgs {
    /// Only a repair continues without the damaged part of a write-ahead log.
    pub fn damaged_log(&self) -> DamagedLog {
        if self.repair { DamagedLog::SetAside } else { DamagedLog::Refuse }
    }
}

pub async fn run(app: &mut App, args: DoctorArgs) -> Result<()> {
    if args.seal {
        seal_pages(app).await?;
    }
    let repair = if args.repair { Repair::Yes } else { Repair::No };
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(120));
    let progress = |seen: &Diagnosis| {
        bar.set_message(format!("{}, {}", plural(seen.sessions, "session"), plural(seen.entries, "entry")));
    };
    let diagnosis = diagnose(&app.engine, &app.scope, repair, progress).await;
    bar.finish_and_clear();
    let diagnosis = diagnosis?;
    print_diagnosis(app, &diagnosis)?;
    let unrepaired = diagnosis.findings.iter().filter(|finding| !finding.repaired).count();
    if unrepaired == 0 {
        return Ok(());
    }
    app.out.flush()?;
    let mut failure = Failure::new("doctor.findings", plural(unrepaired as u64, "unrepaired finding"));
    if args.repair {
        failure.hint = "restore the sessions named above from an export or a backup".to_owned();
    }
    Err(failure)
}

/// Adds checksums to the files of the store.
async fn seal_pages(app: &App) -> Result<()> {
    app.engine.store().add_checksums().await.map_err(sapwood::Error::from)?;
    Ok(())
}

/// Says how the store detects changed data.
fn describe_checksums(checksums: Checksums) -> &'static str {
    match checksums {
        Checksums::Pages => "each page has a checksum",
        Checksums::Encrypted => "each page has an authentication code",
        Checksums::Unproven => "unproven: its pages have no checksums; `sapwood doctor --seal` adds them",
    }
}

fn print_diagnosis(app: &mut App, diagnosis: &Diagnosis) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(diagnosis);
    }
    for finding in &diagnosis.findings {
        print_finding(app, finding)?;
    }
    let place = app.engine.store().describe();
    writeln!(
        app.out,
        "{}: {}, {}, {}, {}",
        clean(&place),
        plural(diagnosis.sessions, "session"),
        plural(diagnosis.entries, "entry"),
        plural(diagnosis.audit_lines, "audit line"),
        plural(diagnosis.findings.len() as u64, "finding"),
    )?;
    if let Some(checksums) = diagnosis.checksums {
        writeln!(app.out, "{}", describe_checksums(checksums))?;
    }
    Ok(())
}

fn print_finding(app: &mut App, finding: &Finding) -> Result<()> {
    let (style, mark) = if finding.repaired { (GREEN, "repaired") } else { (RED, "found") };
    let Finding { rule, place, what, .. } = finding;
    writeln!(app.out, "{style}{mark}{style:#} [{rule}] {}: {}", clean(place), clean(what))?;
    Ok(())
}
