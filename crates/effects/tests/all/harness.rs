//! A test network: a resolver with fixed names, and a TLS server on loopback.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::port::tool::{OutputPart, ToolOutput};
use sapwood_effects::egress::{AllowedHosts, Egress, EgressLimits, Resolver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const NAMES: &[&str] =
    &["good.test", "other.test", "rebind.test", "mixed.test", "evil.test", "xn--bcher-kva.test"];
pub const LIMITS: EgressLimits = EgressLimits { request_ms_max: 3_000, body_bytes_max: 64 << 10 };

/// The server's reply to a request.
pub enum Reply {
    Bytes(Vec<u8>),
    /// A head, followed by an endless body.
    Endless(String),
    /// A head, followed by a slow body, one byte at a time.
    Drip(String),
}

pub fn http_response(status: &str, headers: &str, body: &[u8]) -> Reply {
    let head =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    Reply::Bytes([head.as_bytes(), body].concat())
}

pub fn redirect(status: &str, to: &str) -> Reply {
    http_response(status, &format!("Location: {to}\r\n"), b"")
}

/// A resolver with fixed answers. Each lookup of a name returns its next answer, and the last answer repeats.
#[derive(Default)]
pub struct FixedResolver {
    answers: Mutex<BTreeMap<String, VecDeque<Vec<IpAddr>>>>,
    pub lookups: Mutex<Vec<String>>,
}

impl FixedResolver {
    pub fn set(&self, host: &str, answers: &[&[&str]]) {
        let read = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        self.answers.lock().unwrap().insert(host.to_owned(), answers.iter().map(read).collect());
    }
}

#[async_trait]
impl Resolver for FixedResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.lookups.lock().unwrap().push(host.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let remaining = answers.get_mut(host).ok_or_else(|| io::Error::other("no such name"))?;
        let answer = remaining.pop_front().unwrap_or_default();
        if remaining.is_empty() {
            remaining.push_back(answer.clone());
        }
        Ok(answer)
    }
}

pub struct TestNetwork {
    pub port: u16,
    pub names: Arc<FixedResolver>,
    pub root_pem: String,
    /// Heads and bodies of all received requests.
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl TestNetwork {
    /// Start a server that answers each request with `reply`. `good.test` and `other.test` resolve to it.
    pub async fn start(reply: impl Fn(&str, u16) -> Reply + Send + Sync + 'static) -> Self {
        let (acceptor, listener, root_pem) = listen().await;
        let port = listener.local_addr().unwrap().port();
        let (reply, requests) = (Arc::new(reply), Arc::new(Mutex::new(Vec::new())));
        let network = Self { port, names: Arc::default(), root_pem, requests: requests.clone() };
        for name in ["good.test", "other.test", "xn--bcher-kva.test"] {
            network.names.set(name, &[&["127.0.0.1"]]);
        }
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, reply, requests) = (acceptor.clone(), reply.clone(), requests.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(socket).await else { return };
                    let request = read_request(&mut stream).await;
                    requests.lock().unwrap().push(request.clone());
                    send_reply(&mut stream, reply(&request, port)).await;
                });
            }
        });
        network
    }

    pub fn url(&self, host: &str, path: &str) -> String {
        format!("https://{host}:{}{path}", self.port)
    }

    /// A client that may reach these hosts at the server's port.
    pub fn egress(&self, hosts: &[&str]) -> Egress {
        let entries: Vec<String> = hosts.iter().map(|host| format!("{host}:{}", self.port)).collect();
        self.egress_exactly(&entries)
    }

    pub fn egress_exactly(&self, entries: &[String]) -> Egress {
        let hosts = AllowedHosts::parse(entries).unwrap();
        Egress::for_tests(hosts, LIMITS, self.names.clone(), SERVER, &self.root_pem).unwrap()
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A TLS listener for all test names.
pub async fn listen() -> (TlsAcceptor, TcpListener, String) {
    let names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind(SocketAddr::new(SERVER, 0)).await.unwrap();
    (TlsAcceptor::from(Arc::new(config)), listener, certificate.cert.pem())
}

async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            if body.len() >= length.map_or(0, |length| length.trim().parse().unwrap()) {
                return text;
            }
        }
        match stream.read(&mut chunk).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&chunk[..count]),
            _ => return text,
        }
    }
}

async fn send_reply(stream: &mut (impl AsyncWriteExt + Unpin), reply: Reply) {
    let (head, chunk, pause_ms) = match reply {
        Reply::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            return;
        }
        Reply::Endless(head) => (head, vec![b'a'; 16 << 10], 0),
        Reply::Drip(head) => (head, b"a".to_vec(), 100),
    };
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    while stream.write_all(&chunk).await.is_ok() && stream.flush().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// All text of an output.
pub fn text_of(output: &ToolOutput) -> String {
    let text = |part: &OutputPart| match part {
        OutputPart::Text(text) => text.clone(),
        OutputPart::Media { mime, bytes, .. } => format!("<{mime}: {} bytes>", bytes.len()),
    };
    output.parts.iter().map(text).collect::<Vec<_>>().join("\n")
}
