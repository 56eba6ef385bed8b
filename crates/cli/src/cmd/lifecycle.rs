//! `sapwood close` and `sapwood archive`: the ends of a session, both of which can be taken back.

use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;

/// End a session for now; a new message opens it again
#[derive(Debug, Args)]
pub struct CloseArgs {
    session: String,
}

pub async fn close(app: &mut App, args: CloseArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    app.open_backends_to_learn()?;
    app.engine.close(&app.scope, &session).await?;
    print_state(app, &session).await
}

/// Make a session read-only, or let it go on
#[derive(Debug, Args)]
pub struct ArchiveArgs {
    session: String,
    /// Let an archived session go on
    #[arg(long)]
    reopen: bool,
}

pub async fn archive(app: &mut App, args: ArchiveArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    if args.reopen {
        app.engine.reopen(&app.scope, &session).await?;
    } else {
        app.open_backends_to_learn()?;
        app.engine.archive(&app.scope, &session).await?;
    }
    print_state(app, &session).await
}

async fn print_state(app: &mut App, session: &SessionId) -> Result<()> {
    let state = app.engine.summary(&app.scope, session).await?.state;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": session, "state": state }));
    }
    Ok(writeln!(app.out, "{session} is {}", state.as_str())?)
}
