//! `sapwood agent adopt`: shows the agent of an imported session, and configures the session with it.

use std::io::Write;

use clap::Args;
use sapwood::engine::adopt::ImportedAgent;
use serde_json::json;

use crate::app::App;
use crate::confirm::Confirmation;
use crate::failure::{Failure, Result};
use crate::render::{DIM, clean};

/// Continue an imported session with the agent that it names
///
/// An imported session runs with your default agent. This command shows the agent that the import names: its tools, the
/// programs that it starts and the files that it may access. After your confirmation, the session's turns run with it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood agent adopt @last
  sapwood agent adopt imported --yes")]
pub struct AdoptArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub async fn run(app: &mut App, args: AdoptArgs) -> Result<()> {
    app.open_backends()?;
    let session = app.session(&args.session).await?;
    let found = app.engine.configuration().imported_agent(&app.scope, &session).await?;
    let imported = found.ok_or_else(|| {
        Failure::new("agent.not_found", format!("session {session} has no imported agent"))
            .with_hint("run `sapwood events SESSION` to see its entries")
    })?;
    if !args.yes {
        if !app.out.is_json() {
            show(&imported)?;
        }
        confirm(app, &imported.agent.id)?;
    }
    let id = imported.agent.id.clone();
    app.engine.configuration().adopt(&app.scope, &session, imported).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": session, "agent": id }));
    }
    Ok(writeln!(app.out, "session {session} runs with agent {}", clean(&id))?)
}

/// Prints to stderr, like the question that follows.
fn show(imported: &ImportedAgent) -> Result<()> {
    let value = serde_json::to_value(&imported.agent).map_err(std::io::Error::from)?;
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        anstream::eprintln!("{DIM}{key}{DIM:#} {}", clean(&text));
    }
    Ok(())
}

fn confirm(app: &App, agent: &str) -> Result<()> {
    let declined =
        Failure::new("agent.declined", "nothing was adopted").with_hint("answer y to adopt the agent");
    let confirmation = Confirmation {
        question: &format!("Run this session with agent {}?", clean(agent)),
        would: "adopt the agent above",
        hint: "add --yes to confirm",
        declined,
    };
    confirmation.ask(app)
}
