//! API keys and tenants. A key is looked up by the hash of its secret. The secret itself is not
//! stored.

use async_trait::async_trait;
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope, TenantId, TimestampMs};

use super::audit::write_line;
use super::connection::StoreConnection;
use super::{PgStore, reading, writing};
use crate::database::NamedDatabase;
use crate::validate::{key_note, print_json, revoke_key, shows_key, tenant_note};

#[async_trait]
impl Keys for PgStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        let key = ApiKey { tenant: scope.tenant.clone(), ..key };
        writing!(self, scope, db => put(&db, scope, &key).await)
    }

    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        reading!(self, scope, db => list(&db, scope).await)
    }

    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        writing!(self, scope, db => revoke(&db, scope, id, now).await)
    }

    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        let rows = self
            .query_all_tenants("SELECT row FROM keys WHERE hash = $1", &[&hash.as_bytes().as_slice()])
            .await?;
        rows.first().map(|row| self.parse("a key", row.get(0))).transpose()
    }

    async fn has_keys(&self) -> Result<bool> {
        Ok(!self.query_all_tenants("SELECT 1 FROM keys LIMIT 1", &[]).await?.is_empty())
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        writing!(self, scope, db => write_line(&db, scope, tenant_note(), now).await)
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        let rows = self.query_all_tenants("SELECT tenant FROM tenants ORDER BY tenant", &[]).await?;
        let tenant = |row: &tokio_postgres::Row| row.get::<_, &str>(0).parse();
        rows.iter()
            .map(tenant)
            .collect::<Result<_, _>>()
            .map_err(|error| self.damaged(format!("failed to parse a tenant name: {error}")))
    }
}

async fn put_row(db: &StoreConnection, key: &ApiKey) -> Result<()> {
    let sql = "INSERT INTO keys (hash, tenant, row) VALUES ($1, $2, $3)
               ON CONFLICT (hash) DO UPDATE SET row = excluded.row";
    db.execute(sql, &[&key.hash.as_bytes().as_slice(), &key.tenant.as_str(), &print_json(key)]).await?;
    Ok(())
}

async fn put(db: &StoreConnection, scope: &Scope, key: &ApiKey) -> Result<()> {
    put_row(db, key).await?;
    write_line(db, scope, key_note("created", key), key.created_at).await
}

async fn list(db: &StoreConnection, scope: &Scope) -> Result<Vec<ApiKey>> {
    let sql = "SELECT row FROM keys WHERE tenant = $1 ORDER BY number";
    let mut keys = Vec::new();
    for row in db.query(sql, &[&db.tenant.as_str()]).await? {
        let key = db.parse("a key", row.get(0))?;
        if shows_key(scope, &key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

async fn revoke(db: &StoreConnection, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
    let key = revoke_key(list(db, scope).await?.into_iter(), id, now)?;
    put_row(db, &key).await?;
    write_line(db, scope, key_note("revoked", &key), now).await?;
    Ok(key)
}
