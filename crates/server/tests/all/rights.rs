//! Calls every route of the OpenAPI document with every kind of caller: without a key, with a wrong key, from another
//! tenant, as another user, a reader, a collaborator, the owner with a read-only key, and the owner.

use serde_json::{Value, json};

use crate::harness::{DOCUMENT, TestRequest, TestServer};
use crate::wire::TestResponse;

/// The right that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRight {
    /// Any valid key.
    Key,
    Read,
    Write,
    Own,
}

/// An operation, the right it requires, the request body, and the status for an authorized caller.
pub type RouteRow = (&'static str, RequiredRight, Value, u16);

fn route_table() -> Vec<RouteRow> {
    [session_routes(), other_routes()].concat()
}

/// Routes for sessions, turns and flows.
fn session_routes() -> Vec<RouteRow> {
    use RequiredRight::{Key, Own, Read, Write};
    let none = Value::Null;
    vec![
        ("list_sessions", Key, none.clone(), 200),
        ("create_session", Key, json!({}), 201),
        ("get_session", Read, none.clone(), 200),
        ("get_length", Read, none.clone(), 200),
        ("check_session", Key, none.clone(), 200),
        ("patch_session", Write, json!({ "title": "T" }), 200),
        ("erase_session", Own, none.clone(), 204),
        ("close_session", Write, none.clone(), 200),
        ("archive_session", Own, none.clone(), 200),
        ("list_entries", Read, none.clone(), 200),
        ("inject_entries", Write, json!({ "role": "user", "content": "four" }), 201),
        ("get_context", Read, none.clone(), 200),
        ("get_tree", Read, none.clone(), 200),
        ("get_feed", Read, none.clone(), 200),
        ("get_ledger", Read, none.clone(), 200),
        ("get_usage", Read, none.clone(), 200),
        ("get_archives", Read, none.clone(), 200),
        ("get_ancestry", Read, none.clone(), 200),
        ("branch_session", Write, json!({ "entry": 3 }), 200),
        ("fork_session", Write, json!({}), 201),
        ("label_entry", Write, json!({ "entry": 3, "text": "here" }), 200),
        ("reset_session", Write, none.clone(), 200),
        ("trim_session", Write, json!({ "keep_last": 1 }), 200),
        ("prune_session", Write, json!({ "inactive_for_ms": 0, "keep_last": 1 }), 200),
        ("compact_session", Write, json!({ "keep_last": 1, "force": true }), 200),
        ("uncompact_session", Write, json!({}), 200),
        ("create_turn", Write, json!({ "input": "hello" }), 202),
        ("get_turn", Read, none.clone(), 200),
        ("cancel_turn", Write, none.clone(), 202),
        ("steer_turn", Write, json!({ "input": "more" }), 202),
        ("resume_session", Write, none.clone(), 202),
        ("list_approvals", Read, none.clone(), 200),
        ("list_all_approvals", Key, none.clone(), 200),
        ("create_answer_link", Write, json!({}), 201),
        ("answer_approval", Write, json!({ "answer": "approved" }), 202),
        ("list_flows", Key, none.clone(), 200),
        ("start_flow", Key, json!({ "flow": one_node_flow("hello"), "input": "x" }), 202),
        ("get_flow", Read, none.clone(), 200),
        ("resume_flow", Write, none.clone(), 202),
        ("cancel_flow", Write, none.clone(), 202),
        ("follow_events", Read, none.clone(), 200),
        ("open_socket", Read, none.clone(), 400),
        ("list_artifacts", Read, none.clone(), 200),
        ("upload_artifact", Write, json!("bytes"), 201),
        ("download_artifact", Read, none.clone(), 200),
        ("list_inputs", Read, none.clone(), 200),
        ("upload_input", Write, json!("bytes"), 201),
        ("download_input", Read, none.clone(), 200),
        ("export_session", Read, json!({ "format": "workflow" }), 200),
        ("list_members", Read, none.clone(), 200),
        ("share_session", Own, json!({ "member": "bob", "role": "reader" }), 200),
        ("search_sessions", Key, none.clone(), 200),
    ]
}

/// Routes for everything else, including the OpenAI routes.
fn other_routes() -> Vec<RouteRow> {
    use RequiredRight::{Key, Own, Read, Write};
    let none = Value::Null;
    vec![
        ("read_audit", Key, none.clone(), 200),
        ("list_memories", Key, none.clone(), 200),
        ("add_memory", Key, json!({ "text": "The office is in Bern" }), 201),
        ("get_memory", Key, none.clone(), 200),
        ("edit_memory", Key, json!({ "kind": "fact" }), 200),
        ("forget_memory", Key, none.clone(), 204),
        ("learn_session", Own, none.clone(), 200),
        ("list_grafts", Read, none.clone(), 200),
        ("make_graft", Write, json!({ "source": "graft-source" }), 201),
        ("get_graft", Read, none.clone(), 200),
        ("get_digest", Read, none.clone(), 200),
        ("get_pressure", Read, none.clone(), 200),
        ("get_timeline", Read, none.clone(), 200),
        ("download_blob", Read, none.clone(), 200),
        ("import_file", Key, json!([]), 200),
        ("get_me", Key, none.clone(), 200),
        ("sign_in", Key, none.clone(), 200),
        ("sign_out", Key, none.clone(), 204),
        ("list_agents", Key, none.clone(), 200),
        ("get_agent", Key, none.clone(), 200),
        ("list_skills", Key, none.clone(), 200),
        ("get_skills", Read, none.clone(), 200),
        ("set_skills", Write, json!({ "active": [] }), 200),
        ("get_user_data", Key, none.clone(), 403),
        ("erase_user", Key, json!({}), 403),
        ("list_holds", Key, none.clone(), 403),
        ("place_hold", Key, json!({ "target": "user:bob" }), 403),
        ("release_hold", Key, none.clone(), 403),
        ("get_retention", Key, none.clone(), 200),
        ("set_retention", Key, json!({ "days": 30, "notice_days": 7 }), 403),
        ("remove_retention", Key, none.clone(), 403),
        ("run_retention", Key, json!({}), 403),
        ("list_triggers", Key, none.clone(), 200),
        ("fire_trigger", Key, json!({}), 404),
        ("create_conversation", Key, json!({}), 200),
        ("get_conversation", Read, none.clone(), 200),
        ("update_conversation", Write, json!({ "metadata": { "a": "b" } }), 200),
        ("delete_conversation", Own, none.clone(), 200),
        ("list_items", Read, none.clone(), 200),
        ("create_items", Write, json!({ "items": [{ "role": "user", "content": "four" }] }), 200),
        ("get_item", Read, none.clone(), 200),
        ("delete_item", Write, none.clone(), 200),
        ("create_response", Key, json!({ "input": "hello" }), 200),
        ("get_response", Read, none.clone(), 200),
        ("delete_response", Write, none.clone(), 200),
        ("cancel_response", Write, none.clone(), 200),
        ("list_input_items", Read, none.clone(), 200),
    ]
}

/// A flow with one agent node and this prompt.
pub fn one_node_flow(prompt: &str) -> Value {
    let nodes = json!([
        { "id": "input", "type": "input" },
        { "id": "work", "type": "agent", "agent_ref": "default", "prompt_template": prompt },
        { "id": "output", "type": "output" },
    ]);
    let edges = json!([{ "from": "input", "to": "work" }, { "from": "work", "to": "output" }]);
    json!({ "schema_version": "1.0", "workflow": { "id": "small", "nodes": nodes, "edges": edges } })
}

pub struct Route {
    pub method: String,
    pub template: String,
    pub row: RouteRow,
}

/// Returns the routes of the document. Fails for a route that is missing in the table.
pub fn routes() -> Vec<Route> {
    let mut routes = Vec::new();
    for (template, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            if !template.starts_with("/v1") {
                continue;
            }
            let row = route_table().into_iter().find(|row| row.0 == id);
            let row = row
                .unwrap_or_else(|| panic!("{id} is missing in the table: add it with the right it requires"));
            routes.push(Route { method: method.to_uppercase(), template: template.clone(), row });
        }
    }
    assert_eq!(routes.len(), route_table().len(), "the table has a row without a route");
    routes
}

/// Prepares a session for the route. Returns the object id (such as a turn id) and the approval id for the path.
pub async fn prepare(server: &TestServer, route: &Route, session: &str) -> (String, String) {
    server.shared_session(session).await;
    let base = format!("/v1/sessions/{session}");
    let mut names = ("0197a000-0000-7000-8000-000000000000".to_owned(), format!("{session}~none"));
    match route.row.0 {
        "uncompact_session" => {
            let done = server
                .post("ana", &format!("{base}/compact"), &json!({ "keep_last": 1, "force": true }))
                .await;
            assert!(!done.json()["entry"].is_null(), "{:?}", done.json());
        }
        "download_artifact" | "download_input" | "download_blob" => {
            let noun = if route.row.0 == "download_input" { "inputs" } else { "artifacts" };
            let path = format!("{base}/{noun}?name=notes.txt");
            let headers = [("content-type", "text/plain")];
            let req = TestRequest {
                method: "POST",
                path: &path,
                key: Some("ana"),
                headers: &headers,
                body: b"notes",
            };
            let put = server.request(req).await;
            assert_eq!(put.status, 201);
            if route.row.0 == "download_blob" {
                names.0 = put.json()["content"]["blob"].as_str().unwrap().to_owned();
            }
        }
        "get_turn" | "cancel_turn" | "steer_turn" => {
            let begun =
                server.post("ana", &format!("{base}/turns"), &json!({ "input": "please hang" })).await;
            names.0 = begun.json()["turn"].as_str().unwrap().to_owned();
        }
        "get_flow" | "resume_flow" | "cancel_flow" => share_run(server, route.row.0, session).await,
        "get_response" | "delete_response" | "cancel_response" | "list_input_items" => {
            let asked = json!({ "input": "please hang", "conversation": session, "background": true });
            let begun = server.post("ana", "/v1/responses", &asked).await;
            names.0 = begun.json()["id"].as_str().unwrap().to_owned();
        }
        "get_item" | "delete_item" => {
            let items = server.get("ana", &format!("/v1/conversations/{session}/items")).await;
            names.0 = items.json()["last_id"].as_str().unwrap().to_owned();
        }
        "make_graft" | "get_graft" => {
            if server.get("ana", "/v1/sessions/graft-source").await.status == 404 {
                server.shared_session("graft-source").await;
                let answer = json!({ "role": "assistant", "content": "yes" });
                let added = server.post("ana", "/v1/sessions/graft-source/entries", &answer).await;
                assert_eq!(added.status, 201);
            }
            let made =
                server.post("ana", &format!("{base}/grafts"), &json!({ "source": "graft-source" })).await;
            names.0 = made.json()["seq"].to_string();
        }
        "answer_approval" | "create_answer_link" => {
            server.post("ana", &format!("{base}/turns"), &json!({ "input": "please ask" })).await;
            names.1 = wait_for_approval(server, session).await;
        }
        _ => {}
    }
    names
}

/// Starts a flow run and shares it with the same members. The run for `cancel_flow` hangs.
async fn share_run(server: &TestServer, route: &str, session: &str) {
    let prompt = if route == "cancel_flow" { "please hang" } else { "hello" };
    let new = json!({ "id": session, "flow": one_node_flow(prompt) });
    assert_eq!(server.post("ana", "/v1/flows", &new).await.status, 202);
    for (member, role) in [("rex", "reader"), ("cole", "collaborator")] {
        let share = json!({ "member": member, "role": role });
        let shared = server.post("ana", &format!("/v1/sessions/flow-{session}/members"), &share).await;
        assert_eq!(shared.status, 200, "{:?}", shared.json());
    }
    if route == "resume_flow" {
        for _ in 0..crate::wire::POLLS_MAX {
            let run = server.get("ana", &format!("/v1/flows/flow-{session}")).await.json();
            if run["status"] == "completed" {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the run has not completed");
    }
}

pub async fn wait_for_approval(server: &TestServer, session: &str) -> String {
    for _ in 0..crate::wire::POLLS_MAX {
        let waiting = server.get("ana", &format!("/v1/sessions/{session}/approvals")).await;
        if let Some(approval) = waiting.json()["items"][0]["approval"].as_str() {
            return approval.to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the turn did not request an approval");
}

impl Route {
    pub fn path(&self, session: &str, turn: &str, approval: &str) -> String {
        let path = self.template.replace("{session}", session).replace("{conversation}", session);
        let path = path.replace("{turn}", turn).replace("{response}", turn).replace("{item}", turn);
        let path =
            path.replace("{approval}", approval).replace("{name}", "notes.txt").replace("{agent}", "default");
        let path = path.replace("{blob}", turn).replace("{user}", "bob").replace("{target}", "user:bob");
        let path = path.replace("{run}", &format!("flow-{session}"));
        let path = path.replace("{graft}", turn).replace("{memory}", "0197a000-0000-7000-8000-000000000000");
        match self.row.0 {
            "search_sessions" => path + "?q=one",
            "upload_artifact" | "upload_input" => path + "?name=notes.txt",
            _ => path,
        }
    }

    async fn call(&self, server: &TestServer, key: Option<&str>, path: &str) -> TestResponse {
        let body = if self.row.2.is_null() { String::new() } else { self.row.2.to_string() };
        let headers: &[(&str, &str)] =
            if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
        let req = TestRequest { method: &self.method, path, key, headers, body: body.as_bytes() };
        if self.row.0 == "follow_events" {
            let head = crate::wire::open(server.addr, &server.bytes_of(req)).await.0;
            if head.status == 200 {
                return head;
            }
        }
        server.request(req).await
    }
}

fn check(route: &Route, who: &str, answer: &TestResponse, status: u16, code: &str) {
    let found = (answer.status, answer.code());
    let expected = (status, code.to_owned());
    assert_eq!(found, expected, "{} {} as {who}: {}", route.method, route.template, answer.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_rejects_missing_and_invalid_keys() {
    let mut server = TestServer::open().await;
    let revoked = server.add_key("revoked", "local", "ana", &[], None).await;
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    let now = sapwood::core::TimestampMs(2);
    server.engine.store().revoke_key(&scope, &revoked, now).await.unwrap();
    server.shared_session("s").await;
    for route in routes() {
        let path = route.path("s", "t", "s~a");
        check(&route, "no key", &route.call(&server, None, &path).await, 401, "auth.required");
        for who in ["sapwood_wrong", "eyJhbGciOiJub25lIn0.e30.", "expired", "revoked"] {
            check(&route, who, &route.call(&server, Some(who), &path).await, 401, "auth.invalid");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_access_looks_exactly_like_a_missing_one() {
    let server = TestServer::open().await;
    for route in routes().into_iter().filter(|route| route.row.1 != RequiredRight::Key) {
        let session = format!("there-{}", route.row.0);
        let (turn, approval) = prepare(&server, &route, &session).await;
        let existing = route.path(&session, &turn, &approval);
        let missing = existing.replace("there-", "never-");
        for who in ["foreign", "bob"] {
            let mut actual = route.call(&server, Some(who), &existing).await;
            let expected = route.call(&server, Some(who), &missing).await;
            assert_eq!(actual.status, 404, "{} {} as {who}: {}", route.method, route.template, actual.json());
            actual.body = String::from_utf8(actual.body).unwrap().replace("there-", "never-").into_bytes();
            assert_eq!(actual.json(), expected.json());
            let names = |answer: &TestResponse| -> Vec<String> {
                answer.headers.iter().map(|(name, _)| name.clone()).collect()
            };
            assert_eq!((actual.status, names(&actual)), (expected.status, names(&expected)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_exactly_its_rights() {
    let server = TestServer::open().await;
    for route in routes().into_iter().filter(|route| route.row.1 != RequiredRight::Key) {
        for (who, role) in [("rex", 1), ("cole", 2), ("ana", 3)] {
            let session = format!("{who}-{}", route.row.0);
            let (turn, approval) = prepare(&server, &route, &session).await;
            let path = route.path(&session, &turn, &approval);
            let needed = match route.row.1 {
                RequiredRight::Key => 0,
                RequiredRight::Read => 1,
                RequiredRight::Write => 2,
                RequiredRight::Own => 3,
            };
            let answer = route.call(&server, Some(who), &path).await;
            if role >= needed {
                let message = format!("{} {} as {who}: {}", route.method, route.template, answer.json());
                assert_eq!(answer.status, route.row.3, "{message}");
            } else {
                check(&route, who, &answer, 403, "session.denied");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_key_changes_nothing_even_for_the_owner() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    // Signing in and out only changes the browser's cookie.
    let changes = |route: &Route| route.method != "GET" && !route.template.ends_with("/login");
    for route in routes().into_iter().filter(changes) {
        let answer = route.call(&server, Some("ana-reads"), &route.path("s", "t", "s~a")).await;
        check(&route, "a read-only key", &answer, 403, "key.scope");
    }
    assert_eq!(server.get("ana-reads", "/v1/sessions/s/context").await.status, 200);
}

/// Routes that write no audit line in this test, and the reason.
const NOT_AUDITED: &[(&str, &str)] = &[
    ("learn_session", "memories have their own audit lines, and nothing is learned from this session"),
    ("resume_session", "the session has no turn to resume"),
    ("resume_flow", "the run has ended"),
    ("set_skills", "the list does not change"),
];

/// Every route that changes a session writes an audit line by the caller. Generated from the OpenAPI document, so a new
/// route without an audit line fails here.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_audited_on_every_route() {
    let server = TestServer::open().await;
    let changes = |route: &Route| {
        let is_change =
            matches!(route.row.1, RequiredRight::Write | RequiredRight::Own) && route.method != "GET";
        is_change && !NOT_AUDITED.iter().any(|(name, _)| *name == route.row.0)
    };
    for route in routes().into_iter().filter(changes) {
        let session = format!("changed-{}", route.row.0);
        let (turn, approval) = prepare(&server, &route, &session).await;
        let path = route.path(&session, &turn, &approval);
        let (who, by) =
            if route.row.1 == RequiredRight::Own { ("ana", "user:ana") } else { ("cole", "user:cole") };
        let changed = if path.contains("/flows/") { format!("flow-{session}") } else { session.clone() };
        let count = async || {
            let audit = server.get("operator", "/v1/audit?limit=1000").await.json();
            let lines = audit["items"].as_array().unwrap().clone();
            let is_ours = |line: &&Value| {
                let names_session =
                    line["session"] == *changed || line["detail"] == *format!("from {changed}");
                names_session && line["by"] == by && line["action"] != "read"
            };
            lines.iter().filter(is_ours).count()
        };
        let before = count().await;
        let answer = route.call(&server, Some(who), &path).await;
        assert_eq!(answer.status, route.row.3, "{path} as {who}: {}", answer.json());
        assert!(count().await > before, "{} {} by {who} has no audit line", route.method, route.template);
    }
}

/// Following a session live opens it: over server-sent events, as the console does, and over a WebSocket.
#[tokio::test(flavor = "multi_thread")]
async fn openings_are_audited_for_the_owner_too() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    for who in ["ana", "ana", "rex"] {
        let req = TestRequest {
            method: "GET",
            path: "/v1/sessions/s/events",
            key: Some(who),
            headers: &[],
            body: b"",
        };
        assert_eq!(crate::wire::open(server.addr, &server.bytes_of(req)).await.0.status, 200);
    }
    let response = json!({ "input": "hello", "conversation": "s" });
    assert_eq!(server.post("cole", "/v1/responses", &response).await.status, 200);
    let audit = server.get("operator", "/v1/audit?session=s&limit=1000").await.json();
    let lines = audit["items"].as_array().unwrap();
    let opens: Vec<&str> = lines
        .iter()
        .filter(|line| line["action"] == "open")
        .map(|line| line["by"].as_str().unwrap())
        .collect();
    assert_eq!(opens, ["user:ana", "user:rex", "user:cole"], "one line per user");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_audited_on_every_route_except_for_the_owner() {
    let server = TestServer::open().await;
    let reads = |route: &Route| route.method == "GET" && route.row.1 == RequiredRight::Read;
    for route in routes().into_iter().filter(reads) {
        let session = format!("read-{}", route.row.0);
        let (turn, approval) = prepare(&server, &route, &session).await;
        let path = route.path(&session, &turn, &approval);
        for who in ["ana", "rex", "operator"] {
            let answer = route.call(&server, Some(who), &path).await;
            assert_eq!(answer.status, route.row.3, "{path} as {who}: {}", answer.json());
        }
        let read = if path.contains("/flows/") { format!("flow-{session}") } else { session };
        let audit = server.get("operator", &format!("/v1/audit?session={read}&limit=1000")).await.json();
        let lines = audit["items"].as_array().unwrap().iter().filter(|line| line["action"] == "read");
        let readers: Vec<&str> = lines.map(|line| line["by"].as_str().unwrap()).collect();
        assert_eq!(readers, ["user:rex", "user:olga"], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_the_tenant_and_reads_are_audited_once() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    for who in ["operator", "rex", "rex", "ana"] {
        assert_eq!(server.get(who, "/v1/sessions/s/context").await.status, 200);
    }
    assert_eq!(server.get("foreign", "/v1/sessions").await.json()["items"], json!([]));
    let audit = server.get("operator", "/v1/audit?limit=1000").await.json();
    let lines = audit["items"].as_array().unwrap();
    let reads: Vec<&str> = lines
        .iter()
        .filter(|line| line["action"] == "read")
        .map(|line| line["by"].as_str().unwrap())
        .collect();
    assert_eq!(reads, ["user:olga", "user:rex"], "one line per reader, none for the owner");
    assert!(lines.iter().any(|line| line["action"] == "key_change"));
    let own = server.get("bob", "/v1/audit?session=s").await.json();
    assert_eq!(own["items"], json!([]), "the audit of another user's session is not visible");
}
