//! The hashes of entries: computes them for an append, reads them for verification, and adds them to
//! entries of earlier versions. The column `proof` exists from layout 4 on, which log format 3 needs.

use std::collections::HashMap;

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::entry::proof::{ParentLink, Proof, Salt, StoredEntry};
use sapwood_core::port::store::{PAGE_BYTES, Repair, Result, SealReport};
use sapwood_core::tree::Placed;
use sapwood_core::{EntryId, Scope, Seq};
use uuid::Uuid;

use super::append_batch::PackedBatch;
use super::connection::StoreConnection;
use super::log::{COLUMNS, LogRows, int, seq_of};
use super::{PgStore, reading, writing};
use crate::database::NamedDatabase;
use crate::proving::{ParentCache, missing_parents, prove_batch};
use crate::validate::random_bits;

/// Maximum number of entries that are sealed in one transaction.
const SEALED_ROWS: usize = 1_000;

/// Returns the parents whose hashes must be read before a batch can be hashed.
pub(super) fn parents_to_read(placed: &[Placed], packed: &PackedBatch, parents: &ParentCache) -> Vec<Seq> {
    if packed.format >= LOG_VERSION { missing_parents(placed, parents) } else { Vec::new() }
}

/// Hashes the entries of a batch. Returns nothing in a format without hashes.
pub(super) fn prove(
    placed: &[Placed],
    packed: &PackedBatch,
    parents: &mut ParentCache,
    fetched: Vec<(Seq, ParentLink)>,
) -> Vec<Proof> {
    let contents = packed.rows.iter().filter_map(|row| row.content);
    prove_batch(placed, contents, packed.format, parents, fetched)
}

/// Returns how the hashes of children cover these entries.
pub(super) async fn links_to(log: &LogRows<'_>, seqs: &[Seq]) -> Result<Vec<(Seq, ParentLink)>> {
    let mut links = Vec::with_capacity(seqs.len());
    for seq in seqs {
        let (pk, at) = log.home_of(*seq).await?;
        let sql = "SELECT id, proof FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3";
        let row = log.db.query_one(sql, &[&log.db.tenant.as_str(), &pk, &int(at.0)]).await?;
        let id = EntryId::from_bytes(row.get::<_, Uuid>(0).into_bytes());
        let proof = proof_of(log.db, *seq, row.get(1))?;
        links.push((*seq, ParentLink::to(id, proof.as_ref())));
    }
    Ok(links)
}

fn proof_of(db: &StoreConnection, seq: Seq, bytes: Option<&[u8]>) -> Result<Option<Proof>> {
    let read = |bytes| {
        Proof::from_bytes(bytes).ok_or_else(|| db.damaged(format!("the proof of entry {seq} is malformed")))
    };
    bytes.map(read).transpose()
}

impl LogRows<'_> {
    /// Returns the entries after a seq as they are stored, in order, with their proofs. `format` is the
    /// format that the database is written in.
    pub async fn read_proofs(&self, format: u32, after: Seq, limit: usize) -> Result<Vec<StoredEntry>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut seq = after.next();
        while seq.0 <= self.inherited() && entries.len() < limit && bytes < PAGE_BYTES {
            let (level, at) = self.descend(0, seq).await?;
            let found = self.read_level(format, level, Seq(at.0 - 1), 1).await?;
            bytes += found.iter().map(|entry| entry.body.len()).sum::<usize>();
            entries.extend(found);
            seq = seq.next();
        }
        if seq.0 > self.inherited() && entries.len() < limit && bytes < PAGE_BYTES {
            let rest = limit - entries.len();
            entries.extend(self.read_level(format, 0, Seq(seq.0 - 1), rest).await?);
        }
        Ok(entries)
    }

    async fn read_level(
        &self,
        format: u32,
        level: usize,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        let proof = if format >= LOG_VERSION { "proof" } else { "NULL::bytea AS proof" };
        let sql = format!(
            "SELECT {COLUMNS}, proof FROM (
               SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before FROM (
                 SELECT {COLUMNS}, {proof} FROM entries WHERE tenant = $1 AND session = $2 AND seq > $3 ORDER BY seq LIMIT $4
               ) AS page
             ) AS page WHERE before < $5 ORDER BY seq"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (tenant, pk, budget) = (self.db.tenant.as_str(), self.pk_of(level), PAGE_BYTES as i64);
        let rows = self.db.query(&sql, &[&tenant, &pk, &int(after.0), &limit, &budget]).await?;
        let read = |row: &tokio_postgres::Row| {
            let proof = proof_of(self.db, seq_of(row.get(0)), row.get("proof"))?;
            self.raw(row, level)?.into_stored(proof).map_err(|what| self.db.damaged(what))
        };
        rows.iter().map(read).collect()
    }
}

/// Hashes the entries of a tenant that have no proof. A session is sealed after the session it was forked
/// from, whose pk is smaller.
pub(super) async fn seal(store: &PgStore, scope: &Scope, format: u32) -> Result<SealReport> {
    let mut report = SealReport::default();
    if format < LOG_VERSION {
        let what = "entries get hashes in log format 3; run `sapwood store upgrade` first".to_owned();
        report.findings.push(store.finding("format", what, Repair::No));
        return Ok(report);
    }
    let pks: Vec<(i64, u32)> = reading!(store, scope, db => {
        let sql = "SELECT pk, inherited FROM sessions WHERE tenant = $1 ORDER BY pk";
        let rows = db.query(sql, &[&db.tenant.as_str()]).await?;
        Ok(rows.iter().map(|row| (row.get(0), seq_of(row.get(1)).0)).collect())
    })?;
    for (pk, inherited) in pks {
        let mut after = Some(Seq(inherited));
        while let Some(last) = after {
            let (sealed, next) = writing!(store, scope, db => seal_some(&db, (pk, inherited), last).await)?;
            report.entries += sealed;
            after = next;
        }
    }
    Ok(report)
}

/// Seals a session's next entries. Returns how many, and the last entry visited if more may follow.
async fn seal_some(
    db: &StoreConnection,
    (pk, inherited): (i64, u32),
    after: Seq,
) -> Result<(u64, Option<Seq>)> {
    let log = LogRows::open(db, pk, inherited).await?;
    let entries = log.read_level(LOG_VERSION, 0, after, SEALED_ROWS).await?;
    let mut links: HashMap<Seq, ParentLink> = HashMap::new();
    let mut sealed = 0;
    for entry in &entries {
        let seq = entry.meta.seq;
        let proof = match entry.proof {
            Some(proof) => proof,
            None => {
                let parent = match entry.meta.parent {
                    None => ParentLink::Root,
                    Some(parent) => match links.get(&parent) {
                        Some(link) => *link,
                        None => links_to(&log, &[parent]).await?.remove(0).1,
                    },
                };
                let proof = entry.prove(parent, Salt::new(random_bits()));
                let sql = "UPDATE entries SET proof = $4
                           WHERE tenant = $1 AND session = $2 AND seq = $3 AND proof IS NULL";
                let params: super::connection::Params<'_> =
                    &[&db.tenant.as_str(), &pk, &int(seq.0), &proof.to_bytes()];
                sealed += db.execute(sql, params).await?;
                proof
            }
        };
        links.insert(seq, ParentLink::Proven(proof.hash));
    }
    Ok((sealed, entries.last().map(|entry| entry.meta.seq)))
}
