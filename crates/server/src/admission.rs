//! Admission control. All requests in flight share one limit, and each principal gets a share of that limit, so that
//! one caller never locks out the others. Until a request is authenticated, it counts toward its client address.
//! Additional reserves exist for operators, for the health and metrics routes, and for authenticating callers while
//! the server is full. An open stream counts as a request in flight.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::share::{Count, Holder, Share, Shares};
use crate::slots::{Slot, Slots};
use crate::state::Settings;

/// Suggested retry delay.
const RETRY_AFTER_S: u64 = 5;
/// By default, one principal gets 1/`REQUEST_PARTS` of the requests in flight.
const REQUEST_PARTS: usize = 2;
/// By default, one principal gets 1/`STREAM_PARTS` of the requests in flight for streams.
const STREAM_PARTS: usize = 4;
/// An address with more than 1/`ADDRESS_PARTS` of the connections has its connections closed first.
const ADDRESS_PARTS: usize = 2;
/// A reserve of 1/`PROBATION_PARTS` of the connections exists for requests that are being authenticated, and another
/// reserve of the same size for connections that have not sent their request yet.
const PROBATION_PARTS: usize = 16;
const PROBATION_MIN: usize = 32;
const PROBATION_MAX: usize = 512;
/// Maximum requests in flight to `/readyz` and `/metrics` while the server is full.
const READINESS_MAX: usize = 32;
const METRICS_MAX: usize = 16;

/// The fraction of the process's file descriptors that connections may use. The store needs the others.
const FILE_PARTS: (usize, usize) = (3, 4);
/// Minimum number of connections, even if there are too few file descriptors.
const CONNECTIONS_MIN: usize = 16;

impl Settings {
    /// Returns the connection limit for this many file descriptors: at most `connections_max`.
    pub fn connections_max_for(&self, files_max: usize) -> usize {
        let (some, all) = FILE_PARTS;
        let slots = (files_max / all).saturating_mul(some);
        let beside = self.operate_connections_reserved + 2 * PROBATION_MIN + READINESS_MAX + METRICS_MAX;
        // The two probation reserves add 2/`PROBATION_PARTS` to the connections.
        let fitting = slots.saturating_sub(beside) / (PROBATION_PARTS + 2) * PROBATION_PARTS;
        self.connections_max.min(fitting.max(CONNECTIONS_MIN))
    }
}

/// The limits derived from the settings.
#[derive(Debug, Clone, Copy)]
struct Limits {
    requests: usize,
    requests_per_principal: usize,
    streams_per_principal: usize,
    operate: usize,
    probation: usize,
}

impl Limits {
    fn of(settings: &Settings) -> Self {
        let requests = settings.connections_max.max(1);
        let part = |set: Option<usize>, parts| set.unwrap_or(requests / parts).clamp(1, requests);
        Self {
            requests,
            requests_per_principal: part(settings.connections_per_principal_max, REQUEST_PARTS),
            streams_per_principal: part(settings.streams_per_principal_max, STREAM_PARTS),
            operate: settings.operate_connections_reserved,
            probation: (requests / PROBATION_PARTS).clamp(PROBATION_MIN, PROBATION_MAX),
        }
    }

    /// Exceeds the maximum number of requests in flight, so that a new connection always gets a slot.
    fn slots(&self) -> usize {
        self.requests + self.operate + 2 * self.probation + READINESS_MAX + METRICS_MAX
    }
}

pub struct Admission {
    limits: Limits,
    slots: Arc<Slots>,
    shares: Shares,
    requests: Count,
    operate: Count,
    operate_streams: Count,
    probation: Count,
    readiness: Count,
    metrics: Count,
    over_share: AtomicU64,
    full: AtomicU64,
}

/// Counters for the metrics.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    pub connections: u64,
    pub connections_closed: u64,
    pub over_share: u64,
    pub full: u64,
}

impl Admission {
    pub fn new(settings: &Settings, uploads_max: usize) -> Self {
        let limits = Limits::of(settings);
        let per_address = settings.connections_per_address_max.unwrap_or(limits.requests / ADDRESS_PARTS);
        Self {
            slots: Arc::new(Slots::new(limits.slots(), per_address.max(1))),
            limits,
            shares: Shares::new(uploads_max),
            requests: Count::default(),
            operate: Count::default(),
            operate_streams: Count::default(),
            probation: Count::default(),
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

    pub fn share_of(&self, caller: &Caller) -> Arc<Share> {
        self.shares.find(Holder::principal(&caller.scope))
    }

    /// Takes a stream permit from the caller's share.
    pub fn open_stream(self: &Arc<Self>, caller: &Caller) -> Result<StreamPermit> {
        let (admission, share) = (self.clone(), self.share_of(caller));
        if share.streams.take(self.limits.streams_per_principal) {
            return Ok(StreamPermit { admission, share: Some(share) });
        }
        if caller.operates() && self.operate_streams.take(self.limits.operate) {
            return Ok(StreamPermit { admission, share: None });
        }
        Err(self.refuse(Why::OverShare { what: "streams", max: self.limits.streams_per_principal }))
    }

    pub fn numbers(&self) -> Numbers {
        Numbers {
            connections: self.slots.open() as u64,
            connections_closed: self.slots.closed(),
            over_share: self.over_share.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
        }
    }

    fn refuse(&self, why: Why) -> Problem {
        match why {
            Why::Full => {
                self.full.fetch_add(1, Ordering::Relaxed);
                Problem::full("the server has reached its limit on requests in flight", RETRY_AFTER_S)
            }
            Why::OverShare { what, max } => {
                self.over_share.fetch_add(1, Ordering::Relaxed);
                let detail = format!("at most {max} {what} may be open per caller: close some or wait");
                Problem::new("share.exceeded", detail).retry_after(RETRY_AFTER_S)
            }
        }
    }

    /// Returns the counter and the size of a reserve.
    fn reserve(&self, reserve: Reserve) -> (&Count, usize) {
        match reserve {
            Reserve::Operate => (&self.operate, self.limits.operate),
            Reserve::Probation => (&self.probation, self.limits.probation),
            Reserve::Readiness => (&self.readiness, READINESS_MAX),
            Reserve::Metrics => (&self.metrics, METRICS_MAX),
        }
    }
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy)]
enum Why {
    Full,
    OverShare { what: &'static str, max: usize },
}

/// Capacity in addition to the principals' shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserve {
    Operate,
    Probation,
    Readiness,
    Metrics,
}

/// An open connection. It has at most one request in flight.
pub struct Connection {
    admission: Arc<Admission>,
    slot: Slot,
    /// The share of the latest principal. Most connections serve only one principal.
    principal: Mutex<Option<Arc<Share>>>,
}

impl Connection {
    /// Admits an unauthenticated request. Also returns a permit on failure, for sending the error response.
    pub fn begin(self: &Arc<Self>, path: &str) -> (Permit, Result<()>) {
        let mut permit = Permit { connection: self.clone(), hold: Hold::Nothing };
        let admission = &self.admission;
        if !self.slot.begin() {
            return (permit, Err(admission.refuse(Why::Full)));
        }
        // The liveness response is immediate and needs no capacity.
        if path == "/healthz" {
            return (permit, Ok(()));
        }
        let reserve = match path {
            "/readyz" => Reserve::Readiness,
            "/metrics" => Reserve::Metrics,
            _ => Reserve::Probation,
        };
        let share = self.slot.address.clone();
        let begun = match permit.take_request(&share) {
            Err(_) if permit.take_reserve(reserve) => Ok(()),
            begun => begun.map_err(|why| admission.refuse(why)),
        };
        (permit, begun)
    }

    /// Resolves when the connection must close to free its slot.
    pub async fn told_to_close(&self) {
        self.slot.told_to_close().await;
    }

    fn share_of(&self, caller: &Caller) -> Arc<Share> {
        let mut known = self.principal.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(share) if share.holder.is_of(&caller.scope) => share.clone(),
            _ => known.insert(self.admission.share_of(caller)).clone(),
        }
    }
}

/// The capacity that a request in flight uses.
enum Hold {
    Nothing,
    /// One request in flight, counted in this share.
    Request(Arc<Share>),
    Reserve(Reserve),
    /// The capacity is released when the last clone of this permit is dropped.
    Lent {
        _permit: Arc<Permit>,
    },
}

/// Permission for one request in flight. Dropping it ends the request.
pub struct Permit {
    connection: Arc<Connection>,
    hold: Hold,
}

impl Permit {
    /// Moves the request from the share of its address to the share of the authenticated caller.
    pub fn admit(&mut self, caller: &Caller) -> Result<()> {
        let share = self.connection.share_of(caller);
        match self.take_request(&share) {
            Err(_) if caller.operates() && self.take_reserve(Reserve::Operate) => Ok(()),
            taken => taken.map_err(|why| self.connection.admission.refuse(why)),
        }
    }

    /// Admits a request to a route without authentication.
    pub fn admit_unknown(&self) -> Result<()> {
        match self.hold {
            Hold::Reserve(Reserve::Probation) => Err(self.connection.admission.refuse(Why::Full)),
            Hold::Nothing | Hold::Request(_) | Hold::Reserve(_) | Hold::Lent { .. } => Ok(()),
        }
    }

    /// Shares the permit with a connection that outlives its request, such as a WebSocket. The request stays in flight
    /// until both permits are dropped.
    pub fn lend(&mut self) -> Arc<Permit> {
        let hold = std::mem::replace(&mut self.hold, Hold::Nothing);
        let lent = Arc::new(Permit { connection: self.connection.clone(), hold });
        self.hold = Hold::Lent { _permit: lent.clone() };
        lent
    }

    /// Counts the request in this share and releases the current hold.
    fn take_request(&mut self, share: &Arc<Share>) -> Result<(), Why> {
        let admission = &self.connection.admission;
        let max = admission.limits.requests_per_principal;
        let has_one = matches!(self.hold, Hold::Request(_));
        if !has_one && !admission.requests.take(admission.limits.requests) {
            return Err(Why::Full);
        }
        if !share.requests.take(max) {
            if !has_one {
                admission.requests.give_back();
            }
            return Err(Why::OverShare { what: "connections", max });
        }
        match std::mem::replace(&mut self.hold, Hold::Request(share.clone())) {
            Hold::Request(before) => before.requests.give_back(),
            before => self.give_back(&before),
        }
        Ok(())
    }

    /// Counts the request in a reserve and releases the current hold.
    fn take_reserve(&mut self, reserve: Reserve) -> bool {
        let (admission, address) = (&self.connection.admission, &self.connection.slot.address);
        // One address gets at most half of the probation reserve.
        let is_probation = reserve == Reserve::Probation;
        if is_probation && !address.probation.take(admission.limits.probation / 2) {
            return false;
        }
        let (count, max) = admission.reserve(reserve);
        if !count.take(max) {
            if is_probation {
                address.probation.give_back();
            }
            return false;
        }
        let before = std::mem::replace(&mut self.hold, Hold::Reserve(reserve));
        self.give_back(&before);
        true
    }

    fn give_back(&self, hold: &Hold) {
        let admission = &self.connection.admission;
        match hold {
            Hold::Nothing | Hold::Lent { .. } => {}
            Hold::Request(share) => {
                share.requests.give_back();
                admission.requests.give_back();
            }
            Hold::Reserve(reserve) => {
                admission.reserve(*reserve).0.give_back();
                if *reserve == Reserve::Probation {
                    self.connection.slot.address.probation.give_back();
                }
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !matches!(self.hold, Hold::Lent { .. }) {
            self.give_back(&self.hold);
            self.connection.slot.end();
        }
    }
}

/// Permission for one open stream. Dropping it frees the stream's capacity.
pub struct StreamPermit {
    admission: Arc<Admission>,
    /// `None` if the stream uses the operator reserve.
    share: Option<Arc<Share>>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        match &self.share {
            Some(share) => share.streams.give_back(),
            None => self.admission.operate_streams.give_back(),
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
            let slots = Limits::of(&settings).slots();
            assert!(slots <= files / 4 * 3, "{slots} of {files}");
        }
        assert_eq!(Settings::default().connections_max_for(1_000_000), 8_192);
        assert_eq!(Settings::default().connections_max_for(0), CONNECTIONS_MIN);
    }
}
