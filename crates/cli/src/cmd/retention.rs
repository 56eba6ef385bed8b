//! `sapwood retention`: how long a tenant keeps inactive sessions.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::SessionId;
use sapwood::engine::compact::Writing;
use sapwood::engine::personal_data::{RetentionPolicy, RetentionReport, SessionNotice};
use serde_json::json;

use crate::app::App;
use crate::failure::Result;
use crate::render::plural;

/// Erase inactive sessions after a time, announced before
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood retention set --days 90
  sapwood retention run --dry-run")]
pub struct RetentionArgs {
    #[command(subcommand)]
    command: RetentionCommand,
}

#[derive(Debug, Subcommand)]
enum RetentionCommand {
    /// Show the policy and the announced erasures
    #[command(after_help = "\
Examples:
  sapwood retention show")]
    Show,
    /// Set the policy of the tenant
    #[command(after_help = "\
Examples:
  sapwood retention set --days 90 --notice-days 14")]
    Set {
        /// Days without an entry after which a session is announced
        #[arg(long, value_name = "DAYS")]
        days: u32,
        /// Days between the announcement and the erasure
        #[arg(long, value_name = "DAYS", default_value_t = 14)]
        notice_days: u32,
    },
    /// Keep sessions forever
    #[command(after_help = "\
Examples:
  sapwood retention off")]
    Off,
    /// Announce inactive sessions, and erase those whose notice has ended
    #[command(after_help = "\
Examples:
  sapwood retention run --dry-run")]
    Run {
        /// Only list what would be announced and erased
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn run(app: &mut App, args: RetentionArgs) -> Result<()> {
    match args.command {
        RetentionCommand::Show => show(app).await,
        RetentionCommand::Set { days, notice_days } => {
            change(app, Some(RetentionPolicy { days, notice_days })).await
        }
        RetentionCommand::Off => change(app, None).await,
        RetentionCommand::Run { dry_run } => {
            let writing = if dry_run { Writing::DryRun } else { Writing::Write };
            let report = app.engine.personal_data().run_retention(&app.scope, writing).await?;
            print_report(app, &report, writing)
        }
    }
}

fn describe(policy: Option<RetentionPolicy>) -> String {
    match policy {
        None => "sessions are kept forever".to_owned(),
        Some(RetentionPolicy { days, notice_days }) => format!(
            "sessions without an entry are announced after {days} days, and erased {notice_days} days later"
        ),
    }
}

async fn change(app: &mut App, policy: Option<RetentionPolicy>) -> Result<()> {
    app.engine.personal_data().set_retention(&app.scope, policy).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "policy": policy }));
    }
    Ok(writeln!(app.out, "{}", describe(policy))?)
}

async fn show(app: &mut App) -> Result<()> {
    let data = app.engine.personal_data();
    let (policy, notices) = (data.retention(&app.scope).await?, data.notices(&app.scope).await?);
    if app.out.is_json() {
        return app.out.json(&json!({ "policy": policy, "notices": notices }));
    }
    writeln!(app.out, "{}", describe(policy))?;
    print_notices(app, &notices)
}

fn print_notices(app: &mut App, notices: &[SessionNotice]) -> Result<()> {
    for SessionNotice { session, notice } in notices {
        let date = crate::render::local_time(notice.erase_at.0);
        writeln!(app.out, "announced\t{session}\terased from {date} on")?;
    }
    Ok(())
}

fn print_report(app: &mut App, report: &RetentionReport, writing: Writing) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(report);
    }
    print_notices(app, &report.announced)?;
    let mut list = |what: &str, sessions: &[SessionId]| -> Result<()> {
        for session in sessions {
            writeln!(app.out, "{what}\t{session}")?;
        }
        Ok(())
    };
    list("erased", &report.erased)?;
    list("held", &report.held)?;
    list("withdrawn", &report.withdrawn)?;
    let would = if writing == Writing::DryRun { " (dry run: nothing was changed)" } else { "" };
    let (announced, erased) = (report.announced.len() as u64, report.erased.len() as u64);
    Ok(writeln!(app.out, "{} announced, {erased} erased{would}", plural(announced, "session"))?)
}
