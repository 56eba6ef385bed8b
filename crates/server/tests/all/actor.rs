//! A test model. Depending on the last message it answers, hangs, asks the user, or writes its marker to a file.

use std::sync::Arc;

use futures_util::stream;
use sapwood::Backends;
use sapwood::core::entry::{Stop, Usage};
use sapwood::core::port::model::{
    Model, ModelError, ModelFacts, ReplyEvent, ReplyStream, Request, RequestMessage,
};
use sapwood::core::project::context::Role;
use sapwood::effects::tool::host::{Host, Settings};

pub struct Actor;

#[async_trait::async_trait]
impl Model for Actor {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let last = format!("{:?}", request.messages.last());
        let usage = ReplyEvent::Usage(Usage { input: 7, output: 3, ..Usage::default() });
        if last.contains("please hang") {
            let first = stream::iter([Ok(ReplyEvent::Text("I am ".to_owned()))]);
            return Ok(Box::pin(futures_util::StreamExt::chain(first, stream::pending())));
        }
        let pieces = if let Some(marker) = own_marker(request) {
            marker_turn(request, &marker)
        } else if last.contains("please ask") {
            let call =
                ReplyEvent::CallBegan { index: 0, call_id: "c1".to_owned(), name: "ask_user".to_owned() };
            let input = ReplyEvent::CallInput { index: 0, text: r#"{"question":"Shall I?"}"#.to_owned() };
            vec![call, input, usage, ReplyEvent::Stop(Stop::ToolUse)]
        } else {
            let text = |text: &str| ReplyEvent::Text(text.to_owned());
            vec![text("Hello"), text(", you."), usage, ReplyEvent::Stop(Stop::Stop)]
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
    let conversation = format!("{:?}", request.messages);
    let mut found: Vec<&str> =
        conversation.match_indices("marker-").filter_map(|(at, _)| conversation.get(at..at + 12)).collect();
    found.sort_unstable();
    found.dedup();
    (!found.is_empty()).then(|| found.join("+"))
}

/// Returns the next step of a turn that writes the marker to a file, reads it back, and replies with it.
fn marker_turn(request: &Request, marker: &str) -> Vec<ReplyEvent> {
    let call = |name: &str, input: serde_json::Value| {
        let begun =
            ReplyEvent::CallBegan { index: 0, call_id: format!("call-{name}"), name: name.to_owned() };
        let input = ReplyEvent::CallInput { index: 0, text: input.to_string() };
        vec![begun, input, ReplyEvent::Stop(Stop::ToolUse)]
    };
    let is_answer = |message: &&RequestMessage| message.role == Role::Assistant;
    match request.messages.iter().filter(is_answer).count() {
        0 => call("write_file", serde_json::json!({"path": "name.txt", "content": marker})),
        1 => call("read_file", serde_json::json!({"path": "name.txt"})),
        2 => call("put_artifact", serde_json::json!({"name": "name.txt", "content": marker})),
        _ => vec![ReplyEvent::Text(format!("I am {marker}.")), ReplyEvent::Stop(Stop::Stop)],
    }
}

pub fn test_backends(scratch: &std::path::Path) -> Backends {
    let tools = Host::new(Settings::new(scratch));
    Backends { model: Arc::new(Actor), tools: Arc::new(tools), default_model: "actor".to_owned() }
}
