//! Parses the configuration and context of a session from requests.

use sapwood::core::agent::Narrowing;
use sapwood::core::entry::{LimitsChanged, Selection, SessionContext};
use sapwood::engine::config_changes::ConfigChange;

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::wire;

/// Refuse a directory from callers who are not operators: it is a directory on the server.
pub fn check_directory(caller: &Caller, dir: Option<&String>) -> Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    if !caller.is_operator() {
        return Err(Problem::invalid("cwd names a directory on the server: only an operator may set it"));
    }
    match std::path::Path::new(dir).is_dir() {
        true => Ok(()),
        false => Err(Problem::invalid("cwd is not a directory on the server")),
    }
}

/// Parse the restrictions of a new session or fork.
pub fn narrowing(
    tools: Option<Vec<String>>,
    fs_scope: Option<String>,
    approvals: Option<String>,
) -> Result<Narrowing> {
    Ok(Narrowing {
        tools,
        fs_scope: parse_value("fs_scope", fs_scope)?,
        approvals: parse_value("approvals", approvals)?,
    })
}

/// Parses a value in the notation of agent files.
fn parse_value<T: serde::de::DeserializeOwned>(key: &str, value: Option<String>) -> Result<Option<T>> {
    let read = |value: String| serde_json::from_value(serde_json::Value::from(value));
    value.map(read).transpose().map_err(|error| Problem::invalid(format!("{key}: {error}")))
}

fn selection_of(selection: wire::Selection) -> Selection {
    let wire::Selection { file, start_line, end_line } = selection;
    Selection { file, start_line, end_line }
}

/// The context of a new session.
pub fn context_of(new: &wire::NewSession) -> SessionContext {
    let given = new.context.clone();
    let mut variables = new.variables.clone();
    variables.extend(given.variables);
    SessionContext {
        working_dir: new.cwd.clone().or(given.working_dir),
        active_file: given.active_file,
        selection: given.selection.map(selection_of),
        git_ref: given.git_ref,
        variables,
    }
}

/// The changes of the configuration in a PATCH; `None` if there are none.
pub fn change_of(patch: &wire::SessionPatch) -> Result<Option<ConfigChange>> {
    let budget = patch.budget_usd.map(nano_usd).transpose()?;
    let context = patch.context.clone();
    let change = ConfigChange {
        working_dir: patch.cwd.clone().or(context.working_dir),
        active_file: context.active_file,
        selection: context.selection.map(|selection| Some(selection_of(selection))),
        git_ref: context.git_ref,
        variables: context.variables,
        limits: LimitsChanged {
            turns_max: patch.turns_max,
            token_budget: patch.token_budget,
            budget_nano_usd: budget,
        },
    };
    Ok(Some(change).filter(|change| *change != ConfigChange::default()))
}

fn nano_usd(dollars: f64) -> Result<u64> {
    if !(dollars > 0.0 && dollars <= 1e6) {
        return Err(Problem::invalid("budget_usd must be more than 0 and at most 1000000"));
    }
    Ok((dollars * 1e9).round() as u64)
}
