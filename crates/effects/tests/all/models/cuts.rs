//! Streams cut at every byte, for every provider. A connection may split bytes anywhere, which must not change the
//! result. It may also close anywhere, which must never look like a complete reply.

use sapwood_core::port::model::{Model, ReplyEvent};

use super::server::{Ending, Exchange, Server};
use super::*;

struct Case {
    provider: &'static str,
    model: &'static str,
    kind: &'static str,
    wire: &'static str,
}

const ANTHROPIC: Case = Case {
    provider: "anthropic",
    model: anthropic::NAME,
    kind: "text/event-stream; charset=utf-8",
    wire: anthropic::FULL_STREAM,
};
const OPENAI: Case =
    Case { provider: "openai", model: openai::NAME, kind: "text/event-stream", wire: openai::FULL_STREAM };
const GEMINI: Case =
    Case { provider: "gemini", model: gemini::NAME, kind: "text/event-stream", wire: gemini::FULL_STREAM };
const OLLAMA: Case =
    Case { provider: "ollama", model: ollama::NAME, kind: "application/x-ndjson", wire: ollama::FULL_STREAM };

impl Case {
    fn exchange(&self, chunks: Vec<&[u8]>, ending: Ending) -> Exchange {
        Exchange::stream(self.kind, chunks.into_iter().map(<[u8]>::to_vec).collect(), ending)
    }

    async fn play_all(&self, exchanges: Vec<Exchange>) -> Vec<CallOutcome> {
        let count = exchanges.len();
        let server = Server::start(exchanges).await;
        let models = models_at(self.provider, &base_url(self.provider, &server), 5_000);
        let request = request(self.model);
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut outcome = collect_stream(models.call(&request).await.unwrap()).await;
            outcome.events.iter_mut().for_each(normalise_generated_id);
            all.push(outcome);
        }
        all
    }

    async fn whole(&self) -> Vec<ReplyEvent> {
        let exchange = self.exchange(vec![self.wire.as_bytes()], Ending::Whole);
        self.play_all(vec![exchange]).await.remove(0).events
    }

    /// Number of bytes after which the reply is complete: up to the end of the provider's last object.
    fn bytes_needed(&self) -> usize {
        self.wire.rfind('}').unwrap() + 1
    }

    async fn check_splits(&self) {
        let whole = self.whole().await;
        let bytes = self.wire.as_bytes();
        let split = |at: usize| self.exchange(vec![&bytes[..at], &bytes[at..]], Ending::Whole);
        let all = self.play_all((1..bytes.len()).map(split).collect()).await;
        for (at, outcome) in all.iter().enumerate() {
            assert_eq!(outcome.events, whole, "{} split at byte {}", self.provider, at + 1);
        }
        let single = self.exchange(bytes.chunks(1).collect(), Ending::Whole);
        assert_eq!(self.play_all(vec![single]).await[0].events, whole, "{} sent byte by byte", self.provider);
    }

    async fn check_truncation(&self) {
        let whole = self.whole().await;
        let bytes = self.wire.as_bytes();
        let closed = |at: usize| self.exchange(vec![&bytes[..at]], Ending::Closed);
        let all = self.play_all((0..bytes.len()).map(closed).collect()).await;
        for (at, outcome) in all.iter().enumerate() {
            if at >= self.bytes_needed() {
                assert_eq!(outcome.events, whole, "{} closed after byte {at}", self.provider);
                continue;
            }
            assert_eq!(outcome.code(), "model.cut", "{} closed after byte {at}", self.provider);
            assert!(
                whole.starts_with(&outcome.events),
                "{} returned events that are not in the full reply, closed after byte {at}",
                self.provider
            );
        }
    }

    /// Break the connection, instead of closing it, at each frame boundary.
    async fn check_broken_connections(&self) {
        let separator = if self.kind.contains("ndjson") { "\n" } else { "data: " };
        let offsets: Vec<usize> = self.wire.match_indices(separator).map(|(at, _)| at).collect();
        let broken = |at: &usize| self.exchange(vec![&self.wire.as_bytes()[..*at]], Ending::Broken);
        let all = self.play_all(offsets.iter().map(broken).collect()).await;
        assert!(all.len() > 3);
        for (at, outcome) in offsets.iter().zip(&all) {
            let expected = if *at < self.bytes_needed() { "model.cut" } else { "ok" };
            assert_eq!(outcome.code(), expected, "{} broken after byte {at}", self.provider);
        }
    }
}

/// Replace the random id of a call without an id from the provider.
fn normalise_generated_id(event: &mut ReplyEvent) {
    if let ReplyEvent::CallBegan { call_id, .. } = event
        && call_id.starts_with("call_")
        && call_id.len() == 21
    {
        *call_id = "generated".to_owned();
    }
}

#[tokio::test]
async fn an_anthropic_stream_does_not_depend_on_how_it_is_split() {
    ANTHROPIC.check_splits().await;
}

#[tokio::test]
async fn an_openai_stream_does_not_depend_on_how_it_is_split() {
    OPENAI.check_splits().await;
}

#[tokio::test]
async fn a_gemini_stream_does_not_depend_on_how_it_is_split() {
    GEMINI.check_splits().await;
}

#[tokio::test]
async fn an_ollama_stream_does_not_depend_on_how_it_is_split() {
    OLLAMA.check_splits().await;
}

#[tokio::test]
async fn an_anthropic_stream_that_ends_early_is_cut() {
    ANTHROPIC.check_truncation().await;
}

#[tokio::test]
async fn an_openai_stream_that_ends_early_is_cut() {
    OPENAI.check_truncation().await;
}

#[tokio::test]
async fn a_gemini_stream_that_ends_early_is_cut() {
    GEMINI.check_truncation().await;
}

#[tokio::test]
async fn an_ollama_stream_that_ends_early_is_cut() {
    OLLAMA.check_truncation().await;
}

#[tokio::test]
async fn a_stream_whose_connection_breaks_is_cut() {
    for case in [ANTHROPIC, OPENAI, GEMINI, OLLAMA] {
        case.check_broken_connections().await;
    }
}
