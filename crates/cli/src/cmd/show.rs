//! `sapwood show`: the conversation on the active path, as readable text.

use std::io::Write;
use std::path::Path;

use anstyle::Style;
use clap::Args;
use sapwood::core::content::Json;
use sapwood::core::entry::{Body, Entry};
use sapwood::core::port::store::{ListFilter, ListOrder, PAGE_ROWS_MAX};
use sapwood::core::settings::Labels;
use sapwood::core::{Principal, TimestampMs, TurnId};
use sapwood::{EntryId, Part, Seq, SessionId};
use serde::Serialize;

use crate::app::App;
use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, Out, RED, YELLOW, clean, fit, local_time, plural};

/// Limits for tool outputs and tool inputs without --full.
const OUTPUT_LINES: usize = 6;
const OUTPUT_COLUMNS: usize = 160;
const INPUT_COLUMNS: usize = 100;

/// Show a session's conversation
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood show @last
  sapwood show @last --full
  sapwood show session.jsonl")]
pub struct ShowArgs {
    /// Session id, unique prefix, or @last; or a session file, which is shown without importing it
    #[arg(value_name = "SESSION|FILE")]
    session: String,
    /// Show complete tool inputs and outputs
    #[arg(long)]
    full: bool,
}

/// An entry of the path. `entry` is its body as stored in the log.
#[derive(Serialize)]
struct EntryLine<'a> {
    seq: Seq,
    id: EntryId,
    parent: Option<Seq>,
    at: TimestampMs,
    by: &'a Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(rename = "type")]
    kind: &'static str,
    role: Option<&'static str>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    entry: Option<Json>,
}

pub async fn run(app: &mut App, args: ShowArgs) -> Result<()> {
    if let Some(path) = file_of(&args.session) {
        return show_file(app, path, args.full).await;
    }
    let session = app.session_to_read(&args.session).await?;
    show_session(app, &session, args.full).await
}

/// The path, if the argument names a file and not a session.
fn file_of(given: &str) -> Option<&Path> {
    let path = Path::new(given);
    let is_session_file = [".jsonl", ".json", ".jsonl.zst"].iter().any(|suffix| given.ends_with(suffix));
    (is_session_file || given.contains('/') || path.is_file()).then_some(path)
}

/// Shows the sessions of a file, from a store in memory.
async fn show_file(app: &mut App, path: &Path, full: bool) -> Result<()> {
    app.engine = super::import::load(app, path).await?;
    let filter = ListFilter { limit: PAGE_ROWS_MAX, order: ListOrder::OldestFirst, ..ListFilter::default() };
    let sessions = app.engine.directory().list(&app.scope, &filter).await?.items;
    for (at, summary) in sessions.iter().enumerate() {
        if sessions.len() > 1 && !app.out.is_json() {
            let title = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("-");
            let gap = if at > 0 { "\n" } else { "" };
            writeln!(app.out, "{gap}{BOLD}session {} · {}{BOLD:#}\n", summary.id, clean(title))?;
        }
        show_session(app, &summary.id, full).await?;
    }
    Ok(())
}

async fn show_session(app: &mut App, session: &SessionId, full: bool) -> Result<()> {
    let labels = app.engine.directory().labels(&app.scope, session).await?;
    let entries = app.engine.views().path(&app.scope, session, None).await?;
    for (at, entry) in entries.iter().enumerate() {
        if app.out.is_json() {
            app.out.json(&line_of(entry, &labels))?;
            continue;
        }
        if at > 0 {
            writeln!(app.out)?;
        }
        print_entry(&mut app.out, entry, labels.get(entry.meta.id), full)?;
    }
    Ok(())
}

fn line_of<'a>(entry: &'a Entry, labels: &'a Labels) -> EntryLine<'a> {
    let meta = &entry.meta;
    let body = String::from_utf8(sapwood::core::entry::codec::encode(&entry.body)).unwrap_or_default();
    EntryLine {
        seq: meta.seq,
        id: meta.id,
        parent: meta.parent,
        at: meta.at,
        by: &meta.by,
        turn: meta.turn,
        kind: meta.kind.as_str(),
        role: role_of(&entry.body),
        text: entry.body.text(),
        label: labels.get(meta.id),
        entry: Json::parse(&body).ok(),
    }
}

/// Returns the role of a message, or `None` for other entries.
fn role_of(body: &Body) -> Option<&'static str> {
    match body {
        Body::UserMessage(_) | Body::CustomMessage(_) | Body::BranchSummary(_) | Body::Graft(_) => {
            Some("user")
        }
        Body::AssistantMessage(_) => Some("assistant"),
        Body::ToolResult(_) => Some("tool"),
        Body::SystemNote(_) => Some("system"),
        _ => None,
    }
}

pub fn role_style(role: &str) -> Style {
    match role {
        "user" => GREEN.bold(),
        "assistant" => CYAN.bold(),
        "tool" => YELLOW,
        _ => BOLD,
    }
}

fn print_entry(out: &mut Out, entry: &Entry, label: Option<&str>, full: bool) -> Result<()> {
    let meta = &entry.meta;
    let title = role_of(&entry.body).unwrap_or(meta.kind.as_str());
    let style = role_style(title);
    let label = label.map_or(String::new(), |label| format!(" [{}]", clean(label)));
    writeln!(
        out,
        "{style}{title}{style:#}{BOLD}{label}{BOLD:#} {DIM}{} · {}{}{DIM:#}",
        meta.seq,
        local_time(meta.at.0),
        remarks(&entry.body)
    )?;
    match &entry.body {
        Body::ToolResult(_) => print_output(out, &entry.body.text(), full)?,
        body => {
            let text = display_text(body);
            if !text.is_empty() {
                writeln!(out, "{}", clean(&text))?;
            }
        }
    }
    print_calls(out, entry.body.parts(), full)
}

/// Details after the time: the model, the tool and its outcome, or the kind of message.
fn remarks(body: &Body) -> String {
    let remark = match body {
        Body::AssistantMessage(message) => message.model.clone().unwrap_or_default(),
        Body::ToolResult(result) => {
            let tool = result.tool.as_deref().unwrap_or("tool");
            let outcome = match (result.interrupted, result.is_error) {
                (true, _) => "interrupted",
                (_, true) => "failed",
                _ => "ok",
            };
            let took = result.duration_ms.map_or(String::new(), |ms| format!(" · {ms} ms"));
            format!("{tool} {outcome}{took}")
        }
        Body::BranchSummary(_) => "summary of an abandoned branch".to_owned(),
        Body::CustomMessage(message) => message.custom_type.clone(),
        _ => String::new(),
    };
    if remark.is_empty() { remark } else { format!(" · {}", clean(&remark)) }
}

/// Returns the text of an entry, including entries that are not messages.
fn display_text(body: &Body) -> String {
    match body {
        Body::ModelChanged(changed) => changed.model.clone(),
        Body::ThinkingChanged(changed) => changed.level.clone(),
        Body::SkillsChanged(changed) => changed.active.join(", "),
        Body::ContextChanged(changed) => changed.system.clone().unwrap_or_default(),
        Body::Graft(graft) => format!("from session {}", graft.source),
        Body::Compaction(compaction) if compaction.summary.is_none() => {
            "older messages were removed from the context".to_owned()
        }
        other => other.text(),
    }
}

fn print_output(out: &mut Out, text: &str, full: bool) -> Result<()> {
    let lines = text.lines().count();
    let shown = if full { lines } else { OUTPUT_LINES };
    for line in text.lines().take(shown) {
        let line = if full { clean(line).into_owned() } else { fit(line, OUTPUT_COLUMNS) };
        writeln!(out, "  {line}")?;
    }
    if lines > shown {
        writeln!(out, "  {DIM}… {}{DIM:#}", plural((lines - shown) as u64, "more line"))?;
    }
    Ok(())
}

/// Prints the parts of a message that are not text.
pub fn print_calls(out: &mut Out, parts: &[Part], full: bool) -> Result<()> {
    let width = if full { usize::MAX } else { INPUT_COLUMNS };
    for part in parts {
        match part {
            Part::Text(_) => {}
            Part::Reasoning(reasoning) if reasoning.redacted => {
                writeln!(out, "  {DIM}(reasoning withheld){DIM:#}")?
            }
            Part::Reasoning(reasoning) => writeln!(out, "  {DIM}{}{DIM:#}", fit(&reasoning.text, width))?,
            Part::ToolCall(call) => {
                writeln!(
                    out,
                    "  {YELLOW}→ {}{YELLOW:#} {}",
                    clean(&call.name),
                    fit(call.input.get(), width)
                )?;
            }
            Part::Media(media) => {
                let name = media.name.as_deref().unwrap_or("media");
                writeln!(
                    out,
                    "  {RED}▣{RED:#} {} {} {} bytes",
                    clean(name),
                    clean(&media.mime),
                    media.bytes
                )?;
            }
        }
    }
    Ok(())
}
