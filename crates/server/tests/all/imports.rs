//! Imports of uploaded files: memory use stays bounded, and slow senders do not block others.

use std::time::{Duration, Instant};

use sapwood_server::Settings;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{TestRequest, TestServer};
use crate::wire::{TestResponse, WAIT_MAX};

/// One line in the messages format.
fn line(number: usize, bytes: usize) -> String {
    format!("{{\"role\":\"user\",\"content\":\"{number} {}\"}}\n", "x".repeat(bytes))
}

/// Starts an upload of this many bytes.
async fn begin(server: &TestServer, key: &str, query: &str, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let head = format!(
        "POST /v1/import{query} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\
         content-length: {bytes}\r\nconnection: close\r\n\r\n",
        server.key(key)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Returns the head and the JSON body of the response.
async fn answer_of(mut stream: TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut bytes))
        .await
        .expect("a response in time")
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap_or(Value::Null))
}

async fn import(server: &TestServer, key: &str, query: &str, file: &str) -> TestResponse {
    let path = format!("/v1/import{query}");
    server
        .request(TestRequest {
            method: "POST",
            path: &path,
            key: Some(key),
            headers: &[],
            body: file.as_bytes(),
        })
        .await
}

async fn export(server: &TestServer, key: &str, session: &str) -> String {
    let path = format!("/v1/sessions/{session}/export");
    let file = server.post(key, &path, &json!({ "format": "jsonl" })).await;
    String::from_utf8(file.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_uploads_do_not_block_other_callers() {
    let server = TestServer::open().await;
    let mut stalled = Vec::new();
    for number in 0..40 {
        let mut stream = begin(&server, "bob", "", 1_000_000).await;
        stream.write_all([b"[".as_slice(), b"{\"role\":"][number % 2]).await.unwrap();
        stalled.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    for file in [line(1, 10), format!("[{}]", line(1, 10).trim_end())] {
        let imported = import(&server, "ana", "", &file).await;
        assert_eq!(imported.json()["items"][0]["added"], 1, "{}", imported.json());
    }
    assert!(began.elapsed() < WAIT_MAX, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_stored_before_the_upload_is_complete() {
    const LINES: usize = 300;
    let server = TestServer::open().await;
    let foreign: Vec<String> = (0..LINES).map(|number| line(number, 60_000)).collect();
    import(&server, "ana", "?name=own", &foreign.concat()).await;
    let id = server.get("ana", "/v1/sessions").await.json()["items"][0]["id"].as_str().unwrap().to_owned();
    let own = export(&server, "ana", &id).await.replace(&format!("\"id\":\"{id}\""), "\"id\":\"own\"");
    let own: Vec<String> = own.lines().map(|line| format!("{line}\n")).collect();
    for lines in [foreign, own] {
        let bytes = lines.iter().map(String::len).sum();
        let mut stream = begin(&server, "bob", "?name=f", bytes).await;
        let (first, rest) = lines.split_at(lines.len() * 2 / 3);
        stream.write_all(first.concat().as_bytes()).await.unwrap();
        let began = Instant::now();
        while server.get("bob", "/v1/sessions").await.json()["items"].as_array().unwrap().is_empty() {
            assert!(began.elapsed() < WAIT_MAX, "nothing was stored");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.write_all(rest.concat().as_bytes()).await.unwrap();
        let (head, imported) = answer_of(stream).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let item = &imported["items"][0];
        assert_eq!((item["added"].as_u64(), &item["problems"]), (Some(LINES as u64), &json!([])), "{item}");
        let again = import(&server, "bob", "?name=f", &lines.concat()).await.json();
        assert_eq!(again["items"][0]["added"], 0, "{again}");
        let path = format!("/v1/sessions/{}", item["session"].as_str().unwrap());
        assert_eq!(server.send("DELETE", "bob", &path, &Value::Null).await.status, 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concatenated_exports_are_imported_as_one_session_each() {
    let server = TestServer::open().await;
    let mut file = String::new();
    for (name, lines) in [("one", 3), ("two", 700), ("three", 1)] {
        let foreign: String = (0..lines).map(|number| line(number, 100)).collect();
        let imported = import(&server, "ana", &format!("?name={name}"), &foreign).await.json();
        let id = imported["items"][0]["session"].as_str().unwrap().to_owned();
        let own = export(&server, "ana", &id).await;
        file.push_str(&own.replace(&format!("\"id\":\"{id}\""), &format!("\"id\":\"{name}\"")));
    }
    for (added, skipped) in [([3, 700, 1], [0, 0, 0]), ([0, 0, 0], [3, 700, 1])] {
        let imported = import(&server, "bob", "", &file).await.json();
        let items = imported["items"].as_array().unwrap();
        let of = |key: &str| items.iter().map(|item| item[key].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!((of("added"), of("skipped")), (added.to_vec(), skipped.to_vec()), "{imported}");
        let names: Vec<&str> = items.iter().map(|item| item["session"].as_str().unwrap()).collect();
        assert_eq!(names, ["one", "two", "three"]);
        assert!(items.iter().all(|item| item["problems"] == json!([])), "{imported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_after_a_rejected_one_are_imported() {
    let server = TestServer::open().await;
    let mut file = String::new();
    for number in 0..5 {
        let mut header =
            json!({ "type": "session_header", "version": 1, "id": format!("s{number}"), "timestamp": 1 });
        match number {
            1 => header["base"] = json!("s0"),
            2 => header["version"] = json!(99),
            3 => header["id"] = json!("../etc"),
            _ => {}
        }
        let entry = json!({ "type": "user_message", "id": "0190a000-0000-7000-8000-000000000001", "seq": 1,
            "timestamp": 1, "parts": [{ "type": "text", "text": "hello" }] });
        file.push_str(&format!("{header}\n{entry}\n"));
    }
    let items = import(&server, "ana", "", &file).await.json()["items"].as_array().unwrap().clone();
    let code = |item: &Value| item["problems"][0]["code"].as_str().unwrap_or("taken").to_owned();
    let codes: Vec<String> = items.iter().map(code).collect();
    assert_eq!(codes, ["taken", "import.store_fork", "import.too_new", "import.bad_header", "taken"]);
    assert_eq!(items[4]["added"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_can_be_repeated() {
    let server = TestServer::open().await;
    let lines: Vec<String> = (0..300).map(|number| line(number, 60_000)).collect();
    let mut stream = begin(&server, "bob", "?name=f", usize::try_from(i32::MAX).unwrap() / 64).await;
    stream.write_all(lines[..200].concat().as_bytes()).await.unwrap();
    while server.get("bob", "/v1/sessions").await.json()["items"].as_array().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(stream);
    let mut imported = import(&server, "bob", "?name=f", &lines.concat()).await;
    while imported.code() == "session.conflict" {
        // The first upload is still being stored.
        imported = import(&server, "bob", "?name=f", &lines.concat()).await;
    }
    let imported = imported.json();
    assert!(imported["items"][0]["skipped"].as_u64().unwrap() > 0, "{imported}");
    let listed = server.get("bob", "/v1/sessions").await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["items"][0]["messages"], 300, "{listed}");
}

/// Waits until the server has read all bytes that were sent.
async fn until_read(streams: &[TcpStream]) {
    let began = Instant::now();
    let ports: Vec<String> =
        streams.iter().map(|stream| format!(":{:04X}", stream.local_addr().unwrap().port())).collect();
    let is_waiting = || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        sockets.lines().skip(1).any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_ours = ports.iter().any(|port| columns[1].ends_with(port) || columns[2].ends_with(port));
            is_ours && columns[4] != "00000000:00000000"
        })
    };
    while is_waiting() {
        assert!(began.elapsed() < WAIT_MAX, "the server does not read the upload");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The server counts bytes shortly after it has read them.
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buffered_documents_have_a_quota_that_one_caller_cannot_exhaust() {
    // Larger than a socket buffer: a client that first writes the whole body must still get the response.
    const FILE_BYTES: usize = 8 << 20;
    let settings = Settings { upload_bytes_max: FILE_BYTES, rate: None, ..Settings::default() };
    let server = TestServer::open_with(settings).await;
    let document = format!("[{}]", line(1, FILE_BYTES - 1_000).trim_end());
    let mut held = Vec::new();
    for who in ["bob", "bob", "cole", "cole"] {
        let mut stream = begin(&server, who, "", FILE_BYTES).await;
        stream.write_all(format!("[\"{}", "x".repeat(FILE_BYTES - 1_000)).as_bytes()).await.unwrap();
        held.push(stream);
        if held.len() == 2 {
            until_read(&held).await;
            let refused = import(&server, "bob", "", &document).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (503, "server.busy"),
                "bob has used his half of the quota"
            );
            assert_eq!(
                import(&server, "ana", "", &document).await.status,
                200,
                "other callers can use the other half of the quota"
            );
        }
    }
    until_read(&held).await;
    let refused = import(&server, "ana", "", &document).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "server.busy"), "{}", refused.json());
    assert!(refused.header("retry-after").is_some());
    drop(held);
    let began = Instant::now();
    while import(&server, "ana", "", &document).await.status != 200 {
        assert!(began.elapsed() < WAIT_MAX, "the quota was not released");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_before_an_interruption_are_stored() {
    let server = TestServer::open().await;
    let lines: Vec<String> = (0..50).map(|number| line(number, 100)).collect();
    let mut stream = begin(&server, "bob", "?name=f", 1_000_000).await;
    stream.write_all(lines.concat().as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    let began = Instant::now();
    loop {
        let listed = server.get("bob", "/v1/sessions").await.json();
        if listed["items"][0]["messages"] == 50 {
            return;
        }
        assert!(began.elapsed() < WAIT_MAX, "{listed}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_an_id_becomes_a_session_of_its_sender() {
    let server = TestServer::open().await;
    let record = |id: &str, text: &str| {
        let message = json!({ "role": "user", "content": [{ "type": "text", "text": text }] });
        json!({ "type": "message", "id": id, "parentId": null, "timestamp": "2026-01-02T03:04:05.000Z", "message": message })
            .to_string()
            + "\n"
    };
    let files = [record("aaaa0001", "one"), record("bbbb0001", "two")];
    let mut sessions = Vec::new();
    for (who, file) in [("ana", &files[0]), ("ana", &files[1]), ("bob", &files[0])] {
        for query in ["?from=pi", "?from=pi&name=upload.jsonl"] {
            let answer = import(&server, who, query, file).await;
            assert_eq!(answer.status, 200, "{who} {query}: {}", answer.json());
            let item = answer.json()["items"][0].clone();
            sessions.push((who, query, item["session"].as_str().unwrap().to_owned()));
        }
    }
    for (who, query, session) in &sessions {
        let same = sessions.iter().filter(|(_, _, other)| other == session);
        // An upload with a file name is identified by the name, regardless of its content.
        let expected = if query.contains("name") && *who == "ana" { 2 } else { 1 };
        assert_eq!(same.count(), expected, "{sessions:?}");
    }
    assert_eq!(server.get("ana", "/v1/sessions/upload").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_limits_the_number_and_the_length_of_problems() {
    let server = TestServer::open().await;
    let mut file = String::new();
    for number in 0..40 {
        let header =
            json!({ "type": "session_header", "version": 1, "id": format!("s{number}"), "timestamp": 1 });
        file.push_str(&format!("{header}\n{}", "{\n".repeat(200)));
    }
    let items = import(&server, "ana", "", &file).await.json()["items"].as_array().unwrap().clone();
    let reported = |item: &Value| item["problems"].as_array().unwrap().len() as u64;
    assert_eq!((items.len(), items.iter().map(reported).sum::<u64>()), (40, 1_000));
    assert!(
        items
            .iter()
            .all(|item| reported(item) <= 100
                && reported(item) + item["more_problems"].as_u64().unwrap() == 200)
    );

    let long = format!("{}{{\"role\":\"{}\",\"content\":[]}}\n", line(1, 5), "r".repeat(900_000));
    let wrong = format!("{}\"{}\"\n", line(1, 5), "w".repeat(900_000));
    for file in [long, wrong] {
        let answer = import(&server, "ana", "?from=messages", &file).await;
        assert_eq!(answer.json()["items"][0]["problems"].as_array().unwrap().len(), 1);
        assert!(answer.body.len() < 1_000, "{} bytes", answer.body.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nameless_file_is_identified_by_its_first_bytes() {
    let server = TestServer::open().await;
    let lines: String = (0..10).map(|number| line(number, 60_000)).collect();
    let grown = format!("{lines}{}", line(10, 5));
    let document = |text: &str| format!("[\n{}]", text.trim_end().replace('\n', ",\n"));
    let mut sessions = Vec::new();
    for (file, added) in [
        (lines.clone(), 10),
        (grown.clone(), 1),
        (document(&lines), 10),
        (document(&grown), 1),
        (grown.replacen("0 ", "1 ", 1), 11),
    ] {
        let item = import(&server, "ana", "", &file).await.json()["items"][0].clone();
        assert_eq!((item["added"].as_u64(), &item["problems"]), (Some(added), &json!([])), "{item}");
        sessions.push(item["session"].as_str().unwrap().to_owned());
    }
    assert!(
        sessions[0] == sessions[1] && sessions[2] == sessions[3],
        "grown files keep their session: {sessions:?}"
    );
    assert!(sessions[0] != sessions[2] && sessions[0] != sessions[4], "{sessions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_line_longer_than_the_sniffed_bytes_is_still_a_line() {
    let server = TestServer::open().await;
    let file = format!("\n{}{}", line(1, 600_000), line(2, 10));
    let item = import(&server, "ana", "?from=messages", &file).await.json()["items"][0].clone();
    assert_eq!((item["added"].as_u64(), &item["problems"]), (Some(2), &json!([])), "{item}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_import_of_a_badly_damaged_file_stops() {
    let server = TestServer::open().await;
    let file = format!("{}{}", line(1, 10), "{\n".repeat(200_000));
    let item = import(&server, "ana", "?from=messages", &file).await.json()["items"][0].clone();
    assert_eq!(
        (item["added"].as_u64(), item["problems"].as_array().unwrap().len()),
        (Some(1), 100),
        "{item}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_is_denied_if_the_import_would_be() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let share = json!({ "member": "cole", "role": "collaborator" });
    let grown = export(&server, "ana", "s").await.replace("\"id\":\"s\"", "\"id\":\"t\"");
    assert_eq!(import(&server, "ana", "?dry_run=true", &grown).await.json()["items"][0]["session"], "t");
    assert_eq!(server.get("ana", "/v1/sessions/t").await.status, 404, "a dry run writes nothing");

    let file = export(&server, "ana", "s").await;
    assert_eq!(
        import(&server, "cole", "?dry_run=true", &file).await.status,
        200,
        "the file has no new entries"
    );
    // A file of another program, which contains ids.
    let pi = server.post("ana", "/v1/sessions/s/export", &json!({ "format": "pi" })).await.body;
    let pi = String::from_utf8(pi).unwrap().replacen("\"id\":\"s\"", "\"id\":\"p\"", 1);
    assert_eq!(import(&server, "ana", "?from=pi", &pi).await.json()["items"][0]["session"], "p");
    server.post("ana", "/v1/sessions/p/members", &share).await;
    assert_eq!(import(&server, "cole", "?from=pi&dry_run=true", &pi).await.status, 200);
    let last: Value = serde_json::from_str(pi.lines().last().unwrap()).unwrap();
    let mut next = last.clone();
    (next["id"], next["parentId"]) = (json!("ffff0001"), last["id"].clone());
    let grown = format!("{pi}{next}\n");
    for query in ["?from=pi&dry_run=true", "?from=pi"] {
        let refused = import(&server, "cole", query, &grown).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "session.denied"), "{query}");
    }
}

#[tokio::test]
async fn an_import_keeps_the_agent_and_the_directory_as_information() {
    let (from, to) = (TestServer::open().await, TestServer::open().await);
    let new = json!({ "id": "s", "agent": "writer", "cwd": "/tmp" });
    assert_eq!(from.post("operator", "/v1/sessions", &new).await.status, 201);
    let file = export(&from, "operator", "s").await.replace("user:olga", "user:ana");
    assert!(file.contains("write_file") && file.contains("/tmp"), "{file}");
    assert_eq!(import(&to, "ana", "", &file).await.status, 200);
    assert_eq!(export(&to, "ana", "s").await, file);
    let begun = to.post("ana", "/v1/sessions/s/turns", &json!({ "input": "hi" })).await.json();
    assert!(begun["notice"].as_str().unwrap().contains("imported"), "{begun}");
}
