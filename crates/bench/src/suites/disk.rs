//! Bytes on disk per byte of content, the search index included.

use crate::measure::file_bytes;
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "disk";

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let long = stage.long().await?;
    let lines = file_bytes(stage.scratch.path(), "long.jsonl")?;
    let content = long.content_bytes as f64;
    Ok(vec![
        Figure::new(AXIS, "content", content / 1e6, "MB"),
        Figure::new(AXIS, "the same as JSON lines, per byte of content", lines as f64 / content, "B/B"),
        Figure::new(AXIS, "per byte of content, index included", long.bytes_on_disk as f64 / content, "B/B")
            .goal(Goal::AtMost(0.9)),
    ])
}
