//! Forks: sessions that share the entries on a path of another session.

use sapwood_core::port::store::{Fork, Result};
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::tree::Head;
use sapwood_core::{Right, Scope, Seq, StoreError};

use super::append::write_first;
use super::audit::write_line;
use super::connection::StoreConnection;
use super::log::LogRows;
use super::path::read_in_tree;
use super::prefetch::Prefetched;
use super::session_table::{RowLock, find, insert};
use crate::validate::{fork_note, fork_point, is_shared};

pub(super) async fn fork(db: &StoreConnection, scope: &Scope, fork: &Fork, format: u32) -> Result<Head> {
    // Lock the source, so that the entries that the fork will share are not erased concurrently.
    let source = find(db, scope, &fork.source, Right::Write, RowLock::Yes).await?;
    let log = LogRows::open(db, source.pk, source.summary.inherited).await?;
    let at = fork.at.or(source.summary.head.leaf).filter(|at| *at > Seq::ZERO);
    let mut nodes = Prefetched::new(log.inherited());
    let (point, base) = match at {
        Some(at) => {
            (Some(point_at(&log, &mut nodes, &source.summary, at).await?), Some(log.home_of(at).await?))
        }
        None => (None, None),
    };
    let mut drafts = Vec::new();
    for draft in &fork.drafts {
        let is_shared = nodes.run_with_fetches(&log, |nodes| is_shared(draft, at, nodes)).await?;
        drafts.extend(is_shared.then(|| draft.clone()));
    }
    let summary = Summary::forked(&fork.new, scope.principal.clone(), &source.summary, point);
    let exists = || StoreError::Exists { session: fork.new.id.clone() };
    let row = insert(db, &summary, base).await?.ok_or_else(exists)?;
    let head = match drafts.is_empty() {
        true => summary.head,
        false => write_first(db, scope, row, &drafts, format).await?,
    };
    write_line(db, scope, fork_note(fork), fork.new.now).await?;
    Ok(head)
}

async fn point_at(log: &LogRows<'_>, nodes: &mut Prefetched, source: &Summary, at: Seq) -> Result<ForkPoint> {
    let id = read_in_tree(log, &source.id, at).await?.meta.id;
    nodes.run_with_fetches(log, |nodes| fork_point(source.authority.as_ref(), (at, id), nodes)).await
}
