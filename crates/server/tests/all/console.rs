//! Server features for the console: a page with a strict content security policy, cookie sign-in, list filters, token
//! counts, import and export.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Ask, House};

fn ask<'a>(method: &'a str, path: &'a str, headers: &'a [(&'a str, &'a str)], body: &'a [u8]) -> Ask<'a> {
    Ask { method, path, key: None, headers, body }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_public_and_may_only_run_its_own_scripts() {
    let house = House::open().await;
    let page = house.ask(ask("GET", "/", &[], b"")).await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(house.ask(ask("GET", "/assets/none.js", &[], b"")).await.code(), "route.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_becomes_a_cookie_that_only_our_own_page_can_use() {
    let house = House::open().await;
    let wrong = house.send("POST", "sapwood_wrong", "/v1/login", &json!({})).await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    let signed = house.send("POST", "ana", "/v1/login", &json!({})).await;
    assert_eq!(signed.json()["principal"], "user:ana");
    let set = signed.header("set-cookie").unwrap().to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/v1"), "{set}");
    let cookie = ("cookie", set.split(';').next().unwrap());
    let (own, json_type) = (("x-sapwood-csrf", "1"), ("content-type", "application/json"));

    assert_eq!(house.ask(ask("GET", "/v1/me", &[cookie], b"")).await.status, 200);
    let made = house.ask(ask("POST", "/v1/sessions", &[cookie, own, json_type], b"{\"id\":\"s\"}")).await;
    assert_eq!((made.status, made.json()["owner"].as_str()), (201, Some("user:ana")));
    let with_cookie = [cookie];
    let stream = ask("GET", "/v1/sessions/s/events", &with_cookie, b"");
    assert_eq!(crate::wire::open(house.addr, &house.bytes_of(stream)).await.0.status, 200);

    let strange: [&[(&str, &str)]; 4] = [
        &[cookie, json_type],
        &[cookie, own, json_type, ("origin", "https://evil.example")],
        &[cookie, own, json_type, ("sec-fetch-site", "cross-site")],
        &[cookie, own, json_type, ("sec-fetch-site", "same-site")],
    ];
    for headers in strange {
        let refused = house.ask(ask("POST", "/v1/sessions", headers, b"{}")).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "auth.origin"), "{headers:?}");
    }
    let left = house.ask(ask("DELETE", "/v1/login", &[cookie, own], b"")).await;
    assert!(left.header("set-cookie").unwrap().contains("Max-Age=0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_key_can_sign_in() {
    let house = House::open().await;
    let signed = house.send("POST", "ana-reads", "/v1/login", &json!({})).await;
    assert_eq!((signed.status, &signed.json()["may_write"]), (200, &json!(false)));
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_can_be_filtered_by_owner_agent_and_time() {
    let house = House::open().await;
    for (who, id, agent) in [("ana", "a1", None), ("ana", "a2", Some("default")), ("bob", "b1", None)] {
        let made = house.post(who, "/v1/sessions", &json!({ "id": id, "agent": agent })).await;
        assert_eq!(made.status, 201);
    }
    let all = house.get("operator", "/v1/sessions").await.json();
    assert_eq!(ids(&all).len(), 3);
    let of_bob = house.get("operator", "/v1/sessions?owner=bob&limit=1").await.json();
    assert_eq!(ids(&of_bob), ["b1"]);
    assert_eq!(ids(&house.get("operator", "/v1/sessions?agent=default").await.json()), ["a2"]);
    assert!(ids(&house.get("operator", "/v1/sessions?since=99999999999999").await.json()).is_empty());
    assert!(ids(&house.get("operator", "/v1/sessions?until=1").await.json()).is_empty());
    assert_eq!(
        ids(&house.get("operator", "/v1/sessions?since=1&owner=ana&agent=default").await.json()),
        ["a2"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_once_by_title_or_content() {
    let house = House::open().await;
    house.post("ana", "/v1/sessions", &json!({ "id": "a", "title": "Rivers of the north" })).await;
    house.post("ana", "/v1/sessions", &json!({ "id": "b" })).await;
    house.say("ana", "a", "the rivers are high").await;
    house.say("ana", "b", "hello").await;
    house.say("ana", "b", "rivers and lakes").await;
    let found = house.get("ana", "/v1/sessions?q=river*").await.json();
    assert_eq!(ids(&found), ["a", "b"], "title matches come first");
    assert_eq!(ids(&house.get("ana", "/v1/sessions?q=north").await.json()), ["a"]);
    assert!(ids(&house.get("bob", "/v1/sessions?q=north").await.json()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_returns_every_session_with_any_page_size() {
    let house = House::open().await;
    let mut expected = Vec::new();
    for number in 0..12 {
        let id = format!("s{number:02}");
        let title = (number % 3 == 0).then(|| format!("River {number}"));
        house.post("ana", "/v1/sessions", &json!({ "id": id, "title": title })).await;
        house.say("ana", &id, "hello").await;
        house.say("ana", &id, if number % 4 == 1 { "lakes" } else { "the river" }).await;
        house.say("ana", &id, "and the river again").await;
        expected.push(id);
    }
    house.post("bob", "/v1/sessions", &json!({ "id": "bobs", "title": "River" })).await;
    for limit in [1, 2, 5, 100] {
        let (mut cursor, mut seen) = (String::new(), BTreeSet::new());
        for page_number in 0.. {
            assert!(page_number < 100, "the search does not end");
            let path = format!("/v1/sessions?q=river&limit={limit}{cursor}");
            let page = house.get("ana", &path).await.json();
            assert!(ids(&page).len() <= limit);
            seen.extend(ids(&page).into_iter().map(str::to_owned));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={}", next.replace('|', "%7C").replace('^', "%5E"));
        }
        assert!(seen.iter().eq(&expected), "{limit}: {seen:?}");
    }
    let narrowed = house.get("ana", "/v1/sessions?q=river&title=s0").await.json();
    assert_eq!(ids(&narrowed).len(), 10, "{narrowed}");
    assert_eq!(house.get("ana", "/v1/sessions?q=river&cursor=nonsense").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_can_be_ordered_and_filtered_by_title() {
    let house = House::open().await;
    for (id, title) in [("a", "North"), ("b", "South"), ("c", "North by north")] {
        house.post("ana", "/v1/sessions", &json!({ "id": id, "title": title })).await;
    }
    assert_eq!(ids(&house.get("ana", "/v1/sessions?order=oldest").await.json()), ["a", "b", "c"]);
    assert_eq!(ids(&house.get("ana", "/v1/sessions?order=newest&title=north").await.json()), ["c", "a"]);
    let first = house.get("ana", "/v1/sessions?order=oldest&title=north&limit=1").await.json();
    assert_eq!(ids(&first), ["a"]);
    let cursor = first["next"].as_str().unwrap();
    let path = format!("/v1/sessions?order=oldest&title=north&limit=1&cursor={cursor}");
    let second = house.get("ana", &path).await.json();
    assert_eq!((ids(&second), &second["next"]), (vec!["c"], &Value::Null));
    assert_eq!(house.get("ana", "/v1/sessions?order=sideways").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn counted_context_tokens_are_the_sum_of_the_messages() {
    let house = House::open().await;
    house.shared_session("s").await;
    let counted = house.get("ana", "/v1/sessions/s/context?count=true").await.json();
    let each: Vec<u64> = counted["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(each.len(), 3);
    let system = counted["system_tokens"].as_u64().unwrap();
    assert_eq!(counted["tokens"].as_u64(), Some(system + each.iter().sum::<u64>()));
    let plain = house.get("ana", "/v1/sessions/s/context").await.json();
    assert!(plain["messages"][0].get("tokens").is_none());
}

/// Returns the bodies of one kind in a session's log.
async fn bodies(house: &House, key: &str, session: &str, kind: &str) -> Vec<Value> {
    let log = house.get(key, &format!("/v1/sessions/{session}/entries?limit=100")).await.json();
    let of_kind = log["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == kind);
    of_kind.map(|entry| entry["body"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_can_be_imported_again_and_grants_no_rights() {
    let house = House::open().await;
    house.shared_session("s").await;
    let file = house.post("ana", "/v1/sessions/s/export", &json!({ "format": "jsonl" })).await;
    assert!(file.header("content-disposition").unwrap().contains("attachment"));
    let frozen = bodies(&house, "ana", "s", "context_changed").await;
    assert!(frozen[0].get("agent").is_some(), "{frozen:?}");

    let import = |key| Ask {
        method: "POST",
        path: "/v1/import?name=s.jsonl",
        key: Some(key),
        headers: &[],
        body: &file.body,
    };
    let first = house.ask(import("foreign")).await.json()["items"][0].clone();
    assert_eq!(
        (first["session"].as_str(), first["problems"].as_array().unwrap().len()),
        (Some("s"), 0),
        "{first}"
    );
    let again = house.ask(import("foreign")).await.json()["items"][0].clone();
    assert_eq!((again["added"].as_u64(), &again["skipped"]), (Some(0), &first["added"]), "{again}");
    let taken = bodies(&house, "foreign", "s", "context_changed").await;
    assert!(taken[0].get("agent").is_none() && taken[0].get("cwd").is_none(), "{taken:?}");
    assert_eq!(
        house.get("foreign", "/v1/sessions/s/members").await.json()["items"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_exported_as_pi_or_operator_file_can_be_imported_again() {
    let house = House::open().await;
    house.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    house.say("ana", "s", "the rivers are high").await;
    for (format, head) in [("pi", "session"), ("operator", "session_header")] {
        let file = house.post("ana", "/v1/sessions/s/export", &json!({ "format": format })).await;
        let first: Value =
            serde_json::from_slice(file.body.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
        assert_eq!((file.status, &first["type"]), (200, &json!(head)));
        let path = format!("/v1/import?name=s.jsonl&from={format}");
        let ask = Ask { method: "POST", path: &path, key: Some("foreign"), headers: &[], body: &file.body };
        let taken = house.ask(ask).await.json()["items"][0].clone();
        let path = format!("/v1/sessions/{}/context", taken["session"].as_str().unwrap());
        let context = house.get("foreign", &path).await.json();
        assert_eq!(context["messages"][0]["text"], "the rivers are high", "{format}: {taken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_drops_agents_with_full_file_system_access() {
    let house = House::open().await;
    house.shared_session("s").await;
    let file = house.post("ana", "/v1/sessions/s/export", &json!({ "format": "jsonl" })).await.body;
    let text = String::from_utf8(file).unwrap();
    assert!(text.contains("\"sandboxed\""), "the frozen agent contains its fs_scope");
    let armed = text.replace("\"sandboxed\"", "\"full\"").replace("\"id\":\"s\"", "\"id\":\"armed\"");
    let ask = Ask {
        method: "POST",
        path: "/v1/import",
        key: Some("operator"),
        headers: &[],
        body: armed.as_bytes(),
    };
    assert_eq!(house.ask(ask).await.json()["items"][0]["session"], "armed");
    let taken = bodies(&house, "operator", "armed", "context_changed").await;
    assert!(taken[0].get("agent").is_none(), "{taken:?}");
}
