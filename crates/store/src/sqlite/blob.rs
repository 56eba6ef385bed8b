//! Blobs of a tenant, addressed by the hash of their bytes, with the principals that uploaded them
//! and the entries that refer to them. A blob that fits into one chunk is stored in its row. A
//! larger blob is stored in chunks. Each chunk is written separately ([`super::blob_upload`]) and
//! verified whenever it is read.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{BLOB_CHUNK_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, StoreError};

use super::connection::{StoreConnection, int};
use super::error::AtPath;
use super::visibility::read_visible;
use crate::blob_chunks::{
    self, BlobChunk, BlobRead, ChunkSpan, UPLOAD_IDLE_S_MAX, UploadResult, check_hash, span, upload_expired,
};
use crate::compression::{Packed, unpacked_len};
use crate::database::NamedDatabase;

/// Number of low bits of a chunk's key that contain its number; the high bits contain its
/// [`ChunkSet`].
const NUMBER_BITS: u32 = 16;

/// Identifies the chunks of one blob or upload: the pk of a row in `cuts`. It is random, so that
/// the uploader knows it even if the first write fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkSet(i64);

impl ChunkSet {
    pub fn new() -> Self {
        let bits = uuid::Uuid::new_v4().as_u128() >> (u128::BITS - (i64::BITS - 1 - NUMBER_BITS));
        Self(i64::try_from(bits).unwrap_or(0))
    }

    fn key(self, number: u32) -> i64 {
        self.0 << NUMBER_BITS | i64::from(number)
    }

    /// Returns the first and the last key that the chunks of this set can have.
    fn keys(self) -> [i64; 2] {
        [self.key(0), self.key((1 << NUMBER_BITS) - 1)]
    }
}

/// Stores a blob of one chunk.
pub(super) fn put(db: &StoreConnection, scope: &Scope, hash: BlobHash, packed: &Packed) -> Result<()> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let pk = match pk_of_hash(db, tenant, hash)? {
        Some(pk) => pk,
        None => insert(db, tenant, hash, (packed.packing, &packed.bytes), None)?,
    };
    record_put(db, scope, pk)
}

fn insert(
    db: &StoreConnection,
    tenant: i64,
    hash: BlobHash,
    row: (u8, &[u8]),
    cut: Option<ChunkSet>,
) -> Result<i64> {
    db.execute(
        "INSERT INTO blobs (tenant, hash, packing, data, cut) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![tenant, hash.as_bytes(), row.0, row.1, cut.map(|cut| cut.0)],
    )?;
    Ok(db.conn.last_insert_rowid())
}

fn record_put(db: &StoreConnection, scope: &Scope, pk: i64) -> Result<()> {
    let by = db.principal_or_new(&scope.principal)?;
    db.execute("INSERT OR IGNORE INTO blob_puts (blob, principal) VALUES (?1, ?2)", [pk, by])?;
    Ok(())
}

/// Adds the next chunk of an upload. Every insert also deletes one chunk of an abandoned upload.
pub(super) fn add_chunk(db: &StoreConnection, cut: ChunkSet, number: u32, chunk: &BlobChunk) -> Result<()> {
    if number == 0 {
        db.execute("INSERT INTO cuts (pk, at) VALUES (?1, unixepoch())", [cut.0])?;
    } else {
        let sql = "UPDATE cuts SET at = unixepoch() WHERE pk = ?1 AND bytes IS NULL";
        if db.execute(sql, [cut.0])? == 0 {
            return Err(upload_expired());
        }
    }
    insert_chunk(db, cut, number, chunk)?;
    sweep(db).map(|_| ())
}

fn insert_chunk(db: &StoreConnection, cut: ChunkSet, number: u32, chunk: &BlobChunk) -> Result<()> {
    let packed = &chunk.packed;
    db.execute(
        "INSERT INTO pieces (key, packing, hash, data) VALUES (?1, ?2, ?3, ?4)",
        params![cut.key(number), packed.packing, chunk.hash.as_bytes(), packed.bytes],
    )?;
    Ok(())
}

/// Creates a blob from the uploaded chunks and the last chunk.
pub(super) fn finish(
    db: &StoreConnection,
    scope: &Scope,
    cut: ChunkSet,
    (hash, bytes): (BlobHash, u64),
    (number, last): (u32, &BlobChunk),
) -> Result<UploadResult> {
    // Write nothing until all checks have passed.
    let known = db.tenant(&scope.tenant)?.map(|tenant| pk_of_hash(db, tenant, hash)).transpose()?;
    let (pk, result) = match known.flatten() {
        Some(pk) => (pk, UploadResult::Duplicate),
        None => {
            let sql = "UPDATE cuts SET bytes = ?2 WHERE pk = ?1 AND bytes IS NULL";
            if db.execute(sql, [cut.0, int(bytes)])? == 0 {
                return Err(upload_expired());
            }
            insert_chunk(db, cut, number, last)?;
            let tenant = db.tenant_or_new(&scope.tenant)?;
            (insert(db, tenant, hash, (0, &[]), Some(cut))?, UploadResult::Created)
        }
    };
    record_put(db, scope, pk).map(|()| result)
}

/// Whether more chunks have to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cleanup {
    Done,
    More,
}

/// Deletes one chunk of an unfinished upload, and after the last chunk the upload itself.
pub(super) fn drop_chunk(db: &StoreConnection, cut: ChunkSet) -> Result<Cleanup> {
    let sql = "SELECT 1 FROM cuts WHERE pk = ?1 AND bytes IS NULL";
    if !db.prepare(sql)?.exists([cut.0]).at(&db.path)? {
        return Ok(Cleanup::Done);
    }
    let sql = "DELETE FROM pieces WHERE key = (SELECT max(key) FROM pieces WHERE key BETWEEN ?1 AND ?2)";
    if db.execute(sql, cut.keys())? > 0 {
        return Ok(Cleanup::More);
    }
    db.execute("DELETE FROM cuts WHERE pk = ?1", [cut.0])?;
    Ok(Cleanup::Done)
}

/// Deletes one chunk of an expired upload.
pub(super) fn sweep(db: &StoreConnection) -> Result<Cleanup> {
    match find_idle(db)? {
        Some(cut) => drop_chunk(db, cut).map(|_| Cleanup::More),
        None => Ok(Cleanup::Done),
    }
}

pub(super) fn find_idle(db: &StoreConnection) -> Result<Option<ChunkSet>> {
    let sql = "SELECT pk FROM cuts WHERE bytes IS NULL AND at < unixepoch() - ?1 ORDER BY at LIMIT 1";
    let mut select = db.prepare(sql)?;
    select.query_row([UPLOAD_IDLE_S_MAX], |row| row.get(0).map(ChunkSet)).optional().at(&db.path)
}

fn pk_of_hash(db: &StoreConnection, tenant: i64, hash: BlobHash) -> Result<Option<i64>> {
    db.query_opt("SELECT pk FROM blobs WHERE tenant = ?1 AND hash = ?2", params![tenant, hash.as_bytes()])
}

/// Finds a blob that the caller uploaded, or that an entry the caller may read refers to. Operators
/// find every blob. Other blobs are reported as unknown: knowing the hash does not give access to the
/// bytes (I9).
pub(super) fn find(db: &StoreConnection, scope: &Scope, blob: BlobHash) -> Result<i64> {
    let unknown = || StoreError::NoBlob { blob };
    let tenant = db.tenant(&scope.tenant)?.ok_or_else(unknown)?;
    let pk = pk_of_hash(db, tenant, blob)?.ok_or_else(unknown)?;
    let may = scope.reach == Reach::Tenant || was_put_by(db, scope, pk)? || is_used_visibly(db, scope, pk)?;
    if may { Ok(pk) } else { Err(unknown()) }
}

fn was_put_by(db: &StoreConnection, scope: &Scope, blob: i64) -> Result<bool> {
    let sql = "SELECT 1 FROM blob_puts JOIN principals ON pk = principal WHERE blob = ?1 AND name = ?2";
    db.prepare(sql)?.exists(params![blob, scope.principal.to_string()]).at(&db.path)
}

fn is_used_visibly(db: &StoreConnection, scope: &Scope, blob: i64) -> Result<bool> {
    let mut select = db.prepare("SELECT key FROM blob_uses WHERE blob = ?1")?;
    let mut rows = select.query([blob]).at(&db.path)?;
    while let Some(row) = rows.next().at(&db.path)? {
        if read_visible(db, scope, row.get(0).at(&db.path)?)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the id of a blob's chunks and its size, or `None` if the blob is stored in its row.
fn cut_of(db: &StoreConnection, pk: i64) -> Result<Option<(ChunkSet, u64)>> {
    let sql = "SELECT cut, bytes FROM blobs LEFT JOIN cuts ON cuts.pk = cut WHERE blobs.pk = ?1";
    let mut select = db.prepare(sql)?;
    let (cut, bytes): (Option<i64>, Option<i64>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&db.path)?;
    match (cut, bytes) {
        (None, _) => Ok(None),
        (Some(cut), Some(bytes)) => Ok(Some((ChunkSet(cut), bytes.unsigned_abs()))),
        (Some(_), None) => Err(db.damaged(format!("the chunks of blob row {pk} are missing"))),
    }
}

pub(super) fn size(db: &StoreConnection, scope: &Scope, blob: BlobHash) -> Result<u64> {
    let pk = find(db, scope, blob)?;
    if let Some((_, bytes)) = cut_of(db, pk)? {
        return Ok(bytes);
    }
    let mut select = db.prepare(
        "SELECT packing, length(data), coalesce(substr(data, 1, 4), x'') FROM blobs WHERE pk = ?1",
    )?;
    let (packing, len, head): (u8, i64, Vec<u8>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).at(&db.path)?;
    unpacked_len(packing, len.unsigned_abs(), &head)
        .map_err(|what| db.damaged(format!("blob {blob}: {what}")))
}

pub(super) fn read(
    db: &StoreConnection,
    scope: &Scope,
    blob: BlobHash,
    from: u64,
    limit: usize,
) -> Result<BlobRead> {
    let pk = find(db, scope, blob)?;
    if let Some((cut, bytes)) = cut_of(db, pk)? {
        return read_span(db, blob, cut, span(from, limit, bytes)).map(BlobRead::Span);
    }
    Ok(BlobRead::of_row(read_row(db, pk, blob)?, from, limit))
}

fn read_row(db: &StoreConnection, pk: i64, blob: BlobHash) -> Result<Vec<u8>> {
    let mut select = db.prepare("SELECT packing, data FROM blobs WHERE pk = ?1")?;
    let (packing, data): (u8, Vec<u8>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&db.path)?;
    blob_chunks::read_row(blob, packing, &data).map_err(|what| db.damaged(what))
}

fn read_span(
    db: &StoreConnection,
    blob: BlobHash,
    cut: ChunkSet,
    span: impl Iterator<Item = ChunkSpan>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut select = db.prepare("SELECT packing, data, hash FROM pieces WHERE key = ?1")?;
    for (number, inside) in span {
        let damaged = |what: String| db.damaged(format!("blob {blob}: chunk {number}: {what}"));
        let mut rows = select.query([cut.key(number)]).at(&db.path)?;
        let Some(row) = rows.next().at(&db.path)? else { return Err(damaged("it is missing".to_owned())) };
        let column = |at| row.get_ref(at).at(&db.path).map(|value| value.as_blob().unwrap_or_default());
        let chunk = BlobChunk::read(row.get(0).at(&db.path)?, column(1)?, column(2)?).map_err(damaged)?;
        bytes.extend_from_slice(chunk.get(inside).ok_or_else(|| damaged("it is too short".to_owned()))?);
    }
    Ok(bytes)
}

/// Splits a blob that is larger than a chunk and stored in its row, unless another caller has split
/// it in the meantime.
pub(super) fn split_into_chunks(
    db: &StoreConnection,
    scope: &Scope,
    blob: BlobHash,
    bytes: u64,
    chunks: &[BlobChunk],
) -> Result<()> {
    let (tenant, cut) = (db.tenant(&scope.tenant)?, ChunkSet::new());
    let sql =
        "UPDATE blobs SET packing = 0, data = x'', cut = ?3 WHERE tenant = ?1 AND hash = ?2 AND cut IS NULL";
    if db.execute(sql, params![tenant, blob.as_bytes(), cut.0])? == 0 {
        return Ok(());
    }
    db.execute("INSERT INTO cuts (pk, at, bytes) VALUES (?1, unixepoch(), ?2)", [cut.0, int(bytes)])?;
    (0..).zip(chunks).try_for_each(|(number, chunk)| insert_chunk(db, cut, number, chunk))
}

/// Returns a description of each damaged blob of the tenant, and of chunks without a blob. Reads
/// every blob completely, one chunk at a time.
pub(super) fn find_damaged(db: &StoreConnection, scope: &Scope) -> Result<Vec<String>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = db.prepare("SELECT pk, hash FROM blobs WHERE tenant = ?1")?;
    let blobs: Vec<(i64, [u8; 32])> = select
        .query_map([tenant], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at(&db.path)?;
    let mut wrong = Vec::new();
    for (pk, hash) in blobs {
        match verify(db, pk, BlobHash::from_bytes(hash)) {
            Err(StoreError::Damaged { what, .. }) => wrong.push(what),
            read => read?,
        }
    }
    let sql = "SELECT count(*) FROM cuts WHERE bytes NOT NULL AND pk NOT IN (SELECT cut FROM blobs WHERE cut NOT NULL)";
    let unused: i64 = db.query_value(sql, [])?;
    if unused > 0 {
        wrong.push(format!("the chunks of {unused} blobs are stored, but the blobs do not exist"));
    }
    Ok(wrong)
}

fn verify(db: &StoreConnection, pk: i64, blob: BlobHash) -> Result<()> {
    let Some((cut, bytes)) = cut_of(db, pk)? else { return read_row(db, pk, blob).map(|_| ()) };
    let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
    while at < bytes {
        let chunk = read_span(db, blob, cut, span(at, BLOB_CHUNK_BYTES_MAX, bytes))?;
        hasher.update(&chunk);
        at += chunk.len() as u64;
    }
    let hash = BlobHash::from_bytes(*hasher.finalize().as_bytes());
    check_hash(blob, hash).map_err(|what| db.damaged(what))
}

pub(super) fn record_use(db: &StoreConnection, key: i64, blob: i64) -> Result<()> {
    db.execute("INSERT OR IGNORE INTO blob_uses (key, blob) VALUES (?1, ?2)", [key, blob])?;
    Ok(())
}

/// Removes the references of a deleted entry, and the blobs that no other entry refers to.
pub(super) fn drop_uses(db: &StoreConnection, key: i64) -> Result<()> {
    let blobs: Vec<i64> = db.query_all("SELECT blob FROM blob_uses WHERE key = ?1", [key])?;
    if blobs.is_empty() {
        return Ok(());
    }
    db.execute("DELETE FROM blob_uses WHERE key = ?1", [key])?;
    for blob in blobs {
        if db.prepare("SELECT 1 FROM blob_uses WHERE blob = ?1")?.exists([blob]).at(&db.path)? {
            continue;
        }
        db.execute("DELETE FROM blob_puts WHERE blob = ?1", [blob])?;
        let sql = "DELETE FROM blobs WHERE pk = ?1 RETURNING cut";
        let cut = db.prepare(sql)?.query_row([blob], |row| row.get::<_, Option<i64>>(0)).at(&db.path)?;
        if let Some(cut) = cut.map(ChunkSet) {
            let sql = "DELETE FROM pieces WHERE key BETWEEN ?1 AND ?2";
            db.execute(sql, cut.keys())?;
            db.execute("DELETE FROM cuts WHERE pk = ?1", [cut.0])?;
        }
    }
    Ok(())
}
