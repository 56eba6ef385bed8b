//! Traces: a collector receives the spans of a turn but no session text, and a turn works without a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{CommandResult, World};

/// Name of a file that the tool lists, so that the name is in the session. It must not be in a trace.
const SECRET_NAME: &str = "heartwood-notes.txt";

/// Deadline for a command whose collector does not answer, generous enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A collector that records the request line and body of each request.
struct Collector {
    endpoint: String,
    requests: Receiver<(String, Vec<u8>)>,
}

impl Collector {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (send, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // Record before answering: the test reads the records once the command has its answers.
                if send.send(take_request(&stream)).is_err() {
                    return;
                }
                stream.write_all(ANSWER).unwrap();
            }
        });
        Self { endpoint, requests }
    }

    /// Returns the recorded bodies. The command has ended, so every request has been answered.
    fn bodies(&self) -> Vec<Vec<u8>> {
        let taken: Vec<(String, Vec<u8>)> = self.requests.try_iter().collect();
        assert!(taken.iter().all(|(line, _)| line == "POST /v1/traces HTTP/1.1"), "{taken:?}");
        taken.into_iter().map(|(_, body)| body).collect()
    }
}

fn take_request(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap()];
    reader.read_exact(&mut body).unwrap();
    (head[0].clone(), body)
}

const AGENT: &str = "id: lister\nmodel: demo\ntools: [list_directory]\nfs_scope: project\n";

fn chat(world: &World, variables: &[(&str, &str)]) -> CommandResult {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path("agents/lister.yaml"), AGENT).unwrap();
    let mut command = world.command(&["chat", "--agent", "lister", "-p", "list"]);
    command.envs(variables.iter().copied());
    crate::harness::finish(command)
}

fn traced_chat(protocol: &str) -> (World, Vec<Vec<u8>>) {
    let (world, collector) = (World::new("sqlite"), Collector::open());
    std::fs::write(world.path(SECRET_NAME), "x").unwrap();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
    ];
    let ran = chat(&world, &variables);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.out().contains(SECRET_NAME), "the tool did not run: {}", ran.out());
    (world, collector.bodies())
}

fn trace_ids(world: &World) -> Vec<String> {
    let lines = world.lines(&["ledger", "@last"]);
    let mut ids: Vec<String> =
        lines.iter().map(|line| line["trace_id"].as_str().unwrap().to_owned()).collect();
    ids.dedup();
    ids
}

fn attribute(span: &Value, key: &str) -> String {
    let found = span["attributes"].as_array().unwrap().iter().find(|pair| pair["key"] == key);
    let value = &found.unwrap_or_else(|| panic!("{key} is missing: {span}"))["value"];
    let text = value.as_object().unwrap().values().next().unwrap();
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

fn spans_of<'a>(spans: &'a [Value], operation: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| attribute(span, "gen_ai.operation.name") == operation).collect()
}

fn has_bytes(bodies: &[Vec<u8>], wanted: &[u8]) -> bool {
    bodies.iter().any(|body| body.windows(wanted.len()).any(|window| window == wanted))
}

#[test]
fn a_turn_is_a_trace_of_its_model_calls_and_tool_runs_under_the_ledgers_trace_id() {
    let (world, bodies) = traced_chat("http/json");
    let documents: Vec<Value> = bodies.iter().map(|body| serde_json::from_slice(body).unwrap()).collect();
    let resources = documents.iter().flat_map(|document| document["resourceSpans"].as_array().unwrap());
    let scopes = resources.clone().flat_map(|resource| resource["scopeSpans"].as_array().unwrap());
    let spans: Vec<Value> = scopes.flat_map(|scope| scope["spans"].as_array().unwrap()).cloned().collect();
    for resource in resources {
        assert_eq!(attribute(&resource["resource"], "service.name"), "sapwood");
    }
    let [turn] = spans_of(&spans, "invoke_agent")[..] else { panic!("{spans:?}") };
    let (calls, tools) = (spans_of(&spans, "chat"), spans_of(&spans, "execute_tool"));
    assert_eq!((calls.len(), tools.len(), spans.len()), (2, 1, 4), "{spans:?}");
    let session = world.json(&["info", "@last"])["id"].as_str().unwrap().to_owned();
    for span in &spans {
        assert_eq!(trace_ids(&world), [span["traceId"].as_str().unwrap()], "{span}");
        assert_eq!(attribute(span, "gen_ai.conversation.id"), session);
    }
    for child in calls.iter().chain(&tools) {
        assert_eq!(child["parentSpanId"], turn["spanId"], "{child}");
    }
    assert_eq!(attribute(turn, "gen_ai.agent.name"), "lister");
    assert_eq!(turn["parentSpanId"].as_str().unwrap_or_default(), "");
    assert_eq!(attribute(calls[0], "gen_ai.provider.name"), "demo");
    assert_eq!(attribute(calls[0], "gen_ai.response.model"), "demo");
    assert_ne!(attribute(calls[0], "gen_ai.usage.input_tokens"), "0");
    assert_eq!(attribute(tools[0], "gen_ai.tool.name"), "list_directory");
    assert!(!attribute(tools[0], "gen_ai.tool.call.id").is_empty());
}

#[test]
fn a_collector_receives_no_content_of_a_session() {
    for protocol in ["http/json", "http/protobuf"] {
        let (world, bodies) = traced_chat(protocol);
        assert!(has_bytes(&bodies, b"execute_tool list_directory"), "{protocol}");
        for text in world.texts("@last", None).iter().filter(|text| *text != "list") {
            assert!(!has_bytes(&bodies, text.as_bytes()), "{protocol}: {text}");
        }
        for word in [SECRET_NAME, "\"list\"", "demo model"] {
            assert!(!has_bytes(&bodies, word.as_bytes()), "{protocol}: {word}");
        }
    }
}

#[test]
fn a_failed_call_is_traced_with_its_code_and_without_its_message() {
    let (world, collector) = (World::new("sqlite"), Collector::open());
    let (url, provider) = crate::models::provider(401, r#"{"error":{"message":"no such customer"}}"#);
    let mut command = world.command(&["chat", "--model", "anthropic/claude-x", "-p", "hi"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
    command.env("ANTHROPIC_BASE_URL", url).env("ANTHROPIC_API_KEY", "canary-key");
    assert_eq!(crate::harness::finish(command).status, Some(1));
    provider.join().unwrap();
    let bodies = collector.bodies();
    assert!(has_bytes(&bodies, b"model.key_refused") && has_bytes(&bodies, b"chat claude-x"));
    assert!(!has_bytes(&bodies, b"no such customer") && !has_bytes(&bodies, b"canary-key"));
}

#[test]
fn an_unreachable_silent_or_misspelt_collector_neither_fails_nor_delays_a_command() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_endpoint = format!("http://{}", silent.local_addr().unwrap());
    for endpoint in
        ["http://127.0.0.1:1", silent_endpoint.as_str(), "http://192.0.2.1:4318", "not an address"]
    {
        let world = World::new("sqlite");
        let began = Instant::now();
        let ran = chat(&world, &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
        assert_eq!(ran.status, Some(0), "{endpoint}: {}", ran.stderr);
        assert!(began.elapsed() < DEADLINE, "{endpoint}: {:?}", began.elapsed());
        assert_eq!(trace_ids(&world).len(), 1, "{endpoint}");
    }
}
