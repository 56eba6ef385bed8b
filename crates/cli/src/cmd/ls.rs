//! `sapwood ls`: lists sessions, newest first.

use std::path::PathBuf;

use clap::Args;
use sapwood::core::port::clock::Clock;
use sapwood::core::port::store::{ListFilter, ListOrder, Page};
use sapwood::core::project::summary::Summary;
use sapwood::engine::directory::parse_state_filter;
use serde::Serialize;

use super::share::member;
use crate::app::App;
use crate::failure::Result;
use crate::number_arg::rows;
use crate::render::{self, Table, age, cost};
use crate::time_arg::TimeArg;

/// Default number of sessions on a terminal.
const TERMINAL_ROWS: usize = 50;
/// Number of sessions per store query.
const PAGE_ROWS: usize = 500;
/// Length of a shortened id: enough to distinguish sessions created at different times.
const SHORT_ID_CHARS: usize = 13;

/// List sessions, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood ls
  sapwood ls --cwd . --since 7d
  sapwood ls --state archived --limit 20 --json
  sapwood ls --state pruned")]
pub struct LsArgs {
    /// List only sessions of this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// List only sessions in this state: created, active, closed, archived, compacted, trimmed or pruned
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// List only sessions of this agent
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// List only sessions owned by this user, or by agent:NAME
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// List only sessions updated since TIME: 30d, 12h, 45m, or a date such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// List only sessions not updated since TIME; same format as --since
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
    /// List only sessions with all of these words in their title, their preview if untitled, or their id
    #[arg(long, value_name = "WORDS")]
    title: Option<String>,
    /// List the oldest sessions first
    #[arg(long)]
    oldest: bool,
    /// Maximum number of sessions; default: 50 on a terminal, otherwise all
    #[arg(long, value_name = "N", value_parser = rows, allow_hyphen_values = true)]
    limit: Option<u32>,
    /// Continue after this cursor: the "next" value of an earlier list
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    after: Option<String>,
}

/// A line of the list. The last line of a truncated list has the cursor for `--after`.
#[derive(Serialize)]
struct SessionLine<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

pub async fn run(app: &mut App, args: LsArgs) -> Result<()> {
    let (state, context) = args.state.as_deref().map(parse_state_filter).transpose()?.unwrap_or_default();
    let mut filter = ListFilter {
        cwd: args.cwd.map(|cwd| super::new::directory(Some(cwd))).transpose()?,
        state,
        context,
        agent: args.agent,
        owner: args.owner.as_deref().map(member).transpose()?,
        since: args.since.map(TimeArg::at),
        until: args.until.map(TimeArg::at),
        title: args.title,
        order: if args.oldest { ListOrder::OldestFirst } else { ListOrder::NewestFirst },
        cursor: args.after,
        ..ListFilter::default()
    };
    let on_terminal = app.out.terminal.is_some() && !app.out.is_json();
    let limit = args.limit.map(|limit| limit as usize).or(on_terminal.then_some(TERMINAL_ROWS));
    let mut remaining = limit.unwrap_or(usize::MAX);
    let (mut next, mut count) = (None, 0);
    while remaining > 0 {
        filter.limit = remaining.min(PAGE_ROWS);
        let page = app.engine.directory().list(&app.scope, &filter).await?;
        remaining -= page.items.len().min(remaining);
        count += page.items.len();
        print_page(app, &page, remaining == 0)?;
        next.clone_from(&page.next);
        filter.cursor = page.next;
        if next.is_none() {
            break;
        }
    }
    if count == 0 && !app.out.is_json() {
        render::note(app.format(), "no sessions; create one with `sapwood new`");
    }
    if let Some(next) = next {
        render::note(app.format(), &format!("more sessions: --after {next}"));
    }
    app.check_complete("list").await
}

fn print_page(app: &mut App, page: &Page<Summary>, is_last: bool) -> Result<()> {
    if !app.out.is_json() {
        return print_table(app, &page.items);
    }
    for (at, summary) in page.items.iter().enumerate() {
        let ends_here = is_last && at + 1 == page.items.len();
        let next = page.next.as_deref().filter(|_| ends_here);
        app.out.json(&SessionLine { summary, next })?;
    }
    Ok(())
}

fn print_table(app: &mut App, summaries: &[Summary]) -> Result<()> {
    if summaries.is_empty() {
        return Ok(());
    }
    let now = sapwood::SystemClock.now().0;
    let on_terminal = app.out.terminal.is_some();
    let rows: Vec<Vec<String>> = summaries.iter().map(|summary| row(summary, now, on_terminal)).collect();
    let head = ["ID", "TITLE", "STATE", "MESSAGES", "AGE", "COST", "DIRECTORY"];
    Table { head: &head, rows, flexible: 1 }.print(&mut app.out)
}

fn row(summary: &Summary, now: i64, on_terminal: bool) -> Vec<String> {
    let id = summary.id.as_str();
    let title = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("-");
    let shown_id = |id: &str| if on_terminal { short_id(id) } else { id.to_owned() };
    let parent = summary
        .parent
        .as_ref()
        .map_or(String::new(), |parent| format!(" (parent {})", shown_id(parent.session.as_str())));
    let cwd = summary.cwd.as_deref().unwrap_or("-");
    let spent = summary.spend.total();
    vec![
        shown_id(id),
        format!("{title}{parent}"),
        summary.state.as_str().to_owned(),
        summary.messages.to_string(),
        age(summary.updated_at.0, now),
        if spent.calls == 0 { "-".to_owned() } else { cost(spent.cost_nano_usd) },
        if on_terminal { short_path(cwd) } else { cwd.to_owned() },
    ]
}

/// Shortens a UUID. Ids chosen by the user are not shortened.
fn short_id(id: &str) -> String {
    let is_uuid = id.len() == 36 && id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    if is_uuid { id[..SHORT_ID_CHARS].to_owned() } else { id.to_owned() }
}

fn short_path(path: &str) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    match path.strip_prefix(&home) {
        Some(rest) if !home.is_empty() && (rest.is_empty() || rest.starts_with('/')) => {
            shorten(&format!("~{rest}"))
        }
        _ => shorten(path),
    }
}

/// Keeps only the last two components of a long path.
fn shorten(path: &str) -> String {
    if path.chars().count() <= 30 {
        return path.to_owned();
    }
    let mut parts = path.rsplitn(3, '/');
    match (parts.next(), parts.next()) {
        (Some(last), Some(above)) => format!("…/{above}/{last}"),
        _ => path.to_owned(),
    }
}
