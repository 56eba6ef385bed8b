//! Test backends: a model with scripted answers, and tools that record their calls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sapwood::core::content::{Json, ToolCall};
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request};
use sapwood::core::port::tool::{
    Replay, ToolError, ToolGrant, ToolHost, ToolOutput, ToolSpec, Toolbox, Touch,
};
use sapwood::engine::Backends;

/// The model's reply to one call.
#[derive(Clone)]
pub enum ScriptedReply {
    Stream(Vec<ReplyEvent>),
    Fail(ModelError),
    /// Streams these events, then hangs.
    Hang(Vec<ReplyEvent>),
    /// Streams these events, then fails.
    Break(Vec<ReplyEvent>, ModelError),
}

/// A model that returns scripted replies and records the requests.
#[derive(Default)]
pub struct ScriptedModel {
    replies: Mutex<VecDeque<ScriptedReply>>,
    pub requests: Mutex<Vec<Request>>,
    pub facts: Mutex<ModelFacts>,
}

pub fn text(text: &str) -> ScriptedReply {
    let usage = Usage { input: 100, output: 10, ..Usage::default() };
    ScriptedReply::Stream(vec![
        ReplyEvent::Text(text.to_owned()),
        ReplyEvent::Usage(usage),
        ReplyEvent::Stop(Stop::Stop),
    ])
}

pub fn calls(calls: &[(&str, &str, &str)]) -> ScriptedReply {
    let mut events = Vec::new();
    for (index, (call_id, name, input)) in calls.iter().enumerate() {
        let index = index as u32;
        events.push(ReplyEvent::CallBegan { index, call_id: (*call_id).into(), name: (*name).into() });
        events.push(ReplyEvent::CallInput { index, text: (*input).into() });
    }
    events.push(ReplyEvent::Usage(Usage { input: 100, output: 10, ..Usage::default() }));
    events.push(ReplyEvent::Stop(Stop::ToolUse));
    ScriptedReply::Stream(events)
}

impl ScriptedModel {
    pub fn with_replies(replies: Vec<ScriptedReply>) -> Arc<Self> {
        Arc::new(Self { replies: Mutex::new(replies.into()), ..Self::default() })
    }

    pub fn add_replies(&self, replies: Vec<ScriptedReply>) {
        self.replies.lock().unwrap().extend(replies);
    }

    pub fn with_price(self: Arc<Self>, price: u64) -> Arc<Self> {
        let price = Price { input: price, output: price, ..Price::default() };
        self.facts.lock().unwrap().price = Some(price);
        self
    }

    pub fn call_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// The messages of the last request.
    pub fn last_messages(&self) -> String {
        let requests = self.requests.lock().unwrap();
        format!("{:?}", requests.last().map(|request| &request.messages))
    }
}

#[async_trait::async_trait]
impl Model for ScriptedModel {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        self.requests.lock().unwrap().push(request.clone());
        let call = self.call_count() as u32;
        let reply = self.replies.lock().unwrap().pop_front();
        let unscripted = ModelError::Unscripted { model: request.model.clone(), call };
        let (events, end): (Vec<ReplyEvent>, Option<ModelError>) = match reply.ok_or(unscripted)? {
            ScriptedReply::Stream(events) => (events, None),
            ScriptedReply::Fail(error) => return Err(error),
            ScriptedReply::Break(events, error) => (events, Some(error)),
            ScriptedReply::Hang(events) => {
                let events = futures_util::stream::iter(events.into_iter().map(Ok));
                return Ok(Box::pin(futures_util::StreamExt::chain(events, futures_util::stream::pending())));
            }
        };
        let all = events.into_iter().map(Ok).chain(end.map(Err));
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
pub struct RecordingTools {
    pub ran: Arc<Mutex<Vec<String>>>,
    pub inputs: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl ToolHost for RecordingTools {
    async fn open(&self, grant: &ToolGrant) -> Result<Arc<dyn Toolbox>, ToolError> {
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
        Ok(Arc::new(RecordingToolbox { specs, ran: self.ran.clone(), inputs: self.inputs.clone() }))
    }
}

struct RecordingToolbox {
    specs: Vec<ToolSpec>,
    ran: Arc<Mutex<Vec<String>>>,
    inputs: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl Toolbox for RecordingToolbox {
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

pub fn backends(model: &Arc<ScriptedModel>, tools: &Arc<RecordingTools>) -> Backends {
    Backends { model: model.clone(), tools: tools.clone(), default_model: "actor".to_owned() }
}
