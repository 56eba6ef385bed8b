//! A model whose calls are checked against the caller's allowances before they are sent, and counted afterwards. Every
//! call of a turn, a summary and a memory passes through it.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use sapwood_core::Scope;
use sapwood_core::entry::Usage;
use sapwood_core::port::model::{
    Model, ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request, RequestPart,
};
use sapwood_core::port::records::Spent;

use crate::{Backends, Engine, Result};

/// Assumed maximum output tokens if neither the request nor the model's facts set a maximum.
const OUTPUT_TOKENS_ASSUMED: u64 = 4_096;
/// Bytes per token in an estimate.
const BYTES_PER_TOKEN: usize = 4;

struct MeteredModel {
    inner: Arc<dyn Model>,
    engine: Engine,
    scope: Scope,
}

impl Engine {
    /// The models and tools for a caller. Calls of the models count toward the caller's allowances.
    pub(crate) fn backends_for(&self, scope: &Scope) -> Result<Backends> {
        let backends = self.backends()?;
        let model = MeteredModel { inner: backends.model, engine: self.clone(), scope: scope.clone() };
        Ok(Backends { model: Arc::new(model), ..backends })
    }
}

#[async_trait]
impl Model for MeteredModel {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let unavailable = |error: crate::EngineError| ModelError::Unreachable {
            model: request.model.clone(),
            why: format!("the caller's allowance cannot be read: {error}"),
        };
        let allowances = self.engine.allowances();
        let applying = allowances.applying_to(&self.scope).await.map_err(unavailable)?;
        if applying.is_empty() {
            return self.inner.call(request).await;
        }
        let facts = self.inner.facts(&request.model);
        let (input, price) = (input_tokens(request), facts.price.unwrap_or_default());
        let output = request.output_tokens_max.map(u64::from).or(facts.output_tokens_max);
        let estimate = worst_case(price, input, output.unwrap_or(OUTPUT_TOKENS_ASSUMED));
        allowances.check(&self.scope, &applying, &request.model, estimate).await.map_err(unavailable)??;
        let bill = CallBill {
            engine: self.engine.clone(),
            scope: self.scope.clone(),
            holders: applying.into_iter().map(|(holder, _)| holder).collect(),
            price,
            input,
            usage: None,
            is_open: true,
        };
        Ok(billed(self.inner.call(request).await?, bill))
    }

    fn facts(&self, model: &str) -> ModelFacts {
        self.inner.facts(model)
    }

    fn resolve(&self, model: &str) -> Result<String, ModelError> {
        self.inner.resolve(model)
    }

    fn check(&self, model: &str) -> Result<(), ModelError> {
        self.inner.check(model)
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn is_file_backed(&self, model: &str) -> bool {
        self.inner.is_file_backed(model)
    }
}

/// Pass the events of a call through, and count its cost at the end.
fn billed(events: ReplyStream, bill: CallBill) -> ReplyStream {
    Box::pin(stream::unfold(Some((events, bill)), |state| async move {
        let (mut events, mut bill) = state?;
        match events.next().await {
            Some(event) => {
                if let Ok(ReplyEvent::Usage(usage)) = &event {
                    bill.usage = Some(*usage);
                }
                Some((event, Some((events, bill))))
            }
            None => {
                bill.settle().await;
                None
            }
        }
    }))
}

/// What a call costs. A call that is cancelled is counted, too.
struct CallBill {
    engine: Engine,
    scope: Scope,
    holders: Vec<String>,
    price: Price,
    /// Estimated input, for a call without a usage report.
    input: u64,
    usage: Option<Usage>,
    is_open: bool,
}

impl CallBill {
    fn spent(&self) -> Spent {
        match &self.usage {
            Some(usage) => {
                let tokens = usage.input + usage.output + usage.cache_read + usage.cache_write;
                Spent { tokens, nano_usd: self.price.cost_nano_usd(usage) }
            }
            None => worst_case(self.price, self.input, 0),
        }
    }

    async fn settle(&mut self) {
        self.is_open = false;
        self.engine.allowances().account(&self.scope, &self.holders, self.spent()).await;
    }
}

impl Drop for CallBill {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let (engine, scope, spent) = (self.engine.clone(), self.scope.clone(), self.spent());
        let holders = std::mem::take(&mut self.holders);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { engine.allowances().account(&scope, &holders, spent).await });
        }
    }
}

fn worst_case(price: Price, input: u64, output: u64) -> Spent {
    let highest_input = price.input.max(price.cache_write);
    let nano_usd = highest_input.saturating_mul(input).saturating_add(price.output.saturating_mul(output));
    Spent { tokens: input.saturating_add(output), nano_usd }
}

/// Estimate the input from the bytes of the request.
fn input_tokens(request: &Request) -> u64 {
    let system = request.system.as_ref().map_or(0, String::len);
    let tools: usize = request.tools.iter().map(|tool| tool.input_schema.get().len()).sum();
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let bytes = system + tools + parts.map(part_bytes).sum::<usize>();
    bytes.div_ceil(BYTES_PER_TOKEN) as u64
}

fn part_bytes(part: &RequestPart) -> usize {
    match part {
        RequestPart::Text(text) | RequestPart::Reasoning { text, .. } => text.len(),
        RequestPart::ToolCall(call) => call.input.get().len(),
        RequestPart::ToolResult { parts, .. } => parts.iter().map(part_bytes).sum(),
        RequestPart::Media { bytes, .. } => bytes.len(),
    }
}
