//! Admission control. All requests in flight share one limit, and each principal gets a share of that limit, so that
//! one caller never locks out the others. Until a request is authenticated, it counts toward its client address.
//! Additional reserves exist for operators, for the health and metrics routes, and for authenticating callers while
//! the server is full. An open stream counts as a request in flight.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::routes::{HEALTH, METRICS, READINESS};
use crate::settings::Settings;
use crate::share::{Count, Holder, ReachedLimit, ResourceShare, ResourceShares, ShareLimits};
use crate::slots::{Slot, Slots};

/// Suggested retry delay.
const RETRY_AFTER_S: u64 = 5;
/// By default, one principal gets 1/`REQUEST_PARTS` of the requests in flight.
const REQUEST_PARTS: usize = 2;
/// By default, one principal gets 1/`STREAM_PARTS` of the requests in flight for streams.
const STREAM_PARTS: usize = 4;
/// By default, a new connection replaces idle ones of its own address first if that address has as many connections as
/// 1/`ADDRESS_PARTS` of the requests in flight.
const ADDRESS_PARTS: usize = 2;
/// 1/`AUTH_RESERVE_PARTS` of the connections is reserved for requests that are being authenticated. Another reserve of
/// the same size is for connections that have not sent their request yet.
const AUTH_RESERVE_PARTS: usize = 16;
const AUTH_RESERVE_MIN: usize = 32;
const AUTH_RESERVE_MAX: usize = 512;
/// Maximum requests in flight to `/readyz` and `/metrics` while the server is full.
const READINESS_MAX: usize = 32;
const METRICS_MAX: usize = 16;

/// The fraction of the process's file descriptors that connections may use. The store needs the rest.
const FILE_PARTS: (usize, usize) = (3, 4);
/// Minimum number of connections, even if there are too few file descriptors.
const CONNECTIONS_MIN: usize = 16;

impl Settings {
    /// Returns the connection limit for this many file descriptors: at most `connections_max`.
    pub fn connections_max_for(&self, files_max: usize) -> usize {
        let (some, all) = FILE_PARTS;
        let slots = (files_max / all).saturating_mul(some);
        let reserved = self.operate_connections_reserved + 2 * AUTH_RESERVE_MIN + READINESS_MAX + METRICS_MAX;
        // The two reserves for unauthenticated clients add 2/`AUTH_RESERVE_PARTS` to the connections.
        let fitting = slots.saturating_sub(reserved) / (AUTH_RESERVE_PARTS + 2) * AUTH_RESERVE_PARTS;
        self.connections_max.min(fitting.max(CONNECTIONS_MIN))
    }
}

/// The limits derived from the settings.
#[derive(Debug, Clone, Copy)]
struct AdmissionLimits {
    requests: usize,
    requests_per_share: ShareLimits,
    streams_per_share: ShareLimits,
    operate: usize,
    authenticating: usize,
}

impl AdmissionLimits {
    fn of(settings: &Settings) -> Self {
        let requests = settings.connections_max.max(1);
        let part = |set: Option<usize>, parts| set.unwrap_or(requests / parts).clamp(1, requests);
        Self {
            requests,
            requests_per_share: ShareLimits {
                per_principal: part(settings.connections_per_principal_max, REQUEST_PARTS),
                per_tenant: settings.connections_per_tenant_max,
            },
            streams_per_share: ShareLimits {
                per_principal: part(settings.streams_per_principal_max, STREAM_PARTS),
                per_tenant: settings.streams_per_tenant_max,
            },
            operate: settings.operate_connections_reserved,
            authenticating: (requests / AUTH_RESERVE_PARTS).clamp(AUTH_RESERVE_MIN, AUTH_RESERVE_MAX),
        }
    }

    /// Returns the number of connection slots. It exceeds the maximum number of requests in flight, so that a new
    /// connection always gets a slot.
    fn slots(&self) -> usize {
        self.requests + self.operate + 2 * self.authenticating + READINESS_MAX + METRICS_MAX
    }
}

pub struct Admission {
    limits: AdmissionLimits,
    slots: Arc<Slots>,
    shares: ResourceShares,
    requests: Count,
    operate: Count,
    operate_streams: Count,
    authenticating: Count,
    readiness: Count,
    metrics: Count,
    over_share: AtomicU64,
    full: AtomicU64,
}

/// Counters for the metrics.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionCounters {
    pub connections: u64,
    pub connections_closed: u64,
    pub over_share: u64,
    pub full: u64,
}

impl Admission {
    pub fn new(settings: &Settings, uploads_max: usize) -> Self {
        let limits = AdmissionLimits::of(settings);
        let per_address = settings.connections_per_address_max.unwrap_or(limits.requests / ADDRESS_PARTS);
        Self {
            slots: Arc::new(Slots::new(limits.slots(), per_address.max(1))),
            limits,
            shares: ResourceShares::new(uploads_max, settings.projections_per_principal_max.max(1)),
            requests: Count::default(),
            operate: Count::default(),
            operate_streams: Count::default(),
            authenticating: Count::default(),
            readiness: Count::default(),
            metrics: Count::default(),
            over_share: AtomicU64::new(0),
            full: AtomicU64::new(0),
        }
    }

    /// Takes a slot for an accepted connection.
    pub async fn connect(self: &Arc<Self>, ip: std::net::IpAddr) -> Arc<Connection> {
        let slot = self.slots.take(self.shares.find(Holder::address(ip))).await;
        Arc::new(Connection { admission: self.clone(), slot, principal: Mutex::default() })
    }

    pub async fn all_closed(&self) {
        self.slots.all_closed().await;
    }

    pub fn share_of(&self, caller: &Caller) -> Arc<ResourceShare> {
        self.shares.find(Holder::principal(&caller.scope))
    }

    /// Takes a stream permit from the caller's share.
    pub fn open_stream(self: &Arc<Self>, caller: &Caller) -> Result<StreamPermit> {
        let (admission, share) = (self.clone(), self.share_of(caller));
        let limit = match share.take_stream(self.limits.streams_per_share) {
            Ok(()) => return Ok(StreamPermit { admission, share: Some(share) }),
            Err(limit) => limit,
        };
        if caller.has_operate_grant() && self.operate_streams.take(self.limits.operate) {
            return Ok(StreamPermit { admission, share: None });
        }
        Err(self.reject(RejectReason::OverShare { what: "streams", limit }))
    }

    /// Counts a projection that is refused because too many run for the caller.
    pub fn reject_projection(&self, max: usize) -> Problem {
        self.over_share.fetch_add(1, Ordering::Relaxed);
        let detail = format!("at most {max} projections and exports may run per caller: retry later");
        Problem::new("share.exceeded", detail).retry_after(RETRY_AFTER_S)
    }

    pub fn counters(&self) -> AdmissionCounters {
        AdmissionCounters {
            connections: self.slots.open() as u64,
            connections_closed: self.slots.closed(),
            over_share: self.over_share.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
        }
    }

    fn reject(&self, reason: RejectReason) -> Problem {
        match reason {
            RejectReason::Full => {
                self.full.fetch_add(1, Ordering::Relaxed);
                Problem::full("the server has reached its limit on requests in flight", RETRY_AFTER_S)
            }
            RejectReason::OverShare { what, limit } => {
                self.over_share.fetch_add(1, Ordering::Relaxed);
                let (max, holder) = match limit {
                    ReachedLimit::Principal(max) => (max, "caller"),
                    ReachedLimit::Tenant(max) => (max, "tenant"),
                };
                let detail = format!("at most {max} {what} may be open per {holder}: close some or wait");
                Problem::new("share.exceeded", detail).retry_after(RETRY_AFTER_S)
            }
        }
    }

    fn reserve(&self, reserve: Reserve) -> (&Count, usize) {
        match reserve {
            Reserve::Operate => (&self.operate, self.limits.operate),
            Reserve::Authentication => (&self.authenticating, self.limits.authenticating),
            Reserve::Readiness => (&self.readiness, READINESS_MAX),
            Reserve::Metrics => (&self.metrics, METRICS_MAX),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum RejectReason {
    Full,
    OverShare { what: &'static str, limit: ReachedLimit },
}

/// Capacity in addition to the principals' shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserve {
    Operate,
    Authentication,
    Readiness,
    Metrics,
}

/// An open connection. It has at most one request in flight.
pub struct Connection {
    admission: Arc<Admission>,
    slot: Slot,
    /// The share of the latest principal. Most connections serve only one principal.
    principal: Mutex<Option<Arc<ResourceShare>>>,
}

impl Connection {
    /// Admits a request before it is authenticated. Also returns a permit on failure, for sending the error response.
    pub fn begin(self: &Arc<Self>, path: &str) -> (Permit, Result<()>) {
        let mut permit = Permit { connection: self.clone(), capacity: Capacity::Nothing };
        let admission = &self.admission;
        if !self.slot.begin() {
            return (permit, Err(admission.reject(RejectReason::Full)));
        }
        // The liveness response is immediate and needs no capacity.
        if path == HEALTH {
            return (permit, Ok(()));
        }
        let reserve = match path {
            READINESS => Reserve::Readiness,
            METRICS => Reserve::Metrics,
            _ => Reserve::Authentication,
        };
        let share = self.slot.address.clone();
        let admitted = match permit.take_request(&share) {
            Err(_) if permit.take_reserve(reserve) => Ok(()),
            admitted => admitted.map_err(|reason| admission.reject(reason)),
        };
        (permit, admitted)
    }

    /// Resolves when the server needs the connection's slot.
    pub async fn close_requested(&self) {
        self.slot.close_requested().await;
    }

    fn share_of(&self, caller: &Caller) -> Arc<ResourceShare> {
        let mut cached = self.principal.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(share) if share.holder.is_of(&caller.scope) => share.clone(),
            _ => cached.insert(self.admission.share_of(caller)).clone(),
        }
    }
}

/// The capacity that a request in flight uses.
enum Capacity {
    Nothing,
    /// One request in flight, counted in this share.
    Request(Arc<ResourceShare>),
    Reserve(Reserve),
    /// The capacity is released when the last clone of this permit is dropped.
    Lent {
        _permit: Arc<Permit>,
    },
}

/// Permission for one request in flight. Dropping it ends the request.
pub struct Permit {
    connection: Arc<Connection>,
    capacity: Capacity,
}

impl Permit {
    /// Moves the request from the share of its address to the share of the authenticated caller.
    pub fn admit(&mut self, caller: &Caller) -> Result<()> {
        let share = self.connection.share_of(caller);
        match self.take_request(&share) {
            Err(_) if caller.has_operate_grant() && self.take_reserve(Reserve::Operate) => Ok(()),
            taken => taken.map_err(|reason| self.connection.admission.reject(reason)),
        }
    }

    /// Returns the address that an unauthenticated request counts toward.
    pub fn address(&self) -> &Holder {
        &self.connection.slot.address.holder
    }

    /// Admits a request to a route without authentication.
    pub fn admit_unauthenticated(&self) -> Result<()> {
        match self.capacity {
            Capacity::Reserve(Reserve::Authentication) => {
                Err(self.connection.admission.reject(RejectReason::Full))
            }
            Capacity::Nothing | Capacity::Request(_) | Capacity::Reserve(_) | Capacity::Lent { .. } => Ok(()),
        }
    }

    /// Shares the permit with a connection that outlives its request, such as a WebSocket. The request stays in flight
    /// until both permits are dropped.
    pub fn lend(&mut self) -> Arc<Permit> {
        let capacity = std::mem::replace(&mut self.capacity, Capacity::Nothing);
        let lent = Arc::new(Permit { connection: self.connection.clone(), capacity });
        self.capacity = Capacity::Lent { _permit: lent.clone() };
        lent
    }

    /// Counts the request in this share and releases its current capacity.
    fn take_request(&mut self, share: &Arc<ResourceShare>) -> Result<(), RejectReason> {
        let admission = &self.connection.admission;
        let has_one = matches!(self.capacity, Capacity::Request(_));
        if !has_one && !admission.requests.take(admission.limits.requests) {
            return Err(RejectReason::Full);
        }
        if let Err(limit) = share.take_request(admission.limits.requests_per_share) {
            if !has_one {
                admission.requests.release();
            }
            return Err(RejectReason::OverShare { what: "connections", limit });
        }
        match std::mem::replace(&mut self.capacity, Capacity::Request(share.clone())) {
            Capacity::Request(previous) => previous.release_request(),
            previous => self.release(&previous),
        }
        Ok(())
    }

    /// Counts the request in a reserve and releases its current capacity.
    fn take_reserve(&mut self, reserve: Reserve) -> bool {
        let (admission, address) = (&self.connection.admission, &self.connection.slot.address);
        // One address gets at most half of the authentication reserve.
        let is_authentication = reserve == Reserve::Authentication;
        if is_authentication && !address.authenticating.take(admission.limits.authenticating / 2) {
            return false;
        }
        let (count, max) = admission.reserve(reserve);
        if !count.take(max) {
            if is_authentication {
                address.authenticating.release();
            }
            return false;
        }
        let previous = std::mem::replace(&mut self.capacity, Capacity::Reserve(reserve));
        self.release(&previous);
        true
    }

    fn release(&self, capacity: &Capacity) {
        let admission = &self.connection.admission;
        match capacity {
            Capacity::Nothing | Capacity::Lent { .. } => {}
            Capacity::Request(share) => {
                share.release_request();
                admission.requests.release();
            }
            Capacity::Reserve(reserve) => {
                admission.reserve(*reserve).0.release();
                if *reserve == Reserve::Authentication {
                    self.connection.slot.address.authenticating.release();
                }
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !matches!(self.capacity, Capacity::Lent { .. }) {
            self.release(&self.capacity);
            self.connection.slot.end();
        }
    }
}

/// Permission for one open stream. Dropping it frees the stream's capacity.
pub struct StreamPermit {
    admission: Arc<Admission>,
    /// `None` if the stream uses the operator reserve.
    share: Option<Arc<ResourceShare>>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        match &self.share {
            Some(share) => share.release_stream(),
            None => self.admission.operate_streams.release(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_file_descriptors_for_the_store() {
        for files in [1_024, 4_096, 12_000, 100_000] {
            let mut settings = Settings::default();
            settings.connections_max = settings.connections_max_for(files);
            let slots = AdmissionLimits::of(&settings).slots();
            assert!(slots <= files / 4 * 3, "{slots} of {files}");
        }
        assert_eq!(Settings::default().connections_max_for(1_000_000), 8_192);
        assert_eq!(Settings::default().connections_max_for(0), CONNECTIONS_MIN);
    }
}
