//! Maintenance of the database: checks, sealing, upgrades, health.

use async_trait::async_trait;
use sapwood_core::entry::LOG_VERSION;
use sapwood_core::port::store::{Finding, Repair, Result, SealReport, StoreStatus, Upkeep};
use sapwood_core::{Scope, SessionId, StoreError, TenantId};
use tokio_postgres::Row;

use super::connect::PREVIOUS_APPLICATION;
use super::{PgStore, check, lease, proofs, reading, retrying, schema, writing};
use crate::database::NamedDatabase;

#[async_trait]
impl Upkeep for PgStore {
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
        self.catch_up(scope).await?;
        let findings = match repair {
            Repair::No => reading!(self, scope, db => check::check(&db, scope, repair).await)?,
            Repair::Yes => writing!(self, scope, db => check::check(&db, scope, repair).await)?,
        };
        self.catch_up(scope).await?;
        Ok(findings)
    }

    async fn seal_entries(&self, scope: &Scope) -> Result<SealReport> {
        proofs::seal(self, scope, self.log_format().await?).await
    }

    async fn abandoned_turns(&self, limit: usize) -> Result<Option<Vec<(TenantId, SessionId)>>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query_all_tenants(&lease::abandoned(), &[&limit]).await?;
        let read = |row: &Row| Ok((row.get::<_, &str>(0).parse()?, row.get::<_, &str>(1).parse()?));
        let found: Result<_, sapwood_core::id::IdError> = rows.iter().map(read).collect();
        Ok(Some(found.map_err(|error| self.damaged(error))?))
    }

    async fn log_format(&self) -> Result<u32> {
        if self.format.is_check_due() {
            let rows = self.query_all_tenants(schema::APPLIED_STEPS, &[]).await?;
            self.format.set(schema::format_of(rows.first().and_then(|row| row.get(0))));
        }
        Ok(self.format.current())
    }

    async fn status(&self) -> Result<StoreStatus> {
        let rows = self.query_all_tenants(schema::APPLIED_STEPS, &[]).await?;
        let steps: Option<i32> = rows.first().and_then(|row| row.get(0));
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = $1";
        let older = self.query_all_tenants(sql, &[&PREVIOUS_APPLICATION]).await?;
        let older = older.first().map_or(0, |row| row.get::<_, i64>(0));
        let log_format = schema::format_of(steps);
        self.format.set(log_format);
        Ok(StoreStatus {
            layout: steps.and_then(|steps| u32::try_from(steps).ok()),
            layout_newest: Some(schema::newest()),
            log_format,
            older_connections: u32::try_from(older).unwrap_or(u32::MAX),
            ..StoreStatus::current("postgres", self.describe())
        })
    }

    async fn upgrade(&self) -> Result<u32> {
        // The step locks every table, which can deadlock with the writes of running servers.
        retrying!(self, schema::upgrade(&self.server).await.map(Ok))?;
        self.format.set(LOG_VERSION);
        Ok(LOG_VERSION)
    }

    async fn check_writable(&self) -> Result<()> {
        let sql = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool";
        let rows = self.query_all_tenants(sql, &[]).await?;
        if rows.first().is_some_and(|row| row.get(0)) {
            let (place, why) = (self.server.place.to_string(), "the server is read-only".to_owned());
            return Err(StoreError::ReadOnly { place, why });
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.runtime.wrap(self.notifier.flush()).await;
        Ok(())
    }

    fn describe(&self) -> String {
        self.server.place.to_string()
    }
}
