//! Full-text search in a long session: the newest hits for a rare and for a frequent word.

use sapwood::Engine;
use sapwood::core::port::store::SearchQuery;
use sapwood::store::Durability;

use crate::corpus::{COMMON_WORD, RARE_WORD, has_common, has_rare};
use crate::measure::median_millis;
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "search";
const RUNS: usize = 101;
const HITS: usize = 20;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let long = stage.long().await?;
    let engine = stage.open("long.db", Durability::Normal)?;
    let messages = 0..stage.sizes.long as u64;
    let rare = messages.clone().filter(|number| has_rare(*number)).count();
    let common = messages.filter(|number| has_common(*number)).count();
    let mut figures = vec![
        Figure::new(AXIS, "messages per second, written in batches", long.messages_per_second, "/s"),
        Figure::new(AXIS, "the first search, including index catch-up", long.catch_up_ms, "ms"),
    ];
    for (word, expected) in [(RARE_WORD, rare), (COMMON_WORD, common)] {
        let found = hits(stage, &engine, word).await?;
        anyhow::ensure!(found == expected.min(HITS), "{word}: {found} hits instead of {expected}");
        let time = median_millis(RUNS, || hits(stage, &engine, word)).await?;
        let name = format!("newest {HITS} of {expected} matches in {} messages", stage.sizes.long);
        figures.push(Figure::new(AXIS, name, time, "ms").goal(Goal::AtMost(3.0)));
    }
    stage.close("long.db", engine)?;
    Ok(figures)
}

async fn hits(stage: &Stage, engine: &Engine, word: &str) -> anyhow::Result<usize> {
    let query = SearchQuery { text: word.to_owned(), limit: HITS, ..SearchQuery::default() };
    Ok(engine.directory().search(&stage.scope, &query).await?.items.len())
}
