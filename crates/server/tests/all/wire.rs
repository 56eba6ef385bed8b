//! A small HTTP client that sends exactly the bytes of the test, even if they are invalid.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Deadline for every wait in a test.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// Maximum number of polls, 25 ms apart.
pub const POLLS_MAX: u32 = 4_800;

#[derive(Debug, Clone)]
pub struct TestResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl TestResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn code(&self) -> String {
        let json = self.json();
        json["code"].as_str().or(json["error"]["code"].as_str()).unwrap_or_default().to_owned()
    }
}

/// Sends these bytes and reads the whole response.
pub async fn exchange(addr: SocketAddr, request: &[u8]) -> TestResponse {
    let (head, mut reader) = open(addr, request).await;
    let mut body = Vec::new();
    tokio::time::timeout(WAIT_MAX, reader.read_to_end(&mut body)).await.expect("a response in time").ok();
    TestResponse { body, ..head }
}

/// Sends these bytes and reads the response head. The body follows unencoded, as in HTTP/1.0.
pub async fn open(addr: SocketAddr, request: &[u8]) -> (TestResponse, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    // A server that rejects the request may close the connection before the whole request was sent.
    let _ = stream.write_all(request).await;
    let mut reader = BufReader::new(stream);
    let head = tokio::time::timeout(WAIT_MAX, read_head(&mut reader)).await.expect("a response in time");
    (head, reader)
}

async fn read_head(reader: &mut BufReader<TcpStream>) -> TestResponse {
    let (mut status, mut headers) = (0, Vec::new());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await.unwrap_or(0) == 0 || line == "\r\n" {
            return TestResponse { status, headers, body: Vec::new() };
        }
        match line.trim_end().split_once(": ") {
            None => status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0),
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
        }
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text =
        format!("{method} {path} HTTP/1.0\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    pub id: Option<u32>,
    pub name: String,
    pub data: Value,
}

/// Reads the next event of a stream. Returns `None` at the end.
pub async fn next_event(reader: &mut BufReader<TcpStream>) -> Option<Event> {
    let (mut event, mut has_data) = (Event::default(), false);
    loop {
        let mut line = String::new();
        let read =
            tokio::time::timeout(WAIT_MAX, reader.read_line(&mut line)).await.expect("an event in time");
        if read.unwrap_or(0) == 0 {
            return None;
        }
        match line.trim_end().split_once(':') {
            Some(("id", id)) => event.id = id.trim().parse().ok(),
            Some(("event", name)) => event.name = name.trim().to_owned(),
            Some(("data", data)) => {
                event.data = serde_json::from_str(data.trim()).unwrap();
                has_data = true;
            }
            _ if line.trim_end().is_empty() && has_data => return Some(event),
            _ => {}
        }
    }
}
