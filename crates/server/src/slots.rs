//! Slots for open connections. When all slots are taken, the connections that have been idle longest are closed.
//! Connections that send nothing or are kept alive between requests therefore never block a new connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::share::{Holder, ResourceShare};

/// States of a slot. Every greater number is the time at which its connection became idle, in microseconds.
const FREE: u64 = 0;
const BUSY: u64 = 1;
const CLOSING: u64 = 2;
const IDLE_MIN: u64 = 3;
/// Retry interval if the connections that must close have not freed a slot yet.
const CLOSE_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// When no slot is free, one in `CLOSED_PARTS` idle connections is closed, up to `CLOSED_MAX`. A flood of new
/// connections must not wait for each close.
const CLOSED_PARTS: usize = 8;
const CLOSED_MAX: usize = 32;

pub struct Slots {
    /// A permit for each slot.
    permits: Arc<Semaphore>,
    /// A contiguous array, because finding the oldest connections scans all states.
    states: Box<[AtomicU64]>,
    /// Notified when the slot's connection must close.
    close_signals: Box<[Notify]>,
    table: Mutex<SlotTable>,
    started: Instant,
    /// A new connection from an address with at least this many connections replaces that address's own ones first.
    per_address_max: usize,
    closed: AtomicU64,
}

struct SlotTable {
    free: Vec<usize>,
    /// Indexed by slot.
    addresses: Box<[Option<IpAddr>]>,
}

/// A taken slot. Dropping it frees the slot.
pub struct Slot {
    slots: Arc<Slots>,
    index: usize,
    pub address: Arc<ResourceShare>,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub fn new(count: usize, per_address_max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(count)),
            states: (0..count).map(|_| AtomicU64::new(FREE)).collect(),
            close_signals: (0..count).map(|_| Notify::new()).collect(),
            table: Mutex::new(SlotTable {
                free: (0..count).rev().collect(),
                addresses: vec![None; count].into(),
            }),
            started: Instant::now(),
            per_address_max,
            closed: AtomicU64::new(0),
        }
    }

    /// Takes a slot for a new connection from this address. Never fails: if no connection is idle, waits until a
    /// request in flight has ended.
    pub async fn take(self: &Arc<Self>, address: Arc<ResourceShare>) -> Slot {
        let mut permit = self.permits.clone().try_acquire_owned().ok();
        loop {
            if let Some(slot) = permit.and_then(|permit| self.fill(permit, &address)) {
                return slot;
            }
            self.close_idle(&address);
            let freed =
                tokio::time::timeout(CLOSE_RETRY_INTERVAL, self.permits.clone().acquire_owned()).await;
            permit = freed.ok().and_then(Result::ok);
        }
    }

    fn fill(self: &Arc<Self>, permit: OwnedSemaphorePermit, address: &Arc<ResourceShare>) -> Option<Slot> {
        let index = {
            let mut table = self.table();
            let index = table.free.pop()?;
            table.addresses[index] = ip_of(address);
            index
        };
        address.connections.add();
        self.states[index].store(self.now(), Ordering::Release);
        Some(Slot { slots: self.clone(), index, address: address.clone(), _permit: permit })
    }

    /// Signals the connections that have been idle longest to close. If the address of the new connection is over its
    /// share and has idle connections, only those are closed.
    fn close_idle(&self, new_connection: &ResourceShare) {
        let is_over = new_connection.connections.get() >= self.per_address_max;
        let mut oldest = if is_over { self.oldest(ip_of(new_connection)) } else { Vec::new() };
        if oldest.is_empty() {
            oldest = self.oldest(None);
        }
        for (since, index) in oldest {
            let state = &self.states[index];
            if state.compare_exchange(since, CLOSING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.closed.fetch_add(1, Ordering::Relaxed);
                self.close_signals[index].notify_one();
            }
        }
    }

    /// Returns the slots that have been idle longest, of one address or of all, with the start of their idle time.
    fn oldest(&self, address: Option<IpAddr>) -> Vec<(u64, usize)> {
        let table = self.table();
        let states = self.states.iter().map(|state| state.load(Ordering::Acquire)).zip(0..);
        let idle = states.filter(|(state, _)| *state >= IDLE_MIN);
        let eligible = idle.filter(|(_, index)| address.is_none() || table.addresses[*index] == address);
        let mut oldest: Vec<(u64, usize)> = eligible.collect();
        let count = (oldest.len() / CLOSED_PARTS).clamp(1, CLOSED_MAX);
        if count < oldest.len() {
            oldest.select_nth_unstable(count);
            oldest.truncate(count);
        }
        oldest
    }

    pub fn open(&self) -> usize {
        self.states.len().saturating_sub(self.permits.available_permits())
    }

    /// Returns how many connections were closed to free their slots.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    pub async fn all_closed(&self) {
        let all = u32::try_from(self.states.len()).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX - IDLE_MIN) + IDLE_MIN
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Marks the connection as busy. Returns false if the connection must close.
    pub fn begin(&self) -> bool {
        let state = &self.slots.states[self.index];
        let since = state.load(Ordering::Acquire);
        since != CLOSING && state.compare_exchange(since, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks the connection as idle, unless it must close.
    pub fn end(&self) {
        let state = &self.slots.states[self.index];
        let _ = state.compare_exchange(BUSY, self.slots.now(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Resolves when the connection must close.
    pub async fn close_requested(&self) {
        loop {
            self.slots.close_signals[self.index].notified().await;
            // The signal may have been sent to the slot's previous connection.
            if self.slots.states[self.index].load(Ordering::Acquire) == CLOSING {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.states[self.index].store(FREE, Ordering::Release);
        self.address.connections.release();
        let mut table = self.slots.table();
        table.addresses[self.index] = None;
        table.free.push(self.index);
    }
}

fn ip_of(share: &ResourceShare) -> Option<IpAddr> {
    match share.holder {
        Holder::Address(ip) => Some(ip),
        Holder::Principal(..) | Holder::Tenant(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::ResourceShares;

    fn address(shares: &ResourceShares, ip: &str) -> Arc<ResourceShare> {
        shares.find(Holder::address(ip.parse().unwrap()))
    }

    /// Whether the connection is signalled to close within 50 ms.
    async fn must_close(slot: &Slot) -> bool {
        tokio::time::timeout(Duration::from_millis(50), slot.close_requested()).await.is_ok()
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_one_that_was_idle_longest() {
        let (slots, shares) = (Arc::new(Slots::new(3, 3)), ResourceShares::new(1, 1));
        let local = address(&shares, "127.0.0.1");
        let (busy, old, young) = (
            slots.take(local.clone()).await,
            slots.take(local.clone()).await,
            slots.take(local.clone()).await,
        );
        assert!(busy.begin());
        let closing = async {
            old.close_requested().await;
            assert!(!old.begin(), "a closing connection accepts no request");
            drop(old);
        };
        let (new_connection, ()) = tokio::join!(slots.take(local.clone()), closing);
        assert_eq!((slots.open(), slots.closed()), (3, 1));
        assert!(!must_close(&new_connection).await, "an earlier signal must not close the new connection");
        assert!(!must_close(&busy).await && !must_close(&young).await);
        drop((busy, young, new_connection));
        assert_eq!((slots.open(), local.connections.get()), (0, 0));
    }

    #[tokio::test]
    async fn an_address_over_its_share_loses_its_own_connections_first() {
        let (slots, shares) = (Arc::new(Slots::new(3, 2)), ResourceShares::new(1, 1));
        let (hog, other) = (address(&shares, "10.0.0.1"), address(&shares, "10.0.0.2"));
        let oldest = slots.take(other.clone()).await;
        let (first, second) = (slots.take(hog.clone()).await, slots.take(hog.clone()).await);
        let closing = async {
            first.close_requested().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(slots.take(hog.clone()), closing);
        assert!(!must_close(&oldest).await, "another address keeps its connections");
        let closing = async {
            oldest.close_requested().await;
            drop(oldest);
        };
        let (_newcomer, ()) = tokio::join!(slots.take(other), closing);
        drop((second, third));
    }
}
