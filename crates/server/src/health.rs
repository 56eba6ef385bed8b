//! Whether the server can work: its store can be read and written. Whoever asks often gets the latest answer, so that asking
//! costs nothing.

use std::time::{Duration, Instant};

use sapwood::core::port::store::ListFilter;
use sapwood::{Engine, Principal, Scope, TenantId};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::problem::{Problem, Result};

/// How long an answer holds.
const ANSWER_HOLDS: Duration = Duration::from_secs(1);
/// How long a store may take to answer.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

pub struct Readiness {
    answer_holds: Duration,
    look_time_max: Duration,
    /// One looks, and the others wait for what it finds.
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    answer: Option<(Instant, Result<()>)>,
    /// A look that is under way, and since when. It may hang, and then no other begins.
    look: Option<(Instant, JoinHandle<Result<()>>)>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { answer_holds: ANSWER_HOLDS, look_time_max: LOOK_TIME_MAX, latest: Mutex::default() }
    }
}

impl Readiness {
    pub async fn check(&self, engine: &Engine) -> Result<()> {
        let engine = engine.clone();
        self.ask(move || Handle::current().block_on(look(&engine))).await
    }

    /// The look has a thread of its own: stores may block, and nobody could stop waiting for one that does so in its task.
    async fn ask(&self, look: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let mut latest = self.latest.lock().await;
        if let Some((at, answer)) = &latest.answer
            && at.elapsed() < self.answer_holds
        {
            return answer.clone();
        }
        let begin = || (Instant::now(), tokio::task::spawn_blocking(look));
        let (began, task) = latest.look.get_or_insert_with(begin);
        let time_left = self.look_time_max.saturating_sub(began.elapsed());
        let answer = match tokio::time::timeout(time_left, task).await {
            Ok(looked) => {
                latest.look = None;
                looked.unwrap_or_else(|error| Err(Problem::new("server.panicked", error.to_string())))
            }
            Err(_) => Err(Problem::new("store.busy", "the store does not answer")),
        };
        // The log has it once, however often it is asked for.
        latest.answer = Some((Instant::now(), answer.clone().map_err(Problem::told)));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_store_that_hangs_is_busy_for_all_who_ask_and_is_looked_at_once() {
        let (answer_holds, look_time_max) = (Duration::ZERO, Duration::from_millis(20));
        let mut readiness = Readiness { answer_holds, look_time_max, latest: Mutex::default() };
        let (free, hangs) = mpsc::channel::<()>();
        let looks = Arc::new(AtomicUsize::new(0));
        let (hangs, counted) = (Arc::new(std::sync::Mutex::new(hangs)), looks.clone());
        let look = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = hangs.lock().unwrap().recv();
            Ok(())
        };
        for answer in futures_util::future::join_all((0..3).map(|_| readiness.ask(look.clone()))).await {
            assert_eq!(answer.unwrap_err().code, "store.busy");
        }
        assert_eq!(looks.load(Ordering::SeqCst), 1, "nothing piles up behind it");
        drop(free);
        // The look ends some time after it was let go.
        while readiness.ask(look.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        // On a busy machine a store that answers at once needs longer than one that hangs is given.
        readiness.look_time_max = Duration::from_secs(60);
        readiness.ask(look).await.unwrap();
        assert_eq!(looks.load(Ordering::SeqCst), 2, "once it has answered, it is asked again");
    }
}
