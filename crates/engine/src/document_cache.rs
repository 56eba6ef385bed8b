//! A cache of the texts of documents, by the hash of their bytes. A caller must have read access to the bytes.

use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::BlobHash;
use sapwood_core::port::document::DocumentFormat;

/// Maximum total size of the cached texts.
const CACHE_BYTES_MAX: usize = 32 << 20;

/// The texts of documents that were read recently. Extracting a text takes longer than reading it.
#[derive(Default)]
pub(crate) struct DocumentCache {
    /// The most recent text is last.
    texts: Mutex<Vec<(BlobHash, DocumentFormat, Arc<str>)>>,
}

impl DocumentCache {
    pub fn get(&self, blob: BlobHash, format: DocumentFormat) -> Option<Arc<str>> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let found = texts.iter().find(|(key, kind, _)| *key == blob && *kind == format);
        found.map(|(_, _, text)| Arc::clone(text))
    }

    pub fn put(&self, blob: BlobHash, format: DocumentFormat, text: &Arc<str>) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.push((blob, format, Arc::clone(text)));
        let mut total: usize = texts.iter().map(|(_, _, text)| text.len()).sum();
        while total > CACHE_BYTES_MAX && texts.len() > 1 {
            total -= texts.remove(0).2.len();
        }
    }
}
