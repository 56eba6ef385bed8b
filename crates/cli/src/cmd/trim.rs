//! `sapwood trim`: removes the oldest messages from the context. The log keeps them.

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;
use crate::number_arg::count;

/// Keep only the last messages in the context
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood trim @last --keep-last 10")]
pub struct TrimArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Number of messages to keep; a few more if a kept tool result needs its call
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    keep_last: u32,
}

pub async fn run(app: &mut App, args: TrimArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let kept = app.engine.edits().trim(&app.scope, &session, args.keep_last as usize).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "kept": kept }));
    }
    Ok(writeln!(app.out, "{kept}")?)
}
