//! Many processes that use one store at the same time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::thread::{scope, spawn};

use serde_json::Value;

use crate::actors::{Ack, ChildGuard, Injector, LoggedMessage, assert_healthy, read_log, seed};
use crate::harness::{World, on_each_store};

const WRITERS: usize = 4;

/// The text and the acknowledgement of each message of one writer.
type Acked = Vec<(String, Ack)>;

fn text(writer: usize, number: usize) -> String {
    format!("writer {writer} message {number}")
}

#[test]
fn four_processes_append_to_one_session_and_a_reader_sees_each_seq_once() {
    const MESSAGES: usize = 100;
    on_each_store(|world| {
        let session = seed(world);
        let mut reader = ChildGuard(world.spawn(&["events", &session, "--follow"]));
        let seen = BufReader::new(reader.0.stdout.take().unwrap()).lines().take(1 + WRITERS * MESSAGES);
        let seen = spawn(move || seen.map(|line| Ack::parse(&line.unwrap()).seq).collect::<Vec<u64>>());
        let acked = run_writers(WRITERS, |writer| write_all(world, &session, writer, MESSAGES));
        check_log(&read_log(world, &session)[1..], &acked, MESSAGES);
        let seqs = (1..=1 + (WRITERS * MESSAGES) as u64).collect::<Vec<u64>>();
        assert_eq!(seen.join().unwrap(), seqs, "the reader missed an event or saw one twice");
        assert_healthy(world);
    });
}

#[test]
fn writers_with_an_expected_head_lose_and_repeat_nothing_when_they_retry() {
    const MESSAGES: usize = 25;
    on_each_store(|world| {
        let session = seed(world);
        let acked = run_writers(WRITERS, |writer| write_expecting(world, &session, writer, MESSAGES));
        check_log(&read_log(world, &session)[1..], &acked, MESSAGES);
        assert_healthy(world);
    });
}

#[test]
fn eight_processes_create_one_store_and_write_eight_sessions() {
    const MESSAGES: usize = 25;
    let world = World::new("sqlite");
    let acked = run_writers(8, |writer| {
        let session = format!("session-{writer}");
        world.ok(&["new", "--id", &session]);
        write_all(&world, &session, writer, MESSAGES)
    });
    for (writer, acked) in acked.into_iter().enumerate() {
        let log = read_log(&world, &format!("session-{writer}"));
        assert_eq!(log.len(), MESSAGES);
        for (message, (text, ack)) in log.into_iter().zip(acked) {
            assert_eq!(message, LoggedMessage { ack, text });
        }
    }
    assert_healthy(&world);
}

#[test]
fn eight_processes_that_open_a_new_store_at_the_same_time_all_succeed() {
    for (scheme, rounds) in [("sqlite", 12), ("jsonl", 12), ("postgres", 2)] {
        for round in 0..rounds {
            let world = World::new(scheme);
            // Half of the rounds create eight sessions. In the other rounds, all processes create the same session.
            let id = |number: usize| if round % 2 == 0 { format!("s{number}") } else { "same".to_owned() };
            let running: Vec<_> = (0..8).map(|number| world.spawn(&["new", "--id", &id(number)])).collect();
            for process in running {
                let ran = process.wait_with_output().unwrap();
                let message = String::from_utf8_lossy(&ran.stderr);
                assert!(ran.status.success(), "{scheme}, round {round}: {message}");
            }
            let sessions = world.lines(&["ls"]).len();
            assert_eq!(sessions, if round % 2 == 0 { 8 } else { 1 }, "{scheme}, round {round}");
            assert_healthy(&world);
        }
    }
}

/// Runs writers concurrently and returns the acknowledgements of each.
fn run_writers(writers: usize, write: impl Fn(usize) -> Acked + Sync) -> Vec<Acked> {
    scope(|threads| {
        let write = &write;
        let running: Vec<_> = (0..writers).map(|writer| threads.spawn(move || write(writer))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Appends messages from one process without an expected head, each after the previous message is acknowledged.
fn write_all(world: &World, session: &str, writer: usize, messages: usize) -> Acked {
    let mut injector = Injector::start(world, session, &[]);
    let mut acked = Vec::new();
    for number in 0..messages {
        let text = text(writer, number);
        let acks = injector.send(&[&text]);
        acked.extend(acks.into_iter().map(|ack| (text.clone(), ack)));
    }
    let ran = injector.finish();
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    acked
}

/// Appends messages with an expected head. A process that loses a race exits with 4, and the next process reads the
/// head again.
fn write_expecting(world: &World, session: &str, writer: usize, messages: usize) -> Acked {
    let mut acked: Acked = Vec::new();
    while acked.len() < messages {
        let head = world.json(&["info", session])["head"]["seq"].to_string();
        let mut injector = Injector::start(world, session, &["--expected-head", &head]);
        while acked.len() < messages {
            let text = text(writer, acked.len());
            let Some(ack) = injector.send(&[&text]).pop() else { break };
            acked.push((text, ack));
        }
        let ran = injector.finish();
        if acked.len() < messages {
            assert_eq!((ran.status, &ran.error()["code"]), (Some(4), &Value::from("session.conflict")));
        }
    }
    acked
}

/// Checks that every acknowledged message is in the log once, at the acknowledged seq, and in its writer's order.
fn check_log(log: &[LoggedMessage], acked: &[Acked], messages: usize) {
    assert_eq!(log.len(), acked.len() * messages);
    let logged: HashMap<&str, &LoggedMessage> =
        log.iter().map(|message| (message.text.as_str(), message)).collect();
    assert_eq!(logged.len(), log.len(), "a message is in the log twice");
    for acked in acked {
        assert_eq!(acked.len(), messages);
        for (text, ack) in acked {
            assert_eq!(logged[text.as_str()].ack, *ack);
        }
        assert!(acked.is_sorted_by_key(|(_, ack)| ack.seq), "the messages of a writer are out of order");
    }
}
