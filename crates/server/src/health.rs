//! Readiness: whether the store can be read and written. The latest result is cached, so that frequent probes are
//! cheap.

use std::time::{Duration, Instant};

use sapwood::core::port::store::ListFilter;
use sapwood::{Engine, Principal, Scope, TenantId};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::problem::{Problem, Result};

/// TTL of the cached result.
const RESULT_TTL: Duration = Duration::from_secs(1);
/// Timeout of a store check.
const CHECK_TIME_MAX: Duration = Duration::from_secs(5);

pub struct Readiness {
    result_ttl: Duration,
    check_time_max: Duration,
    /// Locked during a check, so that concurrent callers wait for its result instead of starting another check.
    latest: Mutex<LatestCheck>,
}

#[derive(Default)]
struct LatestCheck {
    result: Option<(Instant, Result<()>)>,
    /// The check in progress and its start time. A check may hang; no second check starts until it returns.
    check: Option<(Instant, JoinHandle<Result<()>>)>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { result_ttl: RESULT_TTL, check_time_max: CHECK_TIME_MAX, latest: Mutex::default() }
    }
}

impl Readiness {
    pub async fn check(&self, engine: &Engine) -> Result<()> {
        let engine = engine.clone();
        self.run_check(move || Handle::current().block_on(check_store(&engine))).await
    }

    /// Runs the check on a separate thread: stores may block, and a blocked task cannot be timed out.
    async fn run_check(&self, check: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let mut latest = self.latest.lock().await;
        if let Some((at, result)) = &latest.result
            && at.elapsed() < self.result_ttl
        {
            return result.clone();
        }
        let begin = || (Instant::now(), tokio::task::spawn_blocking(check));
        let (started, task) = latest.check.get_or_insert_with(begin);
        let time_left = self.check_time_max.saturating_sub(started.elapsed());
        let result = match tokio::time::timeout(time_left, task).await {
            Ok(outcome) => {
                latest.check = None;
                outcome.unwrap_or_else(|error| Err(Problem::new("server.panicked", error.to_string())))
            }
            Err(_) => Err(Problem::new("store.busy", "the store does not respond")),
        };
        // The cached copy has no internal detail, so the error is logged only once.
        latest.result = Some((Instant::now(), result.clone().map_err(Problem::without_internals)));
        result
    }
}

async fn check_store(engine: &Engine) -> Result<()> {
    // Runs first, because it returns the most precise error about the store's location.
    engine.store().check_writable().await?;
    let scope = Scope::operator(TenantId::local(), Principal::System);
    engine.directory().list(&scope, &ListFilter { limit: 1, ..ListFilter::default() }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn concurrent_checks_of_a_hanging_store_share_one_probe_and_report_busy() {
        let (result_ttl, check_time_max) = (Duration::ZERO, Duration::from_millis(20));
        let mut readiness = Readiness { result_ttl, check_time_max, latest: Mutex::default() };
        let (free, hangs) = mpsc::channel::<()>();
        let checks = Arc::new(AtomicUsize::new(0));
        let (hangs, counter) = (Arc::new(std::sync::Mutex::new(hangs)), checks.clone());
        let check = move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let _ = hangs.lock().unwrap().recv();
            Ok(())
        };
        for result in futures_util::future::join_all((0..3).map(|_| readiness.run_check(check.clone()))).await
        {
            assert_eq!(result.unwrap_err().code, "store.busy");
        }
        assert_eq!(checks.load(Ordering::SeqCst), 1, "no second check is started");
        drop(free);
        // The check ends shortly after it is released.
        while readiness.run_check(check.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(checks.load(Ordering::SeqCst), 1);
        // On a busy machine even a fast check may take longer than 20 ms.
        readiness.check_time_max = Duration::from_secs(60);
        readiness.run_check(check).await.unwrap();
        assert_eq!(
            checks.load(Ordering::SeqCst),
            2,
            "a new check starts after the previous one has finished"
        );
    }
}
