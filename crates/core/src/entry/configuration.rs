//! A session's configuration and context. Both belong to the session, not to a path of its tree: a branch, a reset or a
//! compaction does not change them. Only entries that this store wrote itself count, see [`crate::authority`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::id::SessionId;
use crate::scope::Principal;

/// The configuration that a session was started with. It is written once and never changes: see [`LimitsChanged`] and
/// [`ContextSet`] for what an owner may change later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Configured {
    /// The agent, after narrowing: tools, scope, limits, budgets.
    pub agent: Json,
    /// The system prompt, rendered once with the variables and memories of the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The context at the start.
    #[serde(default)]
    pub context: SessionContext,
    /// The session that this configuration was inherited from; absent in the session that fixed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<ConfigSource>,
}

/// The source of a fork's configuration, and how much of the limits the fork's ancestors have already used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigSource {
    /// The session that set the configuration.
    pub session: SessionId,
    /// The owner of that session. Only this owner or an operator may change the working directory.
    pub owner: Principal,
    /// Turns that the ancestors ran before the fork.
    #[serde(default)]
    pub turns: u32,
    /// What the ancestors spent before the fork, in billionths of a US dollar.
    #[serde(default)]
    pub cost_nano_usd: u64,
    /// Tokens that the ancestors used before the fork.
    #[serde(default)]
    pub tokens: u64,
}

/// The situation that a session works in. The caller detects or supplies it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SessionContext {
    /// The working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The file that the user has open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_file: Option<String>,
    /// The lines that the user has selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// The branch or commit of the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Plain values for `{{ctx.NAME}}`. Never secrets: values that look like a key are refused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

/// Selected lines of a file, both inclusive and counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Selection {
    /// The file.
    pub file: String,
    /// The first line.
    pub start_line: u32,
    /// The last line.
    pub end_line: u32,
}

/// The session's context after a change. The newest one applies, on every branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextSet {
    /// The whole context, not only what changed.
    pub context: SessionContext,
}

/// Limits that the owner changed after the start. Absent fields keep their value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LimitsChanged {
    /// Maximum number of turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u32>,
    /// Maximum number of tokens in the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_budget: Option<u64>,
    /// Maximum cost in billionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_nano_usd: Option<u64>,
}

impl fmt::Display for SessionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field =
            |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name}: {value}"));
        let selection = self.selection.as_ref().map(|lines| format!("selection: {lines}"));
        let variables = self.variables.iter().map(|(name, value)| format!("{name} = {value}"));
        let fields = [
            field("working directory", &self.working_dir),
            field("active file", &self.active_file),
            selection,
            field("git ref", &self.git_ref),
        ];
        let lines: Vec<String> = fields.into_iter().flatten().chain(variables).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl SessionContext {
    /// The part of the context that the model needs at the start, for the system prompt. The directory alone is not worth
    /// a block: tools resolve paths against it.
    pub fn prompt_block(&self) -> Option<String> {
        if self.active_file.is_none() && self.selection.is_none() && self.git_ref.is_none() {
            return None;
        }
        let shown = Self { variables: BTreeMap::new(), ..self.clone() };
        Some(format!("Context of this session:\n{shown}"))
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.file, self.start_line, self.end_line)
    }
}

impl LimitsChanged {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Apply a later change.
    pub fn merge(&mut self, later: &Self) {
        self.turns_max = later.turns_max.or(self.turns_max);
        self.token_budget = later.token_budget.or(self.token_budget);
        self.budget_nano_usd = later.budget_nano_usd.or(self.budget_nano_usd);
    }
}

impl fmt::Display for LimitsChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turns = self.turns_max.map(|turns| format!("{turns} turns"));
        let tokens = self.token_budget.map(|tokens| format!("{tokens} tokens in the context"));
        let cost = self.budget_nano_usd.map(|nano| format!("{} USD", nano as f64 / 1e9));
        let limits: Vec<String> = [turns, tokens, cost].into_iter().flatten().collect();
        write!(f, "at most {}", limits.join(", "))
    }
}
