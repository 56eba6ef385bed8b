//! `sapwood branch` and `sapwood reset`: move the leaf, which is the parent of the next entry.

use clap::Args;
use sapwood::engine::branch::LeaveWith;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

/// Move back to an entry and continue on a new branch
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood branch @last 12
  sapwood branch @last 12 --summary \"the cache was not the cause\"
  sapwood branch @last 12 --summarize")]
pub struct BranchArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Entry that the next message follows: seq, id, unique prefix, or label
    entry: String,
    /// Summary of the abandoned branch, to add to the context
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    summary: Option<String>,
    /// Let the model write the summary of the abandoned branch
    #[arg(long, conflicts_with = "summary")]
    summarize: bool,
    /// Model that writes the summary; default: the session's model
    #[arg(long, value_name = "MODEL", requires = "summarize")]
    model: Option<String>,
}

pub async fn run(app: &mut App, args: BranchArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let target = app.engine.directory().find_entry(&app.scope, &session, &args.entry).await?.meta;
    if args.summarize {
        app.open_backends()?;
    }
    let leave = match args.summary {
        Some(text) => LeaveWith::Text(text),
        None if args.summarize => LeaveWith::ModelSummary { model: args.model },
        None => LeaveWith::Nothing,
    };
    let appended = app.engine.edits().leave_branch(&app.scope, &session, target.id, leave).await?;
    let leaf = appended.head.leaf.unwrap_or(target.seq);
    print_change(app, &appended, &format!("the next message will follow entry {leaf}"))
}

/// Empty the context; the log keeps every entry
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood reset @last")]
pub struct ResetArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn reset(app: &mut App, args: ResetArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let appended = app.engine.edits().reset(&app.scope, &session).await?;
    print_change(app, &appended, "the context is empty; the log keeps every entry")
}
