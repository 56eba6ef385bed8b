//! Database faults: connections are cut, the server crashes and restarts, a standby takes over. No
//! acknowledged append is lost or written twice, and callers see a delay instead of an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sapwood_core::entry::UserMessage;
use sapwood_core::port::store::{Append, Log, NewSession, Sessions};
use sapwood_core::{Draft, Part, Seq, SessionId, TimestampMs};
use sapwood_store::conformance::cluster::{self, ADMIN, Cluster};
use sapwood_store::postgres::PgStore;

use super::postgres::ana;

const SESSIONS: usize = 8;

fn sessions() -> Vec<SessionId> {
    (0..SESSIONS).map(|number| format!("s{number}").parse().unwrap()).collect()
}

/// Append to many sessions while `disturb` runs, then check the logs.
fn append_through(url: &str, disturb: impl FnOnce()) {
    let store = Arc::new(PgStore::open(url).unwrap());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    for session in sessions() {
        runtime.block_on(store.create(&ana(), NewSession::new(session, TimestampMs(1)))).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = sessions()
        .into_iter()
        .map(|session| runtime.spawn(append_until(store.clone(), session, stop.clone())))
        .collect();
    disturb();
    stop.store(true, Ordering::SeqCst);
    for (session, writer) in sessions().into_iter().zip(writers) {
        let acknowledged = runtime.block_on(writer).unwrap();
        assert!(acknowledged > 0, "no append to {session} was acknowledged");
        let log = runtime.block_on(store.read_after(&ana(), &session, Seq::ZERO, 10_000)).unwrap();
        let texts: Vec<String> = log.iter().map(|record| record.decode().unwrap().text()).collect();
        let expected: Vec<String> = (0..acknowledged).map(|number| number.to_string()).collect();
        assert_eq!(texts, expected, "{session}: each message once, in order, and no others");
    }
}

/// Append one number after another. Each append must be acknowledged.
async fn append_until(store: Arc<PgStore>, session: SessionId, stop: Arc<AtomicBool>) -> usize {
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) && number < 9_000 {
        let parts = vec![Part::text(number.to_string())];
        let draft = Draft::new(TimestampMs(1), UserMessage { parts, origin: None });
        let append = Append::new(session.clone(), TimestampMs(1), vec![draft]);
        store.append(&ana(), append).await.unwrap();
        number += 1;
    }
    number
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[test]
fn appends_survive_cut_connections() {
    let (cluster, url) = (cluster::shared(), cluster::shared().new_database());
    let database = url.rsplit('/').next().unwrap().to_owned();
    append_through(&url, || {
        let mut cut = 0;
        for round in 0..25 {
            pause(20 + round * 3);
            let sql = format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = '{database}' AND application_name LIKE 'sapwood%'"
            );
            cut += cluster.sql("postgres", &sql).trim().parse::<u32>().unwrap();
        }
        assert!(cut > 25, "only {cut} connections were cut");
    });
}

#[test]
fn appends_survive_a_server_crash() {
    let cluster = Cluster::start();
    append_through(&cluster.new_database(), || {
        for _ in 0..3 {
            pause(300);
            cluster.crash();
            pause(200);
            cluster.resume();
        }
        pause(300);
    });
}

#[test]
fn appends_survive_a_failover_to_the_standby() {
    let primary = Cluster::start();
    let standby = Cluster::standby_of(&primary);
    standby.resume();
    // From now on, a commit is acknowledged only when the standby has it.
    primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    pause(500);
    let url = primary.new_database();
    let database = url.rsplit('/').next().unwrap();
    let both = format!(
        "postgres://{ADMIN}@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
        primary.port, standby.port
    );
    append_through(&both, || {
        pause(500);
        primary.crash();
        pause(200);
        standby.promote();
        pause(1_000);
    });
    let count = standby.sql(database, "SELECT count(*) FROM sapwood.entries");
    assert!(count.trim().parse::<u64>().unwrap() > 0);
}
