//! Blobs: a tenant's bytes by their hash, the principals that uploaded them, and the entries that
//! refer to them. A blob that fits into one chunk is stored in its row. A larger blob is stored in
//! chunks (table `pieces`), each of which is written separately ([`super::blob_upload`]) and verified
//! whenever it is read.

use sapwood_core::port::store::{BLOB_CHUNK_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, Seq, StoreError};
use uuid::Uuid;

use super::connection::StoreConnection;
use super::log::{int, seq_of};
use super::visibility::seen_by;
use crate::blob_chunks::{
    self, BlobChunk, BlobRead, ChunkSpan, UPLOAD_IDLE_S_MAX, UploadResult, check_hash, span, upload_expired,
};
use crate::compression::{Packed, unpacked_len};
use crate::database::NamedDatabase;

/// Blobs read at a time.
const CHUNK_ROWS: i64 = 1_000;

/// Stores a blob of one chunk.
pub(super) async fn put(db: &StoreConnection, scope: &Scope, hash: BlobHash, packed: &Packed) -> Result<()> {
    insert(db, hash, (packed.packing, &packed.bytes), None).await?;
    note_put(db, scope, hash).await
}

/// Inserts a blob row. Returns the number of inserted rows: zero if the blob exists.
async fn insert(db: &StoreConnection, hash: BlobHash, row: (u8, &[u8]), cut: Option<Uuid>) -> Result<u64> {
    let sql = "INSERT INTO blobs (tenant, hash, packing, data, cut) VALUES ($1, $2, $3, $4, $5)
               ON CONFLICT DO NOTHING";
    let (tenant, key) = (db.tenant.as_str(), hash.as_bytes().as_slice());
    db.execute(sql, &[&tenant, &key, &i16::from(row.0), &row.1, &cut]).await
}

async fn note_put(db: &StoreConnection, scope: &Scope, hash: BlobHash) -> Result<()> {
    let (tenant, key) = (db.tenant.as_str(), hash.as_bytes().as_slice());
    let sql = "INSERT INTO blob_puts (tenant, hash, principal) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    db.execute(sql, &[&tenant, &key, &scope.principal.to_string()]).await?;
    Ok(())
}

/// Adds the next chunk of an upload.
pub(super) async fn add_chunk(db: &StoreConnection, cut: Uuid, number: u32, chunk: &BlobChunk) -> Result<()> {
    let sql = match number {
        0 => "INSERT INTO cuts (tenant, cut, at) VALUES ($1, $2, extract(epoch FROM now())::bigint)",
        _ => {
            "UPDATE cuts SET at = extract(epoch FROM now())::bigint
              WHERE tenant = $1 AND cut = $2 AND bytes IS NULL"
        }
    };
    if db.execute(sql, &[&db.tenant.as_str(), &cut]).await? == 0 {
        return Err(upload_expired());
    }
    insert_chunk(db, cut, number, chunk).await
}

async fn insert_chunk(db: &StoreConnection, cut: Uuid, number: u32, chunk: &BlobChunk) -> Result<()> {
    let sql = "INSERT INTO pieces (tenant, cut, number, packing, hash, data) VALUES ($1, $2, $3, $4, $5, $6)";
    let (packed, hash) = (&chunk.packed, chunk.hash.as_bytes().as_slice());
    let (tenant, packing) = (db.tenant.as_str(), i16::from(packed.packing));
    db.execute(sql, &[&tenant, &cut, &int(number), &packing, &hash, &packed.bytes]).await?;
    Ok(())
}

/// Creates a blob from the uploaded chunks and the last chunk.
pub(super) async fn finish(
    db: &StoreConnection,
    scope: &Scope,
    cut: Uuid,
    (hash, bytes): (BlobHash, u64),
    (number, last): (u32, &BlobChunk),
) -> Result<UploadResult> {
    let result = match insert(db, hash, (0, &[]), Some(cut)).await? {
        0 => UploadResult::Duplicate,
        _ => UploadResult::Created,
    };
    if result == UploadResult::Created {
        let sql = "UPDATE cuts SET bytes = $3 WHERE tenant = $1 AND cut = $2 AND bytes IS NULL";
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if db.execute(sql, &[&db.tenant.as_str(), &cut, &bytes]).await? == 0 {
            return Err(upload_expired());
        }
        insert_chunk(db, cut, number, last).await?;
    }
    note_put(db, scope, hash).await.map(|()| result)
}

/// Deletes an unfinished upload and its chunks.
pub(super) async fn drop_cut(db: &StoreConnection, cut: Uuid) -> Result<()> {
    let sql = "DELETE FROM cuts WHERE tenant = $1 AND cut = $2 AND bytes IS NULL";
    db.execute(sql, &[&db.tenant.as_str(), &cut]).await.map(|_| ())
}

/// Selects the tenants that have expired uploads. Runs without a tenant.
pub(super) const IDLE_TENANTS: &str = "SELECT DISTINCT tenant FROM cuts
    WHERE bytes IS NULL AND at < extract(epoch FROM now())::bigint - $1 LIMIT 100";

/// Deletes the tenant's abandoned uploads.
pub(super) async fn sweep(db: &StoreConnection) -> Result<()> {
    let sql = "DELETE FROM cuts WHERE tenant = $1 AND bytes IS NULL
               AND at < extract(epoch FROM now())::bigint - $2";
    db.execute(sql, &[&db.tenant.as_str(), &UPLOAD_IDLE_S_MAX]).await.map(|_| ())
}

/// Checks that the caller is an operator, uploaded the blob, or may read an entry that refers to it.
/// Otherwise reports the blob as unknown: knowing the hash does not give access to the bytes (I9).
async fn check(db: &StoreConnection, scope: &Scope, blob: BlobHash) -> Result<()> {
    let unknown = || StoreError::NoBlob { blob };
    let (tenant, key) = (db.tenant.as_str(), blob.as_bytes().as_slice());
    let sql = "SELECT EXISTS (SELECT 1 FROM blob_puts WHERE tenant = $1 AND hash = $2 AND principal = $3)
               FROM blobs WHERE tenant = $1 AND hash = $2";
    let row = db.query_opt(sql, &[&tenant, &key, &scope.principal.to_string()]).await?.ok_or_else(unknown)?;
    if scope.reach == Reach::Tenant || row.get(0) {
        return Ok(());
    }
    let sql = "SELECT session, seq FROM blob_uses WHERE tenant = $1 AND hash = $2";
    for row in db.query(sql, &[&tenant, &key]).await? {
        if seen_by(db, scope, (row.get(0), seq_of(row.get(1)))).await?.is_some() {
            return Ok(());
        }
    }
    Err(unknown())
}

pub(super) async fn check_all(db: &StoreConnection, scope: &Scope, blobs: &[BlobHash]) -> Result<()> {
    for blob in blobs {
        check(db, scope, *blob).await?;
    }
    Ok(())
}

/// Returns the id of a blob's chunks and the size of the blob, or `None` if it is stored in its row.
async fn cut_of(db: &StoreConnection, blob: BlobHash) -> Result<Option<(Uuid, u64)>> {
    let sql = "SELECT b.cut, c.bytes FROM blobs b LEFT JOIN cuts c ON c.tenant = b.tenant AND c.cut = b.cut
               WHERE b.tenant = $1 AND b.hash = $2";
    let row = db.query_one(sql, &[&db.tenant.as_str(), &blob.as_bytes().as_slice()]).await?;
    let bytes = row.get::<_, Option<i64>>(1).and_then(|bytes| u64::try_from(bytes).ok());
    match (row.get(0), bytes) {
        (None, _) => Ok(None),
        (Some(cut), Some(bytes)) => Ok(Some((cut, bytes))),
        (Some(_), None) => Err(db.damaged(format!("the chunks of blob {blob} are missing"))),
    }
}

pub(super) async fn size(db: &StoreConnection, scope: &Scope, blob: BlobHash) -> Result<u64> {
    check(db, scope, blob).await?;
    if let Some((_, bytes)) = cut_of(db, blob).await? {
        return Ok(bytes);
    }
    let sql = "SELECT packing, octet_length(data), substring(data FROM 1 FOR 4) FROM blobs
               WHERE tenant = $1 AND hash = $2";
    let row = db.query_one(sql, &[&db.tenant.as_str(), &blob.as_bytes().as_slice()]).await?;
    let len = u64::try_from(row.get::<_, i32>(1)).unwrap_or(0);
    unpacked_len(packing_of(row.get(0)), len, row.get(2))
        .map_err(|what| db.damaged(format!("blob {blob}: {what}")))
}

fn packing_of(stored: i16) -> u8 {
    u8::try_from(stored).unwrap_or(u8::MAX)
}

pub(super) async fn read(
    db: &StoreConnection,
    scope: &Scope,
    blob: BlobHash,
    from: u64,
    limit: usize,
) -> Result<BlobRead> {
    check(db, scope, blob).await?;
    if let Some((cut, bytes)) = cut_of(db, blob).await? {
        return read_span(db, blob, cut, span(from, limit, bytes)).await.map(BlobRead::Span);
    }
    Ok(BlobRead::of_row(read_row(db, blob).await?, from, limit))
}

async fn read_row(db: &StoreConnection, blob: BlobHash) -> Result<Vec<u8>> {
    let sql = "SELECT packing, data FROM blobs WHERE tenant = $1 AND hash = $2";
    let row = db.query_one(sql, &[&db.tenant.as_str(), &blob.as_bytes().as_slice()]).await?;
    blob_chunks::read_row(blob, packing_of(row.get(0)), row.get(1)).map_err(|what| db.damaged(what))
}

async fn read_span(
    db: &StoreConnection,
    blob: BlobHash,
    cut: Uuid,
    span: impl Iterator<Item = ChunkSpan>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (number, inside) in span {
        let damaged = |what: String| db.damaged(format!("blob {blob}: chunk {number}: {what}"));
        let sql = "SELECT packing, data, hash FROM pieces WHERE tenant = $1 AND cut = $2 AND number = $3";
        let row = db.query_opt(sql, &[&db.tenant.as_str(), &cut, &int(number)]).await?;
        let row = row.ok_or_else(|| damaged("it is missing".to_owned()))?;
        let chunk = BlobChunk::read(packing_of(row.get(0)), row.get(1), row.get(2)).map_err(damaged)?;
        bytes.extend_from_slice(chunk.get(inside).ok_or_else(|| damaged("it is too short".to_owned()))?);
    }
    Ok(bytes)
}

/// Splits a blob that is stored in its row although it is larger than a chunk. Does nothing if
/// another caller has split it in the meantime.
pub(super) async fn split_blob(
    db: &StoreConnection,
    blob: BlobHash,
    bytes: usize,
    chunks: &[BlobChunk],
) -> Result<()> {
    let (tenant, cut) = (db.tenant.as_str(), Uuid::new_v4());
    let sql =
        "UPDATE blobs SET packing = 0, data = '', cut = $3 WHERE tenant = $1 AND hash = $2 AND cut IS NULL";
    if db.execute(sql, &[&tenant, &blob.as_bytes().as_slice(), &cut]).await? == 0 {
        return Ok(());
    }
    let sql =
        "INSERT INTO cuts (tenant, cut, at, bytes) VALUES ($1, $2, extract(epoch FROM now())::bigint, $3)";
    db.execute(sql, &[&tenant, &cut, &i64::try_from(bytes).unwrap_or(i64::MAX)]).await?;
    for (number, chunk) in (0..).zip(chunks) {
        insert_chunk(db, cut, number, chunk).await?;
    }
    Ok(())
}

/// Reads all blobs of the tenant, one chunk at a time. Returns a message for each damaged blob, and
/// one for chunks that belong to no blob.
pub(super) async fn find_damaged(db: &StoreConnection) -> Result<Vec<String>> {
    let (tenant, mut after, mut wrong) = (db.tenant.as_str(), Vec::<u8>::new(), Vec::new());
    loop {
        let sql = "SELECT hash FROM blobs WHERE tenant = $1 AND hash > $2 ORDER BY hash LIMIT $3";
        let rows = db.query(sql, &[&tenant, &after, &CHUNK_ROWS]).await?;
        let Some(last) = rows.last() else { break };
        after = last.get(0);
        for row in rows {
            let Ok(hash) = <[u8; 32]>::try_from(row.get::<_, &[u8]>(0)) else {
                wrong.push("a blob is stored under an invalid hash".to_owned());
                continue;
            };
            match read_through(db, BlobHash::from_bytes(hash)).await {
                Err(StoreError::Damaged { what, .. }) => wrong.push(what),
                read => read?,
            }
        }
    }
    let sql = "SELECT count(*) FROM cuts c WHERE tenant = $1 AND bytes IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.tenant = $1 AND b.cut = c.cut)";
    let unused: i64 = db.query_one(sql, &[&tenant]).await?.get(0);
    if unused > 0 {
        wrong.push(format!("the chunks of {unused} uploads belong to no blob"));
    }
    Ok(wrong)
}

async fn read_through(db: &StoreConnection, blob: BlobHash) -> Result<()> {
    let Some((cut, bytes)) = cut_of(db, blob).await? else {
        return read_row(db, blob).await.map(|_| ());
    };
    let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
    while at < bytes {
        let chunk = read_span(db, blob, cut, span(at, BLOB_CHUNK_BYTES_MAX, bytes)).await?;
        hasher.update(&chunk);
        at += chunk.len() as u64;
    }
    let hash = BlobHash::from_bytes(*hasher.finalize().as_bytes());
    check_hash(blob, hash).map_err(|what| db.damaged(what))
}

/// Removes the references of deleted entries, and the blobs that no other entry refers to.
pub(super) async fn drop_uses(db: &StoreConnection, session: i64, gone: &[Seq]) -> Result<()> {
    let tenant = db.tenant.as_str();
    let seqs: Vec<i32> = gone.iter().map(|seq| int(seq.0)).collect();
    let sql = "DELETE FROM blob_uses WHERE tenant = $1 AND session = $2 AND seq = ANY ($3) RETURNING hash";
    let mut hashes: Vec<Vec<u8>> =
        db.query(sql, &[&tenant, &session, &seqs]).await?.iter().map(|row| row.get(0)).collect();
    hashes.sort();
    hashes.dedup();
    for hash in hashes {
        let sql = "DELETE FROM blobs b WHERE tenant = $1 AND hash = $2
                   AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant = $1 AND u.hash = $2)
                   RETURNING cut";
        if let Some(row) = db.query_opt(sql, &[&tenant, &hash]).await? {
            let sql = "DELETE FROM cuts WHERE tenant = $1 AND cut = $2";
            db.execute(sql, &[&tenant, &row.get::<_, Option<Uuid>>(0)]).await?;
            db.execute("DELETE FROM blob_puts WHERE tenant = $1 AND hash = $2", &[&tenant, &hash]).await?;
        }
    }
    Ok(())
}
