//! Limits on connections and streams per caller. Health checks, other callers and operators are still served while one
//! caller opens as many connections as it can.

use std::time::Duration;

use sapwood::core::port::keys::Grant;
use sapwood_server::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::{TestRequest, TestServer};
use crate::wire::{TestResponse, WAIT_MAX, open};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const EVENTS: &str = "/v1/sessions/s/events";
/// More than the limits of any server in these tests.
const ATTEMPTS: usize = 400;
/// Connection limit of the servers in these tests. One principal gets half of them, and a quarter as streams.
const CONNECTIONS_MAX: usize = 16;

fn small_limits() -> Settings {
    Settings { connections_max: CONNECTIONS_MAX, rate: None, ..Settings::default() }
}

fn get<'a>(path: &'a str, key: Option<&'a str>) -> TestRequest<'a> {
    TestRequest { method: "GET", path, key, headers: &[], body: b"" }
}

type OpenedStream = (TestResponse, BufReader<TcpStream>);

async fn follow(server: &TestServer, key: Option<&str>) -> OpenedStream {
    open(server.addr, &server.bytes_of(get(EVENTS, key))).await
}

/// Opens event streams until a stream is rejected.
async fn open_all(server: &TestServer, key: Option<&str>) -> (Vec<OpenedStream>, OpenedStream) {
    let mut streams = Vec::new();
    for _ in 0..ATTEMPTS {
        let opened = follow(server, key).await;
        if opened.0.status != 200 {
            return (streams, opened);
        }
        streams.push(opened);
    }
    panic!("{} streams were opened, and none was rejected", streams.len());
}

async fn assert_probes_answer(server: &TestServer) {
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.request(get(path, None)).await.status, 200, "{path}");
    }
}

/// Retries until a stream can be opened, because the server notices only later that a client has disconnected.
async fn opens_in_time(server: &TestServer, key: Option<&str>) -> Option<OpenedStream> {
    let retry = async {
        loop {
            let opened = follow(server, key).await;
            if opened.0.status == 200 {
                return opened;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, retry).await.ok()
}

async fn assert_refused(opened: OpenedStream, status: u16, code: &str) {
    let (head, mut reader) = opened;
    let mut body = Vec::new();
    reader.read_to_end(&mut body).await.unwrap();
    let answer = TestResponse { body, ..head };
    assert_eq!((answer.status, answer.code().as_str()), (status, code));
    assert!(answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
}

async fn metric(server: &TestServer, name: &str) -> u64 {
    let text = String::from_utf8(server.get("operator", "/metrics").await.body).unwrap();
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_gets_its_share_of_event_streams_and_other_callers_are_served() {
    let server = TestServer::open_with(small_limits()).await;
    server.shared_session("s").await;
    let (streams, refused) = open_all(&server, Some("ana-reads")).await;
    assert_eq!(streams.len(), CONNECTIONS_MAX / 4);
    assert_refused(refused, 429, "share.exceeded").await;
    assert_refused(follow(&server, Some("ana")).await, 429, "share.exceeded").await;
    assert_probes_answer(&server).await;
    assert_eq!(server.get("ana-reads", "/v1/sessions/s").await.status, 200, "other requests are served");
    let others: Vec<OpenedStream> =
        vec![follow(&server, Some("rex")).await, follow(&server, Some("operator")).await];
    assert!(others.iter().all(|(head, _)| head.status == 200), "streams of other users can be opened");
    assert_eq!(metric(&server, "sapwood_http_refused_total{reason=\"share\"}").await, 2);
    assert_eq!(metric(&server, "sapwood_streams").await, CONNECTIONS_MAX as u64 / 4 + 2);
    drop(streams);
    assert!(
        opens_in_time(&server, Some("ana-reads")).await.is_some(),
        "a stream can be opened after others are closed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_operators_are_served_while_the_server_is_full() {
    let (all, reserved) = (Some(CONNECTIONS_MAX), 3);
    let settings = Settings {
        connections_per_principal_max: all,
        streams_per_principal_max: all,
        operate_connections_reserved: reserved,
        ..small_limits()
    };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let (streams, refused) = open_all(&server, Some("ana-reads")).await;
    assert_eq!(streams.len(), CONNECTIONS_MAX);
    assert_eq!(refused.0.header("connection"), Some("close"));
    assert_refused(refused, 503, "server.full").await;
    assert_refused(follow(&server, Some("rex")).await, 503, "server.full").await;
    assert_refused(open(server.addr, &server.bytes_of(get("/openapi.json", None))).await, 503, "server.full")
        .await;
    assert_eq!(server.get("unknown", "/v1/sessions").await.status, 401, "an invalid key is still reported");
    assert_probes_answer(&server).await;
    assert_eq!(metric(&server, "sapwood_streams").await, CONNECTIONS_MAX as u64);
    let (operated, refused) = open_all(&server, Some("operator")).await;
    assert_eq!(operated.len(), reserved);
    assert_refused(refused, 503, "server.full").await;
    assert_probes_answer(&server).await;
    drop(operated);
    assert!(opens_in_time(&server, Some("operator")).await.is_some());
    drop(streams);
    assert!(opens_in_time(&server, Some("rex")).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_key_uses_the_reserve_when_its_users_share_is_taken() {
    let mut server =
        TestServer::open_with(Settings { operate_connections_reserved: 2, ..small_limits() }).await;
    server.shared_session("s").await;
    server.add_key("ana-operates", "local", "ana", &[Grant::Operate], None).await;
    let (streams, _) = open_all(&server, Some("ana-reads")).await;
    let (operated, refused) = open_all(&server, Some("ana-operates")).await;
    assert_eq!((streams.len(), operated.len()), (CONNECTIONS_MAX / 4, 2));
    assert_refused(refused, 429, "share.exceeded").await;
}

/// Sends a request and keeps its connection alive.
async fn keep_alive(server: &TestServer, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let request = format!(
        "GET /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\r\n",
        server.key(key)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    tokio::time::timeout(WAIT_MAX, stream.read_exact(&mut head)).await.unwrap().unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_keep_alive_connections_are_closed_for_new_ones() {
    let server = TestServer::open_with(small_limits()).await;
    server.shared_session("s").await;
    let mut idle = Vec::new();
    for _ in 0..ATTEMPTS {
        idle.push(keep_alive(&server, "ana-reads").await);
    }
    assert_probes_answer(&server).await;
    assert_eq!(server.get("rex", "/v1/sessions/s").await.status, 200);
    assert_eq!(follow(&server, Some("operator")).await.0.status, 200);
    assert!(metric(&server, "sapwood_connections_closed_total").await > 0);
    assert!(metric(&server, "sapwood_connections").await < ATTEMPTS as u64);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(WAIT_MAX, idle[0].read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the oldest idle connection was closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_block_a_full_server() {
    let all = Some(CONNECTIONS_MAX);
    let settings =
        Settings { connections_per_principal_max: all, streams_per_principal_max: all, ..small_limits() };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let (streams, _) = open_all(&server, Some("ana-reads")).await;
    let mut silent = Vec::new();
    for number in 0..ATTEMPTS {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET /v1/sessions HTTP/1.1\r\nhost: ").await;
        }
        silent.push(stream);
        if number % 50 == 0 {
            assert_probes_answer(&server).await;
        }
    }
    assert_probes_answer(&server).await;
    let mut operated = Vec::new();
    for _ in 0..Settings::default().operate_connections_reserved {
        operated.push(follow(&server, Some("operator")).await);
    }
    assert!(operated.iter().all(|(head, _)| head.status == 200), "the operator reserve is available");
    drop(streams);
    assert!(opens_in_time(&server, Some("rex")).await.is_some(), "silent connections take no capacity");
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_count_toward_the_share() {
    let server = TestServer::open_with(small_limits()).await;
    server.shared_session("s").await;
    let head = format!(
        "POST /v1/sessions/s/entries HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n",
        server.key("ana")
    );
    let mut slow = Vec::new();
    for _ in 0..CONNECTIONS_MAX / 2 {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        tokio::time::timeout(WAIT_MAX, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100", "the server expects the body, so the request is in flight");
        slow.push(stream);
    }
    let refused = open(server.addr, &server.bytes_of(get("/v1/sessions/s", Some("ana-reads")))).await;
    assert_refused(refused, 429, "share.exceeded").await;
    assert_eq!(server.get("rex", "/v1/sessions/s").await.status, 200);
    assert_probes_answer(&server).await;
    drop(slow);
    let served = async {
        while server.get("ana-reads", "/v1/sessions/s").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, served).await.expect("the share was released");
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

async fn open_socket(server: &TestServer, key: &str) -> Result<Socket, (u16, String)> {
    let mut request = format!("ws://{}/v1/sessions/s/ws", server.addr).into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", server.key(key)).parse().unwrap());
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(refused)) => {
            let text = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
            Err((refused.status().as_u16(), text("retry-after")))
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_count_toward_the_share_until_they_are_closed() {
    let server = TestServer::open_with(small_limits()).await;
    server.shared_session("s").await;
    let (mut sockets, mut refused) = (Vec::new(), None);
    while sockets.len() < ATTEMPTS && refused.is_none() {
        match open_socket(&server, "ana-reads").await {
            Ok(socket) => sockets.push(socket),
            Err(answer) => refused = Some(answer),
        }
    }
    assert_eq!(sockets.len(), CONNECTIONS_MAX / 4);
    assert_eq!(refused, Some((429, "5".to_owned())));
    assert_refused(follow(&server, Some("ana-reads")).await, 429, "share.exceeded").await;
    assert_probes_answer(&server).await;
    assert!(open_socket(&server, "rex").await.is_ok());
    assert!(
        metric(&server, "sapwood_connections ").await >= sockets.len() as u64,
        "upgraded connections count as open"
    );
    drop(sockets);
    assert!(opens_in_time(&server, Some("ana-reads")).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_user_of_a_server_without_keys_has_a_share() {
    let server = TestServer::bare(small_limits()).await;
    let req = TestRequest {
        method: "POST",
        path: "/v1/sessions",
        key: None,
        headers: JSON,
        body: b"{\"id\":\"s\"}",
    };
    assert_eq!(server.request(req).await.status, 201);
    let (streams, refused) = open_all(&server, None).await;
    assert_eq!(streams.len(), CONNECTIONS_MAX / 4);
    assert_refused(refused, 429, "share.exceeded").await;
    assert_probes_answer(&server).await;
    assert_eq!(server.request(get("/v1/sessions/s", None)).await.status, 200);
    drop(streams);
    assert!(opens_in_time(&server, None).await.is_some());
}

/// The server accepts 32 uploads at a time.
#[tokio::test(flavor = "multi_thread")]
async fn slow_uploads_of_one_key_leave_capacity_for_others() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let head = format!(
        "POST /v1/sessions/s/inputs?name=slow HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\
         content-length: 1000\r\n\r\nx",
        server.key("ana")
    );
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // Wait until all uploads are in flight.
    let taken = async {
        while metric(&server, "sapwood_connections ").await < 40 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, taken).await.expect("the uploads have begun");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let upload = TestRequest {
        method: "POST",
        path: "/v1/sessions/s/inputs?name=quick",
        key: Some("cole"),
        headers: &[],
        body: b"hello",
    };
    assert_eq!(server.request(upload).await.status, 201);
}

/// Two users of a tenant together get the tenant's share, and another tenant is served.
#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_gets_its_share_and_other_tenants_are_served() {
    let settings = Settings {
        streams_per_tenant_max: Some(5),
        streams_per_principal_max: Some(4),
        connections_max: 64,
        ..small_limits()
    };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let (ana, refused) = open_all(&server, Some("ana")).await;
    assert_eq!(ana.len(), 4);
    assert_refused(refused, 429, "share.exceeded").await;
    let (rex, refused) = open_all(&server, Some("rex")).await;
    assert_eq!(rex.len(), 1, "the tenant has five streams");
    assert_refused(refused, 429, "share.exceeded").await;
    let created = server.post("foreign", "/v1/sessions", &serde_json::json!({ "id": "s" })).await;
    assert_eq!(created.status, 201);
    assert_eq!(follow(&server, Some("foreign")).await.0.status, 200);
    assert_eq!(follow(&server, Some("operator")).await.0.status, 200, "operators have a reserve");
}

/// Bodies that are received slowly stay in memory, so they count toward the caller's quota.
#[tokio::test(flavor = "multi_thread")]
async fn the_received_bytes_of_one_caller_are_limited_and_other_callers_are_served() {
    const BODY_BYTES: usize = 256 << 10;
    let settings = Settings {
        body_bytes_max: BODY_BYTES,
        body_bytes_in_flight_max: 4 * BODY_BYTES,
        rate: None,
        ..Settings::default()
    };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let text = "x".repeat(BODY_BYTES - 100);
    let body = serde_json::json!({ "role": "user", "content": text }).to_string();
    let post = |key: &'static str| TestRequest {
        method: "POST",
        path: "/v1/sessions/s/entries",
        key: Some(key),
        headers: JSON,
        body: body.as_bytes(),
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        let bytes = server.bytes_of(post("ana"));
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
        held.push(stream);
    }
    let refused = tokio::time::timeout(WAIT_MAX, async {
        loop {
            let answer = server.request(post("ana")).await;
            if answer.status != 201 {
                return answer;
            }
        }
    });
    let refused = refused.await.expect("a third body is refused once the server has received the others");
    assert_eq!((refused.status, refused.code().as_str()), (503, "server.busy"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.request(post("cole")).await.status, 201, "another caller is served");
    drop(held);
    let accepted = tokio::time::timeout(WAIT_MAX, async {
        while server.request(post("ana")).await.status != 201 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    accepted.await.expect("the bytes of closed connections are released");
}

/// A document that is in memory as a whole counts until the client has received it.
#[tokio::test(flavor = "multi_thread")]
async fn the_documents_of_one_caller_are_limited_and_other_callers_are_served() {
    let settings = Settings {
        projections_per_principal_max: 1,
        projection_wait_max: Duration::from_millis(50),
        rate: None,
        ..Settings::default()
    };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    // More than the buffers of a connection hold.
    for _ in 0..3 {
        server.add_message("ana", "s", &"x".repeat(12 << 20)).await;
    }
    let export = |key: &'static str| TestRequest {
        method: "POST",
        path: "/v1/sessions/s/export",
        key: Some(key),
        headers: JSON,
        body: br#"{"format":"messages"}"#,
    };
    let (head, stalled) = open(server.addr, &server.bytes_of(export("ana"))).await;
    assert_eq!(head.status, 200);
    let refused = server.request(export("ana")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "share.exceeded"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.request(export("cole")).await.status, 200, "another caller is served");
    drop(stalled);
    let served =
        tokio::time::timeout(WAIT_MAX, async { while server.request(export("ana")).await.status != 200 {} });
    served.await.expect("the caller is served after its connection is closed");
}
