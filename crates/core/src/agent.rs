//! An agent: its model, tools and limits. Agents are loaded from strictly validated files. A session freezes the agent
//! it was started with, so editing a file never changes a running conversation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::approval::ApprovalWait;
use crate::content::Json;
use crate::entry::LimitsChanged;
use crate::memory::prompt::SECTION_TOKENS_DEFAULT;
use crate::policy::ApprovalMode;
use crate::port::model::Thinking;
use crate::port::tool::{FsScope, McpServer, ProgramLimits};
use crate::pressure::Thresholds;

/// Maximum length of a system prompt, in bytes.
pub const SYSTEM_PROMPT_BYTES_MAX: usize = 256 << 10;
/// Maximum number of tokens of memories in a session's system prompt.
pub const MEMORY_TOKENS_MAX: u32 = 16_000;
/// Minimum size of a context window or token budget. A smaller context could not hold a summary and an answer.
pub const CONTEXT_TOKENS_MIN: u64 = 1_000;
/// Maximum number of models in a fallback chain.
pub const CHAIN_MAX: usize = 8;
/// Default limit on turns per session.
pub const TURNS_MAX_DEFAULT: u32 = 50;
/// Default limit on turns of an interactive session.
pub const INTERACTIVE_TURNS_MAX: u32 = 1_000;

/// The configuration of a session's model, tools, limits and rights. `docs/spec/agents.md` describes each field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Lower-case words joined by hyphens.
    pub id: String,
    /// A name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The agent's purpose, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `PROVIDER/NAME`, `demo`, or the name of a model that the embedding program supplies. `None` uses the configured
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Fallback models, tried in this order when the model fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback_chain: Vec<ChainLink>,
    /// Instructions for the model, at most 256 KB. `{{ctx.NAME}}` is replaced by the session's variable of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The sampling temperature, from 0 to 2. `None` leaves it to the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Maximum number of output tokens per model call, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// The model's reasoning effort. Off by default.
    #[serde(default)]
    pub thinking: Thinking,
    /// The names of the tools that the model may call: built-in tools, and tools that the embedding program supplies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// MCP servers by name. The model may call all their tools, without listing them in `tools`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// Which files the tools can access. Defaults to the session's scratch directory.
    #[serde(default)]
    pub fs_scope: FsScope,
    /// Exact commands or globs that `run_command` may run. If empty, `run_command` is disabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_commands: Vec<String>,
    /// Exact host names that tools may connect to. If empty, all connections are denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// Limits for commands and MCP programs. They can only lower the operator's limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ProgramLimits>,
    /// Which calls may run without a person's approval.
    #[serde(default)]
    pub approvals: ApprovalMode,
    /// How long questions wait for a person. Without it, they wait until they are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_wait: Option<ApprovalWait>,
    /// The spending limit of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Limits on turns, rounds and time.
    #[serde(default)]
    pub limits: Limits,
    /// How the engine reacts to the model's rating of its own answers. `None` ignores ratings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// Thresholds of the token pressure levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Thresholds>,
    /// The model's context window in tokens, for a model that neither the catalog nor `[models]` describes. At least
    /// 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// The maximum size of a session's context in tokens, at least 1,000. The pressure levels are percentages of this
    /// number, or of the model's window without the reserve for an answer if that is smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_budget: Option<u64>,
    /// What to do with a turn whose process died.
    #[serde(default)]
    pub on_interrupt: OnInterrupt,
    /// How sessions of this agent use and create memories. Defaults apply if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// The names of the skills that are active when a session of this agent starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
}

/// How sessions use and create memories. In agent files, `true` enables all features and `false` disables them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Token budget for memories in a new session's system prompt. Zero leaves them out.
    pub tokens: u32,
    /// Whether an agent that has tools gets the tool `recall` even if it does not list it.
    pub recall: Recall,
    /// Whether memories are extracted from the agent's sessions.
    pub learn: Learn,
}

/// Whether an agent gets the tool `recall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recall {
    /// Every agent that has tools gets it, even if it does not list it.
    #[default]
    Always,
    /// Only if the agent's tools include `recall`.
    IfNamed,
}

/// Whether memories are extracted from sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Learn {
    /// Memories are extracted.
    #[default]
    Yes,
    /// Memories are not extracted.
    No,
}

impl Default for MemoryUse {
    fn default() -> Self {
        Self::ALL
    }
}

impl MemoryUse {
    /// Neither use nor create memories.
    pub const NONE: Self = Self { tokens: 0, recall: Recall::IfNamed, learn: Learn::No };
    /// Use and create memories, with the default token budget.
    pub const ALL: Self = Self { tokens: SECTION_TOKENS_DEFAULT, recall: Recall::Always, learn: Learn::Yes };
}

/// The JSON form of the `memory` field of an agent file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum MemoryField {
    Switch(bool),
    Table(MemoryTable),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryTable {
    #[serde(default = "section_tokens_default")]
    tokens: u32,
    #[serde(default = "yes")]
    recall: bool,
    #[serde(default = "yes")]
    learn: bool,
}

fn section_tokens_default() -> u32 {
    SECTION_TOKENS_DEFAULT
}

fn yes() -> bool {
    true
}

impl<'de> Deserialize<'de> for MemoryUse {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match MemoryField::deserialize(deserializer)? {
            MemoryField::Switch(true) => Self::ALL,
            MemoryField::Switch(false) => Self::NONE,
            MemoryField::Table(table) => Self {
                tokens: table.tokens,
                recall: if table.recall { Recall::Always } else { Recall::IfNamed },
                learn: if table.learn { Learn::Yes } else { Learn::No },
            },
        })
    }
}

impl Serialize for MemoryUse {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = MemoryTable {
            tokens: self.tokens,
            recall: self.recall == Recall::Always,
            learn: self.learn == Learn::Yes,
        };
        let field = match *self {
            Self::ALL => MemoryField::Switch(true),
            Self::NONE => MemoryField::Switch(false),
            _ => MemoryField::Table(table),
        };
        field.serialize(serializer)
    }
}

/// A fallback model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainLink {
    /// The model: `PROVIDER/NAME`.
    pub model: String,
    /// Maximum number of calls before the next model is tried, from 1 to 10. The default is 3.
    #[serde(default = "max_attempts_default")]
    pub max_attempts: u32,
}

fn max_attempts_default() -> u32 {
    3
}

/// The spending limit of a session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The maximum cost of all model calls of the session, in US dollars.
    pub cap_usd: f64,
    /// What to do before a model call that could exceed the limit.
    #[serde(default)]
    pub on_exceed: OnExceed,
}

impl Budget {
    /// The limit in billionths of a US dollar, rounded.
    pub fn cap_nano_usd(&self) -> u64 {
        (self.cap_usd * 1e9).round() as u64
    }
}

/// What to do when the cost so far plus the highest possible cost of the next call exceeds the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExceed {
    /// Do not call the model, and end the turn.
    #[default]
    Fail,
    /// Ask a person whether to continue. The answer covers the rest of the turn.
    Ask,
    /// Call the model, and send a warning to the turn's followers.
    Warn,
}

/// Limits on the work of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of turns per session. Zero means [`TURNS_MAX_DEFAULT`]. So does `None`, except in an interactive
    /// session ([`INTERACTIVE_TURNS_MAX`]) and for a flow role, which gets as many turns as the flow can require.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u32>,
    /// Maximum number of rounds per turn, from 1 to 1000. A round is one answer of the model and its tool calls.
    pub rounds_max: u32,
    /// Maximum number of rounds per turn with an invalid tool call: an unknown tool, or input that does not
    /// match its schema.
    pub corrections_max: u32,
    /// Maximum duration of a turn in one process, in seconds. A resumed turn starts again at zero.
    pub wall_time_s: u32,
}

impl Limits {
    /// The number of turns that a session may have.
    pub fn turns(&self) -> u32 {
        self.turns_max.filter(|turns| *turns > 0).unwrap_or(TURNS_MAX_DEFAULT)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns_max: None, rounds_max: 16, corrections_max: 3, wall_time_s: 1_800 }
    }
}

/// How the engine reacts to the model's rating of its own answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Confidence {
    /// Below this rating (0 to 1), the engine leaves the answer's branch and calls the model again.
    pub backtrack_below: f32,
    /// Below this rating (0 to 1), the engine asks a person before it continues.
    pub ask_below: f32,
    /// Maximum number of backtracks per turn. After that, the engine asks a person.
    pub backtracks_max: u32,
}

impl Default for Confidence {
    fn default() -> Self {
        Self { backtrack_below: 0.3, ask_below: 0.5, backtracks_max: 2 }
    }
}

/// What to do with a turn whose process died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    /// Keep the turn's entries and continue it.
    #[default]
    Continue,
    /// Undo the turn.
    Rollback,
}

/// Restrictions that a session puts on its agent. They never add rights: see [`Agent::narrowed`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Narrowing {
    /// The tools that stay available; each must be one of the agent's. `None` keeps all.
    pub tools: Option<Vec<String>>,
    /// The session's file access, at most that of the agent. `None` keeps the agent's.
    pub fs_scope: Option<FsScope>,
    /// The session's approval mode, at least as strict as the agent's. `None` keeps the agent's.
    pub approvals: Option<ApprovalMode>,
}

/// A mistake in an agent, or a restriction that the agent does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent {agent}: {field} {why}")]
pub struct AgentError {
    /// The agent's id.
    pub agent: String,
    /// The field with the mistake, such as `limits.rounds_max`.
    pub field: String,
    /// What is wrong, as the continuation of a sentence that starts with the field.
    pub why: String,
}

impl AgentError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        "agent.invalid"
    }
}

impl Default for Agent {
    fn default() -> Self {
        Self::default_with(None)
    }
}

impl Agent {
    /// The agent's model and its fallback models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let chain = self.fallback_chain.iter().map(|link| link.model.as_str());
        self.model.as_deref().into_iter().chain(chain)
    }

    /// Read an agent as a session stores it.
    pub fn from_frozen(frozen: &Json) -> Result<Self, AgentError> {
        serde_json::from_str(frozen.get()).map_err(|error| AgentError {
            agent: "of this session".to_owned(),
            field: "agent".to_owned(),
            why: format!("failed to parse: {error}"),
        })
    }

    /// The agent as a session stores it.
    pub fn to_frozen(&self) -> Json {
        Json::from_value(&serde_json::to_value(self).expect("an agent contains only plain data"))
    }

    /// The agent for an interactive session, in which a person can stop a runaway conversation. Its limit on turns is
    /// higher, unless the agent sets one.
    pub fn interactive(mut self) -> Self {
        self.limits.turns_max.get_or_insert(INTERACTIVE_TURNS_MAX);
        self
    }

    /// Apply the turn limit and the budget that a session's owner has changed. A changed token budget is not applied to
    /// the agent: the caller keeps it separately.
    pub fn set_limits(&mut self, limits: &LimitsChanged) {
        self.limits.turns_max = limits.turns_max.or(self.limits.turns_max);
        if let Some(nano) = limits.budget_nano_usd {
            let on_exceed = self.budget.map(|budget| budget.on_exceed).unwrap_or_default();
            self.budget = Some(Budget { cap_usd: nano as f64 / 1e9, on_exceed });
        }
    }

    /// The default agent with this model: file tools in the sandbox, no commands and no network access.
    pub fn default_with(model: Option<String>) -> Self {
        let tools = ["read_file", "write_file", "edit_file", "list_directory", "find_files", "search_text"];
        Self {
            id: "default".to_owned(),
            name: None,
            description: None,
            model,
            fallback_chain: Vec::new(),
            system_prompt: None,
            temperature: None,
            max_tokens: None,
            thinking: Thinking::Off,
            tools: tools.map(str::to_owned).to_vec(),
            mcp_servers: BTreeMap::new(),
            fs_scope: FsScope::default(),
            allowed_commands: Vec::new(),
            allowed_hosts: Vec::new(),
            sandbox: None,
            approvals: ApprovalMode::default(),
            approval_wait: None,
            budget: None,
            limits: Limits::default(),
            confidence: None,
            pressure: None,
            context_window: None,
            token_budget: None,
            on_interrupt: OnInterrupt::default(),
            memory: None,
            skills: Vec::new(),
        }
    }

    /// Set the model: `PROVIDER/NAME`, `demo`, or the name of a model that the embedding program supplies.
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Add a tool by name: a built-in tool, or a tool that the embedding program supplies.
    pub fn with_tool(mut self, name: impl Into<String>) -> Self {
        self.tools.push(name.into());
        self
    }

    /// Validate the agent without I/O. Returns all mistakes.
    pub fn mistakes(&self) -> Vec<AgentError> {
        let mut found = Vec::new();
        let mut check = |ok: bool, field: &str, why: &str| {
            if !ok {
                found.push(AgentError { agent: self.id.clone(), field: field.into(), why: why.into() });
            }
        };
        check(is_kebab(&self.id), "id", "is not lower-case words joined by hyphens");
        let prompt = self.system_prompt.as_deref().unwrap_or_default();
        check(prompt.len() <= SYSTEM_PROMPT_BYTES_MAX, "system_prompt", "is longer than 256 KB");
        check(self.fallback_chain.len() <= CHAIN_MAX, "fallback_chain", "has more than 8 models");
        check(
            self.temperature.is_none_or(|t| (0.0..=2.0).contains(&t)),
            "temperature",
            "is not between 0 and 2",
        );
        check(self.max_tokens != Some(0), "max_tokens", "is zero");
        let fits = |tokens: Option<u64>| tokens.is_none_or(|tokens| tokens >= CONTEXT_TOKENS_MIN);
        check(fits(self.context_window), "context_window", "is less than 1000 tokens");
        check(fits(self.token_budget), "token_budget", "is less than 1000 tokens");
        for link in &self.fallback_chain {
            check(
                (1..=10).contains(&link.max_attempts),
                "fallback_chain",
                "has a max_attempts that is not between 1 and 10",
            );
        }
        if let Some((field, why)) = self.approval_wait.as_ref().and_then(ApprovalWait::mistake) {
            check(false, field, why);
        }
        let budget = self.budget.map_or(0.0, |budget| budget.cap_usd);
        check(budget.is_finite() && budget >= 0.0, "budget.cap_usd", "is negative or not a finite number");
        let limits = self.limits;
        check((1..=1_000).contains(&limits.rounds_max), "limits.rounds_max", "is not between 1 and 1000");
        check(limits.wall_time_s > 0, "limits.wall_time_s", "is zero");
        let zero_limit = self.sandbox.and_then(|limits| limits.zero_limit());
        check(zero_limit.is_none(), &format!("sandbox.{}", zero_limit.unwrap_or_default()), "is zero");
        let memory = self.memory.unwrap_or_default();
        check(memory.tokens <= MEMORY_TOKENS_MAX, "memory.tokens", "is over 16000");
        let confidence = self.confidence.unwrap_or_default();
        check(
            self.pressure.is_none_or(|levels| levels.check().is_ok()),
            "pressure",
            "has thresholds that are not increasing from 1 to 100",
        );
        let rated = |rating: f32| (0.0..=1.0).contains(&rating);
        check(rated(confidence.backtrack_below), "confidence.backtrack_below", "is not between 0 and 1");
        check(rated(confidence.ask_below), "confidence.ask_below", "is not between 0 and 1");
        found
    }

    /// Apply a session's restrictions. Requesting more than the agent allows is an error.
    pub fn narrowed(mut self, narrowing: &Narrowing) -> Result<Self, AgentError> {
        let wider = |agent: &Self, field: &str, why: String| {
            Err(AgentError { agent: agent.id.clone(), field: field.into(), why })
        };
        if let Some(tools) = &narrowing.tools {
            if let Some(more) = tools.iter().find(|tool| !self.tools.contains(tool)) {
                return wider(
                    &self,
                    "tools",
                    format!("do not include {more}: a session may only narrow them"),
                );
            }
            self.tools.clone_from(tools);
        }
        if let Some(fs_scope) = narrowing.fs_scope {
            if fs_scope > self.fs_scope {
                return wider(&self, "fs_scope", "may only be narrowed by a session".to_owned());
            }
            self.fs_scope = fs_scope;
        }
        if let Some(approvals) = narrowing.approvals {
            if approvals > self.approvals {
                return wider(&self, "approvals", "may only be made stricter by a session".to_owned());
            }
            self.approvals = approvals;
        }
        Ok(self)
    }
}

fn is_kebab(id: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    id.len() <= 64 && id.split('-').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_may_narrow_but_not_widen_its_agent() {
        let agent = Agent { fs_scope: FsScope::Project, ..Agent::default_with(None) };
        let narrow = |narrowing| agent.clone().narrowed(&narrowing);
        let fewer = Narrowing { tools: Some(vec!["read_file".into()]), ..Narrowing::default() };
        assert_eq!(narrow(fewer).unwrap().tools, ["read_file"]);
        let more = Narrowing { tools: Some(vec!["run_command".into()]), ..Narrowing::default() };
        assert_eq!(narrow(more).unwrap_err().field, "tools");
        let full = Narrowing { fs_scope: Some(FsScope::Full), ..Narrowing::default() };
        assert_eq!(narrow(full).unwrap_err().field, "fs_scope");
        let auto = Narrowing { approvals: Some(ApprovalMode::Auto), ..Narrowing::default() };
        assert_eq!(narrow(auto).unwrap_err().field, "approvals");
    }

    #[test]
    fn every_mistake_names_its_field() {
        let mut agent = Agent { id: "Not Kebab".into(), ..Agent::default_with(None) };
        agent.temperature = Some(9.0);
        agent.limits.rounds_max = 0;
        agent.sandbox = Some(ProgramLimits { cpu_s: Some(0), ..ProgramLimits::default() });
        let fields: Vec<String> = agent.mistakes().into_iter().map(|mistake| mistake.field).collect();
        assert_eq!(fields, ["id", "temperature", "limits.rounds_max", "sandbox.cpu_s"]);
    }

    #[test]
    fn an_agent_round_trips() {
        let agent = Agent::default_with(Some("demo".into()));
        let text = serde_json::to_string(&agent).unwrap();
        assert_eq!(serde_json::from_str::<Agent>(&text).unwrap(), agent);
        for memory in ["true", "false", r#"{"tokens":50,"recall":false,"learn":true}"#] {
            let text = format!(r#"{{"id":"a","memory":{memory}}}"#);
            let agent: Agent = serde_json::from_str(&text).unwrap();
            assert!(
                serde_json::to_string(&agent).unwrap().contains(&format!("\"memory\":{memory}")),
                "{memory}"
            );
        }
        let typo = r#"{"id": "a", "modle": "x"}"#;
        assert!(serde_json::from_str::<Agent>(typo).unwrap_err().to_string().contains("modle"));
    }
}
