//! Proofs of entries that are about to be written. The content is hashed where the body is encoded, before the caller waits
//! for the writer. The writer then only hashes the envelope, with a parent's hash from its cache.

use std::collections::HashMap;

use sapwood_core::Seq;
use sapwood_core::entry::Meta;
use sapwood_core::entry::proof::{Commitment, ParentLink, Proof, Salt};
use sapwood_core::tree::Placed;

use crate::validate::random_bits;

/// Maximum number of cached parents per session. Nearly every entry's parent is the entry written before it.
const PARENTS_MAX: usize = 8;

/// The salt and the commitment of an entry's content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContentProof {
    salt: Salt,
    commitment: Commitment,
}

impl ContentProof {
    /// Commits to an encoded body.
    pub fn of(salt: Salt, body: &[u8]) -> Self {
        Self { salt, commitment: salt.commit(body) }
    }

    pub fn prove(&self, parent: ParentLink, meta: &Meta, version: u32) -> Proof {
        Proof::of(parent, meta, version, self.salt, &self.commitment)
    }
}

/// Returns the given salt of a draft, or a new one.
pub(crate) fn salt_of(salts: &[Option<Salt>], index: usize) -> Salt {
    salts.get(index).copied().flatten().unwrap_or_else(|| Salt::new(random_bits()))
}

/// A cache of the hashes of a session's most recent entries, newest last.
#[derive(Debug, Default)]
pub(crate) struct ParentCache(Vec<(Seq, ParentLink)>);

impl ParentCache {
    /// Returns the link to an entry, if it is known.
    pub fn get(&self, parent: Option<Seq>) -> Option<ParentLink> {
        let Some(parent) = parent else { return Some(ParentLink::Root) };
        self.0.iter().rev().find(|(seq, _)| *seq == parent).map(|(_, link)| *link)
    }

    pub fn add(&mut self, seq: Seq, link: ParentLink) {
        if self.0.len() >= PARENTS_MAX {
            self.0.remove(0);
        }
        self.0.push((seq, link));
    }
}

/// Returns the parents whose hashes are neither cached nor computed with the batch itself.
pub(crate) fn missing_parents(placed: &[Placed], parents: &ParentCache) -> Vec<Seq> {
    let first = placed.first().map_or(Seq::ZERO, |placed| placed.entry.meta.seq);
    let is_missing = |parent: &Seq| *parent < first && parents.get(Some(*parent)).is_none();
    let mut missing: Vec<Seq> =
        placed.iter().filter_map(|placed| placed.entry.meta.parent).filter(is_missing).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Hashes the entries of a batch. `fetched` has the links to the missing parents.
pub(crate) fn prove_batch(
    placed: &[Placed],
    contents: impl Iterator<Item = ContentProof>,
    version: u32,
    parents: &mut ParentCache,
    fetched: Vec<(Seq, ParentLink)>,
) -> Vec<Proof> {
    let mut links: HashMap<Seq, ParentLink> = fetched.into_iter().collect();
    let mut proofs = Vec::with_capacity(placed.len());
    for (placed, content) in placed.iter().zip(contents) {
        let meta = &placed.entry.meta;
        let in_batch = meta.parent.and_then(|parent| links.get(&parent).copied());
        let parent = in_batch.or_else(|| parents.get(meta.parent)).unwrap_or(ParentLink::Root);
        let proof = content.prove(parent, meta, version);
        if placed.links.is_some() {
            links.insert(meta.seq, ParentLink::Proven(proof.hash));
        }
        proofs.push(proof);
    }
    let leaf = placed.iter().zip(&proofs).rev().find(|(placed, _)| placed.links.is_some());
    if let Some((placed, proof)) = leaf {
        parents.add(placed.entry.meta.seq, ParentLink::Proven(proof.hash));
    }
    proofs
}
