//! Listing the newest of many sessions.

use sapwood::core::port::store::ListFilter;
use sapwood::store::Durability;

use crate::bodies::bodies;
use crate::measure::median_millis;
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "list";
const RUNS: usize = 201;
const NEWEST: usize = 50;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let engine = stage.open("list.db", Durability::Normal)?;
    let mut messages = bodies(13);
    for number in 0..stage.sizes.sessions {
        let session = stage.session(&engine, &format!("session-{number}")).await?;
        stage.append(&engine, &session, messages.by_ref().take(2).collect()).await?;
    }
    let filter = ListFilter { limit: NEWEST, ..ListFilter::default() };
    let time = median_millis(RUNS, || async {
        let page = engine.directory().list(&stage.scope, &filter).await?;
        anyhow::ensure!(page.items.len() == NEWEST, "{} sessions", page.items.len());
        Ok(page)
    })
    .await?;
    stage.close("list.db", engine)?;
    stage.scratch.remove("list.db");
    let name = format!("newest {NEWEST} of {} sessions", stage.sizes.sessions);
    Ok(vec![Figure::new(AXIS, name, time, "ms").goal(Goal::AtMost(1.0))])
}
