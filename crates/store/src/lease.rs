//! Leases: who gets one, and how long it counts. No wall clock decides: a caller whose clock is wrong neither blocks a
//! session for longer than the TTL nor loses it sooner.
//!
//! Stores in memory and in files go by a [`LeaseClock`]: the time since the machine was booted, which all of its processes
//! share and which nobody can set. A lease that names another boot is over: after a restart, and for a machine that uses a
//! file of another one; there only the fence protects the log. PostgreSQL goes by the database's own clock.
//!
//! Builds before this one wrote nothing but a wall-clock time. They still read it, so it is still written; and what they
//! wrote counts for [`LEASE_TTL_MS_MAX`] at most, whatever it says.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sapwood_core::port::store::{LEASE_TTL_MS_MAX, Lease, Result};
use sapwood_core::{SessionId, StoreError, TimestampMs};
use serde::{Deserialize, Serialize};

/// Longest name of a lease's holder, in bytes.
pub const HOLDER_BYTES_MAX: usize = 256;
/// Linux tells boots apart here.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// The boot's name where the system has none. A lease of an earlier boot then counts for its TTL at most, as any does.
const BOOT_UNNAMED: &str = "unnamed";

/// The clock that leases in memory and in files go by.
pub trait LeaseClock: Send + Sync {
    fn read(&self) -> Reading;
}

/// What a [`LeaseClock`] says at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Which boot `since_boot_ms` counts from.
    pub boot: Arc<str>,
    pub since_boot_ms: i64,
    /// For builds that compare nothing else.
    pub wall: TimestampMs,
}

/// The machine's own clock: it never goes back, and it runs on while the machine sleeps.
#[derive(Debug, Clone)]
pub struct BootClock {
    boot: Arc<str>,
}

impl Default for BootClock {
    fn default() -> Self {
        let boot = std::fs::read_to_string(BOOT_ID_FILE).ok();
        let boot = boot.as_deref().map(str::trim).filter(|boot| !boot.is_empty());
        Self { boot: boot.unwrap_or(BOOT_UNNAMED).into() }
    }
}

impl LeaseClock for BootClock {
    fn read(&self) -> Reading {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        let since_boot_ms = now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = TimestampMs(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX));
        Reading { boot: self.boot.clone(), since_boot_ms, wall }
    }
}

/// The last lease of a session as a store keeps it, be it over or not: fences never go back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    pub holder: String,
    pub fence: u64,
    /// By the wall clock of the process that took it.
    pub expires_at: TimestampMs,
    /// None in a lease that an earlier build wrote, and in one that was released.
    pub term: Option<Term>,
}

/// When a lease was taken, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    pub boot: String,
    pub taken_ms: i64,
    pub ttl_ms: i64,
}

impl StoredLease {
    pub fn taken(lease: &Lease, now: &Reading) -> Self {
        let term = Term { boot: now.boot.to_string(), taken_ms: now.since_boot_ms, ttl_ms: lease.ttl_ms };
        Self {
            holder: lease.holder.clone(),
            fence: lease.fence,
            expires_at: TimestampMs(now.wall.0.saturating_add(lease.ttl_ms)),
            term: Some(term),
        }
    }

    /// What is kept of a lease that its holder gave back: its fence.
    pub fn released(lease: &Lease) -> Self {
        let (holder, fence) = (lease.holder.clone(), lease.fence);
        Self { holder, fence, expires_at: TimestampMs(i64::MIN), term: None }
    }

    pub fn at(&self, now: &Reading) -> LastLease<'_> {
        let remaining_ms = match &self.term {
            Some(term) => term.remaining_ms(now),
            None => remaining_of_wall_time(self.expires_at.0, now.wall.0),
        };
        LastLease { holder: &self.holder, fence: self.fence, remaining_ms }
    }
}

impl Term {
    /// A time that has not come yet is another boot's, or that of a container with a clock of its own.
    fn remaining_ms(&self, now: &Reading) -> i64 {
        let elapsed_ms = now.since_boot_ms.saturating_sub(self.taken_ms);
        if self.boot != *now.boot || elapsed_ms < 0 {
            return 0;
        }
        self.ttl_ms.saturating_sub(elapsed_ms).max(0)
    }
}

/// What is left of a lease that says by some wall clock when it ends. No lease is as long as one that ends after
/// [`LEASE_TTL_MS_MAX`], so the clock was wrong, and the lease is over.
pub fn remaining_of_wall_time(expires_at_ms: i64, now_ms: i64) -> i64 {
    let remaining_ms = expires_at_ms.saturating_sub(now_ms);
    if (1..=LEASE_TTL_MS_MAX).contains(&remaining_ms) { remaining_ms } else { 0 }
}

/// The last lease of a session at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastLease<'a> {
    pub holder: &'a str,
    pub fence: u64,
    /// Zero when it is over.
    pub remaining_ms: i64,
}

impl LastLease<'_> {
    pub fn is_live(&self) -> bool {
        self.remaining_ms > 0
    }

    /// What is said to a caller whom the lease keeps out.
    pub fn refuse(&self) -> StoreError {
        StoreError::Leased { holder: self.holder.to_owned(), remaining_ms: self.remaining_ms }
    }

    /// Whether it is the one that its holder wants to give back. If not, the holder has lost it, which is no error.
    pub fn is(&self, given: &Lease) -> bool {
        self.fence == given.fence && self.holder == given.holder
    }
}

/// The lease that `holder` gets after the last one. The holder of a live one renews it and keeps its fence; anything else
/// is a new fence.
pub fn next_lease(
    last: Option<LastLease<'_>>,
    session: &SessionId,
    holder: &str,
    ttl_ms: i64,
) -> Result<Lease> {
    check_request(holder, ttl_ms)?;
    let fence = match last {
        Some(last) if last.is_live() && last.holder == holder => last.fence,
        Some(last) if last.is_live() => return Err(last.refuse()),
        Some(last) => last.fence + 1,
        None => 1,
    };
    Ok(Lease { session: session.clone(), holder: holder.to_owned(), fence, ttl_ms })
}

fn check_request(holder: &str, ttl_ms: i64) -> Result<()> {
    if holder.is_empty() || ttl_ms <= 0 {
        let why = "it needs a holder and a time to live above zero".to_owned();
        return Err(StoreError::Invalid { what: "a lease", why });
    }
    if holder.len() > HOLDER_BYTES_MAX {
        return Err(StoreError::TooLarge { what: "the name of a lease's holder", limit: HOLDER_BYTES_MAX });
    }
    if ttl_ms > LEASE_TTL_MS_MAX {
        let limit = usize::try_from(LEASE_TTL_MS_MAX).unwrap_or(usize::MAX);
        return Err(StoreError::TooLarge { what: "a lease's time to live, in milliseconds,", limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: i64 = 4_000;
    const HOUR_MS: i64 = 3_600_000;

    fn at(since_boot_ms: i64) -> Reading {
        Reading { boot: "one".into(), since_boot_ms, wall: TimestampMs(1_900_000_000_000 + since_boot_ms) }
    }

    fn lease() -> Lease {
        Lease { session: "s".parse().unwrap(), holder: "a".to_owned(), fence: 3, ttl_ms: TTL_MS }
    }

    fn with_wall_off(by_ms: i64, reading: Reading) -> Reading {
        Reading { wall: TimestampMs(reading.wall.0 + by_ms), ..reading }
    }

    #[test]
    fn a_lease_lasts_for_its_ttl_whatever_the_wall_clock_said() {
        for off_ms in [-HOUR_MS, 0, HOUR_MS] {
            let stored = StoredLease::taken(&lease(), &with_wall_off(off_ms, at(1_000)));
            let remaining = |now| stored.at(&at(now)).remaining_ms;
            assert_eq!([1_000, 2_500, 4_999, 5_000, 9_000].map(remaining), [4_000, 2_500, 1, 0, 0]);
        }
    }

    #[test]
    fn a_lease_of_another_boot_is_over() {
        let stored = StoredLease::taken(&lease(), &at(1_000));
        let elsewhere = Reading { boot: "two".into(), ..at(1_001) };
        assert_eq!(stored.at(&elsewhere).remaining_ms, 0);
        assert_eq!(stored.at(&at(999)).remaining_ms, 0, "one from the future is no better");
    }

    #[test]
    fn a_lease_of_an_earlier_build_counts_for_the_longest_ttl_at_most() {
        let now = at(0).wall.0;
        let remaining = |ends_in_ms: i64| {
            let expires_at = TimestampMs(now.saturating_add(ends_in_ms));
            let stored = StoredLease { holder: "old".to_owned(), fence: 1, expires_at, term: None };
            stored.at(&at(0)).remaining_ms
        };
        assert_eq!([3_999, LEASE_TTL_MS_MAX].map(remaining), [3_999, LEASE_TTL_MS_MAX]);
        assert_eq!([0, -1, LEASE_TTL_MS_MAX + 1, HOUR_MS, i64::MAX].map(remaining), [0; 5]);
    }

    #[test]
    fn a_released_lease_is_over_and_keeps_its_fence() {
        let last = StoredLease::released(&lease());
        let last = last.at(&at(0));
        assert!(!last.is_live());
        assert_eq!(next_lease(Some(last), &lease().session, "b", TTL_MS).unwrap().fence, 4);
    }

    #[test]
    fn the_clock_of_the_machine_goes_forward_and_names_its_boot() {
        let clock = BootClock::default();
        let (first, second) = (clock.read(), BootClock::default().read());
        assert_eq!(first.boot, second.boot, "every process of one boot says the same");
        assert!(0 < first.since_boot_ms && first.since_boot_ms <= second.since_boot_ms);
    }
}
