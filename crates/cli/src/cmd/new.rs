//! `sapwood new`: creates a session and prints its id.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use sapwood::OpenOptions;
use sapwood::core::agent::Agent;
use sapwood::engine::sessions::StartOptions;
use serde_json::json;

use super::session_options::StartArgs;
use crate::app::App;
use crate::failure::{Failure, Result};

/// Create a session and print its id
///
/// If a session with the given id exists, it is not changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood new --title \"Cache investigation\"
  sapwood new --id experiment --agent reviewer --var project=sapwood")]
pub struct NewArgs {
    /// Session id; default: generated
    #[arg(long)]
    id: Option<String>,
    /// Session title
    #[arg(long, allow_hyphen_values = true)]
    title: Option<String>,
    /// Agent of the session; its current definition, if there is an agent file, is stored in the session
    #[arg(long)]
    agent: Option<String>,
    /// Working directory of the session; default: the current directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    start: StartArgs,
}

pub async fn run(app: &mut App, args: NewArgs) -> Result<()> {
    let id = args.id.map(|id| id.parse()).transpose().map_err(sapwood::Error::from)?;
    let cwd = Some(directory(args.cwd)?);
    let open = OpenOptions { id, title: args.title, agent: args.agent.clone(), cwd, parent: None };
    let (id, _) = match frozen_agent(app, args.agent.as_deref())? {
        Some(agent) => {
            let (agent, variables) = (args.start.narrow(agent)?, args.start.variables()?);
            let options = StartOptions { open, agent, variables, ..StartOptions::default() };
            app.engine.sessions().start(&app.scope, options).await?
        }
        None if args.start.is_given() => {
            let hint = "choose one with --agent; run `sapwood agent ls` to list agents";
            return Err(Failure::usage("--var, --tools, --fs-scope and --approvals require an agent", hint));
        }
        None => app.engine.sessions().open(&app.scope, open).await?,
    };
    if app.out.is_json() {
        return app.out.json(&json!({ "id": id }));
    }
    Ok(writeln!(app.out, "{id}")?)
}

/// Returns the agent with this name if an agent file defines it. Otherwise the session stores only the name.
fn frozen_agent(app: &App, name: Option<&str>) -> Result<Option<Agent>> {
    let Some(name) = name else { return Ok(None) };
    match app.paths.agents().choose(Some(name), &app.paths.config) {
        Err(failure) if failure.code == "agent.not_found" => Ok(None),
        agent => agent.map(Some),
    }
}

/// Returns the absolute path, as stored in sessions, so that it does not depend on the current directory.
pub fn directory(given: Option<PathBuf>) -> Result<String> {
    let given = given.unwrap_or_else(|| PathBuf::from("."));
    let mut path = std::path::absolute(&given).map_err(|error| Failure::file(&given, &error))?;
    // Keep symbolic links as given; only `..` needs resolving.
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        path = path.canonicalize().unwrap_or(path);
    }
    let not_text = |path: std::ffi::OsString| {
        let message = format!("the path {} is not valid UTF-8", path.display());
        Failure::usage(message, "choose another directory with --cwd")
    };
    path.into_os_string().into_string().map_err(not_text)
}
