//! `sapwood uncompact`: undoes a compaction.

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;
use crate::render::{note, plural};

/// Undo a compaction and restore the earlier context
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood uncompact @last
  sapwood uncompact @last --at 40")]
pub struct UncompactArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Compaction entry to undo; default: the latest on the path
    #[arg(long, value_name = "ENTRY")]
    at: Option<String>,
}

pub async fn run(app: &mut App, args: UncompactArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let at = match &args.at {
        Some(at) => Some(app.engine.directory().find_entry(&app.scope, &session, at).await?.meta.seq),
        None => None,
    };
    let done = app.engine.compaction().uncompact(&app.scope, &session, at).await?;
    if app.out.is_json() {
        return app.out.json(&json!({
            "compaction": done.compaction, "leaf": done.leaf, "kept": done.kept, "left": done.left,
        }));
    }
    if done.left > 0 {
        let left = plural(done.left as u64, "later message");
        note(app.format(), &format!("{left} remained on the branch of entry {}", done.compaction));
    }
    let messages = plural(done.kept as u64, "message");
    Ok(writeln!(app.out, "compaction {} undone: {messages} in the context", done.compaction)?)
}
