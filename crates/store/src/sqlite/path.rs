//! Reads a path from an entry towards the root, as far as a context needs it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_core::entry::{Body, Entry, Outcome, Stance};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::tree::settings_at;
use sapwood_core::{Kind, Record, Seq, SessionId, TurnId};

use super::log::LogRows;
use crate::decode::{ContextGoal, Decoder, DecoderInput};
use crate::validate::{beside_tree, no_entry};

pub(super) fn read_path(
    log: &mut LogRows<'_>,
    summary: &Summary,
    at: Option<Seq>,
    until: Until,
) -> Result<PathSlice> {
    if let Some(at) = at {
        check_in_tree(log, &summary.id, at)?;
    }
    let entries = match at.or(summary.head.leaf) {
        Some(from) if until != Until::Entries(0) => collect(log, from, until)?,
        _ => Vec::new(),
    };
    let above = entries.first().and_then(|entry| entry.meta.parent);
    Ok(PathSlice {
        head: summary.head,
        inherited: summary.inherited,
        settings_before: above
            .map(|above| settings_at(above, log))
            .transpose()?
            .unwrap_or_else(Settings::default),
        ended_turns: ended_turns(log, &entries)?,
        open_turn: summary.open_turn,
        entries,
    })
}

/// Rejects an entry that does not exist or is not in the tree.
pub(super) fn check_in_tree(log: &mut LogRows<'_>, session: &SessionId, seq: Seq) -> Result<()> {
    let record = log.record(seq)?.ok_or_else(|| no_entry(session, seq))?;
    match record.meta.kind.stance() {
        Stance::InTree => Ok(()),
        Stance::OutsideTree => Err(beside_tree(seq, record.meta.kind)),
    }
}

fn collect(log: &mut LogRows<'_>, from: Seq, until: Until) -> Result<Vec<Entry>> {
    let decoder = Decoder::default();
    std::thread::scope(|scope| {
        let mut input = decoder.input(scope);
        let walked = walk_until(log, from, until, &mut input);
        input.close();
        walked
    })?;
    let mut entries = decoder.finish()?;
    entries.reverse();
    Ok(entries)
}

fn walk_until(
    log: &mut LogRows<'_>,
    from: Seq,
    until: Until,
    input: &mut DecoderInput<'_, '_>,
) -> Result<()> {
    let db = log.db;
    let mut goal = ContextGoal::Searching;
    log.walk(from, &mut |step| {
        let raw = step.raw(db)?;
        let is_last = match until {
            Until::Root => false,
            Until::Entries(count) => input.len() + 1 >= count as usize,
            Until::ContextStart => {
                if step.kind == Kind::Compaction && goal == ContextGoal::Searching {
                    goal = ContextGoal::of(&raw.body().map_err(|what| db.damaged(what))?);
                }
                goal == ContextGoal::Reached || goal == ContextGoal::Kept(raw.meta.id)
            }
        };
        input.push(raw);
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
}

/// Returns the outcomes of the turns that began after the parent of the path's first entry.
fn ended_turns(log: &LogRows<'_>, entries: &[Entry]) -> Result<Vec<(TurnId, Outcome)>> {
    let Some(first) = entries.first() else { return Ok(Vec::new()) };
    let after = first.meta.parent.unwrap_or_default();
    let mut began = HashSet::new();
    each_of_kind(log, Kind::TurnStarted, after, |record| {
        began.extend(record.meta.turn);
        Ok(())
    })?;
    let mut ended = Vec::new();
    if began.is_empty() {
        return Ok(ended);
    }
    each_of_kind(log, Kind::TurnEnded, after, |record| {
        let body = record.decode().map_err(|error| log.db.damaged(error.to_string()))?;
        let turn = record.meta.turn.filter(|turn| began.contains(turn));
        if let (Some(turn), Body::TurnEnded(body)) = (turn, body) {
            ended.push((turn, body.outcome));
        }
        Ok(())
    })?;
    Ok(ended)
}

fn each_of_kind(
    log: &LogRows<'_>,
    kind: Kind,
    mut after: Seq,
    mut visit: impl FnMut(&Record) -> Result<()>,
) -> Result<()> {
    loop {
        let page = log.read_kind(kind, after, PAGE_ROWS_MAX)?;
        for record in &page {
            after = record.meta.seq;
            visit(record)?;
        }
        if page.len() < PAGE_ROWS_MAX {
            return Ok(());
        }
    }
}
