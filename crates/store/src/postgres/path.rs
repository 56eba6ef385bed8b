//! Reads a path, from an entry towards the root, as far as the caller needs it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_core::entry::{Body, Entry, Outcome, Stance};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::{Kind, Record, Seq, SessionId, TurnId};

use super::log::LogRows;
use super::prefetch::settings_at;
use crate::decode::{ContextGoal, decode_all};
use crate::validate::{beside_tree, no_entry};

pub(super) async fn read_path(
    log: &LogRows<'_>,
    summary: &Summary,
    at: Option<Seq>,
    until: Until,
) -> Result<PathSlice> {
    if let Some(at) = at {
        read_in_tree(log, &summary.id, at).await?;
    }
    let entries = match at.or(summary.head.leaf) {
        Some(from) if until != Until::Entries(0) => collect(log, from, until).await?,
        _ => Vec::new(),
    };
    let settings_before = match entries.first().and_then(|entry| entry.meta.parent) {
        Some(above) => settings_at(log, above).await?,
        None => Settings::default(),
    };
    Ok(PathSlice {
        head: summary.head,
        inherited: summary.inherited,
        settings_before,
        ended_turns: ended_turns(log, &entries).await?,
        open_turn: summary.open_turn,
        entries,
    })
}

/// Reads an entry. Fails if it does not exist or is not in the tree.
pub(super) async fn read_in_tree(log: &LogRows<'_>, session: &SessionId, seq: Seq) -> Result<Record> {
    let record = log.record(seq).await?.ok_or_else(|| no_entry(session, seq))?;
    match record.meta.kind.stance() {
        Stance::InTree => Ok(record),
        Stance::OutsideTree => Err(beside_tree(seq, record.meta.kind)),
    }
}

async fn collect(log: &LogRows<'_>, from: Seq, until: Until) -> Result<Vec<Entry>> {
    let db = log.db;
    let mut goal = ContextGoal::Searching;
    let mut raws = Vec::new();
    log.walk(from, &mut |raw| {
        let is_last = match until {
            Until::Root => false,
            Until::Entries(count) => raws.len() + 1 >= count as usize,
            Until::ContextStart => {
                if raw.meta.kind == Kind::Compaction && goal == ContextGoal::Searching {
                    goal = ContextGoal::of(&raw.body().map_err(|what| db.damaged(what))?);
                }
                goal == ContextGoal::Reached || goal == ContextGoal::Kept(raw.meta.id)
            }
        };
        raws.push(raw);
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
    .await?;
    let mut entries = decode_all(raws)?;
    entries.reverse();
    Ok(entries)
}

/// Returns the outcomes of the turns that began after the parent of the path's first entry.
async fn ended_turns(log: &LogRows<'_>, entries: &[Entry]) -> Result<Vec<(TurnId, Outcome)>> {
    let Some(first) = entries.first() else { return Ok(Vec::new()) };
    let after = first.meta.parent.unwrap_or_default();
    let began: HashSet<TurnId> =
        all_of_kind(log, Kind::TurnStarted, after).await?.iter().filter_map(|it| it.meta.turn).collect();
    let mut ended = Vec::new();
    if began.is_empty() {
        return Ok(ended);
    }
    for record in all_of_kind(log, Kind::TurnEnded, after).await? {
        let body = record.decode().map_err(|error| log.db.damaged(error))?;
        let turn = record.meta.turn.filter(|turn| began.contains(turn));
        if let (Some(turn), Body::TurnEnded(body)) = (turn, body) {
            ended.push((turn, body.outcome));
        }
    }
    Ok(ended)
}

async fn all_of_kind(log: &LogRows<'_>, kind: Kind, mut after: Seq) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    loop {
        let page = log.read_kind(kind, after, PAGE_ROWS_MAX).await?;
        after = page.last().map_or(after, |record| record.meta.seq);
        let is_last = page.len() < PAGE_ROWS_MAX;
        records.extend(page);
        if is_last {
            return Ok(records);
        }
    }
}
