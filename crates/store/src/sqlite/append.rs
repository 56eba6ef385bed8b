//! Appending: everything is checked first, then everything is written, inside the writer's transaction. A check that
//! fails has written nothing, so one caller's mistake never costs the others of its group their commit.

use rusqlite::{OptionalExtension, params};
use sapwood_core::entry::{Draft, LOG_VERSION};
use sapwood_core::port::store::{Append, Appended, Lease, Result};
use sapwood_core::tree::{Lookup, Placed, place};
use sapwood_core::{BlobHash, Kind, Right, Scope, TimestampMs};

use super::audit::write_line;
use super::blob;
use super::desk::Desk;
use super::fault::Fault;
use super::log::{LogRows, key_of};
use super::pack::{Packed, pack_body};
use super::session::{SessionRow, find, store_summary};
use crate::rules;

/// Drafts, and their bodies packed: the caller's thread does that, not the writer's.
pub(super) struct Batch {
    drafts: Vec<Draft>,
    packed: Vec<Packed>,
}

impl Batch {
    pub fn pack(drafts: Vec<Draft>) -> Result<Self> {
        let packed = pack_bodies(&drafts)?;
        Ok(Self { drafts, packed })
    }

    fn blobs(&self) -> Vec<BlobHash> {
        self.drafts.iter().flat_map(|draft| draft.body.blobs()).collect()
    }
}

pub(super) fn pack_bodies(drafts: &[Draft]) -> Result<Vec<Packed>> {
    drafts.iter().map(|draft| pack_body(&draft.body)).collect()
}

pub(super) fn append(desk: &Desk, scope: &Scope, append: Append, packed: Vec<Packed>) -> Result<Appended> {
    let mut row = find(desk, scope, &append.session, Right::Write)?;
    if let Some(answer) = earlier_answer(desk, row.pk, append.idempotency_key.as_deref())? {
        return Ok(answer);
    }
    let lease = lease_of(desk, &row)?;
    rules::check_append(scope, &row.summary, &append, lease.as_ref())?;
    let answer = write_batch(desk, scope, &mut row, Batch { drafts: append.drafts, packed })?;
    if let Some(key) = &append.idempotency_key {
        remember_answer(desk, row.pk, key, &answer)?;
    }
    if let Some(note) = append.audit {
        write_line(desk, scope, note, append.now)?;
    }
    Ok(answer)
}

/// Places and writes a batch. Checks come first: nothing is written if one fails.
pub(super) fn write_batch(desk: &Desk, scope: &Scope, row: &mut SessionRow, batch: Batch) -> Result<Appended> {
    let blobs = blob::find_all(desk, scope, &batch.blobs())?;
    let mut log = LogRows::open(desk, row.pk)?;
    let mut tip = row.summary.tip();
    let placed = place(&mut tip, batch.drafts, &scope.principal, &mut log, rules::random_bits)?;
    for (placed, packed) in placed.iter().zip(&batch.packed) {
        write_entry(desk, row.pk, placed, packed)?;
    }
    blob::note_uses(desk, row.pk, &blobs)?;
    let leaf = tip.head.leaf.map(|leaf| log.node(leaf)).transpose()?;
    row.summary.apply_batch(&placed, &tip, leaf.map(|node| node.links));
    store_summary(desk, row)?;
    let entries = placed.iter().map(|placed| (placed.entry.meta.seq, placed.entry.meta.id)).collect();
    Ok(Appended { head: tip.head, entries })
}

fn write_entry(desk: &Desk, pk: i64, placed: &Placed, packed: &Packed) -> Result<()> {
    let meta = &placed.entry.meta;
    let key = key_of(pk, meta.seq);
    let doc = match is_searched(meta.kind) {
        true => {
            desk.prepare("INSERT INTO docs (key) VALUES (?1)")?.execute([key]).at(&desk.path)?;
            Some(desk.conn.last_insert_rowid())
        }
        false => None,
    };
    let sql = "INSERT INTO entries (key, id, parent, at, by, kind, depth, jump, messages, settings, doc, turn, snapshot,
                                    version, packing, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let links = placed.links.as_ref();
    let snapshot = placed.snapshot.as_ref().map(|settings| serde_json::json!(settings).to_string());
    desk.prepare(sql)?
        .execute(params![
            key,
            meta.id.as_bytes(),
            meta.parent.map(|parent| parent.0),
            meta.at.0,
            desk.principal_or_new(&meta.by)?,
            meta.kind.code(),
            links.map(|links| links.depth),
            links.map(|links| links.jump.0),
            links.map(|links| links.messages),
            links.and_then(|links| links.settings).map(|seq| seq.0),
            doc,
            meta.turn.as_ref().map(|turn| turn.as_bytes().as_slice()),
            snapshot,
            LOG_VERSION,
            packed.packing,
            packed.bytes,
        ])
        .at(&desk.path)?;
    Ok(())
}

/// Entries a full-text search looks through.
pub(super) fn is_searched(kind: Kind) -> bool {
    kind.is_message() || matches!(kind, Kind::Compaction | Kind::SessionNamed)
}

fn earlier_answer(desk: &Desk, pk: i64, key: Option<&str>) -> Result<Option<Appended>> {
    let Some(key) = key else { return Ok(None) };
    let mut select = desk.prepare("SELECT answer FROM answers WHERE session = ?1 AND key = ?2")?;
    let json: Option<String> =
        select.query_row(params![pk, key], |row| row.get(0)).optional().at(&desk.path)?;
    let read = |json: String| serde_json::from_str::<StoredAnswer>(&json);
    let answer = json.map(read).transpose().map_err(|error| desk.damaged(format!("a kept answer: {error}")))?;
    Ok(answer.map(|answer| Appended { head: answer.head, entries: answer.entries }))
}

fn remember_answer(desk: &Desk, pk: i64, key: &str, answer: &Appended) -> Result<()> {
    let stored = StoredAnswer { head: answer.head, entries: answer.entries.clone() };
    let json = serde_json::to_string(&stored).expect("numbers and ids always print");
    let mut insert = desk.prepare("INSERT INTO answers (session, key, answer) VALUES (?1, ?2, ?3)")?;
    insert.execute(params![pk, key, json]).at(&desk.path)?;
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct StoredAnswer {
    head: sapwood_core::tree::Head,
    entries: Vec<(sapwood_core::Seq, sapwood_core::EntryId)>,
}

pub(super) fn lease_of(desk: &Desk, row: &SessionRow) -> Result<Option<Lease>> {
    let mut select = desk.prepare("SELECT holder, fence, expires_at FROM leases WHERE session = ?1")?;
    let lease = select.query_row([row.pk], |found| {
        Ok(Lease {
            session: row.summary.id.clone(),
            holder: found.get(0)?,
            fence: u64::try_from(found.get::<_, i64>(1)?).unwrap_or(0),
            expires_at: TimestampMs(found.get(2)?),
        })
    });
    lease.optional().at(&desk.path)
}

/// Takes a free or expired lease, or renews the holder's own.
pub(super) fn take_lease(
    desk: &Desk,
    row: &SessionRow,
    holder: &str,
    ttl_ms: i64,
    now: TimestampMs,
) -> Result<Lease> {
    let current = lease_of(desk, row)?;
    let lease = rules::next_lease(current.as_ref(), &row.summary.id, holder, ttl_ms, now)?;
    store_lease(desk, row.pk, &lease)?;
    Ok(lease)
}

/// The row stays, so that the fence goes on growing; it is only expired.
pub(super) fn release_lease(desk: &Desk, row: &SessionRow, given: &Lease) -> Result<()> {
    match rules::released_lease(lease_of(desk, row)?.as_ref(), given) {
        Some(released) => store_lease(desk, row.pk, &released),
        None => Ok(()),
    }
}

fn store_lease(desk: &Desk, pk: i64, lease: &Lease) -> Result<()> {
    let sql = "INSERT INTO leases (session, holder, fence, expires_at) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (session) DO UPDATE SET holder = ?2, fence = ?3, expires_at = ?4";
    let fence = i64::try_from(lease.fence).unwrap_or(i64::MAX);
    desk.prepare(sql)?.execute(params![pk, lease.holder, fence, lease.expires_at.0]).at(&desk.path)?;
    Ok(())
}
