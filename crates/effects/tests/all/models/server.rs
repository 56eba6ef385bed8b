//! A small HTTP server that replays exchanges: bytes in given chunks, with pauses, completed or cut. Each connection
//! is one exchange.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Maximum size of a request.
const REQUEST_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
pub struct Exchange {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub chunks: Vec<Chunk>,
    pub ending: Ending,
}

#[derive(Debug, Clone)]
pub enum Chunk {
    Bytes(Vec<u8>),
    WaitMs(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Chunked, with the final chunk.
    Whole,
    /// Chunked, but the connection is closed without the final chunk.
    Broken,
    /// Not chunked: the body ends when the connection closes.
    Closed,
}

/// A request from the client.
#[derive(Debug, Clone)]
pub struct SentRequest {
    pub line: String,
    pub head: String,
    pub body: Value,
}

impl SentRequest {
    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim().to_owned())
    }
}

impl Exchange {
    pub fn stream(kind: &str, chunks: Vec<Vec<u8>>, ending: Ending) -> Self {
        let chunks = chunks.into_iter().map(Chunk::Bytes).collect();
        Self { status: 200, headers: vec![("content-type".into(), kind.into())], chunks, ending }
    }

    pub fn events(text: &str) -> Self {
        Self::stream("text/event-stream", vec![text.as_bytes().to_vec()], Ending::Whole)
    }

    pub fn lines(text: &str) -> Self {
        Self::stream("application/x-ndjson", vec![text.as_bytes().to_vec()], Ending::Whole)
    }

    pub fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let mut all = vec![("content-type".to_owned(), "application/json".to_owned())];
        all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Self {
            status,
            headers: all,
            chunks: vec![Chunk::Bytes(body.as_bytes().to_vec())],
            ending: Ending::Whole,
        }
    }
}

pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<SentRequest>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(exchanges: Vec<Exchange>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<SentRequest>>> = Arc::default();
        let recorded = requests.clone();
        let task = tokio::spawn(async move {
            for exchange in exchanges {
                let (mut socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                let request = read_request(&mut socket).await;
                recorded.lock().unwrap().push(request);
                // A client may close the connection early, which is not a failure.
                let _ = answer(&mut socket, &exchange).await;
            }
        });
        Self { url, requests, task }
    }

    pub fn requests(&self) -> Vec<SentRequest> {
        self.requests.lock().unwrap().clone()
    }
}

async fn read_request(socket: &mut TcpStream) -> SentRequest {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let head_bytes = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(read > 0 && bytes.len() < REQUEST_BYTES_MAX, "the request head does not end");
        bytes.extend_from_slice(&buffer[..read]);
    };
    let head = String::from_utf8(bytes[..head_bytes].to_vec()).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let length = length.unwrap_or(0);
    while bytes.len() < head_bytes + length {
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(read > 0 && bytes.len() < REQUEST_BYTES_MAX, "the request body does not end");
        bytes.extend_from_slice(&buffer[..read]);
    }
    let body = serde_json::from_slice(&bytes[head_bytes..]).unwrap_or(Value::Null);
    SentRequest { line: head.lines().next().unwrap().to_owned(), head, body }
}

async fn answer(socket: &mut TcpStream, exchange: &Exchange) -> std::io::Result<()> {
    let mut out = format!("HTTP/1.1 {} Status\r\nconnection: close\r\n", exchange.status).into_bytes();
    for (name, value) in &exchange.headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    let is_chunked = exchange.ending != Ending::Closed;
    if is_chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    for chunk in &exchange.chunks {
        match chunk {
            Chunk::Bytes(bytes) if bytes.is_empty() => {}
            Chunk::Bytes(bytes) if is_chunked => {
                out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Chunk::Bytes(bytes) => out.extend_from_slice(bytes),
            Chunk::WaitMs(ms) => {
                socket.write_all(&std::mem::take(&mut out)).await?;
                tokio::time::sleep(Duration::from_millis(*ms)).await;
            }
        }
    }
    if exchange.ending == Ending::Whole {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    socket.write_all(&out).await?;
    socket.shutdown().await
}
