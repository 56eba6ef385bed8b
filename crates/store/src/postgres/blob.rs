//! Blobs: bytes of a tenant by their hash, who put them, and which entries refer to them.

use sapwood_core::port::store::{BLOB_BYTES_MAX, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Scope, Seq, StoreError};

use super::desk::Desk;
use super::log::{int, seq_of};
use super::sight::seen_by;
use crate::pack::{Packed, unpack};

pub(super) async fn put(desk: &Desk, scope: &Scope, hash: BlobHash, packed: &Packed) -> Result<()> {
    let (tenant, key) = (desk.tenant.as_str(), hash.as_bytes().as_slice());
    let sql =
        "INSERT INTO blobs (tenant, hash, packing, data) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    desk.execute(sql, &[&tenant, &key, &i16::from(packed.packing), &packed.bytes]).await?;
    let sql = "INSERT INTO blob_puts (tenant, hash, principal) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    desk.execute(sql, &[&tenant, &key, &scope.principal.to_string()]).await?;
    Ok(())
}

/// A blob that the caller put there, or that an entry refers to which the caller may read. Any other looks unknown:
/// knowing the hash is not having the bytes (I9).
async fn check(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<()> {
    let unknown = || StoreError::NoBlob { blob };
    let (tenant, key) = (desk.tenant.as_str(), blob.as_bytes().as_slice());
    let sql = "SELECT EXISTS (SELECT 1 FROM blob_puts WHERE tenant = $1 AND hash = $2 AND principal = $3)
               FROM blobs WHERE tenant = $1 AND hash = $2";
    let row =
        desk.query_opt(sql, &[&tenant, &key, &scope.principal.to_string()]).await?.ok_or_else(unknown)?;
    if scope.reach == Reach::Tenant || row.get(0) {
        return Ok(());
    }
    let sql = "SELECT session, seq FROM blob_uses WHERE tenant = $1 AND hash = $2";
    for row in desk.query(sql, &[&tenant, &key]).await? {
        if seen_by(desk, scope, (row.get(0), seq_of(row.get(1)))).await?.is_some() {
            return Ok(());
        }
    }
    Err(unknown())
}

pub(super) async fn check_all(desk: &Desk, scope: &Scope, blobs: &[BlobHash]) -> Result<()> {
    for blob in blobs {
        check(desk, scope, *blob).await?;
    }
    Ok(())
}

pub(super) async fn get(desk: &Desk, scope: &Scope, blob: BlobHash) -> Result<Vec<u8>> {
    check(desk, scope, blob).await?;
    let sql = "SELECT packing, data FROM blobs WHERE tenant = $1 AND hash = $2";
    let row = desk.query_one(sql, &[&desk.tenant.as_str(), &blob.as_bytes().as_slice()]).await?;
    let packing = u8::try_from(row.get::<_, i16>(0)).unwrap_or(u8::MAX);
    let bytes = unpack(packing, row.get(1), BLOB_BYTES_MAX)
        .map_err(|what| desk.damaged(format!("blob {blob}: {what}")))?;
    if BlobHash::of(&bytes) != blob {
        return Err(desk.damaged(format!("blob {blob} does not have the bytes its name says")));
    }
    Ok(bytes)
}

/// Entries go; blobs that no other entry refers to go with them.
pub(super) async fn drop_uses(desk: &Desk, session: i64, gone: &[Seq]) -> Result<()> {
    let tenant = desk.tenant.as_str();
    let seqs: Vec<i32> = gone.iter().map(|seq| int(seq.0)).collect();
    let sql = "DELETE FROM blob_uses WHERE tenant = $1 AND session = $2 AND seq = ANY ($3) RETURNING hash";
    let mut hashes: Vec<Vec<u8>> =
        desk.query(sql, &[&tenant, &session, &seqs]).await?.iter().map(|row| row.get(0)).collect();
    hashes.sort();
    hashes.dedup();
    for hash in hashes {
        let sql = "DELETE FROM blobs b WHERE tenant = $1 AND hash = $2
                   AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant = $1 AND u.hash = $2)";
        if desk.execute(sql, &[&tenant, &hash]).await? > 0 {
            desk.execute("DELETE FROM blob_puts WHERE tenant = $1 AND hash = $2", &[&tenant, &hash]).await?;
        }
    }
    Ok(())
}
