//! Histories: concurrent clients perform random operations through two open stores at the same location, and
//! record every operation and its result. The logs are then checked against these records:
//!
//! * An acknowledged append is in the log exactly once, at the acknowledged position.
//! * A refused append is not in the log.
//! * The entries of one client keep their order.
//! * An append with a stale fence is not in the log.
//! * A read after an acknowledgement sees the acknowledged entries.
//!
//! Each run prints its seed. SAPWOOD_SEED replays a seed, and SAPWOOD_SEEDS sets the number of runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sapwood_core::port::store::{Append, Appended, Expect, Lease};
use sapwood_core::{Draft, EntryId, Record, Seq, SessionId, Store, StoreError, TimestampMs};

use super::Harness;
use super::world::{World, ana, read_log, user_message};

const CLIENTS: u64 = 6;
const SESSIONS: u64 = 3;
const STEPS: u64 = 40;
/// TTL of a lease, and how far the clock advances before a client acquires a lease.
const TTL_MS: i64 = 700;
const PAUSE_MS: i64 = 300;
/// First message of each session. Some stores do not persist empty sessions.
const FIRST: &str = "first";

/// One append and its acknowledgement.
struct AppendRecord {
    session: SessionId,
    text: String,
    expect: Expect,
    fence: Option<u64>,
    /// The acknowledgement; `None` if the append was refused.
    answer: Option<Appended>,
}

/// The records of one client.
#[derive(Default)]
struct ClientHistory {
    appends: Vec<AppendRecord>,
    /// Pairs of answers to two appends with the same key.
    repeated: Vec<(Appended, Appended)>,
}

/// A small random number generator, deterministic for a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

pub async fn the_log_matches_what_clients_observed(harness: &impl Harness) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SAPWOOD_SEED").unwrap_or(20_261_116);
    for seed in first..first + number("SAPWOOD_SEEDS").unwrap_or(2) {
        eprintln!("SAPWOOD_SEED={seed}");
        run(harness, seed).await;
    }
}

async fn run(harness: &impl Harness, seed: u64) {
    let world = World::open(harness).await;
    // Stores that do not persist share no data, so all clients use the first store.
    let second = match harness.persists() {
        true => harness.open().await,
        false => world.store.clone(),
    };
    let stores = [world.store.clone(), second];
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        sessions.push(world.create_with(&ana(), &format!("h{seed}-{number}"), &[FIRST]).await);
    }
    let acknowledged = Arc::new(AcknowledgedHeads::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| Client {
            store: stores[number as usize % 2].clone(),
            sessions: sessions.clone(),
            acknowledged: acknowledged.clone(),
            name: format!("c{number}"),
            dice: Dice(seed.wrapping_mul(31).wrapping_add(number)),
            leases: HashMap::new(),
            history: ClientHistory::default(),
        })
        .collect();
    let histories = run_clients(harness, clients);
    for session in &sessions {
        let log = read_log(&*world.store, &ana(), session).await.unwrap();
        check(session, &log, &histories);
    }
    for (first, again) in histories.iter().flat_map(|history| &history.repeated) {
        assert_eq!(first, again, "a repeated key returns the first answer (I5)");
    }
}

/// Run each client in its own thread.
fn run_clients(harness: &impl Harness, clients: Vec<Client>) -> Vec<ClientHistory> {
    std::thread::scope(|scope| {
        let start = |client: Client| scope.spawn(move || super::block_on(client.run(harness)));
        let running: Vec<_> = clients.into_iter().map(start).collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, ClientHistory>| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

/// The highest seq of each session that any client has read or that was acknowledged to it.
#[derive(Default)]
struct AcknowledgedHeads([AtomicU32; SESSIONS as usize]);

struct Client {
    store: Arc<dyn Store>,
    sessions: Vec<SessionId>,
    acknowledged: Arc<AcknowledgedHeads>,
    name: String,
    dice: Dice,
    /// The latest lease acquired on each session, even if it has been lost.
    leases: HashMap<SessionId, Lease>,
    history: ClientHistory,
}

impl Client {
    async fn run(mut self, harness: &impl Harness) -> ClientHistory {
        for step in 0..STEPS {
            let at = self.dice.below(SESSIONS) as usize;
            match self.dice.below(10) {
                0..=5 => self.append(at, step, None).await,
                6 => self.append(at, step, Some(format!("{}-{step}", self.name))).await,
                7 => {
                    // Advance the clock so that leases expire while other clients still work.
                    harness.pass_time(PAUSE_MS);
                    self.take_lease(at).await;
                }
                _ => self.check_read(at).await,
            }
        }
        self.history
    }

    fn now(step: u64) -> TimestampMs {
        TimestampMs(1_900_000_000_000 + step as i64 * 100)
    }

    async fn append(&mut self, at: usize, step: u64, key: Option<String>) {
        let session = self.sessions[at].clone();
        let text = format!("{}-{step}", self.name);
        let known = self.acknowledged.0[at].load(Ordering::SeqCst);
        let expect = if self.dice.below(2) == 0 { Expect::Any } else { Expect::Head(Seq(known)) };
        let fence = self.leases.get(&session).map(|lease| lease.fence).filter(|_| self.dice.below(2) == 0);
        let now = Self::now(step);
        let drafts = vec![Draft::new(now, user_message(&text))];
        let append = Append {
            expect,
            fence,
            idempotency_key: key.clone(),
            ..Append::new(session.clone(), now, drafts)
        };
        let answer = match self.store.append(&ana(), append.clone()).await {
            Ok(answer) => Some(answer),
            Err(StoreError::Conflict { .. } | StoreError::StaleFence { .. } | StoreError::Leased { .. }) => {
                None
            }
            Err(error) => panic!("{error}"),
        };
        if let (Some(answer), Some(_)) = (&answer, key) {
            let again = self
                .store
                .append(&ana(), append)
                .await
                .expect("a repeated append gets the first answer (I5)");
            self.history.repeated.push((answer.clone(), again));
        }
        if let Some(answer) = &answer {
            self.acknowledged.0[at].fetch_max(answer.head.seq.0, Ordering::SeqCst);
        }
        self.history.appends.push(AppendRecord { session, text, expect, fence, answer });
    }

    async fn take_lease(&mut self, at: usize) {
        let session = self.sessions[at].clone();
        let taken = self.store.take_lease(&ana(), &session, &self.name, TTL_MS).await;
        match taken {
            Ok(lease) => {
                let before = self.leases.insert(session, lease.clone());
                assert!(before.is_none_or(|before| before.fence <= lease.fence), "fences never decrease");
            }
            Err(StoreError::Leased { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Check that the session contains all entries acknowledged before this read.
    async fn check_read(&mut self, at: usize) {
        let known = self.acknowledged.0[at].load(Ordering::SeqCst);
        let session = &self.sessions[at];
        let head = self.store.summary(&ana(), session).await.unwrap().head.seq;
        assert!(head.0 >= known, "{session} ends at {head}, but {known} was acknowledged");
        let after = Seq(known.saturating_sub(5));
        let records = self.store.read_after(&ana(), session, after, 1_000).await.unwrap();
        let last = records.last().map_or(after, |record| record.meta.seq);
        assert!(last >= head, "the summary ends at {head}, but the log at {last}");
        self.acknowledged.0[at].fetch_max(last.0, Ordering::SeqCst);
    }
}

/// Check the log of one session against the records of all clients.
fn check(session: &SessionId, log: &[Record], histories: &[ClientHistory]) {
    let entries: BTreeMap<Seq, (EntryId, String)> = log
        .iter()
        .map(|record| (record.meta.seq, (record.meta.id, record.decode().unwrap().text())))
        .collect();
    assert!(entries.keys().copied().eq((1..=log.len() as u32).map(Seq)), "I1: {session}");
    let texts: HashSet<&str> = entries.values().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts.len(), log.len(), "{session}: an append was written twice");
    let mut acknowledged = log.iter().filter(|record| record.meta.seq == Seq(1)).count();
    let mut fences: BTreeMap<Seq, u64> = BTreeMap::new();
    for client in histories {
        let mut last = Seq::ZERO;
        for record in client.appends.iter().filter(|record| record.session == *session) {
            let Some(answer) = &record.answer else {
                assert!(!texts.contains(record.text.as_str()), "{}: refused, but written", record.text);
                continue;
            };
            let (seq, entry) = answer.entries[0];
            assert_eq!(
                entries.get(&seq),
                Some(&(entry, record.text.clone())),
                "acknowledged, but not in the log"
            );
            assert!(seq > last, "{}: entries of one client are out of order", record.text);
            if let Expect::Head(head) = record.expect {
                assert_eq!(seq, head.next(), "{}: written after a different head (I5)", record.text);
            }
            fences.extend(record.fence.map(|fence| (seq, fence)));
            (last, acknowledged) = (seq, acknowledged + 1);
        }
    }
    assert_eq!(acknowledged, log.len(), "{session}: the log has entries that were never acknowledged");
    let in_order: Vec<u64> = fences.into_values().collect();
    assert!(in_order.is_sorted(), "{session}: an append with a stale fence was written: {in_order:?}");
}
