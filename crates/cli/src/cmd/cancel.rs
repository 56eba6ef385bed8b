//! `sapwood cancel`: ends a running turn, in any process, or an interrupted turn.

use std::io::Write;

use clap::Args;
use sapwood::engine::turn::OnWait;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;

/// Cancel a session's turn and keep its output so far
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood cancel @last")]
pub struct CancelArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: CancelArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let turn = app.engine.turn_control().cancel(&app.scope, &session).await?;
    app.open_backends()?;
    // An abandoned turn is ended here. A turn that another process runs is ended by that process.
    match app.engine.turns().resume(&app.scope, &session, OnWait::Leave).await {
        Ok(Some(running)) => drop(running.ended().await?),
        Ok(None) => {}
        Err(error) if error.code() == "session.leased" => {}
        Err(error) => return Err(error.into()),
    }
    if app.out.is_json() {
        return app.out.json(&json!({ "session": session, "turn": turn }));
    }
    Ok(writeln!(app.out, "cancelled")?)
}
