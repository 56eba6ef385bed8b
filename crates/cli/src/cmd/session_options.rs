//! Options of a new session: prompt variables, and permissions narrower than the agent's. Shared by `new` and `chat`.

use std::collections::BTreeMap;

use clap::Args;
use sapwood::core::agent::{Agent, Narrowing};
use sapwood::core::policy::ApprovalMode;
use sapwood::core::port::tool::FsScope;

use crate::failure::{Failure, Result};

#[derive(Debug, Args)]
#[command(next_help_heading = "New session")]
pub struct StartArgs {
    /// Value of {{ctx.NAME}} in the agent's prompt, stored as plain text; repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,
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
        !self.variables.is_empty() || !self.narrows_nothing()
    }

    fn narrows_nothing(&self) -> bool {
        self.tools.is_none() && self.fs_scope.is_none() && self.approvals.is_none()
    }

    /// Returns the agent with the session's narrower permissions.
    pub fn narrow(&self, agent: Agent) -> Result<Agent> {
        let narrowing = Narrowing {
            tools: self.tools.as_deref().map(names_in),
            fs_scope: self.fs_scope,
            approvals: self.approvals,
        };
        Ok(agent.narrowed(&narrowing).map_err(sapwood::engine::EngineError::from)?)
    }

    pub fn variables(&self) -> Result<BTreeMap<String, String>> {
        variables_of(&self.variables)
    }
}

/// Parses the values of `--var NAME=VALUE`.
pub fn variables_of(given: &[String]) -> Result<BTreeMap<String, String>> {
    given.iter().map(|given| pair_of(given)).collect()
}

fn names_in(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn pair_of(given: &str) -> Result<(String, String)> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(
            format!("{given:?} is not a valid variable"),
            "write --var NAME=VALUE, for example --var project=sapwood",
        )),
    }
}
