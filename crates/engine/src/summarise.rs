//! Call a summariser chunk by chunk, passing the summary so far. The start of a split turn is summarized
//! separately.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use sapwood_core::Part;
use sapwood_core::compact::summarise::{
    digest_of, story_chunks, story_request, story_so_far, turn_chunks, turn_request, turn_so_far,
};
use sapwood_core::compact::{Archive, Digest};
use sapwood_core::entry::{Details, Stop, WrittenBy};
use sapwood_core::port::model::{self, Model, ModelError, Reply, RequestMessage, RequestPart, Thinking};
use sapwood_core::port::summariser::{Summariser, SummariserError, SummaryRequest, WrittenSummary};
use sapwood_core::project::context::Role;
use tracing::Instrument;

use crate::Result;
use crate::spans::{model_span, record_answer, record_failure, record_usage};

/// Maximum number of tokens in a summary.
const SUMMARY_TOKENS_MAX: u32 = 8_192;

/// A model that writes summaries.
pub struct ModelSummariser {
    model: Arc<dyn Model>,
    /// The model's name, `PROVIDER/NAME`.
    name: String,
}

impl ModelSummariser {
    pub fn new(model: Arc<dyn Model>, name: impl Into<String>) -> Self {
        Self { model, name: name.into() }
    }

    /// The cost of a reply. A reply without usage still counts as a call.
    fn bill(&self, reply: &Reply) -> WrittenBy {
        let usage = reply.usage.unwrap_or_default();
        let price = self.model.facts(&self.name).price;
        let cost_nano_usd = price.map(|price| price.cost_nano_usd(&usage));
        WrittenBy { model: self.name.clone(), calls: 1, usage, cost_nano_usd }
    }

    async fn read_reply(&self, request: &model::Request) -> Result<Reply, ModelError> {
        let mut events = self.model.call(request).await?;
        let mut reply = Reply::default();
        // The loop ends with the stream: replies have a maximum size, and the stream reports a silent
        // provider as an error.
        while let Some(event) = std::future::poll_fn(|context| events.as_mut().poll_next(context)).await {
            reply.apply(event?).map_err(|error| error.of_model(&self.name))?;
        }
        Ok(reply)
    }
}

#[async_trait]
impl Summariser for ModelSummariser {
    async fn write(&self, request: SummaryRequest) -> Result<WrittenSummary, SummariserError> {
        let message = RequestMessage { role: Role::User, parts: vec![RequestPart::Text(request.text)] };
        let request = model::Request {
            model: self.name.clone(),
            system: Some(request.system),
            messages: vec![message],
            tools: Vec::new(),
            thinking: Thinking::Off,
            temperature: None,
            output_tokens_max: Some(SUMMARY_TOKENS_MAX),
        };
        let span = model_span(None, &self.name);
        let result = self.read_reply(&request).instrument(span.clone()).await;
        let reply = result.map_err(|error| {
            record_failure(&span, error.code());
            SummariserError(error.to_string())
        })?;
        record_answer(&span, &self.name);
        if let Some(usage) = reply.usage {
            record_usage(&span, usage);
        }
        match reply.stop {
            Some(Stop::Stop | Stop::Length) => {
                Ok(WrittenSummary { text: text_of(&reply), by: Some(self.bill(&reply)) })
            }
            Some(stop) => Err(SummariserError(format!("{} stopped the summary: {stop:?}", self.name))),
            None => Err(SummariserError(format!("{} returned an incomplete summary", self.name))),
        }
    }
}

/// The text parts of a reply, joined with line breaks.
fn text_of(reply: &Reply) -> String {
    let texts: Vec<String> = reply.parts().iter().filter_map(Part::as_text).map(str::to_owned).collect();
    texts.join("\n")
}

/// Summarize an archive. The result is empty if the summariser returned no text.
pub(crate) async fn summarise(
    archive: &Archive<'_>,
    summariser: &dyn Summariser,
) -> Result<(Digest, Details), SummariserError> {
    let mut story = story_so_far(archive);
    for chunk in story_chunks(archive) {
        story = summariser.write(story_request(archive, &story, &chunk)).await?.text;
    }
    let mut turn = turn_so_far(archive);
    for chunk in turn_chunks(archive) {
        turn = summariser.write(turn_request(archive, &turn, &chunk)).await?.text;
    }
    Ok(digest_of(archive, &story, &turn))
}

/// A summariser that adds up the cost of its calls, including those whose text was not used.
pub(crate) struct MeteredSummariser {
    inner: Arc<dyn Summariser>,
    bill: Mutex<Option<WrittenBy>>,
}

impl MeteredSummariser {
    pub fn new(inner: Arc<dyn Summariser>) -> Self {
        Self { inner, bill: Mutex::default() }
    }

    pub fn bill(&self) -> Option<WrittenBy> {
        self.bill.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Summariser for MeteredSummariser {
    async fn write(&self, request: SummaryRequest) -> Result<WrittenSummary, SummariserError> {
        let written = self.inner.write(request).await?;
        let mut bill = self.bill.lock().unwrap_or_else(PoisonError::into_inner);
        *bill = add_up(bill.take(), written.by.clone());
        Ok(written)
    }
}

/// Add the cost of a call to the total. If the price of a call is unknown, the total cost is unknown too.
fn add_up(before: Option<WrittenBy>, call: Option<WrittenBy>) -> Option<WrittenBy> {
    let (Some(before), Some(call)) = (&before, &call) else { return before.or(call) };
    let mut usage = before.usage;
    usage += call.usage;
    let costs = before.cost_nano_usd.zip(call.cost_nano_usd);
    Some(WrittenBy {
        model: before.model.clone(),
        calls: before.calls.saturating_add(call.calls),
        usage,
        cost_nano_usd: costs.map(|(before, call)| before.saturating_add(call)),
    })
}
