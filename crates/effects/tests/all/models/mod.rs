//! Models over real HTTP on loopback: a server that replays exchanges byte for byte, an independent mock, and the
//! models that need no network.

mod anthropic;
mod cuts;
mod embed;
mod faults;
mod gemini;
mod mock;
mod names;
mod ollama;
mod openai;
mod scripted;
mod server;

use std::sync::Arc;

use futures_util::StreamExt;
use sapwood_core::content::{Json, ToolCall};
use sapwood_core::port::model::{
    Model, ModelError, Reply, ReplyEvent, ReplyStream, Request, RequestMessage, RequestPart, Thinking,
};
use sapwood_core::port::tool::{Replay, ToolSpec, Touch};
use sapwood_core::project::context::Role;
use sapwood_effects::model::{Models, ProviderKey, ProviderSettings, Settings};
use serde_json::{Value, json};

use server::{Exchange, Server};

const KEY: &str = "canary-key-4711";
/// Maximum number of events in a test stream.
const EVENTS_MAX: usize = 10_000;

/// Models with this provider at this address and a key for every provider.
fn models_at(provider: &str, base_url: &str, idle_ms: u64) -> Models {
    let mut settings = Settings { demo_pace_ms: Some(0), ..Settings::default() };
    let provider_settings = ProviderSettings {
        base_url: Some(base_url.to_owned()),
        idle_ms: Some(idle_ms),
        ..ProviderSettings::default()
    };
    settings.providers.insert(provider.to_owned(), provider_settings);
    Models::new(settings, Arc::new(|_: &str| Some(ProviderKey::new(KEY.to_owned())))).unwrap()
}

/// A server's address in the form of the provider's settings.
fn base_url(provider: &str, server: &Server) -> String {
    match provider {
        "openai" | "lab" => format!("{}/v1", server.url),
        _ => server.url.clone(),
    }
}

struct CallOutcome {
    events: Vec<ReplyEvent>,
    error: Option<ModelError>,
}

impl CallOutcome {
    fn reply(&self) -> Reply {
        let mut reply = Reply::default();
        for event in &self.events {
            reply.apply(event.clone()).unwrap();
        }
        reply
    }
    fn code(&self) -> &'static str {
        self.error.as_ref().map_or("ok", ModelError::code)
    }
}

/// Read a stream to its end. Checks that it ends with exactly one stop or one error.
async fn collect_stream(mut stream: ReplyStream) -> CallOutcome {
    let mut outcome = CallOutcome { events: Vec::new(), error: None };
    while let Some(item) = stream.next().await {
        assert!(outcome.error.is_none(), "the stream continues after an error");
        assert!(outcome.events.len() < EVENTS_MAX, "the stream does not end");
        match item {
            Ok(event) => outcome.events.push(event),
            Err(error) => outcome.error = Some(error),
        }
    }
    let stops = outcome.events.iter().filter(|event| matches!(event, ReplyEvent::Stop(_))).count();
    let is_last = matches!(outcome.events.last(), Some(ReplyEvent::Stop(_)));
    assert_eq!((stops, is_last), if outcome.error.is_none() { (1, true) } else { (0, false) });
    outcome
}

async fn call(models: &Models, request: &Request) -> CallOutcome {
    match models.call(request).await {
        Ok(stream) => collect_stream(stream).await,
        Err(error) => CallOutcome { events: Vec::new(), error: Some(error) },
    }
}

/// Make one call against one exchange. Returns the reply and the request that was sent.
async fn play(provider: &str, request: &Request, exchange: Exchange) -> (CallOutcome, server::SentRequest) {
    let server = Server::start(vec![exchange]).await;
    let models = models_at(provider, &base_url(provider, &server), 5_000);
    let outcome = call(&models, request).await;
    (outcome, server.requests().remove(0))
}

fn request(model: &str) -> Request {
    Request {
        model: model.into(),
        system: Some("Be brief.".into()),
        messages: vec![user("Hello")],
        tools: vec![],
        thinking: Thinking::Off,
        temperature: None,
        output_tokens_max: None,
    }
}

fn message(role: Role, parts: Vec<RequestPart>) -> RequestMessage {
    RequestMessage { role, parts }
}

fn user(text: &str) -> RequestMessage {
    message(Role::User, vec![text_part(text)])
}

fn text_part(text: &str) -> RequestPart {
    RequestPart::Text(text.into())
}

fn call_part(id: &str, name: &str, input: &str) -> RequestPart {
    let input = Json::parse(input).unwrap();
    RequestPart::ToolCall(ToolCall { call_id: id.into(), name: name.into(), input })
}

fn result(id: &str, tool: &str, parts: Vec<RequestPart>, is_error: bool) -> RequestMessage {
    let part = RequestPart::ToolResult { call_id: id.into(), tool: tool.into(), parts, is_error };
    message(Role::Tool, vec![part])
}

fn media(mime: &str, name: &str, bytes: &[u8]) -> RequestPart {
    RequestPart::Media { mime: mime.into(), name: Some(name.into()), bytes: Arc::from(bytes) }
}

fn list_tool() -> ToolSpec {
    ToolSpec {
        name: "list_directory".into(),
        description: "Lists a directory.".into(),
        input_schema: Json::from_value(&schema()),
        touch: Touch::Reads,
        replay: Replay::Safe,
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
}

/// A conversation with everything that a provider must support: images and documents, two parallel calls of which one
/// is malformed, a failed result, an image as a result, an engine note, consecutive messages of one role.
fn rich_request(model: &str) -> Request {
    let mut rich = request(model);
    rich.tools = vec![list_tool()];
    rich.messages = vec![
        message(
            Role::User,
            vec![
                text_part("Look"),
                media("image/png", "p.png", b"\x89PNG"),
                media("application/pdf", "d.pdf", b"%PDF"),
            ],
        ),
        message(Role::User, vec![media("text/csv", "t.csv", b"a,b")]),
        message(
            Role::Assistant,
            vec![
                RequestPart::Reasoning { text: "unsigned".into(), signature: None },
                text_part("I look."),
                call_part("c1", "list_directory", r#"{"path":"."}"#),
                call_part("functions.list:1", "list_directory", r#""{\"path\"""#),
            ],
        ),
        result("c1", "list_directory", vec![text_part("a.txt"), media("image/png", "s.png", b"PIC")], false),
        result("functions.list:1", "list_directory", vec![text_part("bad input")], true),
        message(Role::System, vec![text_part("Time is short.")]),
    ];
    rich
}

fn calls_of(reply: &Reply) -> Vec<(String, String, String)> {
    let parts = reply.parts();
    let calls = parts.iter().filter_map(|part| part.as_tool_call());
    calls.map(|call| (call.call_id.clone(), call.name.clone(), call.input.get().to_owned())).collect()
}

fn text_of(reply: &Reply) -> String {
    sapwood_core::content::joined_text(&reply.parts())
}
