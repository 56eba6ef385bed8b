//! API keys and tenants. A key's row is found by the hash of its secret; the secret itself is not
//! stored.

use async_trait::async_trait;
use rusqlite::params;
use sapwood_core::id::IdError;
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope, TenantId, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::connection::StoreConnection;
use crate::database::NamedDatabase;
use crate::validate::{key_note, print_json, revoke_key, shows_key, tenant_note};

#[async_trait]
impl Keys for SqliteStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |db| put(db, &scope, key)).await
    }

    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        self.readers.read(|db| list(db, scope))
    }

    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        let (scope, id) = (scope.clone(), id.to_owned());
        self.writer.write(move |db| revoke(db, &scope, &id, now)).await
    }

    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        self.readers.with_connection(|db| {
            let json: Option<String> =
                db.query_opt("SELECT row FROM keys WHERE hash = ?1", [hash.as_bytes().as_slice()])?;
            json.map(|json| db.parse("a key", &json)).transpose()
        })
    }

    async fn has_keys(&self) -> Result<bool> {
        self.readers.with_connection(|db| db.query_value("SELECT EXISTS (SELECT 1 FROM keys)", []))
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |db| write_line(db, &scope, tenant_note(), now)).await
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        self.readers.read(|db| {
            let names: Vec<String> = db.query_all("SELECT name FROM tenants ORDER BY name", [])?;
            let tenants: Result<_, _> = names.iter().map(|name| name.parse()).collect();
            tenants.map_err(|error: IdError| db.damaged(format!("failed to parse a tenant name: {error}")))
        })
    }
}

fn write(db: &StoreConnection, key: &ApiKey) -> Result<()> {
    let tenant = db.tenant_or_new(&key.tenant)?;
    let sql = "INSERT INTO keys (hash, tenant, id, row) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (hash) DO UPDATE SET row = excluded.row";
    db.execute(sql, params![key.hash.as_bytes().as_slice(), tenant, key.id, print_json(key)])?;
    Ok(())
}

fn put(db: &StoreConnection, scope: &Scope, key: ApiKey) -> Result<()> {
    let key = ApiKey { tenant: scope.tenant.clone(), ..key };
    write(db, &key)?;
    write_line(db, scope, key_note("created", &key), key.created_at)
}

fn list(db: &StoreConnection, scope: &Scope) -> Result<Vec<ApiKey>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let rows: Vec<String> =
        db.query_all("SELECT row FROM keys WHERE tenant = ?1 ORDER BY rowid", [tenant])?;
    let mut keys = Vec::new();
    for json in rows {
        let key = db.parse("a key", &json)?;
        if shows_key(scope, &key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn revoke(db: &StoreConnection, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
    let key = revoke_key(list(db, scope)?.into_iter(), id, now)?;
    write(db, &key)?;
    write_line(db, scope, key_note("revoked", &key), now)?;
    Ok(key)
}
