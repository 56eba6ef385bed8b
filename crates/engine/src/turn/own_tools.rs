//! The tools that work on sessions rather than on the world: what a session delivers, what it asks its person, what
//! others said before, and the rest of an output that was too big to show.

use std::str::FromStr;

use sapwood_core::content::{BlobRef, Json, ToolCall};
use sapwood_core::entry::{ArtifactPut, ArtifactUse, Graft, GraftWhat};
use sapwood_core::flow::HANDOFF_TOOL;
use sapwood_core::port::store::{Append, SearchQuery};
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use sapwood_core::{BlobHash, Body, Draft, Part, SessionId};
use serde::Deserialize;
use serde_json::json;

use super::Stage;
use super::send::{IfRunning, OnWait, SendOptions, Sent, StartOptions, TurnReport};
use crate::write::OpenOptions;
use crate::{EngineError, Result};

pub(super) const READ_OUTPUT: &str = "read_output";
/// Every session with active skills has it.
const SKILL: &str = "skill";
/// The tools an agent can name that the engine itself has.
pub const OWN_TOOLS: &[&str] = &["put_artifact", "ask_user", "delegate", "recall", "graft", HANDOFF_TOOL];
/// Most lines of an output that are read at a time.
const LINES_MAX: usize = 1_000;
/// Most hits of a recall.
const HITS_MAX: usize = 20;
/// Longest digest of another session, in characters.
const DIGEST_CHARS_MAX: usize = 4_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadOutput {
    output: String,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadSkill {
    name: String,
    file: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutArtifact {
    pub name: String,
    pub content: String,
    pub mime: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskUser {
    #[serde(rename = "question")]
    _question: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delegate {
    task: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recall {
    query: String,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GraftFrom {
    session: String,
}

/// The specs of the engine's own tools that an agent names, and of reading on, which every agent with tools has.
pub(super) fn own_specs(named: &[String]) -> Vec<ToolSpec> {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "minimum": 0});
    let all = [
        spec(
            "put_artifact",
            "Delivers a text as a named artifact of this session.",
            Touch::Edits,
            Replay::Safe,
            json!({"name": text, "content": text, "mime": text}),
            &["name", "content"],
        ),
        spec(
            "ask_user",
            "Asks the person a question and waits for the answer.",
            Touch::Asks,
            Replay::Never,
            json!({"question": text}),
            &["question"],
        ),
        spec(
            "delegate",
            "Gives a task to a fresh session of the same agent and returns its answer.",
            Touch::Reads,
            Replay::Never,
            json!({"task": text}),
            &["task"],
        ),
        spec(
            "recall",
            "Searches earlier sessions for words and returns where they were said.",
            Touch::Reads,
            Replay::Safe,
            json!({"query": text, "limit": count}),
            &["query"],
        ),
        spec(
            "graft",
            "Brings the result of another session into this one, by reference.",
            Touch::Edits,
            Replay::Never,
            json!({"session": text}),
            &["session"],
        ),
    ];
    let named = all.into_iter().filter(|spec| named.contains(&spec.name));
    let read_on = spec(
        READ_OUTPUT,
        "Reads on in an output that was too big to show: lines from offset, at most limit.",
        Touch::Reads,
        Replay::Safe,
        json!({"output": text, "offset": count, "limit": count}),
        &["output"],
    );
    named.chain(std::iter::once(read_on)).collect()
}

/// Reading an active skill.
pub(super) fn skill_spec() -> ToolSpec {
    let text = json!({"type": "string"});
    spec(
        SKILL,
        "Reads the instructions of an active skill, or another file of its folder.",
        Touch::Reads,
        Replay::Safe,
        json!({"name": text, "file": text}),
        &["name"],
    )
}

pub(super) fn spec(
    name: &str,
    description: &str,
    touch: Touch,
    replay: Replay,
    properties: serde_json::Value,
    required: &[&str],
) -> ToolSpec {
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let (name, description) = (name.to_owned(), description.to_owned());
    ToolSpec { name, description, input_schema: Json::from_value(&schema), touch, replay }
}

fn read<T: for<'de> Deserialize<'de>>(call: &ToolCall) -> Result<T, String> {
    serde_json::from_str(call.input.get()).map_err(|error| error.to_string())
}

impl Stage {
    pub(super) fn is_own_tool(&self, name: &str) -> bool {
        let is_ours = name == SKILL || OWN_TOOLS.contains(&name);
        name == READ_OUTPUT || (is_ours && self.specs.iter().any(|spec| spec.name == name))
    }

    pub(super) fn check_own_tool(&self, call: &ToolCall) -> Result<(), String> {
        match call.name.as_str() {
            READ_OUTPUT => read::<ReadOutput>(call).map(drop),
            SKILL => read::<ReadSkill>(call).map(drop),
            "put_artifact" => read::<PutArtifact>(call).map(drop),
            "ask_user" => read::<AskUser>(call).map(drop),
            "delegate" => read::<Delegate>(call).map(drop),
            "recall" => read::<Recall>(call).map(drop),
            HANDOFF_TOOL => self.check_handoff(call).map(drop),
            _ => read::<GraftFrom>(call).map(drop),
        }
    }

    /// Runs a call whose input was checked. What the model can mend is its output; the rest ends the turn.
    pub(super) async fn run_own_tool(&self, call: &ToolCall) -> Result<ToolOutput> {
        let misread = |why: String| EngineError::Invalid { what: "a tool's input", why };
        match call.name.as_str() {
            READ_OUTPUT => self.read_output(read(call).map_err(misread)?).await,
            SKILL => self.read_skill(read(call).map_err(misread)?).await,
            "put_artifact" => self.put_artifact(read(call).map_err(misread)?).await,
            "delegate" => self.delegate(read(call).map_err(misread)?).await,
            "recall" => self.recall(read(call).map_err(misread)?).await,
            "graft" => self.graft(read(call).map_err(misread)?).await,
            HANDOFF_TOOL => self.hand_off(call).await,
            other => Ok(ToolOutput::error(format!("{other} is answered by a person, not by the engine."))),
        }
    }

    async fn read_output(&self, input: ReadOutput) -> Result<ToolOutput> {
        let Ok(blob) = BlobHash::from_str(&input.output) else {
            return Ok(ToolOutput::error("That is not the name of an output."));
        };
        let Ok(bytes) = self.engine.store.get_blob(&self.scope, blob).await else {
            return Ok(ToolOutput::error("There is no such output."));
        };
        let text = String::from_utf8_lossy(&bytes);
        let limit = input.limit.unwrap_or(LINES_MAX).min(LINES_MAX);
        let lines: Vec<&str> = text.lines().skip(input.offset).take(limit).collect();
        Ok(ToolOutput::text(lines.join("\n")))
    }

    /// Only what is active here: another session's skills are none of this one's.
    async fn read_skill(&self, input: ReadSkill) -> Result<ToolOutput> {
        let is_active = self.skills.iter().any(|card| card.name == input.name);
        let Some(skills) = self.engine.skills.as_ref().filter(|_| is_active) else {
            return Ok(ToolOutput::error(format!("There is no active skill {:.64}.", input.name)));
        };
        match skills.read(&input.name, input.file.as_deref()).await {
            Ok(text) => Ok(ToolOutput::text(text)),
            Err(error) => Ok(ToolOutput::error(error.to_string())),
        }
    }

    pub(super) async fn put_artifact(&self, input: PutArtifact) -> Result<ToolOutput> {
        let bytes = input.content.len() as u64;
        let blob = self.engine.store.put_blob(&self.scope, input.content.into_bytes()).await?;
        let mime = input.mime.unwrap_or_else(|| "text/plain".to_owned());
        let content = BlobRef { blob, mime, name: Some(input.name.clone()), bytes, duration_ms: None };
        let put = ArtifactPut { name: input.name.clone(), usage: ArtifactUse::Artifact, content };
        self.append_beside(put.into()).await?;
        Ok(ToolOutput::text(format!("Delivered {} ({bytes} bytes).", input.name)))
    }

    async fn append_beside(&self, body: Body) -> Result<()> {
        let now = self.engine.clock.now();
        let draft = Draft::new(now, body).in_turn(self.turn);
        let mut append = Append::new(self.session.clone(), now, vec![draft]);
        append.fence = Some(self.fence);
        self.engine.append(&self.scope, append).await?;
        Ok(())
    }

    async fn recall(&self, input: Recall) -> Result<ToolOutput> {
        let limit = input.limit.unwrap_or(HITS_MAX).clamp(1, HITS_MAX);
        let query = SearchQuery { text: input.query, limit, ..SearchQuery::default() };
        let page = match self.engine.search(&self.scope, &query).await {
            Ok(page) => page,
            Err(error) => return Ok(ToolOutput::error(error.to_string())),
        };
        let line = |hit: &sapwood_core::port::store::Hit| {
            let title = hit.title.as_deref().unwrap_or("untitled");
            format!("session {} ({title}), entry {}: {}", hit.session, hit.seq, hit.snippet)
        };
        let others = page.items.iter().filter(|hit| hit.session != self.session);
        let lines: Vec<String> = others.map(line).collect();
        let text = if lines.is_empty() { "Nothing was found.".to_owned() } else { lines.join("\n") };
        Ok(ToolOutput::text(text))
    }

    async fn graft(&self, input: GraftFrom) -> Result<ToolOutput> {
        let Ok(source) = self.engine.find_session(&self.scope, &input.session).await else {
            return Ok(ToolOutput::error(format!("There is no session {}.", input.session)));
        };
        let summary = self.engine.summary(&self.scope, &source).await?;
        let Some(upto) = summary.last_id else {
            return Ok(ToolOutput::error("That session is empty."));
        };
        let context = self.engine.context(&self.scope, &source, None).await?;
        let said =
            context.messages.iter().rev().find(|m| m.role == sapwood_core::project::context::Role::Assistant);
        let digest: String =
            said.map(|message| message.text()).unwrap_or_default().chars().take(DIGEST_CHARS_MAX).collect();
        self.append_beside(Graft { source: source.clone(), upto, what: GraftWhat::Digest }.into()).await?;
        Ok(ToolOutput::text(format!("The last answer of session {source}:\n{digest}")))
    }

    /// A sub-session of the same agent, which cannot delegate again.
    async fn delegate(&self, input: Delegate) -> Result<ToolOutput> {
        let mut agent = self.agent.clone();
        agent.tools.retain(|tool| tool != "delegate");
        let cwd = self.engine.summary(&self.scope, &self.session).await?.cwd;
        let title: String = input.task.lines().next().unwrap_or("delegated").chars().take(80).collect();
        let open =
            OpenOptions { title: Some(title), agent: Some(agent.id.clone()), cwd, ..OpenOptions::default() };
        let start = StartOptions { open, agent, ..StartOptions::default() };
        let (child, _) = Box::pin(self.engine.start(&self.scope, start)).await?;
        let guard = CancelOnDrop { stage: self, child: Some(child.clone()) };
        let options = SendOptions { if_running: IfRunning::Refuse, on_wait: OnWait::Leave };
        let words = vec![Part::text(input.task)];
        let sent = Box::pin(self.engine.send(&self.scope, &child, words, options)).await?;
        let Sent::Started(running) = sent else {
            return Ok(ToolOutput::error("The sub-session is busy."));
        };
        let report = running.ended().await?;
        guard.disarm();
        Ok(delegated(&child, report))
    }
}

fn delegated(child: &SessionId, report: TurnReport) -> ToolOutput {
    let text = format!("[session {child}]\n{}", report.text);
    match (&report.ended, report.waiting.first()) {
        (Some(ended), _) if ended.code.is_none() => ToolOutput::text(text),
        (Some(ended), _) => {
            let code = ended.code.as_deref().unwrap_or_default();
            ToolOutput::error(format!("{text}\nThe sub-session ended with {code}."))
        }
        (None, Some(first)) => {
            ToolOutput::error(format!("{text}\nThe sub-session waits for a person: {}", first.approval))
        }
        (None, None) => ToolOutput::error(text),
    }
}

/// A sub-session ends with the turn that asked for it.
struct CancelOnDrop<'a> {
    stage: &'a Stage,
    child: Option<SessionId>,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.child = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        let (engine, scope) = (self.stage.engine.clone(), self.stage.scope.clone());
        tokio::spawn(async move {
            if let Err(error) = engine.cancel(&scope, &child).await {
                tracing::debug!(session = %child, %error, "a sub-session had ended already");
            }
        });
    }
}
