//! A lease clock that only advances when a test moves it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sapwood_core::TimestampMs;

use crate::lease::{ClockReading, LeaseClock};

/// Initial time of the wall clock.
const WALL_MS: i64 = 1_900_000_000_000;

pub struct ManualClock(Mutex<ClockReading>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(Mutex::new(ClockReading {
            boot: "boot".into(),
            since_boot_ms: 1_000,
            wall: TimestampMs(WALL_MS),
        }))
    }
}

impl ManualClock {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, ClockReading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advance all clocks.
    pub fn pass(&self, ms: i64) {
        let mut reading = self.lock();
        reading.since_boot_ms += ms;
        reading.wall.0 += ms;
    }

    /// Set the wall clock forward or back.
    pub fn shift_wall(&self, ms: i64) {
        self.lock().wall.0 += ms;
    }

    /// Simulate a reboot. The time since boot keeps its value, as if the new boot had run as long
    /// as the previous one.
    pub fn reboot(&self) {
        let mut reading = self.lock();
        reading.boot = format!("{}+", reading.boot).into();
    }
}

impl LeaseClock for ManualClock {
    fn read(&self) -> ClockReading {
        self.lock().clone()
    }
}
