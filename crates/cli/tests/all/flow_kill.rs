//! Real processes are killed with `kill -9` at every stage of a flow run, then the run is resumed. The run completes,
//! every visit starts once, and no program runs twice. The program appends a line to a file on each run.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::flows::{actor, hand, node, text, to, write_flow};
use crate::harness::{World, on_each_store};
use crate::serve::serve;
use crate::torture::{FaultCount, rounds};

/// Number of kills at a random time, on each store.
const ROUNDS: u64 = 5;
/// About as long as an undisturbed run takes.
const RUN_MS: u64 = 2_500;

/// Writes a flow: `draft` runs the program and hands off, `review` hands off, then both do the improvement phase.
fn write(world: &World) -> String {
    std::fs::write(world.path("add.sh"), "echo ran >> ran.txt\nsleep 0.2\n").unwrap();
    let wait = json!({ "wait_ms": 150 });
    let run = json!({ "call": { "id": "p", "name": "run_command", "input": { "command": "sh add.sh" } } });
    let owner = actor(
        world,
        "owner",
        &[
            vec![wait.clone(), run],
            vec![wait.clone(), hand("h", to("review", "draft"))],
            vec![wait.clone(), text("drafted")],
            vec![wait.clone(), text("I looked back.")],
        ],
        json!({ "tools": ["run_command"], "fs_scope": "project", "allowed_commands": ["sh add.sh"], "approvals": "auto" }),
    );
    let curator = actor(
        world,
        "curator",
        &[
            vec![wait.clone(), hand("h", to("output", "reviewed"))],
            vec![wait.clone(), text("passed")],
            vec![wait, text("So did I.")],
        ],
        json!({}),
    );
    let nodes = [node("draft", "owner", "owner"), node("review", "curator", "curator")];
    let edges = [("input", "draft"), ("draft", "review"), ("review", "output")];
    write_flow(world, &[owner, curator], &nodes, &edges, json!({}))
}

fn start(world: &World) -> Child {
    let file = write(world);
    world.spawn(&["flow", "run", &file, "--id", "r", "--improve"])
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn events(world: &World, session: &str) -> Vec<Value> {
    let ran = world.run(&["events", session, "--json"]);
    if ran.status == Some(0) { crate::harness::parse_lines(&ran.out()) } else { Vec::new() }
}

fn await_event(world: &World, session: &str, is_match: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while !events(world, session).iter().any(&is_match) {
        if began.elapsed() > Duration::from_secs(90) {
            panic!("timed out waiting for the event: {}", world.run(&["flow", "show", "r", "--json"]).out());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_run_event(event: &Value, name: &str) -> bool {
    event["entry"]["type"] == "flow_event" && event["entry"]["data"]["event"] == name
}

fn lines_added(world: &World) -> usize {
    std::fs::read_to_string(world.path("ran.txt")).unwrap_or_default().lines().count()
}

/// Resumes the run, then checks that it completed and no visit was started twice.
fn check_whole(world: &World) {
    let view = world.json(&["flow", "resume", "r"]);
    assert_eq!(
        (view["status"].as_str(), view["phase"].as_str()),
        (Some("completed"), Some("improvement")),
        "{view}"
    );
    assert_eq!(view["results"][0]["text"], "reviewed", "{view}");
    let run = events(world, "flow-r");
    let mut entered: Vec<String> = run
        .iter()
        .filter(|event| is_run_event(event, "entered"))
        .map(|event| format!("{} {}", event["entry"]["data"]["node"], event["entry"]["data"]["visit"]))
        .collect();
    entered.sort();
    let expected = ["\"@improve.curator\" 1", "\"@improve.owner\" 1", "\"draft\" 1", "\"review\" 1"];
    assert_eq!(entered, expected);
    assert_eq!(run.iter().filter(|event| is_run_event(event, "handed")).count(), 4);
    for role in ["flow-r__owner", "flow-r__curator"] {
        let log = events(world, role);
        let count = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
        assert_eq!(
            (count("session:turn_started"), count("session:turn_completed")),
            (2, 2),
            "{role}: {log:?}"
        );
        let prompts = log.iter().filter(|event| event["entry"]["type"] == "configured").count();
        assert_eq!(prompts, 1, "the system prompt is built once: {log:?}");
        let handed = log.iter().filter(|event| event["entry"]["tool"] == "handoff").count();
        assert_eq!(handed, 1, "{role}: {log:?}");
    }
    // A program that may have run is not repeated. So it never runs if the process died just before starting it.
    assert!(lines_added(world) <= 1, "the program ran {} times", lines_added(world));
    world.ok(&["doctor"]);
}

#[test]
fn a_run_killed_before_its_first_turn_enters_the_node_once() {
    on_each_store(|world| {
        // Another turn runs in the first node's session: the runner is killed while the visit waits.
        let slow = actor(
            world,
            "slow",
            &[vec![json!({ "wait_ms": 2_500 }), text("done talking")], vec![text("worked")]],
            json!({}),
        );
        std::fs::create_dir_all(world.path("agents")).unwrap();
        std::fs::write(world.path("agents/slow.yaml"), slow.to_string()).unwrap();
        world.ok(&["new", "--id", "desk", "--agent", "slow"]);
        let talk = world.spawn(&["send", "desk", "talk"]);
        await_event(world, "desk", |event| event["type"] == "session:turn_started");
        let stage = json!({ "id": "work", "type": "agent", "agent_ref": "slow", "session_id": "desk", "prompt_template": "work" });
        let file = write_flow(world, &[slow], &[stage], &[("input", "work"), ("work", "output")], json!({}));
        let child = world.spawn(&["flow", "run", &file, "--id", "r"]);
        await_event(world, "flow-r", |event| is_run_event(event, "entered"));
        kill(child);
        let mut talk = talk;
        talk.wait().unwrap();
        let view = world.json(&["flow", "resume", "r"]);
        assert_eq!(
            (view["status"].as_str(), view["results"][0]["text"].as_str()),
            (Some("completed"), Some("worked")),
            "{view}"
        );
        let entered = events(world, "desk").iter().filter(|event| event["type"] == "flow:entered").count();
        assert_eq!(entered, 1);
    });
}

#[test]
fn a_run_killed_in_a_turn_continues_the_turn() {
    on_each_store(|world| {
        let child = start(world);
        await_event(world, "flow-r__owner", |event| event["type"] == "session:turn_started");
        kill(child);
        check_whole(world);
    });
}

/// Kills a run at the first event that satisfies `is_match`, and checks that a server completes the run.
fn check_server_resumes(world: &World, session: &str, is_match: impl Fn(&Value) -> bool) {
    let child = start(world);
    await_event(world, session, is_match);
    kill(child);
    let served = serve(world, "127.0.0.1:0");
    await_event(world, "flow-r", |event| {
        is_run_event(event, "ended") && event["entry"]["data"]["outcome"] == "completed"
    });
    drop(served);
    check_whole(world);
}

#[test]
fn a_server_resumes_a_run_killed_in_a_turn() {
    on_each_store(|world| {
        check_server_resumes(world, "flow-r__owner", |event| event["type"] == "session:turn_started");
    });
}

#[test]
fn a_server_resumes_a_run_killed_between_two_nodes() {
    on_each_store(|world| {
        check_server_resumes(world, "flow-r", |event| is_run_event(event, "handed"));
    });
}

#[test]
fn a_program_interrupted_by_a_kill_is_not_rerun() {
    on_each_store(|world| {
        let child = start(world);
        let began = Instant::now();
        while lines_added(world) == 0 {
            assert!(began.elapsed() < Duration::from_secs(90), "the program did not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(child);
        check_whole(world);
    });
}

#[test]
fn a_handoff_written_before_a_kill_is_not_repeated() {
    on_each_store(|world| {
        let child = start(world);
        await_event(world, "flow-r__owner", |event| event["entry"]["tool"] == "handoff");
        kill(child);
        check_whole(world);
    });
}

#[test]
fn a_run_killed_between_two_nodes_starts_the_next_node_once() {
    on_each_store(|world| {
        let child = start(world);
        await_event(world, "flow-r", |event| is_run_event(event, "handed"));
        kill(child);
        check_whole(world);
    });
}

#[test]
fn a_run_killed_before_the_improvement_phase_repeats_nothing() {
    on_each_store(|world| {
        let child = start(world);
        await_event(world, "flow-r", |event| is_run_event(event, "improving"));
        kill(child);
        check_whole(world);
    });
}

#[test]
fn a_run_killed_with_a_pending_approval_keeps_it_and_continues_the_other_nodes() {
    on_each_store(|world| {
        let slow = actor(
            world,
            "slow",
            &[vec![json!({ "wait_ms": 1_500 }), hand("1", to("output", "slow"))], vec![text("ok")]],
            json!({}),
        );
        let asks =
            actor(world, "asks", &[vec![hand("1", to("output", "asked"))], vec![text("ok")]], json!({}));
        let mut colab = node("ask", "asks", "asks");
        colab["human_colab"] = json!(true);
        let nodes = [colab, node("slow", "slow", "slow")];
        let edges = [("input", "ask"), ("input", "slow"), ("ask", "output"), ("slow", "output")];
        let file = write_flow(world, &[slow, asks], &nodes, &edges, json!({}));
        let child = world.spawn(&["flow", "run", &file, "--id", "r"]);
        await_event(world, "flow-r", |event| is_run_event(event, "waits"));
        kill(child);
        let view = world.json(&["flow", "resume", "r"]);
        assert_eq!(
            (view["status"].as_str(), view["approvals"].as_array().unwrap().len()),
            (Some("waiting"), 1),
            "{view}"
        );
        let view = world.json(&["approve", view["approvals"][0]["approval"].as_str().unwrap()]);
        assert_eq!(
            (view["status"].as_str(), view["results"].as_array().unwrap().len()),
            (Some("completed"), 2),
            "{view}"
        );
        let entered = events(world, "flow-r").iter().filter(|event| is_run_event(event, "entered")).count();
        assert_eq!(entered, 2);
    });
}

#[test]
fn a_run_killed_at_random_times_completes_and_runs_nothing_twice() {
    for scheme in ["sqlite", "jsonl"] {
        let mut count = FaultCount::new("kills of a flow run");
        for round in 0..rounds(ROUNDS) {
            let world = World::new(scheme);
            let child = start(&world);
            std::thread::sleep(Duration::from_millis((round * 7_919 + 211) % RUN_MS));
            kill(child);
            if events(&world, "flow-r").is_empty() {
                // The log has no entry for the run, so the run never started.
                continue;
            }
            // Kill the process again while it resumes.
            let again = world.spawn(&["flow", "resume", "r"]);
            std::thread::sleep(Duration::from_millis((round * 6_007 + 401) % RUN_MS));
            kill(again);
            check_whole(&world);
            count.add(1);
        }
        count.print();
    }
}

#[test]
fn two_concurrent_resumes_run_nothing_twice() {
    let world = World::new("sqlite");
    let child = start(&world);
    await_event(&world, "flow-r__owner", |event| event["type"] == "session:turn_started");
    kill(child);
    let mut both: Vec<Child> = (0..2).map(|_| world.spawn(&["flow", "resume", "r"])).collect();
    for child in &mut both {
        child.wait().unwrap();
    }
    check_whole(&world);
}

#[test]
fn a_run_without_a_runner_can_be_cancelled() {
    let world = World::new("sqlite");
    let child = start(&world);
    await_event(&world, "flow-r__owner", |event| event["type"] == "session:turn_started");
    kill(child);
    world.ok(&["flow", "cancel", "r"]);
    let view = world.json(&["flow", "show", "r"]);
    assert_eq!(view["status"], "cancelled", "{view}");
    assert_eq!(world.fail(4, &["flow", "cancel", "r"])["code"], "flow.ended");
    assert_eq!(world.json(&["info", "flow-r__owner"])["open_turn"], Value::Null);
    assert_eq!(world.fail(3, &["flow", "show", "nothing"])["code"], "flow.not_found");
}
