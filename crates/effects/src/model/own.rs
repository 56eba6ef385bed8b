//! Models of a program that embeds Sapwood: a closure as a model, and the routing from names to such models.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream;
use sapwood_core::Part;
use sapwood_core::entry::Stop;
use sapwood_core::port::model::{Model, ModelError, ModelFacts, ReplyEvent, ReplyStream, Request};

/// A model that is an async closure. Create it with [`model_fn`].
pub struct ModelFn<F>(F);

/// Use an async closure as a model. It receives each request and returns the parts of the whole reply: text, reasoning
/// and tool calls. Each tool call needs an id that is unique within the session. Implement [`Model`] instead to stream
/// a reply or to report usage and limits.
pub fn model_fn<F, Fut>(closure: F) -> ModelFn<F>
where
    F: Fn(Request) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Vec<Part>, ModelError>> + Send,
{
    ModelFn(closure)
}

#[async_trait]
impl<F, Fut> Model for ModelFn<F>
where
    F: Fn(Request) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Vec<Part>, ModelError>> + Send,
{
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let events = events_of(&request.model, self.0(request.clone()).await?)?;
        Ok(Box::pin(stream::iter(events.into_iter().map(Ok))))
    }
}

fn events_of(model: &str, parts: Vec<Part>) -> Result<Vec<ReplyEvent>, ModelError> {
    let mut events = Vec::new();
    let mut stop = Stop::Stop;
    for (index, part) in (0..).zip(parts) {
        match part {
            Part::Text(part) => events.push(ReplyEvent::Text(part.text)),
            Part::Reasoning(part) => {
                events.push(ReplyEvent::Reasoning(part.text));
                events.push(ReplyEvent::ReasoningEnd { signature: None, redacted: part.redacted });
            }
            Part::ToolCall(call) => {
                stop = Stop::ToolUse;
                events.push(ReplyEvent::CallBegan { index, call_id: call.call_id, name: call.name });
                events.push(ReplyEvent::CallInput { index, text: call.input.get().to_owned() });
            }
            Part::Media(_) => {
                let what = "a reply cannot contain media".to_owned();
                return Err(ModelError::Malformed { model: model.to_owned(), what });
            }
        }
    }
    events.push(ReplyEvent::Stop(stop));
    Ok(events)
}

/// The embedding program's models by name, in front of others. Model `NAME` also gets the requests for `NAME/…`.
pub struct OwnModels {
    own: BTreeMap<String, Arc<dyn Model>>,
    others: Arc<dyn Model>,
}

impl OwnModels {
    /// Put custom models in front of `others`. A custom model replaces another model of the same name.
    pub fn new(own: BTreeMap<String, Arc<dyn Model>>, others: Arc<dyn Model>) -> Self {
        Self { own, others }
    }

    fn route(&self, model: &str) -> &Arc<dyn Model> {
        let provider = model.split('/').next().unwrap_or(model);
        self.own.get(model).or_else(|| self.own.get(provider)).unwrap_or(&self.others)
    }
}

#[async_trait]
impl Model for OwnModels {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        self.route(&request.model).call(request).await
    }

    fn facts(&self, model: &str) -> ModelFacts {
        self.route(model).facts(model)
    }

    fn resolve(&self, model: &str) -> Result<String, ModelError> {
        self.route(model).resolve(model)
    }

    fn check(&self, model: &str) -> Result<(), ModelError> {
        self.route(model).check(model)
    }

    fn is_file_backed(&self, model: &str) -> bool {
        self.route(model).is_file_backed(model)
    }

    /// For each own model, the names that it reports or, if it reports none, the name it is registered under; then all
    /// others.
    fn names(&self) -> Vec<String> {
        let names_of = |(name, model): (&String, &Arc<dyn Model>)| match model.names() {
            names if names.is_empty() => vec![name.clone()],
            names => names,
        };
        self.own.iter().flat_map(names_of).chain(self.others.names()).collect()
    }
}
