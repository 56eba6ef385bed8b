//! Records: `records.jsonl` and `spending.jsonl` in the tenant's directory, one record per line. Every change rewrites
//! the file under the store's lock.

use async_trait::async_trait;
use sapwood_core::port::records::{RecordKind, Records, Spent, TenantRecord};
use sapwood_core::port::store::{AuditNote, Result};
use sapwood_core::{Scope, TimestampMs};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::JsonlStore;
use super::audit::{self, PendingAuditLine};
use super::disk::{self, LockKind};
use super::layout::Layout;
use super::tenant::TenantDir;
use crate::records::RecordTable;
use crate::validate::damaged;

#[async_trait]
impl Records for JsonlStore {
    async fn put_record(
        &self,
        scope: &Scope,
        kind: RecordKind,
        name: &str,
        value: Option<String>,
        audit: AuditNote,
        now: TimestampMs,
    ) -> Result<()> {
        self.with(scope, |tenant| {
            tenant.change_records(|tenant, table| {
                table.put(kind, name, value)?;
                disk::replace(&tenant.layout.records(), &lines_of(table.all()), tenant.options.durability)?;
                let line = PendingAuditLine::of(scope, audit, now);
                audit::write_lines(&tenant.layout, vec![line], tenant.options.durability)
            })
        })
    }

    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
        self.with(scope, |tenant| Ok(read_table(&tenant.layout)?.list(kind)))
    }

    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
        self.with(scope, |tenant| {
            tenant.change_records(|tenant, table| {
                table.add_spent(day, holders, spent);
                let lines = lines_of(table.spent_lines());
                disk::replace(&tenant.layout.spending(), &lines, tenant.options.durability)
            })
        })
    }

    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
        self.with(scope, |tenant| Ok(read_table(&tenant.layout)?.spent(day, holder)))
    }
}

impl TenantDir {
    fn change_records(&mut self, change: impl FnOnce(&Self, &mut RecordTable) -> Result<()>) -> Result<()> {
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        let mut table = read_table(&self.layout)?;
        change(self, &mut table)
    }
}

fn read_table(layout: &Layout) -> Result<RecordTable> {
    Ok(RecordTable::of(read_lines(&layout.records())?, read_lines(&layout.spending())?))
}

fn read_lines<T: DeserializeOwned>(path: &std::path::Path) -> Result<Vec<T>> {
    let bytes = disk::read_if_exists(path)?.unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(index, line)| {
            let place = || format!("{}:{}", path.display(), index + 1);
            serde_json::from_slice(line).map_err(|error| damaged(place(), error))
        })
        .collect()
}

fn lines_of(rows: impl Iterator<Item = impl Serialize>) -> Vec<u8> {
    let mut out = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut out, &row).expect("a record contains only strings and numbers");
        out.push(b'\n');
    }
    out
}
