//! Blobs: bytes of a tenant by their hash, who put them, and which entries refer to them.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{BLOB_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, StoreError};

use super::desk::Desk;
use super::fault::Fault;
use super::sight::seen_by;
use crate::pack::{pack, unpack};

pub(super) fn put(desk: &Desk, scope: &Scope, bytes: Vec<u8>) -> Result<BlobHash> {
    let hash = BlobHash::of(&bytes);
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let by = desk.principal_or_new(&scope.principal)?;
    let pk = match pk_of_hash(desk, tenant, hash)? {
        Some(pk) => pk,
        None => {
            let packed = pack(bytes);
            desk.prepare("INSERT INTO blobs (tenant, hash, packing, data) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![tenant, hash.as_bytes(), packed.packing, packed.bytes])
                .at(&desk.path)?;
            desk.conn.last_insert_rowid()
        }
    };
    desk.prepare("INSERT OR IGNORE INTO blob_puts (blob, principal) VALUES (?1, ?2)")?
        .execute([pk, by])
        .at(&desk.path)?;
    Ok(hash)
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

pub(super) fn get(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<Vec<u8>> {
    let pk = find(desk, scope, blob)?;
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
        desk.prepare("DELETE FROM blobs WHERE pk = ?1")?.execute([blob]).at(&desk.path)?;
    }
    Ok(())
}
