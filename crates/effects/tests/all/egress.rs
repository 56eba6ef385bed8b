//! The client against a real TLS server: redirects, DNS rebinding, endless bodies.

use std::time::Instant;

use reqwest::Method;
use sapwood_effects::egress::{
    AllowedHosts, Egress, EgressError, EgressRequest, EgressResponse, Extent, SystemResolver, parse_header,
};

use crate::harness::{LIMITS, Reply, TestNetwork, http_response, redirect};

async fn get(egress: &Egress, url: &str) -> Result<EgressResponse, EgressError> {
    send(egress, Method::GET, url, &[], None).await
}

async fn send(
    egress: &Egress,
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Result<EgressResponse, EgressError> {
    let headers = headers.iter().map(|(name, value)| parse_header(name, value)).collect::<Result<_, _>>()?;
    egress.fetch(EgressRequest { method, url: url.to_owned(), headers, body: body.map(str::to_owned) }).await
}

fn code(result: Result<EgressResponse, EgressError>) -> &'static str {
    result.err().map_or("the request succeeded", |error| error.code())
}

#[tokio::test]
async fn a_listed_host_is_reached_over_tls() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"hello")).await;
    let response = get(&network.egress(&["good.test"]), &network.url("GOOD.test.", "/x?y=1")).await.unwrap();
    assert_eq!((response.status.as_u16(), response.body.as_slice()), (200, &b"hello"[..]));
    let head = network.requests()[0].to_lowercase();
    assert!(head.starts_with("get /x?y=1 http/1.1\r\n"), "{head}");
    assert!(head.contains("accept-encoding: identity\r\n") && !head.contains("cookie"), "{head}");
}

#[tokio::test]
async fn without_the_fixture_loopback_is_refused_even_if_listed() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"secret")).await;
    let hosts = AllowedHosts::parse(&[format!("good.test:{}", network.port)]).unwrap();
    let egress = Egress::with_resolver(hosts, LIMITS, network.names.clone()).unwrap();
    assert_eq!(code(get(&egress, &network.url("good.test", "/")).await), "egress.address");
    let hosts = AllowedHosts::parse(&[format!("localhost:{}", network.port)]).unwrap();
    let egress = Egress::with_resolver(hosts, LIMITS, std::sync::Arc::new(SystemResolver)).unwrap();
    assert_eq!(code(get(&egress, &network.url("localhost", "/")).await), "egress.address");
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn a_name_with_a_private_address_is_refused_before_anything_is_sent() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"x")).await;
    for address in [
        "127.0.0.2",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "fe80::1",
        "2002:7f00:1::",
    ] {
        network.names.set("evil.test", &[&[address]]);
        let error = get(&network.egress(&["evil.test"]), &network.url("evil.test", "/")).await.err().unwrap();
        assert_eq!(error.code(), "egress.address", "{address}: {error}");
    }
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn one_private_address_refuses_all_addresses_of_a_name() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"x")).await;
    network.names.set("mixed.test", &[&["127.0.0.1", "10.0.0.1"]]);
    assert_eq!(
        code(get(&network.egress(&["mixed.test"]), &network.url("mixed.test", "/")).await),
        "egress.address"
    );
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn a_name_that_becomes_private_between_two_requests_is_refused_the_second_time() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"x")).await;
    network.names.set("rebind.test", &[&["127.0.0.1"], &["10.0.0.1"]]);
    let egress = network.egress(&["rebind.test"]);
    assert!(get(&egress, &network.url("rebind.test", "/")).await.is_ok());
    // One lookup per connection: the client connects to the checked address.
    assert_eq!(network.names.lookups.lock().unwrap().len(), 1);
    assert_eq!(code(get(&egress, &network.url("rebind.test", "/")).await), "egress.address");
    assert_eq!(network.requests().len(), 1);
}

#[tokio::test]
async fn a_name_that_becomes_private_during_a_redirect_is_refused() {
    let network =
        TestNetwork::start(|_, port| redirect("302 Found", &format!("https://rebind.test:{port}/again")))
            .await;
    network.names.set("rebind.test", &[&["127.0.0.1"], &["169.254.169.254"]]);
    assert_eq!(
        code(get(&network.egress(&["rebind.test"]), &network.url("rebind.test", "/")).await),
        "egress.address"
    );
    assert_eq!(network.requests().len(), 1);
}

#[tokio::test]
async fn redirects_are_checked_like_initial_requests() {
    for (target, expected) in [
        ("https://evil.test/", "egress.host"),
        ("https://169.254.169.254/latest/meta-data/", "egress.host"),
        ("https://2130706433/", "egress.host"),
        ("https://[::1]/", "egress.host"),
        ("//evil.test/", "egress.host"),
        ("http://good.test/", "egress.scheme"),
        ("file:///etc/passwd", "egress.scheme"),
        ("https://user:pw@good.test/", "egress.user_info"),
    ] {
        let network = TestNetwork::start(move |_, _| redirect("302 Found", target)).await;
        let error = get(&network.egress(&["good.test"]), &network.url("good.test", "/")).await.err().unwrap();
        assert_eq!(error.code(), expected, "{target}: {error}");
        assert_eq!(network.requests().len(), 1, "{target}");
    }
}

#[tokio::test]
async fn a_redirect_to_a_listed_name_at_a_private_address_is_refused() {
    let network = TestNetwork::start(|_, port| {
        redirect("307 Temporary Redirect", &format!("https://evil.test:{port}/"))
    })
    .await;
    network.names.set("evil.test", &[&["10.0.0.1"]]);
    let egress = network.egress(&["good.test", "evil.test"]);
    assert_eq!(code(get(&egress, &network.url("good.test", "/")).await), "egress.address");
}

#[tokio::test]
async fn five_redirects_are_followed_and_six_are_not() {
    let count =
        |request: &str| request.split("/hop").nth(1).map_or(0, |rest| rest[..1].parse::<u32>().unwrap());
    for (last, followed) in [(5, true), (6, false)] {
        let network = TestNetwork::start(move |request, _| match count(request) {
            hop if hop == last => http_response("200 OK", "", b"there"),
            hop => redirect("302 Found", &format!("/hop{}", hop + 1)),
        })
        .await;
        let result = get(&network.egress(&["good.test"]), &network.url("good.test", "/hop0")).await;
        assert_eq!(code(result) == "the request succeeded", followed);
        assert_eq!(network.requests().len(), 6);
    }
}

#[tokio::test]
async fn credentials_are_dropped_on_a_redirect_to_another_host() {
    let headers = [
        ("Authorization", "Bearer tok-12345678"),
        ("X-Api-Key", "key-12345678"),
        ("Cookie", "a=b"),
        ("Accept", "text/plain"),
    ];
    for (target, kept) in [("other.test", false), ("good.test", true)] {
        let network = TestNetwork::start(move |request, port| match request.contains("/first") {
            true => redirect("307 Temporary Redirect", &format!("https://{target}:{port}/second")),
            false => http_response("200 OK", "", b""),
        })
        .await;
        let egress = network.egress(&["good.test", "other.test"]);
        send(&egress, Method::POST, &network.url("good.test", "/first"), &headers, Some("words"))
            .await
            .unwrap();
        let second = network.requests()[1].clone();
        for sensitive in ["tok-12345678", "key-12345678", "a=b"] {
            assert_eq!(second.contains(sensitive), kept, "{target}: {second}");
        }
        assert!(
            second.contains("text/plain") && second.starts_with("POST ") && second.ends_with("words"),
            "{second}"
        );
    }
}

#[tokio::test]
async fn a_redirected_post_becomes_a_get_without_its_body() {
    let network = TestNetwork::start(|request, _| match request.contains("/first") {
        true => redirect("303 See Other", "/second"),
        false => http_response("200 OK", "", b""),
    })
    .await;
    send(
        &network.egress(&["good.test"]),
        Method::POST,
        &network.url("good.test", "/first"),
        &[],
        Some("words"),
    )
    .await
    .unwrap();
    let second = network.requests()[1].clone();
    assert!(second.starts_with("GET /second") && !second.contains("words"), "{second}");
}

#[tokio::test]
async fn header_injection_and_reserved_headers_are_refused() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"")).await;
    let egress = network.egress(&["good.test"]);
    let url = network.url("good.test", "/");
    for (name, value) in [
        ("X-A", "a\r\nX-Injected: 1"),
        ("X-A", "a\nb"),
        ("X-A", "a\0b"),
        ("X-A\r\nX-B", "1"),
        ("X A", "1"),
        ("", "1"),
        ("Host", "evil.test"),
        ("Content-Length", "0"),
        ("transfer-encoding", "chunked"),
        ("Connection", "upgrade"),
        ("Accept-Encoding", "gzip"),
        ("Proxy-Authorization", "x"),
    ] {
        let error = send(&egress, Method::GET, &url, &[(name, value)], None).await.err().unwrap();
        assert_eq!(error.code(), "egress.header", "{name:?}");
        assert!(!error.to_string().contains("Injected"), "{error}");
    }
    let large = "v".repeat(17 << 10);
    assert_eq!(code(send(&egress, Method::GET, &url, &[("X-A", &large)], None).await), "egress.too_large");
    let body = "b".repeat(5 << 20);
    assert_eq!(code(send(&egress, Method::POST, &url, &[], Some(&body)).await), "egress.too_large");
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn an_endless_body_is_truncated_at_the_limit() {
    let network = TestNetwork::start(|_, _| Reply::Endless("HTTP/1.1 200 OK\r\n\r\n".to_owned())).await;
    let response = get(&network.egress(&["good.test"]), &network.url("good.test", "/")).await.unwrap();
    assert_eq!((response.body.len(), response.extent), (LIMITS.body_bytes_max, Extent::CutAtLimit));
}

#[tokio::test]
async fn a_slow_body_times_out() {
    let network =
        TestNetwork::start(|_, _| Reply::Drip("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n".to_owned()))
            .await;
    let began = Instant::now();
    assert_eq!(
        code(get(&network.egress(&["good.test"]), &network.url("good.test", "/")).await),
        "egress.timed_out"
    );
    assert!(began.elapsed().as_secs() < 60);
}

#[tokio::test]
async fn endless_headers_are_an_error() {
    let many = "X-Filler: 1\r\n".repeat(1_000);
    let network = TestNetwork::start(move |_, _| http_response("200 OK", &many, b"")).await;
    assert_eq!(
        code(get(&network.egress(&["good.test"]), &network.url("good.test", "/")).await),
        "egress.failed"
    );
}

/// The body is the beginning of a gzip stream. A client that decompressed it would fail or return other bytes.
#[tokio::test]
async fn a_compressed_bomb_is_not_decompressed() {
    let bomb = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3, 0xed, 0xc1, 1, 0x0d];
    let network =
        TestNetwork::start(move |_, _| http_response("200 OK", "Content-Encoding: gzip\r\n", &bomb)).await;
    let response = get(&network.egress(&["good.test"]), &network.url("good.test", "/")).await.unwrap();
    assert_eq!(response.body, bomb);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"")).await;
    network.names.set("stranger.test", &[&["127.0.0.1"]]);
    assert_eq!(
        code(get(&network.egress(&["stranger.test"]), &network.url("stranger.test", "/")).await),
        "egress.failed"
    );
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn an_international_name_is_reached_under_its_ascii_form() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"Buch")).await;
    let response = get(&network.egress(&["BÜCHER.test"]), &network.url("bücher.test", "/")).await.unwrap();
    assert_eq!(response.body, b"Buch");
}
