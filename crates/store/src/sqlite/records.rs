//! Records of a tenant, and the spending of each day.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use sapwood_core::port::records::{RecordKind, Records, Spent, TenantRecord};
use sapwood_core::port::store::{AuditNote, Result};
use sapwood_core::{Scope, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::connection::StoreConnection;
use super::error::AtPath;
use crate::records::{check_count, check_record, oldest_day};

pub(super) const TABLES: &str = "
CREATE TABLE records (
  tenant INTEGER NOT NULL,
  kind   TEXT NOT NULL,
  name   TEXT NOT NULL,
  value  TEXT NOT NULL,
  PRIMARY KEY (tenant, kind, name)
) WITHOUT ROWID;
CREATE TABLE spending (
  tenant   INTEGER NOT NULL,
  day      INTEGER NOT NULL,
  holder   TEXT NOT NULL,
  tokens   INTEGER NOT NULL,
  nano_usd INTEGER NOT NULL,
  PRIMARY KEY (tenant, day, holder)
) WITHOUT ROWID;
";
const HAS_TABLES: &str = "SELECT count(*) FROM sqlite_schema WHERE name IN ('records', 'spending')";

/// A file of an earlier version that can only be read has no tables.
fn has_tables(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(conn.query_row(HAS_TABLES, [], |row| row.get::<_, i64>(0))? == 2)
}

#[async_trait]
impl Records for SqliteStore {
    async fn put_record(
        &self,
        scope: &Scope,
        kind: RecordKind,
        name: &str,
        value: Option<String>,
        audit: AuditNote,
        now: TimestampMs,
    ) -> Result<()> {
        check_record(name, value.as_deref())?;
        let (scope, name) = (scope.clone(), name.to_owned());
        self.writer
            .write(move |db| {
                put(db, &scope, kind, &name, value.as_deref())?;
                write_line(db, &scope, audit, now)
            })
            .await
    }

    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
        self.readers.read(|db| list(db, scope, kind))
    }

    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
        let (scope, holders) = (scope.clone(), holders.to_vec());
        self.writer.write(move |db| add_spent(db, &scope, day, &holders, spent)).await
    }

    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
        self.readers.read(|db| read_spent(db, scope, day, holder))
    }
}

fn put(db: &StoreConnection, scope: &Scope, kind: RecordKind, name: &str, value: Option<&str>) -> Result<()> {
    let (tenant, kind) = (db.tenant_or_new(&scope.tenant)?, kind.as_str());
    let Some(value) = value else {
        let sql = "DELETE FROM records WHERE tenant = ?1 AND kind = ?2 AND name = ?3";
        return db.execute(sql, params![tenant, kind, name]).map(drop);
    };
    let sql = "SELECT count(*) FROM records WHERE tenant = ?1 AND kind = ?2";
    let count: i64 = db.query_value(sql, params![tenant, kind])?;
    check_count(usize::try_from(count).unwrap_or(usize::MAX))?;
    let sql = "INSERT INTO records (tenant, kind, name, value) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (tenant, kind, name) DO UPDATE SET value = excluded.value";
    db.execute(sql, params![tenant, kind, name, value]).map(drop)
}

/// Returns the tenant's pk, unless the tenant or the tables do not exist, as in a read-only file of an earlier version.
fn readable_tenant(db: &StoreConnection, scope: &Scope) -> Result<Option<i64>> {
    match has_tables(&db.conn).at(&db.path)? {
        true => db.tenant(&scope.tenant),
        false => Ok(None),
    }
}

fn list(db: &StoreConnection, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
    let Some(tenant) = readable_tenant(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT name, value FROM records WHERE tenant = ?1 AND kind = ?2 ORDER BY name";
    let mut select = db.prepare(sql)?;
    select
        .query_map(params![tenant, kind.as_str()], |row| {
            Ok(TenantRecord { kind, name: row.get(0)?, value: row.get(1)? })
        })
        .and_then(Iterator::collect)
        .at(&db.path)
}

fn add_spent(db: &StoreConnection, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
    let tenant = db.tenant_or_new(&scope.tenant)?;
    db.execute("DELETE FROM spending WHERE tenant = ?1 AND day < ?2", params![tenant, oldest_day(day)])?;
    for holder in holders {
        let sql = "INSERT INTO spending (tenant, day, holder, tokens, nano_usd) VALUES (?1, ?2, ?3, ?4, ?5)
                   ON CONFLICT (tenant, day, holder) DO UPDATE SET
                     tokens = tokens + excluded.tokens, nano_usd = nano_usd + excluded.nano_usd";
        db.execute(sql, params![tenant, day, holder, int(spent.tokens), int(spent.nano_usd)])?;
    }
    Ok(())
}

fn read_spent(db: &StoreConnection, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
    let Some(tenant) = readable_tenant(db, scope)? else { return Ok(Spent::default()) };
    let sql = "SELECT tokens, nano_usd FROM spending WHERE tenant = ?1 AND day = ?2 AND holder = ?3";
    let mut select = db.prepare(sql)?;
    let mut rows = select.query(params![tenant, day, holder]).at(&db.path)?;
    let Some(row) = rows.next().at(&db.path)? else { return Ok(Spent::default()) };
    let number = |column| row.get::<_, i64>(column).map(|number| u64::try_from(number).unwrap_or(0));
    Ok(Spent { tokens: number(0).at(&db.path)?, nano_usd: number(1).at(&db.path)? })
}

/// Converts a number to SQLite's integer type.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
