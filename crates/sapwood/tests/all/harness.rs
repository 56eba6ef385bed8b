//! Test backends: a model with scripted answers, and tools that record their calls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sapwood::core::content::{Json, ToolCall};
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, Piece, PieceStream, Price, Request};
use sapwood::core::port::tool::{Grant, Replay, ToolError, ToolHost, ToolOutput, ToolSpec, Toolbox, Touch};
use sapwood::engine::Backends;

/// The behaviour of the model in one call.
#[derive(Clone)]
pub enum Play {
    Say(Vec<Piece>),
    Fail(ModelError),
    /// Streams these pieces, then hangs.
    Hang(Vec<Piece>),
    /// Streams these pieces, then fails.
    Break(Vec<Piece>, ModelError),
}

#[derive(Default)]
pub struct Actor {
    plays: Mutex<VecDeque<Play>>,
    pub asked: Mutex<Vec<Request>>,
    pub facts: Mutex<ModelFacts>,
}

pub fn text(words: &str) -> Play {
    let usage = Usage { input: 100, output: 10, ..Usage::default() };
    Play::Say(vec![Piece::Text(words.to_owned()), Piece::Usage(usage), Piece::Stop(Stop::Stop)])
}

pub fn calls(calls: &[(&str, &str, &str)]) -> Play {
    let mut pieces = Vec::new();
    for (index, (call_id, name, input)) in calls.iter().enumerate() {
        let index = index as u32;
        pieces.push(Piece::CallBegan { index, call_id: (*call_id).into(), name: (*name).into() });
        pieces.push(Piece::CallInput { index, text: (*input).into() });
    }
    pieces.push(Piece::Usage(Usage { input: 100, output: 10, ..Usage::default() }));
    pieces.push(Piece::Stop(Stop::ToolUse));
    Play::Say(pieces)
}

impl Actor {
    pub fn playing(plays: Vec<Play>) -> Arc<Self> {
        Arc::new(Self { plays: Mutex::new(plays.into()), ..Self::default() })
    }

    pub fn play(&self, plays: Vec<Play>) {
        self.plays.lock().unwrap().extend(plays);
    }

    pub fn costs(self: Arc<Self>, price: u64) -> Arc<Self> {
        let price = Price { input: price, output: price, ..Price::default() };
        self.facts.lock().unwrap().price = Some(price);
        self
    }

    pub fn times_asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The messages of the last request.
    pub fn last_heard(&self) -> String {
        let asked = self.asked.lock().unwrap();
        format!("{:?}", asked.last().map(|request| &request.messages))
    }
}

#[async_trait::async_trait]
impl Model for Actor {
    async fn call(&self, request: &Request) -> Result<PieceStream, ModelError> {
        self.asked.lock().unwrap().push(request.clone());
        let call = self.times_asked() as u32;
        let play = self.plays.lock().unwrap().pop_front();
        let unscripted = ModelError::Unscripted { model: request.model.clone(), call };
        let (pieces, end): (Vec<Piece>, Option<ModelError>) = match play.ok_or(unscripted)? {
            Play::Say(pieces) => (pieces, None),
            Play::Fail(error) => return Err(error),
            Play::Break(pieces, error) => (pieces, Some(error)),
            Play::Hang(pieces) => {
                let said = futures_util::stream::iter(pieces.into_iter().map(Ok));
                return Ok(Box::pin(futures_util::StreamExt::chain(said, futures_util::stream::pending())));
            }
        };
        let all = pieces.into_iter().map(Ok).chain(end.map(Err));
        Ok(Box::pin(futures_util::stream::iter(all.collect::<Vec<_>>())))
    }

    fn facts(&self, _model: &str) -> ModelFacts {
        self.facts.lock().unwrap().clone()
    }

    fn names(&self) -> Vec<String> {
        vec!["actor".to_owned()]
    }
}

/// Tools that only record their calls.
#[derive(Default)]
pub struct Bench {
    pub ran: Arc<Mutex<Vec<String>>>,
    pub inputs: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl ToolHost for Bench {
    async fn open(&self, grant: &Grant) -> Result<Arc<dyn Toolbox>, ToolError> {
        let spec = |name: &str, touch, replay| ToolSpec {
            name: name.into(),
            description: String::new(),
            input_schema: Json::parse(r#"{"type":"object"}"#).unwrap(),
            touch,
            replay,
        };
        let all = [
            spec("look", Touch::Reads, Replay::Safe),
            spec("act", Touch::Acts, Replay::Never),
            spec("big", Touch::Reads, Replay::Safe),
            spec("slow", Touch::Reads, Replay::Never),
        ];
        let specs = all.into_iter().filter(|spec| grant.tools.contains(&spec.name)).collect();
        Ok(Arc::new(Box_ { specs, ran: self.ran.clone(), inputs: self.inputs.clone() }))
    }
}

struct Box_ {
    specs: Vec<ToolSpec>,
    ran: Arc<Mutex<Vec<String>>>,
    inputs: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl Toolbox for Box_ {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn run(&self, call: &ToolCall) -> ToolOutput {
        self.ran.lock().unwrap().push(call.call_id.clone());
        self.inputs.lock().unwrap().push(call.input.get().to_owned());
        match call.name.as_str() {
            "slow" => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                ToolOutput::text("late")
            }
            "big" => ToolOutput::text("line of output\n".repeat(10_000)),
            _ => ToolOutput::text(format!("{} done", call.name)),
        }
    }

    fn check(&self, call: &ToolCall) -> Result<(), String> {
        let input = call.input.to_value();
        match input.is_object() && input["bad"].is_null() {
            true => Ok(()),
            false => Err("an object is expected".to_owned()),
        }
    }
}

pub fn world(actor: &Arc<Actor>, bench: &Arc<Bench>) -> Backends {
    Backends { model: actor.clone(), tools: bench.clone(), default_model: "actor".to_owned() }
}
