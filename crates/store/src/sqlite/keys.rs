//! Keys and tenants. A key's row is found by the hash of its secret, which is all that is kept of it.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope, TenantId, TimestampMs};

use super::SqliteStore;
use super::audit::write_line;
use super::desk::Desk;
use super::fault::Fault;
use crate::rules::{key_note, no_key, shows_key, tenant_note};

#[async_trait]
impl Keys for SqliteStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |desk| put(desk, &scope, key)).await
    }

    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        self.readers.read(|desk| list(desk, scope))
    }

    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        let (scope, id) = (scope.clone(), id.to_owned());
        self.writer.write(move |desk| revoke(desk, &scope, &id, now)).await
    }

    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        self.readers.glance(|desk| {
            let mut select = desk.prepare("SELECT row FROM keys WHERE hash = ?1")?;
            let found = select.query_row([hash.as_bytes().as_slice()], |row| row.get::<_, String>(0));
            found.optional().at(&desk.path)?.map(|json| read_key(desk, &json)).transpose()
        })
    }

    async fn has_keys(&self) -> Result<bool> {
        self.readers.glance(|desk| {
            let mut select = desk.prepare("SELECT EXISTS (SELECT 1 FROM keys)")?;
            select.query_row([], |row| row.get(0)).at(&desk.path)
        })
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        let scope = scope.clone();
        self.writer.write(move |desk| write_line(desk, &scope, tenant_note(), now)).await
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        self.readers.read(|desk| {
            let mut select = desk.prepare("SELECT name FROM tenants ORDER BY name")?;
            let mut rows = select.query([]).at(&desk.path)?;
            let mut tenants = Vec::new();
            while let Some(row) = rows.next().at(&desk.path)? {
                let name: String = row.get(0).at(&desk.path)?;
                tenants.push(name.parse().map_err(|error| desk.damaged(format!("a tenant: {error}")))?);
            }
            Ok(tenants)
        })
    }
}

fn read_key(desk: &Desk, json: &str) -> Result<ApiKey> {
    serde_json::from_str(json).map_err(|error| desk.damaged(format!("a key: {error}")))
}

fn write(desk: &Desk, key: &ApiKey) -> Result<()> {
    let tenant = desk.tenant_or_new(&key.tenant)?;
    let json = serde_json::to_string(key).expect("a key holds strings and numbers only");
    let sql = "INSERT INTO keys (hash, tenant, id, row) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (hash) DO UPDATE SET row = excluded.row";
    desk.prepare(sql)?
        .execute(params![key.hash.as_bytes().as_slice(), tenant, key.id, json])
        .at(&desk.path)?;
    Ok(())
}

fn put(desk: &Desk, scope: &Scope, key: ApiKey) -> Result<()> {
    let key = ApiKey { tenant: scope.tenant.clone(), ..key };
    write(desk, &key)?;
    write_line(desk, scope, key_note("made", &key), key.created_at)
}

fn list(desk: &Desk, scope: &Scope) -> Result<Vec<ApiKey>> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let mut select = desk.prepare("SELECT row FROM keys WHERE tenant = ?1 ORDER BY rowid")?;
    let mut rows = select.query([tenant]).at(&desk.path)?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next().at(&desk.path)? {
        let key = read_key(desk, &row.get::<_, String>(0).at(&desk.path)?)?;
        if shows_key(scope, &key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn revoke(desk: &Desk, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
    let found = list(desk, scope)?.into_iter().find(|key| key.id == id);
    let mut key = found.ok_or_else(|| no_key(id))?;
    key.revoked_at.get_or_insert(now);
    write(desk, &key)?;
    write_line(desk, scope, key_note("revoked", &key), now)?;
    Ok(key)
}
