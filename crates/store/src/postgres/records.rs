//! Records of a tenant, and the spending of each day.

use async_trait::async_trait;
use sapwood_core::port::records::{RecordKind, Records, Spent, TenantRecord};
use sapwood_core::port::store::{AuditNote, Result};
use sapwood_core::{Scope, TimestampMs};

use super::audit::write_line;
use super::connection::StoreConnection;
use super::{PgStore, reading, writing};
use crate::records::{check_count, check_record, oldest_day};

/// The tables. Servers of the previous version neither read nor write them, so they are added outside the steps.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS records (
  tenant text COLLATE \"C\" NOT NULL,
  kind   text COLLATE \"C\" NOT NULL,
  name   text COLLATE \"C\" NOT NULL,
  value  text NOT NULL,
  PRIMARY KEY (tenant, kind, name)
);
CREATE TABLE IF NOT EXISTS spending (
  tenant   text COLLATE \"C\" NOT NULL,
  day      integer NOT NULL,
  holder   text COLLATE \"C\" NOT NULL,
  tokens   bigint NOT NULL,
  nano_usd bigint NOT NULL,
  PRIMARY KEY (tenant, day, holder)
);
DO $$ DECLARE name text; BEGIN
  FOREACH name IN ARRAY ARRAY['records', 'spending'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('DROP POLICY IF EXISTS own_tenant ON %I', name);
    EXECUTE format(
      'CREATE POLICY own_tenant ON %I USING (tenant = current_setting(''sapwood.tenant'', true))', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
  END LOOP;
END $$;";

#[async_trait]
impl Records for PgStore {
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
        writing!(self, scope, db => {
            put(&db, kind, name, value.as_deref()).await?;
            write_line(&db, scope, audit.clone(), now).await
        })
    }

    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
        reading!(self, scope, db => list(&db, kind).await)
    }

    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
        writing!(self, scope, db => add_spent(&db, day, holders, spent).await)
    }

    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
        reading!(self, scope, db => read_spent(&db, day, holder).await)
    }
}

async fn put(db: &StoreConnection, kind: RecordKind, name: &str, value: Option<&str>) -> Result<()> {
    let (tenant, kind) = (db.tenant.as_str(), kind.as_str());
    let Some(value) = value else {
        let sql = "DELETE FROM records WHERE tenant = $1 AND kind = $2 AND name = $3";
        return db.execute(sql, &[&tenant, &kind, &name]).await.map(drop);
    };
    let sql = "SELECT count(*) FROM records WHERE tenant = $1 AND kind = $2";
    let count = db.query(sql, &[&tenant, &kind]).await?.first().map_or(0, |row| row.get::<_, i64>(0));
    check_count(usize::try_from(count).unwrap_or(usize::MAX))?;
    let sql = "INSERT INTO records (tenant, kind, name, value) VALUES ($1, $2, $3, $4)
               ON CONFLICT (tenant, kind, name) DO UPDATE SET value = excluded.value";
    db.execute(sql, &[&tenant, &kind, &name, &value]).await.map(drop)
}

async fn list(db: &StoreConnection, kind: RecordKind) -> Result<Vec<TenantRecord>> {
    let sql = "SELECT name, value FROM records WHERE tenant = $1 AND kind = $2 ORDER BY name";
    let rows = db.query(sql, &[&db.tenant.as_str(), &kind.as_str()]).await?;
    Ok(rows.iter().map(|row| TenantRecord { kind, name: row.get(0), value: row.get(1) }).collect())
}

async fn add_spent(db: &StoreConnection, day: u32, holders: &[String], spent: Spent) -> Result<()> {
    let (tenant, day, oldest) = (db.tenant.as_str(), day_of(day), day_of(oldest_day(day)));
    db.execute("DELETE FROM spending WHERE tenant = $1 AND day < $2", &[&tenant, &oldest]).await?;
    // In one order, so that two servers do not wait for each other's rows.
    let mut holders: Vec<&String> = holders.iter().collect();
    holders.sort();
    for holder in holders {
        let sql =
            "INSERT INTO spending AS old (tenant, day, holder, tokens, nano_usd) VALUES ($1, $2, $3, $4, $5)
                   ON CONFLICT (tenant, day, holder) DO UPDATE SET
                     tokens = old.tokens + excluded.tokens, nano_usd = old.nano_usd + excluded.nano_usd";
        db.execute(sql, &[&tenant, &day, holder, &int(spent.tokens), &int(spent.nano_usd)]).await?;
    }
    Ok(())
}

async fn read_spent(db: &StoreConnection, day: u32, holder: &str) -> Result<Spent> {
    let sql = "SELECT tokens, nano_usd FROM spending WHERE tenant = $1 AND day = $2 AND holder = $3";
    let rows = db.query(sql, &[&db.tenant.as_str(), &day_of(day), &holder]).await?;
    let Some(row) = rows.first() else { return Ok(Spent::default()) };
    let number = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    Ok(Spent { tokens: number(0), nano_usd: number(1) })
}

/// Converts numbers to the database's integer types.
fn day_of(day: u32) -> i32 {
    i32::try_from(day).unwrap_or(i32::MAX)
}

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
