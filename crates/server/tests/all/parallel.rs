//! Many concurrent sessions of two users with tools: no data leaks between sessions.

use futures_util::future::join_all;
use serde_json::json;

use crate::harness::House;

const SESSIONS: usize = 50;

fn marker(number: usize) -> String {
    format!("marker-{number:03}-x")
}

async fn play(house: &House, number: usize) {
    let (who, own) = (["ana", "bob"][number % 2], marker(number));
    let session = format!("s-{number}");
    let made = house.post(who, "/v1/sessions", &json!({ "id": session, "agent": "writer" })).await;
    assert_eq!(made.status, 201, "{:?}", made.json());
    let words = json!({ "input": format!("You are {own}.") });
    let begun = house.post(who, &format!("/v1/sessions/{session}/turns"), &words).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    for _ in 0..crate::wire::LOOKS_MAX {
        let look = house.get(who, &format!("/v1/sessions/{session}/turns/{turn}")).await.json();
        if look["status"] != "open" {
            assert_eq!(
                (look["status"].as_str(), look["text"].as_str()),
                (Some("completed"), Some(format!("I am {own}.").as_str()))
            );
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the turn of {own} has not ended");
}

async fn check(house: &House, number: usize) {
    let (who, other, own) = (["ana", "bob"][number % 2], ["bob", "ana"][number % 2], marker(number));
    let session = format!("/v1/sessions/s-{number}");
    for path in ["context", "entries", "feed"] {
        let text = house.get(who, &format!("{session}/{path}")).await.json().to_string();
        let strange =
            (0..SESSIONS).filter(|other| *other != number).map(marker).find(|marker| text.contains(marker));
        assert!(text.contains(&own) && strange.is_none(), "{path} of {own} has {strange:?}");
        assert_eq!(house.get(other, &format!("{session}/{path}")).await.status, 404);
    }
    let delivered = house.get(who, &format!("{session}/artifacts/name.txt")).await;
    assert_eq!(String::from_utf8(delivered.body).unwrap(), own);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_sessions_of_two_users_stay_separate() {
    let house = House::open().await;
    join_all((0..SESSIONS).map(|number| play(&house, number))).await;
    join_all((0..SESSIONS).map(|number| check(&house, number))).await;
    let mine = house.get("ana", "/v1/sessions?limit=100").await.json();
    assert_eq!(mine["items"].as_array().unwrap().len(), SESSIONS / 2);
}
