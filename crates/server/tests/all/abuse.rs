//! Invalid requests. Each request gets a 4xx response with the reason, and the server keeps running.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{TestRequest, TestServer};
use crate::wire::{WAIT_MAX, exchange, request};
use sapwood_server::Settings;

/// A body, its headers, and the expected status and code.
type Case<'c> = (&'c [u8], &'c [(&'c str, &'c str)], u16, &'c str);

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

#[tokio::test(flavor = "multi_thread")]
async fn invalid_bodies_are_rejected_with_a_reason() {
    let server =
        TestServer::open_with(Settings { body_bytes_max: 10_000, rate: None, ..Settings::default() }).await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let deep = format!("{{\"input\":{}{}}}", "[".repeat(3_000), "]".repeat(3_000));
    let huge = format!("{{\"input\":\"{}\"}}", "x".repeat(10_000));
    let cases: &[Case<'_>] = &[
        (b"{\"input\":", JSON, 400, "input.json"),
        (b"", JSON, 400, "input.json"),
        (b"[]", JSON, 400, "input.invalid"),
        (b"[\"x\"]", JSON, 400, "input.invalid"),
        (b"{\"input\":\"x\",\"extra\":1}", JSON, 400, "input.invalid"),
        (b"{\"input\":\"\xff\"}", JSON, 400, "input.json"),
        (b"{\"input\":\"\\ud800\"}", JSON, 400, "input.json"),
        (deep.as_bytes(), JSON, 400, "input.json"),
        (huge.as_bytes(), JSON, 413, "input.too_large"),
        (b"{\"input\":\"x\"}", &[("content-type", "text/plain")], 415, "input.media_type"),
        (b"{\"input\":\"x\"}", &[], 415, "input.media_type"),
    ];
    for (body, headers, status, code) in cases {
        let req =
            TestRequest { method: "POST", path: "/v1/sessions/s/turns", key: Some("ana"), headers, body };
        let answer = server.request(req).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!((answer.status, answer.code().as_str()), (*status, *code), "{shown}: {}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_paths_and_queries_are_rejected() {
    let server = TestServer::open().await;
    for (path, status) in [
        ("/v1/sessions/..%2f..%2fetc", 400),
        ("/v1/sessions/%00", 400),
        ("/v1/sessions/%ff", 400),
        ("/v1/sessions/%F0%9F%8C%B3", 400),
        ("/v1/sessions/unknown", 404),
        ("/v1/sessions?limit=many", 400),
        ("/v1/sessions?unknown=1", 400),
        ("/v1/sessions?state=asleep", 400),
        ("/v1/search", 400),
        ("/v1/nothing", 404),
        ("/nothing", 404),
    ] {
        let bytes =
            server.bytes_of(TestRequest { method: "GET", path, key: Some("ana"), headers: &[], body: b"" });
        let answer = exchange(server.addr, &bytes).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
    let wrong = server
        .request(TestRequest {
            method: "PUT",
            path: "/v1/sessions",
            key: Some("ana"),
            headers: &[],
            body: b"",
        })
        .await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "route.method"));
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_or_malformed_heads_are_rejected() {
    let server = TestServer::open().await;
    let big = "x".repeat(200_000);
    let many: Vec<(String, String)> = (0..150).map(|n| (format!("x-{n}"), "v".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for bytes in [
        request("GET", "/healthz", &[("x-big", &big)], b""),
        request("GET", "/healthz", &many, b""),
        request("GET", &format!("/{big}"), &[], b""),
        b"nonsense\r\n\r\n".to_vec(),
    ] {
        let answer = exchange(server.addr, &bytes).await;
        assert!((400..500).contains(&answer.status), "{}", answer.status);
    }
    assert_eq!(exchange(server.addr, &request("GET", "/healthz", &[], b"")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_may_set_the_working_directory() {
    let server = TestServer::open().await;
    let refused = server.post("ana", "/v1/sessions", &json!({ "cwd": "/etc" })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "input.invalid"));
    assert_eq!(server.post("operator", "/v1/sessions", &json!({ "cwd": "/srv" })).await.status, 201);
}

/// Opens a raw connection.
async fn connect(server: &TestServer) -> TcpStream {
    TcpStream::connect(server.addr).await.unwrap()
}

/// Reads until the server closes the connection. Returns `None` on a timeout.
async fn read_to_the_end(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut bytes)).await.ok()?.ok();
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn short_timeouts() -> Settings {
    let short = Duration::from_secs(2);
    Settings { head_time_max: short, request_time_max: short, rate: None, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slowly_sent_head_times_out() {
    let server = TestServer::open_with(short_timeouts()).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = connect(&server).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ").await.unwrap();
        slow.push(stream);
    }
    let began = Instant::now();
    let mut open = slow.len();
    while open > 0 && began.elapsed() < WAIT_MAX {
        tokio::time::sleep(Duration::from_millis(100)).await;
        open = 0;
        for stream in &mut slow {
            // An occasional byte must not keep the connection open.
            let _ = stream.write_all(b"x").await;
            let mut byte = [0; 64];
            let is_open =
                matches!(stream.try_read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock);
            open += usize::from(is_open);
        }
    }
    assert_eq!(open, 0, "connections were open after {:?}", began.elapsed());
    assert_eq!(exchange(server.addr, &request("GET", "/healthz", &[], b"")).await.status, 200);
}

/// Starts an upload of 600,000 bytes to a new session.
async fn begin_upload(server: &TestServer, session: &str) -> TcpStream {
    let bearer = format!("Bearer {}", server.key("ana"));
    let made = format!(r#"{{"id":"{session}"}}"#);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let made = exchange(server.addr, &request("POST", "/v1/sessions", &headers, made.as_bytes())).await;
    assert_eq!(made.status, 201);
    let mut stream = connect(server).await;
    let head = format!(
        "POST /v1/sessions/{session}/inputs?name=log.txt HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer}\r\n\
         content-length: 600000\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upload_completes_and_a_stalled_one_times_out() {
    let server = TestServer::open_with(short_timeouts()).await;
    let mut slow = begin_upload(&server, "slow").await;
    // The upload takes three times the request time limit.
    for _ in 0..30 {
        slow.write_all(&[b'a'; 20_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let reply = read_to_the_end(&mut slow).await.expect("a response in time");
    assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
    let mut stopped = begin_upload(&server, "stopped").await;
    stopped.write_all(b"a few bytes").await.unwrap();
    let reply = read_to_the_end(&mut stopped).await.expect("a timeout response");
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slowly_sent_body_times_out() {
    let server = TestServer::open_with(short_timeouts()).await;
    let bearer = format!("Bearer {}", server.key("ana"));
    for path in ["/v1/sessions", "/v1/responses", "/v1/conversations"] {
        let mut stream = connect(&server).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer}\r\ncontent-type: application/json\r\n\
             content-length: 1000\r\nconnection: close\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let reply = read_to_the_end(&mut stream).await.expect("a timeout response");
        assert!(reply.starts_with("HTTP/1.1 408"), "{path}: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_body_is_rejected_even_without_a_content_length() {
    let settings =
        Settings { body_bytes_max: 10_000, upload_bytes_max: 10_000, rate: None, ..Settings::default() };
    let server = TestServer::open_with(settings).await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let bearer = format!("Bearer {}", server.key("ana"));
    for path in
        ["/v1/sessions/s/entries", "/v1/sessions/s/artifacts?name=a", "/v1/responses", "/v1/conversations"]
    {
        let mut stream = connect(&server).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer}\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        let mut sent = 0;
        while sent < 1_000 && stream.write_all(chunk.as_bytes()).await.is_ok() {
            sent += 1;
            let mut byte = [0; 16];
            if stream.try_read(&mut byte).is_ok_and(|read| byte[..read].starts_with(b"HTTP/1.1 413")) {
                break;
            }
        }
        assert!(sent < 1_000, "{path} accepted 4 MB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_and_malformed_requests_are_rejected() {
    let server = TestServer::open().await;
    let bearer = format!("Bearer {}", server.key("ana"));
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer}\r\nconnection: close\r\n"
    );
    for (lines, body) in [
        ("content-length: 2\r\ncontent-length: 3\r\n", "{}x"),
        ("content-length: -1\r\n", "{}"),
        ("content-length: 2\r\ntransfer-encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nCONTENT-LENGTH: 2\r\n", "2\r\n{}\r\n0\r\n\r\n"),
        ("content-length: 18446744073709551616\r\n", "{}"),
        ("transfer-encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n"),
        ("x-\u{0}: 1\r\ncontent-length: 2\r\n", "{}"),
        (" folded: 1\r\ncontent-length: 2\r\n", "{}"),
    ] {
        let mut stream = connect(&server).await;
        let text = format!("{head}content-type: application/json\r\n{lines}\r\n{body}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let reply = read_to_the_end(&mut stream).await.expect("a response in time");
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{lines:?}: {reply}");
        let has_both = lines.to_lowercase().contains("length") && lines.to_lowercase().contains("encoding");
        assert!(
            !has_both || reply.contains("both Content-Length and Transfer-Encoding"),
            "{lines:?}: {reply}"
        );
    }
}

/// Sends valid requests with a few bytes changed, deleted or duplicated. The mutations are deterministic.
#[tokio::test(flavor = "multi_thread")]
async fn mutated_requests_never_cause_a_server_error() {
    const CASES: u64 = 600;
    let server = TestServer::open_with(short_timeouts()).await;
    server.shared_session("s").await;
    let item = json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":[1]}" });
    let seeds = [
        ("POST", "/v1/sessions", json!({ "id": "made", "title": "T" })),
        (
            "POST",
            "/v1/sessions/s/entries?expected_head=9",
            json!([{ "role": "user", "content": [{ "type": "text", "text": "hé" }] }]),
        ),
        ("POST", "/v1/sessions/s/turns", json!({ "input": "hello", "if_running": "queue" })),
        ("POST", "/v1/sessions/s/compact", json!({ "keep_last": 1, "compact_strategy": "truncate" })),
        ("POST", "/v1/sessions/s/branch", json!({ "entry": 3, "summary": "x" })),
        (
            "POST",
            "/v1/conversations",
            json!({ "items": [item, { "role": "user", "content": "x" }], "metadata": { "a": "b" } }),
        ),
        ("POST", "/v1/conversations/s/items", json!({ "items": [item] })),
        (
            "POST",
            "/v1/responses",
            json!({ "model": "actor", "input": [item], "tools": [{ "type": "function", "name": "f" }] }),
        ),
        ("GET", "/v1/conversations/s/items?order=asc&limit=3", Value::Null),
        ("GET", "/v1/search?q=%22one%22&limit=2", Value::Null),
    ];
    for case in 0..CASES {
        let (method, path, body) = &seeds[case as usize % seeds.len()];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers: &[(&str, &str)] = &[("content-type", "application/json")];
        let req = TestRequest { method, path, key: Some("ana"), headers, body: body.as_bytes() };
        let bytes = mutate(server.bytes_of(req), case);
        let mut stream = connect(&server).await;
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let reply =
            read_to_the_end(&mut stream).await.unwrap_or_else(|| panic!("case {case} got no response"));
        assert!(!reply.starts_with("HTTP/1.0 5") && !reply.starts_with("HTTP/1.1 5"), "case {case}: {reply}");
    }
    let metrics = String::from_utf8(server.get("ana", "/metrics").await.body).unwrap();
    assert!(metrics.contains("sapwood_http_panics_total 0"), "a handler panicked");
}

/// Applies a few pseudorandom mutations, seeded with the number.
fn mutate(mut bytes: Vec<u8>, number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut roll = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % most.max(1) as u64) as usize
    };
    for _ in 0..=roll(4) {
        let at = roll(bytes.len());
        match roll(5) {
            0 => bytes[at] = roll(256) as u8,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, [b'"', b'{', b'[', 0xff, 0, b'\\', b'%'][roll(7)]),
            3 => bytes.truncate(bytes.len() - roll(20).min(bytes.len() - 1)),
            _ => {
                let copy: Vec<u8> = bytes[at..bytes.len().min(at + roll(40))].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    bytes
}

/// Many clients write their whole body before they read the response.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_writes_everything_first_still_gets_the_too_large_error() {
    let settings = Settings { body_bytes_max: 5 << 20, rate: None, ..Settings::default() };
    let server = TestServer::open_with(settings).await;
    let body = vec![b' '; 8 << 20];
    let bearer = format!("Bearer {}", server.key("ana"));
    let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let head = |length: &str| {
        format!(
            "POST /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer}\r\n\
             content-type: application/json\r\nconnection: close\r\n{length}\r\n\r\n"
        )
    };
    let announced = [head(&format!("content-length: {}", body.len())).as_bytes(), &body].concat();
    for sent in [announced, [head("transfer-encoding: chunked").as_bytes(), &chunk].concat()] {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream.write_all(&sent).await.expect("the server reads the whole body");
        let mut answer = Vec::new();
        tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("5242880 bytes"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_must_name_exactly_one_host() {
    let server = TestServer::bare(Settings::default()).await;
    for (head, status) in [
        ("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n", 200),
        ("GET http://127.0.0.1/healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n", 200),
        ("GET /healthz HTTP/1.0\r\n", 200),
        ("GET /healthz HTTP/1.1\r\n", 400),
        ("GET /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil.example\r\n", 400),
        ("GET http://evil.example/v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\n", 400),
    ] {
        let answer = exchange(server.addr, format!("{head}connection: close\r\n\r\n").as_bytes()).await;
        assert_eq!(answer.status, status, "{head}");
    }
}

/// Open streams must not block the shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_can_be_stopped() {
    let settings = Settings { connections_max: 2, rate: None, ..Settings::default() };
    let mut server = TestServer::bare(settings).await;
    server
        .engine
        .sessions()
        .open(
            &sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System),
            sapwood::OpenOptions { id: Some("s".parse().unwrap()), ..Default::default() },
        )
        .await
        .unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams
            .push(crate::wire::open(server.addr, &request("GET", "/v1/sessions/s/events", &[], b"")).await.1);
    }
    // A third connection waits for capacity.
    let _third = TcpStream::connect(server.addr).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop();
    for stream in &mut streams {
        assert_eq!(crate::wire::next_event(stream).await, None, "the stream ends");
    }
}

/// A client may send an image URL that looks like a blob reference of Sapwood.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_with_an_unknown_blob_reference_is_listed_unchanged() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    for url in ["blob:zz;image/png", &format!("blob:{};image/png", "0".repeat(64)), "blob:https://x"] {
        let item = json!({ "role": "user", "content": [{ "type": "input_image", "image_url": url }] });
        let added = server.post("ana", "/v1/conversations/s/items", &json!({ "items": [item] })).await;
        assert_eq!(added.status, 200, "{url}: {}", added.json());
        let listed = server.get("ana", "/v1/conversations/s/items?limit=1").await;
        assert_eq!(listed.status, 200, "{url}: {}", listed.json());
        assert_eq!(listed.json()["data"][0]["content"][0]["image_url"], url, "{}", listed.json());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_items_ends_early_if_its_media_are_large() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let data = "A".repeat(9 << 20);
    let item = json!({ "role": "user", "content": [
        { "type": "input_image", "image_url": format!("data:image/png;base64,{data}") }] });
    for _ in 0..3 {
        let added = server.post("ana", "/v1/conversations/s/items", &json!({ "items": [item] })).await;
        assert_eq!(added.status, 200);
    }
    let (mut after, mut pages) = (String::new(), Vec::new());
    loop {
        let page = server.get("ana", &format!("/v1/conversations/s/items?limit=100{after}")).await.json();
        pages.push(page["data"].as_array().unwrap().len());
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
    assert_eq!(pages, [2, 1]);
}

/// A client that is still sending when its request is refused must see the status, not a broken connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_refused_before_its_body_is_read_gets_its_status() {
    let server = TestServer::open().await;
    let bearer = format!("authorization: Bearer {}\r\n", server.key("ana"));
    let body = vec![b'x'; 12 << 20];
    for (path, lines, status) in [
        ("/v1/sessions", "", "401"),
        ("/v1/sessions", bearer.as_str(), "415"),
        ("/v1/sessions/none/artifacts?name=a", bearer.as_str(), "404"),
        ("/nowhere", "", "404"),
    ] {
        let mut stream = connect(&server).await;
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let reply = read_to_the_end(&mut stream).await.expect("a response");
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {reply}");
    }
}

/// Every route that accepts JSON refuses deep nesting, also in fields that are stored as text.
#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_refused_wherever_it_enters() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    for depth in [129, 200_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (path, body) in [
            ("/v1/sessions", format!("{{\"title\":\"t\",\"variables\":{deep}}}")),
            (
                "/v1/sessions/s/entries",
                format!("{{\"role\":\"custom_info\",\"custom_type\":\"x\",\"data\":{deep}}}"),
            ),
            ("/v1/sessions/s/turns", format!("{{\"text\":\"t\",\"tools\":{deep}}}")),
            ("/v1/responses", format!("{{\"model\":\"demo\",\"input\":\"x\",\"metadata\":{deep}}}")),
            ("/v1/conversations", format!("{{\"metadata\":{deep}}}")),
        ] {
            let body = body.as_bytes();
            let req = TestRequest { method: "POST", path, key: Some("ana"), headers: JSON, body };
            let reply = server.request(req).await;
            assert_eq!(reply.status, 400, "{path} at depth {depth}: {}", reply.json());
            assert!(reply.json().to_string().contains("128 levels"), "{path}: {}", reply.json());
        }
    }
}
