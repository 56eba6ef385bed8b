//! `sapwood fork` and `sapwood ancestry`: sessions that share the beginning of another session.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use sapwood::engine::config_changes::ForkChanges;
use sapwood::{ForkAt, OpenOptions};
use serde_json::json;

use super::new::existing_directory;
use super::session_options::{NarrowArgs, git_ref_of};
use crate::app::App;
use crate::failure::{Failure, Result};
use crate::number_arg::count;

/// Fork a session without copying it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood fork @last
  sapwood fork @last --at 12 --id experiment
  sapwood fork @last --keep-first 4 --title \"Second attempt\"
  sapwood fork @last --cwd ../other-checkout --tools read_file,list_directory")]
pub struct ForkArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Last shared entry: seq, id, unique prefix, or label; default: the leaf
    #[arg(long, value_name = "ENTRY", conflicts_with = "keep_first")]
    at: Option<String>,
    /// Share only the first N messages
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    keep_first: Option<u32>,
    /// Id of the new session; default: generated
    #[arg(long)]
    id: Option<String>,
    /// Title of the new session
    #[arg(long, allow_hyphen_values = true)]
    title: Option<String>,
    /// Working directory of the fork; default: the source's
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    narrow: NarrowArgs,
}

pub async fn run(app: &mut App, args: ForkArgs) -> Result<()> {
    let source = app.session(&args.session).await?;
    let id = args.id.map(|id| id.parse()).transpose().map_err(sapwood::Error::from)?;
    let at = match (&args.at, args.keep_first) {
        (Some(at), _) => {
            ForkAt::Entry(app.engine.directory().find_entry(&app.scope, &source, at).await?.meta.seq)
        }
        (None, Some(count)) => ForkAt::KeepFirst(count),
        (None, None) => ForkAt::Leaf,
    };
    let cwd = args.cwd.map(|dir| existing_directory(Some(dir))).transpose()?;
    let git_ref = cwd.as_deref().and_then(git_ref_of);
    let options = OpenOptions { id, title: args.title, cwd: cwd.clone(), ..OpenOptions::default() };
    let changes = ForkChanges { narrowing: args.narrow.narrowing(), cwd, git_ref };
    let id = app.engine.sessions().fork_with(&app.scope, &source, at, options, changes).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "id": id }));
    }
    Ok(writeln!(app.out, "{id}")?)
}

/// Show a session's parent, root and forks
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood ancestry @last")]
pub struct AncestryArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn ancestry(app: &mut App, args: AncestryArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let found = app.engine.views().ancestry(&app.scope, &session).await?;
    let ancestry =
        found.ok_or_else(|| Failure::new("session.not_found", format!("no session `{session}`")))?;
    if app.out.is_json() {
        return app.out.json(&ancestry);
    }
    let parent = ancestry.parent.as_ref().map_or("-", |parent| parent.as_str());
    writeln!(app.out, "session: {}\nparent: {parent}\nroot: {}", ancestry.id, ancestry.root)?;
    let chain: Vec<&str> = ancestry.chain.iter().map(|id| id.as_str()).collect();
    writeln!(app.out, "chain: {}", chain.join(" ← "))?;
    for child in &ancestry.children {
        writeln!(app.out, "child: {child}")?;
    }
    Ok(())
}
