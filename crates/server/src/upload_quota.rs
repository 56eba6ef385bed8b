//! How much of what clients have sent is held in memory at a time, all of them together. What does not fit is refused and can
//! be sent again: nobody waits for somebody else who sends slowly.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sapwood::{Principal, Scope, TenantId};

use crate::problem::{Problem, Result};

/// After how long it is worth another try.
const RETRY_AFTER_S: u64 = 5;
/// Nobody gets more than one of so many parts of the room, so that there is some for others.
const PARTS: usize = 2;

type Who = (TenantId, Principal);

pub struct UploadQuota {
    held: Mutex<Holdings>,
    bytes_max: usize,
}

#[derive(Default)]
struct Holdings {
    bytes: usize,
    /// Of everybody who holds anything.
    of_each: HashMap<Who, usize>,
}

/// What one of them holds; dropping this gives it back.
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
                "the server holds too much at the moment: send it again",
                RETRY_AFTER_S,
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back all but this much.
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
    fn what_is_given_back_can_be_had_again() {
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
    fn nobody_gets_all_of_it() {
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
