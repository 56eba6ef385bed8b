//! Asking a summariser: piece by piece, each with the summary so far, and the beginning of a split turn apart.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::Part;
use sapwood_core::compact::summarise::{
    digest_of, story_pieces, story_request, story_so_far, turn_pieces, turn_request, turn_so_far,
};
use sapwood_core::compact::{Archive, Digest};
use sapwood_core::entry::{Details, Stop};
use sapwood_core::port::model::{self, Model, ModelError, Reply, RequestMessage, RequestPart, Thinking};
use sapwood_core::port::summariser::{Request, Summariser, SummariserError};
use sapwood_core::project::context::Role;
use tracing::Instrument;

use crate::spans::{model_span, record_answer, record_failure, record_usage};

/// Most tokens a summary may take.
const SUMMARY_TOKENS_MAX: u32 = 8_192;

/// A model that writes summaries.
pub struct ModelSummariser {
    model: Arc<dyn Model>,
    /// `PROVIDER/NAME`: the session's own, or a cheaper one.
    name: String,
}

impl ModelSummariser {
    pub fn new(model: Arc<dyn Model>, name: impl Into<String>) -> Self {
        Self { model, name: name.into() }
    }

    async fn read_reply(&self, request: &model::Request) -> Result<Reply, ModelError> {
        let mut pieces = self.model.call(request).await?;
        let mut reply = Reply::default();
        // Ends with the stream; a reply has a largest size, and a provider that falls silent is an error of the stream.
        while let Some(piece) = std::future::poll_fn(|context| pieces.as_mut().poll_next(context)).await {
            reply.apply(piece?).map_err(|error| error.of_model(&self.name))?;
        }
        Ok(reply)
    }
}

#[async_trait]
impl Summariser for ModelSummariser {
    async fn write(&self, request: Request) -> Result<String, SummariserError> {
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
        let came = self.read_reply(&request).instrument(span.clone()).await;
        let reply = came.map_err(|error| {
            record_failure(&span, error.code());
            SummariserError(error.to_string())
        })?;
        record_answer(&span, &self.name);
        if let Some(usage) = reply.usage {
            record_usage(&span, usage);
        }
        match reply.stop {
            Some(Stop::Stop | Stop::Length) => Ok(text_of(&reply)),
            Some(stop) => Err(SummariserError(format!("{} ended its summary with {stop:?}", self.name))),
            None => Err(SummariserError(format!("the summary of {} was cut off", self.name))),
        }
    }
}

fn text_of(reply: &Reply) -> String {
    let texts: Vec<String> = reply.parts().iter().filter_map(Part::as_text).map(str::to_owned).collect();
    texts.join("\n")
}

/// The digest a summariser writes of an archive. Empty where its answer was.
pub(crate) async fn summarise(
    archive: &Archive<'_>,
    summariser: &dyn Summariser,
) -> Result<(Digest, Details), SummariserError> {
    let mut story = story_so_far(archive);
    for piece in story_pieces(archive) {
        story = summariser.write(story_request(archive, &story, &piece)).await?;
    }
    let mut turn = turn_so_far(archive);
    for piece in turn_pieces(archive) {
        turn = summariser.write(turn_request(archive, &turn, &piece)).await?;
    }
    Ok(digest_of(archive, &story, &turn))
}
