//! The log format that a server writes. A database that servers of the previous version may still use
//! is written in their format, until the operator upgrades it. Running servers notice the upgrade.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sapwood_core::entry::LOG_VERSION;

/// How often a server that writes the older format checks whether the database was upgraded.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct WrittenFormat {
    version: AtomicU32,
    checked: Mutex<Instant>,
}

impl WrittenFormat {
    pub fn new(version: u32) -> Self {
        Self { version: AtomicU32::new(version), checked: Mutex::new(Instant::now()) }
    }

    pub fn current(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns whether the database may have been upgraded since the last check. The caller then checks it.
    pub fn is_check_due(&self) -> bool {
        if self.current() == LOG_VERSION {
            return false;
        }
        let mut checked = self.checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = checked.elapsed() >= CHECK_INTERVAL;
        if is_due {
            *checked = Instant::now();
        }
        is_due
    }

    pub fn set(&self, version: u32) {
        self.version.store(version, Ordering::Relaxed);
    }
}
