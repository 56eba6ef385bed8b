//! Slots for open connections. When all slots are taken, the connections that have been idle longest are closed.
//! Connections that send nothing or are kept alive between requests therefore never block a new connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::share::{Holder, Share};

/// States of a slot. Every greater number is the time at which its connection became idle, in microseconds.
const FREE: u64 = 0;
const BUSY: u64 = 1;
const CLOSING: u64 = 2;
const WAITING_MIN: u64 = 3;
/// Retry interval if the connections that were told to close have not freed a slot.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
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
    bells: Box<[Notify]>,
    table: Mutex<Table>,
    began: Instant,
    /// An address with more connections than this has its connections closed first.
    per_address_max: usize,
    closed: AtomicU64,
}

struct Table {
    free: Vec<usize>,
    /// Indexed by slot.
    addresses: Box<[Option<IpAddr>]>,
}

/// A taken slot. Dropping it frees the slot.
pub struct Slot {
    slots: Arc<Slots>,
    index: usize,
    pub address: Arc<Share>,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub fn new(count: usize, per_address_max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(count)),
            states: (0..count).map(|_| AtomicU64::new(FREE)).collect(),
            bells: (0..count).map(|_| Notify::new()).collect(),
            table: Mutex::new(Table {
                free: (0..count).rev().collect(),
                addresses: vec![None; count].into(),
            }),
            began: Instant::now(),
            per_address_max,
            closed: AtomicU64::new(0),
        }
    }

    /// Takes a slot for a new connection from this address. Never fails: if no connection is idle, waits until a
    /// request in flight has ended.
    pub async fn take(self: &Arc<Self>, address: Arc<Share>) -> Slot {
        let mut permit = self.permits.clone().try_acquire_owned().ok();
        loop {
            if let Some(slot) = permit.and_then(|permit| self.fill(permit, &address)) {
                return slot;
            }
            self.close_waiting(&address);
            let freed = tokio::time::timeout(LOOK_AGAIN, self.permits.clone().acquire_owned()).await;
            permit = freed.ok().and_then(Result::ok);
        }
    }

    fn fill(self: &Arc<Self>, permit: OwnedSemaphorePermit, address: &Arc<Share>) -> Option<Slot> {
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

    /// Tells the connections that have been idle longest to close. If the address of the new connection is over its
    /// share and has idle connections, only those are closed.
    fn close_waiting(&self, newcomer: &Share) {
        let is_over = newcomer.connections.get() >= self.per_address_max;
        let mut oldest = if is_over { self.oldest(ip_of(newcomer)) } else { Vec::new() };
        if oldest.is_empty() {
            oldest = self.oldest(None);
        }
        for (since, index) in oldest {
            let state = &self.states[index];
            if state.compare_exchange(since, CLOSING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.closed.fetch_add(1, Ordering::Relaxed);
                self.bells[index].notify_one();
            }
        }
    }

    /// Returns the slots that have been idle longest, of one address or of all, with the start of their idle time.
    fn oldest(&self, address: Option<IpAddr>) -> Vec<(u64, usize)> {
        let table = self.table();
        let states = self.states.iter().map(|state| state.load(Ordering::Acquire)).zip(0..);
        let waiting = states.filter(|(state, _)| *state >= WAITING_MIN);
        let eligible = waiting.filter(|(_, index)| address.is_none() || table.addresses[*index] == address);
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
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX - WAITING_MIN) + WAITING_MIN
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Marks the connection as busy. Returns false if it was already told to close.
    pub fn begin(&self) -> bool {
        let state = &self.slots.states[self.index];
        let since = state.load(Ordering::Acquire);
        since != CLOSING && state.compare_exchange(since, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks the connection as idle, unless it was told to close.
    pub fn end(&self) {
        let state = &self.slots.states[self.index];
        let _ = state.compare_exchange(BUSY, self.slots.now(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Resolves when the connection is told to close.
    pub async fn told_to_close(&self) {
        loop {
            self.slots.bells[self.index].notified().await;
            // The notification may have been meant for the slot's previous connection.
            if self.slots.states[self.index].load(Ordering::Acquire) == CLOSING {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.states[self.index].store(FREE, Ordering::Release);
        self.address.connections.give_back();
        let mut table = self.slots.table();
        table.addresses[self.index] = None;
        table.free.push(self.index);
    }
}

fn ip_of(share: &Share) -> Option<IpAddr> {
    match share.holder {
        Holder::Address(ip) => Some(ip),
        Holder::Principal(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Shares;

    fn address(shares: &Shares, ip: &str) -> Arc<Share> {
        shares.find(Holder::address(ip.parse().unwrap()))
    }

    /// Whether the connection is told to close within 50 ms.
    async fn is_told(slot: &Slot) -> bool {
        tokio::time::timeout(Duration::from_millis(50), slot.told_to_close()).await.is_ok()
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_one_that_was_idle_longest() {
        let (slots, shares) = (Arc::new(Slots::new(3, 3)), Shares::new(1));
        let local = address(&shares, "127.0.0.1");
        let (busy, old, young) = (
            slots.take(local.clone()).await,
            slots.take(local.clone()).await,
            slots.take(local.clone()).await,
        );
        assert!(busy.begin());
        let closing = async {
            old.told_to_close().await;
            assert!(!old.begin(), "a closing connection accepts no request");
            drop(old);
        };
        let (newcomer, ()) = tokio::join!(slots.take(local.clone()), closing);
        assert_eq!((slots.open(), slots.closed()), (3, 1));
        assert!(!is_told(&newcomer).await, "an earlier notification must not close the new connection");
        assert!(!is_told(&busy).await && !is_told(&young).await);
        drop((busy, young, newcomer));
        assert_eq!((slots.open(), local.connections.get()), (0, 0));
    }

    #[tokio::test]
    async fn an_address_over_its_share_loses_its_own_connections_first() {
        let (slots, shares) = (Arc::new(Slots::new(3, 2)), Shares::new(1));
        let (hog, other) = (address(&shares, "10.0.0.1"), address(&shares, "10.0.0.2"));
        let oldest = slots.take(other.clone()).await;
        let (first, second) = (slots.take(hog.clone()).await, slots.take(hog.clone()).await);
        let closing = async {
            first.told_to_close().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(slots.take(hog.clone()), closing);
        assert!(!is_told(&oldest).await, "another address keeps its connections");
        let closing = async {
            oldest.told_to_close().await;
            drop(oldest);
        };
        let (_newcomer, ()) = tokio::join!(slots.take(other), closing);
        drop((second, third));
    }
}
