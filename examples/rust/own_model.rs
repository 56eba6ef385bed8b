//! A custom model that streams its reply and reports usage, a price and a context window.
//!
//! `cargo run -p sapwood --example own_model`

use futures_util::stream;
use sapwood::model::{Model, ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request, Stop, Usage};
use sapwood::{Agent, Sapwood};

/// Counts the words of each message.
struct WordCounter;

#[sapwood::async_trait]
impl Model for WordCounter {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let words = request.last_text().split_whitespace().count();
        let usage = Usage { input: words as u64, output: 3, ..Usage::default() };
        let events = [
            ReplyEvent::Text("This message has ".to_owned()),
            ReplyEvent::Text(format!("{words} words.")),
            ReplyEvent::Usage(usage),
            ReplyEvent::Stop(Stop::Stop),
        ];
        Ok(Box::pin(stream::iter(events.map(Ok))))
    }

    fn facts(&self, _model: &str) -> ModelFacts {
        let price = Price { input: 1_000, output: 5_000, ..Price::default() };
        ModelFacts { window_tokens: Some(8_000), output_tokens_max: Some(100), price: Some(price) }
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), sapwood::Error> {
    let sapwood = Sapwood::builder("memory:")?.model("words", WordCounter).build()?;
    let session = sapwood.start(Agent::default().with_model("words")).await?;
    let report = sapwood.send(&session, "one two three").await?;
    assert_eq!(report.text, "This message has 3 words.");
    println!("{}", report.text);
    Ok(())
}
