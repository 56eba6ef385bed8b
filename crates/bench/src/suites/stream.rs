//! Delivery over event streams: the time from the start of a durable append until an HTTP subscriber receives the
//! event. Server and subscribers share this process and two threads, so the figures include the subscribers' work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use sapwood::store::Durability;
use sapwood::{Engine, Scope, SessionId, user_text};
use sapwood_server::auth::Authenticator;
use sapwood_server::{Listening, Settings, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::measure::{median, millis};
use crate::stage::Stage;
use crate::table::Figure;

const AXIS: &str = "stream";
const SUBSCRIBERS: &[usize] = &[1, 100, 2_000];
const WORKERS: usize = 2;
/// Minimum pause between two appends, extended for each subscriber, so that an event is delivered before the next
/// append.
const PAUSE: Duration = Duration::from_millis(150);
const PAUSE_PER_SUBSCRIBER: Duration = Duration::from_micros(500);
/// Timeout of a subscriber for one event.
const TIMEOUT: Duration = Duration::from_secs(30);

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for subscribers in SUBSCRIBERS {
        let engine = stage.open("stream.db", Durability::Full)?;
        let (scope, events) = (stage.scope.clone(), stage.sizes.rounds * 4);
        let measured = on_own_runtime(deliver(engine.clone(), scope, *subscribers, events))?;
        stage.close("stream.db", engine)?;
        stage.scratch.remove("stream.db");
        figures.extend(figures_of(*subscribers, measured));
    }
    Ok(figures)
}

fn figures_of(subscribers: usize, mut times_ms: Vec<f64>) -> [Figure; 2] {
    times_ms.sort_by(f64::total_cmp);
    let p99 = times_ms.get(times_ms.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    let figure = |what, value| Figure::new(AXIS, format!("delivery to {subscribers}, {what}"), value, "ms");
    [figure("median", median(times_ms)), figure("p99", p99)]
}

/// Run on a multi-threaded runtime, like the server. The benchmark itself runs on a single-threaded runtime.
pub fn on_own_runtime<T: Send>(work: impl Future<Output = anyhow::Result<T>> + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let run = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(WORKERS).enable_all().build()?.block_on(work)
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(anyhow!("the server's runtime panicked")))
    })
}

/// The delivery time of every event to every subscriber.
async fn deliver(
    engine: Engine,
    scope: Scope,
    subscribers: usize,
    events: usize,
) -> anyhow::Result<Vec<f64>> {
    let authenticator = Authenticator::new(engine.store().clone(), Some(scope.clone()), None);
    let state = State::new(engine.clone(), authenticator, Settings::default(), Vec::new());
    let listening = Listening::bind(SocketAddr::from(([127, 0, 0, 1], 0)), state).await?;
    let addr = listening.addr;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(listening.run(async move { drop(stopped.await) }));
    let (session, _) = engine.sessions().open(&scope, sapwood::OpenOptions::default()).await?;
    let mut readers = JoinSet::new();
    for _ in 0..subscribers {
        let stream = subscribe(addr, &session).await.context("failed to subscribe; try `ulimit -n 8192`")?;
        readers.spawn(read_times(stream, events));
    }
    let pause = PAUSE + PAUSE_PER_SUBSCRIBER * u32::try_from(subscribers)?;
    let mut began = Vec::with_capacity(events);
    for number in 0..events {
        tokio::time::sleep(pause).await;
        began.push(Instant::now());
        engine
            .edits()
            .inject(&scope, &session, vec![user_text(number.to_string())], Default::default())
            .await?;
    }
    let began = Arc::new(began);
    let mut times = Vec::with_capacity(subscribers * events);
    while let Some(arrived) = readers.join_next().await {
        times.extend(arrived??.iter().zip(began.iter()).map(|(at, began)| millis(*at - *began)));
    }
    drop(stop);
    server.await?;
    Ok(times)
}

/// Subscribe and wait for the start of the server's response.
async fn subscribe(addr: SocketAddr, session: &SessionId) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET /v1/sessions/{session}/events HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = [0; 1024];
    let length = stream.read(&mut response).await?;
    if !response[..length].starts_with(b"HTTP/1.0 200") {
        bail!("the server returned {}", String::from_utf8_lossy(&response[..length]));
    }
    Ok(stream)
}

/// The arrival time of each event, detected by the line with its id.
async fn read_times(mut stream: TcpStream, events: usize) -> anyhow::Result<Vec<Instant>> {
    let (mut times, mut rest, mut buffer) = (Vec::with_capacity(events), Vec::new(), [0; 4096]);
    while times.len() < events {
        let length = tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await??;
        if length == 0 {
            bail!("the stream ended");
        }
        rest.extend_from_slice(&buffer[..length]);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if rest.starts_with(b"id:") {
                times.push(Instant::now());
            }
            rest.drain(..=end);
        }
    }
    Ok(times)
}
