//! What clients send that they should not. Each gets a 4xx that says why, and the server goes on.

use serde_json::json;

use crate::house::{Ask, House};
use crate::wire::{exchange, request};
use sapwood_server::Settings;

/// A body, its headers, and the status and code it gets.
type Case<'c> = (&'c [u8], &'c [(&'c str, &'c str)], u16, &'c str);

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_good_are_refused_with_a_reason() {
    let house =
        House::open_with(Settings { body_bytes_max: 10_000, rate: None, ..Settings::default() }).await;
    house.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let deep = format!("{{\"input\":{}{}}}", "[".repeat(3_000), "]".repeat(3_000));
    let huge = format!("{{\"input\":\"{}\"}}", "x".repeat(10_000));
    let cases: &[Case<'_>] = &[
        (b"{\"input\":", JSON, 400, "input.json"),
        (b"", JSON, 400, "input.json"),
        (b"[]", JSON, 400, "input.invalid"),
        (b"{\"input\":\"x\",\"extra\":1}", JSON, 400, "input.invalid"),
        (b"{\"input\":\"\xff\"}", JSON, 400, "input.json"),
        (b"{\"input\":\"\\ud800\"}", JSON, 400, "input.json"),
        (deep.as_bytes(), JSON, 400, "input.json"),
        (huge.as_bytes(), JSON, 413, "input.too_large"),
        (b"{\"input\":\"x\"}", &[("content-type", "text/plain")], 415, "input.media_type"),
        (b"{\"input\":\"x\"}", &[], 415, "input.media_type"),
    ];
    for (body, headers, status, code) in cases {
        let ask = Ask { method: "POST", path: "/v1/sessions/s/turns", key: Some("ana"), headers, body };
        let answer = house.ask(ask).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!((answer.status, answer.code().as_str()), (*status, *code), "{shown}: {}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_queries_that_are_no_good_are_refused() {
    let house = House::open().await;
    for (path, status) in [
        ("/v1/sessions/..%2f..%2fetc", 400),
        ("/v1/sessions/%00", 400),
        ("/v1/sessions/%ff", 400),
        ("/v1/sessions/%F0%9F%8C%B3", 400),
        ("/v1/sessions/unknown", 404),
        ("/v1/sessions?limit=many", 400),
        ("/v1/sessions?unknown=1", 400),
        ("/v1/sessions?state=asleep", 400),
        ("/v1/search", 400),
        ("/v1/nothing", 404),
        ("/nothing", 404),
    ] {
        let bytes = house.bytes_of(Ask { method: "GET", path, key: Some("ana"), headers: &[], body: b"" });
        let answer = exchange(house.addr, &bytes).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
    let wrong = house
        .ask(Ask { method: "PUT", path: "/v1/sessions", key: Some("ana"), headers: &[], body: b"" })
        .await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "route.method"));
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_big_or_not_http_are_cut_off() {
    let house = House::open().await;
    let big = "x".repeat(200_000);
    let many: Vec<(String, String)> = (0..150).map(|n| (format!("x-{n}"), "v".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for bytes in [
        request("GET", "/healthz", &[("x-big", &big)], b""),
        request("GET", "/healthz", &many, b""),
        request("GET", &format!("/{big}"), &[], b""),
        b"nonsense\r\n\r\n".to_vec(),
    ] {
        let answer = exchange(house.addr, &bytes).await;
        assert!((400..500).contains(&answer.status), "{}", answer.status);
    }
    assert_eq!(exchange(house.addr, &request("GET", "/healthz", &[], b"")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_the_server_is_only_its_operators_to_name() {
    let house = House::open().await;
    let refused = house.post("ana", "/v1/sessions", &json!({ "cwd": "/etc" })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "input.invalid"));
    assert_eq!(house.post("operator", "/v1/sessions", &json!({ "cwd": "/srv" })).await.status, 201);
}
