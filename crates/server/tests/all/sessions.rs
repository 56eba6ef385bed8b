//! Sessions, entries, projections, artifacts: the common operations of a client.

use serde_json::json;

use crate::harness::{TestRequest, TestServer};
use sapwood_server::Settings;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_once_renamed_archived_and_erased() {
    let server = TestServer::open().await;
    let made = server.post("ana", "/v1/sessions", &json!({ "id": "s", "title": "First" })).await;
    assert_eq!((made.status, made.json()["title"].as_str()), (201, Some("First")));
    let again = server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    assert_eq!((again.status, again.json()["title"].as_str()), (200, Some("First")));
    let bobs = server.post("bob", "/v1/sessions", &json!({ "id": "s" })).await;
    assert_eq!((bobs.status, bobs.code().as_str()), (409, "session.exists"));

    let patched = server.send("PATCH", "ana", "/v1/sessions/s", &json!({ "title": "Second" })).await;
    assert_eq!(patched.json()["title"], "Second");
    let wrong = server.send("PATCH", "ana", "/v1/sessions/s", &json!({ "titel": "x" })).await;
    assert_eq!((wrong.status, wrong.code().as_str()), (400, "input.invalid"));

    let archived = server.post("ana", "/v1/sessions/s/archive", &json!({})).await;
    assert_eq!(archived.json()["state"], "archived");
    let message = json!({ "role": "user", "content": "x" });
    let refused = server.post("ana", "/v1/sessions/s/entries", &message).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "session.archived"));
    server.send("PATCH", "ana", "/v1/sessions/s", &json!({ "state": "active" })).await;
    server.add_message("ana", "s", "continued").await;

    let erased = server.request(TestRequest {
        method: "DELETE",
        path: "/v1/sessions/s",
        key: Some("ana"),
        headers: &[],
        body: b"",
    });
    assert_eq!(erased.await.status, 204);
    assert_eq!(server.get("ana", "/v1/sessions/s").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_page_by_cursor_to_the_end() {
    let server = TestServer::open().await;
    for number in 0..7 {
        server.post("ana", "/v1/sessions", &json!({ "id": format!("s{number}") })).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..9 {
        let page = server.get("ana", &format!("/v1/sessions?limit=3{cursor}")).await.json();
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={}", next.replace('+', "%2B")),
            None => break,
        }
    }
    assert_eq!(seen, ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]);
    assert_eq!(server.get("ana", "/v1/sessions?limit=0").await.status, 400);
    assert_eq!(server.get("ana", "/v1/sessions?limit=501").await.status, 400);
    assert_eq!(server.get("ana", "/v1/sessions?cursor=nonsense").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inject_is_idempotent_and_checks_the_expected_head() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let body = br#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    let req = TestRequest {
        method: "POST",
        path: "/v1/sessions/s/entries",
        key: Some("ana"),
        headers: &headers,
        body,
    };
    let first = server.request(req).await;
    let second = server.request(req).await;
    assert_eq!((first.status, first.json()), (201, second.json()));
    let entries = server.get("ana", "/v1/sessions/s/entries?limit=1").await.json();
    assert_eq!(
        (entries["items"][0]["body"]["parts"][0]["text"].as_str(), entries["next"].as_u64()),
        (Some("a"), Some(1))
    );
    let rest = server.get("ana", "/v1/sessions/s/entries?after=1").await.json();
    assert_eq!((rest["items"].as_array().unwrap().len(), rest["next"].as_u64()), (1, None));

    let message = json!({ "role": "user", "content": "c" });
    let late = server.post("ana", "/v1/sessions/s/entries?expected_head=1", &message).await;
    assert_eq!((late.status, late.code().as_str()), (409, "session.conflict"));
    assert_eq!(server.post("ana", "/v1/sessions/s/entries?expected_head=2", &message).await.status, 201);
    let no_role = server.post("ana", "/v1/sessions/s/entries", &json!({ "content": "x" })).await;
    assert_eq!((no_role.status, no_role.code().as_str()), (400, "input.role"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_forked_trimmed_and_searched_over_http() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let fork = server.post("ana", "/v1/sessions/s/fork", &json!({ "id": "f", "keep_first": 2 })).await;
    assert_eq!((fork.status, fork.json()["id"].as_str()), (201, Some("f")));
    let texts = |context: serde_json::Value| -> Vec<String> {
        let messages = context["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(server.get("ana", "/v1/sessions/f/context").await.json()), ["one", "two"]);
    server.post("ana", "/v1/sessions/s/label", &json!({ "entry": 2, "text": "fork here" })).await;
    let trimmed = server.post("ana", "/v1/sessions/s/trim", &json!({ "keep_last": 1 })).await;
    assert_eq!(trimmed.json()["kept"], 1);
    server.post("ana", "/v1/sessions/s/uncompact", &json!({})).await;
    assert_eq!(texts(server.get("ana", "/v1/sessions/s/context").await.json()), ["one", "two", "three"]);
    let unknown = server.post("ana", "/v1/sessions/s/compact", &json!({ "keep_lst": 1 })).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (400, "input.option"));
    let ancestry = server.get("ana", "/v1/sessions/f/ancestry").await.json();
    assert_eq!(ancestry["parent"], "s");
    let hits = server.get("ana", "/v1/search?q=two").await.json();
    assert_eq!(hits["items"][0]["session"], "s");
    let found = server.get("ana", "/v1/sessions?q=two").await.json();
    assert_eq!(found["items"][0]["id"], "s");
}

/// The artifact has more than two chunks, so that ranges lie within a chunk, span two, or end with the last chunk.
#[tokio::test(flavor = "multi_thread")]
async fn any_range_of_a_large_artifact_equals_the_slice_of_its_bytes() {
    const SIZE: usize = (2 << 20) + 345;
    const CHUNK: usize = 1 << 20;
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = "/v1/sessions/s/inputs?name=large.bin";
    let put = server
        .request(TestRequest { method: "POST", path, key: Some("ana"), headers: &[], body: &bytes })
        .await;
    assert_eq!((put.status, put.json()["content"]["bytes"].as_u64()), (201, Some(SIZE as u64)));
    let at = "/v1/sessions/s/inputs/large.bin";
    let get = async |headers: &[(&str, &str)]| {
        server.request(TestRequest { method: "GET", path: at, key: Some("rex"), headers, body: b"" }).await
    };
    let whole = get(&[]).await;
    assert_eq!((whole.status, whole.header("content-length")), (200, Some(SIZE.to_string().as_str())));
    assert!(whole.body == bytes);
    let etag = whole.header("etag").unwrap().to_owned();
    let mut ranges = vec![(0, SIZE - 1), (CHUNK - 1, CHUNK), (CHUNK, CHUNK), (SIZE - 1, SIZE - 1), (5, 14)];
    ranges.extend((1..20).map(|number| {
        let first = number * 7_919_993 % SIZE;
        (first, (first + number * 104_729).min(SIZE - 1))
    }));
    for (first, last) in ranges {
        let range = format!("bytes={first}-{last}");
        let part = get(&[("range", &range), ("if-range", &etag)]).await;
        assert_eq!((part.status, part.body.len()), (206, last + 1 - first), "{range}");
        assert!(part.body == bytes[first..=last], "{range}");
        assert_eq!(part.header("content-length"), Some((last + 1 - first).to_string().as_str()));
        assert_eq!(
            part.header("content-range"),
            Some(format!("{}/{SIZE}", range.replace('=', " ")).as_str())
        );
    }
    let tail = get(&[("range", "bytes=-400")]).await;
    assert!(tail.status == 206 && tail.body == bytes[SIZE - 400..]);
    assert_eq!(get(&[("range", &format!("bytes={SIZE}-"))]).await.status, 416);
    let other = get(&[("range", "bytes=0-1"), ("if-range", "\"other\"")]).await;
    assert_eq!((other.status, other.body.len()), (200, SIZE));
    assert_eq!(server.get("foreign", at).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_downloaded_unchanged_and_in_ranges() {
    let settings = Settings { upload_bytes_max: 1_000, rate: None, ..Settings::default() };
    let server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let path = "/v1/sessions/s/artifacts?name=data.bin";
    let upload = |body| TestRequest { method: "POST", path, key: Some("ana"), headers: &[], body };
    let put = server.request(upload(&bytes)).await;
    assert_eq!((put.status, put.json()["content"]["bytes"].as_u64()), (201, Some(1_000)));
    let at = "/v1/sessions/s/artifacts/data.bin";
    let whole = server.get("rex", at).await;
    assert_eq!((whole.status, &whole.body), (200, &bytes));
    let etag = whole.header("etag").unwrap().to_owned();
    assert_eq!(etag, format!("\"{}\"", sapwood::core::BlobHash::of(&bytes)));
    assert!(whole.header("content-disposition").unwrap().starts_with("attachment"));
    assert!(whole.header("content-security-policy").unwrap().contains("sandbox"));
    assert_eq!(whole.header("x-content-type-options"), Some("nosniff"));

    let middle = [("range", "bytes=10-19")];
    let part = server
        .request(TestRequest { method: "GET", path: at, key: Some("ana"), headers: &middle, body: b"" })
        .await;
    assert_eq!((part.status, part.body.as_slice()), (206, &bytes[10..20]));
    assert_eq!(part.header("content-range"), Some("bytes 10-19/1000"));
    let beyond = [("range", "bytes=1000-")];
    let past = server
        .request(TestRequest { method: "GET", path: at, key: Some("ana"), headers: &beyond, body: b"" })
        .await;
    assert_eq!(past.status, 416);
    let known = [("if-none-match", etag.as_str())];
    let known = server
        .request(TestRequest { method: "GET", path: at, key: Some("ana"), headers: &known, body: b"" })
        .await;
    assert_eq!((known.status, known.body.len()), (304, 0));

    let over = server.request(upload(&[0; 1_001])).await;
    assert_eq!((over.status, over.code().as_str()), (413, "input.too_large"));
    assert!(over.json()["detail"].as_str().unwrap().contains("1000"));
    let second = server.request(upload(b"newer")).await;
    assert_eq!(second.json()["version"], 2);
    assert_eq!(server.get("ana", at).await.body, b"newer");
    assert_eq!(server.get("ana", "/v1/sessions/s/inputs").await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limited_caller_gets_a_retry_after() {
    let rate = Some(sapwood_server::Rate { per_second: 1, burst: 5 });
    let server = TestServer::open_with(Settings { rate, ..Settings::default() }).await;
    let mut last = server.get("ana", "/v1/agents").await;
    for _ in 0..6 {
        last = server.get("ana", "/v1/agents").await;
    }
    assert_eq!((last.status, last.code().as_str()), (429, "rate.limited"));
    assert!(last.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(server.get("bob", "/v1/agents").await.status, 200, "other callers are not limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_metrics_are_served() {
    let server = TestServer::open().await;
    let plain = |path| TestRequest { method: "GET", path, key: None, headers: &[], body: b"" };
    assert_eq!(server.request(plain("/healthz")).await.body, b"ok\n");
    assert_eq!(server.request(plain("/readyz")).await.status, 200);
    assert_eq!(server.request(plain("/metrics")).await.status, 401);
    let metrics = String::from_utf8(server.get("ana", "/metrics").await.body).unwrap();
    assert!(metrics.contains("sapwood_http_requests_total{status=\"2xx\"} 2"), "{metrics}");
    assert_eq!(server.request(plain("/openapi.json")).await.json()["openapi"], "3.1.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_is_applied_completely_or_not_at_all() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let refused = [
        ("ana", json!({ "title": "changed", "state": "created" }), 400),
        ("ana", json!({ "title": "changed", "thinking": "bananas" }), 400),
        ("ana", json!({ "title": "changed", "model": "m".repeat(1_000) }), 400),
        ("ana", json!({ "title": "", "model": "actor" }), 400),
        ("cole", json!({ "title": "changed", "state": "archived" }), 403),
        ("rex", json!({ "title": "changed" }), 403),
    ];
    let before = server.get("ana", "/v1/sessions/s").await.json();
    for (who, patch, status) in refused {
        let answer = server.send("PATCH", who, "/v1/sessions/s", &patch).await;
        assert_eq!(answer.status, status, "{patch}: {}", answer.json());
        assert_eq!(server.get("ana", "/v1/sessions/s").await.json(), before, "{patch}");
    }
    let all = json!({ "title": "changed", "model": "actor", "thinking": "low", "state": "archived" });
    let patched = server.send("PATCH", "ana", "/v1/sessions/s", &all).await.json();
    assert_eq!(
        (&patched["title"], &patched["model"], &patched["state"]),
        (&json!("changed"), &json!("actor"), &json!("archived"))
    );
    let again = json!({ "title": "back", "state": "active" });
    let patched = server.send("PATCH", "ana", "/v1/sessions/s", &again).await.json();
    assert_eq!((&patched["title"], &patched["state"]), (&json!("back"), &json!("active")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_supports_conditional_and_range_requests() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let path = "/v1/sessions/s/artifacts?name=a.txt";
    let put = TestRequest { method: "POST", path, key: Some("ana"), headers: &[], body: b"0123456789" };
    assert_eq!(server.request(put).await.status, 201);
    let get = TestRequest { method: "GET", path: "/v1/sessions/s/artifacts/a.txt", body: b"", ..put };
    let whole = server.request(get).await;
    let (etag, caching) = (whole.header("etag").unwrap().to_owned(), whole.header("cache-control").unwrap());
    let known = format!("\"other\", W/{etag}");
    for known in [etag.as_str(), known.as_str(), "*"] {
        let same = server.request(TestRequest { headers: &[("if-none-match", known)], ..get }).await;
        assert_eq!(
            (same.status, same.header("etag"), same.header("cache-control")),
            (304, Some(etag.as_str()), Some(caching))
        );
    }
    let past = server.request(TestRequest { headers: &[("range", "bytes=10-")], ..get }).await;
    assert_eq!((past.status, past.header("content-range")), (416, Some("bytes */10")));
    let unknown = format!("/v1/sessions/s/blobs/{}", "0".repeat(64));
    let unknown =
        server.request(TestRequest { path: &unknown, headers: &[("if-none-match", "*")], ..get }).await;
    assert_eq!(unknown.status, 404, "an unknown blob is not found, even with if-none-match");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_cannot_be_added_as_a_member() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let before = server.get("ana", "/v1/sessions/s/members").await.json();
    let answer =
        server.post("ana", "/v1/sessions/s/members", &json!({ "member": "ana", "role": "reader" })).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "input.invalid"));
    assert_eq!(server.get("ana", "/v1/sessions/s/members").await.json(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_replaced_only_by_metadata() {
    let server = TestServer::open().await;
    let made = server.post("ana", "/v1/conversations", &json!({ "metadata": { "a": "b" } })).await.json();
    let path = format!("/v1/conversations/{}", made["id"].as_str().unwrap());
    assert_eq!(server.post("ana", &path, &json!({})).await.status, 400);
    assert_eq!(server.get("ana", &path).await.json()["metadata"], json!({ "a": "b" }));
    assert_eq!(server.post("ana", &path, &json!({ "metadata": {} })).await.json()["metadata"], json!({}));
    let too_much = json!({ "model": "demo", "input": "hi", "top_p": 7 });
    assert_eq!(server.post("ana", "/v1/responses", &too_much).await.status, 400);
}

/// A store whose file was deleted accepts writes but loses them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_removed_store_is_not_ready_and_reveals_no_path() {
    let server = TestServer::open().await;
    let ready =
        || server.request(TestRequest { method: "GET", path: "/readyz", key: None, headers: &[], body: b"" });
    let began = std::time::Instant::now();
    for _ in 0..200 {
        assert_eq!(ready().await.status, 200);
    }
    let (file, away) = (server.dir.path().join("s.db"), server.dir.path().join("away.db"));
    std::fs::rename(&file, &away).unwrap();
    let mut answer = ready().await;
    while answer.status == 200 {
        assert!(began.elapsed() < crate::wire::WAIT_MAX, "the missing store was not noticed");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        answer = ready().await;
    }
    assert_eq!((answer.status, answer.code().as_str()), (503, "store.unreachable"));
    assert!(!String::from_utf8_lossy(&answer.body).contains("s.db"));
    std::fs::rename(&away, &file).unwrap();
    while ready().await.status != 200 {
        assert!(began.elapsed() < crate::wire::WAIT_MAX, "the restored store was not noticed");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let left: Vec<_> =
        std::fs::read_dir(server.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("tried")), "{left:?}");
}
