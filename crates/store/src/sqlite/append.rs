//! Appending inside the writer's transaction: all checks run before the first write. If a check
//! fails, nothing has been written, so an invalid append never rolls back the other appends of its
//! group.

use rusqlite::params;
use sapwood_core::entry::proof::{Proof, Salt};
use sapwood_core::entry::{Draft, LOG_VERSION};
use sapwood_core::port::store::{Append, Appended, Result};
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Lookup, Placed, TreeNode, place};
use sapwood_core::{EntryId, Kind, Right, Scope, Seq, SessionId, Source, StoreError};

use super::append_cache::{CachedSession, Nodes, SessionRow};
use super::audit::write_line;
use super::authority;
use super::blob;
use super::connection::StoreConnection;
use super::entry_index::PositionWriter;
use super::lease::lease_of;
use super::log::{LogRows, key_of};
use super::proofs::link_to;
use super::session_table::{find, store_summary};
use super::unindexed::UnindexedText;
use crate::authorize::authorize;
use crate::compression::{Packed, encode_body, pack, pack_drafts};
use crate::database::NamedDatabase;
use crate::lease::LeaseClock;
use crate::match_text::text_of;
use crate::proving::{ContentProof, ParentCache, missing_parents, prove_batch, salt_of};
use crate::stored_answer::StoredAnswer;
use crate::validate;

/// A body ready to be written: compressed, with its commitment and its searchable text.
pub(super) struct PackedBody {
    packed: Packed,
    content: ContentProof,
    text: Option<String>,
}

/// Drafts with their compressed bodies. An append compresses them before it is queued, so that the
/// writer does not have to.
pub(super) struct Batch {
    drafts: Vec<Draft>,
    packed: Vec<PackedBody>,
    source: Source,
}

impl Batch {
    pub fn pack(drafts: Vec<Draft>) -> Result<Self> {
        let packed = pack_bodies(&drafts, &[])?;
        Ok(Self { drafts, packed, source: Source::Own })
    }

    /// Returns, for each draft, the pks of the blobs that it refers to.
    fn find_blobs(&self, db: &StoreConnection, scope: &Scope) -> Result<Vec<Vec<i64>>> {
        let find =
            |draft: &Draft| draft.body.blobs().into_iter().map(|blob| blob::find(db, scope, blob)).collect();
        self.drafts.iter().map(find).collect()
    }
}

/// Encodes, hashes and compresses the bodies of drafts. A salt that is not given is drawn.
pub(super) fn pack_bodies(drafts: &[Draft], salts: &[Option<Salt>]) -> Result<Vec<PackedBody>> {
    pack_drafts(drafts, |index, draft| {
        let json = encode_body(&draft.body)?;
        let content = ContentProof::of(salt_of(salts, index), &json);
        Ok(PackedBody { packed: pack(json), content, text: text_of(&draft.body) })
    })
}

pub(super) fn append(
    db: &StoreConnection,
    scope: &Scope,
    append: Append,
    packed: Vec<PackedBody>,
    clock: &dyn LeaseClock,
) -> Result<Appended> {
    let mut cached = match db.append_cache.take(scope, &append.session) {
        Some(cached) => cached,
        None => load_session(db, scope, &append.session)?,
    };
    authorize(scope, &cached.row.summary, validate::right_needed(&cached.row.summary, &append.drafts))?;
    if let Some(answer) = earlier_answer(db, cached.row.pk, &append)? {
        return Ok(answer);
    }
    let lease = cached.lease.as_ref().map(|lease| lease.at(&clock.read()));
    validate::check_append(scope, &cached.row.summary, &append, lease)?;
    let batch = Batch { drafts: append.drafts, packed, source: append.source };
    if append.source == Source::Imported && cached.row.summary.authority.is_none() {
        authority::derive(db, scope, &mut cached.row.summary)?;
    }
    let answer = write_batch(db, scope, &mut cached, batch)?;
    if let Some(key) = &append.idempotency_key {
        store_answer(db, cached.row.pk, key, &StoredAnswer::of(&answer, append.request.clone()))?;
    }
    if let Some(note) = append.audit {
        write_line(db, scope, note, append.now)?;
    }
    db.append_cache.insert(scope, cached);
    Ok(answer)
}

fn load_session(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<CachedSession> {
    let row = find(db, scope, session, Right::Read)?;
    let lease = lease_of(db, row.pk)?;
    Ok(CachedSession { row, lease, nodes: Nodes::default(), parents: ParentCache::default() })
}

/// Places and writes a batch. All checks run before the first write.
pub(super) fn write_batch(
    db: &StoreConnection,
    scope: &Scope,
    CachedSession { row, nodes, parents, .. }: &mut CachedSession,
    batch: Batch,
) -> Result<Appended> {
    let blobs = batch.find_blobs(db, scope)?;
    let rows = LogRows::with_inherited(db, row.pk, row.summary.inherited)?;
    let mut log = CachingLookup { rows, nodes };
    let mut tip = row.summary.tip();
    let placed = place(&mut tip, batch.drafts, &scope.principal, &mut log, validate::random_bits)?;
    let proofs = prove(&mut log.rows, parents, &placed, &batch.packed)?;
    let mut positions = PositionWriter::of(db, placed.len());
    for (((placed, packed), proof), blobs) in placed.iter().zip(batch.packed).zip(proofs).zip(blobs) {
        let arrival = write_entry(db, row, placed, packed, &proof)?;
        positions.add(key_of(row.pk, placed.entry.meta.seq), arrival)?;
        log.nodes.add_placed(placed);
        for blob in blobs {
            blob::record_use(db, key_of(row.pk, placed.entry.meta.seq), blob)?;
        }
    }
    positions.finish()?;
    let leaf = tip.head.leaf.map(|leaf| log.node(leaf)).transpose()?;
    row.summary.apply_batch(&placed, batch.source, &tip, leaf.map(|node| node.links));
    if batch.source == Source::Imported {
        authority::store(db, row)?;
    }
    let position = db.append_cache.list_position_after(row);
    store_summary(db, row, position)?;
    Ok(validate::answer_of(&placed, tip.head))
}

/// Hashes the entries of a batch. Reads a parent's hash only if it is not cached.
fn prove(
    log: &mut LogRows<'_>,
    parents: &mut ParentCache,
    placed: &[Placed],
    packed: &[PackedBody],
) -> Result<Vec<Proof>> {
    let mut fetched = Vec::new();
    for seq in missing_parents(placed, parents) {
        fetched.push((seq, link_to(log, seq)?));
    }
    let contents = packed.iter().map(|packed| packed.content);
    Ok(prove_batch(placed, contents, LOG_VERSION, parents, fetched))
}

/// Writes an entry's row and returns its number.
fn write_entry(
    db: &StoreConnection,
    row: &SessionRow,
    placed: &Placed,
    body: PackedBody,
    proof: &Proof,
) -> Result<i64> {
    let meta = &placed.entry.meta;
    let key = key_of(row.pk, meta.seq);
    let sql =
        "INSERT INTO entries (key, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot,
                                    version, packing, body, proof)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let links = placed.links.as_ref();
    let snapshot = placed.snapshot.as_ref().map(|settings| serde_json::json!(settings).to_string());
    db.execute(
        sql,
        params![
            key,
            meta.id.as_bytes(),
            meta.parent.map(|parent| parent.0),
            meta.at.0,
            db.principal_or_new(&meta.by)?,
            meta.kind.code(),
            links.map(|links| links.depth),
            links.map(|links| links.jump.0),
            links.map(|links| links.messages),
            links.and_then(|links| links.settings).map(|seq| seq.0),
            meta.turn.as_ref().map(|turn| turn.as_bytes().as_slice()),
            snapshot,
            LOG_VERSION,
            body.packed.packing,
            body.packed.bytes,
            proof.to_bytes(),
        ],
    )?;
    let text = body.text.map(|text| UnindexedText { tenant: row.tenant, session: row.pk, text });
    let arrival = db.conn.last_insert_rowid();
    db.unindexed.push(arrival, text);
    Ok(arrival)
}

fn earlier_answer(db: &StoreConnection, pk: i64, append: &Append) -> Result<Option<Appended>> {
    let Some(key) = &append.idempotency_key else { return Ok(None) };
    let json: Option<String> =
        db.query_opt("SELECT answer FROM answers WHERE session = ?1 AND key = ?2", params![pk, key])?;
    let read = |json: String| db.parse::<StoredAnswer>("a stored answer", &json)?.for_retry(append);
    json.map(read).transpose()
}

fn store_answer(db: &StoreConnection, pk: i64, key: &str, answer: &StoredAnswer) -> Result<()> {
    db.execute(
        "INSERT INTO answers (session, key, answer) VALUES (?1, ?2, ?3)",
        params![pk, key, validate::print_json(answer)],
    )?;
    Ok(())
}

/// Looks up nodes in the cache first, then in the rows of the log.
struct CachingLookup<'d, 'n> {
    rows: LogRows<'d>,
    nodes: &'n mut Nodes,
}

impl Lookup for CachingLookup<'_, '_> {
    type Error = StoreError;

    fn node(&mut self, seq: Seq) -> Result<TreeNode> {
        if let Some(node) = self.nodes.get(seq) {
            return Ok(node);
        }
        let node = self.rows.node(seq)?;
        self.nodes.add(node);
        Ok(node)
    }
    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>> {
        self.rows.find(id)
    }
    fn settings(&mut self, at: Seq) -> Result<Settings> {
        self.rows.settings(at)
    }
    fn inherited(&self) -> u32 {
        self.rows.inherited
    }
}
