//! A session's configuration: what it may do, fixed when it starts, and the context it works in. It belongs to the session
//! and applies on every branch. The settings of a path (model, thinking, skills) fall back to it.

use serde::{Deserialize, Serialize};

use crate::agent::{Agent, AgentError};
use crate::entry::{ConfigSource, Configured, LimitsChanged, SessionContext};
use crate::id::Seq;
use crate::settings::Settings;

/// The positions of the entries with a session's configuration, and the changed limits. Only entries that this store
/// wrote count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigEntries {
    /// The entry that set the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<Seq>,
    /// The newest change of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Seq>,
    /// The limits that the owner has changed.
    #[serde(skip_serializing_if = "LimitsChanged::is_empty")]
    pub limits: LimitsChanged,
}

impl ConfigEntries {
    /// Whether the session has neither a configuration nor a change of it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A session's configuration and current context.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// The agent, after narrowing and with the limits that the owner has set.
    pub agent: Agent,
    /// The rendered system prompt.
    pub system: Option<String>,
    /// The current context.
    pub context: SessionContext,
    /// Where a fork inherited the configuration from.
    pub inherited: Option<ConfigSource>,
    /// Maximum number of tokens in the context, if the owner has set one.
    pub token_budget: Option<u64>,
}

impl SessionConfig {
    /// Combine the configuration with what was changed later.
    pub fn of(
        configured: Configured,
        context: Option<SessionContext>,
        limits: &LimitsChanged,
    ) -> Result<Self, AgentError> {
        let mut agent = Agent::from_frozen(&configured.agent)?;
        agent.set_limits(limits);
        Ok(Self {
            agent,
            system: configured.system,
            context: context.unwrap_or(configured.context),
            inherited: configured.inherited,
            token_budget: limits.token_budget,
        })
    }

    /// Apply the configuration to the settings of a path. It replaces the agent, system prompt and working directory,
    /// which may be imported. Its skills, thinking level and model apply only if the path does not set them.
    pub fn apply_to(&self, settings: &mut Settings) {
        let agent = &self.agent;
        settings.system.clone_from(&self.system);
        // The prompt is already rendered.
        settings.variables.clear();
        settings.cwd.clone_from(&self.context.working_dir);
        settings.agent = Some(agent.to_frozen());
        settings.skills.get_or_insert_with(|| agent.skills.clone());
        settings.thinking.get_or_insert_with(|| agent.thinking.as_str().to_owned());
        if settings.model.is_none() {
            settings.model.clone_from(&agent.model);
        }
    }
}
