//! A connection in a transaction that has named its tenant. Everything that is asked of the database is asked here.
//!
//! A db that is dropped before it is closed takes its connection with it: nobody gets one with an open transaction.

use std::sync::Arc;

use deadpool_postgres::{Object, Pool};
use sapwood_core::port::store::Result;
use sapwood_core::{StoreError, TenantId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::{translate, translate_pool};

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One snapshot for all that is read.
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
        // A tenant's name holds no quotes: see `sapwood_core::id`.
        Self::begin(pool, place, tenant, mode, &format!("SET LOCAL sapwood.tenant = '{tenant}'")).await
    }

    /// For the door, which looks for keys before a tenant is known.
    pub async fn open_door(pool: &Pool, place: &Arc<str>) -> Result<Self> {
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
        self.client.as_ref().expect("a db has its connection until it is closed")
    }

    async fn batch(&self, sql: &str) -> Result<()> {
        self.client().batch_execute(sql).await.map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &tokio_postgres::Error) -> StoreError {
        translate(error, &self.place)
    }

    pub async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        let statement = self.client().prepare_cached(sql).await.map_err(|error| self.fault(&error))?;
        self.client().query(&statement, params).await.map_err(|error| self.fault(&error))
    }

    pub async fn query_opt(&self, sql: &str, params: Params<'_>) -> Result<Option<Row>> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    pub async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<Row> {
        self.query_opt(sql, params).await?.ok_or_else(|| self.damaged("a row that must be there is missing"))
    }

    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        let statement = self.client().prepare_cached(sql).await.map_err(|error| self.fault(&error))?;
        self.client().execute(&statement, params).await.map_err(|error| self.fault(&error))
    }

    pub fn damaged(&self, what: impl ToString) -> StoreError {
        StoreError::Damaged { place: self.place.to_string(), what: what.to_string() }
    }

    /// A read's end: whoever asked does not wait for it. The pool gets the connection when the server has answered.
    pub fn leave(mut self) {
        if let Some(client) = self.client.take() {
            tokio::spawn(async move {
                if client.batch_execute("ROLLBACK").await.is_err() {
                    drop(Object::take(client));
                }
            });
        }
    }

    /// A write's end. When the connection is lost now, nobody knows whether the server had heard of it: see
    /// [`not_known`].
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

/// What is said of a change whose end was lost.
pub(super) fn not_known(error: StoreError) -> StoreError {
    match error {
        StoreError::Unreachable { place, why } => StoreError::Backend {
            place,
            what: format!("the connection was lost ({why}), and it is not known whether the change was made"),
        },
        other => other,
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}
