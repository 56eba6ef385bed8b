//! `sapwood approvals`: lists the pending approvals and questions of all sessions, and creates answer links.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use sapwood::core::TimestampMs;
use sapwood::core::port::clock::Clock;
use sapwood::engine::turn::{APPROVALS_PAGE_MAX, LinkOptions, PendingApproval};

use super::events::end_on_interrupt;
use crate::answer_links;
use crate::app::App;
use crate::chat::outcome::approval_instructions;
use crate::failure::Result;
use crate::render::{age, clean, note};
use crate::time_arg::duration_ms;

/// How often `--follow` looks for new questions.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(1_000);

/// List the pending approvals and questions of all sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood approvals
  sapwood approvals --follow --json
  sapwood approvals --link APPROVAL_ID --expires 2h")]
pub struct ApprovalsArgs {
    /// Keep printing new questions until Ctrl-C
    #[arg(long, short, conflicts_with = "link")]
    follow: bool,
    /// Print a link that lets a person without an API key answer this approval once
    #[arg(long, value_name = "ID")]
    link: Option<String>,
    /// Time until the link expires: 30m, 2h, 7d; default: 1d
    #[arg(long, value_name = "TIME", value_parser = duration_ms, requires = "link")]
    expires: Option<i64>,
}

pub async fn run(app: &mut App, args: ApprovalsArgs) -> Result<()> {
    if let Some(approval) = args.link {
        return print_link(app, &approval, args.expires).await;
    }
    let mut shown = BTreeSet::new();
    if !args.follow {
        print_new(app, &mut shown).await?;
        if shown.is_empty() && !app.out.is_json() {
            note(app.format(), "no question waits for an answer");
        }
        return Ok(());
    }
    end_on_interrupt()?;
    loop {
        print_new(app, &mut shown).await?;
        // Flush after each poll, so that a reader of the pipe sees new questions at once.
        app.out.flush()?;
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Prints the questions that are not in `shown`. Removes answered questions from it.
async fn print_new(app: &mut App, shown: &mut BTreeSet<String>) -> Result<()> {
    let (mut waiting, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = app.engine.approvals().list(&app.scope, APPROVALS_PAGE_MAX, cursor).await?;
        for pending in &page.items {
            waiting.insert(pending.approval.clone());
            if !shown.contains(&pending.approval) {
                app.note_read(&pending.session).await?;
                print(app, pending)?;
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            *shown = waiting;
            return Ok(());
        }
    }
}

fn print(app: &mut App, pending: &PendingApproval) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(pending);
    }
    let now = sapwood::SystemClock.now();
    let asked = age(pending.asked_at.0, now.0);
    writeln!(app.out, "{}  asked {asked} ago{}", clean(pending.session.as_str()), expiry(pending, now))?;
    Ok(writeln!(app.out, "  {}", approval_instructions(pending).replace('\n', "\n  "))?)
}

fn expiry(pending: &PendingApproval, now: TimestampMs) -> String {
    match pending.deadlines.expires_at {
        Some(at) if at <= now => ", expired".to_owned(),
        Some(at) => format!(", expires in {} s", (at.0 - now.0) / 1_000),
        None => String::new(),
    }
}

async fn print_link(app: &mut App, approval: &str, expires_ms: Option<i64>) -> Result<()> {
    let links = answer_links::open(&app.paths, answer_links::LOCAL_URL)?;
    let engine = app.engine.clone().configured(|config| config.links = Some(links));
    // Round up, so that the shortest time is one second; the engine checks the longest.
    let seconds = |ms: i64| u32::try_from(ms.saturating_add(999) / 1_000).unwrap_or(u32::MAX);
    let options = LinkOptions { expires_in_s: expires_ms.map(seconds), answers: Vec::new() };
    let link = engine.approvals().create_link(&app.scope, approval, options).await?;
    match app.out.is_json() {
        true => app.out.json(&link),
        false => Ok(writeln!(app.out, "{}", link.url)?),
    }
}
