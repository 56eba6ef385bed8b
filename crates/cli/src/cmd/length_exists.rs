//! `sapwood length` and `sapwood exists`: short answers for scripts.

use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};

/// Count the messages in a session's context
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood length @last
  sapwood length @last --json")]
pub struct LengthArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

/// Check whether a session exists: prints true or false
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood exists my-session
  test \"$(sapwood exists my-session)\" = true || sapwood new --id my-session")]
pub struct ExistsArgs {
    /// Complete session id, or @last
    session: String,
}

pub async fn length(app: &mut App, args: LengthArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let length = app.engine.views().length(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "session": session, "length": length }));
    }
    Ok(writeln!(app.out, "{length}")?)
}

/// An unknown session is an answer and not an error. A session of another user does not exist for the caller.
pub async fn exists(app: &mut App, args: ExistsArgs) -> Result<()> {
    let exists = match args.session.as_str() {
        "@last" => match app.session("@last").await {
            Err(failure) if failure.code == "session.not_found" => false,
            found => found.map(|_| true)?,
        },
        given => {
            let id: SessionId = given.parse().map_err(|error| Failure::from(sapwood::Error::from(error)))?;
            app.engine.directory().exists(&app.scope, &id).await?
        }
    };
    if app.out.is_json() {
        return app.out.json(&json!({ "session": args.session, "exists": exists }));
    }
    Ok(writeln!(app.out, "{exists}")?)
}
