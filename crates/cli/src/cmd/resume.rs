//! `sapwood resume`: continues an interrupted turn, or starts a turn for queued input.

use std::io::Write;

use clap::Args;
use sapwood::engine::turn::OnWait;
use serde_json::json;

use super::send::{JsonOutput, TurnSubscription, deliver};
use crate::app::App;
use crate::failure::Result;

/// Resume an interrupted turn, or process queued input
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood resume @last")]
pub struct ResumeArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: ResumeArgs) -> Result<()> {
    app.open_backends()?;
    let session = app.session(&args.session).await?;
    let turn = TurnSubscription::open(app, &session).await?;
    let mut running = app.engine.turns().resume(&app.scope, &session, OnWait::Leave).await?;
    if running.is_none() {
        running = app.engine.turns().continue_imported(&app.scope, &session, OnWait::Leave).await?;
    }
    match running {
        Some(running) => deliver(app, turn.with(running), JsonOutput::Report).await,
        None if app.out.is_json() => app.out.json(&json!({ "session": session, "outcome": "nothing" })),
        None => Ok(writeln!(app.out, "nothing to resume: no open turn and no queued input")?),
    }
}
