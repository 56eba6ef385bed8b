//! What a new session is told besides its agent: variables for its prompt, and less than the agent allows. Shared by `new`
//! and `chat`.

use std::collections::BTreeMap;

use clap::Args;
use sapwood::core::agent::{Agent, Narrowing};
use sapwood::core::policy::ApprovalMode;
use sapwood::core::port::tool::FsScope;

use crate::failure::{Failure, Result};

#[derive(Debug, Args)]
#[command(next_help_heading = "A new session")]
pub struct StartArgs {
    /// What {{ctx.NAME}} in the agent's prompt stands for; plain text, no secrets. May be given several times
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Only these of the agent's tools, with commas between; nothing for none
    #[arg(long, value_name = "NAMES")]
    tools: Option<String>,
    /// sandboxed, project or full: no more than the agent has
    #[arg(long, value_name = "SCOPE", value_parser = parse::<FsScope>)]
    fs_scope: Option<FsScope>,
    /// plan, ask, accept-edits or auto: no freer than the agent is
    #[arg(long, value_name = "MODE", value_parser = parse::<ApprovalMode>)]
    approvals: Option<ApprovalMode>,
}

/// A name as agent files write it.
fn parse<T: serde::de::DeserializeOwned>(name: &str) -> std::result::Result<T, String> {
    serde_json::from_value(serde_json::Value::from(name)).map_err(|error| error.to_string())
}

impl StartArgs {
    /// Whether anything was said that only a new session can take.
    pub fn is_given(&self) -> bool {
        !self.variables.is_empty() || !self.narrows_nothing()
    }

    fn narrows_nothing(&self) -> bool {
        self.tools.is_none() && self.fs_scope.is_none() && self.approvals.is_none()
    }

    /// The agent as the session will have it.
    pub fn narrow(&self, agent: Agent) -> Result<Agent> {
        let narrowing = Narrowing {
            tools: self.tools.as_deref().map(names_in),
            fs_scope: self.fs_scope,
            approvals: self.approvals,
        };
        Ok(agent.narrowed(&narrowing).map_err(sapwood::engine::EngineError::from)?)
    }

    pub fn variables(&self) -> Result<BTreeMap<String, String>> {
        self.variables.iter().map(|given| pair_of(given)).collect()
    }
}

fn names_in(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn pair_of(given: &str) -> Result<(String, String)> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(
            format!("{given:?} is not a variable"),
            "write --var NAME=VALUE, for example --var project=sapwood",
        )),
    }
}
