//! `run_command`: runs a program from the agent's allowlist, without a shell, in the sandbox and within limits.

mod allow;
mod words;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::process::{KEPT_BYTES, Program, ProgramEnd, ProgramResult, find_program, run};
use super::workspace::ToolWorkspace;
use super::{Tool, spec};
use crate::sandbox::limits::{Limit, Profile, limit_in_output};

pub use allow::Allowlist;
use words::{LINE_BYTES_MAX, WORDS_MAX, split_words};

const TIME_DEFAULT_S: u64 = 120;
const TIME_MAX_S: u64 = 1_800;

pub struct RunCommand {
    workspace: Arc<ToolWorkspace>,
    allowlist: Allowlist,
}

impl RunCommand {
    pub fn new(workspace: Arc<ToolWorkspace>, allowlist: Allowlist) -> Self {
        Self { workspace, allowlist }
    }
}

#[async_trait]
impl Tool for RunCommand {
    fn spec(&self) -> ToolSpec {
        let line = json!({"type": "string", "minLength": 1, "maxLength": LINE_BYTES_MAX});
        let words =
            json!({"type": "array", "minItems": 1, "maxItems": WORDS_MAX, "items": {"type": "string"}});
        let schema = json!({
            "type": "object",
            "properties": {
                "command": {"anyOf": [line, words], "description": "the program and its arguments, as one line or as a list of words"},
                "directory": {"type": "string", "minLength": 1,
                              "description": "directory to run it in; default: the working directory"},
                "timeout_s": {"type": "integer", "minimum": 1, "maximum": TIME_MAX_S}
            },
            "required": ["command"],
            "additionalProperties": false
        });
        let description = format!(
            "Runs a program. There is no shell: no pipes, redirections, variables or multiple commands. Allowed \
             commands: {}",
            self.allowlist.describe()
        );
        spec("run_command", &description, &schema, Touch::Acts, Replay::Never)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let words = match self.read_command(&input["command"]) {
            Ok(words) => words,
            Err(why) => return ToolOutput::error(why),
        };
        let time_max =
            Duration::from_secs(input["timeout_s"].as_u64().unwrap_or(TIME_DEFAULT_S).min(TIME_MAX_S));
        let program = match self.program(&words, input["directory"].as_str().unwrap_or("."), time_max) {
            Ok(program) => program,
            Err(why) => return ToolOutput::error(why),
        };
        match run(&self.workspace.launcher, &program).await {
            Ok(finished) => self.report(&finished, time_max),
            Err(why) => ToolOutput::error(format!("failed to start {}: {why}", words[0])),
        }
    }
}

impl RunCommand {
    /// Parse a command and check that it is allowed.
    fn read_command(&self, command: &Value) -> Result<Vec<String>, String> {
        let words = match command {
            Value::String(line) => split_words(line)?,
            Value::Array(words) => words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        if words.first().is_none_or(String::is_empty) {
            return Err("the command is empty".to_owned());
        }
        if words.iter().any(|word| word.contains('\0'))
            || words.iter().map(String::len).sum::<usize>() > LINE_BYTES_MAX
        {
            return Err("the command is too long or contains a NUL character".to_owned());
        }
        if !self.allowlist.allows(&words) {
            return Err(format!("{words:?} is not allowed. Allowed commands: {}", self.allowlist.describe()));
        }
        Ok(words)
    }

    fn program(&self, words: &[String], directory: &str, time_max: Duration) -> Result<Program, String> {
        let workspace = &self.workspace;
        let (_, real) = workspace.root.open_dir(directory).map_err(|refusal| refusal.to_string())?;
        let directory = workspace.root.path_of(&real);
        let path = find_program(&words[0], &workspace.search_path, &directory)
            .ok_or_else(|| format!("no program {} on the search path {}", words[0], workspace.search_path))?;
        let (args, env) = (words[1..].to_vec(), workspace.env());
        let confinement = workspace.confinement();
        Ok(Program { path, args, directory, env, confinement, time_max, kept_bytes: KEPT_BYTES })
    }

    fn report(&self, finished: &ProgramResult, time_max: Duration) -> ToolOutput {
        let mut text = finished.stdout.text();
        let stderr = finished.stderr.text();
        if !stderr.is_empty() {
            end_line(&mut text);
            text += "[stderr]\n";
            text += &stderr;
        }
        end_line(&mut text);
        let end = match &finished.end {
            ProgramEnd::Exited(code) => format!("exit status {code}"),
            ProgramEnd::Killed => "killed by a signal".to_owned(),
            ProgramEnd::TimedOut => {
                format!("killed after {} s, with all processes it started", time_max.as_secs())
            }
            ProgramEnd::LimitReached(_) => "stopped at a limit".to_owned(),
        };
        text += &format!("[{end}, {:.1} s]", finished.took.as_secs_f64());
        text += &self.explain_limit(finished);
        if !self.workspace.launcher.confines() {
            text += "\n[this system has no sandbox: the command ran with all rights of Sapwood itself]";
        }
        ToolOutput { is_error: finished.end != ProgramEnd::Exited(0), ..ToolOutput::text(text) }
    }
}

impl RunCommand {
    /// A note for a failed program whose error output reports a limit of the system.
    fn explain_limit(&self, finished: &ProgramResult) -> String {
        let is_failed = matches!(finished.end, ProgramEnd::Exited(code) if code != 0);
        let limit = limit_in_output(&finished.stderr.text()).filter(|_| is_failed);
        let explain = |limit: Limit| limit.explain(&self.workspace.limits, Profile::Command);
        limit.map_or_else(String::new, |limit| format!("\n[possibly a {}]", explain(limit)))
    }
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}
