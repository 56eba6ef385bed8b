//! `sapwood close` and `sapwood archive`: end a session. Both can be undone.

use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;

/// Close a session; a new message reopens it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood close @last")]
pub struct CloseArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn close(app: &mut App, args: CloseArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    app.open_backends_to_learn()?;
    app.engine.sessions().close(&app.scope, &session).await?;
    print_state(app, &session).await
}

/// Make a session read-only, or reopen it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood archive @last
  sapwood archive @last --reopen")]
pub struct ArchiveArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Reopen an archived session
    #[arg(long)]
    reopen: bool,
}

pub async fn archive(app: &mut App, args: ArchiveArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    if args.reopen {
        app.engine.sessions().reopen(&app.scope, &session).await?;
    } else {
        app.open_backends_to_learn()?;
        app.engine.sessions().archive(&app.scope, &session).await?;
    }
    print_state(app, &session).await
}

async fn print_state(app: &mut App, session: &SessionId) -> Result<()> {
    let state = app.engine.directory().summary(&app.scope, session).await?.state;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": session, "state": state }));
    }
    Ok(writeln!(app.out, "{session} is {}", state.as_str())?)
}
