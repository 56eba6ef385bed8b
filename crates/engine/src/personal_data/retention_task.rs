//! Applies the retention of all tenants while a server runs.

use std::time::Duration;

use sapwood_core::{Principal, Scope};
use tokio::task::JoinHandle;

use crate::compact::Writing;
use crate::{Engine, Result};

/// How often the retention is applied.
const RUN_INTERVAL: Duration = Duration::from_secs(3_600);

/// Background task that announces and erases inactive sessions. Dropping it stops the task.
pub struct RetentionTask(JoinHandle<()>);

impl Drop for RetentionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RetentionTask {
    /// Start applying the retention.
    pub fn start(engine: &Engine) -> Self {
        let engine = engine.clone();
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = run_all(&engine).await {
                    tracing::warn!(%error, "failed to apply the retention");
                }
                tokio::time::sleep(RUN_INTERVAL).await;
            }
        }))
    }
}

async fn run_all(engine: &Engine) -> Result<()> {
    for tenant in engine.store.list_tenants().await? {
        let scope = Scope::operator(tenant, Principal::System);
        let report = engine.personal_data().run_retention(&scope, Writing::Write).await?;
        let (announced, erased) = (report.announced.len(), report.erased.len());
        if announced + erased > 0 {
            tracing::info!(tenant = %scope.tenant, announced, erased, "applied the retention");
        }
    }
    Ok(())
}
