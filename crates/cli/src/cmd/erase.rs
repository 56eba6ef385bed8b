//! `sapwood erase`: deletes a session, or everything of a user or a tenant, permanently, after confirmation.

use std::io::Write;

use clap::Args;
use sapwood::core::project::summary::Summary;
use sapwood::engine::personal_data::{DataInventory, DataSubject, OtherForks};
use serde_json::json;

use crate::app::App;
use crate::confirm::Confirmation;
use crate::failure::{Failure, Result};
use crate::render::{clean, plural};

/// Delete a session, or the data of a user or tenant, permanently
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood erase @last
  sapwood erase experiment --yes
  sapwood erase --user alice --dry-run
  sapwood erase --all --tenant acme --yes")]
#[command(group(clap::ArgGroup::new("erased").required(true).args(["session", "user", "all"])))]
pub struct EraseArgs {
    /// Session id, unique prefix, or @last
    session: Option<String>,
    /// Erase the sessions and memories of this user, and revoke the user's keys
    #[arg(long)]
    user: Option<String>,
    /// Erase all sessions and memories of the tenant, and revoke all keys
    #[arg(long)]
    all: bool,
    /// With --user: also erase forks of the sessions that belong to other owners
    #[arg(long, conflicts_with = "session")]
    forks: bool,
    /// With --user or --all: only list what would be erased
    #[arg(long, conflicts_with = "session")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub async fn run(app: &mut App, args: EraseArgs) -> Result<()> {
    let Some(session) = &args.session else { return erase_subject(app, &args).await };
    let session = app.session(session).await?;
    if !args.yes {
        let summary = app.engine.directory().summary(&app.scope, &session).await?;
        confirm(app, &describe(&summary))?;
    }
    app.engine.sessions().erase(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": session, "erased": true }));
    }
    Ok(writeln!(app.out, "erased session {session}")?)
}

async fn erase_subject(app: &mut App, args: &EraseArgs) -> Result<()> {
    let subject = match &args.user {
        Some(user) => DataSubject::User(user.parse().map_err(sapwood::Error::from)?),
        None => DataSubject::Tenant,
    };
    let found = app.engine.personal_data().inventory(&app.scope, &subject).await?;
    if args.dry_run {
        return print_inventory(app, &found);
    }
    if !args.yes {
        let sessions = plural(found.sessions.len() as u64, "session");
        let memories = plural(found.memories as u64, "memory");
        confirm(app, &format!("the data of {subject}: {sessions} and {memories}"))?;
    }
    let forks = if args.forks { OtherForks::Erase } else { OtherForks::Keep };
    let report = app.engine.personal_data().erase(&app.scope, &subject, forks).await?;
    if app.out.is_json() {
        return app.out.json(&report);
    }
    for session in &report.held {
        writeln!(app.out, "held\t{session}")?;
    }
    for session in &report.forks {
        writeln!(app.out, "shared with\t{session}")?;
    }
    let (sessions, memories) = (plural(report.erased.len() as u64, "session"), report.memories as u64);
    Ok(writeln!(app.out, "erased {sessions} and {} of {subject}", plural(memories, "memory"))?)
}

fn print_inventory(app: &mut App, found: &DataInventory) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(found);
    }
    for session in &found.sessions {
        let what = if found.held.contains(session) { "held" } else { "erased" };
        writeln!(app.out, "{what}\t{session}")?;
    }
    for session in &found.forks {
        writeln!(app.out, "shared with\t{session}")?;
    }
    let (memories, keys) = (plural(found.memories as u64, "memory"), plural(found.keys as u64, "key"));
    Ok(writeln!(app.out, "{memories}, {keys} (dry run: nothing was changed)")?)
}

fn describe(summary: &Summary) -> String {
    let name = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("no title");
    let own = u64::from(summary.head.seq.0 - summary.inherited.min(summary.head.seq.0));
    format!("session {} ({}) with {}", summary.id, clean(name), plural(own, "entry"))
}

fn confirm(app: &App, what: &str) -> Result<()> {
    let declined =
        Failure::new("erase.declined", "nothing was erased").with_hint("answer y to erase the session");
    let confirmation = Confirmation {
        question: &format!("Permanently erase {what}?"),
        would: &format!("erase {what}"),
        hint: "add --yes to confirm; run `sapwood export` first to keep a copy",
        declined,
    };
    confirmation.ask(app)
}
