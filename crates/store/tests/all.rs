//! One test binary for all stores, because linking takes most of the build time.

#![allow(clippy::unwrap_used)]

#[path = "all/blobs.rs"]
mod blobs;
#[path = "all/jsonl.rs"]
mod jsonl;
#[path = "all/jsonl_damage.rs"]
mod jsonl_damage;
#[path = "all/jsonl_files.rs"]
mod jsonl_files;
#[path = "all/leases.rs"]
mod leases;
#[path = "all/memory.rs"]
mod memory;
#[path = "all/openings.rs"]
mod openings;
#[path = "all/postgres.rs"]
mod postgres;
#[path = "all/postgres_faults.rs"]
mod postgres_faults;
#[path = "all/postgres_tls.rs"]
mod postgres_tls;
#[path = "all/sqlite.rs"]
mod sqlite;
