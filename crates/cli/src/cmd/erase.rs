//! `sapwood erase`: deletes a session permanently, after confirmation.

use std::io::Write;

use clap::Args;
use sapwood::core::project::summary::Summary;
use serde_json::json;

use crate::app::App;
use crate::confirm::Confirmation;
use crate::failure::{Failure, Result};
use crate::render::{clean, plural};

/// Delete a session permanently
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood erase @last
  sapwood erase experiment --yes")]
pub struct EraseArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub async fn run(app: &mut App, args: EraseArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    if !args.yes {
        let summary = app.engine.directory().summary(&app.scope, &session).await?;
        confirm(app, &describe(&summary))?;
    }
    app.engine.sessions().erase(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": session, "erased": true }));
    }
    Ok(writeln!(app.out, "erased session {session}")?)
}

fn describe(summary: &Summary) -> String {
    let name = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("no title");
    let own = u64::from(summary.head.seq.0 - summary.inherited.min(summary.head.seq.0));
    format!("session {} ({}) with {}", summary.id, clean(name), plural(own, "entry"))
}

fn confirm(app: &App, what: &str) -> Result<()> {
    let declined =
        Failure::new("erase.declined", "nothing was erased").with_hint("answer y to erase the session");
    let confirmation = Confirmation {
        question: &format!("Permanently erase {what}?"),
        would: &format!("erase {what}"),
        hint: "add --yes to confirm; run `sapwood export` first to keep a copy",
        declined,
    };
    confirmation.ask(app)
}
