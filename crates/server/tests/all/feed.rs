//! The schemas of entries, events and feed items, and a session with every kind of entry: the document describes it, and
//! the console's tests render its feed from `web/tests/fixtures/feed.json`, which this test keeps up to date.

use std::collections::BTreeSet;

use sapwood::Scope;
use sapwood::core::entry::{Draft, Kind, codec};
use sapwood::core::openapi::example_bodies;
use sapwood::core::port::store::{Append, NewSession};
use sapwood::core::{Body, EntryId, TenantId, TimestampMs, TurnId};
use serde_json::{Value, json};

use crate::harness::{DOCUMENT, TestRequest, TestServer, check_schema};
use crate::wire::{next_event, open};

const SESSION: &str = "stones";
/// The time of the first entry.
const BEGIN_MS: i64 = 1_767_225_600_000;

fn schema(name: &str) -> &'static Value {
    &DOCUMENT["components"]["schemas"][name]
}

/// Returns the values of `type` in a union, and the schema of each.
fn variants(union: &str) -> Vec<(&'static str, &'static Value)> {
    let mapping = schema(union)["discriminator"]["mapping"].as_object().unwrap();
    let listed: BTreeSet<&str> = schema(union)["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["$ref"].as_str().unwrap())
        .collect();
    assert_eq!(mapping.values().map(|to| to.as_str().unwrap()).collect::<BTreeSet<_>>(), listed);
    let named = |to: &Value| schema(to.as_str().unwrap().rsplit('/').next().unwrap());
    mapping.iter().map(|(name, to)| (name.as_str(), named(to))).collect()
}

#[test]
fn every_kind_of_entry_has_a_schema_and_an_example_that_round_trips() {
    let variants = variants("EntryBody");
    let names: BTreeSet<&str> = variants.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, Kind::ALL.iter().map(|kind| kind.as_str()).collect());
    for (name, schema) in variants {
        let example = &schema["examples"][0];
        assert_eq!(example["type"], name, "the schema of {name} needs an example in examples.jsonl");
        let body: Body = serde_json::from_value(example.clone()).unwrap();
        assert_eq!(serde_json::to_value(&body).unwrap(), *example);
        assert_eq!(serde_json::from_slice::<Value>(&codec::encode(&body)).unwrap(), *example);
        check_schema("EntryBody", example);
    }
}

#[test]
fn every_event_has_a_schema_and_a_valid_example() {
    let variants = variants("Event");
    let names: BTreeSet<&str> = variants.iter().map(|(name, _)| *name).collect();
    for name in Kind::ALL.iter().flat_map(|kind| kind.events()) {
        assert!(names.contains(name), "{name} has no schema");
    }
    assert!(names.contains("agent:token") && names.contains("session:waiting"), "{names:?}");
    for (name, schema) in variants {
        let forms = schema["oneOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
        for form in forms {
            assert_eq!(form["examples"][0]["type"], name, "{name} needs an example");
            check_schema("Event", &form["examples"][0]);
        }
    }
}

#[test]
#[should_panic(expected = "EntryBody")]
fn a_body_that_lacks_a_field_does_not_match_its_schema() {
    check_schema("EntryBody", &json!({ "type": "tool_result", "parts": [] }));
}

/// Returns the turn of an entry: each `turn_started` begins another one.
fn turn_of(bodies: &[Body], index: usize) -> Option<TurnId> {
    let is_start = |body: &&Body| body.kind() == Kind::TurnStarted;
    let started = bodies[..=index].iter().filter(is_start).count();
    let ended = bodies[..index].iter().filter(|body| body.kind() == Kind::TurnEnded).count();
    let id = format!("01900000-0000-7000-8000-00000000a00{started}");
    (started > ended).then(|| id.parse().unwrap())
}

/// Creates a session of ana that contains the example bodies in order.
async fn example_session(server: &TestServer) {
    let scope = Scope::user(TenantId::local(), "ana".parse().unwrap());
    let (store, bodies) = (server.engine.store(), example_bodies());
    let blob = store.put_blob(&scope, b"granite, slate".to_vec()).await.unwrap();
    assert!(bodies.iter().flat_map(Body::blobs).all(|used| used == blob), "the examples use the blob {blob}");
    let begin = TimestampMs(BEGIN_MS);
    store.create(&scope, NewSession::new(SESSION.parse().unwrap(), begin)).await.unwrap();
    for (index, body) in bodies.iter().enumerate() {
        let id: EntryId = format!("01900000-0000-7000-8000-0000000000{:02}", index + 1).parse().unwrap();
        let at = TimestampMs(BEGIN_MS + 1_000 * index as i64);
        let turn = turn_of(&bodies, index);
        let draft = Draft { id: Some(id), turn, ..Draft::new(at, body.clone()) };
        store.append(&scope, Append::new(SESSION.parse().unwrap(), at, vec![draft])).await.unwrap();
    }
}

/// Run `UPDATE=1 cargo test -p sapwood-server feed` to regenerate the fixture.
#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_tested_with_the_current_feed_of_a_session_with_every_kind_of_entry() {
    let server = TestServer::open().await;
    example_session(&server).await;
    let entries = server.get("ana", "/v1/sessions/stones/entries?limit=1000").await.json();
    assert_eq!(entries["items"].as_array().unwrap().len(), example_bodies().len());
    let feed = server.get("ana", "/v1/sessions/stones/feed").await.json();
    let text = serde_json::to_string_pretty(&feed).unwrap() + "\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/tests/fixtures/feed.json");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let fixture = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        fixture == text,
        "the feed changed: run UPDATE=1 cargo test -p sapwood-server feed, then npm test -- unit in web/"
    );
}

/// Adds items as a client does: an item with a known id replaces the earlier one.
fn merge(items: &mut Vec<Value>, news: &Value) {
    for item in news.as_array().unwrap() {
        match items.iter_mut().find(|known| known["id"] == item["id"]) {
            Some(known) => *known = item.clone(),
            None => items.push(item.clone()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changes_in_the_events_add_up_to_the_feed() {
    let server = TestServer::open().await;
    example_session(&server).await;
    let count = example_bodies().len();
    for (start, after) in [(0, 0), (0, 10), (5, 11), (0, 37)] {
        let feed = server.get("ana", &format!("/v1/sessions/stones/feed?after={start}")).await.json();
        let path = format!("/v1/sessions/stones/events?after={after}&feed_after={start}");
        let request = TestRequest { method: "GET", path: &path, key: Some("ana"), headers: &[], body: b"" };
        let (_, mut stream) = open(server.addr, &server.bytes_of(request)).await;
        let (mut changed, mut open_turn) = (Vec::new(), Value::Null);
        for _ in after..count {
            let event: Value = next_event(&mut stream).await.unwrap().data;
            check_schema("Event", &event);
            merge(&mut changed, &event["feed"]["items"]);
            open_turn = event["feed"]["open_turn"].clone();
        }
        assert_eq!(open_turn, feed["open_turn"]);
        let mut merged = feed["items"].as_array().unwrap().clone();
        merge(&mut merged, &json!(changed));
        assert_eq!(json!(merged), feed["items"], "after {after} of the feed after {start}");
        if after == start {
            assert_eq!(json!(changed), feed["items"]);
        }
    }
}
