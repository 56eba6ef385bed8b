//! API keys and tenants. A key's row is found by the hash of its secret; the secret itself is not
//! stored.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope, TenantId, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::connection::StoreConnection;
use super::error::AtPath;
use crate::validate::{key_note, no_key, shows_key, tenant_note};

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
            let mut select = db.prepare("SELECT row FROM keys WHERE hash = ?1")?;
            let found = select.query_row([hash.as_bytes().as_slice()], |row| row.get::<_, String>(0));
            found.optional().at(&db.path)?.map(|json| read_key(db, &json)).transpose()
        })
    }

    async fn has_keys(&self) -> Result<bool> {
        self.readers.with_connection(|db| {
            let mut select = db.prepare("SELECT EXISTS (SELECT 1 FROM keys)")?;
            select.query_row([], |row| row.get(0)).at(&db.path)
        })
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |db| write_line(db, &scope, tenant_note(), now)).await
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        self.readers.read(|db| {
            let mut select = db.prepare("SELECT name FROM tenants ORDER BY name")?;
            let mut rows = select.query([]).at(&db.path)?;
            let mut tenants = Vec::new();
            while let Some(row) = rows.next().at(&db.path)? {
                let name: String = row.get(0).at(&db.path)?;
                tenants.push(name.parse().map_err(|error| db.damaged(format!("a tenant: {error}")))?);
            }
            Ok(tenants)
        })
    }
}

fn read_key(db: &StoreConnection, json: &str) -> Result<ApiKey> {
    serde_json::from_str(json).map_err(|error| db.damaged(format!("a key: {error}")))
}

fn write(db: &StoreConnection, key: &ApiKey) -> Result<()> {
    let tenant = db.tenant_or_new(&key.tenant)?;
    let json = serde_json::to_string(key).expect("a key contains only strings and numbers");
    let sql = "INSERT INTO keys (hash, tenant, id, row) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (hash) DO UPDATE SET row = excluded.row";
    db.prepare(sql)?.execute(params![key.hash.as_bytes().as_slice(), tenant, key.id, json]).at(&db.path)?;
    Ok(())
}

fn put(db: &StoreConnection, scope: &Scope, key: ApiKey) -> Result<()> {
    let key = ApiKey { tenant: scope.tenant.clone(), ..key };
    write(db, &key)?;
    write_line(db, scope, key_note("created", &key), key.created_at)
}

fn list(db: &StoreConnection, scope: &Scope) -> Result<Vec<ApiKey>> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = db.prepare("SELECT row FROM keys WHERE tenant = ?1 ORDER BY rowid")?;
    let mut rows = select.query([tenant]).at(&db.path)?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next().at(&db.path)? {
        let key = read_key(db, &row.get::<_, String>(0).at(&db.path)?)?;
        if shows_key(scope, &key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn revoke(db: &StoreConnection, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
    let found = list(db, scope)?.into_iter().find(|key| key.id == id);
    let mut key = found.ok_or_else(|| no_key(id))?;
    key.revoked_at.get_or_insert(now);
    write(db, &key)?;
    write_line(db, scope, key_note("revoked", &key), now)?;
    Ok(key)
}
