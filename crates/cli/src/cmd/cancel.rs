//! `sapwood cancel`: ends the turn that runs, wherever it runs, or that was interrupted.

use std::io::Write;

use clap::Args;
use sapwood::engine::turn::OnWait;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;

/// End the turn of a session; what it said so far is kept
#[derive(Debug, Args)]
pub struct CancelArgs {
    session: String,
}

pub async fn run(app: &mut App, args: CancelArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let turn = app.engine.cancel(&app.scope, &session).await?;
    app.open_backends()?;
    // One that nobody runs any more ends here; one that somebody runs ends there.
    match app.engine.resume(&app.scope, &session, OnWait::Leave).await {
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
