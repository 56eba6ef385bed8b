//! A model that does what the last words ask for: answer, hang, or ask a person.

use std::sync::Arc;

use futures_util::stream;
use sapwood::World;
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, Piece, PieceStream, Request};
use sapwood::effects::tool::host::{Host, Settings};

pub struct Actor;

#[async_trait::async_trait]
impl Model for Actor {
    async fn call(&self, request: &Request) -> Result<PieceStream, ModelError> {
        let last = format!("{:?}", request.messages.last());
        let usage = Piece::Usage(Usage { input: 7, output: 3, ..Usage::default() });
        if last.contains("please hang") {
            let said = stream::iter([Ok(Piece::Text("I am ".to_owned()))]);
            return Ok(Box::pin(futures_util::StreamExt::chain(said, stream::pending())));
        }
        let pieces = if last.contains("please ask") {
            let call = Piece::CallBegan { index: 0, call_id: "c1".to_owned(), name: "ask_user".to_owned() };
            let input = Piece::CallInput { index: 0, text: r#"{"question":"Shall I?"}"#.to_owned() };
            vec![call, input, usage, Piece::Stop(Stop::ToolUse)]
        } else {
            let text = |text: &str| Piece::Text(text.to_owned());
            vec![text("Hello"), text(", you."), usage, Piece::Stop(Stop::Stop)]
        };
        Ok(Box::pin(stream::iter(pieces.into_iter().map(Ok))))
    }

    fn facts(&self, _model: &str) -> ModelFacts {
        ModelFacts::default()
    }

    fn names(&self) -> Vec<String> {
        vec!["actor".to_owned()]
    }
}

pub fn world(scratch: &std::path::Path) -> World {
    let tools = Host::new(Settings::new(scratch));
    World { model: Arc::new(Actor), tools: Arc::new(tools), default_model: "actor".to_owned() }
}
