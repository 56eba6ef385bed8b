//! State shared by all handlers: the engine, the authenticator, the limits, the counters, and the running turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sapwood::core::agent::Agent;
use sapwood::core::port::clock::Clock;
use sapwood::core::port::store::{AuditAction, AuditNote};
use sapwood::core::port::tool::FsScope;
use sapwood::core::project::summary::Summary;
use sapwood::effects::secret::Secret;
use sapwood::engine::directory::READ_AUDIT_WINDOW_MS;
use sapwood::engine::flow::RunningFlow;
use sapwood::engine::turn::Running;
use sapwood::{Engine, Principal, Scope, SessionId, SystemClock, TenantId};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::admission::Admission;
use crate::auth::{Authenticator, Caller};
use crate::byte_quota::ByteQuota;
use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::problem::{Problem, Result};
use crate::projection_slots::ProjectionSlots;
use crate::rate::Rates;
use crate::request_id::RequestId;
use crate::settings::Settings;

/// Period for which one audit line covers reads of the same session by the same principal.
const READ_AUDIT_TTL: Duration = Duration::from_millis(READ_AUDIT_WINDOW_MS as u64);
/// Maximum number of cached audited reads. At this limit the cache is cleared, and reads are audited again.
const AUDITED_READS_MAX: usize = 16_384;
/// Maximum documents parsed concurrently. They are fully received before parsing, so slow clients do not block others.
const DOCUMENTS_MAX: usize = 4;
/// Capacity of the in-memory upload buffer, in uploads of the largest size.
const BUFFERED_UPLOADS_MAX: usize = 4;
/// Maximum concurrent uploads that are streamed into the store. Only one chunk of each upload is in memory.
const STREAMED_UPLOADS_MAX: usize = 32;
/// One principal gets at most 1/`STREAMED_UPLOAD_PARTS` of the streamed uploads.
const STREAMED_UPLOAD_PARTS: usize = 2;

/// A trigger that can be fired over HTTP.
pub struct ServedTrigger {
    pub installed: sapwood::engine::trigger::InstalledTrigger,
    /// The secret with which callers without a key sign requests. If `None`, firing the trigger requires a key.
    pub secret: Option<Secret>,
}

/// Which principal's access to which session has a recent audit line.
#[derive(Default)]
struct AuditedCache(Mutex<HashMap<AccessKey, Instant>>);

type AccessKey = (TenantId, Principal, SessionId);

impl AuditedCache {
    fn contains(&self, key: &AccessKey) -> bool {
        let audited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        audited.get(key).is_some_and(|at| at.elapsed() < READ_AUDIT_TTL)
    }

    /// Returns whether there was no recent line.
    fn insert(&self, key: AccessKey) -> bool {
        let mut audited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if audited.len() >= AUDITED_READS_MAX {
            audited.clear();
        }
        audited.insert(key, Instant::now()).is_none_or(|at| at.elapsed() >= READ_AUDIT_TTL)
    }
}

#[derive(Clone)]
pub struct State(Arc<Inner>);

pub struct Inner {
    pub engine: Engine,
    pub settings: Settings,
    pub auth: Authenticator,
    pub metrics: Metrics,
    pub admission: Arc<Admission>,
    pub rates: Rates,
    pub documents: Arc<Semaphore>,
    pub upload_quota: Arc<ByteQuota>,
    pub body_quota: Arc<ByteQuota>,
    pub projections: ProjectionSlots,
    pub readiness: Readiness,
    pub streamed_uploads: Semaphore,
    agents: BTreeMap<String, Agent>,
    /// Starts at a random number, so that request ids of several servers differ.
    requests: AtomicU64,
    /// Number of turns and flow runs that run in this process.
    running: watch::Sender<usize>,
    stopping: watch::Sender<bool>,
    /// Whether the server is about to stop and still accepts requests.
    draining: AtomicBool,
    /// Reads of other users' sessions, and openings of existing sessions, that were audited recently.
    reads: AuditedCache,
    opened: AuditedCache,
    triggers: OnceLock<Vec<ServedTrigger>>,
}

impl std::ops::Deref for State {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl State {
    pub fn new(engine: Engine, auth: Authenticator, settings: Settings, agents: Vec<Agent>) -> Self {
        // Agents with access to the whole file system are not available over the network.
        let served = agents.into_iter().filter(|agent| agent.fs_scope != FsScope::Full);
        Self(Arc::new(Inner {
            rates: Rates::new(settings.rate),
            engine,
            auth,
            metrics: Metrics::default(),
            admission: Arc::new(Admission::new(&settings, STREAMED_UPLOADS_MAX / STREAMED_UPLOAD_PARTS)),
            documents: Arc::new(Semaphore::new(DOCUMENTS_MAX)),
            readiness: Readiness::default(),
            upload_quota: Arc::new(ByteQuota::new(
                BUFFERED_UPLOADS_MAX.saturating_mul(settings.upload_bytes_max),
            )),
            body_quota: Arc::new(ByteQuota::new(
                settings.body_bytes_in_flight_max.max(2 * settings.body_bytes_max),
            )),
            projections: ProjectionSlots::new(&settings),
            streamed_uploads: Semaphore::new(STREAMED_UPLOADS_MAX),
            requests: AtomicU64::new(SystemClock.random() as u64),
            agents: served.map(|agent| (agent.id.clone(), agent)).collect(),
            running: watch::Sender::new(0),
            stopping: watch::Sender::new(false),
            draining: AtomicBool::new(false),
            reads: AuditedCache::default(),
            opened: AuditedCache::default(),
            triggers: OnceLock::new(),
            settings,
        }))
    }

    /// Counts a turn as running until it has ended or waits for a person. The returned task ends at the same time.
    pub fn track_turn(&self, running: Running) -> JoinHandle<()> {
        let state = self.clone();
        self.running.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            let session = running.session.clone();
            if let Err(error) = running.ended().await {
                tracing::warn!(%session, %error, "a turn was interrupted; it can be resumed");
            }
            state.running.send_modify(|count| *count -= 1);
        })
    }

    /// Counts a flow run as running until it has ended or waits for a person.
    pub fn track_flow(&self, running: RunningFlow) {
        let state = self.clone();
        self.running.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            let run = running.run.clone();
            if let Err(error) = running.ended().await {
                tracing::warn!(%run, %error, "a flow run was interrupted; it can be resumed");
            }
            state.running.send_modify(|count| *count -= 1);
        });
    }

    /// Resumes the flow run in which this session is a role. Returns false if no run was resumed.
    async fn resume_run_of(&self, scope: &Scope, session: &SessionId) -> bool {
        let run = match self.engine.flows().run_of(scope, session).await {
            Ok(Some(run)) => run,
            Ok(None) | Err(_) => return false,
        };
        match self.engine.flows().resume(scope, &run).await {
            Ok(Some(running)) => {
                self.track_flow(running);
                true
            }
            Ok(None) => false,
            Err(error) if matches!(error.code(), "session.leased" | "flow.not_found") => false,
            Err(error) => {
                tracing::warn!(%run, %error, "failed to resume a flow run");
                false
            }
        }
    }
}

impl Inner {
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    pub fn agent(&self, id: &str) -> Result<&Agent> {
        let unknown = || Problem::new("agent.not_found", format!("no agent `{:.64}`", id));
        self.agents.get(id).ok_or_else(unknown)
    }

    /// Sets the triggers that can be fired over HTTP. Only the first call has an effect.
    pub fn serve_triggers(&self, triggers: Vec<ServedTrigger>) {
        let _ = self.triggers.set(triggers);
    }

    pub fn triggers(&self) -> &[ServedTrigger] {
        self.triggers.get().map(Vec::as_slice).unwrap_or_default()
    }

    pub fn next_request_id(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a token from the caller's rate limit. Local callers are not limited.
    pub fn check_rate(&self, caller: &Caller) -> Result<()> {
        if caller.is_local() {
            return Ok(());
        }
        self.rates.take(&caller.scope, Instant::now()).map_err(|seconds| {
            self.metrics.limited.fetch_add(1, Ordering::Relaxed);
            let detail = format!("too many requests: retry after {seconds} s");
            Problem::new("rate.limited", detail).retry_after(seconds)
        })
    }

    pub fn turns_running(&self) -> usize {
        *self.running.borrow()
    }

    pub async fn turns_ended(&self) {
        let _ = self.running.subscribe().wait_for(|count| *count == 0).await;
    }

    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Reports the server as not ready, while it still accepts requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining_or_stopping(&self) -> bool {
        self.draining.load(Ordering::SeqCst) || self.is_stopping()
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Writes an audit line if the caller does not own the session. One line covers all reads within `READ_AUDIT_TTL`.
    pub async fn audit_read(&self, caller: &Caller, session: &SessionId) -> Result<()> {
        let key = (caller.scope.tenant.clone(), caller.scope.principal.clone(), session.clone());
        if self.reads.contains(&key) {
            return Ok(());
        }
        if self.engine.directory().summary(&caller.scope, session).await?.owner != caller.scope.principal {
            let note = AuditNote { action: AuditAction::Read, session: Some(session.clone()), detail: None };
            self.engine.directory().write_audit(&caller.scope, note).await?;
        }
        self.reads.insert(key);
        Ok(())
    }

    /// Writes an audit line for opening an existing session to follow or continue it. One line covers all openings
    /// within `READ_AUDIT_TTL`. If the store is read-only or full, the session is opened without the line: reads by
    /// other users are audited separately.
    pub async fn audit_open(&self, caller: &Caller, session: &SessionId) -> Result<()> {
        let key = (caller.scope.tenant.clone(), caller.scope.principal.clone(), session.clone());
        if !self.opened.insert(key) {
            return Ok(());
        }
        match self.engine.sessions().note_open(&caller.scope, session).await {
            Err(error) if matches!(error.code(), "store.read_only" | "store.disk_full") => Ok(()),
            noted => Ok(noted?),
        }
    }

    /// Audits the sessions of a listed page. Writes the lines concurrently, so that they share one commit.
    pub async fn audit_listed(&self, caller: &Caller, shown: &[Summary]) -> Result<()> {
        let others = shown.iter().filter(|summary| summary.owner != caller.scope.principal);
        for audited in join_all(others.map(|summary| self.audit_read(caller, &summary.id))).await {
            match audited {
                // The session was erased in the meantime, so no audit line is needed.
                Err(problem) if problem.code == "session.not_found" => {}
                audited => audited?,
            }
        }
        Ok(())
    }

    /// Resumes a session's turn in the background, after an approval, a cancellation or queued input.
    pub fn spawn_resume(state: &State, scope: Scope, session: SessionId) {
        let state = state.clone();
        tokio::spawn(async move {
            if state.resume_run_of(&scope, &session).await {
                return;
            }
            match state.engine.turns().resume(&scope, &session, sapwood::engine::turn::OnWait::Leave).await {
                Ok(Some(running)) => drop(state.track_turn(running)),
                Ok(None) => {}
                // Another process already runs the turn.
                Err(error) if error.code() == "session.leased" => {}
                Err(error) => tracing::warn!(%session, %error, "failed to resume a turn"),
            }
        });
    }
}
