//! Streams cut at every byte, for every provider. A connection may split bytes anywhere, which must not change the
//! result. It may also close anywhere, which must never look like a complete reply.

use sapwood_core::port::model::{Model, Piece};

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
    wire: anthropic::WHOLE,
};
const OPENAI: Case =
    Case { provider: "openai", model: openai::NAME, kind: "text/event-stream", wire: openai::WHOLE };
const GEMINI: Case =
    Case { provider: "gemini", model: gemini::NAME, kind: "text/event-stream", wire: gemini::WHOLE };
const OLLAMA: Case =
    Case { provider: "ollama", model: ollama::NAME, kind: "application/x-ndjson", wire: ollama::WHOLE };

impl Case {
    fn exchange(&self, chunks: Vec<&[u8]>, ending: Ending) -> Exchange {
        Exchange::stream(self.kind, chunks.into_iter().map(<[u8]>::to_vec).collect(), ending)
    }

    async fn play_all(&self, exchanges: Vec<Exchange>) -> Vec<Heard> {
        let count = exchanges.len();
        let server = Server::start(exchanges).await;
        let models = models_at(self.provider, &base_url(self.provider, &server), 5_000);
        let request = request(self.model);
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut heard = hear(models.call(&request).await.unwrap()).await;
            heard.pieces.iter_mut().for_each(forget_made_up_id);
            all.push(heard);
        }
        all
    }

    async fn whole(&self) -> Vec<Piece> {
        let exchange = self.exchange(vec![self.wire.as_bytes()], Ending::Whole);
        self.play_all(vec![exchange]).await.remove(0).pieces
    }

    /// Number of bytes after which the reply is complete: up to the end of the provider's last object.
    fn bytes_needed(&self) -> usize {
        self.wire.rfind('}').unwrap() + 1
    }

    async fn check_pieces(&self) {
        let whole = self.whole().await;
        let bytes = self.wire.as_bytes();
        let split = |at: usize| self.exchange(vec![&bytes[..at], &bytes[at..]], Ending::Whole);
        let all = self.play_all((1..bytes.len()).map(split).collect()).await;
        for (at, heard) in all.iter().enumerate() {
            assert_eq!(heard.pieces, whole, "{} in two pieces at byte {}", self.provider, at + 1);
        }
        let single = self.exchange(bytes.chunks(1).collect(), Ending::Whole);
        assert_eq!(self.play_all(vec![single]).await[0].pieces, whole, "byte for byte");
    }

    async fn check_ends(&self) {
        let whole = self.whole().await;
        let bytes = self.wire.as_bytes();
        let closed = |at: usize| self.exchange(vec![&bytes[..at]], Ending::Closed);
        let all = self.play_all((0..bytes.len()).map(closed).collect()).await;
        for (at, heard) in all.iter().enumerate() {
            if at >= self.bytes_needed() {
                assert_eq!(heard.pieces, whole, "{} closed after byte {at}", self.provider);
                continue;
            }
            assert_eq!(heard.code(), "model.cut", "{} closed after byte {at}", self.provider);
            assert!(
                whole.starts_with(&heard.pieces),
                "{} returned invented pieces at byte {at}",
                self.provider
            );
        }
    }

    /// Break the connection, instead of closing it, at each frame boundary.
    async fn check_tears(&self) {
        let separator = if self.kind.contains("ndjson") { "\n" } else { "data: " };
        let places: Vec<usize> = self.wire.match_indices(separator).map(|(at, _)| at).collect();
        let torn = |at: &usize| self.exchange(vec![&self.wire.as_bytes()[..*at]], Ending::Torn);
        let all = self.play_all(places.iter().map(torn).collect()).await;
        assert!(all.len() > 3);
        for (at, heard) in places.iter().zip(&all) {
            let expected = if *at < self.bytes_needed() { "model.cut" } else { "ok" };
            assert_eq!(heard.code(), expected, "{} torn after byte {at}", self.provider);
        }
    }
}

/// Replace the random id of a call without an id from the provider.
fn forget_made_up_id(piece: &mut Piece) {
    if let Piece::CallBegan { call_id, .. } = piece
        && call_id.starts_with("call_")
        && call_id.len() == 21
    {
        *call_id = "made up".to_owned();
    }
}

#[tokio::test]
async fn an_anthropic_stream_does_not_depend_on_how_it_is_split() {
    ANTHROPIC.check_pieces().await;
}

#[tokio::test]
async fn an_openai_stream_does_not_depend_on_how_it_is_split() {
    OPENAI.check_pieces().await;
}

#[tokio::test]
async fn a_gemini_stream_does_not_depend_on_how_it_is_split() {
    GEMINI.check_pieces().await;
}

#[tokio::test]
async fn an_ollama_stream_does_not_depend_on_how_it_is_split() {
    OLLAMA.check_pieces().await;
}

#[tokio::test]
async fn an_anthropic_stream_that_ends_early_is_cut() {
    ANTHROPIC.check_ends().await;
}

#[tokio::test]
async fn an_openai_stream_that_ends_early_is_cut() {
    OPENAI.check_ends().await;
}

#[tokio::test]
async fn a_gemini_stream_that_ends_early_is_cut() {
    GEMINI.check_ends().await;
}

#[tokio::test]
async fn an_ollama_stream_that_ends_early_is_cut() {
    OLLAMA.check_ends().await;
}

#[tokio::test]
async fn a_stream_whose_connection_breaks_is_cut() {
    for case in [ANTHROPIC, OPENAI, GEMINI, OLLAMA] {
        case.check_tears().await;
    }
}
