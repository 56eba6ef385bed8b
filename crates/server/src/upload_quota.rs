//! Quota for uploaded bytes in memory, shared by all clients. An upload over the quota is rejected and can be
//! retried, so no client waits for a slower client.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sapwood::{Principal, Scope, TenantId};

use crate::problem::{Problem, Result};

/// Suggested retry delay.
const RETRY_AFTER_S: u64 = 5;
/// One principal gets at most 1/`PARTS` of the quota.
const PARTS: usize = 2;

type Who = (TenantId, Principal);

pub struct UploadQuota {
    held: Mutex<Holdings>,
    bytes_max: usize,
}

#[derive(Default)]
struct Holdings {
    bytes: usize,
    /// Bytes per principal. Principals without bytes are removed.
    of_each: HashMap<Who, usize>,
}

/// The quota that one upload uses. Dropping the guard releases it.
pub struct QuotaGuard<'r> {
    room: &'r UploadQuota,
    who: Who,
    bytes: usize,
}

impl UploadQuota {
    pub fn new(bytes_max: usize) -> Self {
        Self { held: Mutex::default(), bytes_max }
    }

    pub fn enter(&self, scope: &Scope) -> QuotaGuard<'_> {
        QuotaGuard { room: self, who: (scope.tenant.clone(), scope.principal.clone()), bytes: 0 }
    }

    fn take(&self, who: &Who, bytes: usize) -> bool {
        let mut held = self.held();
        let own = held.of_each.get(who).copied().unwrap_or(0).saturating_add(bytes);
        let all = held.bytes.saturating_add(bytes);
        let fits = all <= self.bytes_max && own <= self.bytes_max / PARTS;
        if fits {
            held.bytes = all;
            held.of_each.insert(who.clone(), own);
        }
        fits
    }

    fn give_back(&self, who: &Who, bytes: usize) {
        let mut held = self.held();
        held.bytes -= bytes;
        let own = held.of_each.get(who).copied().unwrap_or(0) - bytes;
        match own {
            0 => drop(held.of_each.remove(who)),
            own => drop(held.of_each.insert(who.clone(), own)),
        }
    }

    fn held(&self) -> MutexGuard<'_, Holdings> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuotaGuard<'_> {
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        if !self.room.take(&self.who, bytes) {
            return Err(Problem::busy(
                "too many uploads are in memory at the moment: retry later",
                RETRY_AFTER_S,
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Keeps this many bytes and returns the others to the quota.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        if freed > 0 {
            self.room.give_back(&self.who, freed);
        }
    }
}

impl Drop for QuotaGuard<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(user: &str) -> Scope {
        Scope::user("acme".parse().unwrap(), user.parse().unwrap())
    }

    #[test]
    fn released_bytes_can_be_taken_again() {
        let room = UploadQuota::new(20);
        let (mut one, mut two) = (room.enter(&scope("ana")), room.enter(&scope("ana")));
        one.grow(6).unwrap();
        assert_eq!(two.grow(5).unwrap_err().code, "server.busy");
        two.grow(4).unwrap();
        one.shrink_to(2);
        two.grow(4).unwrap();
        drop((one, two));
        room.enter(&scope("ana")).grow(10).unwrap();
        assert!(room.enter(&scope("ana")).grow(11).is_err());
        assert!(room.held().of_each.is_empty());
    }

    #[test]
    fn one_principal_cannot_take_the_whole_quota() {
        let room = UploadQuota::new(20);
        let (mut ana, mut bob, mut eve) =
            (room.enter(&scope("ana")), room.enter(&scope("bob")), room.enter(&scope("eve")));
        ana.grow(10).unwrap();
        assert!(ana.grow(1).is_err());
        bob.grow(10).unwrap();
        assert!(eve.grow(1).is_err());
        drop(ana);
        eve.grow(1).unwrap();
    }
}
