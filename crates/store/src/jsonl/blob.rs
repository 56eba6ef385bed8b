//! Blobs: one file each, named by its hash, with a separate list of the principals that uploaded it.
//! A blob of several chunks is written to a file in `uploads/`, which is renamed when it is complete.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sapwood_core::port::store::{BLOB_CHUNK_BYTES_MAX, Result};
use sapwood_core::{BlobHash, Principal, Scope, StoreError};
use serde::{Deserialize, Serialize};

use super::JsonlStore;
use super::disk::{self, At, io_error, sync, sync_dir};
use super::layout::Layout;
use super::line_sum::{self, LineState};
use super::sealed_lines;
use crate::blob_chunks::{BlobEnd, UPLOAD_IDLE_S_MAX};
use crate::blob_upload::UploadTarget;
use crate::validate::damaged;
use crate::{Durability, permissions};

/// Maximum number of cached verifications. When it is reached, the cache is cleared.
const VERIFIED_MAX: usize = 1_024;
/// Bytes that are read at a time to verify a file.
const CHECK_BYTES: usize = 64 << 10;
/// Maximum number of upload files that one sweep inspects.
const SWEPT_FILES_MAX: usize = 1_000;

pub struct JsonlUpload<'s> {
    store: &'s JsonlStore,
    scope: Scope,
    upload: Option<Upload>,
}

/// The temporary file of a blob of more than one chunk.
struct Upload {
    file: File,
    path: PathBuf,
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After the rename, no file exists at this path. A file that cannot be removed now is swept
        // later.
        let _ = fs::remove_file(&self.path);
    }
}

impl Upload {
    fn begin(layout: &Layout) -> Result<Self> {
        let dir = layout.uploads();
        permissions::create_dir(&dir).at(&dir)?;
        sweep(layout);
        let path = dir.join(uuid::Uuid::new_v4().simple().to_string());
        let file = permissions::file_options().write(true).create_new(true).open(&path).at(&path)?;
        Ok(Self { file, path })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).at(&self.path)
    }
}

impl<'s> JsonlUpload<'s> {
    pub fn new(store: &'s JsonlStore, scope: Scope) -> Self {
        Self { store, scope, upload: None }
    }

    /// Returns the temporary file, and creates it for the first chunk.
    fn upload(&mut self) -> Result<&mut Upload> {
        match &mut self.upload {
            Some(upload) => Ok(upload),
            none => {
                let layout = self.store.with(&self.scope, |tenant| tenant.layout.clone());
                Ok(none.insert(Upload::begin(&layout)?))
            }
        }
    }
}

#[async_trait]
impl UploadTarget for JsonlUpload<'_> {
    async fn put(&mut self, hash: BlobHash, bytes: Vec<u8>) -> Result<()> {
        self.store.with(&self.scope, |tenant| {
            let durability = tenant.options.durability;
            note_put(&tenant.layout, &self.scope.principal, &hash, durability)?;
            match exists(&tenant.layout, &hash) {
                true => Ok(()),
                false => disk::replace(&tenant.layout.blob(&hash), &bytes, durability),
            }
        })
    }

    async fn add_chunk(&mut self, _: u32, chunk: Vec<u8>) -> Result<()> {
        self.upload()?.add(&chunk)
    }

    async fn finish(&mut self, _: u32, BlobEnd { hash, rest, .. }: BlobEnd) -> Result<()> {
        let durability = self.store.options.durability;
        let upload = self.upload()?;
        upload.add(&rest)?;
        sync(&upload.file, &upload.path, durability)?;
        let uploaded = upload.path.clone();
        self.store.with(&self.scope, |tenant| {
            let path = tenant.layout.blob(&hash);
            note_put(&tenant.layout, &self.scope.principal, &hash, durability)?;
            if !exists(&tenant.layout, &hash) {
                fs::rename(&uploaded, &path).at(&path)?;
            }
            sync_dir(&path, durability)
        })
    }
}

fn note_put(layout: &Layout, by: &Principal, blob: &BlobHash, durability: Durability) -> Result<()> {
    let dir = layout.blobs();
    permissions::create_dir(&dir).at(&dir)?;
    if was_put_by(layout, blob, by)? {
        return Ok(());
    }
    let path = layout.blob_putters(blob);
    let mut putters = disk::open_to_append(&path)?;
    putters.write_all(&sealed_lines::to_line(&PutterLine { by: by.clone() })).at(&path)?;
    sync(&putters, &path, durability)?;
    sync_dir(&path, durability)
}

/// Removes the files of uploads that have been idle for more than [`UPLOAD_IDLE_S_MAX`] seconds.
pub fn sweep(layout: &Layout) {
    let Ok(files) = fs::read_dir(layout.uploads()) else { return };
    let idle = Duration::from_secs(UPLOAD_IDLE_S_MAX.unsigned_abs());
    for file in files.flatten().take(SWEPT_FILES_MAX) {
        let written = file.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > idle) {
            // A leftover file only wastes disk space, and the next sweep retries.
            let _ = fs::remove_file(file.path());
        }
    }
}

pub fn exists(layout: &Layout, blob: &BlobHash) -> bool {
    layout.blob(blob).exists()
}

pub fn was_put_by(layout: &Layout, blob: &BlobHash, by: &Principal) -> Result<bool> {
    let path = layout.blob_putters(blob);
    let putters = disk::read_if_exists(&path)?.unwrap_or_default();
    let name = by.to_string();
    for (index, raw) in putters.split_inclusive(|byte| *byte == b'\n').enumerate() {
        // Earlier versions wrote only the name.
        let is_name = !raw.starts_with(b"{") && line_sum::check(raw) == Ok(LineState::Unproven);
        let is_it = match is_name || !raw.ends_with(b"\n") {
            true => raw.trim_ascii_end() == name.as_bytes(),
            false => sealed_lines::parse::<PutterLine>(&path, index + 1, raw)?.0.by == *by,
        };
        if is_it {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A principal that uploaded a blob.
#[derive(Serialize, Deserialize)]
struct PutterLine {
    by: Principal,
}

/// A cache of the blobs whose files were verified against their hash, with the length and
/// modification time of the file at that time. There are no checksums of parts, so the whole file is
/// verified before any part of it is returned. A cached blob is verified again only after its file
/// changes.
#[derive(Default)]
pub struct VerifiedBlobs(HashMap<BlobHash, (u64, Option<SystemTime>)>);

impl VerifiedBlobs {
    /// Opens a verified blob file and returns it with its length.
    pub fn open(&mut self, layout: &Layout, blob: &BlobHash) -> Result<(File, u64)> {
        let path = layout.blob(blob);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NoBlob { blob: *blob });
            }
            Err(source) => return Err(io_error(&path, source)),
        };
        let metadata = file.metadata().at(&path)?;
        let seen = (metadata.len(), metadata.modified().ok());
        if seen.1.is_none() || self.0.get(blob) != Some(&seen) {
            check_bytes(&mut file, layout, blob)?;
            if self.0.len() >= VERIFIED_MAX {
                self.0.clear();
            }
            self.0.insert(*blob, seen);
        }
        Ok((file, seen.0))
    }
}

fn check_bytes(file: &mut File, layout: &Layout, blob: &BlobHash) -> Result<()> {
    let path = layout.blob(blob);
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; CHECK_BYTES]);
    loop {
        match file.read(&mut buffer).at(&path)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        };
    }
    match hasher.finalize().as_bytes() == blob.as_bytes() {
        true => Ok(()),
        false => Err(damaged(path.display(), "its content does not match its hash")),
    }
}

pub fn read(
    verified_blobs: &mut VerifiedBlobs,
    layout: &Layout,
    blob: &BlobHash,
    from: u64,
    limit: usize,
) -> Result<Vec<u8>> {
    let (mut file, size) = verified_blobs.open(layout, blob)?;
    let path = layout.blob(blob);
    let limit = (limit.min(BLOB_CHUNK_BYTES_MAX) as u64).min(size.saturating_sub(from));
    let mut bytes = Vec::with_capacity(limit as usize);
    if limit > 0 {
        file.seek(SeekFrom::Start(from)).at(&path)?;
        file.take(limit).read_to_end(&mut bytes).at(&path)?;
    }
    Ok(bytes)
}

/// Returns an error for each blob file whose content does not match its name.
pub fn find_damaged(layout: &Layout) -> Result<Vec<StoreError>> {
    let Ok(files) = fs::read_dir(layout.blobs()) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for file in files {
        let name = file.at(&layout.blobs())?.file_name();
        let Some(blob) = name.to_str().and_then(|name| name.parse::<BlobHash>().ok()) else { continue };
        match VerifiedBlobs::default().open(layout, &blob) {
            Err(error @ StoreError::Damaged { .. }) => found.push(error),
            Ok(_) | Err(StoreError::NoBlob { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

pub fn remove(layout: &Layout, blob: &BlobHash) -> Result<()> {
    disk::remove(&layout.blob(blob))?;
    disk::remove(&layout.blob_putters(blob))
}
