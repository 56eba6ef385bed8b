//! Blobs: bytes of a tenant by their hash, and which sessions use them.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{BLOB_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Right, Scope, StoreError};

use super::desk::Desk;
use super::fault::Fault;
use super::pack::{pack, unpack};
use super::session::read_summary;
use crate::admit::admit;

pub(super) fn put(desk: &Desk, scope: &Scope, bytes: Vec<u8>) -> Result<BlobHash> {
    let hash = BlobHash::of(&bytes);
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let by = desk.principal_or_new(&scope.principal)?;
    let packed = pack(bytes);
    let sql = "INSERT INTO blobs (tenant, hash, put_by, packing, data) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (tenant, hash) DO NOTHING";
    desk.prepare(sql)?
        .execute(params![tenant, hash.as_bytes(), by, packed.packing, packed.bytes])
        .at(&desk.path)?;
    Ok(hash)
}

/// The pks of blobs that the caller may refer to; an unknown one is an error.
pub(super) fn find_all(desk: &Desk, scope: &Scope, blobs: &[BlobHash]) -> Result<Vec<i64>> {
    blobs.iter().map(|blob| find(desk, scope, *blob)).collect()
}

/// A blob that the caller put there, or that a session uses which the caller may read. Any other looks unknown (I9).
fn find(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<i64> {
    let unknown = StoreError::NoBlob { blob };
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Err(unknown) };
    let mut select = desk.prepare("SELECT pk, put_by FROM blobs WHERE tenant = ?1 AND hash = ?2")?;
    let found = select.query_row(params![tenant, blob.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((pk, put_by)) = found.optional().at(&desk.path)? else { return Err(unknown) };
    let own = scope.reach == Reach::Tenant || desk.principal(put_by)? == scope.principal;
    if own || used_visibly(desk, scope, pk)? { Ok(pk) } else { Err(unknown) }
}

fn used_visibly(desk: &Desk, scope: &Scope, blob: i64) -> Result<bool> {
    let sql = "SELECT summary FROM blob_uses JOIN sessions ON sessions.pk = blob_uses.session
               WHERE blob = ?1 AND id NOT NULL";
    let mut select = desk.prepare(sql)?;
    let mut rows = select.query([blob]).at(&desk.path)?;
    while let Some(row) = rows.next().at(&desk.path)? {
        let summary = read_summary(desk, &row.get::<_, String>(0).at(&desk.path)?)?;
        if admit(scope, &summary, Right::Read).is_ok() {
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
    let bytes = unpack(packing, &data, BLOB_BYTES_MAX).map_err(|what| desk.damaged(format!("blob {blob}: {what}")))?;
    if BlobHash::of(&bytes) != blob {
        return Err(desk.damaged(format!("blob {blob} does not have the bytes its name says")));
    }
    Ok(bytes)
}

pub(super) fn note_uses(desk: &Desk, session: i64, blobs: &[i64]) -> Result<()> {
    for blob in blobs {
        desk.prepare("INSERT OR IGNORE INTO blob_uses (blob, session) VALUES (?1, ?2)")?
            .execute([blob, &session])
            .at(&desk.path)?;
    }
    Ok(())
}

/// Forgets what a session used, and deletes the blobs that nobody uses any more. `still_used` are those that entries
/// refer to which stay for the session's forks.
pub(super) fn drop_uses(desk: &Desk, session: i64, still_used: &[BlobHash]) -> Result<()> {
    let mut select = desk.prepare(
        "SELECT blob, hash FROM blob_uses JOIN blobs ON blobs.pk = blob_uses.blob WHERE session = ?1",
    )?;
    let used: Vec<(i64, [u8; 32])> = select
        .query_map([session], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at(&desk.path)?;
    for (blob, hash) in used {
        if still_used.contains(&BlobHash::from_bytes(hash)) {
            continue;
        }
        desk.prepare("DELETE FROM blob_uses WHERE blob = ?1 AND session = ?2")?
            .execute([blob, session])
            .at(&desk.path)?;
        desk.prepare("DELETE FROM blobs WHERE pk = ?1 AND NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob = ?1)")?
            .execute([blob])
            .at(&desk.path)?;
    }
    Ok(())
}
