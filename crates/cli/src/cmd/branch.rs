//! `sapwood branch` and `sapwood reset`: where the next entry will hang.

use clap::Args;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

/// Go back to an entry: the next message hangs from there
#[derive(Debug, Args)]
pub struct BranchArgs {
    session: String,
    entry: String,
    /// What was learnt on the branch that is left; it becomes part of the context
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    summary: Option<String>,
}

pub async fn run(app: &mut App, args: BranchArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let target = app.engine.find_entry(&app.scope, &session, &args.entry).await?.meta;
    let appended = app.engine.branch(&app.scope, &session, target.id, args.summary).await?;
    let leaf = appended.head.leaf.unwrap_or(target.seq);
    print_change(app, &appended, &format!("the leaf is now entry {leaf}"))
}

/// Empty the context: the next message begins anew, and the log keeps everything
#[derive(Debug, Args)]
pub struct ResetArgs {
    session: String,
}

pub async fn reset(app: &mut App, args: ResetArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let appended = app.engine.reset(&app.scope, &session).await?;
    print_change(app, &appended, "the context is empty; the log keeps everything")
}
