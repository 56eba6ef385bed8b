//! Cached parts of a log for the pure functions that look up nodes as they run
//! ([`tree::place`](sapwood_core::tree::place) and others). These functions cannot await a query.
//! Therefore they run on the cached nodes, stop at the first missing node, and run again after it
//! has been fetched. Most nodes are already cached: the leaf, and the targets of its jump pointers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use sapwood_core::port::store::Result;
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Links, Lookup, PlaceError, Placed, TreeNode};
use sapwood_core::{Body, Draft, EntryId, Kind, Seq, StoreError};

use super::log::{LogRows, int};
use crate::database::NamedDatabase;
use crate::decode::parent_of_shared;

/// Maximum number of runs of one function. After each run, one more item is cached.
const RUNS_MAX: usize = 100_000;
/// Maximum number of nodes cached between appends. Beyond it, only the nodes of the last append,
/// their jump targets and the jump targets of these are retained.
const NODES_MAX: usize = 64;

/// A missing item that has to be fetched.
#[derive(Debug, Clone, Copy)]
pub(super) enum MissingItem {
    Node(Seq),
    Id(EntryId),
    Settings(Seq),
}

pub(super) enum Stop {
    Missing(MissingItem),
    Refused(PlaceError),
}

impl From<PlaceError> for Stop {
    fn from(error: PlaceError) -> Self {
        Stop::Refused(error)
    }
}

#[derive(Debug, Default)]
pub(super) struct Prefetched {
    pub inherited: u32,
    nodes: HashMap<Seq, TreeNode>,
    ids: HashMap<EntryId, Option<(Seq, Kind)>>,
    settings: HashMap<Seq, Settings>,
}

impl Prefetched {
    pub fn new(inherited: u32) -> Self {
        Self { inherited, ..Self::default() }
    }

    /// Adds the entries just written, and evicts nodes that the next append is unlikely to need.
    pub fn add_written(&mut self, placed: &[Placed]) {
        if self.nodes.len() + placed.len() > NODES_MAX {
            let jumps: Vec<Seq> = placed.iter().filter_map(|placed| placed.links).map(|it| it.jump).collect();
            let far: Vec<Seq> =
                jumps.iter().filter_map(|jump| self.nodes.get(jump)).map(|node| node.links.jump).collect();
            self.nodes.retain(|seq, _| jumps.contains(seq) || far.contains(seq));
        }
        self.ids.clear();
        let newest = self.settings.keys().max().copied();
        self.settings.retain(|seq, _| Some(*seq) == newest);
        let last = placed.len().saturating_sub(NODES_MAX);
        for placed in &placed[last..] {
            let meta = &placed.entry.meta;
            if let Some(links) = placed.links {
                self.nodes.insert(meta.seq, TreeNode { seq: meta.seq, parent: meta.parent, links });
            }
            if let Some(settings) = &placed.snapshot {
                self.settings.insert(meta.seq, settings.clone());
            }
        }
    }

    pub fn has_node(&self, seq: Seq) -> bool {
        self.nodes.contains_key(&seq)
    }

    /// Fetches the nodes that placing these drafts needs first.
    pub async fn prepare(&mut self, log: &LogRows<'_>, leaf: Option<Seq>, drafts: &[Draft]) -> Result<()> {
        let mut ids = Vec::new();
        let mut leaves: Vec<Seq> = leaf.into_iter().collect();
        for draft in drafts {
            match &draft.body {
                Body::Label(label) => ids.push(label.target),
                Body::LeafMoved(moved) => ids.extend(moved.to),
                Body::Compaction(compaction) => ids.extend(compaction.first_kept),
                _ => {}
            }
        }
        for id in ids {
            if let Entry::Vacant(vacant) = self.ids.entry(id) {
                let found = log.find(id).await?;
                leaves.extend(found.map(|(seq, _)| seq));
                vacant.insert(found);
            }
        }
        leaves.retain(|seq| !self.nodes.contains_key(seq));
        self.add(log.nodes_from(&leaves).await?);
        Ok(())
    }

    fn add(&mut self, nodes: Vec<TreeNode>) {
        self.nodes.extend(nodes.into_iter().map(|node| (node.seq, node)));
    }

    /// Runs a function. If it stops at a missing item, fetches the item and runs the function again.
    pub async fn run_with_fetches<T>(
        &mut self,
        log: &LogRows<'_>,
        mut run: impl FnMut(&mut Self) -> Result<T, Stop>,
    ) -> Result<T> {
        for _ in 0..RUNS_MAX {
            match run(self) {
                Ok(done) => return Ok(done),
                Err(Stop::Refused(error)) => return Err(error.into()),
                Err(Stop::Missing(missing)) => self.fetch(log, missing).await?,
            }
        }
        Err(log.db.damaged(format!("the tree of session {} is cyclic", log.pk())))
    }

    async fn fetch(&mut self, log: &LogRows<'_>, missing: MissingItem) -> Result<()> {
        match missing {
            MissingItem::Node(seq) if seq.0 > self.inherited => {
                self.add(log.nodes_from(&[seq]).await?);
                if !self.has_node(seq) {
                    let what = format!("session {} has no entry {seq} in its tree", log.pk());
                    return Err(log.db.damaged(what));
                }
            }
            MissingItem::Node(seq) => {
                let node = shared_node(log, seq).await?;
                self.nodes.insert(seq, node);
            }
            MissingItem::Id(id) => {
                self.ids.insert(id, log.find(id).await?);
            }
            MissingItem::Settings(seq) => {
                self.settings.insert(seq, read_settings(log, seq).await?);
            }
        }
        Ok(())
    }
}

/// Returns a shared entry's node in the fork's numbering: seq and depth are the same, and no
/// pointer crosses the fork point.
async fn shared_node(log: &LogRows<'_>, seq: Seq) -> Result<TreeNode> {
    let gone = || log.db.damaged(format!("shared entry {seq} of session {} is missing", log.pk()));
    let (pk, at) = log.home_of(seq).await?;
    let links = log.node_of(pk, at).await?.ok_or_else(gone)?.links;
    let settings = match links.settings {
        Some(own) if own.0 > log.inherited_of(pk) => {
            Some(Seq(log.node_of(pk, own).await?.ok_or_else(gone)?.links.depth))
        }
        shared => shared,
    };
    Ok(TreeNode { seq, parent: parent_of_shared(seq), links: Links { jump: seq, settings, ..links } })
}

async fn read_settings(log: &LogRows<'_>, at: Seq) -> Result<Settings> {
    let (pk, seq) = log.home_of(at).await?;
    let sql = "SELECT snapshot FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3";
    let row = log.db.query_one(sql, &[&log.db.tenant.as_str(), &pk, &int(seq.0)]).await?;
    serde_json::from_str(row.get::<_, Option<&str>>(0).unwrap_or("{}"))
        .map_err(|error| log.db.damaged(format!("failed to parse the settings at entry {at}: {error}")))
}

impl Lookup for Prefetched {
    type Error = Stop;

    fn node(&mut self, seq: Seq) -> Result<TreeNode, Stop> {
        self.nodes.get(&seq).copied().ok_or(Stop::Missing(MissingItem::Node(seq)))
    }
    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>, Stop> {
        self.ids.get(&id).copied().ok_or(Stop::Missing(MissingItem::Id(id)))
    }
    fn settings(&mut self, at: Seq) -> Result<Settings, Stop> {
        self.settings.get(&at).cloned().ok_or(Stop::Missing(MissingItem::Settings(at)))
    }
    fn inherited(&self) -> u32 {
        self.inherited
    }
}

/// Returns the settings in effect at an entry.
pub(super) async fn settings_at(log: &LogRows<'_>, seq: Seq) -> Result<Settings> {
    let mut prefetched = Prefetched::new(log.inherited());
    prefetched.run_with_fetches(log, |prefetched| sapwood_core::tree::settings_at(seq, prefetched)).await
}

pub(super) async fn node_at(log: &LogRows<'_>, seq: Seq) -> Result<TreeNode, StoreError> {
    let mut prefetched = Prefetched::new(log.inherited());
    prefetched.run_with_fetches(log, |prefetched| prefetched.node(seq)).await
}
