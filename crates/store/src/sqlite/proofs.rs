//! The hashes of entries: reads them for verification, and adds them to entries of earlier versions.
//!
//! The column `proof` has the binary form of `sapwood_core::entry::proof::Proof`. Ordinary reads do not
//! read it, and an append reads it only if the parent of its first entry is not cached.

use std::collections::{HashMap, VecDeque};

use rusqlite::params;
use sapwood_core::entry::proof::{ParentLink, Proof, Salt, StoredEntry};
use sapwood_core::port::store::{PAGE_BYTES, Result};
use sapwood_core::{EntryId, Scope, Seq};

use super::connection::StoreConnection;
use super::error::AtPath;
use super::log::{COLUMNS, LogRows, Numbering, key_of, read_step};
use crate::database::NamedDatabase;
use crate::validate::random_bits;

/// Maximum number of entries that are sealed in one transaction, so that writers wait only briefly.
const SEALED_ROWS: usize = 1_000;

/// Returns how the hash of a child covers this entry.
pub(super) fn link_to(log: &mut LogRows<'_>, seq: Seq) -> Result<ParentLink> {
    let (pk, at) = log.locate(seq)?;
    let db = log.db;
    let mut select = db.prepare("SELECT id, proof FROM log WHERE key = ?1")?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, Option<Vec<u8>>>(1)?));
    let (id, proof) = select.query_row([key_of(pk, at)], read).at(&db.path)?;
    let proof = proof.map(|bytes| proof_of(db, at, &bytes)).transpose()?;
    Ok(ParentLink::to(EntryId::from_bytes(id), proof.as_ref()))
}

fn proof_of(db: &StoreConnection, seq: Seq, bytes: &[u8]) -> Result<Proof> {
    Proof::from_bytes(bytes).ok_or_else(|| db.damaged(format!("the proof of entry {seq} is malformed")))
}

impl LogRows<'_> {
    /// Returns the entries after a seq as they are stored, in order, with their proofs.
    pub fn read_proofs(&mut self, after: Seq, limit: usize) -> Result<Vec<StoredEntry>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut seq = after.next();
        while seq.0 <= self.inherited && entries.len() < limit && bytes < PAGE_BYTES {
            let (pk, at) = self.locate(seq)?;
            let found = self.read_own_proofs(pk, Seq(at.0 - 1), at, 1, Numbering::Shared)?;
            bytes += found.iter().map(|entry| entry.body.len()).sum::<usize>();
            entries.extend(found);
            seq = seq.next();
        }
        if seq.0 > self.inherited && entries.len() < limit && bytes < PAGE_BYTES {
            let rest = limit - entries.len();
            entries.extend(self.read_own_proofs(
                self.pk,
                Seq(seq.0 - 1),
                Seq(u32::MAX),
                rest,
                Numbering::Own,
            )?);
        }
        Ok(entries)
    }

    fn read_own_proofs(
        &self,
        pk: i64,
        after: Seq,
        last: Seq,
        limit: usize,
        numbering: Numbering,
    ) -> Result<Vec<StoredEntry>> {
        let db = self.db;
        let sql =
            format!("SELECT {COLUMNS}, proof FROM log WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3");
        let mut select = db.prepare(&sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = select.query([key_of(pk, after), key_of(pk, last), limit]).at(&db.path)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < PAGE_BYTES
            && let Some(row) = rows.next().at(&db.path)?
        {
            let proof: Option<Vec<u8>> = row.get("proof").at(&db.path)?;
            let step = read_step(db, row, numbering)?;
            let proof = proof.map(|bytes| proof_of(db, step.seq, &bytes)).transpose()?;
            let stored = step.raw(db)?.into_stored(proof).map_err(|what| db.damaged(what))?;
            bytes += stored.body.len();
            entries.push(stored);
        }
        Ok(entries)
    }
}

/// Hashes the entries of a tenant that have no proof, in several transactions.
pub(super) struct Sealer {
    /// The sessions that are left. A session is sealed after the session it was forked from, whose pk is smaller.
    pks: VecDeque<i64>,
    /// The last entry of the first session that was visited.
    after: Seq,
    pub sealed: u64,
}

impl Sealer {
    pub fn new(db: &StoreConnection, scope: &Scope) -> Result<Self> {
        let sql = "SELECT pk FROM sessions WHERE tenant = ?1 ORDER BY pk";
        let pks: Vec<i64> = match db.tenant(&scope.tenant)? {
            Some(tenant) => db.query_all(sql, [tenant])?,
            None => Vec::new(),
        };
        Ok(Self { pks: pks.into(), after: Seq::ZERO, sealed: 0 })
    }

    /// Visits the next entries. Returns whether more are left.
    pub fn seal_some(&mut self, db: &StoreConnection) -> Result<bool> {
        let Some(pk) = self.pks.front().copied() else { return Ok(false) };
        let mut log = LogRows::open(db, pk)?;
        let entries = log.read_own_proofs(pk, self.after, Seq(u32::MAX), SEALED_ROWS, Numbering::Own)?;
        match entries.last() {
            Some(last) => self.after = last.meta.seq,
            None => {
                self.pks.pop_front();
                self.after = Seq::ZERO;
            }
        }
        if entries.iter().any(|entry| entry.proof.is_none()) {
            db.append_cache.clear();
            self.sealed += db.in_transaction(|| seal_entries(&mut log, &entries))?;
        }
        Ok(true)
    }
}

fn seal_entries(log: &mut LogRows<'_>, entries: &[StoredEntry]) -> Result<u64> {
    let (db, mut links, mut sealed) = (log.db, HashMap::new(), 0);
    for entry in entries {
        let proof = match entry.proof {
            Some(proof) => proof,
            None => {
                let parent = match entry.meta.parent {
                    None => ParentLink::Root,
                    Some(parent) => links.get(&parent).copied().map_or_else(|| link_to(log, parent), Ok)?,
                };
                let proof = entry.prove(parent, Salt::new(random_bits()));
                let sql = "UPDATE entries SET proof = ?2 WHERE proof IS NULL
                           AND arrival = (SELECT arrival FROM placed WHERE key = ?1)";
                let key = key_of(log.pk, entry.meta.seq);
                sealed += db.execute(sql, params![key, proof.to_bytes()])? as u64;
                proof
            }
        };
        links.insert(entry.meta.seq, ParentLink::Proven(proof.hash));
    }
    Ok(sealed)
}
