//! `sapwood audit`: shows the audit log, and verifies that it was not tampered with.

use std::io::Write;

use clap::Args;
use sapwood::core::port::store::AuditLine;
use sapwood::core::scope::Reach;
use sapwood::engine::verify::verify_hashes;
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::number_arg::{count, rows};
use crate::render::{BOLD, DIM, clean, local_time, plural};

/// Number of lines per store query.
const PAGE_ROWS: usize = 1_000;

/// Show the audit log, or verify it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood audit --session @last
  sapwood audit --verify
  sapwood audit --after 1000 --limit 50")]
pub struct AuditArgs {
    /// Show only actions on this session; give the full id of an erased session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Verify the hash chain of the whole audit log, and the hashes of all entries
    #[arg(long, conflicts_with_all = ["session", "after", "limit"])]
    verify: bool,
    /// With --verify: require this line, printed by an earlier --verify, in the chain
    #[arg(long, value_name = "NUMBER:HASH", requires = "verify", value_parser = anchor)]
    from: Option<Anchor>,
    /// Show only lines after this number
    #[arg(long, value_name = "NUMBER", value_parser = count, allow_hyphen_values = true)]
    after: Option<u32>,
    /// Maximum number of lines; default: all
    #[arg(long, value_name = "N", value_parser = rows, allow_hyphen_values = true)]
    limit: Option<u32>,
}

/// An audit line that the operator saved elsewhere. If the log lacks it, the log was truncated.
#[derive(Debug, Clone)]
struct Anchor {
    number: u64,
    hash: String,
}

fn anchor(text: &str) -> Result<Anchor, String> {
    let parts = text.split_once(':').filter(|(_, hash)| !hash.is_empty());
    let read = parts.and_then(|(number, hash)| Some((number.parse().ok()?, hash)));
    let (number, hash) = read.ok_or("it must be NUMBER:HASH, as printed by `sapwood audit --verify`")?;
    Ok(Anchor { number, hash: hash.to_ascii_lowercase() })
}

pub async fn run(app: &mut App, args: AuditArgs) -> Result<()> {
    if args.verify {
        return verify(app, args.from).await;
    }
    let session = match &args.session {
        Some(given) => Some(resolve_session(app, given).await?),
        None => None,
    };
    let mut after = u64::from(args.after.unwrap_or(0));
    let mut remaining = args.limit.map_or(usize::MAX, |limit| limit as usize);
    while remaining > 0 {
        let limit = remaining.min(PAGE_ROWS);
        let lines = app.engine.directory().audit(&app.scope, session.as_ref(), after, limit).await?;
        for line in &lines {
            print_line(app, line)?;
            after = line.number;
        }
        remaining -= lines.len().min(remaining);
        if lines.len() < limit {
            break;
        }
    }
    Ok(())
}

/// Resolves a session. An erased session still has audit lines and is addressed by its full id.
async fn resolve_session(app: &App, given: &str) -> Result<sapwood::SessionId> {
    match app.engine.directory().find_session(&app.scope, given).await {
        Err(error) if error.code() == "session.not_found" => {
            let id = given.parse().map_err(sapwood::Error::from)?;
            let lines = app.engine.directory().audit(&app.scope, Some(&id), 0, 1).await?;
            if lines.is_empty() { Err(error.into()) } else { Ok(id) }
        }
        found => Ok(found?),
    }
}

fn print_line(app: &mut App, line: &AuditLine) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(line);
    }
    let action = serde_json::to_value(line.action).unwrap_or_default();
    let session = line.session.as_ref().map_or("-", |session| session.as_str());
    writeln!(
        app.out,
        "{DIM}{} {}{DIM:#}  {}  {BOLD}{}{BOLD:#}  {session}  {}",
        line.number,
        local_time(line.at.0),
        line.by,
        action.as_str().unwrap_or_default(),
        clean(line.detail.as_deref().unwrap_or_default()),
    )?;
    Ok(())
}

async fn verify(app: &mut App, from: Option<Anchor>) -> Result<()> {
    if app.scope.reach != Reach::Tenant {
        let message = "only the operator can verify the audit log: a user sees only some of its lines";
        return Err(Failure::usage(message, "omit --as"));
    }
    let (mut after, mut hash) = (0, String::new());
    let mut missing = from;
    loop {
        let lines = app.engine.directory().audit(&app.scope, None, after, PAGE_ROWS).await?;
        for line in &lines {
            if line.number != after + 1 || line.hash != line.expected_hash(&hash) {
                let message =
                    format!("audit line {} does not match the hash chain after line {after}", line.number);
                return Err(Failure::new("audit.broken", message));
            }
            after = line.number;
            hash.clone_from(&line.hash);
            missing.take_if(|anchor| anchor.number == after && anchor.hash == hash);
        }
        if lines.len() < PAGE_ROWS {
            break;
        }
    }
    if let Some(Anchor { number, hash }) = missing {
        let message = match number > after {
            true => format!("the audit log ends at line {after}, but line {number} is expected"),
            false => format!("audit line {number} does not have the hash {hash}"),
        };
        return Err(Failure::new("audit.broken", message));
    }
    let entries = verify_hashes(&app.engine, &app.scope).await?;
    if let Some(finding) = entries.findings.first() {
        let message = format!("{}: {}", finding.place, finding.what);
        let hint = "run `sapwood doctor` to list all findings, and restore the session from a backup";
        return Err(Failure::new("audit.broken", message).with_hint(hint));
    }
    if app.out.is_json() {
        let (count, unproven) = (entries.entries, entries.unproven);
        let verified =
            json!({ "ok": true, "lines": after, "hash": hash, "entries": count, "unproven": unproven });
        return app.out.json(&verified);
    }
    let proven = plural(entries.entries - entries.unproven, "entry");
    writeln!(app.out, "{} and {proven} verified", plural(after, "line"))?;
    if entries.unproven > 0 {
        writeln!(
            app.out,
            "{} without a hash: run `sapwood doctor --seal`",
            plural(entries.unproven, "entry")
        )?;
    }
    Ok(writeln!(app.out, "{DIM}last line: {after}:{hash}{DIM:#}")?)
}
