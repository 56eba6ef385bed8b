//! The entry tree. Every store places new entries with [`place`], so all stores build the same tree.
//!
//! In addition to its parent, each entry in the tree has [`Links`]: its depth, and a jump pointer to an ancestor,
//! chosen so that any ancestor is reached in O(log depth) steps (Myers' skew-binary scheme). Links are derived data:
//! fixed when the entry is appended, and rebuilt from the log when missing.
//!
//! A fork starts with its source's path by reference. These first `inherited` entries are numbered by depth, so inside
//! a fork `seq == depth` for them, and no jump pointer of an unshared entry crosses the boundary.

use crate::entry::{Body, Draft, Entry, Kind, Meta, Stance};
use crate::id::{EntryId, Seq, TimestampMs};
use crate::scope::Principal;
use crate::settings::Settings;

/// The log's last seq and the active leaf, checked by compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// The seq of the last entry of the log; zero for an empty log.
    pub seq: Seq,
    /// The entry to which the next one is attached. `None`: the next entry becomes a root.
    pub leaf: Option<Seq>,
}

/// Data derived from the path above an entry in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// The number of entries on the path to this entry, including itself.
    pub depth: u32,
    /// The jump pointer to an ancestor; the entry itself for a root or a child of a shared entry.
    pub jump: Seq,
    /// The number of messages on the path, including this entry.
    pub messages: u32,
    /// The nearest entry on the path that stores a settings snapshot.
    pub settings: Option<Seq>,
}

/// An entry in the tree, reduced to its parent and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeNode {
    pub seq: Seq,
    pub parent: Option<Seq>,
    pub links: Links,
}

/// The log queries that placing and walking need. Stores implement this trait over their rows, tests over a vector.
pub trait Lookup {
    type Error: From<PlaceError>;
    /// The node of the entry at this seq; an error if no entry in the tree has this seq.
    fn node(&mut self, seq: Seq) -> Result<TreeNode, Self::Error>;
    /// The entry with this id, inside or outside the tree.
    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>, Self::Error>;
    /// The settings snapshot at an entry that [`Links::settings`] points to.
    fn settings(&mut self, at: Seq) -> Result<Settings, Self::Error>;
    /// The number of entries that the log shares with the session it was forked from.
    fn inherited(&self) -> u32;
}

/// Why a draft cannot be added to the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The entry refers to an entry that is not in this session.
    #[error("a {kind} refers to entry {id}, which is not in this session", kind = kind.as_str())]
    UnknownTarget { kind: Kind, id: EntryId },
    /// The entry refers to an entry outside the tree.
    #[error("a {kind} refers to entry {id}, which is outside the tree", kind = kind.as_str())]
    TargetOutsideTree { kind: Kind, id: EntryId },
    /// The first entry that a compaction keeps is not on the compaction's path.
    #[error("the first entry that a compaction keeps, {id}, is not on its path")]
    KeptOffPath { id: EntryId },
    /// The entry's id is not greater than the last id of the log (I13).
    #[error("entry id {id} is not newer than the log's last id {last} (I13)")]
    IdNotNewer { id: EntryId, last: EntryId },
    /// The log has the maximum number of entries, [`u32::MAX`].
    #[error("the session is full: it can hold at most {} entries", u32::MAX)]
    Full,
}

/// The end of a log: the state that [`place`] folds over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tip {
    pub head: Head,
    pub last_id: Option<EntryId>,
    /// The current model at the leaf, so that an answer by the same model needs no settings lookup.
    pub model: Option<String>,
}

/// A draft with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    pub entry: Entry,
    /// Set for entries in the tree.
    pub links: Option<Links>,
    /// The new settings, for entries that changed them.
    pub snapshot: Option<Settings>,
}

/// Assign each draft its seq, id, parent and links (I1, I2, I13) and move the tip. If a draft is refused, the tip stays
/// unchanged (I4). Nothing is written: a store calls this inside its transaction and stores the result.
pub fn place<L: Lookup>(
    tip: &mut Tip,
    drafts: Vec<Draft>,
    by: &Principal,
    log: &mut L,
    mut random: impl FnMut() -> u128,
) -> Result<Vec<Placed>, L::Error> {
    let mut batch: Vec<Placed> = Vec::with_capacity(drafts.len());
    let mut new_tip = tip.clone();
    for draft in drafts {
        let placed = place_one(&mut new_tip, draft, by, &mut WithBatch { log, batch: &batch }, &mut random)?;
        batch.push(placed);
    }
    *tip = new_tip;
    Ok(batch)
}

fn place_one<L: Lookup>(
    tip: &mut Tip,
    draft: Draft,
    by: &Principal,
    log: &mut L,
    random: &mut impl FnMut() -> u128,
) -> Result<Placed, L::Error> {
    if tip.head.seq.0 == u32::MAX {
        return Err(PlaceError::Full.into());
    }
    let seq = tip.head.seq.next();
    let id = next_id(tip.last_id, draft.id, draft.at, random)?;
    let kind = draft.body.kind();
    let parent = tip.head.leaf;
    check_references(&draft.body, parent, log)?;
    let (links, snapshot) = match kind.stance() {
        Stance::InTree => {
            let (links, snapshot) = build_links(tip, seq, &draft.body, log)?;
            tip.head.leaf = Some(seq);
            (Some(links), snapshot)
        }
        Stance::OutsideTree => {
            if let Body::LeafMoved(moved) = &draft.body {
                move_leaf(tip, moved.to, log)?;
            }
            (None, None)
        }
    };
    tip.head.seq = seq;
    tip.last_id = Some(id);
    let by = draft.by.unwrap_or_else(|| by.clone());
    let meta = Meta { seq, id, parent, at: draft.at, by, turn: draft.turn, kind };
    Ok(Placed { entry: Entry { meta, body: draft.body }, links, snapshot })
}

fn next_id(
    last: Option<EntryId>,
    given: Option<EntryId>,
    at: TimestampMs,
    random: &mut impl FnMut() -> u128,
) -> Result<EntryId, PlaceError> {
    let id = given.unwrap_or_else(|| EntryId::after(last, at, random()));
    match last {
        // Also check minted ids: after an import with the greatest possible id, no greater id can be minted.
        Some(last) if id <= last => Err(PlaceError::IdNotNewer { id, last }),
        _ => Ok(id),
    }
}

fn check_references<L: Lookup>(body: &Body, leaf: Option<Seq>, log: &mut L) -> Result<(), L::Error> {
    match body {
        Body::Label(label) => {
            target_of(Kind::Label, label.target, log)?;
        }
        Body::Compaction(compaction) => {
            if let Some(id) = compaction.first_kept {
                let kept = target_of(Kind::Compaction, id, log)?;
                if !is_on_path(kept, leaf, log)? {
                    return Err(PlaceError::KeptOffPath { id }.into());
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn target_of<L: Lookup>(kind: Kind, id: EntryId, log: &mut L) -> Result<Seq, L::Error> {
    match log.find(id)? {
        Some((seq, found)) if found.stance() == Stance::InTree => Ok(seq),
        Some(_) => Err(PlaceError::TargetOutsideTree { kind, id }.into()),
        None => Err(PlaceError::UnknownTarget { kind, id }.into()),
    }
}

fn move_leaf<L: Lookup>(tip: &mut Tip, to: Option<EntryId>, log: &mut L) -> Result<(), L::Error> {
    let leaf = to.map(|id| target_of(Kind::LeafMoved, id, log)).transpose()?;
    tip.model = match leaf {
        Some(leaf) => settings_at(leaf, log)?.model,
        None => None,
    };
    tip.head.leaf = leaf;
    Ok(())
}

/// The current settings at an entry in the tree, without walking its path.
pub fn settings_at<L: Lookup>(seq: Seq, log: &mut L) -> Result<Settings, L::Error> {
    match log.node(seq)?.links.settings {
        Some(at) => log.settings(at),
        None => Ok(Settings::default()),
    }
}

fn build_links<L: Lookup>(
    tip: &mut Tip,
    seq: Seq,
    body: &Body,
    log: &mut L,
) -> Result<(Links, Option<Settings>), L::Error> {
    let parent = tip.head.leaf.map(|leaf| log.node(leaf)).transpose()?;
    let mut links = Links {
        depth: parent.map_or(0, |parent| parent.links.depth) + 1,
        jump: next_jump(seq, parent, log)?,
        messages: parent.map_or(0, |parent| parent.links.messages) + u32::from(body.kind().is_message()),
        settings: parent.and_then(|parent| parent.links.settings),
    };
    let snapshot = changed_settings(tip, links.settings, body, log)?;
    if snapshot.is_some() {
        links.settings = Some(seq);
    }
    Ok((links, snapshot))
}

fn changed_settings<L: Lookup>(
    tip: &mut Tip,
    at: Option<Seq>,
    body: &Body,
    log: &mut L,
) -> Result<Option<Settings>, L::Error> {
    let is_unchanged = match body {
        Body::AssistantMessage(message) => message.model.is_none() || message.model == tip.model,
        other => !other.kind().may_change_settings(),
    };
    if is_unchanged {
        return Ok(None);
    }
    let before = at.map(|at| log.settings(at)).transpose()?.unwrap_or_default();
    let mut after = before.clone();
    after.apply(body);
    tip.model.clone_from(&after.model);
    Ok((after != before).then_some(after))
}

fn next_jump<L: Lookup>(seq: Seq, parent: Option<TreeNode>, log: &mut L) -> Result<Seq, L::Error> {
    let Some(parent) = parent.filter(|parent| parent.seq.0 > log.inherited()) else {
        return Ok(seq);
    };
    let near = log.node(parent.links.jump)?;
    let far = log.node(near.links.jump)?;
    let equal_strides = parent.links.depth - near.links.depth == near.links.depth - far.links.depth;
    Ok(if equal_strides { far.seq } else { parent.seq })
}

/// The ancestor of `from` (or itself) at `depth`, in O(log depth) steps. `None` if `from` is not that deep.
pub fn ancestor_at<L: Lookup>(from: Seq, depth: u32, log: &mut L) -> Result<Option<Seq>, L::Error> {
    let shared = |seq: Seq| (1..=seq.0).contains(&depth).then_some(Seq(depth));
    if from.0 <= log.inherited() {
        return Ok(shared(from));
    }
    let mut node = log.node(from)?;
    while node.links.depth > depth {
        let far = if node.links.jump == node.seq { node } else { log.node(node.links.jump)? };
        node = match node.parent {
            _ if far.seq != node.seq && far.links.depth >= depth => far,
            Some(parent) if parent.0 <= log.inherited() => return Ok(shared(parent)),
            Some(parent) => log.node(parent)?,
            None => return Ok(None),
        };
    }
    Ok((node.links.depth == depth).then_some(node.seq))
}

/// Whether `seq` is `leaf` or one of its ancestors.
pub fn is_on_path<L: Lookup>(seq: Seq, leaf: Option<Seq>, log: &mut L) -> Result<bool, L::Error> {
    let Some(leaf) = leaf else { return Ok(false) };
    let depth = log.node(seq)?.links.depth;
    Ok(ancestor_at(leaf, depth, log)? == Some(seq))
}

/// The first entry on the path to `leaf` that has `count` messages up to and including itself.
pub fn nth_message<L: Lookup>(leaf: Seq, count: u32, log: &mut L) -> Result<Option<Seq>, L::Error> {
    if count == 0 || log.node(leaf)?.links.messages < count {
        return Ok(None);
    }
    let (mut low, mut high) = (1, log.node(leaf)?.links.depth);
    while low < high {
        let middle = low + (high - low) / 2;
        let seq = ancestor_at(leaf, middle, log)?.expect("every depth up to the leaf's is on its path (I2)");
        if log.node(seq)?.links.messages < count {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    ancestor_at(leaf, low, log)
}

/// A log plus entries that are placed but not written yet.
struct WithBatch<'a, L> {
    log: &'a mut L,
    batch: &'a [Placed],
}

impl<L> WithBatch<'_, L> {
    fn placed(&self, seq: Seq) -> Option<&Placed> {
        let first = self.batch.first()?.entry.meta.seq;
        self.batch.get(seq.0.checked_sub(first.0)? as usize)
    }
}

impl<L: Lookup> Lookup for WithBatch<'_, L> {
    type Error = L::Error;

    fn node(&mut self, seq: Seq) -> Result<TreeNode, L::Error> {
        match self.placed(seq).and_then(|placed| placed.links.map(|links| (placed.entry.meta.parent, links)))
        {
            Some((parent, links)) => Ok(TreeNode { seq, parent, links }),
            None => self.log.node(seq),
        }
    }
    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>, L::Error> {
        let placed = self.batch.iter().find(|placed| placed.entry.meta.id == id);
        match placed {
            Some(placed) => Ok(Some((placed.entry.meta.seq, placed.entry.meta.kind))),
            None => self.log.find(id),
        }
    }
    fn settings(&mut self, at: Seq) -> Result<Settings, L::Error> {
        match self.placed(at).and_then(|placed| placed.snapshot.clone()) {
            Some(settings) => Ok(settings),
            None => self.log.settings(at),
        }
    }
    fn inherited(&self) -> u32 {
        self.log.inherited()
    }
}
