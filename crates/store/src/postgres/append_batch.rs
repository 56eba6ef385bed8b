//! Appends that are ready to be written, and the conversion of a batch of them to the array
//! parameters of the SQL function `append_batch`.

use std::sync::Arc;

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::entry::proof::Proof;
use sapwood_core::port::store::{Append, Appended, AuditNote};
use sapwood_core::tree::Placed;
use sapwood_core::{BlobHash, Kind, Principal, TimestampMs};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::log::int;
use super::session_table::SessionRow;
use crate::compression::Packed;
use crate::match_text::is_searched;
use crate::proving::ContentProof;
use crate::stored_answer::StoredAnswer;
use crate::validate;

const APPEND: &str = "SELECT job, answer FROM append_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
     $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)";

/// Like [`APPEND`], with the proofs of the entries. For log format 3.
const APPEND_PROVEN: &str =
    "SELECT job, answer FROM append_proven($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
     $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)";
/// The number of parameters of [`APPEND`].
const APPEND_PARAMS: usize = 29;

/// The bodies of an append, compressed, in one format version.
pub(super) struct PackedBatch {
    pub format: u32,
    pub rows: Vec<PackedRow>,
}

/// A body ready to be written.
pub(super) struct PackedRow {
    /// The kind of the row. In an older format it may differ from the kind of the body.
    pub kind: Kind,
    pub body: Packed,
    /// `None` in formats without hashes.
    pub content: Option<ContentProof>,
}

/// An append that is ready to be written. It is written only if the session still has `version`.
pub(super) struct AppendJob {
    pk: i64,
    version: i64,
    head: i32,
    listed: i64,
    behind: bool,
    is_open: bool,
    summary: String,
    key: Option<String>,
    answer: Option<String>,
    placed: Arc<Vec<Placed>>,
    /// The compressed bodies of the entries, in the same order.
    packed: Arc<PackedBatch>,
    /// The proofs of the entries, in the same order; empty in formats without hashes.
    proofs: Vec<Vec<u8>>,
    uses: Vec<(i32, BlobHash)>,
    pub audit: Option<(Principal, AuditNote, TimestampMs)>,
    /// The session's authority record, if the entries change it.
    pub authority: Option<String>,
}

impl AppendJob {
    /// Creates a job. `row` contains the summary after the append and the version before it.
    pub fn new(row: &SessionRow, placed: &Arc<Vec<Placed>>, packed: &Arc<PackedBatch>) -> Self {
        let mut uses = Vec::new();
        for placed in &**placed {
            let seq = int(placed.entry.meta.seq.0);
            uses.extend(placed.entry.body.blobs().into_iter().map(|blob| (seq, blob)));
        }
        Self {
            pk: row.pk,
            version: row.version,
            head: int(row.summary.head.seq.0),
            listed: row.summary.updated_at.0,
            is_open: row.summary.open_turn.is_some(),
            behind: placed.iter().any(|placed| is_searched(placed.entry.meta.kind)),
            summary: validate::print_json(&row.summary),
            key: None,
            answer: None,
            placed: placed.clone(),
            packed: packed.clone(),
            proofs: Vec::new(),
            uses,
            audit: None,
            authority: None,
        }
    }

    pub fn with_answer(mut self, append: &Append, answer: &Appended) -> Self {
        if let Some(key) = &append.idempotency_key {
            self.key = Some(key.clone());
            self.answer = Some(validate::print_json(&StoredAnswer::of(answer, append.request.clone())));
        }
        self
    }

    pub fn with_proofs(self, proofs: &[Proof]) -> Self {
        Self { proofs: proofs.iter().map(Proof::to_bytes).collect(), ..self }
    }

    pub fn pk(&self) -> i64 {
        self.pk
    }

    /// Returns the format version of the bodies.
    pub fn format(&self) -> u32 {
        self.packed.format
    }

    pub fn bytes(&self) -> usize {
        self.summary.len() + self.packed.rows.iter().map(|row| row.body.bytes.len() + 250).sum::<usize>()
    }
}

/// The jobs of one batch as columns. Jobs are numbered from one.
#[derive(Default)]
pub(super) struct BatchColumns<'j> {
    tenant: &'j str,
    j_pk: Vec<i64>,
    j_version: Vec<i64>,
    j_head: Vec<i32>,
    j_listed: Vec<i64>,
    j_behind: Vec<bool>,
    j_open: Vec<bool>,
    j_summary: Vec<&'j str>,
    j_key: Vec<Option<&'j str>>,
    j_answer: Vec<Option<&'j str>>,
    e_job: Vec<i32>,
    e_seq: Vec<i32>,
    e_parent: Vec<Option<i32>>,
    e_depth: Vec<Option<i32>>,
    e_jump: Vec<Option<i32>>,
    e_messages: Vec<Option<i32>>,
    e_settings: Vec<Option<i32>>,
    e_id: Vec<Uuid>,
    e_at: Vec<i64>,
    e_kind: Vec<i16>,
    e_version: i16,
    e_packing: Vec<i16>,
    e_turn: Vec<Option<Uuid>>,
    e_by: Vec<String>,
    e_snapshot: Vec<Option<String>>,
    e_body: Vec<&'j [u8]>,
    u_job: Vec<i32>,
    u_seq: Vec<i32>,
    u_hash: Vec<&'j [u8]>,
    e_proof: Vec<Option<&'j [u8]>>,
}

impl<'j> BatchColumns<'j> {
    /// Creates the columns of jobs that all have the same format.
    pub fn of(tenant: &'j str, jobs: impl Iterator<Item = &'j AppendJob>) -> Self {
        let mut columns = Self { tenant, ..Self::default() };
        for (number, job) in (1..).zip(jobs) {
            columns.add(number, job);
        }
        columns
    }

    fn add(&mut self, number: i32, job: &'j AppendJob) {
        self.e_version = i16::try_from(job.format()).unwrap_or(i16::MAX);
        self.j_pk.push(job.pk);
        self.j_version.push(job.version);
        self.j_head.push(job.head);
        self.j_listed.push(job.listed);
        self.j_behind.push(job.behind);
        self.j_open.push(job.is_open);
        self.j_summary.push(&job.summary);
        self.j_key.push(job.key.as_deref());
        self.j_answer.push(job.answer.as_deref());
        for (index, (placed, row)) in job.placed.iter().zip(&job.packed.rows).enumerate() {
            self.add_entry(number, placed, row.kind, &row.body);
            self.e_proof.push(job.proofs.get(index).map(Vec::as_slice));
        }
        for (seq, blob) in &job.uses {
            self.u_job.push(number);
            self.u_seq.push(*seq);
            self.u_hash.push(blob.as_bytes());
        }
    }

    fn add_entry(&mut self, number: i32, placed: &'j Placed, kind: Kind, body: &'j Packed) {
        let (meta, links) = (&placed.entry.meta, placed.links.as_ref());
        self.e_job.push(number);
        self.e_seq.push(int(meta.seq.0));
        self.e_parent.push(meta.parent.map(|parent| int(parent.0)));
        self.e_depth.push(links.map(|links| int(links.depth)));
        self.e_jump.push(links.map(|links| int(links.jump.0)));
        self.e_messages.push(links.map(|links| int(links.messages)));
        self.e_settings.push(links.and_then(|links| links.settings).map(|seq| int(seq.0)));
        self.e_id.push(Uuid::from_bytes(*meta.id.as_bytes()));
        self.e_at.push(meta.at.0);
        self.e_kind.push(i16::from(kind.code()));
        self.e_packing.push(i16::from(body.packing));
        self.e_turn.push(meta.turn.map(|turn| Uuid::from_bytes(*turn.as_bytes())));
        self.e_by.push(meta.by.to_string());
        self.e_snapshot
            .push(placed.snapshot.as_ref().map(|settings| serde_json::json!(settings).to_string()));
        self.e_body.push(&body.bytes);
    }

    /// Returns the statement for the format of the batch, and the number of its parameters.
    pub fn statement(&self) -> (&'static str, usize) {
        match u32::try_from(self.e_version) {
            Ok(LOG_VERSION..) => (APPEND_PROVEN, APPEND_PARAMS + 1),
            _ => (APPEND, APPEND_PARAMS),
        }
    }

    /// Returns the parameters of [`APPEND_PROVEN`]. [`APPEND`] has all except the last.
    pub fn params(&self) -> [&(dyn ToSql + Sync); APPEND_PARAMS + 1] {
        [
            &self.tenant,
            &self.j_pk,
            &self.j_version,
            &self.j_head,
            &self.j_listed,
            &self.j_behind,
            &self.j_open,
            &self.j_summary,
            &self.j_key,
            &self.j_answer,
            &self.e_job,
            &self.e_seq,
            &self.e_parent,
            &self.e_depth,
            &self.e_jump,
            &self.e_messages,
            &self.e_settings,
            &self.e_id,
            &self.e_at,
            &self.e_kind,
            &self.e_version,
            &self.e_packing,
            &self.e_turn,
            &self.e_by,
            &self.e_snapshot,
            &self.e_body,
            &self.u_job,
            &self.u_seq,
            &self.u_hash,
            &self.e_proof,
        ]
    }
}
