//! Forks: sessions that share the entries on a path of another session.

use sapwood_core::port::store::{Fork, Result};
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::tree::Head;
use sapwood_core::{Right, Scope, Seq, StoreError};

use super::append::{Batch, write_batch};
use super::append_cache::{CachedSession, Nodes, SessionRow};
use super::audit::write_line;
use super::connection::StoreConnection;
use super::log::LogRows;
use super::path::read_in_tree;
use super::session_table::{find, find_by_id, insert};
use crate::proving::ParentCache;
use crate::validate::{fork_note, fork_point, is_shared};

pub(super) fn fork(db: &StoreConnection, scope: &Scope, mut fork: Fork) -> Result<Head> {
    let source = find(db, scope, &fork.source, Right::Write)?;
    if find_by_id(db, scope, &fork.new.id)?.is_some() {
        return Err(StoreError::Exists { session: fork.new.id });
    }
    let mut log = LogRows::open(db, source.pk)?;
    let at = fork.at.or(source.summary.head.leaf).filter(|at| *at > Seq::ZERO);
    let point = at.map(|at| point_at(&mut log, &source.summary, at)).transpose()?;
    let base = at.map(|at| log.locate(at)).transpose()?;
    let mut drafts = Vec::new();
    for draft in fork.drafts.drain(..) {
        drafts.extend(is_shared(&draft, at, &mut log)?.then_some(draft));
    }
    let summary = Summary::forked(&fork.new, scope.principal.clone(), &source.summary, point);
    let pk = insert(db, scope, &summary, base)?;
    write_line(db, scope, fork_note(&fork), fork.new.now)?;
    let listed_at = summary.updated_at;
    let row = SessionRow { pk, tenant: source.tenant, listed_at, summary };
    let (nodes, parents) = (Nodes::default(), ParentCache::default());
    let mut session = CachedSession { row, lease: None, nodes, parents };
    if !drafts.is_empty() {
        write_batch(db, scope, &mut session, Batch::pack(drafts)?)?;
    }
    Ok(session.row.summary.head)
}

fn point_at(log: &mut LogRows<'_>, source: &Summary, at: Seq) -> Result<ForkPoint> {
    let id = read_in_tree(log, &source.id, at)?.meta.id;
    fork_point(source.authority.as_ref(), (at, id), log)
}
