//! Runs blocking work off the async threads. The work stops soon after its deadline or after its caller is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sapwood_core::port::tool::ToolOutput;

/// Time limit for the file work of one call.
const FILE_WORK_MAX: Duration = Duration::from_secs(30);

/// The stop condition, checked by every loop that may run for long.
#[derive(Clone)]
pub struct StopSignal {
    deadline: Instant,
    is_dropped: Arc<AtomicBool>,
}

impl StopSignal {
    pub fn is_set(&self) -> bool {
        self.is_dropped.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }
}

/// Signals on drop that the caller was dropped.
struct DropSignal(Arc<AtomicBool>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Run work on a blocking thread, without a deadline. The caller limits the work.
pub async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| format!("the tool panicked: {error}"))
}

pub async fn run_blocking(work: impl FnOnce(&StopSignal) -> ToolOutput + Send + 'static) -> ToolOutput {
    let caller = DropSignal(Arc::default());
    let stop = StopSignal { deadline: Instant::now() + FILE_WORK_MAX, is_dropped: caller.0.clone() };
    match tokio::task::spawn_blocking(move || work(&stop)).await {
        Ok(output) => output,
        Err(error) => ToolOutput::error(format!("the tool panicked: {error}")),
    }
}
