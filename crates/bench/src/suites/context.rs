//! The context of the last messages after a compaction: in a short and in a huge session, with dead branches in
//! between, and from a cold process.

use std::time::Instant;

use anyhow::Context;
use sapwood::core::entry::LeafMoved;
use sapwood::{Body, Engine, SessionId};

use crate::bodies::{bodies, line_of, short_bodies};
use crate::floor;
use crate::measure::{median, median_millis, millis};
use crate::program;
use crate::stage::{HUGE, KEPT, Stage, compaction};
use crate::table::{Figure, Goal};

const AXIS: &str = "context";
const RUNS: usize = 201;
const COLD_RUNS: usize = 15;
/// Number of dead branches after each kept message: 100 in total.
const BRANCHES_EACH: usize = 2;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let engine = stage.huge(|_| ()).await?;
    let sizes = stage.sizes;
    let mut figures = vec![floor_figure(stage).await?];
    let middle = sizes.huge / 10;
    let (small, large) =
        (stage.session(&engine, "c-small").await?, stage.session(&engine, "c-middle").await?);
    stage.fill(&engine, &small, short_bodies(6), sizes.small, |_| ()).await?;
    stage.fill(&engine, &large, short_bodies(7), middle, |_| ()).await?;
    let huge = stage.session(&engine, HUGE).await?;
    let mut times = Vec::new();
    for (session, entries) in [(&small, sizes.small), (&large, middle), (&huge, sizes.huge)] {
        stage.compact_behind(&engine, session).await?;
        let time = time_context(stage, &engine, session).await?;
        times.push(time);
        let name = format!("last {KEPT} of {entries} entries");
        figures.push(Figure::new(AXIS, name, time, "ms").goal(Goal::AtMost(1.0)));
    }
    add_branches(stage, &engine, &large).await?;
    let time = time_context(stage, &engine, &large).await?;
    times.push(time);
    let name = format!("last {KEPT} with {} dead branches in between", KEPT * BRANCHES_EACH);
    figures.push(Figure::new(AXIS, name, time, "ms").goal(Goal::AtMost(1.0)));
    let (least, most) =
        (times.iter().copied().fold(f64::MAX, f64::min), times.iter().copied().fold(0.0, f64::max));
    figures.push(
        Figure::new(AXIS, "slowest vs. fastest of these", most, "ms").over(least).goal(Goal::AtMost(2.0)),
    );
    stage.close("huge.db", engine)?;
    figures.extend(cold(stage)?);
    Ok(figures)
}

async fn floor_figure(stage: &Stage) -> anyhow::Result<Figure> {
    let path = stage.scratch.file("short.jsonl");
    let messages = short_bodies(8).take(stage.sizes.huge / 10 - KEPT).chain(bodies(5).take(KEPT));
    floor::write_lines(&path, messages.map(|body| line_of(&body)))?;
    let time = median_millis(RUNS, || async { floor::parse_last(&path, KEPT) }).await?;
    Ok(Figure::new(AXIS, format!("baseline: read and parse the last {KEPT} lines"), time, "ms"))
}

async fn time_context(stage: &Stage, engine: &Engine, session: &SessionId) -> anyhow::Result<f64> {
    median_millis(RUNS, || async {
        let context = engine.views().context(&stage.scope, session, None).await?;
        // The kept messages, the summary, and placeholder results for calls without a result.
        anyhow::ensure!(
            (KEPT + 1..=KEPT + 2).contains(&context.messages.len()),
            "{} messages",
            context.messages.len()
        );
        Ok(context)
    })
    .await
}

/// Append messages, each followed by dead branches, and a compaction that keeps them.
async fn add_branches(stage: &Stage, engine: &Engine, session: &SessionId) -> anyhow::Result<()> {
    let mut first = None;
    let mut dead = short_bodies(9);
    for body in bodies(5).take(KEPT) {
        let id = stage.append(engine, session, vec![body]).await?.first().copied();
        first = first.or(id);
        for _ in 0..BRANCHES_EACH {
            let back = Body::LeafMoved(LeafMoved { to: id });
            let branch = dead.by_ref().take(10).chain(std::iter::once(back)).collect();
            stage.append(engine, session, branch).await?;
        }
    }
    stage.append(engine, session, vec![compaction(first)]).await?;
    Ok(())
}

/// Measure the `sapwood context` process from its start to its exit. Returns `None` if it fails.
fn cold(stage: &Stage) -> anyhow::Result<Option<Figure>> {
    let mut times = Vec::with_capacity(COLD_RUNS);
    for _ in 0..COLD_RUNS {
        let mut command = program::sapwood(&stage.scratch);
        command.args(["--store", &stage.scratch.url("huge.db"), "--json", "context", HUGE]);
        let start = Instant::now();
        if !command.status().context(program::NOT_STARTED)?.success() {
            return Ok(None);
        }
        times.push(millis(start.elapsed()));
    }
    let name = format!("a cold `sapwood context`, {} entries", stage.sizes.huge);
    Ok(Some(Figure::new(AXIS, name, median(times), "ms").goal(Goal::AtMost(20.0))))
}
