//! Appends that are ready to be written, and the conversion of a batch of them to the array
//! parameters of the SQL function `append_batch`.

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::port::store::{Append, Appended, AuditNote, Result};
use sapwood_core::tree::{Head, Placed};
use sapwood_core::{BlobHash, EntryId, Principal, Seq, TimestampMs};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::log::int;
use super::session::SessionRow;
use crate::compression::Packed;
use crate::match_text::is_searched;
use crate::validate;

pub(super) const APPEND: &str =
    "SELECT job, answer FROM append_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
     $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)";

/// The stored answer to an idempotency key.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct StoredAnswer {
    pub head: Head,
    pub entries: Vec<(Seq, EntryId)>,
    /// The hash of the request, if the caller supplied one. Answers stored by older versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

impl StoredAnswer {
    pub fn print(answer: &Appended, request: Option<&str>) -> String {
        let request = request.map(str::to_owned);
        let stored = Self { head: answer.head, entries: answer.entries.clone(), request };
        serde_json::to_string(&stored).expect("numbers and ids always serialize")
    }

    /// Returns the answer. Fails if the append is a different request with the same key.
    pub fn into_answer_for(self, append: &Append) -> Result<Appended> {
        validate::check_request(append, self.request.as_deref())?;
        Ok(Appended { head: self.head, entries: self.entries })
    }
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
    entries: Vec<EntryRow>,
    uses: Vec<(i32, BlobHash)>,
    pub audit: Option<(Principal, AuditNote, TimestampMs)>,
    /// The session's authority record, if the entries change it.
    pub authority: Option<String>,
}

struct EntryRow {
    seq: i32,
    parent: Option<i32>,
    depth: Option<i32>,
    jump: Option<i32>,
    messages: Option<i32>,
    settings: Option<i32>,
    id: Uuid,
    at: i64,
    kind: i16,
    packing: i16,
    turn: Option<Uuid>,
    by: String,
    snapshot: Option<String>,
    body: Vec<u8>,
}

impl AppendJob {
    /// Creates a job. `row` contains the summary after the append and the version before it.
    pub fn new(row: &SessionRow, placed: &[Placed], packed: &[Packed]) -> Self {
        let mut uses = Vec::new();
        for placed in placed {
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
            entries: placed.iter().zip(packed).map(|(placed, body)| entry_row(placed, body)).collect(),
            uses,
            audit: None,
            authority: None,
        }
    }

    pub fn with_answer(mut self, append: &Append, answer: &Appended) -> Self {
        if let Some(key) = &append.idempotency_key {
            self.key = Some(key.clone());
            self.answer = Some(StoredAnswer::print(answer, append.request.as_deref()));
        }
        self
    }

    pub fn pk(&self) -> i64 {
        self.pk
    }

    pub fn bytes(&self) -> usize {
        self.summary.len() + self.entries.iter().map(|entry| entry.body.len() + 200).sum::<usize>()
    }
}

fn entry_row(placed: &Placed, body: &Packed) -> EntryRow {
    let meta = &placed.entry.meta;
    let links = placed.links.as_ref();
    EntryRow {
        seq: int(meta.seq.0),
        parent: meta.parent.map(|parent| int(parent.0)),
        depth: links.map(|links| int(links.depth)),
        jump: links.map(|links| int(links.jump.0)),
        messages: links.map(|links| int(links.messages)),
        settings: links.and_then(|links| links.settings).map(|seq| int(seq.0)),
        id: Uuid::from_bytes(*meta.id.as_bytes()),
        at: meta.at.0,
        kind: i16::from(meta.kind.code()),
        packing: i16::from(body.packing),
        turn: meta.turn.map(|turn| Uuid::from_bytes(*turn.as_bytes())),
        by: meta.by.to_string(),
        snapshot: placed.snapshot.as_ref().map(|settings| serde_json::json!(settings).to_string()),
        body: body.bytes.clone(),
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
    e_by: Vec<&'j str>,
    e_snapshot: Vec<Option<&'j str>>,
    e_body: Vec<&'j [u8]>,
    u_job: Vec<i32>,
    u_seq: Vec<i32>,
    u_hash: Vec<&'j [u8]>,
}

impl<'j> BatchColumns<'j> {
    pub fn of(tenant: &'j str, jobs: impl Iterator<Item = &'j AppendJob>) -> Self {
        let e_version = i16::try_from(LOG_VERSION).unwrap_or(i16::MAX);
        let mut columns = Self { tenant, e_version, ..Self::default() };
        for (number, job) in (1..).zip(jobs) {
            columns.add(number, job);
        }
        columns
    }

    fn add(&mut self, number: i32, job: &'j AppendJob) {
        self.j_pk.push(job.pk);
        self.j_version.push(job.version);
        self.j_head.push(job.head);
        self.j_listed.push(job.listed);
        self.j_behind.push(job.behind);
        self.j_open.push(job.is_open);
        self.j_summary.push(&job.summary);
        self.j_key.push(job.key.as_deref());
        self.j_answer.push(job.answer.as_deref());
        for entry in &job.entries {
            self.add_entry(number, entry);
        }
        for (seq, blob) in &job.uses {
            self.u_job.push(number);
            self.u_seq.push(*seq);
            self.u_hash.push(blob.as_bytes());
        }
    }

    fn add_entry(&mut self, number: i32, entry: &'j EntryRow) {
        self.e_job.push(number);
        self.e_seq.push(entry.seq);
        self.e_parent.push(entry.parent);
        self.e_depth.push(entry.depth);
        self.e_jump.push(entry.jump);
        self.e_messages.push(entry.messages);
        self.e_settings.push(entry.settings);
        self.e_id.push(entry.id);
        self.e_at.push(entry.at);
        self.e_kind.push(entry.kind);
        self.e_packing.push(entry.packing);
        self.e_turn.push(entry.turn);
        self.e_by.push(&entry.by);
        self.e_snapshot.push(entry.snapshot.as_deref());
        self.e_body.push(&entry.body);
    }

    /// Returns the parameters in the order of [`APPEND`].
    pub fn params(&self) -> [&(dyn ToSql + Sync); 29] {
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
        ]
    }
}
