//! A fork of a long session at its middle vs. a fork of a session with ten entries: time and bytes should be equal.

use std::time::Instant;

use anyhow::Context as _;
use sapwood::store::{Durability, baseline as sqlite};
use sapwood::{ForkAt, OpenOptions, Seq};

use crate::bodies::{bodies, line_of};
use crate::floor;
use crate::measure::{median, millis};
use crate::stage::{LONG, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "fork";
const FORKS: usize = 256;
const TEN: u32 = 10;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    stage.long().await?;
    let engine = stage.open("long.db", Durability::Full)?;
    let ten = stage.session(&engine, "ten").await?;
    stage.fill(&engine, &ten, bodies(12), TEN as usize, |_| ()).await?;
    stage.close("long.db", engine)?;
    let (long_ms, long_kb) = fork_many(stage, LONG, Seq(stage.sizes.long as u32 / 2)).await?;
    let (ten_ms, ten_kb) = fork_many(stage, "ten", Seq(TEN / 2)).await?;
    let long = stage.sizes.long;
    let line = line_of(&bodies(12).next().context("the corpus is empty")?);
    let synced = floor::append_synced(&stage.scratch.file("floor"), &vec![line; FORKS], 1)?;
    Ok(vec![
        Figure::new(AXIS, "baseline: one append and fdatasync", millis(synced) / FORKS as f64, "ms"),
        Figure::new(AXIS, format!("fork of {long} entries at the middle"), long_ms, "ms")
            .goal(Goal::AtMost(1.0)),
        Figure::new(AXIS, format!("fork of {long} entries, on disk"), long_kb, "KB").goal(Goal::AtMost(16.0)),
        Figure::new(AXIS, format!("fork of {TEN} entries"), ten_ms, "ms").goal(Goal::AtMost(1.0)),
        Figure::new(AXIS, format!("fork of {TEN} entries, on disk"), ten_kb, "KB").goal(Goal::AtMost(16.0)),
        Figure::new(AXIS, "time, long vs. short", long_ms, "ms").over(ten_ms).goal(Goal::AtMost(2.0)),
    ])
}

/// The median time of a durable fork in milliseconds, and the kilobytes per fork on disk.
async fn fork_many(stage: &Stage, source: &str, at: Seq) -> anyhow::Result<(f64, f64)> {
    let used = || sqlite::used_bytes(&stage.scratch.file("long.db")).map_err(anyhow::Error::msg);
    let before = used()?;
    let engine = stage.open("long.db", Durability::Full)?;
    let source = stage.session(&engine, source).await?;
    let mut times = Vec::with_capacity(FORKS);
    for number in 0..FORKS {
        let id = format!("fork-{source}-{number}").parse()?;
        let options = OpenOptions { id: Some(id), ..OpenOptions::default() };
        let start = Instant::now();
        engine.sessions().fork(&stage.scope, &source, ForkAt::Entry(at), options).await?;
        times.push(millis(start.elapsed()));
    }
    stage.close("long.db", engine)?;
    Ok((median(times), used()?.saturating_sub(before) as f64 / 1_024.0 / FORKS as f64))
}
