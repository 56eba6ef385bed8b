//! Counts each holder's use of limited resources: connections, requests in flight, streams, uploads, projections. A
//! holder is a principal, its tenant, or an address for unauthenticated requests. A share exists as long as a connection or a stream refers
//! to it, so the number of shares is bounded.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sapwood::{Principal, Scope, TenantId};
use tokio::sync::Semaphore;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Holder {
    Address(IpAddr),
    Principal(TenantId, Principal),
    Tenant(TenantId),
}

impl Holder {
    /// Masks IPv6 addresses to their /64, because one customer usually controls a whole /64.
    pub fn address(ip: IpAddr) -> Self {
        Self::Address(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
            ip => ip,
        })
    }

    pub fn principal(scope: &Scope) -> Self {
        Self::Principal(scope.tenant.clone(), scope.principal.clone())
    }

    pub fn is_of(&self, scope: &Scope) -> bool {
        matches!(self, Self::Principal(tenant, principal)
            if *tenant == scope.tenant && *principal == scope.principal)
    }
}

/// A counter of taken units.
#[derive(Debug, Default)]
pub struct Count(AtomicUsize);

impl Count {
    /// Takes a unit if fewer than `max` are taken.
    pub fn take(&self, max: usize) -> bool {
        let next = |taken: usize| (taken < max).then_some(taken + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
    }

    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

type ShareTable = Mutex<HashMap<Holder, Weak<ResourceShare>>>;

/// The limits of one principal and of its tenant.
#[derive(Debug, Clone, Copy)]
pub struct ShareLimits {
    pub per_principal: usize,
    /// `None`: the tenant has no limit of its own.
    pub per_tenant: Option<usize>,
}

/// The limit that a caller has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedLimit {
    Principal(usize),
    Tenant(usize),
}

/// The resources that one holder has taken.
#[derive(Debug)]
pub struct ResourceShare {
    pub holder: Holder,
    /// The share of the principal's tenant.
    tenant: Option<Arc<ResourceShare>>,
    /// Open connections. Counted only for addresses.
    pub connections: Count,
    /// Requests in flight, including streams.
    pub requests: Count,
    /// Requests of an address that use the authentication reserve while the server is full.
    pub authenticating: Count,
    pub streams: Count,
    /// Permits for uploads that are streamed into the store. Further uploads wait for the holder's other uploads.
    pub uploads: Semaphore,
    /// Permits for projections that are being computed.
    pub projections: Arc<Semaphore>,
    table: Arc<ShareTable>,
}

impl ResourceShare {
    pub fn take_request(&self, limits: ShareLimits) -> Result<(), ReachedLimit> {
        self.take_both(|share| &share.requests, limits)
    }

    pub fn release_request(&self) {
        self.release_both(|share| &share.requests);
    }

    pub fn take_stream(&self, limits: ShareLimits) -> Result<(), ReachedLimit> {
        self.take_both(|share| &share.streams, limits)
    }

    pub fn release_stream(&self) {
        self.release_both(|share| &share.streams);
    }

    /// Takes a unit from this share and from the tenant's share, or from neither.
    fn take_both(&self, count: fn(&Self) -> &Count, limits: ShareLimits) -> Result<(), ReachedLimit> {
        if !count(self).take(limits.per_principal) {
            return Err(ReachedLimit::Principal(limits.per_principal));
        }
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let max = limits.per_tenant.unwrap_or(usize::MAX);
        if !count(tenant).take(max) {
            count(self).release();
            return Err(ReachedLimit::Tenant(max));
        }
        Ok(())
    }

    fn release_both(&self, count: fn(&Self) -> &Count) {
        count(self).release();
        if let Some(tenant) = &self.tenant {
            count(tenant).release();
        }
    }
}

impl Drop for ResourceShare {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have created a new share for this holder in the meantime.
        if table.get(&self.holder).is_some_and(|share| share.strong_count() == 0) {
            table.remove(&self.holder);
        }
    }
}

/// The shares of all holders that use resources.
pub struct ResourceShares {
    table: Arc<ShareTable>,
    uploads_max: usize,
    projections_max: usize,
}

impl ResourceShares {
    pub fn new(uploads_max: usize, projections_max: usize) -> Self {
        Self { table: Arc::default(), uploads_max, projections_max }
    }

    pub fn find(&self, holder: Holder) -> Arc<ResourceShare> {
        let tenant = match &holder {
            Holder::Principal(tenant, _) => Some(self.find_in(Holder::Tenant(tenant.clone()), None)),
            Holder::Address(_) | Holder::Tenant(_) => None,
        };
        self.find_in(holder, tenant)
    }

    fn find_in(&self, holder: Holder, tenant: Option<Arc<ResourceShare>>) -> Arc<ResourceShare> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = table.get(&holder).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(ResourceShare {
            holder: holder.clone(),
            tenant,
            connections: Count::default(),
            requests: Count::default(),
            authenticating: Count::default(),
            streams: Count::default(),
            uploads: Semaphore::new(self.uploads_max),
            projections: Arc::new(Semaphore::new(self.projections_max)),
            table: self.table.clone(),
        });
        table.insert(holder, Arc::downgrade(&share));
        share
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.table.lock().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(user: &str) -> Holder {
        Holder::principal(&Scope::user(TenantId::local(), user.parse().unwrap()))
    }

    #[test]
    fn each_holder_has_one_share_that_is_dropped_with_its_last_reference() {
        let shares = ResourceShares::new(1, 1);
        let (one, two) = (shares.find(holder("ana")), shares.find(holder("ana")));
        assert!(Arc::ptr_eq(&one, &two));
        let bob = shares.find(holder("bob"));
        assert_eq!(shares.len(), 3, "two principals and their tenant");
        drop((one, bob));
        assert_eq!(shares.len(), 2);
        drop(two);
        assert_eq!(shares.len(), 0);
    }

    #[test]
    fn a_refused_unit_counts_neither_for_the_principal_nor_for_the_tenant() {
        let shares = ResourceShares::new(1, 1);
        let (ana, bob) = (shares.find(holder("ana")), shares.find(holder("bob")));
        let limits = ShareLimits { per_principal: 2, per_tenant: Some(3) };
        assert!(ana.take_request(limits).is_ok() && ana.take_request(limits).is_ok());
        assert_eq!(ana.take_request(limits), Err(ReachedLimit::Principal(2)));
        assert!(bob.take_request(limits).is_ok());
        assert_eq!(bob.take_request(limits), Err(ReachedLimit::Tenant(3)));
        ana.release_request();
        assert!(bob.take_request(limits).is_ok());
        assert_eq!(bob.take_request(limits), Err(ReachedLimit::Principal(2)));
    }

    #[test]
    fn addresses_of_one_ipv6_network_have_one_share() {
        let address = |text: &str| Holder::address(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::2:3"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
    }

    #[test]
    fn a_count_stops_at_its_limit_with_concurrent_threads() {
        let count = Count::default();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..100).filter(|_| count.take(50)).count());
            }
        });
        assert_eq!(count.get(), 50);
        count.release();
        assert!(count.take(50) && !count.take(50));
    }
}
