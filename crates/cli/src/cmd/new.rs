//! `sapwood new`: creates a session and prints its id.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use sapwood::OpenOptions;
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
    /// Agent of the session; its current definition is stored in the session
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
    let cwd = existing_directory(args.cwd)?;
    let open = OpenOptions { id, title: args.title, agent: None, cwd: Some(cwd.clone()), parent: None };
    // Without an agent, the session is configured by its first turn, so that it can also be used as a plain store.
    let needs_agent = args.agent.is_some() || app.paths.config.agent.is_some() || args.start.is_given();
    let (id, _) = if needs_agent {
        let agent = app.paths.agents().choose(args.agent.as_deref(), &app.paths.config)?;
        let (narrowing, context) = (args.start.narrowing(), args.start.context(&cwd)?);
        let options = StartOptions { open, agent, narrowing, context };
        app.engine.sessions().start(&app.scope, options).await?
    } else {
        app.engine.sessions().open(&app.scope, open).await?
    };
    if app.out.is_json() {
        return app.out.json(&json!({ "id": id }));
    }
    Ok(writeln!(app.out, "{id}")?)
}

/// Like [`directory`], but the directory must exist.
pub fn existing_directory(given: Option<PathBuf>) -> Result<String> {
    let dir = directory(given)?;
    if !Path::new(&dir).is_dir() {
        let hint = "create it, or choose another directory with --cwd";
        return Err(Failure::new("file.not_found", format!("there is no directory {dir}")).with_hint(hint));
    }
    Ok(dir)
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
