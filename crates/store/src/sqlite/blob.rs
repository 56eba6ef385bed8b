//! Blobs: bytes of a tenant by their hash, who put them, and which entries refer to them. One that fits into a piece is in its
//! row; a larger one is in pieces, each of them written by itself ([`super::sink`]) and checked whenever it is read.

use std::ops::Range;

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{BLOB_BYTES_MAX, PIECE_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, StoreError};

use super::desk::{Desk, int};
use super::fault::Fault;
use super::sight::seen_by;
use crate::pack::{Packed, unpack, unpacked_len};
use crate::pieces::{Piece, UPLOAD_IDLE_S_MAX, idle, slice, span};

/// Bits of a piece's key that are its number; the others are its cut.
const NUMBER_BITS: u32 = 16;

/// Pieces that belong together. A number of chance, so that whoever begins one knows it, whatever becomes of the first write.
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

    /// The keys of all its pieces, the first and the last that there can be.
    fn keys(self) -> [i64; 2] {
        [self.key(0), self.key((1 << NUMBER_BITS) - 1)]
    }
}

/// Puts a blob of one piece.
pub(super) fn put(desk: &Desk, scope: &Scope, hash: BlobHash, packed: &Packed) -> Result<()> {
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let pk = match pk_of_hash(desk, tenant, hash)? {
        Some(pk) => pk,
        None => insert(desk, tenant, hash, (packed.packing, &packed.bytes), None)?,
    };
    note_put(desk, scope, pk)
}

fn insert(desk: &Desk, tenant: i64, hash: BlobHash, row: (u8, &[u8]), cut: Option<Cut>) -> Result<i64> {
    desk.prepare("INSERT INTO blobs (tenant, hash, packing, data, cut) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![tenant, hash.as_bytes(), row.0, row.1, cut.map(|cut| cut.0)])
        .at(&desk.path)?;
    Ok(desk.conn.last_insert_rowid())
}

fn note_put(desk: &Desk, scope: &Scope, pk: i64) -> Result<()> {
    let by = desk.principal_or_new(&scope.principal)?;
    desk.prepare("INSERT OR IGNORE INTO blob_puts (blob, principal) VALUES (?1, ?2)")?
        .execute([pk, by])
        .at(&desk.path)?;
    Ok(())
}

/// Adds the next piece of an upload. For each that comes, one goes of an upload that nobody goes on with.
pub(super) fn add_piece(desk: &Desk, cut: Cut, number: u32, piece: &Piece) -> Result<()> {
    if number == 0 {
        desk.prepare("INSERT INTO cuts (pk, at) VALUES (?1, unixepoch())")?.execute([cut.0]).at(&desk.path)?;
    } else {
        let sql = "UPDATE cuts SET at = unixepoch() WHERE pk = ?1 AND bytes IS NULL";
        if desk.prepare(sql)?.execute([cut.0]).at(&desk.path)? == 0 {
            return Err(idle());
        }
    }
    insert_piece(desk, cut, number, piece)?;
    sweep(desk).map(|_| ())
}

fn insert_piece(desk: &Desk, cut: Cut, number: u32, piece: &Piece) -> Result<()> {
    let packed = &piece.packed;
    desk.prepare("INSERT INTO pieces (key, packing, hash, data) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![cut.key(number), packed.packing, piece.hash.as_bytes(), packed.bytes])
        .at(&desk.path)?;
    Ok(())
}

/// Makes a blob of pieces, the last of which comes along. If the blob is there already, the pieces stay as they are, and are left.
pub(super) fn finish(
    desk: &Desk,
    scope: &Scope,
    cut: Cut,
    (hash, bytes): (BlobHash, u64),
    (number, last): (u32, &Piece),
) -> Result<Left> {
    // Nothing is written before it is known that it can be finished.
    let known = desk.tenant(&scope.tenant)?.map(|tenant| pk_of_hash(desk, tenant, hash)).transpose()?;
    let (pk, left) = match known.flatten() {
        Some(pk) => (pk, Left::More),
        None => {
            let sql = "UPDATE cuts SET bytes = ?2 WHERE pk = ?1 AND bytes IS NULL";
            if desk.prepare(sql)?.execute([cut.0, int(bytes)]).at(&desk.path)? == 0 {
                return Err(idle());
            }
            insert_piece(desk, cut, number, last)?;
            let tenant = desk.tenant_or_new(&scope.tenant)?;
            (insert(desk, tenant, hash, (0, &[]), Some(cut))?, Left::Nothing)
        }
    };
    note_put(desk, scope, pk).map(|()| left)
}

/// Whether something is left to be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    More,
}

/// Takes a piece of an upload away, if it was not finished; after the last one, the upload.
pub(super) fn drop_piece(desk: &Desk, cut: Cut) -> Result<Left> {
    let sql = "SELECT 1 FROM cuts WHERE pk = ?1 AND bytes IS NULL";
    if !desk.prepare(sql)?.exists([cut.0]).at(&desk.path)? {
        return Ok(Left::Nothing);
    }
    let sql = "DELETE FROM pieces WHERE key = (SELECT max(key) FROM pieces WHERE key BETWEEN ?1 AND ?2)";
    if desk.prepare(sql)?.execute(cut.keys()).at(&desk.path)? > 0 {
        return Ok(Left::More);
    }
    desk.prepare("DELETE FROM cuts WHERE pk = ?1")?.execute([cut.0]).at(&desk.path)?;
    Ok(Left::Nothing)
}

/// Takes away a piece of an upload that has been idle for too long.
pub(super) fn sweep(desk: &Desk) -> Result<Left> {
    match find_idle(desk)? {
        Some(cut) => drop_piece(desk, cut).map(|_| Left::More),
        None => Ok(Left::Nothing),
    }
}

pub(super) fn find_idle(desk: &Desk) -> Result<Option<Cut>> {
    let sql = "SELECT pk FROM cuts WHERE bytes IS NULL AND at < unixepoch() - ?1 ORDER BY at LIMIT 1";
    let mut select = desk.prepare(sql)?;
    select.query_row([UPLOAD_IDLE_S_MAX], |row| row.get(0).map(Cut)).optional().at(&desk.path)
}

fn pk_of_hash(desk: &Desk, tenant: i64, hash: BlobHash) -> Result<Option<i64>> {
    let mut select = desk.prepare("SELECT pk FROM blobs WHERE tenant = ?1 AND hash = ?2")?;
    select.query_row(params![tenant, hash.as_bytes()], |row| row.get(0)).optional().at(&desk.path)
}

/// A blob that the caller put there, or that an entry refers to which the caller may read. Any other looks unknown:
/// knowing the hash is not having the bytes (I9).
pub(super) fn find(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<i64> {
    let unknown = || StoreError::NoBlob { blob };
    let tenant = desk.tenant(&scope.tenant)?.ok_or_else(unknown)?;
    let pk = pk_of_hash(desk, tenant, blob)?.ok_or_else(unknown)?;
    let may =
        scope.reach == Reach::Tenant || was_put_by(desk, scope, pk)? || is_used_visibly(desk, scope, pk)?;
    if may { Ok(pk) } else { Err(unknown()) }
}

fn was_put_by(desk: &Desk, scope: &Scope, blob: i64) -> Result<bool> {
    let sql = "SELECT 1 FROM blob_puts JOIN principals ON pk = principal WHERE blob = ?1 AND name = ?2";
    desk.prepare(sql)?.exists(params![blob, scope.principal.to_string()]).at(&desk.path)
}

fn is_used_visibly(desk: &Desk, scope: &Scope, blob: i64) -> Result<bool> {
    let mut select = desk.prepare("SELECT key FROM blob_uses WHERE blob = ?1")?;
    let mut rows = select.query([blob]).at(&desk.path)?;
    while let Some(row) = rows.next().at(&desk.path)? {
        if seen_by(desk, scope, row.get(0).at(&desk.path)?)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A blob's pieces and its size; none if it is in its row.
fn cut_of(desk: &Desk, pk: i64) -> Result<Option<(Cut, u64)>> {
    let sql = "SELECT cut, bytes FROM blobs LEFT JOIN cuts ON cuts.pk = cut WHERE blobs.pk = ?1";
    let mut select = desk.prepare(sql)?;
    let (cut, bytes): (Option<i64>, Option<i64>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&desk.path)?;
    match (cut, bytes) {
        (None, _) => Ok(None),
        (Some(cut), Some(bytes)) => Ok(Some((Cut(cut), bytes.unsigned_abs()))),
        (Some(_), None) => Err(desk.damaged(format!("the pieces of blob row {pk} are missing"))),
    }
}

pub(super) fn size(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<u64> {
    let pk = find(desk, scope, blob)?;
    if let Some((_, bytes)) = cut_of(desk, pk)? {
        return Ok(bytes);
    }
    let mut select = desk.prepare(
        "SELECT packing, length(data), coalesce(substr(data, 1, 4), x'') FROM blobs WHERE pk = ?1",
    )?;
    let (packing, len, head): (u8, i64, Vec<u8>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).at(&desk.path)?;
    unpacked_len(packing, len.unsigned_abs(), &head)
        .map_err(|what| desk.damaged(format!("blob {blob}: {what}")))
}

/// What was found of a blob.
pub(super) enum Found {
    /// What was asked for.
    Span(Vec<u8>),
    /// All of it: an old one that lies in its row although it is larger than a piece.
    Uncut { pk: i64, bytes: Vec<u8> },
}

pub(super) fn read(desk: &Desk, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Found> {
    let pk = find(desk, scope, blob)?;
    if let Some((cut, bytes)) = cut_of(desk, pk)? {
        return read_span(desk, blob, cut, span(from, limit, bytes)).map(Found::Span);
    }
    let bytes = read_row(desk, pk, blob)?;
    Ok(match bytes.len() > PIECE_BYTES_MAX {
        true => Found::Uncut { pk, bytes },
        false => Found::Span(slice(&bytes, from, limit).to_vec()),
    })
}

fn read_row(desk: &Desk, pk: i64, blob: BlobHash) -> Result<Vec<u8>> {
    let mut select = desk.prepare("SELECT packing, data FROM blobs WHERE pk = ?1")?;
    let (packing, data): (u8, Vec<u8>) =
        select.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&desk.path)?;
    let bytes = unpack(packing, &data, BLOB_BYTES_MAX)
        .map_err(|what| desk.damaged(format!("blob {blob}: {what}")))?;
    if BlobHash::of(&bytes) != blob {
        return Err(desk.damaged(format!("blob {blob} does not have the bytes its name says")));
    }
    Ok(bytes)
}

fn read_span(
    desk: &Desk,
    blob: BlobHash,
    cut: Cut,
    span: impl Iterator<Item = (u32, Range<usize>)>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (number, inside) in span {
        let piece = read_piece(desk, blob, cut, number)?;
        let part = piece.get(inside);
        bytes.extend_from_slice(
            part.ok_or_else(|| desk.damaged(format!("blob {blob}: piece {number} is short")))?,
        );
    }
    Ok(bytes)
}

fn read_piece(desk: &Desk, blob: BlobHash, cut: Cut, number: u32) -> Result<Vec<u8>> {
    let mut select = desk.prepare("SELECT packing, data, hash FROM pieces WHERE key = ?1")?;
    let mut rows = select.query([cut.key(number)]).at(&desk.path)?;
    let damaged = |what: String| desk.damaged(format!("blob {blob}: piece {number}: {what}"));
    let Some(row) = rows.next().at(&desk.path)? else { return Err(damaged("it is missing".to_owned())) };
    let column = |at| row.get_ref(at).at(&desk.path).map(|value| value.as_blob().unwrap_or_default());
    Piece::read(row.get(0).at(&desk.path)?, column(1)?, column(2)?).map_err(damaged)
}

/// Cuts up a blob that is larger than a piece and lies in its row, unless that was done in the meantime.
pub(super) fn cut_up(desk: &Desk, pk: i64, blob: BlobHash, bytes: u64, pieces: &[Piece]) -> Result<()> {
    let cut = Cut::new();
    let sql =
        "UPDATE blobs SET packing = 0, data = x'', cut = ?3 WHERE pk = ?1 AND hash = ?2 AND cut IS NULL";
    if desk.prepare(sql)?.execute(params![pk, blob.as_bytes(), cut.0]).at(&desk.path)? == 0 {
        return Ok(());
    }
    desk.prepare("INSERT INTO cuts (pk, at, bytes) VALUES (?1, unixepoch(), ?2)")?
        .execute([cut.0, int(bytes)])
        .at(&desk.path)?;
    (0..).zip(pieces).try_for_each(|(number, piece)| insert_piece(desk, cut, number, piece))
}

/// What is wrong with the tenant's blobs, each read whole and a piece at a time; and with pieces that are nobody's.
pub(super) fn find_damaged(desk: &Desk, scope: &Scope) -> Result<Vec<String>> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = desk.prepare("SELECT pk, hash FROM blobs WHERE tenant = ?1")?;
    let blobs: Vec<(i64, [u8; 32])> = select
        .query_map([tenant], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at(&desk.path)?;
    let mut wrong = Vec::new();
    for (pk, hash) in blobs {
        match read_through(desk, pk, BlobHash::from_bytes(hash)) {
            Err(StoreError::Damaged { what, .. }) => wrong.push(what),
            read => read?,
        }
    }
    let sql = "SELECT count(*) FROM cuts WHERE bytes NOT NULL AND pk NOT IN (SELECT cut FROM blobs WHERE cut NOT NULL)";
    let unused: i64 = desk.prepare(sql)?.query_row([], |row| row.get(0)).at(&desk.path)?;
    if unused > 0 {
        wrong.push(format!("the pieces of {unused} blobs are there without the blobs"));
    }
    Ok(wrong)
}

fn read_through(desk: &Desk, pk: i64, blob: BlobHash) -> Result<()> {
    let Some((cut, bytes)) = cut_of(desk, pk)? else { return read_row(desk, pk, blob).map(|_| ()) };
    let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
    while at < bytes {
        let piece = read_span(desk, blob, cut, span(at, PIECE_BYTES_MAX, bytes))?;
        hasher.update(&piece);
        at += piece.len() as u64;
    }
    match hasher.finalize().as_bytes() == blob.as_bytes() {
        true => Ok(()),
        false => Err(desk.damaged(format!("blob {blob} does not have the bytes its name says"))),
    }
}

pub(super) fn note_use(desk: &Desk, key: i64, blob: i64) -> Result<()> {
    desk.prepare("INSERT OR IGNORE INTO blob_uses (key, blob) VALUES (?1, ?2)")?
        .execute([key, blob])
        .at(&desk.path)?;
    Ok(())
}

/// An entry goes; blobs that no other entry refers to go with it.
pub(super) fn drop_uses(desk: &Desk, key: i64) -> Result<()> {
    let mut select = desk.prepare("SELECT blob FROM blob_uses WHERE key = ?1")?;
    let blobs: Vec<i64> =
        select.query_map([key], |row| row.get(0)).and_then(Iterator::collect).at(&desk.path)?;
    if blobs.is_empty() {
        return Ok(());
    }
    desk.prepare("DELETE FROM blob_uses WHERE key = ?1")?.execute([key]).at(&desk.path)?;
    for blob in blobs {
        if desk.prepare("SELECT 1 FROM blob_uses WHERE blob = ?1")?.exists([blob]).at(&desk.path)? {
            continue;
        }
        desk.prepare("DELETE FROM blob_puts WHERE blob = ?1")?.execute([blob]).at(&desk.path)?;
        let sql = "DELETE FROM blobs WHERE pk = ?1 RETURNING cut";
        let cut = desk.prepare(sql)?.query_row([blob], |row| row.get::<_, Option<i64>>(0)).at(&desk.path)?;
        if let Some(cut) = cut.map(Cut) {
            let sql = "DELETE FROM pieces WHERE key BETWEEN ?1 AND ?2";
            desk.prepare(sql)?.execute(cut.keys()).at(&desk.path)?;
            desk.prepare("DELETE FROM cuts WHERE pk = ?1")?.execute([cut.0]).at(&desk.path)?;
        }
    }
    Ok(())
}
