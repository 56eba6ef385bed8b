//! Session stores. Each store implements the port in `sapwood_core::port::store`, and all of them
//! pass the shared test suite in [`conformance`]: [`in_memory`] for tests and one-shot use,
//! [`jsonl`] for greppable files, [`sqlite`] as the embedded default, [`postgres`] for multiple
//! servers. This is the only crate that contains SQL.

mod audit_chain;
mod authorize;
#[cfg(feature = "bench")]
pub mod baseline;
mod blob_chunks;
mod blob_upload;
mod compression;
#[cfg(feature = "conformance")]
pub mod conformance;
mod database;
mod decode;
pub mod in_memory;
pub mod jsonl;
pub mod lease;
mod match_text;
mod mem_log;
mod memories;
pub mod opencode;
mod page;
mod path_health;
mod permissions;
pub mod postgres;
mod proving;
mod records;
pub mod sqlite;
mod stored_answer;
mod tokenize;
mod validate;

use std::path::PathBuf;
use std::sync::Arc;

use sapwood_core::port::store::Result;
use sapwood_core::{Store, StoreError};

/// When an append is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After it is on disk: no acknowledged append is lost, not even in a power failure (I3).
    #[default]
    Full,
    /// After the operating system has received it: it survives a crash of the process, but not of
    /// the machine.
    Normal,
}

/// The key of an encrypted store. It is wiped from memory on drop and never printed.
#[derive(Clone)]
pub struct Key(zeroize::Zeroizing<String>);

impl Key {
    /// Creates a key from its text.
    pub fn new(text: String) -> Self {
        Self(zeroize::Zeroizing::new(text))
    }
    #[cfg_attr(not(feature = "encryption"), allow(dead_code))]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// What to do with a SQLite store whose write-ahead log is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DamagedLog {
    /// Fail, and change nothing.
    #[default]
    Refuse,
    /// Copy the log to a file next to the store, and continue with what precedes the damage.
    SetAside,
}

/// Options for opening a store.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// When an append is acknowledged.
    pub durability: Durability,
    /// The key of an encrypted SQLite store.
    pub key: Option<Key>,
    /// What to do if the write-ahead log of a SQLite store is damaged.
    pub damaged_log: DamagedLog,
}

/// Opens the store at a URL: `sqlite:FILE`, `jsonl:DIR`, `postgres://USER@HOST/DB` or `memory:`.
pub fn open(url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
    let invalid = |why: &str| StoreError::Invalid { what: "the store URL", why: format!("{url:?} {why}") };
    match url.split_once(':') {
        Some(("sqlite" | "jsonl", "")) => Err(invalid("has no path")),
        Some(("sqlite", path)) => Ok(Arc::new(sqlite::SqliteStore::open(PathBuf::from(path), options)?)),
        Some(("jsonl", path)) => {
            // The command line and servers open stores by URL. A later process must find a session
            // that has no messages yet.
            let persist_from = jsonl::PersistFrom::Creation;
            let options = jsonl::JsonlOptions { durability: options.durability, persist_from };
            Ok(Arc::new(jsonl::JsonlStore::open(path, options)?))
        }
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(postgres::PgStore::open(url)?)),
        Some(("memory", "")) => Ok(Arc::new(in_memory::MemoryStore::new())),
        _ => Err(invalid("is not one of sqlite:FILE, jsonl:DIR, postgres://USER@HOST/DB, memory:")),
    }
}
