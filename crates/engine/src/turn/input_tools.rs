//! The input tools: `list_inputs`, `read_input` and `search_inputs`. They only read the inputs of their own session.
//!
//! A session with inputs has these tools, regardless of its agent's tools. Providers cache a request's prefix, which
//! starts with the list of tools, so inputs change the list as rarely as possible:
//!
//! 1. All three tools are added together, at a fixed position in the list, with constant descriptions.
//! 2. They are added when a turn starts, and never within a turn.
//! 3. They are never removed, because inputs are not, so inputs change the list of a session at most once.
//! 4. An agent that names one of them has all three from the first turn, so inputs never change its list.

use sapwood_core::agent::Agent;
use sapwood_core::content::ToolCall;
use sapwood_core::entry::ArtifactUse;
use sapwood_core::input::{InputFormat, LineSearch, LineWindow, list_line, size_text};
use sapwood_core::port::tool::{OutputPart, Replay, ToolOutput, ToolSpec, Touch};
use sapwood_core::project::artifacts::{Artifact, Artifacts};
use serde::Deserialize;
use serde_json::json;

use super::TurnContext;
use super::tool_spec::{parse_input, spec};
use crate::{EngineError, Result};

/// The tools that read inputs.
pub const INPUT_TOOLS: &[&str] = &["list_inputs", "read_input", "search_inputs"];
/// Default and maximum number of lines per `read_input` call.
const LINES_DEFAULT: usize = 400;
const LINES_MAX: usize = 1_500;
/// Maximum number of bytes per `read_input` call. Less than the limit of a tool's output.
const READ_BYTES_MAX: usize = 40 << 10;
/// Largest image that is passed to the model.
const IMAGE_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of hits per `search_inputs` call, and the maximum length of each.
const HITS_MAX: usize = 50;
const HIT_CHARS_MAX: usize = 300;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListInputs {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadInput {
    name: String,
    from: Option<usize>,
    lines: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchInputs {
    query: String,
    name: Option<String>,
}

/// The specs of the input tools, if the session has inputs or its agent names one of them.
pub(super) fn input_specs(agent: &Agent, artifacts: &Artifacts) -> Vec<ToolSpec> {
    let is_named = agent.tools.iter().any(|tool| INPUT_TOOLS.contains(&tool.as_str()));
    if !is_named && artifacts.inputs().next().is_none() {
        return Vec::new();
    }
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "minimum": 1});
    let reads = |name, description, properties, required: &[&str]| {
        spec(name, description, Touch::Reads, Replay::Safe, properties, required)
    };
    vec![
        reads(
            "list_inputs",
            "List the files and snippets that the user added to this session.",
            json!({}),
            &[],
        ),
        reads(
            "read_input",
            "Read an input of this session: the text of a file, the extracted text of a PDF, HTML or Word document, or an \
             image. Returns at most `lines` lines, starting with line `from` (default 1).",
            json!({"name": text, "from": count, "lines": count}),
            &["name"],
        ),
        reads(
            "search_inputs",
            "Find the lines that contain all words of a query, in all inputs of this session or in one of them.",
            json!({"query": text, "name": text}),
            &["query"],
        ),
    ]
}

/// Check the input of a call to one of these tools.
pub(super) fn check_input_tool(call: &ToolCall) -> Result<(), String> {
    match call.name.as_str() {
        "list_inputs" => parse_input::<ListInputs>(call).map(drop),
        "read_input" => parse_input::<ReadInput>(call).map(drop),
        _ => parse_input::<SearchInputs>(call).map(drop),
    }
}

impl TurnContext {
    pub(super) async fn run_input_tool(&self, call: &ToolCall) -> Result<ToolOutput> {
        let invalid = |why: String| EngineError::Invalid { what: "a tool's input", why };
        let artifacts = self.engine.views().artifacts(&self.scope, &self.session).await?;
        match call.name.as_str() {
            "list_inputs" => Ok(list_inputs(&artifacts)),
            "read_input" => {
                let input: ReadInput = parse_input(call).map_err(invalid)?;
                match artifacts.get(ArtifactUse::Input, &input.name) {
                    Some(artifact) => self.read_input(artifact, &input).await,
                    None => Ok(no_such_input(&input.name)),
                }
            }
            _ => self.search_inputs(&artifacts, parse_input(call).map_err(invalid)?).await,
        }
    }

    async fn read_input(&self, artifact: &Artifact, input: &ReadInput) -> Result<ToolOutput> {
        let (inputs, content) = (self.engine.inputs(), &artifact.content);
        if inputs.format_of(&self.scope, content, &artifact.name).await? == InputFormat::Image {
            return self.view_image(artifact).await;
        }
        let from = input.from.unwrap_or(1).max(1);
        let lines_max = input.lines.unwrap_or(LINES_DEFAULT).clamp(1, LINES_MAX);
        let mut window = LineWindow::new(from, lines_max, READ_BYTES_MAX);
        let read = inputs.each_line(&self.scope, content, &artifact.name, |line| window.push(line)).await?;
        if let Err(why) = read {
            return Ok(ToolOutput::error(format!("{} cannot be read: {why}.", artifact.name)));
        }
        Ok(shown_lines(artifact, from, window))
    }

    async fn view_image(&self, artifact: &Artifact) -> Result<ToolOutput> {
        let content = &artifact.content;
        let mut reader = self.engine.views().open_blob(&self.scope, content.blob).await?;
        if reader.remaining() > IMAGE_BYTES_MAX {
            let (size, limit) = (size_text(reader.remaining()), size_text(IMAGE_BYTES_MAX));
            let text = format!("{} is {size}; images over {limit} cannot be viewed.", artifact.name);
            return Ok(ToolOutput::error(text));
        }
        let bytes = reader.next_up_to(IMAGE_BYTES_MAX as usize).await?;
        let (mime, name) = (content.mime.clone(), Some(artifact.name.clone()));
        let parts = vec![OutputPart::Text(title_of(artifact)), OutputPart::Media { mime, name, bytes }];
        Ok(ToolOutput { parts, is_error: false })
    }

    async fn search_inputs(&self, artifacts: &Artifacts, input: SearchInputs) -> Result<ToolOutput> {
        if let Some(name) =
            input.name.as_ref().filter(|name| artifacts.get(ArtifactUse::Input, name).is_none())
        {
            return Ok(no_such_input(name));
        }
        let is_wanted = |artifact: &&Artifact| input.name.as_ref().is_none_or(|name| *name == artifact.name);
        let (mut text, mut hits, mut skipped) = (String::new(), 0, String::new());
        for artifact in artifacts.inputs().filter(is_wanted) {
            let Some(mut search) = LineSearch::new(&input.query, HITS_MAX - hits) else {
                return Ok(ToolOutput::error("The query is empty."));
            };
            let inputs = self.engine.inputs();
            let read = inputs
                .each_line(&self.scope, &artifact.content, &artifact.name, |line| search.push(line))
                .await?;
            if let Err(why) = read {
                skipped.push_str(&format!("[{} was not searched: {why}]\n", artifact.name));
            }
            hits += search.hits.len();
            for (line, found) in search.hits {
                let found: String = found.chars().take(HIT_CHARS_MAX).collect();
                text.push_str(&format!("{}:{line}: {found}\n", artifact.name));
            }
            if hits >= HITS_MAX {
                text.push_str(&format!("[the first {HITS_MAX} hits; narrow the query for others]\n"));
                break;
            }
        }
        if hits == 0 {
            text.push_str("No line contains all these words.\n");
        }
        text.push_str(&skipped);
        Ok(ToolOutput::text(text.trim_end()))
    }
}

fn list_inputs(artifacts: &Artifacts) -> ToolOutput {
    let lines: Vec<String> = artifacts.inputs().map(|input| list_line(&input.as_put())).collect();
    match lines.is_empty() {
        true => ToolOutput::text("This session has no inputs."),
        false => ToolOutput::text(lines.join("\n")),
    }
}

fn no_such_input(name: &str) -> ToolOutput {
    ToolOutput::error(format!("No input `{name:.64}`. Call list_inputs for the names."))
}

fn title_of(artifact: &Artifact) -> String {
    list_line(&artifact.as_put()).trim_start_matches("- ").to_owned()
}

fn shown_lines(artifact: &Artifact, from: usize, window: LineWindow) -> ToolOutput {
    let title = title_of(artifact);
    if window.lines == 0 {
        return match window.seen() {
            0 => ToolOutput::text(format!("[{title}: it is empty]")),
            lines => ToolOutput::error(format!("{title} has {lines} lines; there is no line {from}.")),
        };
    }
    let last = from + window.lines - 1;
    let rest = match window.has_more {
        true => format!("\n[continue with \"from\": {}]", last + 1),
        false => "\n[end of the input]".to_owned(),
    };
    ToolOutput::text(format!(
        "[{title}, lines {from} to {last}]\n{}{}",
        window.text.trim_end_matches('\n'),
        rest
    ))
}
