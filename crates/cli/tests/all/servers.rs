//! Several servers on one database behave as one: a turn on one server can be followed, steered, cancelled and
//! answered through another. When a server dies or freezes, another server continues its turns. The tests use real
//! processes and random times; the seed is printed, and SAPWOOD_SEED replays it.

use std::io::BufRead;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::World;
use crate::serve::{Served, open, request, serve};
use crate::torture::{FaultCount, rounds};

/// Number of rounds that kill a server, and that freeze a server, at a random time.
const KILLS: u64 = 4;
const FREEZES: u64 = 2;
/// Longer than an undisturbed turn takes.
const TURN_MS: u64 = 1_500;
/// Deadline for every wait, generous enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);
/// The TTL of a lease.
const LEASE: Duration = Duration::from_secs(4);

const CASSETTE: &str = r#"by = "history"
[[calls]]
pieces = [
  { wait_ms = 200 }, { text = "I will " }, { wait_ms = 300 }, { text = "add a line." },
  { call = { id = "c1", name = "run_command", input = { command = "sh add.sh" } } },
  { usage = { input = 10, output = 5 } },
]
[[calls]]
pieces = [{ wait_ms = 300 }, { text = "It is done." }, { usage = { input = 20, output = 5 } }]
"#;

/// Appends a line to the session's own file.
const PROGRAM: &str = "echo ran >> \"ran-$(cat session.txt)\"\nsleep 0.3\n";

struct ServerFixture {
    world: World,
}

impl ServerFixture {
    fn new(approvals: &str) -> Self {
        let world = World::new("postgres");
        std::fs::write(world.path("cassette.toml"), CASSETTE).unwrap();
        std::fs::write(world.path("add.sh"), PROGRAM).unwrap();
        std::fs::create_dir_all(world.path("agents")).unwrap();
        let agent = format!(
            "id: adder\nmodel: \"scripted:{}\"\ntools: [run_command]\nfs_scope: project\nallowed_commands: [\"sh add.sh\"]\napprovals: {approvals}\n",
            world.path("cassette.toml").display()
        );
        std::fs::write(world.path("agents/adder.yaml"), agent).unwrap();
        Self { world }
    }

    fn serve(&self) -> Served {
        serve(&self.world, "127.0.0.1:0")
    }

    fn session(&self, name: &str) -> String {
        std::fs::write(self.world.path("session.txt"), name).unwrap();
        self.world.json(&["new", "--agent", "adder", "--id", name])["id"].as_str().unwrap().to_owned()
    }

    fn runs_of(&self, session: &str) -> usize {
        let path = self.world.path(&format!("ran-{session}"));
        std::fs::read_to_string(path).unwrap_or_default().lines().count()
    }

    fn events(&self, session: &str) -> Vec<Value> {
        self.world.lines(&["events", session])
    }
}

fn begin(server: &Served, session: &str) -> String {
    let (status, accepted) = request(
        &server.addr,
        "POST",
        &format!("/v1/sessions/{session}/turns"),
        None,
        "{\"input\":\"Add a line.\"}",
    );
    assert_eq!(status, 202, "{accepted}");
    accepted["turn"].as_str().unwrap().to_owned()
}

fn status_of(server: &Served, session: &str, turn: &str) -> String {
    let (_, turn_status) =
        request(&server.addr, "GET", &format!("/v1/sessions/{session}/turns/{turn}"), None, "");
    turn_status["status"].as_str().unwrap_or_default().to_owned()
}

fn await_status(server: &Served, session: &str, turn: &str, wanted: &str) -> Duration {
    let began = Instant::now();
    while status_of(server, session, turn) != wanted {
        let seen = status_of(server, session, turn);
        assert!(began.elapsed() < DEADLINE, "the turn is {seen}, not {wanted}");
        std::thread::sleep(Duration::from_millis(30));
    }
    began.elapsed()
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

#[test]
fn a_turn_on_one_server_is_followed_steered_and_cancelled_through_another() {
    let fixture = ServerFixture::new("auto");
    let (one, two) = (fixture.serve(), fixture.serve());
    let session = fixture.session("s");
    let turn = begin(&one, &session);
    let (status, mut events) = open(&two.addr, "GET", "/v1/sessions/s/events", &[], "").unwrap();
    assert_eq!(status, 200);
    let steer = json!({ "input": "And hurry." }).to_string();
    let (status, response) =
        request(&two.addr, "POST", &format!("/v1/sessions/s/turns/{turn}/steer"), None, &steer);
    assert_eq!(status, 202, "{response}");
    let (mut seen, mut line) = (String::new(), String::new());
    while !seen.contains("turn_completed") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream ended: {seen}");
        seen.push_str(&line);
    }
    assert!(seen.contains("And hurry."), "the steering input is missing: {seen}");
    assert_eq!(fixture.runs_of(&session), 1);
    // Cancel the next turn through the other server.
    let session = fixture.session("t");
    let turn = begin(&one, &session);
    let (status, _) = request(&two.addr, "POST", &format!("/v1/sessions/t/turns/{turn}/cancel"), None, "");
    assert_eq!(status, 202);
    await_status(&two, &session, &turn, "cancelled");
}

#[test]
fn an_approval_asked_by_one_server_is_answered_through_another() {
    let fixture = ServerFixture::new("ask");
    let (one, two) = (fixture.serve(), fixture.serve());
    let session = fixture.session("s");
    let turn = begin(&one, &session);
    await_status(&two, &session, &turn, "waiting");
    let (_, waiting) = request(&two.addr, "GET", "/v1/sessions/s/approvals", None, "");
    let approval = waiting["items"][0]["approval"].as_str().unwrap_or_else(|| panic!("{waiting}")).to_owned();
    let answer = json!({ "answer": "approved" }).to_string();
    let (status, response) = request(&two.addr, "POST", &format!("/v1/approvals/{approval}"), None, &answer);
    assert!(status < 300, "{status} {response}");
    await_status(&two, &session, &turn, "completed");
    assert_eq!(fixture.runs_of(&session), 1);
}

/// Reads a session's events from any server that answers, and resumes at the other server after a failure.
fn follow(addrs: Vec<String>, session: String, stop: Arc<AtomicBool>, last_seen: &AtomicU64) -> Vec<u64> {
    let mut seen: Vec<u64> = Vec::new();
    for turn in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let last = seen.last().copied().unwrap_or(0).to_string();
        let path = format!("/v1/sessions/{session}/events");
        let Ok((200, mut reader)) =
            open(&addrs[turn % addrs.len()], "GET", &path, &[("last-event-id", last.as_str())], "")
        else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        // A frozen server sends nothing: time out and try the other server.
        reader.get_ref().set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) && !stop.load(Ordering::SeqCst) {
            if let Some(id) = line.strip_prefix("id:") {
                let id = id.trim().parse().unwrap();
                seen.push(id);
                last_seen.store(id, Ordering::SeqCst);
            }
            line.clear();
        }
    }
    seen
}

/// Checks that the log is complete, the program ran at most once, and the reader saw each event once and in order.
fn check_whole(fixture: &ServerFixture, session: &str, seen: &[u64]) {
    let events = fixture.events(session);
    assert_eq!(
        (count(&events, "session:turn_started"), count(&events, "session:turn_completed")),
        (1, 1),
        "{events:?}"
    );
    let seqs: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "I1: {seqs:?}");
    assert_eq!(seen, seqs, "the reader did not see each event once");
    let context = fixture.world.json(&["context", session]);
    let messages = context["messages"].as_array().unwrap();
    assert_eq!(messages.last().unwrap()["text"], "It is done.", "{context}");
    assert!(fixture.runs_of(session) <= 1, "the program ran {} times", fixture.runs_of(session));
}

fn signal(server: &Served, name: &str) {
    assert!(Command::new("kill").args([name, &server.child.id().to_string()]).status().unwrap().success());
}

/// Returns the next number of a small random number generator.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn seed() -> u64 {
    let given = std::env::var("SAPWOOD_SEED").ok().and_then(|text| text.parse().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = given.unwrap_or(now.as_nanos() as u64);
    eprintln!("SAPWOOD_SEED={seed}");
    seed
}

/// Waits until the reader has seen the whole log.
fn await_reader(last_seen: &AtomicU64, length: u64) {
    let began = Instant::now();
    while last_seen.load(Ordering::SeqCst) < length {
        let seen = last_seen.load(Ordering::SeqCst);
        assert!(began.elapsed() < DEADLINE, "the reader saw {seen} of {length} events");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Runs one round: starts a turn on the first server and a reader, and calls `disturb` on that server after `delay`.
fn round(fixture: &ServerFixture, name: &str, delay: Duration, disturb: impl FnOnce(&mut Served)) {
    let (mut one, two) = (fixture.serve(), fixture.serve());
    let session = fixture.session(name);
    let (stop, last_seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let addrs = vec![one.addr.clone(), two.addr.clone()];
    let reader = std::thread::spawn({
        let (session, stop, last_seen) = (session.clone(), stop.clone(), last_seen.clone());
        move || follow(addrs, session, stop, &last_seen)
    });
    let turn = begin(&one, &session);
    std::thread::sleep(delay);
    disturb(&mut one);
    let took = await_status(&two, &session, &turn, "completed");
    eprintln!("{name}: disturbed after {delay:?}, completed {took:?} later");
    let length = fixture.events(&session).len();
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(fixture.events(&session).len(), length, "the server that lost the lease wrote more entries");
    await_reader(&last_seen, length as u64);
    stop.store(true, Ordering::SeqCst);
    check_whole(fixture, &session, &reader.join().unwrap());
}

#[test]
fn another_server_continues_the_turn_of_a_killed_server() {
    let fixture = ServerFixture::new("auto");
    let mut seed = seed();
    let mut count = FaultCount::new("kills of a server in a turn");
    for number in 0..rounds(KILLS) {
        let delay = Duration::from_millis(next(&mut seed) % TURN_MS);
        round(&fixture, &format!("killed-{number}"), delay, |one| {
            one.child.kill().unwrap();
            one.child.wait().unwrap();
        });
        count.add(1);
    }
    count.print();
    fixture.world.ok(&["doctor"]);
}

#[test]
fn another_server_continues_the_turn_of_a_frozen_server_which_then_writes_nothing() {
    let fixture = ServerFixture::new("auto");
    let mut seed = seed();
    let mut count = FaultCount::new("freezes of a server in a turn");
    for number in 0..rounds(FREEZES) {
        let delay = Duration::from_millis(next(&mut seed) % TURN_MS);
        round(&fixture, &format!("frozen-{number}"), delay, |one| {
            signal(one, "-STOP");
            std::thread::sleep(LEASE + Duration::from_secs(2));
            signal(one, "-CONT");
        });
        count.add(1);
    }
    count.print();
    fixture.world.ok(&["doctor"]);
}
