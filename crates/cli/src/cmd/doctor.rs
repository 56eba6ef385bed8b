//! `sapwood doctor`: checks the integrity of a store.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use sapwood::core::entry::proof::LogHead;
use sapwood::core::port::store::{Checksums, Finding, Repair, SealReport};
use sapwood::engine::doctor::{Diagnosis, DoctorOptions, diagnose_with};
use sapwood::store::DamagedLog;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{GREEN, RED, clean, plural};

/// Check the store and report damage
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood doctor
  sapwood doctor --repair
  sapwood doctor --seal
  sapwood doctor --heads > heads.txt
  sapwood doctor --from 412:9f31…")]
pub struct DoctorArgs {
    /// Rebuild derived data, and restore lines of JSONL files that their checksums prove; no entry is ever changed
    #[arg(long)]
    repair: bool,
    /// First add hashes and checksums to data of an earlier version; a SQLite file is rewritten, which needs free disk space
    /// for two copies
    #[arg(long)]
    seal: bool,
    /// Print the head of each session as NUMBER:HASH, to be kept elsewhere
    #[arg(long)]
    heads: bool,
    /// Require this head, printed by an earlier --heads, in some session; can be repeated
    #[arg(long, value_name = "NUMBER:HASH")]
    from: Vec<LogHead>,
}

impl DoctorArgs {
    /// Only a repair continues without the damaged part of a write-ahead log.
    pub fn damaged_log(&self) -> DamagedLog {
        if self.repair { DamagedLog::SetAside } else { DamagedLog::Refuse }
    }
}

pub async fn run(app: &mut App, args: DoctorArgs) -> Result<()> {
    let sealed = if args.seal { Some(seal(app).await?) } else { None };
    let repair = if args.repair { Repair::Yes } else { Repair::No };
    let options = DoctorOptions { repair, from: args.from, heads: args.heads };
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(120));
    let progress = |seen: &Diagnosis| {
        bar.set_message(format!("{}, {}", plural(seen.sessions, "session"), plural(seen.entries, "entry")));
    };
    let diagnosis = diagnose_with(&app.engine, &app.scope, options, progress).await;
    bar.finish_and_clear();
    let mut diagnosis = diagnosis?;
    if let Some(sealed) = &sealed {
        let is_new =
            |finding: &&Finding| !diagnosis.findings.iter().any(|known| known.place == finding.place);
        let new: Vec<Finding> = sealed.findings.iter().filter(is_new).cloned().collect();
        diagnosis.findings.extend(new);
    }
    print_diagnosis(app, &diagnosis, sealed.as_ref())?;
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

/// Adds hashes to the entries and checksums to the files of an earlier version.
async fn seal(app: &App) -> Result<SealReport> {
    let store = app.engine.store();
    store.add_checksums().await.map_err(sapwood::Error::from)?;
    Ok(store.seal_entries(&app.scope).await.map_err(sapwood::Error::from)?)
}

/// Says how the store detects changed data.
fn describe_checksums(checksums: Checksums) -> &'static str {
    match checksums {
        Checksums::Pages => "each page has a checksum",
        Checksums::Encrypted => "each page has an authentication code",
        Checksums::Unproven if cfg!(feature = "encryption") => {
            "unproven: its pages have no checksums; `sapwood doctor --seal` of a build without encryption adds them"
        }
        Checksums::Unproven => "unproven: its pages have no checksums; `sapwood doctor --seal` adds them",
    }
}

/// The output with `--json`.
#[derive(Serialize)]
struct DoctorOutput<'a> {
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<&'a SealReport>,
}

fn print_diagnosis(app: &mut App, diagnosis: &Diagnosis, sealed: Option<&SealReport>) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(&DoctorOutput { diagnosis, sealed });
    }
    for head in &diagnosis.heads {
        writeln!(app.out, "{} {}", head.session, head.head)?;
    }
    if let Some(sealed) = sealed {
        writeln!(app.out, "sealed {} and {}", plural(sealed.entries, "entry"), plural(sealed.lines, "line"))?;
    }
    if diagnosis.unproven > 0 {
        let unproven = plural(diagnosis.unproven, "entry");
        writeln!(app.out, "{unproven} without a hash, from an earlier version: run `sapwood doctor --seal`")?;
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
