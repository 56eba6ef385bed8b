//! The connections that are open. There is a slot for each; when all are taken, those that have waited longest for a request
//! make room for a new one. So connections that send nothing, and those that are kept alive between requests,
//! never keep a new one out.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::share::{Holder, Share};

/// States of a slot; every greater number is the time since which its connection waits for a request, in microseconds.
const FREE: u64 = 0;
const BUSY: u64 = 1;
const CLOSING: u64 = 2;
const WAITING_MIN: u64 = 3;
/// After how long other connections are looked for, if those that were told to close have not made room.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// When there is no slot, one of so many waiting connections is closed, and not more than this: a flood of new ones must not
/// wait for each of them.
const CLOSED_PARTS: usize = 8;
const CLOSED_MAX: usize = 32;

pub struct Slots {
    /// A permit for each slot.
    permits: Arc<Semaphore>,
    /// In one block of memory: a look for the oldest reads all of them.
    states: Box<[AtomicU64]>,
    /// Rings when the slot's connection is told to close.
    bells: Box<[Notify]>,
    table: Mutex<Table>,
    began: Instant,
    /// Connections one address may have before its own are closed first.
    per_address_max: usize,
    closed: AtomicU64,
}

struct Table {
    free: Vec<usize>,
    /// By slot.
    addresses: Box<[Option<IpAddr>]>,
}

/// A slot that is taken; dropping this frees it.
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

    /// Takes a slot for a new connection of this address. It is never refused: at worst it takes a while until one of the
    /// requests in flight, whose number has a limit of its own, has ended.
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

    /// Tells the connections that have waited longest for a request to close. An address that has more than its share makes
    /// room for itself, if it can.
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

    /// The slots whose connections have waited longest, of one address or of all, and since when.
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

    /// How many connections were closed because others came.
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
    /// A request has come. False if the connection was told to close just before.
    pub fn begin(&self) -> bool {
        let state = &self.slots.states[self.index];
        let since = state.load(Ordering::Acquire);
        since != CLOSING && state.compare_exchange(since, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The request has been answered. The slot of a connection that is told to close stays as it is.
    pub fn end(&self) {
        let state = &self.slots.states[self.index];
        let _ = state.compare_exchange(BUSY, self.slots.now(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Resolves when the connection is told to close.
    pub async fn told_to_close(&self) {
        loop {
            self.slots.bells[self.index].notified().await;
            // It may have rung for the connection that had the slot before.
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

    /// Whether the connection is told to close now.
    async fn is_told(slot: &Slot) -> bool {
        tokio::time::timeout(Duration::from_millis(50), slot.told_to_close()).await.is_ok()
    }

    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_the_one_that_waited_longest() {
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
            assert!(!old.begin(), "it is too late for a request");
            drop(old);
        };
        let (newcomer, ()) = tokio::join!(slots.take(local.clone()), closing);
        assert_eq!((slots.open(), slots.closed()), (3, 1));
        assert!(!is_told(&newcomer).await, "a bell that rang before is not for the newcomer");
        assert!(!is_told(&busy).await && !is_told(&young).await);
        drop((busy, young, newcomer));
        assert_eq!((slots.open(), local.connections.get()), (0, 0));
    }

    #[tokio::test]
    async fn an_address_over_its_share_makes_room_for_itself() {
        let (slots, shares) = (Arc::new(Slots::new(3, 2)), Shares::new(1));
        let (hog, other) = (address(&shares, "10.0.0.1"), address(&shares, "10.0.0.2"));
        let oldest = slots.take(other.clone()).await;
        let (first, second) = (slots.take(hog.clone()).await, slots.take(hog.clone()).await);
        let closing = async {
            first.told_to_close().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(slots.take(hog.clone()), closing);
        assert!(!is_told(&oldest).await, "another address keeps what it has");
        let closing = async {
            oldest.told_to_close().await;
            drop(oldest);
        };
        let (_newcomer, ()) = tokio::join!(slots.take(other), closing);
        drop((second, third));
    }
}
