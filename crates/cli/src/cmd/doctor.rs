//! `sapwood doctor`: checks the integrity of a store.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use sapwood::core::port::store::{Finding, Repair};
use sapwood::engine::doctor::{Diagnosis, diagnose};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{GREEN, RED, clean, plural};

/// Check the store and report damage
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood doctor
  sapwood doctor --repair")]
pub struct DoctorArgs {
    /// Rebuild derived data; the log itself is never changed
    #[arg(long)]
    repair: bool,
}

pub async fn run(app: &mut App, args: DoctorArgs) -> Result<()> {
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
    Ok(())
}

fn print_finding(app: &mut App, finding: &Finding) -> Result<()> {
    let (style, mark) = if finding.repaired { (GREEN, "repaired") } else { (RED, "found") };
    let Finding { rule, place, what, .. } = finding;
    writeln!(app.out, "{style}{mark}{style:#} [{rule}] {}: {}", clean(place), clean(what))?;
    Ok(())
}
