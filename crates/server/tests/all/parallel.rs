//! Many concurrent sessions of two users with tools: no data leaks between sessions.

use futures_util::future::join_all;
use serde_json::json;

use crate::harness::TestServer;

const SESSIONS: usize = 50;

fn marker(number: usize) -> String {
    format!("marker-{number:03}-x")
}

async fn run_session(server: &TestServer, number: usize) {
    let (who, own) = (["ana", "bob"][number % 2], marker(number));
    let session = format!("s-{number}");
    let made = server.post(who, "/v1/sessions", &json!({ "id": session, "agent": "writer" })).await;
    assert_eq!(made.status, 201, "{:?}", made.json());
    let body = json!({ "input": format!("You are {own}.") });
    let begun = server.post(who, &format!("/v1/sessions/{session}/turns"), &body).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    for _ in 0..crate::wire::POLLS_MAX {
        let turn_state = server.get(who, &format!("/v1/sessions/{session}/turns/{turn}")).await.json();
        if turn_state["status"] != "open" {
            assert_eq!(
                (turn_state["status"].as_str(), turn_state["text"].as_str()),
                (Some("completed"), Some(format!("I am {own}.").as_str()))
            );
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the turn of {own} has not ended");
}

async fn check_isolation(server: &TestServer, number: usize) {
    let (who, other, own) = (["ana", "bob"][number % 2], ["bob", "ana"][number % 2], marker(number));
    let session = format!("/v1/sessions/s-{number}");
    for path in ["context", "entries", "feed"] {
        let text = server.get(who, &format!("{session}/{path}")).await.json().to_string();
        let leaked =
            (0..SESSIONS).filter(|other| *other != number).map(marker).find(|marker| text.contains(marker));
        assert!(text.contains(&own) && leaked.is_none(), "{path} of {own} has {leaked:?}");
        assert_eq!(server.get(other, &format!("{session}/{path}")).await.status, 404);
    }
    let delivered = server.get(who, &format!("{session}/artifacts/name.txt")).await;
    assert_eq!(String::from_utf8(delivered.body).unwrap(), own);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_sessions_of_two_users_stay_separate() {
    let server = TestServer::open().await;
    join_all((0..SESSIONS).map(|number| run_session(&server, number))).await;
    join_all((0..SESSIONS).map(|number| check_isolation(&server, number))).await;
    let mine = server.get("ana", "/v1/sessions?limit=100").await.json();
    assert_eq!(mine["items"].as_array().unwrap().len(), SESSIONS / 2);
}
