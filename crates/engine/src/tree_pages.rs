//! The tree in pages. The shape of recently read trees is cached, so that a page does not need the whole log.

use std::sync::Arc;

use sapwood_core::port::store::is_full_page;
use sapwood_core::project::outline::OutlineNode;
use sapwood_core::project::summary::Summary;
use sapwood_core::project::tree_index::TreeIndex;
use sapwood_core::settings::Labels;
use sapwood_core::{Kind, Scope, Seq, SessionId};

use crate::path_reader::readable;
use crate::views::Views;
use crate::{Engine, Result};

/// Records per read of the log.
const PAGE_RECORDS: usize = 500;

/// Reads the nodes of a tree in pages.
pub struct TreeReader {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    index: Arc<TreeIndex>,
    labels: Labels,
    pub leaf: Option<Seq>,
    pub roots: Vec<Seq>,
    after: Seq,
}

impl Views<'_> {
    /// Read the tree from after an entry.
    pub async fn read_tree(self, scope: &Scope, session: &SessionId, after: Seq) -> Result<TreeReader> {
        let summary = self.engine.store.summary(scope, session).await?;
        let index = self.tree_index(scope, &summary).await?;
        let mut labels = Labels::default();
        let add = |entry: sapwood_core::Entry| labels.apply(&entry.body);
        self.engine.log().each_of_kinds(scope, session, &[Kind::Label], add).await?;
        Ok(TreeReader {
            engine: self.engine.clone(),
            scope: scope.clone(),
            session: session.clone(),
            roots: index.roots(),
            index,
            labels,
            leaf: summary.head.leaf,
            after,
        })
    }

    async fn tree_index(self, scope: &Scope, summary: &Summary) -> Result<Arc<TreeIndex>> {
        let key = (scope.tenant.clone(), summary.id.clone(), summary.created_at);
        let mut index = self.engine.tree_cache.take(&key).unwrap_or_default();
        while index.upto() < summary.head.seq {
            let read = self.engine.store.read_after(scope, &summary.id, index.upto(), PAGE_RECORDS);
            let records = read.await?;
            let tree = Arc::make_mut(&mut index);
            records.iter().for_each(|record| tree.add(&record.meta));
            if !is_full_page(&records, PAGE_RECORDS) {
                break;
            }
        }
        self.engine.tree_cache.put(key, index.clone());
        Ok(index)
    }
}

impl TreeReader {
    /// The next nodes, at most `limit`, and whether more follow.
    pub async fn next(&mut self, limit: usize) -> Result<(Vec<OutlineNode>, bool)> {
        let Some((upto, has_more)) = self.index.page_end(self.after, limit) else {
            return Ok((Vec::new(), false));
        };
        let part = self.index.part(self.after, upto, self.leaf);
        let mut nodes = Vec::new();
        while self.after < upto {
            let limit = PAGE_RECORDS.min((upto.0 - self.after.0) as usize);
            let read = self.engine.store.read_after(&self.scope, &self.session, self.after, limit);
            let records = read.await?;
            if records.is_empty() {
                break;
            }
            for record in records {
                self.after = record.meta.seq;
                let entry = readable(&self.session, record)?;
                let label = self.labels.get(entry.meta.id).map(str::to_owned);
                nodes.extend(part.node(&entry, label));
            }
        }
        Ok((nodes, has_more))
    }

    /// The last entry that was read.
    pub fn after(&self) -> Seq {
        self.after
    }
}
