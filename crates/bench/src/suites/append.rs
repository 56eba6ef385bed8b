//! Durable appends: a single writer and 64 writers that share commits vs. a file that is appended to and
//! synced, weaker durability vs. plain SQLite with the same setting, and a long log vs. a short log.

use std::time::Instant;

use sapwood::store::{Durability, baseline as sqlite};
use sapwood::{Body, Engine, SessionId};

use crate::bodies::{bodies, line_of, short_bodies};
use crate::floor;
use crate::measure::{median, per_second};
use crate::stage::{HUGE, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "append";
const STREAMS: usize = 64;
/// Number of threads of the runtime for concurrent tasks.
const WORKERS: usize = 2;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let mut figures = rates(stage).await?;
    figures.push(cost_at_length(stage).await?);
    Ok(figures)
}

/// Measured rates, one list per kind of write.
#[derive(Default)]
struct Rates {
    raw: Vec<f64>,
    preallocated: Vec<f64>,
    grouped: Vec<f64>,
    sqlite_full: Vec<f64>,
    sqlite_normal: Vec<f64>,
    sqlite_grouped: Vec<f64>,
    one_full: Vec<f64>,
    one_normal: Vec<f64>,
    many_tasks: Vec<f64>,
    many_threads: Vec<f64>,
}

async fn rates(stage: &Stage) -> anyhow::Result<Vec<Figure>> {
    let messages: Vec<Body> = bodies(11).take(stage.sizes.appends).collect();
    let lines: Vec<Vec<u8>> = messages.iter().map(line_of).collect();
    let mut rates = Rates::default();
    // Baselines and measurements alternate, so that temporary slowness of the disk affects both.
    for _ in 0..stage.sizes.rounds {
        measure_floors(stage, &lines, &mut rates)?;
        rates.one_full.push(one_stream(stage, &messages, Durability::Full).await?);
        rates.one_normal.push(one_stream(stage, &messages, Durability::Normal).await?);
        rates.many_tasks.push(many_streams(stage, &messages, Concurrency::Tasks).await?);
        rates.many_threads.push(many_streams(stage, &messages, Concurrency::Threads).await?);
    }
    Ok(figures_of(rates))
}

fn figures_of(rates: Rates) -> Vec<Figure> {
    let raw = median(rates.raw);
    let sqlite_normal = median(rates.sqlite_normal);
    let figure = |name: &str, value: f64| Figure::new(AXIS, name, value, "/s");
    vec![
        figure("baseline: append and fdatasync each", raw),
        figure("baseline: the same, preallocated", median(rates.preallocated)),
        figure("baseline: 64 records per sync", median(rates.grouped)),
        figure("baseline: plain SQLite, FULL", median(rates.sqlite_full)),
        figure("baseline: plain SQLite, NORMAL", sqlite_normal),
        figure("baseline: plain SQLite, FULL, 64 rows per commit", median(rates.sqlite_grouped)),
        figure("one stream, full", median(rates.one_full)).over(raw).goal(Goal::AtLeast(0.5)),
        figure("64 streams as tasks, full", median(rates.many_tasks)).over(raw).goal(Goal::AtLeast(6.0)),
        figure("64 streams with a thread each, full", median(rates.many_threads)).over(raw),
        figure("one stream, normal", median(rates.one_normal)).over(sqlite_normal).goal(Goal::AtLeast(0.4)),
    ]
}

fn measure_floors(stage: &Stage, lines: &[Vec<u8>], rates: &mut Rates) -> anyhow::Result<()> {
    let path = stage.scratch.file("floor");
    let rate = |duration| per_second(lines.len(), duration);
    rates.raw.push(rate(floor::append_synced(&path, lines, 1)?));
    rates.preallocated.push(rate(floor::append_preallocated(&path, lines)?));
    rates.grouped.push(rate(floor::append_synced(&path, lines, STREAMS)?));
    stage.scratch.remove("floor");
    let plain = |per_commit, durability| {
        let taken = sqlite::plain_inserts(&stage.scratch.file("floor.db"), lines, per_commit, durability);
        stage.scratch.remove("floor.db");
        taken.map(rate).map_err(anyhow::Error::msg)
    };
    rates.sqlite_full.push(plain(1, Durability::Full)?);
    rates.sqlite_normal.push(plain(1, Durability::Normal)?);
    rates.sqlite_grouped.push(plain(STREAMS, Durability::Full)?);
    Ok(())
}

async fn one_stream(stage: &Stage, messages: &[Body], durability: Durability) -> anyhow::Result<f64> {
    let engine = stage.open("append.db", durability)?;
    let session = stage.session(&engine, "one").await?;
    let messages = messages.to_vec();
    let (count, start) = (messages.len(), Instant::now());
    for body in messages {
        stage.append(&engine, &session, vec![body]).await?;
    }
    let rate = per_second(count, start.elapsed());
    stage.close("append.db", engine)?;
    stage.scratch.remove("append.db");
    Ok(rate)
}

/// How the concurrent streams run.
#[derive(Debug, Clone, Copy)]
enum Concurrency {
    /// As tasks on a runtime with two threads, as in a server.
    Tasks,
    /// One thread per stream. The system wakes the thread after every append.
    Threads,
}

/// Each stream waits for its append before it starts the next. Streams share commits.
async fn many_streams(stage: &Stage, messages: &[Body], concurrency: Concurrency) -> anyhow::Result<f64> {
    let engine = stage.open("append.db", Durability::Full)?;
    let each = (messages.len() * 4 / STREAMS).max(4);
    let mut streams = Vec::with_capacity(STREAMS);
    for stream in 0..STREAMS {
        let session = stage.session(&engine, &format!("stream-{stream}")).await?;
        let mine: Vec<Body> = messages.iter().cycle().skip(stream * 7).take(each).cloned().collect();
        streams.push(append_all(engine.clone(), stage.scope.clone(), session, mine));
    }
    let start = Instant::now();
    match concurrency {
        Concurrency::Tasks => run_as_tasks(streams)?,
        Concurrency::Threads => run_on_threads(streams)?,
    }
    let rate = per_second(each * STREAMS, start.elapsed());
    stage.close("append.db", engine)?;
    stage.scratch.remove("append.db");
    Ok(rate)
}

pub fn run_as_tasks(
    streams: Vec<impl Future<Output = anyhow::Result<()>> + Send + 'static>,
) -> anyhow::Result<()> {
    let all = async {
        let mut tasks: tokio::task::JoinSet<_> = streams.into_iter().collect();
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    };
    // Use a separate thread: the benchmark runs on a runtime, and a second runtime can neither run nor be dropped
    // there.
    std::thread::scope(|scope| {
        let run =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build()?.block_on(all);
        scope.spawn(run).join().unwrap_or_else(|_| Err(anyhow::anyhow!("the streams' runtime panicked")))
    })
}

fn run_on_threads(streams: Vec<impl Future<Output = anyhow::Result<()>> + Send>) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let run = |stream| {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            runtime.block_on(stream)
        };
        let threads: Vec<_> = streams.into_iter().map(|stream| scope.spawn(move || run(stream))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a stream's thread panicked")))
        })
    })
}

pub(super) async fn append_all(
    engine: Engine,
    scope: sapwood::Scope,
    session: SessionId,
    messages: Vec<Body>,
) -> anyhow::Result<()> {
    for body in messages {
        engine.edits().inject(&scope, &session, vec![body], Default::default()).await?;
    }
    Ok(())
}

/// Cost of an append at the end of a huge log, relative to a small log.
async fn cost_at_length(stage: &mut Stage) -> anyhow::Result<Figure> {
    let engine = stage.huge(|_| ()).await?;
    let small = stage.session(&engine, "small").await?;
    let huge = stage.session(&engine, HUGE).await?;
    stage.fill(&engine, &small, short_bodies(3), stage.sizes.small, |_| ()).await?;
    let messages: Vec<Body> = short_bodies(4).take(100).collect();
    let (mut at_small, mut at_huge) = (Vec::new(), Vec::new());
    for _ in 0..stage.sizes.rounds * 6 {
        at_small.push(time_appends(stage, &engine, &small, &messages).await?);
        at_huge.push(time_appends(stage, &engine, &huge, &messages).await?);
    }
    stage.close("huge.db", engine)?;
    let name = format!("an append to {} entries, vs. one to {}", stage.sizes.huge, stage.sizes.small);
    Ok(Figure::new(AXIS, name, median(at_huge), "µs").over(median(at_small)).goal(Goal::AtMost(1.3)))
}

async fn time_appends(
    stage: &Stage,
    engine: &Engine,
    session: &SessionId,
    messages: &[Body],
) -> anyhow::Result<f64> {
    let start = Instant::now();
    for body in messages {
        stage.append(engine, session, vec![body.clone()]).await?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / messages.len() as f64)
}
