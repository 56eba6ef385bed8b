//! The whole context of a long session without a compaction vs. parsing the same messages from lines.

use std::time::Instant;

use sapwood::store::Durability;

use crate::floor;
use crate::measure::{median, millis};
use crate::stage::{LONG, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "full";

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    stage.long().await?;
    let lines = stage.scratch.file("long.jsonl");
    let engine = stage.open("long.db", Durability::Normal)?;
    let session = stage.session(&engine, LONG).await?;
    // Baseline and measurement alternate, so that temporary slowness of the machine affects both.
    let (mut parsed, mut built) = (Vec::new(), Vec::new());
    for _ in 0..stage.sizes.rounds {
        let start = Instant::now();
        let values = floor::parse_all(&lines)?;
        parsed.push(millis(start.elapsed()));
        drop(values);
        let start = Instant::now();
        let context = engine.views().context(&stage.scope, &session, None).await?;
        built.push(millis(start.elapsed()));
        anyhow::ensure!(context.messages.len() >= stage.sizes.long, "{} messages", context.messages.len());
    }
    stage.close("long.db", engine)?;
    let name = format!("context of {} messages, vs. parsing their lines", stage.sizes.long);
    Ok(vec![Figure::new(AXIS, name, median(built), "ms").over(median(parsed)).goal(Goal::AtMost(1.0))])
}
