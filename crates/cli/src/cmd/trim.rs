//! `sapwood trim`: the oldest messages leave the context; the log keeps them.

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::app::App;
use crate::args::count;
use crate::failure::Result;

/// Keep only the last messages in the context
#[derive(Debug, Args)]
pub struct TrimArgs {
    session: String,
    /// How many messages stay; a tool result keeps its call, so it may be a few more
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    keep_last: u32,
}

pub async fn run(app: &mut App, args: TrimArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let kept = app.engine.trim(&app.scope, &session, args.keep_last as usize).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "kept": kept }));
    }
    Ok(writeln!(app.out, "{kept}")?)
}
