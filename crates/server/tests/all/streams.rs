//! Event streams and WebSockets: every event once and in order, even for slow or reconnecting readers.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::{TestRequest, TestServer};
use crate::wire::{next_event, open};

fn follow<'a>(path: &'a str, headers: &'a [(&'a str, &'a str)]) -> TestRequest<'a> {
    TestRequest { method: "GET", path, key: Some("ana"), headers, body: b"" }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_replays_after_the_cursor_and_continues_live() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let head = server.get("ana", "/v1/sessions/s").await.json()["head"]["seq"].as_u64().unwrap() as u32;
    let (_, mut events) =
        open(server.addr, &server.bytes_of(follow("/v1/sessions/s/events?after=2", &[]))).await;
    for seq in 3..=head {
        let event = next_event(&mut events).await.unwrap();
        assert_eq!((event.id, event.data["seq"].as_u64()), (Some(seq), Some(u64::from(seq))));
        assert_eq!(event.data["type"], event.name.as_str());
    }
    server.add_message("cole", "s", "live").await;
    let event = next_event(&mut events).await.unwrap();
    assert_eq!((event.id, event.name.as_str()), (Some(head + 1), "session:message"));

    // The header takes precedence over the query, because a browser sends both.
    let seen = head.to_string();
    let headers = [("last-event-id", seen.as_str())];
    let (_, mut events) =
        open(server.addr, &server.bytes_of(follow("/v1/sessions/s/events?after=0", &headers))).await;
    assert_eq!(next_event(&mut events).await.unwrap().id, Some(head + 1));
    let past = server.get("ana", "/v1/sessions/s/events?after=99").await;
    assert_eq!((past.status, past.code().as_str()), (400, "input.invalid"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_the_right_to_read_is_revoked() {
    let settings = sapwood_server::Settings {
        rate: None,
        heartbeat: Duration::from_millis(100),
        ..sapwood_server::Settings::default()
    };
    let mut server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let key = server.add_key("rex-2", "local", "rex", &[sapwood::core::port::keys::Grant::Read], None).await;
    let req = TestRequest { key: Some("rex"), ..follow("/v1/sessions/s/events?after=0", &[]) };
    let (_, mut events) = open(server.addr, &server.bytes_of(req)).await;
    let req = TestRequest { key: Some("rex-2"), ..req };
    let (_, mut second) = open(server.addr, &server.bytes_of(req)).await;
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    server.engine.store().revoke_key(&scope, &key, sapwood::core::TimestampMs(1)).await.unwrap();
    let mut last = None;
    while let Some(event) = next_event(&mut second).await {
        last = Some(event);
    }
    assert_eq!(last.unwrap().data["code"], "auth.invalid", "a revoked key ends its streams");
    server.post("ana", "/v1/sessions/s/members", &json!({ "member": "rex" })).await;
    let mut last = None;
    while let Some(event) = next_event(&mut events).await {
        last = Some(event);
    }
    let last = last.unwrap();
    assert_eq!((last.name.as_str(), last.data["code"].as_str()), ("error", Some("session.not_found")));
}

/// Unread events stay in the store, and the writer is not affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_reader_slows_no_other_client_and_buffers_nothing() {
    const ENTRIES: usize = 3_000;
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(open(server.addr, &server.bytes_of(follow("/v1/sessions/s/events", &[]))).await);
    }
    let text = "x".repeat(8 << 10);
    let batch: Vec<Value> = (0..100).map(|_| json!({ "role": "user", "content": text })).collect();
    for _ in 0..ENTRIES / 100 {
        let added = server.post("ana", "/v1/sessions/s/entries", &json!(batch)).await;
        assert_eq!(added.status, 201);
    }
    let metrics = String::from_utf8(server.get("ana", "/metrics").await.body).unwrap();
    let line = metrics.lines().find(|line| line.starts_with("sapwood_events_sent_total ")).unwrap();
    let sent: usize = line.rsplit(' ').next().unwrap().parse().unwrap();
    // Only as many events are read from the store as the socket buffers hold.
    assert!(sent < 20 * ENTRIES / 2, "{sent} events were read for stalled readers");
    let (_, reader) = &mut readers[0];
    for seq in 1..=ENTRIES as u32 {
        assert_eq!(
            next_event(reader).await.unwrap().id,
            Some(seq),
            "the reader misses no event after it resumes"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_readers_each_see_everything_once() {
    const READERS: usize = 500;
    let server = std::sync::Arc::new(TestServer::open().await);
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..READERS {
        let (_, mut events) = open(server.addr, &server.bytes_of(follow("/v1/sessions/s/events", &[]))).await;
        readers.spawn(async move {
            for seq in 1..=5 {
                assert_eq!(next_event(&mut events).await.unwrap().id, Some(seq));
            }
        });
    }
    for number in 0..5 {
        server.add_message("ana", "s", &number.to_string()).await;
    }
    let seen = readers.join_all().await.len();
    assert_eq!(seen, READERS);
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn connect(server: &TestServer, key: &str) -> Socket {
    let mut request = format!("ws://{}/v1/sessions/s/ws", server.addr).into_client_request().unwrap();
    let bearer = format!("Bearer {}", server.key(key));
    request.headers_mut().insert("authorization", bearer.parse().unwrap());
    tokio_tungstenite::connect_async(request).await.unwrap().0
}

async fn receive(socket: &mut Socket) -> Value {
    loop {
        let message = tokio::time::timeout(crate::wire::WAIT_MAX, socket.next()).await.unwrap();
        if let Message::Text(text) = message.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_feed_is_replayed_in_chunks() {
    const CHUNK_BYTES_MAX: usize = 600_000;
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let call = json!({ "role": "assistant", "content": null, "tool_calls": [
        { "id": "c1", "type": "function", "function": { "name": "look", "arguments": "{}" } }] });
    let result = json!({ "role": "tool", "tool_call_id": "c1", "content": "found" });
    let mut messages = vec![json!({ "role": "user", "content": "begin" }), call];
    messages.extend((0..10).map(|_| json!({ "role": "user", "content": "x".repeat(100_000) })));
    messages.push(result);
    assert_eq!(server.post("ana", "/v1/sessions/s/entries", &json!(messages)).await.status, 201);
    let mut socket = connect(&server, "ana").await;
    let (mut items, mut chunks) = (Vec::<Value>::new(), 0);
    loop {
        let chunk = receive(&mut socket).await;
        assert_eq!(chunk["type"], "feed_replay");
        assert!(chunk.to_string().len() < CHUNK_BYTES_MAX, "{}", chunk.to_string().len());
        chunks += 1;
        for item in chunk["items"].as_array().unwrap() {
            match items.iter_mut().find(|known| known["id"] == item["id"]) {
                Some(known) => known.clone_from(item),
                None => items.push(item.clone()),
            }
        }
        if chunk["more"] == false {
            break;
        }
    }
    assert!(chunks > 2, "{chunks}");
    assert_eq!(json!(items), server.get("ana", "/v1/sessions/s/feed").await.json()["items"]);
}

/// Only a part of the feed is in memory. A `Content-Length` would mean that the whole feed was built before sending.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_is_streamed_while_it_is_read() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let call = |id: &str| {
        json!({ "role": "assistant", "content": null, "tool_calls": [
        { "id": id, "type": "function", "function": { "name": "look", "arguments": "{}" } }] })
    };
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "found" });
    let long_message = || json!({ "role": "user", "content": "x".repeat(90_000) });
    let mut messages =
        vec![call("late"), call("soon"), call("never"), long_message(), long_message(), result("soon")];
    messages.extend((0..30).map(|_| long_message()));
    messages.push(result("late"));
    assert_eq!(server.post("ana", "/v1/sessions/s/entries", &json!(messages)).await.status, 201);
    let feed = server.get("ana", "/v1/sessions/s/feed").await;
    assert_eq!((feed.status, feed.header("content-length")), (200, None));
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    let mut whole = json!(server.engine.views().feed(&scope, &"s".parse().unwrap()).await.unwrap());
    // The result is too far from its call to wait for it, so the item is repeated at the end with the same id.
    let found = whole[0].clone();
    (whole[0]["type"], whole[0]["text"]) = (json!("tool"), json!("{}"));
    whole[0]["tool"]["status"] = json!("running");
    whole.as_array_mut().unwrap().push(found);
    assert_eq!(feed.json()["items"], whole);
    assert_eq!(server.get("bob", "/v1/sessions/s/feed").await.code(), "session.not_found");
    server.post("ana", "/v1/sessions", &json!({ "id": "empty" })).await;
    let empty = server.get("ana", "/v1/sessions/empty/feed").await;
    assert!(empty.header("content-length").is_some(), "a short feed has a content length");
    assert!(empty.json()["items"].is_array(), "{}", empty.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_download_ends_when_the_key_is_revoked() {
    let settings = sapwood_server::Settings {
        rate: None,
        heartbeat: Duration::from_millis(1),
        ..sapwood_server::Settings::default()
    };
    let mut server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    // More than the socket buffers hold.
    let batch: Vec<Value> =
        (0..100).map(|_| json!({ "role": "user", "content": "x".repeat(100_000) })).collect();
    for _ in 0..4 {
        assert_eq!(server.post("ana", "/v1/sessions/s/entries", &json!(batch)).await.status, 201);
    }
    let key = server.add_key("rex-2", "local", "rex", &[sapwood::core::port::keys::Grant::Read], None).await;
    let feed_as = |key| TestRequest { key: Some(key), ..follow("/v1/sessions/s/feed", &[]) };
    let (head, mut revoked) = open(server.addr, &server.bytes_of(feed_as("rex-2"))).await;
    assert_eq!(head.status, 200);
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    server.engine.store().revoke_key(&scope, &key, sapwood::core::TimestampMs(1)).await.unwrap();
    let (_, mut good) = open(server.addr, &server.bytes_of(feed_as("rex"))).await;
    let (mut cut, mut whole) = (Vec::new(), Vec::new());
    let _ = revoked.read_to_end(&mut cut).await;
    good.read_to_end(&mut whole).await.unwrap();
    assert!(whole.ends_with(b"]}") && cut.len() < whole.len() && !cut.ends_with(b"]}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_cannot_send_on_an_open_socket() {
    let mut server = TestServer::open().await;
    server.shared_session("s").await;
    let grants = [sapwood::core::port::keys::Grant::Read, sapwood::core::port::keys::Grant::Write];
    let key = server.add_key("cole-2", "local", "cole", &grants, None).await;
    let mut socket = connect(&server, "cole-2").await;
    assert_eq!(receive(&mut socket).await["type"], "feed_replay");
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    server.engine.store().revoke_key(&scope, &key, sapwood::core::TimestampMs(1)).await.unwrap();
    socket.send(Message::Text(r#"{"type":"send","id":1,"input":"hi"}"#.into())).await.unwrap();
    let reply = receive(&mut socket).await;
    assert_eq!(
        (reply["type"].as_str(), reply["error"]["code"].as_str()),
        (Some("error"), Some("auth.invalid"))
    );
    socket.send(Message::Text("{\"type\":".into())).await.unwrap();
    assert_eq!(receive(&mut socket).await["error"]["code"], "input.json");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_counts_toward_its_callers_rate_limit() {
    let rate = Some(sapwood_server::Rate { per_second: 1, burst: 30 });
    let server = TestServer::open_with(sapwood_server::Settings { rate, ..Default::default() }).await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let mut socket = connect(&server, "ana").await;
    receive(&mut socket).await;
    for _ in 0..40 {
        socket.send(Message::Text(r#"{"type":"ping"}"#.into())).await.unwrap();
    }
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(receive(&mut socket).await["error"]["code"].as_str().map(str::to_owned));
    }
    assert_eq!(codes[0], None);
    assert_eq!(codes[39].as_deref(), Some("rate.limited"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_log_are_limited_in_bytes() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let messages: Vec<Value> =
        (0..5).map(|_| json!({ "role": "user", "content": "x".repeat(200_000) })).collect();
    assert_eq!(server.post("ana", "/v1/sessions/s/entries", &json!(messages)).await.status, 201);
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let page =
            server.get("ana", &format!("/v1/sessions/s/entries?after={after}&limit=1000")).await.json();
        pages.push(page["items"].as_array().unwrap().len());
        let Some(next) = page["next"].as_u64() else { break };
        after = next;
    }
    assert_eq!(pages, [2, 2, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_replays_the_feed_continues_live_and_accepts_input() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let mut request = format!("ws://{}/v1/sessions/s/ws", server.addr).into_client_request().unwrap();
    let bearer = format!("Bearer {}", server.key("cole"));
    request.headers_mut().insert("authorization", bearer.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let mut next = async || -> Value {
        loop {
            let message = tokio::time::timeout(crate::wire::WAIT_MAX, socket.next()).await.unwrap();
            if let Message::Text(text) = message.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    };
    let replay = next().await;
    assert_eq!((replay["type"].as_str(), replay["seq"].as_u64().is_some()), (Some("feed_replay"), true));
    assert!(replay["items"].as_array().unwrap().iter().any(|item| item["text"] == "three"));
    server.add_message("ana", "s", "live").await;
    let live = next().await;
    assert_eq!(
        (live["type"].as_str(), live["seq"].as_u64()),
        (Some("session:message"), Some(replay["seq"].as_u64().unwrap() + 1))
    );

    let send = json!({ "type": "send", "id": 7, "input": "hi" }).to_string();
    socket.send(Message::Text(send.into())).await.unwrap();
    socket.send(Message::Text(r#"{"type":"dance"}"#.into())).await.unwrap();
    let (mut has_reply, mut has_error, mut has_ended) = (false, false, false);
    let end = Instant::now() + crate::wire::WAIT_MAX;
    while !(has_reply && has_error && has_ended) {
        assert!(Instant::now() < end, "reply {has_reply}, error {has_error}, ended {has_ended}");
        let message = tokio::time::timeout(crate::wire::WAIT_MAX, socket.next()).await.unwrap();
        let Message::Text(text) = message.unwrap().unwrap() else { continue };
        let reply: Value = serde_json::from_str(&text).unwrap();
        has_reply |= reply["type"] == "ok" && reply["id"] == 7 && reply["turn"].is_string();
        has_error |= reply["type"] == "error" && reply["error"]["code"] == "input.invalid";
        has_ended |= reply["type"] == "session:turn_completed";
    }
}
