//! Reads a path from an entry towards the root, as far as the caller needs it.

use std::ops::ControlFlow;

use sapwood_core::entry::{Entry, Meta};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::settings_at;
use sapwood_core::{Record, Seq, SessionId};

use super::log::LogRows;
use crate::database::path::{EndedTurns, PathEnd, check_in_tree};
use crate::decode::{Decoder, DecoderInput};

pub(super) fn read_path(
    log: &mut LogRows<'_>,
    summary: &Summary,
    at: Option<Seq>,
    until: Until,
) -> Result<PathSlice> {
    if let Some(at) = at {
        read_in_tree(log, &summary.id, at)?;
    }
    let entries = match at.or(summary.head.leaf) {
        Some(from) if until != Until::Entries(0) => collect(log, from, until)?,
        _ => Vec::new(),
    };
    let above = entries.first().and_then(|entry| entry.meta.parent);
    let settings_before = above.map(|above| settings_at(above, log)).transpose()?.unwrap_or_default();
    let mut turns = EndedTurns::of(&entries);
    while let Some((kind, after)) = turns.next_page() {
        turns.add_page(log.db, &log.read_kind(kind, after, PAGE_ROWS_MAX)?)?;
    }
    Ok(turns.into_slice(summary, entries, settings_before))
}

/// Returns the metadata of a path, newest first.
pub(super) fn walk_path(
    log: &mut LogRows<'_>,
    summary: &Summary,
    from: Option<Seq>,
    limit: usize,
) -> Result<Vec<Meta>> {
    if let Some(from) = from {
        read_in_tree(log, &summary.id, from)?;
    }
    let (limit, mut metas) = (limit.min(PAGE_ROWS_MAX), Vec::new());
    let Some(from) = from.or(summary.head.leaf).filter(|_| limit > 0) else { return Ok(metas) };
    let db = log.db;
    log.walk(from, &mut |step| {
        metas.push(step.meta(db)?);
        Ok(if metas.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(metas)
}

/// Reads an entry. Fails if it does not exist or is not in the tree.
pub(super) fn read_in_tree(log: &mut LogRows<'_>, session: &SessionId, seq: Seq) -> Result<Record> {
    check_in_tree(session, seq, log.record(seq)?)
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
    let mut end = PathEnd::of(until);
    log.walk(from, &mut |step| {
        let raw = step.raw(db)?;
        let flow = end.visit(db, &raw)?;
        input.push(raw);
        Ok(flow)
    })
}
