//! References in bodies and queries. A reference to another user's session, entry, blob or response gets exactly the
//! same response as a reference to a missing object. Every operation with a body or a query is in one of the two lists.

use serde_json::{Value, json};

use crate::harness::{DOCUMENT, TestRequest, TestServer};
use crate::wire::TestResponse;

/// Placeholder for the referenced id.
const ID: &str = "$ID";
/// A session that the caller owns.
const OWN: &str = "mine";

/// The kind of object that a request refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReferenceKind {
    Session,
    Entry,
    Blob,
    Response,
    Item,
}

/// An operation, its path, the request body, and the kind of object that the request refers to.
type ReferenceRow = (&'static str, &'static str, Value, ReferenceKind);

/// Operations whose bodies and queries refer to nothing that another user could own, or that only operators may call.
const WITHOUT_REFERENCES: [&str; 30] = [
    "place_hold",
    "set_retention",
    "run_retention",
    "get_tree",
    "erase_user",
    "add_memory",
    "answer_approval",
    "list_all_approvals",
    "create_answer_link",
    "submit_answer",
    "compact_session",
    "create_session",
    "edit_memory",
    "export_session",
    "fire_trigger",
    "follow_events",
    "get_feed",
    "get_response",
    "list_entries",
    "list_flows",
    "list_sessions",
    "patch_session",
    "set_skills",
    "share_session",
    "start_flow",
    "trim_session",
    "prune_session",
    "update_conversation",
    "upload_artifact",
    "upload_input",
];

fn rows() -> Vec<ReferenceRow> {
    use ReferenceKind::{Blob, Entry, Item, Response, Session};
    let none = Value::Null;
    let reference = json!([{ "type": "item_reference", "id": ID }]);
    let media = json!([{ "type": "media", "blob": ID, "mime": "text/plain", "bytes": 5 }]);
    vec![
        ("read_audit", "/v1/audit?session=$ID", none.clone(), Session),
        ("search_sessions", "/v1/search?q=one&session=$ID", none.clone(), Session),
        ("list_memories", "/v1/memory?session=$ID", none.clone(), Session),
        ("list_memories", "/v1/memory?q=office&session=$ID", none.clone(), Session),
        ("get_context", "/v1/sessions/mine/context?at=$ID", none.clone(), Entry),
        ("branch_session", "/v1/sessions/mine/branch", json!({ "entry": ID }), Entry),
        ("label_entry", "/v1/sessions/mine/label", json!({ "entry": ID, "text": "x" }), Entry),
        ("uncompact_session", "/v1/sessions/mine/uncompact", json!({ "entry": ID }), Entry),
        ("fork_session", "/v1/sessions/mine/fork", json!({ "at": ID }), Entry),
        ("make_graft", "/v1/sessions/mine/grafts", json!({ "source": ID }), Session),
        ("make_graft", "/v1/sessions/mine/grafts", json!({ "source": ID, "artifact": "notes.txt" }), Session),
        (
            "make_graft",
            "/v1/sessions/mine/grafts",
            json!({ "source": ID, "rounds": { "first": 1, "last": 1 } }),
            Session,
        ),
        ("inject_entries", "/v1/sessions/mine/entries", json!({ "role": "user", "content": media }), Blob),
        ("create_turn", "/v1/sessions/mine/turns", json!({ "input": media }), Blob),
        ("steer_turn", "/v1/sessions/hangs/turns/$TURN/steer", json!({ "input": media }), Blob),
        ("import_file", "/v1/import", json!("own file"), Blob),
        ("import_file", "/v1/import?dry_run=true", json!("own file"), Blob),
        ("create_response", "/v1/responses", json!({ "input": "hi", "conversation": ID }), Session),
        ("create_response", "/v1/responses", json!({ "input": "hi", "conversation": { "id": ID } }), Session),
        ("create_response", "/v1/responses", json!({ "input": "hi", "previous_response_id": ID }), Response),
        ("create_response", "/v1/responses", json!({ "input": reference }), Item),
        ("create_conversation", "/v1/conversations", json!({ "items": reference }), Item),
        ("create_items", "/v1/conversations/mine/items", json!({ "items": reference }), Item),
        ("list_items", "/v1/conversations/mine/items?after=$ID", none.clone(), Item),
        ("list_input_items", "/v1/responses/$OWN/input_items?after=$ID", none, Item),
    ]
}

#[test]
fn every_operation_with_a_body_or_a_query_is_in_one_of_the_lists() {
    let rows = rows();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            let is_query = |parameter: &Value| parameter["in"] == "query";
            let has_query = operation["parameters"].as_array().is_some_and(|all| all.iter().any(is_query));
            if has_query || operation.get("requestBody").is_some() {
                let is_known = WITHOUT_REFERENCES.contains(&id) != rows.iter().any(|row| row.0 == id);
                assert!(is_known, "{id} ({path}): add it to one of the lists");
            }
        }
    }
}

/// Objects of each kind that ana owns. `pair` also returns a similar id that does not exist.
struct TargetObjects {
    entry: String,
    blob: String,
    response: String,
    item: String,
}

impl TargetObjects {
    async fn of(server: &TestServer) -> Self {
        server.shared_session("anas-own").await;
        let req = TestRequest {
            method: "POST",
            path: "/v1/sessions/anas-own/artifacts?name=notes.txt",
            key: Some("ana"),
            headers: &[],
            body: b"notes",
        };
        let put = server.request(req).await.json();
        let asked = json!({ "input": "hello", "conversation": "anas-own" });
        let response = server.post("ana", "/v1/responses", &asked).await.json();
        let log = server.get("ana", "/v1/sessions/anas-own/entries?limit=100").await.json();
        let user_message =
            log["items"].as_array().unwrap().iter().find(|entry| entry["kind"] == "user_message");
        let items = server.get("ana", "/v1/conversations/anas-own/items").await.json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self {
            entry: text(&user_message.unwrap()["id"]),
            blob: text(&put["content"]["blob"]),
            response: text(&response["id"]),
            item: text(&items["last_id"]),
        }
    }

    fn pair(&self, kind: ReferenceKind) -> (String, String) {
        match kind {
            ReferenceKind::Session => ("anas-own".to_owned(), "no-bodys".to_owned()),
            ReferenceKind::Entry => (self.entry.clone(), "0197a000-0000-7000-8000-000000000000".to_owned()),
            ReferenceKind::Blob => (self.blob.clone(), "0".repeat(self.blob.len())),
            ReferenceKind::Response => (self.response.clone(), self.response.replace("anas-own", "no-bodys")),
            ReferenceKind::Item => (self.item.clone(), nonexistent_item(&self.item)),
        }
    }
}

/// Replaces the digits of an id, so that it refers to no object.
fn nonexistent_item(item: &str) -> String {
    let (kind, rest) = item.split_once('_').unwrap();
    let other = |char: char| if char.is_ascii_digit() { '7' } else { char };
    format!("{kind}_{}", rest.chars().map(other).collect::<String>())
}

/// A session file with one message that refers to a blob.
fn own_file(blob: &str) -> String {
    let header = json!({ "type": "session_header", "version": 2, "id": "brought", "timestamp": 1000 });
    let media = json!([{ "type": "media", "blob": blob, "mime": "text/plain", "bytes": 5 }]);
    let id = "0197a000-0000-7000-8000-000000000001";
    let entry = json!({ "type": "user_message", "id": id, "seq": 1, "parent_id": null, "timestamp": 1000,
        "by": "user:ana", "parts": media });
    format!("{header}\n{entry}\n")
}

/// Objects that the caller owns.
struct CallerObjects {
    response: String,
    /// A running turn.
    turn: String,
}

impl CallerObjects {
    async fn of(server: &TestServer, who: &str) -> Self {
        for session in [OWN, "hangs"] {
            server.post(who, "/v1/sessions", &json!({ "id": session })).await;
            server.add_message(who, session, "one").await;
        }
        let asked = json!({ "input": "hello", "conversation": OWN });
        let response = server.post(who, "/v1/responses", &asked).await.json();
        let turn =
            server.post(who, "/v1/sessions/hangs/turns", &json!({ "input": "please hang" })).await.json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self { response: text(&response["id"]), turn: text(&turn["turn"]) }
    }
}

async fn call(
    server: &TestServer,
    who: &str,
    row: &ReferenceRow,
    own: &CallerObjects,
    id: &str,
) -> TestResponse {
    let item = find_operation(row.0);
    let path = row.1.replace("$OWN", &own.response).replace("$TURN", &own.turn).replace(ID, id);
    let body = match &row.2 {
        Value::Null => String::new(),
        Value::String(_) => own_file(id),
        body => body.to_string().replace(ID, id),
    };
    let headers: &[(&str, &str)] =
        if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
    server
        .request(TestRequest { method: &item, path: &path, key: Some(who), headers, body: body.as_bytes() })
        .await
}

/// Returns the HTTP method of an operation.
fn find_operation(id: &str) -> String {
    let paths = DOCUMENT["paths"].as_object().unwrap().values();
    let methods = paths.flat_map(|item| item.as_object().unwrap());
    methods.into_iter().find(|(_, operation)| operation["operationId"] == id).unwrap().0.to_uppercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn references_to_another_users_data_look_like_missing_ones() {
    let server = TestServer::open().await;
    let targets = TargetObjects::of(&server).await;
    for who in ["bob", "foreign"] {
        let own = CallerObjects::of(&server, who).await;
        for row in rows() {
            let (existing, missing) = targets.pair(row.3);
            let expected = call(&server, who, &row, &own, &missing).await;
            let mut actual = call(&server, who, &row, &own, &existing).await;
            let message = format!("{} {} {} as {who}: {}", row.0, row.1, row.2, actual.json());
            actual.body = String::from_utf8(actual.body).unwrap().replace(&existing, &missing).into_bytes();
            assert_eq!((actual.status, actual.json()), (expected.status, expected.json()), "{message}");
            let is_list = row.2.is_null() && actual.json().to_string().contains("[]");
            let is_counted = row.1.contains("dry_run");
            assert!(actual.status >= 400 || is_list || is_counted, "{message}");
        }
    }
}
