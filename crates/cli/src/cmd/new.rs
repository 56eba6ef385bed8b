//! `sapwood new`: opens a session and prints its id.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use sapwood::OpenOptions;
use sapwood::core::agent::Agent;
use sapwood::engine::turn::StartOptions;
use serde_json::json;

use super::session_options::StartArgs;
use crate::app::App;
use crate::failure::{Failure, Result};

/// Make a session and print its id; an id that exists is left as it is
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The id; one is made up if it is not given
    #[arg(long)]
    id: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    title: Option<String>,
    /// The agent that is to answer in it; the one of this name, if there is a file for it, is frozen into the session
    #[arg(long)]
    agent: Option<String>,
    /// The directory it is about; the current one if not given
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    start: StartArgs,
}

pub async fn run(app: &mut App, args: NewArgs) -> Result<()> {
    let id = args.id.map(|id| id.parse()).transpose().map_err(sapwood::Error::from)?;
    let cwd = Some(directory(args.cwd)?);
    let open = OpenOptions { id, title: args.title, agent: args.agent.clone(), cwd };
    let (id, _) = match frozen_agent(app, args.agent.as_deref())? {
        Some(agent) => {
            let (agent, variables) = (args.start.narrow(agent)?, args.start.variables()?);
            let options = StartOptions { open, agent, variables, ..StartOptions::default() };
            app.engine.start(&app.scope, options).await?
        }
        None if args.start.is_given() => {
            let hint = "name one with --agent; sapwood agent ls shows them";
            return Err(Failure::usage("variables and narrower rights need an agent", hint));
        }
        None => app.engine.open(&app.scope, open).await?,
    };
    if app.out.is_json() {
        return app.out.json(&json!({ "id": id }));
    }
    Ok(writeln!(app.out, "{id}")?)
}

/// The agent of this name, if there is a file for it. Without one the name is kept for whoever runs the session.
fn frozen_agent(app: &App, name: Option<&str>) -> Result<Option<Agent>> {
    let Some(name) = name else { return Ok(None) };
    match app.place.agents().choose(Some(name), &app.place.config) {
        Err(failure) if failure.code == "agent.not_found" => Ok(None),
        agent => agent.map(Some),
    }
}

/// A directory as sessions keep it: absolute, so that it means the same from everywhere.
pub fn directory(given: Option<PathBuf>) -> Result<String> {
    let given = given.unwrap_or_else(|| PathBuf::from("."));
    let mut path = std::path::absolute(&given).map_err(|error| Failure::file(&given, &error))?;
    // Links stay as they were given; only `..` has to be looked up.
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        path = path.canonicalize().unwrap_or(path);
    }
    let not_text = |path: std::ffi::OsString| {
        let message = format!("the path {} is not valid UTF-8", path.display());
        Failure::usage(message, "give another with --cwd")
    };
    path.into_os_string().into_string().map_err(not_text)
}
