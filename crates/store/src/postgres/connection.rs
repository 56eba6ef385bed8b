//! A database connection inside a transaction whose tenant is set. All queries of a tenant's data go
//! through it, except batches of appends without audit notes ([`super::writer`]).
//!
//! If a [`StoreConnection`] is dropped before its transaction ends, the database connection is
//! closed, so that an open transaction never returns to the pool.

use std::sync::Arc;

use deadpool_postgres::{Object, Pool};
use sapwood_core::port::store::Result;
use sapwood_core::{StoreError, TenantId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::{translate, translate_pool};
use crate::database::NamedDatabase;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// All reads use one snapshot.
    Read,
    Write,
}

pub(super) struct StoreConnection {
    client: Option<Object>,
    pub place: Arc<str>,
    pub tenant: TenantId,
}

impl StoreConnection {
    pub async fn open(pool: &Pool, place: &Arc<str>, tenant: &TenantId, mode: Mode) -> Result<Self> {
        // A tenant's name contains no quotes: see `sapwood_core::id`.
        Self::begin(pool, place, tenant, mode, &format!("SET LOCAL sapwood.tenant = '{tenant}'")).await
    }

    /// Opens a connection for queries across all tenants, such as the lookup of a key.
    pub async fn open_for_all_tenants(pool: &Pool, place: &Arc<str>) -> Result<Self> {
        Self::begin(pool, place, &TenantId::local(), Mode::Read, "SET LOCAL sapwood.door = 'open'").await
    }

    async fn begin(pool: &Pool, place: &Arc<str>, tenant: &TenantId, mode: Mode, name: &str) -> Result<Self> {
        let client = pool.get().await.map_err(|error| translate_pool(&error, place))?;
        let db = Self { client: Some(client), place: place.clone(), tenant: tenant.clone() };
        let begin = match mode {
            Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Mode::Write => "BEGIN",
        };
        db.batch(&format!("{begin}; {name}")).await?;
        Ok(db)
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("the connection exists until it is closed")
    }

    async fn batch(&self, sql: &str) -> Result<()> {
        self.client().batch_execute(sql).await.map_err(|error| self.to_store_error(&error))
    }

    fn to_store_error(&self, error: &tokio_postgres::Error) -> StoreError {
        translate(error, &self.place)
    }

    pub async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        let statement =
            self.client().prepare_cached(sql).await.map_err(|error| self.to_store_error(&error))?;
        self.client().query(&statement, params).await.map_err(|error| self.to_store_error(&error))
    }

    pub async fn query_opt(&self, sql: &str, params: Params<'_>) -> Result<Option<Row>> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    pub async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<Row> {
        self.query_opt(sql, params).await?.ok_or_else(|| self.damaged("a required row is missing"))
    }

    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        let statement =
            self.client().prepare_cached(sql).await.map_err(|error| self.to_store_error(&error))?;
        self.client().execute(&statement, params).await.map_err(|error| self.to_store_error(&error))
    }

    /// Ends a read transaction without waiting. The connection returns to the pool after the rollback.
    pub fn end_read(mut self) {
        if let Some(client) = self.client.take() {
            tokio::spawn(async move {
                if client.batch_execute("ROLLBACK").await.is_err() {
                    drop(Object::take(client));
                }
            });
        }
    }

    /// Commits a write. If the connection is lost during the commit, the outcome is unknown: see
    /// [`outcome_unknown`].
    pub async fn commit(mut self) -> Result<()> {
        self.batch("COMMIT").await?;
        drop(self.client.take());
        Ok(())
    }

    pub async fn roll_back(mut self) {
        if self.batch("ROLLBACK").await.is_ok() {
            drop(self.client.take());
        }
    }
}

/// Returns the error for a commit that failed with `error`. After a lost connection, the outcome is
/// unknown.
pub(super) fn outcome_unknown(error: StoreError) -> StoreError {
    match error {
        StoreError::Unreachable { place, why } => StoreError::Backend {
            place,
            what: format!("the connection was lost ({why}), so it is unknown whether the change was made"),
        },
        other => other,
    }
}

impl NamedDatabase for StoreConnection {
    fn place(&self) -> String {
        self.place.to_string()
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}
