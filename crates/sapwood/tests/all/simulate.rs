//! A simulation: several processes on one store, with faults, freezes, crashes and clock jumps, all derived
//! from a seed. Time is simulated, so minutes pass in milliseconds. The run is deterministic: one thread, a
//! store without threads, seeded ids, and waiters woken in order of arrival. The same seed therefore
//! produces the same log, byte for byte.
//!
//! SAPWOOD_SEED=S replays one seed. SAPWOOD_SEEDS=N runs N seeds, starting at 1 or at SAPWOOD_SEED.
//!
//! Invariants: each started turn ends once, acknowledged input is in the log exactly once, every call has one
//! result, a tool that must not run twice never does, and no write has a stale fence.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sapwood::core::agent::Agent;
use sapwood::core::content::{Json, ToolCall};
use sapwood::core::entry::{Body, Stop, Usage};
use sapwood::core::port::clock::Clock;
use sapwood::core::port::model::{Model, ModelError, ModelFacts, ReplyEvent, ReplyStream, Request};
use sapwood::core::port::store::{Log, Repair};
use sapwood::core::port::tool::{
    Replay, ToolError, ToolGrant, ToolHost, ToolOutput, ToolSpec, Toolbox, Touch,
};
use sapwood::core::project::context::Role;
use sapwood::core::{Entry, Kind, Record, TimestampMs};
use sapwood::engine::Backends;
use sapwood::engine::doctor::diagnose;
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::turn::{OnWait, SendOptions, Sent, TakeoverTask};
use sapwood::store::in_memory::MemoryStore;
use sapwood::store::lease::{ClockReading, LeaseClock};
use sapwood::{Engine, Part, Principal, Scope, Seq, SessionId, TenantId};

use super::faulty::{FaultInjector, FaultyStore, Health, SeededRng};
use super::sabotage::Sabotage;

/// Number of seeds in an ordinary run.
const SEEDS: u64 = 25;
const SESSIONS: u64 = 3;
const PROCESSES: usize = 3;
/// Percentage of store calls that fail.
const FAULTS: u64 = 4;
/// Simulated duration of the faults, and the maximum time until all turns have ended afterwards.
const FAULT_PERIOD: Duration = Duration::from_secs(40);
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(120);
const START_MS: i64 = 1_900_000_000_000;
/// Number of replayed seeds (override with SAPWOOD_REPLAYED), and of replays per seed.
const REPLAYED: u64 = 6;
const REPLAYS: u64 = 2;
/// A long run reports progress after this many seeds.
const SEEDS_PER_REPORT: u64 = 500;

/// The output of a run, line by line: each session's records, the order of writes, and the calls that ran.
pub type RunTrace = Vec<String>;

/// The simulated time, with this process's clock offset.
struct SimClock {
    began: tokio::time::Instant,
    offset_ms: Mutex<i64>,
    rng: SeededRng,
}

impl Clock for SimClock {
    fn now(&self) -> TimestampMs {
        TimestampMs(START_MS + self.began.elapsed().as_millis() as i64 + *self.offset_ms.lock().unwrap())
    }
    fn random(&self) -> u128 {
        self.rng.bits()
    }
}

/// Leases use the simulated time, which is the same for every process.
struct SimLeaseClock(tokio::time::Instant);

impl LeaseClock for SimLeaseClock {
    fn read(&self) -> ClockReading {
        let since_boot_ms = self.0.elapsed().as_millis() as i64;
        ClockReading { boot: "sim".into(), since_boot_ms, wall: TimestampMs(START_MS + since_boot_ms) }
    }
}

/// A model that calls the tool and then reports the result. It streams with pauses.
struct SimModel {
    injector: FaultInjector,
}

#[async_trait::async_trait]
impl Model for SimModel {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        self.injector.delay().await;
        let usage = ReplyEvent::Usage(Usage { input: 10, output: 5, ..Usage::default() });
        let events = match request.messages.last().map(|message| message.role) {
            Some(Role::Tool) => {
                vec![ReplyEvent::Text("done".to_owned()), usage, ReplyEvent::Stop(Stop::Stop)]
            }
            _ => vec![
                ReplyEvent::Text("let me".to_owned()),
                ReplyEvent::CallBegan {
                    index: 0,
                    call_id: format!("call-{:016x}", self.injector.rng.next()),
                    name: "act".to_owned(),
                },
                ReplyEvent::CallInput { index: 0, text: "{}".to_owned() },
                usage,
                ReplyEvent::Stop(Stop::ToolUse),
            ],
        };
        let injector = self.injector.clone();
        let stream =
            futures_util::stream::unfold((events.into_iter(), injector), |(mut events, injector)| async {
                injector.delay().await;
                tokio::time::sleep(Duration::from_millis(injector.rng.below(400))).await;
                events.next().map(|event| (Ok(event), (events, injector)))
            });
        Ok(Box::pin(stream))
    }
    fn facts(&self, _model: &str) -> ModelFacts {
        ModelFacts::default()
    }
    fn names(&self) -> Vec<String> {
        vec!["sim".to_owned()]
    }
}

/// A slow tool that must not run twice.
#[derive(Clone)]
struct SimTools {
    injector: FaultInjector,
    ran: Arc<Mutex<Vec<String>>>,
    specs: Vec<ToolSpec>,
}

#[async_trait::async_trait]
impl ToolHost for SimTools {
    async fn open(&self, _grant: &ToolGrant) -> Result<Arc<dyn Toolbox>, ToolError> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl Toolbox for SimTools {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }
    async fn run(&self, call: &ToolCall) -> ToolOutput {
        self.injector.delay().await;
        self.ran.lock().unwrap().push(call.call_id.clone());
        tokio::time::sleep(Duration::from_millis(self.injector.rng.below(3_000))).await;
        self.injector.delay().await;
        ToolOutput::text("done")
    }
    fn check(&self, _call: &ToolCall) -> Result<(), String> {
        Ok(())
    }
}

/// A server that starts turns and takes over abandoned turns.
struct Process {
    engine: Engine,
    injector: FaultInjector,
    clock: Arc<SimClock>,
    _takeover: TakeoverTask,
}

struct Sim {
    rng: SeededRng,
    began: tokio::time::Instant,
    store: Arc<MemoryStore>,
    written: Arc<Mutex<Vec<(SessionId, Seq, u64)>>>,
    ran: Arc<Mutex<Vec<String>>>,
    scope: Scope,
    sabotage: Option<Arc<Sabotage>>,
}

impl Sim {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let ids = SeededRng::new(seed.wrapping_add(1) << 32);
        let began = tokio::time::Instant::now();
        let lease_clock = Arc::new(SimLeaseClock(began));
        let store = MemoryStore::with_cap(1_000).with_lease_clock(lease_clock);
        Self {
            rng: SeededRng::new(seed),
            sabotage: sabotage.map(Arc::new),
            began,
            store: Arc::new(store.with_random_bits(move || ids.bits())),
            written: Arc::default(),
            ran: Arc::default(),
            scope: Scope::operator(TenantId::local(), Principal::System),
        }
    }

    fn process(&self, faults: u64) -> Process {
        let rng = SeededRng::new(self.rng.next());
        let injector = FaultInjector::new(rng.clone(), faults);
        let offset_ms = Mutex::new(self.rng.below(400) as i64 - 200);
        let clock = Arc::new(SimClock { began: self.began, offset_ms, rng });
        let (inner, written) = (self.store.clone(), self.written.clone());
        let sabotage = self.sabotage.clone();
        let store = Arc::new(FaultyStore { inner, injector: injector.clone(), written, sabotage });
        let spec = ToolSpec {
            name: "act".to_owned(),
            description: String::new(),
            input_schema: Json::parse(r#"{"type":"object"}"#).unwrap(),
            touch: Touch::Acts,
            replay: Replay::Never,
        };
        let tools = SimTools { injector: injector.clone(), ran: self.ran.clone(), specs: vec![spec] };
        let model = Arc::new(SimModel { injector: injector.clone() });
        let backends = Backends { model, tools: Arc::new(tools), default_model: "sim".to_owned() };
        let engine = Engine::new(store, clock.clone()).with_backends(backends);
        let _takeover = TakeoverTask::start(&engine).unwrap();
        Process { engine, injector, clock, _takeover }
    }

    async fn session(&self, number: u64) -> SessionId {
        let engine = Engine::new(self.store.clone(), self.process(0).clock.clone());
        let agent = Agent {
            tools: vec!["act".to_owned()],
            approvals: sapwood::core::policy::ApprovalMode::Auto,
            ..Agent::default_with(Some("sim".into()))
        };
        let mut options = StartOptions { agent, ..StartOptions::default() };
        options.open.id = Some(format!("s{number}").parse().unwrap());
        engine.sessions().start(&self.scope, options).await.unwrap().0
    }

    async fn log(&self, session: &SessionId) -> Vec<Record> {
        self.store.read_after(&self.scope, session, Seq::ZERO, 10_000).await.unwrap()
    }

    /// The final state of a run.
    async fn trace(&self, sessions: &[SessionId]) -> RunTrace {
        let mut trace = Vec::new();
        for session in sessions {
            let line = |record: &Record| {
                format!("{session} {:?} {}", record.meta, String::from_utf8_lossy(&record.body))
            };
            trace.extend(self.log(session).await.iter().map(line));
        }
        trace.extend(self.written.lock().unwrap().iter().map(|written| format!("written {written:?}")));
        trace.extend(self.ran.lock().unwrap().iter().map(|call| format!("ran {call}")));
        trace
    }
}

/// A client that sends one message after another to a session, through any process that answers. It records
/// the acknowledged messages.
async fn client(sim: Arc<Sim>, processes: Arc<Vec<Mutex<Process>>>, session: SessionId) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while sim.began.elapsed() < FAULT_PERIOD {
        let at = sim.rng.below(PROCESSES as u64) as usize;
        let engine = processes[at].lock().unwrap().engine.clone();
        let text = format!("{session}-{number}");
        number += 1;
        let sent = engine.turns().send(&sim.scope, &session, vec![Part::text(&text)], SendOptions::default());
        // A frozen or dead process does not answer, so try another process.
        if let Ok(Ok(Sent::Started(_))) = tokio::time::timeout(Duration::from_secs(8), sent).await {
            acknowledged.push(text);
        }
        if sim.rng.below(4) == 0 {
            let _ = tokio::time::timeout(
                Duration::from_secs(2),
                engine.turn_control().cancel(&sim.scope, &session),
            )
            .await;
        }
        tokio::time::sleep(Duration::from_millis(sim.rng.below(6_000))).await;
    }
    acknowledged
}

/// Inject freezes, crashes and clock jumps.
async fn inject_faults(sim: Arc<Sim>, processes: Arc<Vec<Mutex<Process>>>) {
    while sim.began.elapsed() < FAULT_PERIOD {
        tokio::time::sleep(Duration::from_millis(sim.rng.below(5_000))).await;
        let process_slot = &processes[sim.rng.below(PROCESSES as u64) as usize];
        match sim.rng.below(3) {
            0 => {
                let injector = process_slot.lock().unwrap().injector.clone();
                injector.set_health(Health::Frozen);
                tokio::time::sleep(Duration::from_millis(sim.rng.below(9_000))).await;
                injector.set_health(Health::Healthy);
            }
            1 => {
                let fresh = sim.process(FAULTS);
                let old = std::mem::replace(&mut *process_slot.lock().unwrap(), fresh);
                old.injector.set_health(Health::Dead);
            }
            _ => {
                let process = process_slot.lock().unwrap();
                *process.clock.offset_ms.lock().unwrap() += sim.rng.below(3_000) as i64 - 1_500;
            }
        }
    }
}

/// Run a seed and check the resulting logs.
async fn run(seed: u64, sabotage: Option<Sabotage>) -> RunTrace {
    let sim = Arc::new(Sim::new(seed, sabotage));
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        sessions.push(sim.session(number).await);
    }
    let processes: Vec<Mutex<Process>> = (0..PROCESSES).map(|_| Mutex::new(sim.process(FAULTS))).collect();
    let processes = Arc::new(processes);
    let clients: Vec<_> = sessions
        .iter()
        .map(|session| tokio::spawn(client(sim.clone(), processes.clone(), session.clone())))
        .collect();
    inject_faults(sim.clone(), processes.clone()).await;
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.push(client.await.unwrap());
    }
    for process in processes.iter() {
        process.lock().unwrap().injector.set_health(Health::Healthy);
    }
    // A server without faults finishes all turns.
    let healthy = sim.process(0);
    finish_open_turns(&sim, &healthy, &sessions).await;
    for (session, acknowledged) in sessions.iter().zip(&acknowledged) {
        let log = sim.log(session).await.into_iter().map(|record| record.into_entry().unwrap());
        check(&log.collect::<Vec<_>>(), acknowledged, session);
    }
    check_fences(&sim.written.lock().unwrap());
    let ran = sim.ran.lock().unwrap().clone();
    assert_eq!(ran.iter().collect::<HashSet<_>>().len(), ran.len(), "a tool ran twice: {ran:?}");
    let diagnosis = diagnose(&healthy.engine, &sim.scope, Repair::No, |_| ()).await.unwrap();
    assert!(diagnosis.findings.is_empty(), "{:?}", diagnosis.findings);
    sim.trace(&sessions).await
}

/// Run until no turn is open.
async fn finish_open_turns(sim: &Sim, healthy: &Process, sessions: &[SessionId]) {
    let until = tokio::time::Instant::now() + RECOVERY_TIME_MAX;
    for session in sessions {
        while healthy.engine.directory().summary(&sim.scope, session).await.unwrap().open_turn.is_some() {
            assert!(tokio::time::Instant::now() < until, "{session}: a turn has no end");
            if let Ok(Some(running)) = healthy.engine.turns().resume(&sim.scope, session, OnWait::Leave).await
            {
                let _ = running.ended().await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Run a seed on a separate runtime, where time only advances when all tasks wait.
pub fn simulate(seed: u64, sabotage: Option<Sabotage>) -> RunTrace {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(run(seed, sabotage))
}

fn check(log: &[Entry], acknowledged: &[String], session: &SessionId) {
    assert!(log.iter().map(|entry| entry.meta.seq.0).eq(1..=log.len() as u32), "I1: {session}");
    let count = |kind: Kind| log.iter().filter(|entry| entry.meta.kind == kind).count();
    assert_eq!(count(Kind::TurnStarted), count(Kind::TurnEnded), "{session}: each turn has exactly one end");
    let ends: HashSet<_> =
        log.iter().filter(|entry| entry.meta.kind == Kind::TurnEnded).map(|entry| entry.meta.turn).collect();
    assert_eq!(ends.len(), count(Kind::TurnEnded), "{session}: a turn ended twice");
    let inputs: Vec<String> = log
        .iter()
        .filter(|entry| entry.meta.kind == Kind::UserMessage)
        .map(|entry| entry.body.text())
        .collect();
    for text in acknowledged {
        assert_eq!(
            inputs.iter().filter(|input| *input == text).count(),
            1,
            "{text} was acknowledged: {inputs:?}"
        );
    }
    assert_eq!(
        inputs.iter().collect::<HashSet<_>>().len(),
        inputs.len(),
        "an input was logged twice: {inputs:?}"
    );
    let mut results: HashMap<&str, u32> = HashMap::new();
    let mut calls: HashSet<&str> = HashSet::new();
    for entry in log {
        match &entry.body {
            Body::ToolResult(result) => *results.entry(&result.call_id).or_default() += 1,
            Body::AssistantMessage(message) => {
                calls.extend(message.parts.iter().filter_map(|part| match part {
                    Part::ToolCall(call) => Some(call.call_id.as_str()),
                    _ => None,
                }))
            }
            _ => {}
        }
    }
    assert!(results.values().all(|count| *count == 1), "{session}: a call has two results: {results:?}");
    assert!(results.keys().all(|call| calls.contains(call)), "{session}: a result without its call");
}

/// Fences never decrease in log order.
fn check_fences(written: &[(SessionId, Seq, u64)]) {
    let mut by_session: HashMap<&SessionId, Vec<(Seq, u64)>> = HashMap::new();
    for (session, seq, fence) in written {
        by_session.entry(session).or_default().push((*seq, *fence));
    }
    for (session, mut fences) in by_session {
        fences.sort();
        assert!(
            fences.is_sorted_by_key(|(_, fence)| *fence),
            "{session}: an append with a stale fence was written: {fences:?}"
        );
    }
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn nothing_is_lost_and_nothing_happens_twice_under_faults() {
    let (seed, seeds) = (env_number("SAPWOOD_SEED"), env_number("SAPWOOD_SEEDS"));
    let (first, count) = (seed.unwrap_or(1), seeds.unwrap_or(if seed.is_some() { 1 } else { SEEDS }));
    let mut acknowledged = 0;
    for seed in first..first + count {
        match std::panic::catch_unwind(|| simulate(seed, None)) {
            Ok(trace) => acknowledged += trace.iter().filter(|line| line.contains("user_message")).count(),
            Err(panic) => {
                eprintln!("run with SAPWOOD_SEED={seed} to replay this failure");
                std::panic::resume_unwind(panic);
            }
        }
        if seed % SEEDS_PER_REPORT == 0 {
            eprintln!("seeds {first} to {seed} passed");
        }
    }
    // `cargo xtask torture` adds up these lines.
    println!(
        "torture: simulated crashes and clock jumps: {count} rounds, {acknowledged} acknowledged, 0 lost"
    );
}

#[test]
fn a_seed_determines_the_log_and_different_seeds_produce_different_logs() {
    let mut before: Option<RunTrace> = None;
    for seed in 1..=env_number("SAPWOOD_REPLAYED").unwrap_or(REPLAYED) {
        let trace = simulate(seed, None);
        for _ in 0..REPLAYS {
            let again = simulate(seed, None);
            let differs = trace.iter().zip(&again).position(|(line, again)| line != again);
            if let Some(at) = differs {
                panic!("the replay of seed {seed} differs from line {at} on:\n{}\n{}", trace[at], again[at]);
            }
            assert_eq!(trace.len(), again.len(), "seed {seed}");
        }
        assert!(
            before.is_none_or(|before| before != trace),
            "seed {seed} produces the same log as the previous seed"
        );
        before = Some(trace);
    }
}
