//! Whether the server can work: its store can be read and written. Whoever asks often gets the latest answer, so that asking
//! costs nothing.

use std::time::{Duration, Instant};

use sapwood::core::port::store::ListFilter;
use sapwood::{Engine, Principal, Scope, TenantId};
use tokio::sync::Mutex;

use crate::problem::{Problem, Result};

/// How long an answer holds.
const ANSWER_HOLDS: Duration = Duration::from_secs(1);
/// How long a store may take to answer.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Readiness {
    /// One looks, and the others wait for what it finds.
    latest: Mutex<Option<(Instant, Result<()>)>>,
}

impl Readiness {
    pub async fn check(&self, engine: &Engine) -> Result<()> {
        let mut latest = self.latest.lock().await;
        if let Some((at, answer)) = &*latest
            && at.elapsed() < ANSWER_HOLDS
        {
            return answer.clone();
        }
        let late = |_| Err(Problem::new("store.busy", "the store does not answer"));
        let answer = tokio::time::timeout(LOOK_TIME_MAX, look(engine)).await.unwrap_or_else(late);
        // The log has it once, however often it is asked for.
        *latest = Some((Instant::now(), answer.clone().map_err(Problem::told)));
        answer
    }
}

async fn look(engine: &Engine) -> Result<()> {
    // First, because it knows best what is wrong with the place.
    engine.store().check_writable().await?;
    let scope = Scope::operator(TenantId::local(), Principal::System);
    engine.list(&scope, &ListFilter { limit: 1, ..ListFilter::default() }).await?;
    Ok(())
}
