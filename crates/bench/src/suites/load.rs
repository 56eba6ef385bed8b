//! A server under load, in another process: its memory while long documents are read, while readers stall, and its health
//! while thousands of subscribers receive events. Each figure of memory is the peak minus the memory of an idle server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sapwood::Engine;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::http::ServerProcess;
use crate::measure::millis;
use crate::program;
use crate::stage::{HUGE, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "load";
const STALLED: usize = 1_000;
const SUBSCRIBERS: usize = 10_000;
const KEYS: usize = 100;
const EVENTS: usize = 10;
/// Pause between two events, so that each can be delivered before the next.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause between two samples of the server's memory.
const SAMPLE_PAUSE: Duration = Duration::from_millis(10);
/// How long stalled readers are observed.
const STALL_TIME: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(120);
const BUFFER_BYTES: usize = 64 << 10;
/// Goals, in MB over the idle server.
const ONE_MB_MAX: f64 = 64.0;
const EIGHT_MB_MAX: f64 = 256.0;
const STALLED_MB_MAX: f64 = 100.0;
const HEALTH_MS_MAX: f64 = 50.0;

const CONFIG: &str = "[server]\nrate_per_second = 0\nconnections_max = 11000\nconnections_per_principal_max = 0\n\
    streams_per_principal_max = 0\nconnections_per_address_max = 0\n";

/// A document that is read as a whole.
#[derive(Debug, Clone, Copy)]
enum Document {
    Get(&'static str),
    Export(&'static str),
    /// All pages of the entries, one after the other.
    Entries,
}

const DOCUMENTS: [(&str, Document); 8] = [
    ("entries", Document::Entries),
    ("context", Document::Get("context")),
    ("feed", Document::Get("feed")),
    ("tree", Document::Get("tree")),
    ("export jsonl", Document::Export("jsonl")),
    ("export pi", Document::Export("pi")),
    ("export markdown", Document::Export("markdown")),
    ("export html", Document::Export("html")),
];

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let engine: Engine = stage.huge(|_| ()).await?;
    stage.close("huge.db", engine)?;
    std::fs::write(stage.scratch.file("sapwood.toml"), CONFIG)?;
    let mut figures = Vec::new();
    for (name, document) in DOCUMENTS {
        let served = start(stage)?;
        let (began, peak) = (Instant::now(), MemoryPeak::start(&served)?);
        let bytes = read(served.addr, document).await.with_context(|| name.to_owned())?;
        let took = began.elapsed();
        figures.push(memory(name, peak.stop()).goal(Goal::AtMost(ONE_MB_MAX)));
        let rate = bytes as f64 / 1e6 / took.as_secs_f64();
        figures.push(Figure::new(AXIS, format!("{name}, {} entries", stage.sizes.huge), rate, "MB/s"));
    }
    figures.push(eight_at_once(stage).await?);
    for (name, document) in &DOCUMENTS[1..3] {
        figures.push(stalled(stage, name, *document).await?);
    }
    figures.push(stalled(stage, "export jsonl", Document::Export("jsonl")).await?);
    figures.extend(subscribers(stage).await?);
    Ok(figures)
}

fn memory(name: &str, megabytes: f64) -> Figure {
    Figure::new(AXIS, format!("{name}: memory over the idle server"), megabytes, "MB")
}

fn start(stage: &Stage) -> anyhow::Result<ServerProcess> {
    let mut command = program::sapwood(&stage.scratch);
    command.args(["--store", &stage.scratch.url("huge.db"), "serve", "--addr", "127.0.0.1:0", "--json"]);
    ServerProcess::start(command)
}

async fn eight_at_once(stage: &Stage) -> anyhow::Result<Figure> {
    let served = start(stage)?;
    let (peak, mut readers) = (MemoryPeak::start(&served)?, JoinSet::new());
    for (_, document) in DOCUMENTS {
        readers.spawn(read(served.addr, document));
    }
    while let Some(done) = readers.join_next().await {
        done??;
    }
    Ok(memory("eight documents at once", peak.stop()).goal(Goal::AtMost(EIGHT_MB_MAX)))
}

async fn stalled(stage: &Stage, name: &str, document: Document) -> anyhow::Result<Figure> {
    let served = start(stage)?;
    let (peak, mut readers) = (MemoryPeak::start(&served)?, Vec::new());
    for _ in 0..STALLED {
        readers.push(open(served.addr, &request_of(document, 0), None).await?);
    }
    tokio::time::sleep(STALL_TIME).await;
    let held = peak.current();
    drop(readers);
    Ok(memory(&format!("{STALLED} stalled readers of {name}"), held).goal(Goal::AtMost(STALLED_MB_MAX)))
}

fn request_of(document: Document, after: u64) -> (&'static str, String, String) {
    let session = format!("/v1/sessions/{HUGE}");
    match document {
        Document::Get(what) => ("GET", format!("{session}/{what}"), String::new()),
        Document::Export(format) => {
            ("POST", format!("{session}/export"), json!({ "format": format }).to_string())
        }
        Document::Entries => ("GET", format!("{session}/entries?limit=1000&after={after}"), String::new()),
    }
}

/// Read a document and return its size.
async fn read(addr: SocketAddr, document: Document) -> anyhow::Result<u64> {
    let (mut bytes, mut after) = (0, 0);
    loop {
        let stream = open(addr, &request_of(document, after), None).await?;
        if !matches!(document, Document::Entries) {
            return read_to_end(stream).await;
        }
        let (mut stream, mut page) = (stream, Vec::new());
        stream.read_to_end(&mut page).await?;
        bytes += page.len() as u64;
        let page: Value = serde_json::from_slice(&page)?;
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => return Ok(bytes),
        }
    }
}

async fn read_to_end(mut stream: TcpStream) -> anyhow::Result<u64> {
    let (mut bytes, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    loop {
        match tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await?? {
            0 => return Ok(bytes),
            length => bytes += length as u64,
        }
    }
}

/// Send a request and read the head of its response.
async fn open(
    addr: SocketAddr,
    (method, path, body): &(&str, String, String),
    key: Option<&str>,
) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    let authorization = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nhost: 127.0.0.1\r\n{authorization}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(TIMEOUT, stream.read_u8()).await??);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if !head.starts_with("HTTP/1.0 200") {
        bail!("the server returned {}", head.lines().next().unwrap_or_default());
    }
    Ok(stream)
}

/// Events to many subscribers with many keys, and the time in which health is answered meanwhile.
async fn subscribers(stage: &Stage) -> anyhow::Result<Vec<Figure>> {
    let keys = new_keys(stage)?;
    let served = start(stage)?;
    let peak = MemoryPeak::start(&served)?;
    let session = ("POST", "/v1/sessions".to_owned(), json!({ "id": "subscribed" }).to_string());
    let _ = open(served.addr, &session, Some(&keys[0])).await;
    let (mut readers, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    let events = ("GET", "/v1/sessions/subscribed/events".to_owned(), String::new());
    for number in 0..SUBSCRIBERS {
        let stream = open(served.addr, &events, Some(&keys[number % KEYS])).await;
        readers.spawn(receive(stream.context("failed to subscribe; try `ulimit -n 20000`")?));
    }
    let probes = tokio::spawn(probe(served.addr, is_over.clone()));
    let began = Instant::now();
    for number in 0..EVENTS {
        let message = json!({ "role": "user", "content": number.to_string() }).to_string();
        let path = "/v1/sessions/subscribed/entries".to_owned();
        // The server answers 201, which `open` refuses; only a failed connection is an error.
        let _ = open(served.addr, &("POST", path, message), Some(&keys[0])).await;
        tokio::time::sleep(PAUSE).await;
    }
    let mut received = 0;
    while let Some(done) = readers.join_next().await {
        received += done??;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut times = probes.await??;
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    let name = |what: &str| format!("{SUBSCRIBERS} subscribers: {what}");
    Ok(vec![
        Figure::new(AXIS, name("events received"), received as f64, "events")
            .goal(Goal::AtLeast((SUBSCRIBERS * EVENTS) as f64)),
        Figure::new(AXIS, name("time for all events"), millis(began.elapsed()), "ms"),
        Figure::new(AXIS, name("health, p99"), p99, "ms").goal(Goal::AtMost(HEALTH_MS_MAX)),
        memory(&name("all"), peak.stop()),
    ])
}

fn new_keys(stage: &Stage) -> anyhow::Result<Vec<String>> {
    let mut keys = Vec::with_capacity(KEYS);
    for number in 0..KEYS {
        let mut command = program::sapwood(&stage.scratch);
        let (url, user) = (stage.scratch.url("huge.db"), format!("user{number}"));
        command.args(["--store", &url, "--json", "key", "new", "--user", &user]);
        command.args(["--scope", "read,write,operate"]).stdout(std::process::Stdio::piped());
        let made: Value = serde_json::from_slice(&command.output().context(program::NOT_STARTED)?.stdout)?;
        keys.push(made["key"].as_str().context("`sapwood key new` printed no key")?.to_owned());
    }
    Ok(keys)
}

/// Count the events of a stream.
async fn receive(mut stream: TcpStream) -> anyhow::Result<usize> {
    let (mut received, mut line, mut buffer) = (0, Vec::new(), [0; 2_048]);
    while received < EVENTS {
        let length = tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await??;
        if length == 0 {
            bail!("a stream ended after {received} events");
        }
        for byte in &buffer[..length] {
            if *byte != b'\n' {
                line.push(*byte);
                continue;
            }
            received += usize::from(line.starts_with(b"id:"));
            line.clear();
        }
    }
    Ok(received)
}

/// Ask for the server's health until it is over. Returns the time of each answer in milliseconds.
async fn probe(addr: SocketAddr, is_over: Arc<AtomicBool>) -> anyhow::Result<Vec<f64>> {
    let (mut times, health) = (Vec::new(), ("GET", "/healthz".to_owned(), String::new()));
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        open(addr, &health, None).await?;
        times.push(millis(began.elapsed()));
        tokio::time::sleep(SAMPLE_PAUSE).await;
    }
    Ok(times)
}

/// Samples the memory of a server in a thread of its own.
struct MemoryPeak {
    pid: u32,
    idle: f64,
    is_over: Arc<AtomicBool>,
    sampler: std::thread::JoinHandle<f64>,
}

impl MemoryPeak {
    fn start(served: &ServerProcess) -> anyhow::Result<Self> {
        let pid = served.pid();
        let idle = resident_mb(pid).context("the system does not report the memory of processes")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let sampler = std::thread::spawn(move || {
            let mut peak = 0.0_f64;
            while !stop.load(Ordering::Relaxed) {
                peak = peak.max(resident_mb(pid).unwrap_or_default());
                std::thread::sleep(SAMPLE_PAUSE);
            }
            peak
        });
        Ok(Self { pid, idle, is_over, sampler })
    }

    fn current(&self) -> f64 {
        resident_mb(self.pid).unwrap_or_default() - self.idle
    }

    fn stop(self) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.sampler.join().unwrap_or(f64::NAN) - self.idle
    }
}

fn resident_mb(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1_024.0)
}
