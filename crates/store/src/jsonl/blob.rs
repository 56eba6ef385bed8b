//! Blobs: a file each, named by its hash, and beside it who put it there.

use std::io::Write;

use sapwood_core::port::store::{BLOB_BYTES_MAX, Result};
use sapwood_core::{BlobHash, Principal, StoreError};

use super::disk::{self, At, sync, sync_dir};
use super::layout::Layout;
use crate::rules::damaged;
use crate::{Durability, private};

pub fn put(layout: &Layout, by: &Principal, bytes: &[u8], durability: Durability) -> Result<BlobHash> {
    if bytes.len() > BLOB_BYTES_MAX {
        return Err(StoreError::TooLarge { what: "a blob", limit: BLOB_BYTES_MAX });
    }
    let blob = BlobHash::of(bytes);
    let dir = layout.blobs();
    private::create_dir(&dir).at(&dir)?;
    if !was_put_by(layout, &blob, by)? {
        let path = layout.blob_putters(&blob);
        let mut putters = disk::open_to_append(&path)?;
        putters.write_all(format!("{by}\n").as_bytes()).at(&path)?;
        sync(&putters, &path, durability)?;
        sync_dir(&path, durability)?;
    }
    if !is_there(layout, &blob) {
        disk::replace(&layout.blob(&blob), bytes, durability)?;
    }
    Ok(blob)
}

pub fn is_there(layout: &Layout, blob: &BlobHash) -> bool {
    layout.blob(blob).exists()
}

pub fn was_put_by(layout: &Layout, blob: &BlobHash, by: &Principal) -> Result<bool> {
    let putters = disk::read_if_there(&layout.blob_putters(blob))?.unwrap_or_default();
    let name = by.to_string();
    Ok(putters.split(|byte| *byte == b'\n').any(|putter| putter == name.as_bytes()))
}

pub fn get(layout: &Layout, blob: &BlobHash) -> Result<Vec<u8>> {
    let path = layout.blob(blob);
    let bytes = disk::read_if_there(&path)?.ok_or(StoreError::NoBlob { blob: *blob })?;
    if BlobHash::of(&bytes) != *blob {
        return Err(damaged(path.display(), "it does not have the bytes its name says"));
    }
    Ok(bytes)
}

pub fn remove(layout: &Layout, blob: &BlobHash) -> Result<()> {
    disk::remove(&layout.blob(blob))?;
    disk::remove(&layout.blob_putters(blob))
}
