//! The API from another process. The server runs as a separate process, and this process sends requests over 64
//! persistent connections. The client uses one thread, because client and server share the machine. The baselines are
//! measured in the same run: the same client with an empty route of the same framework, also in a separate process on
//! the same kind of runtime, and the same appends in this process without HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use sapwood::store::Durability;
use sapwood::{Body, user_text};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stream::on_own_runtime;
use crate::bodies::bodies;
use crate::measure::{median, millis, per_second};
use crate::program;
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "http";
const CONNECTIONS: usize = 64;
/// Minimum number of appends per connection. With fewer appends, the first access to each session would dominate.
const EACH_MIN: usize = 256;
/// Reads per append. Reads are much faster than durable appends, so more reads are measured.
const READS_PER_APPEND: usize = 4;
const SEED: u64 = 14;
/// Client timeout for one response.
const TIMEOUT: Duration = Duration::from_secs(30);
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The measurements of one kind of request: the rate of each round, and the duration of each request.
#[derive(Debug, Default)]
struct Load {
    rates: Vec<f64>,
    times_ms: Vec<f64>,
}

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let [mut empty, mut read, mut inject] = [Load::default(), Load::default(), Load::default()];
    let mut in_process = Vec::new();
    let texts = texts();
    for _ in 0..stage.sizes.rounds {
        in_process.push(append_in_process(stage, &texts).await?);
        let each = appends_each(stage);
        let mut command = program::this_program(&stage.scratch)?;
        command.arg("--serve-empty");
        let floor = ServerProcess::start(command)?;
        measure(&mut empty, floor.addr, each * READS_PER_APPEND, |_| get("/"))?;
        drop(floor);
        let url = stage.scratch.url("http.db");
        let mut command = program::sapwood(&stage.scratch);
        command.args(["--store", &url, "serve", "--addr", "127.0.0.1:0", "--json"]);
        let served = ServerProcess::start(command)?;
        measure(&mut Load::default(), served.addr, 1, |at| {
            post("/v1/sessions", &format!(r#"{{"id":"s{at}"}}"#))
        })?;
        measure(&mut inject, served.addr, each, |at| {
            let message = json!({ "role": "user", "content": texts[at] });
            post(&format!("/v1/sessions/s{at}/entries"), &message.to_string())
        })?;
        measure(&mut read, served.addr, each * READS_PER_APPEND, |at| get(&format!("/v1/sessions/s{at}")))?;
        drop(served);
        stage.scratch.remove("http.db");
    }
    Ok(figures_of([empty, read, inject], median(in_process)))
}

fn figures_of(loads: [Load; 3], in_process: f64) -> Vec<Figure> {
    let [(empty, empty_p99), (read, read_p99), (inject, inject_p99)] = loads.map(|mut load| {
        load.times_ms.sort_by(f64::total_cmp);
        let p99 = load.times_ms.get(load.times_ms.len() * 99 / 100).copied().unwrap_or(f64::NAN);
        (median(load.rates), p99)
    });
    let rate = |name: &str, value| Figure::new(AXIS, name, value, "/s");
    let p99 = |name: &str, value| Figure::new(AXIS, name, value, "ms");
    vec![
        rate("baseline: an empty route, 64 connections", empty),
        rate("baseline: 64 in-process streams of durable appends", in_process),
        rate("small reads, 64 connections", read).over(empty).goal(Goal::AtLeast(0.5)),
        rate("durable injects, 64 connections", inject).over(in_process).goal(Goal::AtLeast(0.5)),
        p99("an empty route, p99", empty_p99),
        p99("small reads, p99", read_p99),
        p99("durable injects, p99", inject_p99),
    ]
}

fn appends_each(stage: &Stage) -> usize {
    (stage.sizes.appends / CONNECTIONS).max(EACH_MIN)
}

/// One message text per connection, from the user and assistant messages of the corpus.
fn texts() -> Vec<String> {
    let texts = bodies(SEED).filter(|body| matches!(body, Body::UserMessage(_) | Body::AssistantMessage(_)));
    texts.map(|body| body.text()).filter(|text| !text.is_empty()).take(CONNECTIONS).collect()
}

/// Append the same messages without HTTP.
async fn append_in_process(stage: &Stage, texts: &[String]) -> anyhow::Result<f64> {
    let engine = stage.open("http.db", Durability::Full)?;
    let each = appends_each(stage);
    let mut sessions = Vec::with_capacity(CONNECTIONS);
    for at in 0..CONNECTIONS {
        sessions.push(stage.session(&engine, &format!("s{at}")).await?);
    }
    let (scope, writer, texts) = (stage.scope.clone(), engine.clone(), texts.to_vec());
    let took = on_own_runtime(async move {
        let (began, mut writers) = (Instant::now(), JoinSet::new());
        for (session, text) in sessions.into_iter().zip(texts) {
            let (engine, scope) = (writer.clone(), scope.clone());
            writers.spawn(async move {
                for _ in 0..each {
                    engine
                        .edits()
                        .inject(&scope, &session, vec![user_text(&text)], Default::default())
                        .await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = writers.join_next().await {
            done??;
        }
        Ok(began.elapsed())
    })?;
    stage.close("http.db", engine)?;
    stage.scratch.remove("http.db");
    Ok(per_second(each * CONNECTIONS, took))
}

/// A server in another process. Killed on drop.
pub struct ServerProcess {
    child: Child,
    pub addr: SocketAddr,
}

impl ServerProcess {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context(program::NOT_STARTED)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the server has no stdout")?).read_line(&mut line)?;
        let announced: Value = serde_json::from_str(&line).unwrap_or_default();
        let addr = announced["addr"].as_str().and_then(|addr| addr.parse().ok());
        let mut served = Self { child, addr: SocketAddr::from(([127, 0, 0, 1], 0)) };
        served.addr = addr.ok_or_else(|| anyhow!("unexpected output of the server: {line:?}"))?;
        Ok(served)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serve an empty route until killed: the baseline, in a separate process.
pub async fn serve_empty(out: &mut dyn Write) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    writeln!(out, "{}", serde_json::json!({ "addr": listener.local_addr()?.to_string() }))?;
    out.flush()?;
    let router = axum::Router::new().route("/", axum::routing::get(|| async {}));
    Ok(axum::serve(listener, router).await?)
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Each connection repeats its own request and waits for each response.
fn measure(
    load: &mut Load,
    addr: SocketAddr,
    each: usize,
    request: impl Fn(usize) -> Vec<u8>,
) -> anyhow::Result<()> {
    let requests: Vec<Vec<u8>> = (0..CONNECTIONS).map(request).collect();
    let (took, times) = on_one_thread(async move {
        let mut streams = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let (began, mut clients) = (Instant::now(), JoinSet::new());
        for (stream, request) in streams.into_iter().zip(requests) {
            clients.spawn(repeat_request(stream, request, each));
        }
        let mut times = Vec::with_capacity(CONNECTIONS * each);
        while let Some(done) = clients.join_next().await {
            times.extend(done??);
        }
        Ok((began.elapsed(), times))
    })?;
    load.rates.push(per_second(CONNECTIONS * each, took));
    load.times_ms.extend(times);
    Ok(())
}

/// Run the client on one thread, to leave as much CPU time as possible to the server.
fn on_one_thread<T: Send>(work: impl Future<Output = anyhow::Result<T>> + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
        scope.spawn(run).join().unwrap_or_else(|_| Err(anyhow!("the client panicked")))
    })
}

async fn repeat_request(mut stream: TcpStream, request: Vec<u8>, times: usize) -> anyhow::Result<Vec<f64>> {
    let (mut took, mut response) = (Vec::with_capacity(times), Vec::with_capacity(4_096));
    for _ in 0..times {
        let began = Instant::now();
        stream.write_all(&request).await?;
        tokio::time::timeout(TIMEOUT, read_response(&mut stream, &mut response)).await??;
        took.push(millis(began.elapsed()));
    }
    Ok(took)
}

/// Read one response with a content length.
async fn read_response(stream: &mut TcpStream, response: &mut Vec<u8>) -> anyhow::Result<()> {
    response.clear();
    loop {
        if stream.read_buf(response).await? == 0 || response.len() > RESPONSE_BYTES_MAX {
            bail!("the server closed the connection, or its response is too large");
        }
        let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&response[..end])?;
        if !head.starts_with("HTTP/1.1 2") {
            bail!("the server returned {}", head.lines().next().unwrap_or_default());
        }
        let length = head.lines().filter_map(|line| line.split_once(": "));
        let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length: usize = length.next().map_or(Ok(0), |(_, length)| length.parse())?;
        if response.len() >= end + 4 + length {
            return Ok(());
        }
    }
}
