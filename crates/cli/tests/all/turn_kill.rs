//! Real processes are killed with `kill -9` at every stage of a turn, then the turn is resumed. The session is
//! complete, the outcome is correct, and no tool ran twice. The tool is a program that appends a line to a file on each
//! run.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{World, on_each_store};
use crate::torture::{FaultCount, rounds};

/// Number of kills at a random time, on each store.
const ROUNDS: u64 = 10;
/// Longer than an undisturbed turn takes.
const TURN_MS: u64 = 1_500;

/// Two model calls: the first returns text and a call of the program, the second the answer.
const CASSETTE: &str = r#"by = "history"
[[calls]]
pieces = [
  { wait_ms = 200 }, { text = "I will " }, { wait_ms = 200 }, { text = "add a line." },
  { call = { id = "c1", name = "run_command", input = { command = "sh add.sh" } } },
  { usage = { input = 10, output = 5 } },
]
[[calls]]
pieces = [{ wait_ms = 200 }, { text = "It is done." }, { usage = { input = 20, output = 5 } }]
"#;

const PROGRAM: &str = "echo ran >> ran.txt\nsleep 0.3\n";

/// Creates a session whose agent runs the program in this approval mode.
fn start(world: &World, approvals: &str) -> String {
    let model = world.path("cassette.toml");
    std::fs::write(&model, CASSETTE).unwrap();
    std::fs::write(world.path("add.sh"), PROGRAM).unwrap();
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let agent = format!(
        "id: adder\nmodel: \"scripted:{}\"\ntools: [run_command]\nfs_scope: project\nallowed_commands: [\"sh add.sh\"]\napprovals: {approvals}\n",
        model.display()
    );
    std::fs::write(world.path("agents/adder.yaml"), agent).unwrap();
    world.json(&["new", "--agent", "adder"])["id"].as_str().unwrap().to_owned()
}

fn send(world: &World, session: &str) -> Child {
    world.spawn(&["send", session, "Add a line."])
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn lines_added(world: &World) -> usize {
    std::fs::read_to_string(world.path("ran.txt")).unwrap_or_default().lines().count()
}

/// Makes the model stall at the pause `waits` until `restore_model` restores the cassette.
fn stall_model(world: &World, waits: &str) {
    let stalled = CASSETTE.replacen(waits, &waits.replace("200", "120000"), 1);
    assert_ne!(stalled, CASSETTE);
    std::fs::write(world.path("cassette.toml"), stalled).unwrap();
}

fn restore_model(world: &World) {
    std::fs::write(world.path("cassette.toml"), CASSETTE).unwrap();
}

/// Waits until the session has an event that satisfies `is_match`.
fn await_event(world: &World, session: &str, is_match: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while !world.lines(&["events", session]).iter().any(&is_match) {
        assert!(began.elapsed() < Duration::from_secs(120), "timed out waiting for the event");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_kind(event: &Value, kind: &str) -> bool {
    event["type"] == kind
}

/// Checks the session after resuming: one completed turn, a result for every call, and a healthy store.
fn check_whole(world: &World, session: &str) {
    let resumed = world.run(&["resume", session]);
    assert_eq!(resumed.status, Some(0), "{}", resumed.stderr);
    let events = world.lines(&["events", session]);
    let count = |kind: &str| events.iter().filter(|event| is_kind(event, kind)).count();
    assert_eq!((count("session:turn_started"), count("session:turn_completed")), (1, 1), "{events:?}");
    let seqs: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "I1: {seqs:?}");
    let context = world.json(&["context", session]);
    let messages = context["messages"].as_array().unwrap();
    assert_eq!(messages.last().unwrap()["text"], "It is done.", "{context}");
    let calls = messages.iter().flat_map(|message| message["parts"].as_array().unwrap().iter());
    let calls = calls.filter(|part| part["type"] == "tool_call").count();
    let results = messages.iter().filter(|message| message["role"] == "tool").count();
    assert_eq!((calls, results), (1, 1), "I6: {context}");
    assert!(lines_added(world) <= 1, "the program ran {} times", lines_added(world));
    world.ok(&["doctor"]);
}

#[test]
fn a_turn_killed_before_the_model_answers_repeats_the_model_call() {
    on_each_store(|world| {
        let session = start(world, "auto");
        stall_model(world, "{ wait_ms = 200 }, { text = \"I will \" }");
        let child = send(world, &session);
        await_event(world, &session, |event| is_kind(event, "session:turn_started"));
        kill(child);
        restore_model(world);
        check_whole(world, &session);
        assert_eq!(lines_added(world), 1);
    });
}

#[test]
fn a_turn_killed_in_mid_stream_repeats_the_model_call() {
    on_each_store(|world| {
        let session = start(world, "auto");
        stall_model(world, "{ wait_ms = 200 }, { text = \"add");
        let child = send(world, &session);
        await_event(world, &session, |event| is_kind(event, "session:turn_started"));
        std::thread::sleep(Duration::from_millis(300));
        kill(child);
        restore_model(world);
        check_whole(world, &session);
        assert_eq!(lines_added(world), 1);
    });
}

#[test]
fn a_program_interrupted_by_a_kill_is_not_rerun_and_its_result_is_interrupted() {
    on_each_store(|world| {
        let session = start(world, "auto");
        // The program must still be running at the kill, even if the kill is late.
        std::fs::write(world.path("add.sh"), "echo ran >> ran.txt\nsleep 600\n").unwrap();
        let child = send(world, &session);
        let began = Instant::now();
        while lines_added(world) == 0 {
            assert!(began.elapsed() < Duration::from_secs(120), "the program did not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(child);
        check_whole(world, &session);
        assert_eq!(lines_added(world), 1);
        let events = world.lines(&["events", &session]);
        let result = events.iter().find(|event| is_kind(event, "agent:tool_result")).unwrap();
        assert_eq!(result["entry"]["interrupted"], true, "{result}");
    });
}

#[test]
fn a_turn_killed_after_the_tool_result_continues_from_there() {
    on_each_store(|world| {
        let session = start(world, "auto");
        let child = send(world, &session);
        await_event(world, &session, |event| is_kind(event, "agent:tool_result"));
        kill(child);
        check_whole(world, &session);
        let usage = world.json(&["usage", &session]);
        assert_eq!((lines_added(world), usage["total"]["calls"].as_u64()), (1, Some(2)), "{usage}");
    });
}

#[test]
fn a_turn_killed_while_waiting_for_approval_still_waits() {
    on_each_store(|world| {
        let session = start(world, "ask");
        let mut child = send(world, &session);
        await_event(world, &session, |event| is_kind(event, "agent:approval_requested"));
        // The process exits when the turn has to wait for approval. Killing it during the exit has no effect.
        let _ = child.kill();
        child.wait().unwrap();
        assert_eq!(lines_added(world), 0);
        let waiting = world.json(&["resume", &session]);
        assert!(waiting["waiting"].is_array() || waiting["outcome"] == "waiting", "{waiting}");
        let events = world.lines(&["events", &session]);
        let asked = events.iter().find(|event| is_kind(event, "agent:approval_requested")).unwrap();
        world.ok(&["approve", asked["entry"]["approval"].as_str().unwrap()]);
        check_whole(world, &session);
        assert_eq!(lines_added(world), 1);
    });
}

#[test]
fn a_turn_killed_at_random_times_loses_nothing_and_runs_nothing_twice() {
    for scheme in ["sqlite", "jsonl"] {
        let mut count = FaultCount::new("kills of a turn");
        for round in 0..rounds(ROUNDS) {
            let world = World::new(scheme);
            let session = start(&world, "auto");
            let child = send(&world, &session);
            // Kill times are spread unevenly over the turn and differ in each round.
            std::thread::sleep(Duration::from_millis((round * 7_919 + 13) % TURN_MS));
            kill(child);
            if world.json(&["info", &session])["messages"].as_u64().unwrap_or_default() == 0 {
                // The message was neither acknowledged nor stored: send it again to start the turn.
                world.ok(&["send", &session, "Add a line."]);
            }
            check_whole(&world, &session);
            count.add(1);
        }
        count.print();
    }
}
