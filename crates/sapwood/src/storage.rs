//! The store port. [`open_store`] opens the built-in stores. A custom store implements the traits of [`Store`] and
//! passes the conformance suite: with the feature `conformance` of `sapwood-store`,
//! `sapwood_store::conformance_tests!` generates one test per rule.
//!
//! Most custom stores wrap another store and change a few operations. [`delegate_store!`](crate::delegate_store)
//! forwards the remaining traits:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use std::sync::Arc;
//!
//! use sapwood::storage::{Hit, Page, Result, Search, SearchQuery, Store, StoreOptions, open_store};
//! use sapwood::{Sapwood, Scope};
//!
//! /// A store whose search is turned off.
//! struct Unsearchable {
//!     inner: Arc<dyn Store>,
//! }
//!
//! sapwood::delegate_store!(
//!     impl Sessions, Log, Leases, Authorities, Blobs, Audit, Keys, Memories, Records, Upkeep for Unsearchable => inner
//! );
//!
//! #[sapwood::async_trait]
//! impl Search for Unsearchable {
//!     async fn search(&self, _scope: &Scope, _query: &SearchQuery) -> Result<Page<Hit>> {
//!         Ok(Page { items: Vec::new(), next: None })
//!     }
//! }
//!
//! let inner = open_store("memory:", StoreOptions::default())?;
//! let sapwood = Sapwood::with_store(Arc::new(Unsearchable { inner }))?;
//! # let query = SearchQuery { text: "hello".into(), limit: 1, ..SearchQuery::default() };
//! # assert!(sapwood.search(&query).await?.items.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! A store that does not wrap another one also decides where entries are attached and folds them into summaries. The crate
//! `sapwood-core` has these functions (`tree`, `project::summary`, `authority`), and `sapwood-store` has four stores that
//! use them.

pub use sapwood_core::authority::{Authority, Source};
pub use sapwood_core::entry::proof::{Commitment, EntryHash, Opening, ParentLink, Proof, Salt, StoredEntry};
pub use sapwood_core::entry::{Draft, Entry, Kind, Meta, Outcome, Record, SessionState};
pub use sapwood_core::id::{
    BlobHash, EntryId, MemoryId, Seq, SessionId, TenantId, TimestampMs, TurnId, UserName,
};
pub use sapwood_core::port::keys::{ApiKey, Grant, Keys};
pub use sapwood_core::port::memory::{Memories, Memory, MemoryFilter};
pub use sapwood_core::port::records::{RecordKind, Records, Spent, TenantRecord};
pub use sapwood_core::port::store::{
    Append, Appended, Audit, AuditAction, AuditLine, AuditNote, Authorities, BlobSink, Blobs, Checksums,
    Created, Expect, Finding, Fork, Hit, Lease, Leases, ListFilter, ListOrder, Log, NewSession, Page,
    PathSlice, Repair, Result, SealReport, Search, SearchQuery, Sessions, Store, StoreError, StoreStatus,
    Until, Upkeep,
};
pub use sapwood_core::project::summary::{Lineage, Origin, QueuedInput, Summary, TurnPositions};
pub use sapwood_core::scope::{Principal, Scope};
pub use sapwood_core::settings::Settings;
pub use sapwood_core::tree::{Head, PlaceError};
pub use sapwood_store::{DamagedLog, Durability, Key, OpenOptions as StoreOptions, open as open_store};

/// Implement store traits for a type by forwarding every method to a field that is a store.
///
/// `delegate_store!(impl Search, Blobs for MyStore => inner);` forwards the traits [`Search`](storage::Search) and
/// [`Blobs`](storage::Blobs) to `self.inner`. The module [`storage`] has an example.
///
/// [`storage`]: crate::storage
/// [`storage::Search`]: crate::storage::Search
#[macro_export]
macro_rules! delegate_store {
    (impl $($port:ident),+ for $store:ty => $inner:ident) => {
        const _: () = {
            use $crate::storage::*;
            $($crate::delegate_store!(@$port $store, $inner);)+
        };
    };
    (@impl $port:ident, $store:ty, $inner:ident {
        $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*
    } $($extra:tt)*) => {
        #[$crate::async_trait]
        impl $port for $store {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out> {
                self.$inner.$name($($arg),*).await
            })*
            $($extra)*
        }
    };
    (@Sessions $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Sessions, $store, $inner {
            fn create(scope: &Scope, new: NewSession) -> Created;
            fn fork(scope: &Scope, fork: Fork) -> Head;
            fn summary(scope: &Scope, session: &SessionId) -> Summary;
            fn list(scope: &Scope, filter: &ListFilter) -> Page<Summary>;
            fn children(scope: &Scope, session: &SessionId) -> Vec<SessionId>;
            fn erase(scope: &Scope, session: &SessionId, now: TimestampMs) -> ();
            fn heads(scope: &Scope, sessions: &[SessionId]) -> Vec<Option<Seq>>;
            fn restore_positions(scope: &Scope, session: &SessionId, positions: &TurnPositions) -> ();
            fn change_mark() -> Option<u64>;
        }
            async fn changed(&self, mark: u64) {
                self.$inner.changed(mark).await
            }
        );
    };
    (@Log $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Log, $store, $inner {
            fn append(scope: &Scope, append: Append) -> Appended;
            fn read_after(scope: &Scope, session: &SessionId, after: Seq, limit: usize) -> Vec<Record>;
            fn read_proofs(scope: &Scope, session: &SessionId, after: Seq, limit: usize) -> Vec<StoredEntry>;
            fn read_kinds(scope: &Scope, session: &SessionId, kinds: &[Kind], after: Seq, limit: usize) -> Vec<Record>;
            fn read_path(scope: &Scope, session: &SessionId, at: Option<Seq>, until: Until) -> PathSlice;
            fn walk_path(scope: &Scope, session: &SessionId, from: Option<Seq>, limit: usize) -> Vec<Meta>;
            fn nth_message(scope: &Scope, session: &SessionId, leaf: Seq, count: u32) -> Option<Seq>;
            fn read_entry(scope: &Scope, session: &SessionId, seq: Seq) -> Record;
            fn find_entries(scope: &Scope, session: &SessionId, id_prefix: &str) -> Vec<Record>;
            fn first_at_or_after(scope: &Scope, session: &SessionId, id: EntryId) -> Seq;
        }
            fn keeps_order(&self) -> bool {
                self.$inner.keeps_order()
            }
        );
    };
    (@Leases $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Leases, $store, $inner {
            fn take_lease(scope: &Scope, session: &SessionId, holder: &str, ttl_ms: i64) -> Lease;
            fn release_lease(scope: &Scope, lease: &Lease) -> ();
        });
    };
    (@Authorities $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Authorities, $store, $inner {
            fn settle_authority(scope: &Scope, session: &SessionId) -> Authority;
            fn grant_model(scope: &Scope, session: &SessionId, model: &str) -> ();
        });
    };
    (@Search $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Search, $store, $inner {
            fn search(scope: &Scope, query: &SearchQuery) -> Page<Hit>;
        });
    };
    (@Blobs $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Blobs, $store, $inner {
            fn blob_size(scope: &Scope, blob: BlobHash) -> u64;
            fn read_blob(scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Vec<u8>;
            fn put_blob(scope: &Scope, bytes: Vec<u8>) -> BlobHash;
            fn get_blob(scope: &Scope, blob: BlobHash) -> Vec<u8>;
        }
            async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>> {
                self.$inner.begin_blob(scope).await
            }
        );
    };
    (@Audit $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Audit, $store, $inner {
            fn write_audit(scope: &Scope, note: AuditNote, now: TimestampMs) -> ();
            fn read_audit(scope: &Scope, session: Option<&SessionId>, after: u64, limit: usize) -> Vec<AuditLine>;
            fn read_audit_since(scope: &Scope, session: &SessionId, since: TimestampMs, limit: usize) -> Vec<AuditLine>;
        });
    };
    (@Keys $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Keys, $store, $inner {
            fn put_key(scope: &Scope, key: ApiKey) -> ();
            fn list_keys(scope: &Scope) -> Vec<ApiKey>;
            fn revoke_key(scope: &Scope, id: &str, now: TimestampMs) -> ApiKey;
            fn find_key(hash: BlobHash) -> Option<ApiKey>;
            fn has_keys() -> bool;
            fn put_tenant(scope: &Scope, now: TimestampMs) -> ();
            fn list_tenants() -> Vec<TenantId>;
        });
    };
    (@Memories $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Memories, $store, $inner {
            fn put_memory(scope: &Scope, memory: Memory, expected: u64, now: TimestampMs) -> Memory;
            fn get_memory(scope: &Scope, id: MemoryId) -> Memory;
            fn list_memories(scope: &Scope, filter: &MemoryFilter) -> Page<Memory>;
            fn forget_memory(scope: &Scope, id: MemoryId, now: TimestampMs) -> ();
        });
    };
    (@Records $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Records, $store, $inner {
            fn put_record(scope: &Scope, kind: RecordKind, name: &str, value: Option<String>, audit: AuditNote, now: TimestampMs) -> ();
            fn list_records(scope: &Scope, kind: RecordKind) -> Vec<TenantRecord>;
            fn add_spent(scope: &Scope, day: u32, holders: &[String], spent: Spent) -> ();
            fn spent(scope: &Scope, day: u32, holder: &str) -> Spent;
        });
    };
    (@Upkeep $store:ty, $inner:ident) => {
        $crate::delegate_store!(@impl Upkeep, $store, $inner {
            fn check(scope: &Scope, repair: Repair) -> Vec<Finding>;
            fn seal_entries(scope: &Scope) -> SealReport;
            fn unreadable(scope: &Scope) -> Vec<Finding>;
            fn abandoned_turns(limit: usize) -> Option<Vec<(TenantId, SessionId)>>;
            fn checksums() -> Option<Checksums>;
            fn add_checksums() -> Option<Checksums>;
            fn log_format() -> u32;
            fn upgrade() -> u32;
            fn status() -> StoreStatus;
            fn check_writable() -> ();
            fn flush() -> ();
        }
            fn describe(&self) -> String {
                self.$inner.describe()
            }
        );
    };
}
