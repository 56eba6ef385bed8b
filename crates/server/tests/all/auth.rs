//! Authentication: no remote access without a key, no access for other sites' pages, and only tokens of the pinned
//! issuer.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use sapwood::core::port::clock::Clock;
use sapwood::core::port::keys::Grant;
use sapwood::{Engine, Principal, Scope, SystemClock, TenantId};
use sapwood_server::auth::Authenticator;
use sapwood_server::oidc::{KeySource, KeyTimes, Oidc, OidcConfig, Tenancy};
use sapwood_server::{ListenError, Listening, Settings, State};
use serde_json::{Value, json};

use crate::harness::{TestRequest, TestServer};
use crate::wire::{exchange, next_event, open, request};

#[tokio::test(flavor = "multi_thread")]
async fn local_requests_need_no_key_until_the_first_key_exists() {
    let mut server = TestServer::bare(Settings::default()).await;
    let plain = TestRequest { method: "GET", path: "/v1/sessions", key: None, headers: &[], body: b"" };
    assert_eq!(server.request(plain).await.status, 200);
    for headers in [[("origin", "https://evil.example")], [("origin", "null")]] {
        let answer = server.request(TestRequest { headers: &headers, ..plain }).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "auth.origin"));
    }
    let rebound = b"GET /v1/sessions HTTP/1.0\r\nhost: evil.example\r\n\r\n";
    assert_eq!(exchange(server.addr, rebound).await.status, 403);
    server.add_key("ana", "local", "ana", &[Grant::Read], None).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(server.request(plain).await.code(), "auth.required");
    assert_eq!(server.get("ana", "/v1/sessions").await.status, 200);
}

/// Some clients, such as OpenAI's, always send an API key.
#[tokio::test(flavor = "multi_thread")]
async fn any_api_key_is_ignored_while_none_is_required() {
    let mut server = TestServer::bare(Settings::default()).await;
    for key in ["anything", "sapwood_wrong", "eyJhbGciOiJub25lIn0.e30."] {
        assert_eq!(server.get(key, "/v1/sessions").await.status, 200, "{key}");
    }
    let plain =
        TestRequest { method: "GET", path: "/v1/sessions", key: Some("anything"), headers: &[], body: b"" };
    for headers in [[("origin", "https://evil.example")], [("sec-fetch-site", "cross-site")]] {
        assert_eq!(server.request(TestRequest { headers: &headers, ..plain }).await.code(), "auth.origin");
    }
    server.add_key("ana", "local", "ana", &[Grant::Read], None).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(server.get("anything", "/v1/sessions").await.code(), "auth.invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_keys_refuses_to_listen_on_other_addresses() {
    let server = TestServer::bare(Settings::default()).await;
    let local = Scope::operator(TenantId::local(), Principal::System);
    let auth = || Authenticator::new(server.engine.store().clone(), Some(local.clone()), None);
    let state = State::new(server.engine.clone(), auth(), Settings::default(), Vec::new());
    let refused = Listening::bind("0.0.0.0:0".parse().unwrap(), state).await;
    assert!(matches!(refused, Err(ListenError::Open { .. })));
}

type Sign = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// An issuer with a key pair.
pub struct Issuer {
    sign: Sign,
    pub alg: &'static str,
    pub jwk: Value,
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn ed25519(kid: &str) -> Issuer {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": encode(pair.public_key().as_ref()) });
    Issuer { sign: Box::new(move |bytes| pair.sign(bytes).as_ref().to_vec()), alg: "EdDSA", jwk }
}

pub fn es256(kid: &str) -> Issuer {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref().to_vec();
    let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": encode(&point[1..33]), "y": encode(&point[33..]) });
    let sign = move |bytes: &[u8]| pair.sign(&SystemRandom::new(), bytes).unwrap().as_ref().to_vec();
    Issuer { sign: Box::new(sign), alg: "ES256", jwk }
}

impl Issuer {
    pub fn token(&self, head: Value, claims: &Value) -> String {
        let signed =
            format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = (self.sign)(signed.as_bytes());
        format!("{signed}.{}", encode(&signature))
    }
}

struct StaticKeys(Vec<u8>);

impl KeySource for StaticKeys {
    fn load(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        let bytes = self.0.clone();
        async move { Ok(bytes) }.boxed()
    }
}

pub fn claims() -> Value {
    let now = SystemClock.now().0 / 1_000;
    json!({ "iss": "https://id.example", "aud": ["other", "sapwood"], "sub": "ana", "org": "acme", "exp": now + 600 })
}

async fn status_of(engine: &Engine, addr: std::net::SocketAddr, token: &str) -> (u16, String) {
    let _ = engine;
    let bearer = format!("Bearer {token}");
    let answer = exchange(addr, &request("POST", "/v1/sessions", &[("authorization", &bearer)], b"")).await;
    let owner = answer.json()["owner"].as_str().map(str::to_owned);
    (answer.status, owner.unwrap_or_else(|| answer.code()))
}

/// Starts a server that trusts these issuers.
async fn start_trusting(
    server: &TestServer,
    issuers: &[&Issuer],
    settings: Settings,
) -> std::net::SocketAddr {
    let jwks: Vec<&Value> = issuers.iter().map(|issuer| &issuer.jwk).collect();
    let keys = json!({ "keys": jwks }).to_string().into_bytes();
    let config = OidcConfig {
        issuer: "https://id.example".to_owned(),
        audience: "sapwood".to_owned(),
        user_claim: "sub".to_owned(),
        tenant: Tenancy::Claim("org".to_owned()),
        times: KeyTimes::default(),
    };
    let oidc = Oidc::new(config, Box::new(StaticKeys(keys)));
    let auth = Authenticator::new(server.engine.store().clone(), None, Some(oidc));
    let state = State::new(server.engine.clone(), auth, settings, Vec::new());
    let listening = Listening::bind("127.0.0.1:0".parse().unwrap(), state).await.unwrap();
    let addr = listening.addr;
    tokio::spawn(listening.run(std::future::pending()));
    addr
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_ends_its_streams() {
    let server = TestServer::bare(Settings::default()).await;
    let issuer = ed25519("k1");
    let heartbeat = std::time::Duration::from_millis(100);
    let addr = start_trusting(&server, &[&issuer], Settings { heartbeat, ..Settings::default() }).await;
    let mut claims = claims();
    // A token stays valid for a minute after its expiry, to allow for clock skew. The expiry may be a fraction.
    claims["exp"] = json!(SystemClock.now().0 as f64 / 1_000.0 - 54.5);
    let bearer = format!("Bearer {}", issuer.token(json!({ "alg": "EdDSA", "kid": "k1" }), &claims));
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let made = exchange(addr, &request("POST", "/v1/sessions", &headers, b"{\"id\":\"s\"}")).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let (_, mut events) = open(addr, &request("GET", "/v1/sessions/s/events", &headers, b"")).await;
    let last = next_event(&mut events).await.unwrap();
    assert_eq!((last.name.as_str(), last.data["code"].as_str()), ("error", Some("auth.invalid")));
    assert_eq!(next_event(&mut events).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_unexpired_tokens_of_the_pinned_issuer_and_audience_are_accepted() {
    let server = TestServer::bare(Settings::default()).await;
    let (first, second, stranger) = (ed25519("k1"), es256("k2"), ed25519("k1"));
    let addr = start_trusting(&server, &[&first, &second], Settings::default()).await;

    for (issuer, kid) in [(&first, "k1"), (&second, "k2")] {
        let token = issuer.token(json!({ "alg": issuer.alg, "kid": kid }), &claims());
        assert_eq!(
            status_of(&server.engine, addr, &token).await,
            (201, "user:ana".to_owned()),
            "{}",
            issuer.alg
        );
    }
    let head = json!({ "alg": "EdDSA", "kid": "k1" });
    let changed = |key: &str, value: Value| {
        let mut claims = claims();
        claims[key] = value;
        claims
    };
    let good = first.token(head.clone(), &claims());
    let (signed, _) = good.rsplit_once('.').unwrap();
    let forged = [
        ("another key", stranger.token(head.clone(), &claims())),
        ("another issuer", first.token(head.clone(), &changed("iss", json!("https://evil.example")))),
        ("another audience", first.token(head.clone(), &changed("aud", json!("other")))),
        ("expired", first.token(head.clone(), &changed("exp", json!(1_000)))),
        ("no expiry", first.token(head.clone(), &changed("exp", Value::Null))),
        ("not yet", first.token(head.clone(), &changed("nbf", json!(99_999_999_999_i64)))),
        ("no name", first.token(head.clone(), &changed("sub", json!("")))),
        ("no tenant", first.token(head.clone(), &changed("org", Value::Null))),
        ("no signature", format!("{signed}.")),
        (
            "critical extensions",
            first.token(json!({ "alg": "EdDSA", "kid": "k1", "crit": ["exp2"] }), &claims()),
        ),
        ("an empty list of them", first.token(json!({ "alg": "EdDSA", "kid": "k1", "crit": [] }), &claims())),
        ("null instead", first.token(json!({ "alg": "EdDSA", "kid": "k1", "crit": null }), &claims())),
        ("alg none", first.token(json!({ "alg": "none" }), &claims())),
        ("alg HS256", first.token(json!({ "alg": "HS256", "kid": "k1" }), &claims())),
        ("the wrong alg for the key", first.token(json!({ "alg": "ES256", "kid": "k1" }), &claims())),
        ("an unknown kid", first.token(json!({ "alg": "EdDSA", "kid": "k9" }), &claims())),
    ];
    for (sub, owner) in [("auth0|ana", "user:oidc:auth0+7Cana"), ("../ana", "user:oidc:..+2Fana")] {
        let token = first.token(head.clone(), &changed("sub", json!(sub)));
        assert_eq!(status_of(&server.engine, addr, &token).await, (201, owner.to_owned()));
    }
    for (what, token) in forged {
        assert_eq!(status_of(&server.engine, addr, &token).await, (401, "auth.invalid".to_owned()), "{what}");
    }
    assert_eq!(exchange(addr, &request("GET", "/v1/sessions", &[], b"")).await.code(), "auth.required");
}
