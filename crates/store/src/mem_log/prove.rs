//! The hashes of a log in memory.

use std::collections::HashMap;

use sapwood_core::Seq;
use sapwood_core::entry::LOG_VERSION;
use sapwood_core::entry::proof::{ParentLink, Proof, Salt, StoredEntry};
use sapwood_core::port::store::{PAGE_BYTES, PAGE_ROWS_MAX, Result};

use super::row_store::{meta_at, row_at};
use super::{InMemoryLog, PlannedBatch, StoredBody};
use crate::proving::{ContentProof, salt_of};

impl<B: StoredBody> InMemoryLog<B> {
    /// Hashes the entries of a batch. A salt that is not given is drawn.
    pub(super) fn prove(&self, planned: &mut PlannedBatch, salts: &[Option<Salt>]) {
        let mut in_batch: HashMap<Seq, ParentLink> = HashMap::new();
        for (index, placed) in planned.batch.iter().enumerate() {
            let meta = &placed.entry.meta;
            let parent = match meta.parent {
                None => ParentLink::Root,
                Some(parent) => in_batch.get(&parent).copied().unwrap_or_else(|| self.link_to(parent)),
            };
            let content = ContentProof::of(salt_of(salts, index), &planned.bodies[index]);
            let proof = content.prove(parent, meta, LOG_VERSION);
            in_batch.insert(meta.seq, ParentLink::Proven(proof.hash));
            planned.proofs[index] = Some(proof);
        }
    }

    fn link_to(&self, parent: Seq) -> ParentLink {
        row_at(&self.rows, parent)
            .map_or(ParentLink::Root, |row| ParentLink::to(row.meta.id, row.proof.as_ref()))
    }

    pub fn proof_at(&self, seq: Seq) -> Option<Proof> {
        row_at(&self.rows, seq).and_then(|row| row.proof)
    }

    /// Returns entries after `after` in order, with their proofs.
    pub fn read_proofs(&self, after: Seq, limit: usize) -> Result<Vec<StoredEntry>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut seq = after;
        while seq < self.summary.head.seq && entries.len() < limit && bytes < PAGE_BYTES {
            seq = seq.next();
            let row = self.row(seq)?;
            let (meta, body) = (meta_at(&self.rows, seq, &row), row.body.load(row.meta.kind)?);
            bytes += body.len();
            entries.push(StoredEntry { meta, version: LOG_VERSION, body, proof: row.proof });
        }
        Ok(entries)
    }
}
