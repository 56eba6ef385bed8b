//! OpenAI's items and streams: items round-trip, and event numbers depend on the log alone.

use proptest::prelude::{any, prop_assert_eq, proptest};
use sapwood_core::content::{Json, Part, Reasoning};
use sapwood_core::entry::{
    Action, ActionKind, AssistantMessage, Meta, Outcome, Round, Stop, ToolResult, TurnEnded, TurnStarted,
    UserMessage,
};
use sapwood_core::turn::{CallersTool, Terms};
use sapwood_core::{Body, Entry, EntryId, Principal, Seq, TimestampMs, TurnId};
use sapwood_formats::responses::ResponseId;
use sapwood_formats::responses::event_sequence::{EventSequence, LiveChunk};
use sapwood_formats::responses::items::Items;
use sapwood_formats::responses::read::{ITEMS_MAX, read_input, read_items};
use sapwood_formats::responses::response::response_of;
use serde_json::{Value, json};

fn turn() -> TurnId {
    TurnId::from_bytes([7; 16])
}

fn id() -> ResponseId {
    ResponseId { turn: turn(), session: "s".parse().unwrap() }
}

fn entries(bodies: Vec<(bool, Body)>) -> Vec<Entry> {
    let entry = |(at, (by_agent, body)): (usize, (bool, Body))| {
        let name = "x".parse().unwrap();
        let by = if by_agent { Principal::Agent(name) } else { Principal::User(name) };
        let mut bytes = [9; 16];
        bytes[15] = at as u8;
        let (kind, seq) = (body.kind(), Seq(at as u32 + 1));
        let meta = Meta {
            seq,
            id: EntryId::from_bytes(bytes),
            parent: None,
            at: TimestampMs(1_000),
            by,
            turn: Some(turn()),
            kind,
        };
        Entry { meta, body }
    };
    bodies.into_iter().enumerate().map(entry).collect()
}

fn round(number: u32) -> Body {
    let action = Action { kind: ActionKind::Answer, what: String::new() };
    Round { number, action, result: None, reason: None, confidence: None, trace_id: None }.into()
}

fn answer(parts: Vec<Part>) -> Body {
    AssistantMessage { parts, model: Some("m".into()), usage: None, cost_nano_usd: None, stop: Stop::Stop }
        .into()
}

fn call(call_id: &str, name: &str) -> Part {
    Part::tool_call(call_id, name, Json::parse(r#"{"a":"é"}"#).unwrap())
}

/// Build a turn with reasoning, text, a server-side tool call, more text, and a call of a client-side tool.
fn log(text: &str) -> Vec<Entry> {
    let schema = Json::parse("{}").unwrap();
    let tool = CallersTool { name: "theirs".into(), description: String::new(), input_schema: schema };
    let terms = Terms { tools: vec![tool], ..Terms::default() };
    let result = ToolResult {
        call_id: "c1".into(),
        tool: None,
        parts: vec![Part::text("done")],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    };
    let thought = Part::Reasoning(Reasoning { text: format!("hm {text}"), redacted: false });
    let ended = TurnEnded {
        outcome: Outcome::Completed,
        code: None,
        message: None,
        usage: None,
        cost_nano_usd: None,
    };
    entries(vec![
        (false, TurnStarted::default().into()),
        (false, terms.to_body().unwrap()),
        (false, UserMessage { parts: vec![Part::text("go")], origin: None }.into()),
        (true, round(1)),
        (true, answer(vec![thought, Part::text(text), call("c1", "ours")])),
        (true, result.into()),
        (true, round(2)),
        (true, answer(vec![Part::text(text), call("c2", "theirs")])),
        (true, ended.into()),
    ])
}

fn events_of(log: &[Entry], after: Option<u32>) -> Vec<Value> {
    let mut sequence = EventSequence::new(id(), after);
    log.iter().flat_map(|entry| sequence.apply(entry)).collect()
}

/// Join the deltas as a client does.
fn texts(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["delta"].as_str()).collect()
}

fn plain(events: &[Value]) -> Vec<Value> {
    events.iter().filter(|event| event["delta"].is_null()).cloned().collect()
}

#[test]
fn a_turn_streams_in_order_and_ends_with_the_response() {
    let log = log("Hello, world");
    let events = events_of(&log, None);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    let numbers: Vec<i64> = events.iter().map(|event| event["sequence_number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"], response_of(&id(), &log));
    let output = last["response"]["output"].as_array().unwrap();
    let types: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["reasoning", "message", "mcp_call", "message", "function_call"]);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let mut done: Vec<&Value> = done.map(|event| &event["item"]).collect();
    done.sort_by_key(|item| output.iter().position(|known| known["id"] == item["id"]));
    assert_eq!(done, output.iter().collect::<Vec<_>>(), "each streamed item equals the response's item");
}

#[test]
fn a_reader_resumes_after_any_number_even_inside_a_text() {
    let log = log("Grüße, 🌳");
    let whole = events_of(&log, None);
    let last = whole.last().unwrap()["sequence_number"].as_u64().unwrap() as u32;
    for after in 0..=last {
        let rest = events_of(&log, Some(after));
        assert!(rest.iter().all(|event| event["sequence_number"].as_u64().unwrap() > u64::from(after)));
        let expected: Vec<Value> = plain(&whole)
            .into_iter()
            .filter(|event| event["sequence_number"].as_u64().unwrap() > u64::from(after))
            .collect();
        assert_eq!(plain(&rest), expected);
    }
}

/// Split a text at random characters.
fn chunks(text: &str, cuts: u64) -> Vec<String> {
    let mut chunks = vec![String::new()];
    for (at, letter) in text.chars().enumerate() {
        if cuts >> (at % 64) & 1 == 1 {
            chunks.push(String::new());
        }
        chunks.last_mut().unwrap().push(letter);
    }
    chunks
}

proptest! {
    /// For any chunking and any lost chunk, the reader gets the same text and events.
    #[test]
    fn the_preview_equals_the_entry(text in "[a-zé🌳 ]{0,40}", cuts in any::<u64>(), lost in 0usize..60) {
        let log = log(&text);
        let (mut sequence, mut seen) = (EventSequence::new(id(), None), Vec::new());
        for entry in &log {
            if let Body::AssistantMessage(message) = &entry.body {
                let mut index = 0;
                for part in &message.parts {
                    let (whole, is_thought) = match part {
                        Part::Text(text) => (text.text.clone(), false),
                        Part::Reasoning(thought) => (thought.text.clone(), true),
                        _ => (String::new(), false),
                    };
                    let is_call = part.as_tool_call().is_some();
                    for chunk in chunks(&whole, cuts) {
                        let live = match (is_call, is_thought) {
                            (true, _) => LiveChunk::Call,
                            (_, true) => LiveChunk::Reasoning(&chunk),
                            (_, false) => LiveChunk::Text(&chunk),
                        };
                        if seen.len() != lost {
                            seen.extend(sequence.preview(index, live));
                        }
                        index += 1;
                    }
                }
            }
            seen.extend(sequence.apply(entry));
        }
        let whole = events_of(&log, None);
        prop_assert_eq!(texts(&seen), texts(&whole));
        prop_assert_eq!(plain(&seen), plain(&whole));
    }

    /// Any JSON is parsed or rejected, and every parsed item can be displayed.
    #[test]
    fn any_json_is_read_or_refused(kind in "(message|function_call|function_call_output|reasoning|other|)", role in "(user|assistant|system|tool)", text in ".{0,20}", number in any::<i32>()) {
        let candidates = [
            json!({ "type": kind, "role": role, "content": text, "call_id": text, "name": text, "arguments": text, "output": text }),
            json!({ "type": kind, "role": role, "content": [{ "type": "input_text", "text": text }, { "type": "input_image", "image_url": text }] }),
            json!({ "role": role, "content": number }),
            json!({ "type": kind, "call_id": number, "summary": [{ "text": text }], "output": [number] }),
            json!(number),
            json!([[text]]),
        ];
        for candidate in candidates {
            if let Ok(read) = read_input(&json!([candidate])) {
                let mut items = Items::default();
                entries(read.bodies.into_iter().map(|body| (false, body)).collect()).iter().for_each(|entry| items.apply(entry));
                assert!(items.list.iter().all(|item| item.value["id"].is_string() && item.value["type"].is_string()));
            }
        }
    }
}

#[test]
fn items_round_trip() {
    let sent = [
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] }),
        json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "hm" }] }),
        json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "c", "annotations": [], "logprobs": [] }] }),
        json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{ \"x\": 1.0 }" }),
        json!({ "type": "function_call", "call_id": "2", "name": "f", "arguments": "not json" }),
        json!({ "type": "function_call_output", "call_id": "1", "output": "ok" }),
        json!({ "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "d" }] }),
        json!({ "type": "computer_call", "call_id": "3", "action": { "type": "wait" } }),
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_image", "image_url": "https://example.org/a.png" }] }),
    ];
    let read = read_items(&sent, "items", ITEMS_MAX).unwrap();
    let mut items = Items::default();
    entries(read.bodies.into_iter().map(|body| (false, body)).collect())
        .iter()
        .for_each(|entry| items.apply(entry));
    assert_eq!(items.list.len(), sent.len());
    for (item, sent) in items.list.iter().zip(&sent) {
        for (key, value) in sent.as_object().unwrap() {
            assert_eq!(&item.value[key], value, "{key} of {}", item.value);
        }
    }
    assert!(read_items(&vec![sent[0].clone(); 21], "items", ITEMS_MAX).is_err());
}
