//! Server features for the console: a page with a strict content security policy, cookie sign-in, list filters, token
//! counts, import and export.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{TestRequest, TestServer};

fn req<'a>(
    method: &'a str,
    path: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
) -> TestRequest<'a> {
    TestRequest { method, path, key: None, headers, body }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_public_and_may_only_run_its_own_scripts() {
    let server = TestServer::open().await;
    let page = server.request(req("GET", "/", &[], b"")).await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(server.request(req("GET", "/assets/none.js", &[], b"")).await.code(), "route.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_becomes_a_cookie_that_only_our_own_page_can_use() {
    let server = TestServer::open().await;
    let wrong = server.send("POST", "sapwood_wrong", "/v1/login", &json!({})).await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    let signed = server.send("POST", "ana", "/v1/login", &json!({})).await;
    assert_eq!(signed.json()["principal"], "user:ana");
    let set = signed.header("set-cookie").unwrap().to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/v1"), "{set}");
    let cookie = ("cookie", set.split(';').next().unwrap());
    let (own, json_type) = (("x-sapwood-csrf", "1"), ("content-type", "application/json"));

    assert_eq!(server.request(req("GET", "/v1/me", &[cookie], b"")).await.status, 200);
    let made =
        server.request(req("POST", "/v1/sessions", &[cookie, own, json_type], b"{\"id\":\"s\"}")).await;
    assert_eq!((made.status, made.json()["owner"].as_str()), (201, Some("user:ana")));
    let with_cookie = [cookie];
    let stream = req("GET", "/v1/sessions/s/events", &with_cookie, b"");
    assert_eq!(crate::wire::open(server.addr, &server.bytes_of(stream)).await.0.status, 200);

    let rejected: [&[(&str, &str)]; 4] = [
        &[cookie, json_type],
        &[cookie, own, json_type, ("origin", "https://evil.example")],
        &[cookie, own, json_type, ("sec-fetch-site", "cross-site")],
        &[cookie, own, json_type, ("sec-fetch-site", "same-site")],
    ];
    for headers in rejected {
        let refused = server.request(req("POST", "/v1/sessions", headers, b"{}")).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "auth.origin"), "{headers:?}");
    }
    let signed_out = server.request(req("DELETE", "/v1/login", &[cookie, own], b"")).await;
    assert!(signed_out.header("set-cookie").unwrap().contains("Max-Age=0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_key_can_sign_in() {
    let server = TestServer::open().await;
    let signed = server.send("POST", "ana-reads", "/v1/login", &json!({})).await;
    assert_eq!((signed.status, &signed.json()["may_write"]), (200, &json!(false)));
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_can_be_filtered_by_owner_agent_and_time() {
    let server = TestServer::open().await;
    for (who, id, agent) in [("ana", "a1", None), ("ana", "a2", Some("default")), ("bob", "b1", None)] {
        let made = server.post(who, "/v1/sessions", &json!({ "id": id, "agent": agent })).await;
        assert_eq!(made.status, 201);
    }
    let all = server.get("operator", "/v1/sessions").await.json();
    assert_eq!(ids(&all).len(), 3);
    let of_bob = server.get("operator", "/v1/sessions?owner=bob&limit=1").await.json();
    assert_eq!(ids(&of_bob), ["b1"]);
    assert_eq!(ids(&server.get("operator", "/v1/sessions?agent=default").await.json()), ["a2"]);
    assert!(ids(&server.get("operator", "/v1/sessions?since=99999999999999").await.json()).is_empty());
    assert!(ids(&server.get("operator", "/v1/sessions?until=1").await.json()).is_empty());
    assert_eq!(
        ids(&server.get("operator", "/v1/sessions?since=1&owner=ana&agent=default").await.json()),
        ["a2"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_once_by_title_or_content() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "a", "title": "Rivers of the north" })).await;
    server.post("ana", "/v1/sessions", &json!({ "id": "b" })).await;
    server.add_message("ana", "a", "the rivers are high").await;
    server.add_message("ana", "b", "hello").await;
    server.add_message("ana", "b", "rivers and lakes").await;
    let found = server.get("ana", "/v1/sessions?q=river*").await.json();
    assert_eq!(ids(&found), ["a", "b"], "title matches come first");
    assert_eq!(ids(&server.get("ana", "/v1/sessions?q=north").await.json()), ["a"]);
    assert!(ids(&server.get("bob", "/v1/sessions?q=north").await.json()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_returns_every_session_with_any_page_size() {
    let server = TestServer::open().await;
    let mut expected = Vec::new();
    for number in 0..12 {
        let id = format!("s{number:02}");
        let title = (number % 3 == 0).then(|| format!("River {number}"));
        server.post("ana", "/v1/sessions", &json!({ "id": id, "title": title })).await;
        server.add_message("ana", &id, "hello").await;
        server.add_message("ana", &id, if number % 4 == 1 { "lakes" } else { "the river" }).await;
        server.add_message("ana", &id, "and the river again").await;
        expected.push(id);
    }
    server.post("bob", "/v1/sessions", &json!({ "id": "bobs", "title": "River" })).await;
    for limit in [1, 2, 5, 100] {
        let (mut cursor, mut seen) = (String::new(), BTreeSet::new());
        for page_number in 0.. {
            assert!(page_number < 100, "the search does not end");
            let path = format!("/v1/sessions?q=river&limit={limit}{cursor}");
            let page = server.get("ana", &path).await.json();
            assert!(ids(&page).len() <= limit);
            seen.extend(ids(&page).into_iter().map(str::to_owned));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={}", next.replace('|', "%7C").replace('^', "%5E"));
        }
        assert!(seen.iter().eq(&expected), "{limit}: {seen:?}");
    }
    let narrowed = server.get("ana", "/v1/sessions?q=river&title=s0").await.json();
    assert_eq!(ids(&narrowed).len(), 10, "{narrowed}");
    assert_eq!(server.get("ana", "/v1/sessions?q=river&cursor=nonsense").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_can_be_ordered_and_filtered_by_title() {
    let server = TestServer::open().await;
    for (id, title) in [("a", "North"), ("b", "South"), ("c", "North by north")] {
        server.post("ana", "/v1/sessions", &json!({ "id": id, "title": title })).await;
    }
    assert_eq!(ids(&server.get("ana", "/v1/sessions?order=oldest").await.json()), ["a", "b", "c"]);
    assert_eq!(ids(&server.get("ana", "/v1/sessions?order=newest&title=north").await.json()), ["c", "a"]);
    let first = server.get("ana", "/v1/sessions?order=oldest&title=north&limit=1").await.json();
    assert_eq!(ids(&first), ["a"]);
    let cursor = first["next"].as_str().unwrap();
    let path = format!("/v1/sessions?order=oldest&title=north&limit=1&cursor={cursor}");
    let second = server.get("ana", &path).await.json();
    assert_eq!((ids(&second), &second["next"]), (vec!["c"], &Value::Null));
    assert_eq!(server.get("ana", "/v1/sessions?order=sideways").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn counted_context_tokens_are_the_sum_of_the_messages() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let counted = server.get("ana", "/v1/sessions/s/context?count=true").await.json();
    let each: Vec<u64> = counted["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(each.len(), 3);
    let system = counted["system_tokens"].as_u64().unwrap();
    assert_eq!(counted["tokens"].as_u64(), Some(system + each.iter().sum::<u64>()));
    let plain = server.get("ana", "/v1/sessions/s/context").await.json();
    assert!(plain["messages"][0].get("tokens").is_none());
}

/// Returns the bodies of one kind in a session's log.
async fn bodies(server: &TestServer, key: &str, session: &str, kind: &str) -> Vec<Value> {
    let log = server.get(key, &format!("/v1/sessions/{session}/entries?limit=100")).await.json();
    let of_kind = log["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == kind);
    of_kind.map(|entry| entry["body"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_can_be_imported_again_and_grants_no_rights() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = server.post("ana", "/v1/sessions/s/export", &json!({ "format": "jsonl" })).await;
    assert!(file.header("content-disposition").unwrap().contains("attachment"));
    let frozen = bodies(&server, "ana", "s", "configured").await;
    assert!(frozen[0].get("agent").is_some(), "{frozen:?}");

    let import = |key| TestRequest {
        method: "POST",
        path: "/v1/import?name=s.jsonl",
        key: Some(key),
        headers: &[],
        body: &file.body,
    };
    let first = server.request(import("foreign")).await.json()["items"][0].clone();
    assert_eq!(
        (first["session"].as_str(), first["problems"].as_array().unwrap().len()),
        (Some("s"), 0),
        "{first}"
    );
    let again = server.request(import("foreign")).await.json()["items"][0].clone();
    assert_eq!((again["added"].as_u64(), &again["skipped"]), (Some(0), &first["added"]), "{again}");
    let imported = bodies(&server, "foreign", "s", "configured").await;
    assert_eq!(imported[0]["agent"], frozen[0]["agent"], "the agent is kept as information");
    assert_eq!(
        server.get("foreign", "/v1/sessions/s/members").await.json()["items"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_exported_as_pi_or_operator_file_can_be_imported_again() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    server.add_message("ana", "s", "the rivers are high").await;
    for (format, head) in [("pi", "session"), ("operator", "session_header")] {
        let file = server.post("ana", "/v1/sessions/s/export", &json!({ "format": format })).await;
        let first: Value =
            serde_json::from_slice(file.body.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
        assert_eq!((file.status, &first["type"]), (200, &json!(head)));
        let path = format!("/v1/import?name=s.jsonl&from={format}");
        let req =
            TestRequest { method: "POST", path: &path, key: Some("foreign"), headers: &[], body: &file.body };
        let imported = server.request(req).await.json()["items"][0].clone();
        let path = format!("/v1/sessions/{}/context", imported["session"].as_str().unwrap());
        let context = server.get("foreign", &path).await.json();
        assert_eq!(context["messages"][0]["text"], "the rivers are high", "{format}: {imported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_agent_with_full_file_system_access_is_only_information() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = server.post("ana", "/v1/sessions/s/export", &json!({ "format": "jsonl" })).await.body;
    let text = String::from_utf8(file).unwrap();
    assert!(text.contains("\"sandboxed\""), "the frozen agent contains its fs_scope");
    let armed = text.replace("\"sandboxed\"", "\"full\"").replace("\"id\":\"s\"", "\"id\":\"armed\"");
    let req = TestRequest {
        method: "POST",
        path: "/v1/import",
        key: Some("operator"),
        headers: &[],
        body: armed.as_bytes(),
    };
    assert_eq!(server.request(req).await.json()["items"][0]["session"], "armed");
    let begun = server.post("operator", "/v1/sessions/armed/turns", &json!({ "input": "hi" })).await;
    assert!(begun.json()["notice"].as_str().unwrap().contains("imported"), "{begun:?}");
    let configured = bodies(&server, "operator", "armed", "configured").await;
    let scopes: Vec<&Value> = configured.iter().map(|body| &body["agent"]["fs_scope"]).collect();
    assert_eq!(scopes, [&json!("full"), &json!("sandboxed")], "the turn runs with the default agent");
}
