//! Options of a new session: its context, and permissions narrower than the agent's. Shared by the commands that start or
//! change sessions.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use sapwood::core::agent::{Agent, Narrowing};
use sapwood::core::entry::{Selection, SessionContext};
use sapwood::core::policy::ApprovalMode;
use sapwood::core::port::tool::FsScope;

use crate::failure::{Failure, Result};

/// Maximum length of a detected git ref.
const GIT_REF_CHARS_MAX: usize = 250;

#[derive(Debug, Args)]
#[command(next_help_heading = "New session")]
pub struct StartArgs {
    /// Value of {{ctx.NAME}} in the agent's prompt, stored as plain text; repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    narrow: NarrowArgs,
}

/// What the user is looking at.
#[derive(Debug, Args)]
pub struct ContextArgs {
    /// File that the user has open
    #[arg(long, value_name = "FILE")]
    pub active_file: Option<String>,
    /// Selected lines: FILE:FIRST-LAST
    #[arg(long, value_name = "LINES", value_parser = selection)]
    pub selection: Option<Selection>,
    /// Branch or commit of the directory; default: detected from the directory
    #[arg(long, value_name = "REF")]
    pub git_ref: Option<String>,
}

/// Permissions narrower than the agent's.
#[derive(Debug, Args)]
pub struct NarrowArgs {
    /// Allow only these of the agent's tools, comma-separated; an empty value allows none
    #[arg(long, value_name = "NAMES")]
    tools: Option<String>,
    /// File access: sandboxed, project or full; at most the agent's
    #[arg(long, value_name = "SCOPE", value_parser = parse::<FsScope>)]
    fs_scope: Option<FsScope>,
    /// Approval mode: plan, ask, accept-edits or auto; at least as strict as the agent's
    #[arg(long, value_name = "MODE", value_parser = parse::<ApprovalMode>)]
    approvals: Option<ApprovalMode>,
}

/// Parses a name as written in agent files.
fn parse<T: serde::de::DeserializeOwned>(name: &str) -> std::result::Result<T, String> {
    serde_json::from_value(serde_json::Value::from(name)).map_err(|error| error.to_string())
}

impl StartArgs {
    /// Reports whether any of these options was given.
    pub fn is_given(&self) -> bool {
        !self.variables.is_empty()
            || self.context.is_given()
            || self.narrow.narrowing() != Narrowing::default()
    }

    pub fn narrowing(&self) -> Narrowing {
        self.narrow.narrowing()
    }

    /// Returns the agent with the session's narrower permissions.
    pub fn narrow(&self, agent: Agent) -> Result<Agent> {
        Ok(agent.narrowed(&self.narrow.narrowing()).map_err(sapwood::engine::EngineError::from)?)
    }

    /// Returns the context of a session in this directory.
    pub fn context(&self, cwd: &str) -> Result<SessionContext> {
        let variables: Result<BTreeMap<String, String>> =
            self.variables.iter().map(|given| pair_of(given)).collect();
        Ok(SessionContext {
            working_dir: Some(cwd.to_owned()),
            active_file: self.context.active_file.clone(),
            selection: self.context.selection.clone(),
            git_ref: self.context.git_ref.clone().or_else(|| git_ref_of(cwd)),
            variables: variables?,
        })
    }
}

impl ContextArgs {
    fn is_given(&self) -> bool {
        self.active_file.is_some() || self.selection.is_some() || self.git_ref.is_some()
    }
}

impl NarrowArgs {
    pub fn narrowing(&self) -> Narrowing {
        Narrowing {
            tools: self.tools.as_deref().map(names_in),
            fs_scope: self.fs_scope,
            approvals: self.approvals,
        }
    }
}

/// Parses selected lines.
fn selection(text: &str) -> std::result::Result<Selection, String> {
    let invalid =
        || format!("{text:?} is not a selection; write FILE:FIRST-LAST, for example src/main.rs:10-20");
    let (file, lines) = text.rsplit_once(':').ok_or_else(invalid)?;
    let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
    let (start_line, end_line) = (first.parse().ok(), last.parse().ok());
    match (start_line, end_line) {
        (Some(start_line), Some(end_line)) if !file.is_empty() => {
            Ok(Selection { file: file.to_owned(), start_line, end_line })
        }
        _ => Err(invalid()),
    }
}

/// Detects the current branch, or the commit of a detached head. Reads only git's files, so that no program runs.
pub fn git_ref_of(dir: &str) -> Option<String> {
    let git = Path::new(dir).ancestors().map(|dir| dir.join(".git")).find(|git| git.exists())?;
    let git = match std::fs::read_to_string(&git) {
        // A worktree has a file that names the directory.
        Ok(link) => git.parent()?.join(link.strip_prefix("gitdir:")?.trim()),
        Err(_) => git,
    };
    let head = std::fs::read_to_string(git.join("HEAD")).ok()?;
    let head = head.trim();
    let name = head.strip_prefix("ref: refs/heads/").or_else(|| head.strip_prefix("ref: ")).unwrap_or(head);
    Some(name.chars().take(GIT_REF_CHARS_MAX).collect()).filter(|name: &String| !name.is_empty())
}

fn names_in(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

pub fn pair_of(given: &str) -> Result<(String, String)> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(
            format!("{given:?} is not a valid variable"),
            "write --var NAME=VALUE, for example --var project=sapwood",
        )),
    }
}
