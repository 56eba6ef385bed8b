//! Lease rules: which caller gets a lease, and how long it is valid. A lease does not depend on the
//! wall clock: a caller with a wrong clock neither blocks a session for longer than the TTL nor
//! loses it early.
//!
//! Stores in memory and in files use a [`LeaseClock`]: the time since the machine was booted, which
//! all of its processes share and which cannot be set. A lease from another boot counts as expired:
//! after a restart, and also when two machines share a file. In the second case only the fence
//! protects the log. PostgreSQL uses the clock of the database.
//!
//! Earlier builds store and read only a wall-clock time, so that time is still written. Only a
//! lease that such a build wrote is compared with the wall clock. It is valid for
//! [`LEASE_TTL_MS_MAX`] at most.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sapwood_core::port::store::{LEASE_TTL_MS_MAX, Lease, Result};
use sapwood_core::{SessionId, StoreError, TimestampMs};
use serde::{Deserialize, Serialize};

/// Maximum length of a lease holder's name, in bytes.
pub const HOLDER_BYTES_MAX: usize = 256;
/// Linux stores the id of the current boot in this file.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// The boot id on systems without boot ids. There, a lease from an earlier boot can block a session
/// for up to its TTL.
const BOOT_UNNAMED: &str = "unnamed";

/// The clock for leases in memory and in files.
pub trait LeaseClock: Send + Sync {
    fn read(&self) -> ClockReading;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockReading {
    /// The boot that `since_boot_ms` counts from.
    pub boot: Arc<str>,
    pub since_boot_ms: i64,
    /// The wall-clock time, the only time that earlier builds store and compare.
    pub wall: TimestampMs,
}

/// The machine's boot-time clock: monotonic, and it includes the time the machine was suspended.
#[derive(Debug, Clone)]
pub struct BootClock {
    boot: Arc<str>,
}

impl Default for BootClock {
    fn default() -> Self {
        Self { boot: boot_id().as_deref().unwrap_or(BOOT_UNNAMED).into() }
    }
}

/// Returns the id of the current boot of the machine, if the system has boot ids.
pub fn boot_id() -> Option<String> {
    let boot = std::fs::read_to_string(BOOT_ID_FILE).ok()?;
    Some(boot.trim().to_owned()).filter(|boot| !boot.is_empty())
}

impl LeaseClock for BootClock {
    fn read(&self) -> ClockReading {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        let since_boot_ms = now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = TimestampMs(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX));
        ClockReading { boot: self.boot.clone(), since_boot_ms, wall }
    }
}

/// The stored form of the last lease of a session. An expired lease is retained because fences must
/// never decrease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    pub holder: String,
    pub fence: u64,
    /// Measured by the wall clock of the process that acquired the lease.
    pub expires_at: TimestampMs,
    /// `None` for a lease that an earlier build wrote, and for a released lease.
    pub term: Option<LeaseTerm>,
}

/// The time when a lease was acquired, and its TTL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerm {
    pub boot: String,
    pub taken_ms: i64,
    pub ttl_ms: i64,
}

impl StoredLease {
    pub fn taken(lease: &Lease, now: &ClockReading) -> Self {
        let term =
            LeaseTerm { boot: now.boot.to_string(), taken_ms: now.since_boot_ms, ttl_ms: lease.ttl_ms };
        Self {
            holder: lease.holder.clone(),
            fence: lease.fence,
            expires_at: TimestampMs(now.wall.0.saturating_add(lease.ttl_ms)),
            term: Some(term),
        }
    }

    /// Returns the stored form of a released lease. It is expired, and only its fence matters.
    pub fn released(lease: &Lease) -> Self {
        let (holder, fence) = (lease.holder.clone(), lease.fence);
        Self { holder, fence, expires_at: TimestampMs(i64::MIN), term: None }
    }

    pub fn at(&self, now: &ClockReading) -> LastLease<'_> {
        let remaining_ms = match &self.term {
            Some(term) => term.remaining_ms(now),
            None => remaining_of_wall_time(self.expires_at.0, now.wall.0),
        };
        LastLease { holder: &self.holder, fence: self.fence, remaining_ms }
    }
}

impl LeaseTerm {
    /// Returns the remaining time. A start time in the future belongs to another boot or to a
    /// container with a separate clock, so the lease counts as expired.
    fn remaining_ms(&self, now: &ClockReading) -> i64 {
        let elapsed_ms = now.since_boot_ms.saturating_sub(self.taken_ms);
        if self.boot != *now.boot || elapsed_ms < 0 {
            return 0;
        }
        self.ttl_ms.saturating_sub(elapsed_ms).max(0)
    }
}

/// Returns the remaining time of a lease that only has a wall-clock expiry. A lease that ends more
/// than [`LEASE_TTL_MS_MAX`] from now was written with a wrong clock and counts as expired.
pub fn remaining_of_wall_time(expires_at_ms: i64, now_ms: i64) -> i64 {
    let remaining_ms = expires_at_ms.saturating_sub(now_ms);
    if (1..=LEASE_TTL_MS_MAX).contains(&remaining_ms) { remaining_ms } else { 0 }
}

/// The last lease of a session at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastLease<'a> {
    pub holder: &'a str,
    pub fence: u64,
    /// Zero if the lease has expired.
    pub remaining_ms: i64,
}

impl LastLease<'_> {
    pub fn is_live(&self) -> bool {
        self.remaining_ms > 0
    }

    /// Returns the error for a caller that is blocked by this lease.
    pub fn refuse(&self) -> StoreError {
        StoreError::Leased { holder: self.holder.to_owned(), remaining_ms: self.remaining_ms }
    }

    /// Returns whether `given` is this lease. If not, the holder of `given` has lost it, and
    /// releasing it is not an error.
    pub fn is(&self, given: &Lease) -> bool {
        self.fence == given.fence && self.holder == given.holder
    }
}

/// Returns the lease that `holder` gets after the previous lease. The holder of a live lease renews
/// it and keeps its fence. In all other cases the fence is new. Fails while another holder's lease
/// is live.
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
        let why = "it needs a holder and a TTL above zero".to_owned();
        return Err(StoreError::Invalid { what: "a lease", why });
    }
    if holder.len() > HOLDER_BYTES_MAX {
        return Err(StoreError::TooLarge {
            what: "the length of a holder's name, in bytes,",
            limit: HOLDER_BYTES_MAX,
        });
    }
    if ttl_ms > LEASE_TTL_MS_MAX {
        let limit = usize::try_from(LEASE_TTL_MS_MAX).unwrap_or(usize::MAX);
        return Err(StoreError::TooLarge { what: "the TTL of a lease, in milliseconds,", limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: i64 = 4_000;
    const HOUR_MS: i64 = 3_600_000;

    fn at(since_boot_ms: i64) -> ClockReading {
        ClockReading {
            boot: "one".into(),
            since_boot_ms,
            wall: TimestampMs(1_900_000_000_000 + since_boot_ms),
        }
    }

    fn lease() -> Lease {
        Lease { session: "s".parse().unwrap(), holder: "a".to_owned(), fence: 3, ttl_ms: TTL_MS }
    }

    fn with_wall_off(by_ms: i64, reading: ClockReading) -> ClockReading {
        ClockReading { wall: TimestampMs(reading.wall.0 + by_ms), ..reading }
    }

    #[test]
    fn a_lease_lasts_for_its_ttl_regardless_of_the_wall_clock() {
        for off_ms in [-HOUR_MS, 0, HOUR_MS] {
            let stored = StoredLease::taken(&lease(), &with_wall_off(off_ms, at(1_000)));
            let remaining = |now| stored.at(&at(now)).remaining_ms;
            assert_eq!([1_000, 2_500, 4_999, 5_000, 9_000].map(remaining), [4_000, 2_500, 1, 0, 0]);
        }
    }

    #[test]
    fn a_lease_of_another_boot_has_expired() {
        let stored = StoredLease::taken(&lease(), &at(1_000));
        let elsewhere = ClockReading { boot: "two".into(), ..at(1_001) };
        assert_eq!(stored.at(&elsewhere).remaining_ms, 0);
        assert_eq!(stored.at(&at(999)).remaining_ms, 0, "a lease that starts in the future has expired, too");
    }

    #[test]
    fn a_lease_of_an_earlier_build_is_valid_for_the_maximum_ttl_at_most() {
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
    fn a_released_lease_has_expired_and_keeps_its_fence() {
        let last = StoredLease::released(&lease());
        let last = last.at(&at(0));
        assert!(!last.is_live());
        assert_eq!(next_lease(Some(last), &lease().session, "b", TTL_MS).unwrap().fence, 4);
    }

    #[test]
    fn the_boot_clock_moves_forward_and_names_its_boot() {
        let clock = BootClock::default();
        let (first, second) = (clock.read(), BootClock::default().read());
        assert_eq!(first.boot, second.boot, "all readings of one boot name the same boot");
        assert!(0 < first.since_boot_ms && first.since_boot_ms <= second.since_boot_ms);
    }
}
