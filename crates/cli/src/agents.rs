//! Agents from files: `NAME.yaml`, `.yml` or `.toml` in the project's `.sapwood/agents/` and `agents/`, then in
//! Sapwood's home. Files are parsed strictly: every mistake is reported with its position. A session freezes its
//! agent at the start, so later changes to the file do not affect it.

mod spanned;
mod syntax;

use std::path::{Path, PathBuf};

use sapwood::core::agent::{Agent, AgentError};
use sapwood::core::policy::ApprovalMode;
use sapwood::core::port::tool::{FsScope, McpServer};
use sapwood::effects::tool::host::{EFFECT_TOOLS, ENGINE_TOOLS};
use serde::Serialize;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::suggest::nearest;

use spanned::{Located, Mistake, SourcePosition};
use syntax::Syntax;

/// Maximum size of an agent file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of files read per directory.
const FILES_MAX: usize = 1_000;

/// The directories with agent files, in order of precedence.
#[derive(Debug, Clone)]
pub struct Agents {
    dirs: Vec<PathBuf>,
}

/// A successfully parsed agent.
#[derive(Debug, Clone)]
pub struct AgentFile {
    pub path: PathBuf,
    pub agent: Agent,
}

/// A mistake in an agent file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentFault {
    pub file: String,
    pub line: u64,
    pub column: u64,
    /// Path of the field, joined by dots. Empty for the file itself.
    pub field: String,
    pub message: String,
}

impl std::fmt::Display for AgentFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AgentFault { file, line, column, field, message } = self;
        match field.as_str() {
            "" => write!(f, "{file}:{line}:{column}: {message}"),
            field => write!(f, "{file}:{line}:{column}: {field} {message}"),
        }
    }
}

impl Agents {
    /// The project is the directory of the project's `sapwood.toml`, or the current directory.
    pub fn of(here: &Path, home: &Path, config: &Config) -> Self {
        let project = config.project.as_deref().unwrap_or(here);
        Self { dirs: vec![project.join(".sapwood/agents"), project.join("agents"), home.join("agents")] }
    }

    /// List the agent files, sorted by agent name. If several files have the same name, only the first is listed.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut found: Vec<PathBuf> = Vec::new();
        for dir in &self.dirs {
            for path in files_in(dir)? {
                if !found.iter().any(|other| name_of(other) == name_of(&path)) {
                    found.push(path);
                }
            }
        }
        found.sort_by_key(|path| name_of(path).to_owned());
        Ok(found)
    }

    /// Read the agent with this name.
    pub fn find(&self, name: &str) -> Result<AgentFile> {
        let files = self.files()?;
        let Some(path) = files.iter().find(|path| name_of(path) == name) else {
            return Err(unknown(name, &files));
        };
        let agent = read(path).map_err(|faults| invalid(&faults))?;
        Ok(AgentFile { path: path.clone(), agent })
    }

    /// Find the agent with this name. `default` is built in unless a file defines it.
    pub fn find_or_default(&self, name: &str) -> Result<(Agent, Option<PathBuf>)> {
        match self.find(name) {
            Ok(found) => Ok((found.agent, Some(found.path))),
            Err(failure) if name == "default" && failure.code == "agent.not_found" => {
                Ok((Agent::default_with(None), None))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Select the agent for a new session: the named agent, else the configured agent, else the built-in default agent.
    pub fn choose(&self, named: Option<&str>, config: &Config) -> Result<Agent> {
        let mut agent = match named.or(config.agent.as_deref()) {
            Some(name) => self.find_or_default(name)?.0,
            None => Agent::default_with(None),
        };
        if named.is_none() && config.is_agent_from_project {
            check_default_agent(&agent)?;
        }
        // Without a configured model the agent has none, so that a model that is configured later answers.
        agent.model = agent.model.or_else(|| config.model.clone());
        Ok(agent)
    }
}

/// Refuse a project's default agent if it acts without asking, can access every file or starts programs. The user did
/// not choose this agent, and the project may be untrusted.
fn check_default_agent(agent: &Agent) -> Result<()> {
    let is_local = |server: &McpServer| matches!(server, McpServer::Stdio { .. });
    let why = if agent.approvals > ApprovalMode::Ask {
        "acts without asking"
    } else if agent.fs_scope == FsScope::Full {
        "can access every file"
    } else if agent.mcp_servers.values().any(is_local) {
        "starts programs"
    } else {
        return Ok(());
    };
    let message = format!("this project's default agent {} {why}, so it must be chosen explicitly", agent.id);
    let hint = format!("inspect it with `sapwood agent show {0}`, then choose it with --agent {0}", agent.id);
    Err(Failure::new("agent.untrusted", message).with_hint(hint))
}

fn unknown(name: &str, files: &[PathBuf]) -> Failure {
    let names: Vec<&str> = files.iter().map(|path| name_of(path)).collect();
    let hint = match nearest(name, names) {
        Some(near) => format!("did you mean {near}? run `sapwood agent ls` to list all agents"),
        None => "run `sapwood agent ls` to list the agents, or create agents/NAME.yaml to add one".to_owned(),
    };
    Failure::new("agent.not_found", format!("no agent {name}")).with_hint(hint)
}

fn invalid(faults: &[AgentFault]) -> Failure {
    let lines: Vec<String> = faults.iter().map(AgentFault::to_string).collect();
    Failure::new("agent.invalid", lines.join("\n"))
}

pub fn name_of(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn syntax_of(path: &Path) -> Option<Syntax> {
    path.extension().and_then(|extension| extension.to_str()).and_then(Syntax::of)
}

fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::file(dir, &error)),
    };
    let paths = entries.take(FILES_MAX).map(|entry| entry.map(|entry| entry.path()));
    let paths = paths.collect::<std::io::Result<Vec<_>>>().map_err(|error| Failure::file(dir, &error))?;
    let mut files: Vec<PathBuf> =
        paths.into_iter().filter(|path| syntax_of(path).is_some() && path.is_file()).collect();
    files.sort();
    Ok(files)
}

/// Read one agent file. If it has mistakes, returns all of them.
pub fn read(path: &Path) -> Result<Agent, Vec<AgentFault>> {
    let start = SourcePosition { line: 1, column: 1 };
    let whole = |why: String| vec![Mistake { position: start, field: String::new(), why }];
    let faults = |mistakes: Vec<Mistake>| -> Vec<AgentFault> {
        mistakes.into_iter().map(|mistake| fault(path, mistake)).collect()
    };
    let text = read_text(path).map_err(|why| faults(whole(why)))?;
    let Some(syntax) = syntax_of(path) else {
        return Err(faults(whole("is not a .yaml, .yml or .toml file".to_owned())));
    };
    let document = syntax.parse(&text).map_err(faults)?;
    let (agent, mut mistakes) = document.clone().read::<Agent>();
    let agent = match agent {
        Some(agent) => agent,
        None => return Err(faults(mistakes)),
    };
    mistakes.extend(agent.mistakes().into_iter().map(|error| locate_error(&document, error)));
    mistakes.extend(unknown_names(&agent, &document));
    if agent.id != name_of(path) {
        let why = format!("is {:?}, but the file is named {:?}", agent.id, name_of(path));
        mistakes.push(Mistake {
            position: document.position_at(&["id".to_owned()]),
            field: "id".to_owned(),
            why,
        });
    }
    mistakes.sort_by_key(|mistake| mistake.position);
    if mistakes.is_empty() { Ok(agent) } else { Err(faults(mistakes)) }
}

/// Find unknown tools and invalid model names. Tools are not checked if the agent has MCP servers, because the servers
/// can provide more tools.
fn unknown_names(agent: &Agent, document: &Located) -> Vec<Mistake> {
    let mut found = Vec::new();
    let mut add = |path: &[String], why: String| {
        found.push(Mistake { position: document.position_at(path), field: path.join("."), why });
    };
    let known = [EFFECT_TOOLS, ENGINE_TOOLS].concat();
    let is_unknown = |tool: &String| agent.mcp_servers.is_empty() && !known.contains(&tool.as_str());
    for (at, tool) in agent.tools.iter().enumerate().filter(|(_, tool)| is_unknown(tool)) {
        let why = match nearest(tool, known.iter().copied()) {
            Some(near) => format!("is {tool:?}, which is not a tool: did you mean {near}?"),
            None => format!("is {tool:?}, which is not a tool; known tools: {}", known.join(", ")),
        };
        add(&["tools".to_owned(), at.to_string()], why);
    }
    let is_model = |name: &str| name == "demo" || name.starts_with("scripted:") || name.contains('/');
    let invalid_model = |name: &str| format!("is {name:?}, but must be PROVIDER/NAME or demo");
    if let Some(model) = agent.model.as_deref().filter(|model| !is_model(model)) {
        add(&["model".to_owned()], invalid_model(model));
    }
    for (at, link) in agent.fallback_chain.iter().enumerate().filter(|(_, link)| !is_model(&link.model)) {
        add(&["fallback_chain".to_owned(), at.to_string(), "model".to_owned()], invalid_model(&link.model));
    }
    found
}

fn read_text(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("has {size} bytes, but the limit is {FILE_BYTES_MAX}"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

fn locate_error(document: &Located, error: AgentError) -> Mistake {
    let path: Vec<String> = error.field.split('.').map(str::to_owned).collect();
    Mistake { position: document.position_at(&path), field: error.field, why: error.why }
}

fn fault(path: &Path, mistake: Mistake) -> AgentFault {
    let Mistake { position, field, why } = mistake;
    AgentFault {
        file: path.display().to_string(),
        line: position.line,
        column: position.column,
        field,
        message: why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(name: &str, text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let faults = read(&path).err().unwrap_or_default();
        let short =
            |fault: &AgentFault| format!("{}:{} {} {}", fault.line, fault.column, fault.field, fault.message);
        faults.iter().map(short).collect()
    }

    #[test]
    fn every_mistake_in_a_yaml_file_is_reported_with_its_position() {
        let text = "id: helper\nmodle: demo\ntemperature: hot\nlimits:\n  rounds_max: 0\n  rounds: 3\nfs_scope: projekt\n\
                    fallback_chain:\n  - max_attempts: 2\n  - model: demo\n    max_attempts: many\n";
        let expected = [
            "2:1 modle is unknown: did you mean model?",
            "3:14 temperature is \"hot\", but must be a number",
            "6:3 limits.rounds is unknown; known fields: turns_max, rounds_max, corrections_max, wall_time_s",
            "7:11 fs_scope is \"projekt\", but must be one of sandboxed, project, full: did you mean project?",
            "9:5 fallback_chain.0 has no model",
            "11:19 fallback_chain.1.max_attempts is \"many\", but must be a whole number",
        ];
        assert_eq!(faults_of("helper.yaml", text), expected);
    }

    #[test]
    fn every_mistake_in_a_toml_file_is_reported_with_its_position() {
        let text = "id = \"helper\"\nnmae = \"Helper\"\n\n[budget]\ncap_usd = \"much\"\n";
        let expected = [
            "2:1 nmae is unknown: did you mean name?",
            "5:11 budget.cap_usd is \"much\", but must be a number",
        ];
        assert_eq!(faults_of("helper.toml", text), expected);
    }

    #[test]
    fn values_out_of_range_are_reported() {
        let text =
            "id: other\ntemperature: 9\nlimits: { rounds_max: 0 }\nmodel: gpt\ntools: [ask_user, read_fil]\n";
        let expected = [
            "1:5 id is \"other\", but the file is named \"helper\"",
            "2:14 temperature is not between 0 and 2",
            "3:23 limits.rounds_max is not between 1 and 1000",
            "4:8 model is \"gpt\", but must be PROVIDER/NAME or demo",
            "5:19 tools.1 is \"read_fil\", which is not a tool: did you mean read_file?",
        ];
        assert_eq!(faults_of("helper.yml", text), expected);
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line() {
        for (name, text, line) in
            [("a.yaml", "id: a\n  model: [x\n", "2:"), ("a.toml", "id = \"a\"\nmodel = [\n", "2:")]
        {
            let faults = faults_of(name, text);
            assert!(faults.first().is_some_and(|fault| fault.starts_with(line)), "{name}: {faults:?}");
        }
        assert_eq!(faults_of("a.yaml", "- just\n- a list\n").len(), 1);
        assert_eq!(faults_of("a.yaml", "id: a\nid: a\n").len(), 1);
    }

    #[test]
    fn a_file_with_every_field_is_accepted() {
        let text = "id: all\nname: All\ndescription: d\nmodel: demo\nfallback_chain: [{ model: demo }]\n\
            system_prompt: |\n  You are\n  helpful.\ntemperature: 0.5\nmax_tokens: 100\nthinking: low\n\
            tools: [read_file]\nmcp_servers:\n  files: { command: x, args: [a], env: { A: secret:B } }\n  web: { url: https://h }\n\
            fs_scope: project\nallowed_commands: [\"cargo test\"]\nallowed_hosts: [example.org]\napprovals: accept-edits\n\
            budget: { cap_usd: 2, on_exceed: ask }\nlimits: { turns_max: 5 }\nconfidence: {}\non_interrupt: rollback\nmemory: true\nskills: [s]\n";
        assert_eq!(faults_of("all.yaml", text), [""; 0]);
    }

    #[test]
    fn a_project_cannot_choose_an_agent_that_acts_without_asking() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("agents");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("wild.yaml"), "id: wild\napprovals: auto\n").unwrap();
        let config = Config { agent: Some("wild".into()), is_agent_from_project: true, ..Config::default() };
        let agents = Agents::of(temp.path(), Path::new("/nonexistent"), &config);
        assert_eq!(agents.choose(None, &config).unwrap_err().code, "agent.untrusted");
        assert_eq!(agents.choose(Some("wild"), &config).unwrap().model, None);
    }
}
