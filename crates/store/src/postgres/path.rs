//! Reads a path, from an entry towards the root, as far as the caller needs it.

use std::ops::ControlFlow;

use sapwood_core::entry::{Entry, Meta};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::{Record, Seq, SessionId};

use super::log::LogRows;
use super::prefetch::settings_at;
use crate::database::path::{EndedTurns, PathEnd, check_in_tree};
use crate::decode::decode_all;

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
    let mut turns = EndedTurns::of(&entries);
    while let Some((kind, after)) = turns.next_page() {
        turns.add_page(log.db, &log.read_kind(kind, after, PAGE_ROWS_MAX).await?)?;
    }
    Ok(turns.into_slice(summary, entries, settings_before))
}

/// Returns the metadata of a path, newest first.
pub(super) async fn walk_path(
    log: &LogRows<'_>,
    summary: &Summary,
    from: Option<Seq>,
    limit: usize,
) -> Result<Vec<Meta>> {
    if let Some(from) = from {
        read_in_tree(log, &summary.id, from).await?;
    }
    let (limit, mut metas) = (limit.min(PAGE_ROWS_MAX), Vec::new());
    let Some(from) = from.or(summary.head.leaf).filter(|_| limit > 0) else { return Ok(metas) };
    log.walk(from, &mut |raw| {
        metas.push(raw.meta);
        Ok(if metas.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
    .await?;
    Ok(metas)
}

/// Reads an entry. Fails if it does not exist or is not in the tree.
pub(super) async fn read_in_tree(log: &LogRows<'_>, session: &SessionId, seq: Seq) -> Result<Record> {
    check_in_tree(session, seq, log.record(seq).await?)
}

async fn collect(log: &LogRows<'_>, from: Seq, until: Until) -> Result<Vec<Entry>> {
    let mut end = PathEnd::of(until);
    let mut raws = Vec::new();
    log.walk(from, &mut |raw| {
        let flow = end.visit(log.db, &raw)?;
        raws.push(raw);
        Ok(flow)
    })
    .await?;
    let mut entries = decode_all(raws)?;
    entries.reverse();
    Ok(entries)
}
