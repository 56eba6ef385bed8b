//! Blobs: a tenant's bytes by their hash, the principals that put them, and the entries that refer
//! to them. A blob that fits into one piece is stored in its row. A larger blob is stored in
//! pieces, each of which is written separately ([`super::blob_upload`]) and verified whenever it is
//! read.

use std::ops::Range;

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{BLOB_BYTES_MAX, PIECE_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, StoreError};

use super::connection::{StoreConnection, int};
use super::error::AtPath;
use super::visibility::seen_by;
use crate::blob_chunks::{Piece, UPLOAD_IDLE_S_MAX, idle, slice, span};
use crate::compression::{Packed, unpack, unpacked_len};

/// Number of low bits of a piece's key that contain its number; the high bits contain its [`Cut`].
const NUMBER_BITS: u32 = 16;

/// A set of pieces that belong together. It is a random number, so that the uploader knows it even
/// if the first write fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut(i64);

impl Cut {
    pub fn new() -> Self {
        let bits = uuid::Uuid::new_v4().as_u128() >> (u128::BITS - (i64::BITS - 1 - NUMBER_BITS));
        Self(i64::try_from(bits).unwrap_or(0))
    }

    fn key(self, number: u32) -> i64 {
        self.0 << NUMBER_BITS | i64::from(number)
    }

    /// Returns the range of keys that the pieces of this set can have.
    fn keys(self) -> [i64; 2] {
        [self.key(0), self.key((1 << NUMBER_BITS) - 1)]
    }
}

/// Stores a blob of one piece.
pub(super) fn put(db: &StoreConnection, scope: &Scope, hash: BlobHash, packed: &Packed) -> Result<()> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    let pk = match pk_of_hash(db, tenant, hash)? {
        Some(pk) => pk,
        None => insert(db, tenant, hash, (packed.packing, &packed.bytes), None)?,
    };
    note_put(db, scope, pk)
}

fn insert(
    db: &StoreConnection,
    tenant: i64,
    hash: BlobHash,
    row: (u8, &[u8]),
    cut: Option<Cut>,
) -> Result<i64> {
    db.prepare("INSERT INTO blobs (tenant, hash, packing, data, cut) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![tenant, hash.as_bytes(), row.0, row.1, cut.map(|cut| cut.0)])
        .at(&db.path)?;
    Ok(db.conn.last_insert_rowid())
}

fn note_put(db: &StoreConnection, scope: &Scope, pk: i64) -> Result<()> {
    let by = db.principal_or_new(&scope.principal)?;
    db.prepare("INSERT OR IGNORE INTO blob_puts (blob, principal) VALUES (?1, ?2)")?
        .execute([pk, by])
        .at(&db.path)?;
    Ok(())
}

/// Adds the next piece of an upload. Every insert also deletes one piece of an abandoned upload.
pub(super) fn add_piece(db: &StoreConnection, cut: Cut, number: u32, piece: &Piece) -> Result<()> {
    if number == 0 {
        db.prepare("INSERT INTO cuts (pk, at) VALUES (?1, unixepoch())")?.execute([cut.0]).at(&db.path)?;
    } else {
        let sql = "UPDATE cuts SET at = unixepoch() WHERE pk = ?1 AND bytes IS NULL";
        if db.prepare(sql)?.execute([cut.0]).at(&db.path)? == 0 {
            return Err(idle());
        }
    }
    insert_piece(db, cut, number, piece)?;
    sweep(db).map(|_| ())
}

fn insert_piece(db: &StoreConnection, cut: Cut, number: u32, piece: &Piece) -> Result<()> {
    let packed = &piece.packed;
    db.prepare("INSERT INTO pieces (key, packing, hash, data) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![cut.key(number), packed.packing, piece.hash.as_bytes(), packed.bytes])
        .at(&db.path)?;
    Ok(())
}

/// Creates a blob from the uploaded pieces and the last piece. If the blob already exists, the
/// pieces are left to be deleted.
pub(super) fn finish(
    db: &StoreConnection,
    scope: &Scope,
    cut: Cut,
    (hash, bytes): (BlobHash, u64),
    (number, last): (u32, &Piece),
) -> Result<Left> {
    // Nothing is written until all checks have passed.
    let known = db.tenant(&scope.tenant)?.map(|tenant| pk_of_hash(db, tenant, hash)).transpose()?;
    let (pk, left) = match known.flatten() {
        Some(pk) => (pk, Left::More),
        None => {
            let sql = "UPDATE cuts SET bytes = ?2 WHERE pk = ?1 AND bytes IS NULL";
            if db.prepare(sql)?.execute([cut.0, int(bytes)]).at(&db.path)? == 0 {
                return Err(idle());
            }
            insert_piece(db, cut, number, last)?;
            let tenant = db.tenant_or_new(&scope.tenant)?;
            (insert(db, tenant, hash, (0, &[]), Some(cut))?, Left::Nothing)
        }
    };
    note_put(db, scope, pk).map(|()| left)
}

/// Whether there are more pieces to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    More,
}

/// Deletes one piece of an unfinished upload, and after the last piece the upload itself.
pub(super) fn drop_piece(db: &StoreConnection, cut: Cut) -> Result<Left> {
    let sql = "SELECT 1 FROM cuts WHERE pk = ?1 AND bytes IS NULL";
    if !db.prepare(sql)?.exists([cut.0]).at(&db.path)? {
        return Ok(Left::Nothing);
    }
    let sql = "DELETE FROM pieces WHERE key = (SELECT max(key) FROM pieces WHERE key BETWEEN ?1 AND ?2)";
    if db.prepare(sql)?.execute(cut.keys()).at(&db.path)? > 0 {
        return Ok(Left::More);
    }
    db.prepare("DELETE FROM cuts WHERE pk = ?1")?.execute([cut.0]).at(&db.path)?;
    Ok(Left::Nothing)
}

/// Deletes one piece of an expired upload.
pub(super) fn sweep(db: &StoreConnection) -> Result<Left> {
    match find_idle(db)? {
        Some(cut) => drop_piece(db, cut).map(|_| Left::More),
        None => Ok(Left::Nothing),
    }
}

pub(super) fn find_idle(db: &StoreConnection) -> Result<Option<Cut>> {
    let sql = "SELECT pk FROM cuts WHERE bytes IS NULL AND at < unixepoch() - ?1 ORDER BY at LIMIT 1";
    let mut select = db.prepare(sql)?;
    select.query_row([UPLOAD_IDLE_S_MAX], |row| row.get(0).map(Cut)).optional().at(&db.path)
}

fn pk_of_hash(db: &StoreConnection, tenant: i64, hash: BlobHash) -> Result<Option<i64>> {
    let mut select = db.prepare("SELECT pk FROM blobs WHERE tenant = ?1 AND hash = ?2")?;
    select.query_row(params![tenant, hash.as_bytes()], |row| row.get(0)).optional().at(&db.path)
}

/// Finds a blob that the caller put, or that an entry the caller may read refers to. Other blobs
/// are reported as unknown: knowing the hash does not give access to the bytes (I9).
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
        if seen_by(db, scope, row.get(0).at(&db.path)?)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns a blob's pieces and its size, or `None` if it is stored in its row.
fn cut_of(db: &StoreConnection, pk: i64) -> Result<Option<(Cut, u64)>> {
    let sql = "SELECT cut, bytes FROM blobs LEFT JOIN cuts ON cuts.pk = cut WHERE blobs.pk = ?1";
    let mut select = db.prepare(sql)?;
    let (cut, bytes): (Option<i64>, Option<i64>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&db.path)?;
    match (cut, bytes) {
        (None, _) => Ok(None),
        (Some(cut), Some(bytes)) => Ok(Some((Cut(cut), bytes.unsigned_abs()))),
        (Some(_), None) => Err(db.damaged(format!("the pieces of blob row {pk} are missing"))),
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

/// The result of reading from a blob.
pub(super) enum BlobRead {
    /// The requested span.
    Span(Vec<u8>),
    /// The whole blob, which an older version stored in its row although it is larger than a piece.
    Uncut { pk: i64, bytes: Vec<u8> },
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
    let bytes = read_row(db, pk, blob)?;
    Ok(match bytes.len() > PIECE_BYTES_MAX {
        true => BlobRead::Uncut { pk, bytes },
        false => BlobRead::Span(slice(&bytes, from, limit).to_vec()),
    })
}

fn read_row(db: &StoreConnection, pk: i64, blob: BlobHash) -> Result<Vec<u8>> {
    let mut select = db.prepare("SELECT packing, data FROM blobs WHERE pk = ?1")?;
    let (packing, data): (u8, Vec<u8>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&db.path)?;
    let bytes =
        unpack(packing, &data, BLOB_BYTES_MAX).map_err(|what| db.damaged(format!("blob {blob}: {what}")))?;
    if BlobHash::of(&bytes) != blob {
        return Err(db.damaged(format!("the content of blob {blob} does not match its hash")));
    }
    Ok(bytes)
}

fn read_span(
    db: &StoreConnection,
    blob: BlobHash,
    cut: Cut,
    span: impl Iterator<Item = (u32, Range<usize>)>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (number, inside) in span {
        let piece = read_piece(db, blob, cut, number)?;
        let part = piece.get(inside);
        bytes.extend_from_slice(
            part.ok_or_else(|| db.damaged(format!("blob {blob}: piece {number} is too short")))?,
        );
    }
    Ok(bytes)
}

fn read_piece(db: &StoreConnection, blob: BlobHash, cut: Cut, number: u32) -> Result<Vec<u8>> {
    let mut select = db.prepare("SELECT packing, data, hash FROM pieces WHERE key = ?1")?;
    let mut rows = select.query([cut.key(number)]).at(&db.path)?;
    let damaged = |what: String| db.damaged(format!("blob {blob}: piece {number}: {what}"));
    let Some(row) = rows.next().at(&db.path)? else { return Err(damaged("it is missing".to_owned())) };
    let column = |at| row.get_ref(at).at(&db.path).map(|value| value.as_blob().unwrap_or_default());
    Piece::read(row.get(0).at(&db.path)?, column(1)?, column(2)?).map_err(damaged)
}

/// Splits a blob that is larger than a piece and stored in its row, unless another caller has split
/// it in the meantime.
pub(super) fn cut_up(
    db: &StoreConnection,
    pk: i64,
    blob: BlobHash,
    bytes: u64,
    pieces: &[Piece],
) -> Result<()> {
    let cut = Cut::new();
    let sql =
        "UPDATE blobs SET packing = 0, data = x'', cut = ?3 WHERE pk = ?1 AND hash = ?2 AND cut IS NULL";
    if db.prepare(sql)?.execute(params![pk, blob.as_bytes(), cut.0]).at(&db.path)? == 0 {
        return Ok(());
    }
    db.prepare("INSERT INTO cuts (pk, at, bytes) VALUES (?1, unixepoch(), ?2)")?
        .execute([cut.0, int(bytes)])
        .at(&db.path)?;
    (0..).zip(pieces).try_for_each(|(number, piece)| insert_piece(db, cut, number, piece))
}

/// Returns the damaged blobs of the tenant, each read whole, one piece at a time, and reports
/// pieces without a blob.
pub(super) fn find_damaged(db: &StoreConnection, scope: &Scope) -> Result<Vec<String>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = db.prepare("SELECT pk, hash FROM blobs WHERE tenant = ?1")?;
    let blobs: Vec<(i64, [u8; 32])> = select
        .query_map([tenant], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at(&db.path)?;
    let mut wrong = Vec::new();
    for (pk, hash) in blobs {
        match read_through(db, pk, BlobHash::from_bytes(hash)) {
            Err(StoreError::Damaged { what, .. }) => wrong.push(what),
            read => read?,
        }
    }
    let sql = "SELECT count(*) FROM cuts WHERE bytes NOT NULL AND pk NOT IN (SELECT cut FROM blobs WHERE cut NOT NULL)";
    let unused: i64 = db.prepare(sql)?.query_row([], |row| row.get(0)).at(&db.path)?;
    if unused > 0 {
        wrong.push(format!("there are pieces of {unused} blobs that do not exist"));
    }
    Ok(wrong)
}

fn read_through(db: &StoreConnection, pk: i64, blob: BlobHash) -> Result<()> {
    let Some((cut, bytes)) = cut_of(db, pk)? else { return read_row(db, pk, blob).map(|_| ()) };
    let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
    while at < bytes {
        let piece = read_span(db, blob, cut, span(at, PIECE_BYTES_MAX, bytes))?;
        hasher.update(&piece);
        at += piece.len() as u64;
    }
    match hasher.finalize().as_bytes() == blob.as_bytes() {
        true => Ok(()),
        false => Err(db.damaged(format!("the content of blob {blob} does not match its hash"))),
    }
}

pub(super) fn note_use(db: &StoreConnection, key: i64, blob: i64) -> Result<()> {
    db.prepare("INSERT OR IGNORE INTO blob_uses (key, blob) VALUES (?1, ?2)")?
        .execute([key, blob])
        .at(&db.path)?;
    Ok(())
}

/// Removes the references of a deleted entry, and the blobs that no other entry refers to.
pub(super) fn drop_uses(db: &StoreConnection, key: i64) -> Result<()> {
    let mut select = db.prepare("SELECT blob FROM blob_uses WHERE key = ?1")?;
    let blobs: Vec<i64> =
        select.query_map([key], |row| row.get(0)).and_then(Iterator::collect).at(&db.path)?;
    if blobs.is_empty() {
        return Ok(());
    }
    db.prepare("DELETE FROM blob_uses WHERE key = ?1")?.execute([key]).at(&db.path)?;
    for blob in blobs {
        if db.prepare("SELECT 1 FROM blob_uses WHERE blob = ?1")?.exists([blob]).at(&db.path)? {
            continue;
        }
        db.prepare("DELETE FROM blob_puts WHERE blob = ?1")?.execute([blob]).at(&db.path)?;
        let sql = "DELETE FROM blobs WHERE pk = ?1 RETURNING cut";
        let cut = db.prepare(sql)?.query_row([blob], |row| row.get::<_, Option<i64>>(0)).at(&db.path)?;
        if let Some(cut) = cut.map(Cut) {
            let sql = "DELETE FROM pieces WHERE key BETWEEN ?1 AND ?2";
            db.prepare(sql)?.execute(cut.keys()).at(&db.path)?;
            db.prepare("DELETE FROM cuts WHERE pk = ?1")?.execute([cut.0]).at(&db.path)?;
        }
    }
    Ok(())
}
