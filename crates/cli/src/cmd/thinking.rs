//! `sapwood thinking`: sets the thinking level for a session's next turns.

use clap::Args;
use sapwood::core::entry::ThinkingChanged;
use sapwood::core::port::model::Thinking;
use sapwood::engine::edits::InjectOptions;

use super::print_change;
use crate::app::App;
use crate::failure::{Failure, Result};

/// Set the thinking level for a session's next turns
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood thinking @last high
  sapwood thinking @last off")]
pub struct ThinkingArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Level: off, low, medium or high
    level: String,
}

pub async fn run(app: &mut App, args: ThinkingArgs) -> Result<()> {
    if Thinking::from_name(&args.level).is_none() {
        let message = format!("unknown thinking level {:?}", args.level);
        return Err(Failure::usage(message, "choose off, low, medium or high"));
    }
    let session = app.session(&args.session).await?;
    let text = format!("thinking level {} for the next turns of session {session}", args.level);
    let changed = ThinkingChanged { level: args.level };
    let options = InjectOptions { audited: Some("settings"), ..InjectOptions::default() };
    let done = app.engine.edits().inject(&app.scope, &session, vec![changed.into()], options).await?;
    print_change(app, &done, &text)
}
