//! `sapwood audit`: who did what, and whether anybody tampered with the record of it.

use std::io::Write;

use clap::Args;
use sapwood::core::port::store::AuditLine;
use sapwood::core::scope::Reach;
use serde_json::json;

use crate::args::{count, rows};
use crate::failure::{Failure, Result};
use crate::render::{BOLD, DIM, clean, local_time, plural};
use crate::wiring::App;

/// How many lines are asked of the store at a time.
const PAGE_ROWS: usize = 1_000;

/// Show who did what
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only what was done to this session; an erased one is named by its whole id
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Check that every line follows from the one before it
    #[arg(long, conflicts_with_all = ["session", "after", "limit"])]
    verify: bool,
    /// Only lines after this number
    #[arg(long, value_name = "NUMBER", value_parser = count, allow_hyphen_values = true)]
    after: Option<u32>,
    #[arg(long, value_name = "N", value_parser = rows, allow_hyphen_values = true)]
    limit: Option<u32>,
}

pub async fn run(app: &mut App, args: AuditArgs) -> Result<()> {
    if args.verify {
        return verify(app).await;
    }
    let session = match &args.session {
        Some(given) => Some(session_or_its_id(app, given).await?),
        None => None,
    };
    let mut after = u64::from(args.after.unwrap_or(0));
    let mut left = args.limit.map_or(usize::MAX, |limit| limit as usize);
    while left > 0 {
        let limit = left.min(PAGE_ROWS);
        let lines = app.engine.audit(&app.scope, session.as_ref(), after, limit).await?;
        for line in &lines {
            print_line(app, line)?;
            after = line.number;
        }
        left -= lines.len().min(left);
        if lines.len() < limit {
            break;
        }
    }
    Ok(())
}

/// What is erased leaves its trace in the audit, and can be asked for by its id.
async fn session_or_its_id(app: &App, given: &str) -> Result<sapwood::SessionId> {
    match app.engine.find_session(&app.scope, given).await {
        Err(error) if error.code() == "session.not_found" => {
            let id = given.parse().map_err(sapwood::Error::from)?;
            let lines = app.engine.audit(&app.scope, Some(&id), 0, 1).await?;
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

async fn verify(app: &mut App) -> Result<()> {
    if app.scope.reach != Reach::Tenant {
        let message = "a user sees some lines of the audit, and only the whole of it can be verified";
        return Err(Failure::usage(message, "leave --as out"));
    }
    let (mut after, mut hash) = (0, String::new());
    loop {
        let lines = app.engine.audit(&app.scope, None, after, PAGE_ROWS).await?;
        for line in &lines {
            if line.number != after + 1 || line.hash != line.expected_hash(&hash) {
                let message = format!("audit line {} does not follow from line {after}", line.number);
                return Err(Failure::new("audit.broken", message));
            }
            after = line.number;
            hash.clone_from(&line.hash);
        }
        if lines.len() < PAGE_ROWS {
            break;
        }
    }
    if app.out.is_json() {
        return app.out.json(&json!({ "ok": true, "lines": after, "hash": hash }));
    }
    Ok(writeln!(app.out, "{}, each follows from the one before it", plural(after, "line"))?)
}
