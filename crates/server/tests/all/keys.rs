//! Issuer keys fetched from a URL. A local TLS server changes its keys, is down, sends invalid data, or hangs.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sapwood::effects::egress::{AllowedHosts, Egress, EgressLimits, Resolver};
use sapwood_server::oidc::{JwksUrl, KeyTimes, Oidc, OidcConfig, Tenancy};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::auth::{Issuer, claims, ed25519, es256};

const HOST: &str = "id.test";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Fetch timeout in these tests.
const FETCH_MS_MAX: u64 = 2_000;
/// Keys that do not expire during a test, and pauses longer than a test.
const LONG_TIMES: KeyTimes = KeyTimes {
    live: Duration::from_secs(3_600),
    refetch_pause: Duration::from_secs(3_600),
    failed_pause: Duration::from_secs(3_600),
};
const ZERO_TIMES: KeyTimes =
    KeyTimes { live: Duration::ZERO, refetch_pause: Duration::ZERO, failed_pause: Duration::ZERO };

/// How the issuer's server responds.
#[derive(Clone)]
enum IssuerBehavior {
    Keys(Vec<Value>),
    Response(&'static str, Vec<u8>),
    /// Closes the connection.
    Close,
    /// Reads the request and never responds.
    Hang,
}

struct Publisher {
    port: u16,
    root_pem: String,
    behavior: Arc<Mutex<IssuerBehavior>>,
    fetches: Arc<AtomicUsize>,
}

struct LoopbackResolver;

#[async_trait]
impl Resolver for LoopbackResolver {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![LOOPBACK])
    }
}

impl Publisher {
    async fn open(behavior: IssuerBehavior) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let publisher = Self {
            port: listener.local_addr().unwrap().port(),
            root_pem: made.cert.pem(),
            behavior: Arc::new(Mutex::new(behavior)),
            fetches: Arc::default(),
        };
        let (behavior, fetches) = (publisher.behavior.clone(), publisher.fetches.clone());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                fetches.fetch_add(1, Ordering::SeqCst);
                let (acceptor, behavior) = (acceptor.clone(), behavior.lock().unwrap().clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(socket).await else { return };
                    let _ = stream.read(&mut [0; 4_096]).await;
                    respond(&mut stream, behavior).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        publisher
    }

    fn set(&self, behavior: IssuerBehavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    fn oidc(&self, times: KeyTimes) -> Oidc {
        let authority = format!("{HOST}:{}", self.port);
        let hosts = AllowedHosts::parse(std::slice::from_ref(&authority)).unwrap();
        let limits = EgressLimits { request_ms_max: FETCH_MS_MAX, body_bytes_max: 64 << 10 };
        let egress =
            Egress::for_tests(hosts, limits, Arc::new(LoopbackResolver), LOOPBACK, &self.root_pem).unwrap();
        let config = OidcConfig {
            issuer: "https://id.example".to_owned(),
            audience: "sapwood".to_owned(),
            user_claim: "sub".to_owned(),
            tenant: Tenancy::Claim("org".to_owned()),
            times,
        };
        Oidc::new(config, Box::new(JwksUrl::through(format!("https://{authority}/keys"), egress)))
    }
}

async fn respond(stream: &mut (impl AsyncWriteExt + Unpin), behavior: IssuerBehavior) {
    let (status, body) = match behavior {
        IssuerBehavior::Keys(keys) => ("200 OK", json!({ "keys": keys }).to_string().into_bytes()),
        IssuerBehavior::Response(status, body) => (status, body),
        IssuerBehavior::Close => return,
        IssuerBehavior::Hang => return std::future::pending().await,
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
}

fn token(issuer: &Issuer, kid: &str) -> String {
    issuer.token(json!({ "alg": issuer.alg, "kid": kid }), &claims())
}

/// Returns the token's tenant, or the error code.
async fn outcome(oidc: &Oidc, token: &str) -> String {
    match oidc.verify(token).await {
        Ok((scope, _)) => scope.tenant.to_string(),
        Err(problem) => problem.code.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_cached_and_fetched_again_for_an_unknown_signing_key() {
    let (first, second) = (ed25519("k1"), es256("k2"));
    let publisher = Publisher::open(IssuerBehavior::Keys(vec![first.jwk.clone()])).await;
    let oidc = publisher.oidc(KeyTimes { refetch_pause: Duration::ZERO, ..LONG_TIMES });
    for _ in 0..3 {
        assert_eq!(outcome(&oidc, &token(&first, "k1")).await, "acme");
    }
    assert_eq!(publisher.fetches(), 1);
    publisher.set(IssuerBehavior::Keys(vec![second.jwk.clone()]));
    assert_eq!(outcome(&oidc, &token(&second, "k2")).await, "acme");
    assert_eq!(publisher.fetches(), 2);
    // A withdrawn key is no longer accepted.
    assert_eq!(outcome(&oidc, &token(&first, "k1")).await, "auth.invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_changes_under_the_same_id_is_fetched_again() {
    let (first, second) = (ed25519("k"), ed25519("k"));
    let publisher = Publisher::open(IssuerBehavior::Keys(vec![first.jwk.clone()])).await;
    let oidc = publisher.oidc(KeyTimes { refetch_pause: Duration::ZERO, ..LONG_TIMES });
    assert_eq!(outcome(&oidc, &token(&first, "k")).await, "acme");
    publisher.set(IssuerBehavior::Keys(vec![second.jwk.clone()]));
    assert_eq!(outcome(&oidc, &token(&second, "k")).await, "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_key_ids_do_not_cause_repeated_fetches() {
    let (known, stranger) = (ed25519("k1"), ed25519("k1"));
    let publisher = Publisher::open(IssuerBehavior::Keys(vec![known.jwk.clone()])).await;
    let oidc = Arc::new(publisher.oidc(LONG_TIMES));
    let verifications = (0..40).map(|number| {
        let (oidc, token) = (oidc.clone(), token(&stranger, &format!("made-up-{number}")));
        tokio::spawn(async move { outcome(&oidc, &token).await })
    });
    for verification in verifications.collect::<Vec<_>>() {
        assert_eq!(verification.await.unwrap(), "auth.invalid");
    }
    assert_eq!(publisher.fetches(), 1, "all verifications shared one fetch");
    assert_eq!(outcome(&oidc, &token(&known, "k1")).await, "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fetch_is_not_repeated_for_every_token() {
    let issuer = ed25519("k1");
    for behavior in [IssuerBehavior::Close, IssuerBehavior::Response("503 Service Unavailable", Vec::new())] {
        let publisher = Publisher::open(behavior).await;
        let oidc = publisher.oidc(LONG_TIMES);
        for _ in 0..5 {
            assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "auth.keys");
        }
        assert_eq!(publisher.fetches(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_accepted_once_the_issuer_is_back() {
    let issuer = ed25519("k1");
    let publisher = Publisher::open(IssuerBehavior::Close).await;
    let oidc = publisher.oidc(KeyTimes { failed_pause: Duration::ZERO, ..LONG_TIMES });
    assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "auth.keys");
    publisher.set(IssuerBehavior::Keys(vec![issuer.jwk.clone()]));
    assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_keys_stay_valid_while_the_issuer_is_unreachable() {
    let (issuer, stranger) = (ed25519("k1"), ed25519("k1"));
    let publisher = Publisher::open(IssuerBehavior::Keys(vec![issuer.jwk.clone()])).await;
    let oidc = publisher.oidc(ZERO_TIMES);
    assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "acme");
    for behavior in
        [IssuerBehavior::Close, IssuerBehavior::Response("200 OK", b"<html>".to_vec()), IssuerBehavior::Hang]
    {
        publisher.set(behavior);
        assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "acme");
        assert_eq!(outcome(&oidc, &token(&stranger, "k1")).await, "auth.keys");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_key_set_is_an_error() {
    let issuer = ed25519("k1");
    let publisher = Publisher::open(IssuerBehavior::Close).await;
    let oidc = publisher.oidc(ZERO_TIMES);
    let deep = [b"[".repeat(30_000), b"]".repeat(30_000)].concat();
    let endless = [b"{\"keys\":[".as_slice(), &b" ".repeat(70 << 10), b"]}"].concat();
    for body in [&b"<html>"[..], b"", b"null", b"{\"keys\":{}}", b"\xff\xfe", b"{\"keys\":[", &deep, &endless]
    {
        publisher.set(IssuerBehavior::Response("200 OK", body.to_vec()));
        assert_eq!(outcome(&oidc, &token(&issuer, "k1")).await, "auth.keys");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_keys_are_skipped() {
    let issuer = ed25519("k1");
    let broken = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": "!!" });
    let keys = vec![json!(7), json!({}), json!({ "kty": 3 }), json!({ "kty": "oct", "k": "AA" }), broken];
    let publisher = Publisher::open(IssuerBehavior::Keys([keys, vec![issuer.jwk.clone()]].concat())).await;
    assert_eq!(outcome(&publisher.oidc(LONG_TIMES), &token(&issuer, "k1")).await, "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_issuer_is_fetched_once_and_with_a_timeout() {
    let issuer = ed25519("k1");
    let publisher = Publisher::open(IssuerBehavior::Hang).await;
    let oidc = Arc::new(publisher.oidc(LONG_TIMES));
    let began = Instant::now();
    let verifications = (0..20).map(|_| {
        let (oidc, token) = (oidc.clone(), token(&issuer, "k1"));
        tokio::spawn(async move { outcome(&oidc, &token).await })
    });
    for verification in verifications.collect::<Vec<_>>() {
        assert_eq!(verification.await.unwrap(), "auth.keys");
    }
    assert_eq!(publisher.fetches(), 1);
    // Sequential fetches would take twenty times as long.
    assert!(began.elapsed() < Duration::from_millis(FETCH_MS_MAX * 20), "{:?}", began.elapsed());
}

#[test]
fn keys_are_only_fetched_over_https() {
    for url in [
        "http://id.example/keys",
        "id.example/keys",
        "https://",
        "https://*.example/keys",
        "file:///etc/passwd",
    ] {
        assert!(JwksUrl::new(url.to_owned()).is_err(), "{url}");
    }
    assert!(JwksUrl::new("https://id.example/keys".to_owned()).is_ok());
}
