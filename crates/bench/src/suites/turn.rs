//! The engine's own time per round. Model and tool return at once, so that only the engine is measured. Each round
//! writes two durable batches: the answer with its intent, and the result with the next round's intent.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use sapwood::core::agent::Agent;
use sapwood::core::content::{Json, ToolCall};
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, ReplyEvent, ReplyStream, Request};
use sapwood::core::port::tool::{
    Replay, ToolError, ToolGrant, ToolHost, ToolOutput, ToolSpec, Toolbox, Touch,
};
use sapwood::core::project::context::Role;
use sapwood::engine::Backends;
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::turn::{SendOptions, Sent};
use sapwood::store::Durability;
use sapwood::{Engine, OpenOptions, Part, SessionId};

use crate::bodies::short_bodies;
use crate::measure::{median, millis};
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "turn";
/// Number of rounds per turn. The last round is the final answer.
const ROUNDS: usize = 16;
const TURNS: usize = 15;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let memory = sapwood::open_engine("memory:", sapwood::store::OpenOptions::default())?;
    let in_memory = time_rounds(stage, memory, "turn", 0).await?;
    let mut durable = Vec::new();
    let (short, long) = (stage.sizes.small, stage.sizes.long);
    for (name, entries) in [("short", short), ("long", long)] {
        let engine = stage.open("turn.db", Durability::Full)?;
        durable.push(time_rounds(stage, engine, name, entries).await?);
    }
    stage.scratch.remove("turn.db");
    let figure = |name: String, value: f64| Figure::new(AXIS, name, value, "ms");
    Ok(vec![
        figure("a round, in memory".to_owned(), in_memory).goal(Goal::AtMost(1.0)),
        figure(format!("a round, durable, after {short} entries"), durable[0]).goal(Goal::AtMost(3.0)),
        figure(format!("a round, durable, after {long} entries"), durable[1]).goal(Goal::AtMost(3.0)),
        figure("long vs. short".to_owned(), durable[1]).over(durable[0]).goal(Goal::AtMost(1.3)),
    ])
}

/// The median time of a round, in a session with this many entries before a compaction.
async fn time_rounds(stage: &Stage, engine: Engine, name: &str, entries: usize) -> anyhow::Result<f64> {
    let backends = Backends {
        model: Arc::new(InstantBackends),
        tools: Arc::new(InstantBackends),
        default_model: "instant".into(),
    };
    let engine = engine.with_backends(backends);
    let agent = Agent { tools: vec!["look".to_owned()], ..Agent::default_with(Some("instant".into())) };
    let open = OpenOptions { id: Some(name.parse()?), ..OpenOptions::default() };
    let options = StartOptions { open, agent, ..StartOptions::default() };
    let (session, _) = engine.sessions().start(&stage.scope, options).await?;
    stage.fill(&engine, &session, short_bodies(17), entries, |_| ()).await?;
    let mut times = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        // Compact first, so that all turns start with the same context.
        stage.compact_behind(&engine, &session).await?;
        times.push(time_turn(stage, &engine, &session).await? / ROUNDS as f64);
    }
    Ok(median(times))
}

async fn time_turn(stage: &Stage, engine: &Engine, session: &SessionId) -> anyhow::Result<f64> {
    let start = Instant::now();
    let parts = vec![Part::text("Go on.")];
    let sent = engine.turns().send(&stage.scope, session, parts, SendOptions::default()).await?;
    let Sent::Started(running) = sent else { anyhow::bail!("the session is busy") };
    let report = running.ended().await?;
    anyhow::ensure!(report.ended.is_some_and(|ended| ended.code.is_none()), "the turn failed");
    Ok(millis(start.elapsed()))
}

/// A model and a tool that return at once.
struct InstantBackends;

#[async_trait]
impl Model for InstantBackends {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let asked = request.messages.iter().rev().take_while(|message| message.role != Role::User);
        let rounds = asked.filter(|message| message.role == Role::Assistant).count();
        let mut pieces = vec![ReplyEvent::Text("Looking.".to_owned())];
        if rounds + 1 < ROUNDS {
            let call_id = format!("call-{rounds}");
            pieces.push(ReplyEvent::CallBegan { index: 0, call_id, name: "look".to_owned() });
        }
        let usage = Usage { input: 1_000, output: 50, ..Usage::default() };
        pieces.extend([ReplyEvent::Usage(usage), ReplyEvent::Stop(Stop::Stop)]);
        Ok(Box::pin(futures_util::stream::iter(pieces.into_iter().map(Ok))))
    }

    fn facts(&self, _model: &str) -> ModelFacts {
        ModelFacts { window_tokens: Some(1_000_000), ..ModelFacts::default() }
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[async_trait]
impl ToolHost for InstantBackends {
    async fn open(&self, _grant: &ToolGrant) -> Result<Arc<dyn Toolbox>, ToolError> {
        let input_schema = Json::from_value(&serde_json::json!({ "type": "object" }));
        let (name, description) = ("look".to_owned(), "Looks.".to_owned());
        let spec = ToolSpec { name, description, input_schema, touch: Touch::Reads, replay: Replay::Safe };
        Ok(Arc::new(LookTools([spec])))
    }
}

struct LookTools([ToolSpec; 1]);

#[async_trait]
impl Toolbox for LookTools {
    fn specs(&self) -> &[ToolSpec] {
        &self.0
    }

    async fn run(&self, _call: &ToolCall) -> ToolOutput {
        ToolOutput::text("Nothing new.")
    }

    fn check(&self, _call: &ToolCall) -> Result<(), String> {
        Ok(())
    }
}
