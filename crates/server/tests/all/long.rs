//! Long documents: they are sent in chunks, and a client that stalls or pages receives the same as any other client.

use std::fmt::Write;
use std::time::Duration;

use sapwood::core::TimestampMs;
use sapwood::core::port::store::{Append, NewSession};
use sapwood::{Scope, SessionId, TenantId};
use sapwood_core::fixture::drafts;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::harness::{TestRequest, TestServer};
use crate::wire::{WAIT_MAX, open};

/// Longer than the time after which a client counts as stalled.
const STALL: Duration = Duration::from_millis(1_200);
/// Rounds of a session. Its context is longer than those that are built as a whole.
const ROUNDS: u32 = 300;

fn ana() -> Scope {
    Scope::user(TenantId::local(), "ana".parse().unwrap())
}

/// A session with late, missing and stray results, failed turns, dead branches and labels.
fn script() -> String {
    let mut script = "Y(You are a tester.) M(m)".to_owned();
    for round in 0..ROUNDS {
        let at = |step: u32| round * 10 + step;
        let text = "word ".repeat(40);
        let _ = match round % 5 {
            0 => write!(
                script,
                " [ u{}({text}) C{}(x,y) t{}(x) t{}(y) a{} ]",
                at(1),
                at(2),
                at(3),
                at(4),
                at(5)
            ),
            1 => write!(
                script,
                " [ u{} A{}(x,y) t{}(y) n{} t{}(x) a{} ]",
                at(1),
                at(2),
                at(3),
                at(4),
                at(5),
                at(6)
            ),
            2 => write!(script, " [ u{} ]failed u{} a{} {}=mark", at(1), at(2), at(3), at(3)),
            3 => {
                write!(script, " u{} a{} u{} a{} L→{} B{}(lesson)", at(1), at(2), at(3), at(4), at(2), at(5))
            }
            _ => write!(script, " [ u{} C{}(z) ]cancelled t{}(q) u{}({text})", at(1), at(2), at(3), at(4)),
        };
    }
    script
}

async fn write_session(server: &TestServer, id: &str) -> SessionId {
    let (store, session): (_, SessionId) = (server.engine.store(), id.parse().unwrap());
    let now = TimestampMs(1_800_000_000_000);
    store.create(&ana(), NewSession::new(session.clone(), now)).await.unwrap();
    store.append(&ana(), Append::new(session.clone(), now, drafts(&script()))).await.unwrap();
    session
}

async fn json_of(server: &TestServer, path: &str) -> Value {
    let answer = server.get("ana", path).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.json());
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_context_equals_the_built_one() {
    let server = TestServer::open().await;
    let session = write_session(&server, "s").await;
    let tree = server.engine.views().tree(&ana(), &session).await.unwrap();
    let middle = tree.nodes[tree.nodes.len() * 3 / 4].seq;
    for (query, at) in [(String::new(), None), (format!("?at={middle}"), Some(middle))] {
        let built = server.engine.views().context(&ana(), &session, at).await.unwrap();
        assert!(built.messages.len() > 600, "{}", built.messages.len());
        assert_eq!(json_of(&server, &format!("/v1/sessions/s/context{query}")).await, json!(built));
    }
    let counted = json_of(&server, "/v1/sessions/s/context?count=true").await;
    let each =
        counted["messages"].as_array().unwrap().iter().map(|message| message["tokens"].as_u64().unwrap());
    assert_eq!(counted["tokens"], each.sum::<u64>() + counted["system_tokens"].as_u64().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_a_tree_are_the_tree() {
    let server = TestServer::open().await;
    let session = write_session(&server, "s").await;
    for more in 0..2 {
        let whole = json!(server.engine.views().tree(&ana(), &session).await.unwrap());
        assert_eq!(json_of(&server, "/v1/sessions/s/tree").await, whole);
        let (mut nodes, mut after) = (Vec::new(), json!(0));
        while !after.is_null() {
            let mut page = json_of(&server, &format!("/v1/sessions/s/tree?limit=97&after={after}")).await;
            assert_eq!((&page["roots"], &page["leaf"]), (&whole["roots"], &whole["leaf"]));
            nodes.append(page["nodes"].as_array_mut().unwrap());
            after = page["next"].clone();
        }
        assert_eq!(json!(nodes), whole["nodes"]);
        // A cached tree is extended.
        server.add_message("ana", "s", &format!("more {more}")).await;
    }
    let refused = server.get("ana", "/v1/sessions/s/tree?limit=0").await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "input.invalid"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_an_erased_session_is_not_shown_under_its_id() {
    let server = TestServer::open().await;
    let session = write_session(&server, "s").await;
    json_of(&server, "/v1/sessions/s/tree").await;
    server.engine.sessions().erase(&ana(), &session).await.unwrap();
    server.shared_session("s").await;
    assert_eq!(json_of(&server, "/v1/sessions/s/tree").await["nodes"].as_array().unwrap().len(), 3);
}

/// A client that reads nothing for a while, so that the server drops its page, receives the same document.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_client_receives_the_same_document() {
    let server = TestServer::open().await;
    let session = write_session(&server, "s").await;
    // More than the buffers of a connection hold.
    for _ in 0..60 {
        server.add_message("ana", "s", &"text ".repeat(50_000)).await;
    }
    let export = |format: &str| ("POST", "/v1/sessions/s/export", json!({ "format": format }).to_string());
    let get = |path: &'static str| ("GET", path, String::new());
    let head = server.engine.directory().summary(&ana(), &session).await.unwrap().head.seq;
    assert!(head.0 > 1_000);
    for (method, path, body) in [
        get("/v1/sessions/s/feed"),
        get("/v1/sessions/s/context"),
        get("/v1/sessions/s/entries?limit=1000"),
        export("jsonl"),
        export("pi"),
        export("markdown"),
        export("html"),
    ] {
        let headers: &[(&str, &str)] =
            if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
        let req = TestRequest { method, path, key: Some("ana"), headers, body: body.as_bytes() };
        let expected = server.request(req).await;
        let (answer, mut reader) = open(server.addr, &server.bytes_of(req)).await;
        assert_eq!((expected.status, answer.status), (200, 200), "{path} {body}");
        tokio::time::sleep(STALL).await;
        let mut received = Vec::new();
        tokio::time::timeout(WAIT_MAX, reader.read_to_end(&mut received)).await.unwrap().unwrap();
        assert!(expected.body == received, "{path} {body}: {} and {}", expected.body.len(), received.len());
    }
}
