//! Quota for received bytes in memory, shared by all clients: uploads and JSON bodies. A request over the quota is
//! rejected and can be retried, so no client waits for a slower client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::problem::{Problem, Result};
use crate::share::Holder;

/// Suggested retry delay.
const RETRY_AFTER_S: u64 = 5;
/// One principal gets at most 1/`PARTS` of the quota.
const PARTS: usize = 2;

pub struct ByteQuota {
    usage: Mutex<QuotaUsage>,
    bytes_max: usize,
}

#[derive(Default)]
struct QuotaUsage {
    bytes: usize,
    /// Bytes per holder. Holders without bytes are removed.
    per_owner: HashMap<Holder, usize>,
}

/// The quota that one request uses. Dropping the guard releases it.
pub struct QuotaGuard {
    quota: Arc<ByteQuota>,
    owner: Holder,
    bytes: usize,
}

impl ByteQuota {
    pub fn new(bytes_max: usize) -> Self {
        Self { usage: Mutex::default(), bytes_max }
    }

    pub fn guard(self: &Arc<Self>, owner: Holder) -> QuotaGuard {
        QuotaGuard { quota: self.clone(), owner, bytes: 0 }
    }

    fn take(&self, owner: &Holder, bytes: usize) -> bool {
        let mut usage = self.usage();
        let own = usage.per_owner.get(owner).copied().unwrap_or(0).saturating_add(bytes);
        let all = usage.bytes.saturating_add(bytes);
        let fits = all <= self.bytes_max && own <= self.bytes_max / PARTS;
        if fits {
            usage.bytes = all;
            usage.per_owner.insert(owner.clone(), own);
        }
        fits
    }

    fn release(&self, owner: &Holder, bytes: usize) {
        let mut usage = self.usage();
        usage.bytes -= bytes;
        let own = usage.per_owner.get(owner).copied().unwrap_or(0) - bytes;
        match own {
            0 => drop(usage.per_owner.remove(owner)),
            own => drop(usage.per_owner.insert(owner.clone(), own)),
        }
    }

    fn usage(&self) -> MutexGuard<'_, QuotaUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuotaGuard {
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        if !self.quota.take(&self.owner, bytes) {
            return Err(Problem::busy(
                "too many received bytes are in memory at the moment: retry later",
                RETRY_AFTER_S,
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Reduces the used quota to this many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        if freed > 0 {
            self.quota.release(&self.owner, freed);
        }
    }
}

/// The received bytes of a request, counted until its response is ready. Extractors find it in the request.
#[derive(Clone)]
pub struct BodyBytes(Arc<Mutex<QuotaGuard>>);

impl BodyBytes {
    pub fn new(guard: QuotaGuard) -> Self {
        Self(Arc::new(Mutex::new(guard)))
    }

    pub fn grow(&self, bytes: usize) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes)
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(user: &str) -> Holder {
        Holder::Principal("acme".parse().unwrap(), format!("user:{user}").parse().unwrap())
    }

    #[test]
    fn released_bytes_can_be_taken_again() {
        let quota = Arc::new(ByteQuota::new(20));
        let (mut one, mut two) = (quota.guard(holder("ana")), quota.guard(holder("ana")));
        one.grow(6).unwrap();
        assert_eq!(two.grow(5).unwrap_err().code, "server.busy");
        two.grow(4).unwrap();
        one.shrink_to(2);
        two.grow(4).unwrap();
        drop((one, two));
        quota.guard(holder("ana")).grow(10).unwrap();
        assert!(quota.guard(holder("ana")).grow(11).is_err());
        assert!(quota.usage().per_owner.is_empty());
    }

    #[test]
    fn one_principal_cannot_take_the_whole_quota() {
        let quota = Arc::new(ByteQuota::new(20));
        let (mut ana, mut bob, mut eve) =
            (quota.guard(holder("ana")), quota.guard(holder("bob")), quota.guard(holder("eve")));
        ana.grow(10).unwrap();
        assert!(ana.grow(1).is_err());
        bob.grow(10).unwrap();
        assert!(eve.grow(1).is_err());
        drop(ana);
        eve.grow(1).unwrap();
    }
}
