//! A model that obeys the last message: it answers, hangs, asks a person, or writes its marker to a file.

use std::sync::Arc;

use futures_util::stream;
use sapwood::Backends;
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{
    Model, ModelError, ModelFacts, Piece, PieceStream, Request, RequestMessage,
};
use sapwood::core::project::context::Role;
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
        let pieces = if let Some(marker) = own_marker(request) {
            write_down(request, &marker)
        } else if last.contains("please ask") {
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

/// Returns the marker of the conversation, or all markers joined if there are several.
fn own_marker(request: &Request) -> Option<String> {
    let heard = format!("{:?}", request.messages);
    let mut found: Vec<&str> =
        heard.match_indices("marker-").filter_map(|(at, _)| heard.get(at..at + 12)).collect();
    found.sort_unstable();
    found.dedup();
    (!found.is_empty()).then(|| found.join("+"))
}

/// Writes the marker to a file, reads it back, and replies with it.
fn write_down(request: &Request, marker: &str) -> Vec<Piece> {
    let call = |name: &str, input: serde_json::Value| {
        let begun = Piece::CallBegan { index: 0, call_id: format!("call-{name}"), name: name.to_owned() };
        let input = Piece::CallInput { index: 0, text: input.to_string() };
        vec![begun, input, Piece::Stop(Stop::ToolUse)]
    };
    let is_answer = |message: &&RequestMessage| message.role == Role::Assistant;
    match request.messages.iter().filter(is_answer).count() {
        0 => call("write_file", serde_json::json!({"path": "name.txt", "content": marker})),
        1 => call("read_file", serde_json::json!({"path": "name.txt"})),
        2 => call("put_artifact", serde_json::json!({"name": "name.txt", "content": marker})),
        _ => vec![Piece::Text(format!("I am {marker}.")), Piece::Stop(Stop::Stop)],
    }
}

pub fn world(scratch: &std::path::Path) -> Backends {
    let tools = Host::new(Settings::new(scratch));
    Backends { model: Arc::new(Actor), tools: Arc::new(tools), default_model: "actor".to_owned() }
}
