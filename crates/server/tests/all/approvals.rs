//! Questions across all sessions, deadlines, and answer links.

use std::time::Duration;

use sapwood::core::entry::ApprovalAnswer;
use sapwood::core::port::links::{AnswerLinks, LinkClaim};
use sapwood::core::{Principal, TenantId, TimestampMs};
use sapwood::effects::answer_link::SignedLinks;
use sapwood::effects::secret::Secret;
use sapwood::engine::turn::{ApprovalTask, TakeoverTask};
use serde_json::{Value, json};

use crate::harness::{TestRequest, TestServer};
use crate::rights::wait_for_approval;
use crate::wire::{POLLS_MAX, TestResponse};

async fn ask(server: &TestServer, session: &str) -> String {
    server.shared_session(session).await;
    let path = format!("/v1/sessions/{session}/turns");
    let begun = server.post("ana", &path, &json!({ "input": "please ask" })).await;
    assert_eq!(begun.status, 202);
    wait_for_approval(server, session).await
}

async fn approvals_of(server: &TestServer, key: &str) -> Vec<String> {
    let (mut found, mut path) = (Vec::new(), "/v1/approvals?limit=1".to_owned());
    loop {
        let page = server.get(key, &path).await.json();
        let items = page["items"].as_array().unwrap().clone();
        found.extend(items.iter().map(|item| item["session"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { return found };
        path = format!("/v1/approvals?limit=1&cursor={next}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_approvals_that_the_caller_may_answer_are_listed() {
    let server = TestServer::open().await;
    ask(&server, "first").await;
    ask(&server, "second").await;
    server.shared_session("silent").await;
    for (who, expected) in [
        ("ana", vec!["second", "first"]),
        ("cole", vec!["second", "first"]),
        ("operator", vec!["second", "first"]),
        ("rex", vec![]),
        ("bob", vec![]),
        ("foreign", vec![]),
    ] {
        assert_eq!(approvals_of(&server, who).await, expected, "{who}");
    }
    let bad = server.get("ana", "/v1/approvals?limit=0").await;
    assert_eq!((bad.status, bad.code()), (400, "input.invalid".to_owned()));
}

fn path_of(url: &str) -> &str {
    url.strip_prefix("https://example.org").unwrap()
}

async fn link_to(server: &TestServer, approval: &str, options: &Value) -> String {
    let created = server.post("ana", &format!("/v1/approvals/{approval}/link"), options).await;
    assert_eq!(created.status, 201, "{:?}", created.json());
    path_of(created.json()["url"].as_str().unwrap()).to_owned()
}

async fn call(server: &TestServer, method: &str, path: &str, body: &str) -> TestResponse {
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    server.request(TestRequest { method, path, key: None, headers: &headers, body: body.as_bytes() }).await
}

async fn status_of_turn(server: &TestServer, session: &str) -> Value {
    server.get("ana", &format!("/v1/sessions/{session}")).await.json()["open_turn"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_answers_once_without_a_key_and_opening_it_never_answers() {
    let server = TestServer::open().await;
    let approval = ask(&server, "s").await;
    let path = link_to(&server, &approval, &json!({})).await;
    for method in ["GET", "HEAD", "GET"] {
        let page = call(&server, method, &path, "").await;
        assert_eq!(page.status, 200);
        assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
        assert_eq!(page.header("cache-control"), Some("no-store"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    }
    let page = String::from_utf8(call(&server, "GET", &path, "").await.body).unwrap();
    assert!(page.contains("Shall I?") && page.contains("Approve") && page.contains("Deny"), "{page}");
    assert_eq!(approvals_of(&server, "ana").await, ["s"], "opening the page answers nothing");
    for form in ["", "answer=maybe", "answer=approved&other=1", "\u{fffd}"] {
        assert_eq!(call(&server, "POST", &path, form).await.status, 400, "{form:?}");
    }
    let answered = call(&server, "POST", &path, "answer=approved&reason=yes%2C+do").await;
    assert_eq!(answered.status, 200);
    let used = call(&server, "POST", &path, "answer=denied").await;
    let forged = call(&server, "POST", "/answer/e30.AAAA", "answer=denied").await;
    assert_eq!((used.status, &used.body), (404, &forged.body), "a used and a forged link look the same");
    assert_eq!(forged.status, 404);
    for _ in 0..POLLS_MAX {
        if status_of_turn(&server, "s").await.is_null() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let log = server.get("ana", "/v1/sessions/s/entries?limit=1000").await.json();
    let answers: Vec<&Value> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "approval_answered")
        .collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0]["body"]["answer"], "approved");
    assert_eq!(answers[0]["body"]["reason"], "yes, do");
    assert_eq!(answers[0]["by"], "user:ana", "the answer has the rights and the name of the link's creator");
    let audit = server.get("operator", "/v1/audit?session=s&limit=1000").await.json();
    let details: Vec<&str> =
        audit["items"].as_array().unwrap().iter().filter_map(|line| line["detail"].as_str()).collect();
    assert!(details.iter().any(|detail| detail.starts_with("link until ")), "{details:?}");
    assert!(details.contains(&"answer by a link of user:ana"), "{details:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_limited_to_its_answers_its_time_and_its_creators_rights() {
    let server = TestServer::open().await;
    let approval = ask(&server, "s").await;
    let only_deny = link_to(&server, &approval, &json!({ "answers": ["denied"] })).await;
    let refused = call(&server, "POST", &only_deny, "answer=approved").await;
    assert_eq!(refused.status, 404);
    let key = Secret::new("k".repeat(32));
    let links = SignedLinks::new(&key, "https://example.org").unwrap();
    let claim = LinkClaim {
        tenant: TenantId::local(),
        approval: approval.clone(),
        by: Principal::User("ana".parse().unwrap()),
        operator: false,
        expires_at: TimestampMs(1),
        answers: vec![ApprovalAnswer::Approved],
    };
    let later = TimestampMs(i64::MAX);
    let expired = links.url(&claim);
    let reader =
        LinkClaim { by: Principal::User("rex".parse().unwrap()), expires_at: later, ..claim.clone() };
    let stranger = LinkClaim { by: Principal::User("bob".parse().unwrap()), ..reader.clone() };
    let foreign = LinkClaim { tenant: "elsewhere".parse().unwrap(), expires_at: later, ..claim.clone() };
    let missing = LinkClaim { approval: "never~1.1".to_owned(), expires_at: later, ..claim };
    for url in [expired, links.url(&reader), links.url(&stranger), links.url(&foreign), links.url(&missing)] {
        for (method, form) in [("GET", ""), ("POST", "answer=approved")] {
            let answer = call(&server, method, path_of(&url), form).await;
            assert_eq!((answer.status, &answer.body), (404, &refused.body), "{method} {url}");
        }
    }
    assert_eq!(approvals_of(&server, "ana").await, ["s"]);
    for options in [json!({ "expires_in_s": 0 }), json!({ "expires_in_s": 604_801 })] {
        let refused = server.post("ana", &format!("/v1/approvals/{approval}/link"), &options).await;
        assert_eq!((refused.status, refused.code()), (400, "input.invalid".to_owned()));
    }
    assert_eq!(call(&server, "POST", &only_deny, "answer=denied").await.status, 200);
}

/// Two servers find the same deadline. One of them answers, and the turn continues.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_question_is_denied_once_by_the_system() {
    let server = TestServer::open().await;
    let created = server.post("ana", "/v1/sessions", &json!({ "id": "s", "agent": "hasty" })).await;
    assert_eq!(created.status, 201, "{:?}", created.json());
    server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please ask" })).await;
    let approval = wait_for_approval(&server, "s").await;
    let listed = server.get("ana", "/v1/approvals").await.json()["items"][0].clone();
    let asked_at = listed["asked_at"].as_i64().unwrap();
    assert_eq!(listed["expires_at"].as_i64(), Some(asked_at + 1_000));
    let engines = [server.engine.clone(), server.engine.clone()];
    let tasks: Vec<ApprovalTask> = engines.iter().map(ApprovalTask::start).collect();
    let takeover = TakeoverTask::start(&server.engine).unwrap();
    for _ in 0..POLLS_MAX {
        if status_of_turn(&server, "s").await.is_null() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    drop((tasks, takeover));
    let log = server.get("ana", "/v1/sessions/s/entries?limit=1000").await.json();
    let answers: Vec<&Value> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "approval_answered")
        .collect();
    assert_eq!(answers.len(), 1, "the first answer counts");
    assert_eq!((&answers[0]["by"], &answers[0]["body"]["answer"]), (&json!("system"), &json!("denied")));
    assert!(answers[0]["body"]["reason"].as_str().unwrap().contains("not answered within 1 s"));
    let late =
        server.post("ana", &format!("/v1/approvals/{approval}"), &json!({ "answer": "approved" })).await;
    assert_eq!((late.status, late.code()), (404, "approval.not_found".to_owned()));
}
