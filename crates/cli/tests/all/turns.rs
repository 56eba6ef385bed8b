//! Turns without a terminal: one-shot, piped, and through commands.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::harness::{World, parse_lines};

fn world() -> World {
    World::new("sqlite")
}

fn script(world: &World, text: &str) -> String {
    let path = world.path("script.toml");
    std::fs::write(&path, text).unwrap();
    format!("scripted:{}", path.display())
}

const HELLO: &str = "[[calls]]\npieces = [{ text = \"Hello **you**.\" }]\n";

/// A session whose agent asks before it writes.
fn asking_session(world: &World) -> String {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let text = "id: helper\nmodel: demo\ntools: [write_file]\nfs_scope: project\n";
    std::fs::write(world.path("agents/helper.yaml"), text).unwrap();
    world.json(&["new", "--agent", "helper"])["id"].as_str().unwrap().to_owned()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(120), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn a_pipe_gets_only_the_answer() {
    let world = world();
    let model = script(&world, HELLO);
    let ran = world.run_with(&["chat", "--model", &model], b"hi\n");
    assert_eq!((ran.status, ran.out().as_str()), (Some(0), "Hello **you**.\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("scripted:") && ran.stderr.contains("session "), "{}", ran.stderr);
    assert_eq!(world.texts("@last", None), ["hi", "Hello **you**."]);
}

#[test]
fn a_prompt_and_a_pipe_are_joined() {
    let world = world();
    let model = script(&world, HELLO);
    world.run_with(&["chat", "--model", &model, "-p", "Explain this:"], b"fn main() {}\n");
    assert_eq!(world.texts("@last", None)[0], "Explain this:\n\nfn main() {}");
    world.run_with(&["chat", "--model", &model, "-p", "-"], b"just this");
    assert_eq!(world.texts("@last", None)[0], "just this");
    assert_eq!(world.run_with(&["chat", "-p", "-"], b" \n").status, Some(2));
    assert_eq!(world.run_with(&["chat", "@last", "--agent", "x", "-p", "y"], b"").status, Some(2));
}

#[test]
fn an_open_pipe_without_data_does_not_block_a_prompt() {
    let world = world();
    let model = script(&world, HELLO);
    let mut child = world.spawn(&["chat", "--model", &model, "-p", "hi"]);
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Hello **you**.\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("no input on stdin"));
}

#[test]
fn with_json_every_event_is_printed_as_a_line() {
    let world = world();
    let model = script(&world, HELLO);
    let lines = world.lines(&["chat", "--model", &model, "-p", "hi"]);
    let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    for wanted in
        ["session:turn_started", "session:message", "agent:token", "agent:message", "session:turn_completed"]
    {
        assert!(types.contains(&wanted), "{wanted}: {types:?}");
    }
    let seqs: Vec<u64> = lines.iter().filter_map(|line| line["seq"].as_u64()).collect();
    assert!(seqs.is_sorted(), "{seqs:?}");
    assert!(lines.iter().all(|line| line["session"].is_string()), "{lines:?}");
}

#[test]
fn a_conversation_continues_by_session_and_by_directory() {
    let world = world();
    let model = script(
        &world,
        "by = \"history\"\n[[calls]]\npieces = [{ text = \"one\" }]\n[[calls]]\npieces = [{ text = \"two\" }]\n\
        [[calls]]\npieces = [{ text = \"three\" }]\n",
    );
    assert_eq!(world.ok(&["chat", "--model", &model, "-p", "a"]), "one");
    assert_eq!(world.ok(&["chat", "-c", "-p", "b"]), "two");
    assert_eq!(world.ok(&["chat", "@last", "-p", "c"]), "three");
    assert_eq!(world.texts("@last", None), ["a", "one", "b", "two", "c", "three"]);
}

#[test]
fn a_failed_turn_fails_the_command_with_its_code() {
    let world = world();
    let ran = world.run(&["chat", "--model", "anthropic/claude-x", "-p", "hi", "--json"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert_eq!(ran.error()["code"], "model.no_key");
    let session = world.session(&[]);
    let lines = world.run(&["chat", &session, "--model", "unknown/x", "-p", "hi"]);
    assert_eq!(lines.status, Some(1));
    assert!(lines.stderr.contains("hint:"), "{}", lines.stderr);
}

#[test]
fn send_prints_the_answer_and_the_outcome() {
    let world = world();
    let session = world.session(&[]);
    let sent = world.json(&["send", &session, "hello"]);
    assert_eq!(sent["outcome"], "completed");
    assert!(sent["text"].as_str().unwrap().contains("demo model"), "{sent}");
    assert!(world.ok(&["send", &session, "what did I say?"]).contains("hello"));
    assert_eq!(world.fail(3, &["send", "nosuchsession", "x"])["code"], "session.not_found");
    assert_eq!(world.fail(4, &["cancel", &session])["code"], "turn.none");
    assert_eq!(world.json(&["resume", &session])["outcome"], "nothing");
}

#[test]
fn a_turn_that_needs_approval_exits_and_continues_with_the_answer() {
    let world = world();
    let session = asking_session(&world);
    let sent = world.json(&["send", &session, "write notes.txt: one"]);
    assert_eq!(sent["outcome"], "waiting", "{sent}");
    let id = sent["waiting"][0]["approval"].as_str().unwrap();
    assert!(!world.path("notes.txt").exists());
    assert_eq!(world.fail(4, &["send", &session, "more"])["code"], "turn.interrupted");
    let approved = world.json(&["approve", id]);
    assert_eq!(approved["outcome"], "completed", "{approved}");
    assert_eq!(std::fs::read_to_string(world.path("notes.txt")).unwrap().trim(), "one");
    assert_eq!(world.fail(3, &["approve", id])["code"], "approval.not_found");

    let ran = world.run(&["send", &session, "write other.txt: two"]);
    assert_eq!(ran.status, Some(0));
    let id = ran.stderr.split("sapwood deny ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let denied = world.json(&["deny", &id, "--reason", "not now"]);
    assert_eq!(denied["outcome"], "completed", "{denied}");
    assert!(!world.path("other.txt").exists());
}

#[test]
fn one_turn_runs_at_a_time_and_the_next_can_be_queued() {
    let world = world();
    let model = script(
        &world,
        "by = \"history\"\n[[calls]]\npieces = [{ text = \"slow\" }, { wait_ms = 4000 }]\n\
        [[calls]]\npieces = [{ text = \"next\" }]\n",
    );
    let session = world.session(&[]);
    world.ok(&["chat", &session, "--model", "demo", "-p", "hello"]);
    let session = world.session(&[]);
    let mut first = world.spawn(&["chat", &session, "--model", &model, "-p", "first"]);
    wait_until("the turn", || world.json(&["info", &session])["open_turn"].is_string());
    assert_eq!(world.fail(4, &["send", &session, "second"])["code"], "turn.running");
    assert!(world.json(&["send", &session, "second", "--queue"])["queued"].is_string());
    assert!(first.wait().unwrap().success());
    world.run(&["resume", &session]);
    wait_until("the queued turn", || world.texts(&session, None).contains(&"next".to_owned()));
    assert_eq!(world.texts(&session, None), ["first", "slow", "second", "next"]);
}

#[test]
fn cancel_ends_a_turn_of_another_process() {
    let world = world();
    let model = script(&world, "[[calls]]\npieces = [{ text = \"so far\" }, { wait_ms = 60000 }]\n");
    let session = world.session(&[]);
    let mut first = world.spawn(&["chat", &session, "--model", &model, "-p", "go", "--json"]);
    // The test expects a partial answer, so wait until the model has sent some text.
    let mut output_lines = BufReader::new(first.stdout.take().unwrap()).lines();
    assert!(output_lines.any(|line| line.unwrap().contains("agent:token")), "the model sent nothing");
    let rest = std::thread::spawn(move || output_lines.count());
    world.ok(&["cancel", &session]);
    assert_eq!(first.wait().unwrap().code(), Some(1));
    rest.join().unwrap();
    assert_eq!(world.texts(&session, None), ["go", "so far"]);
}

#[test]
fn ctrl_c_cancels_the_turn_and_ends_the_command() {
    let world = world();
    let model = script(&world, "[[calls]]\npieces = [{ text = \"so far\" }, { wait_ms = 60000 }]\n");
    let session = world.session(&[]);
    let child = world.spawn(&["chat", &session, "--model", &model, "-p", "go", "--json"]);
    wait_until("the turn", || world.json(&["info", &session])["open_turn"].is_string());
    std::thread::sleep(Duration::from_millis(500));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let lines = parse_lines(&String::from_utf8(output.stdout).unwrap());
    assert!(lines.iter().any(|line| line["type"] == "session:cancelled"), "{lines:?}");
}

#[test]
fn resume_continues_after_a_kill_without_repeating_a_message() {
    let world = world();
    let slow = "by = \"history\"\n[[calls]]\npieces = [{ text = \"half\" }, { wait_ms = 60000 }]\n";
    let model = script(&world, slow);
    let session = world.session(&[]);
    let mut child = world.spawn(&["chat", &session, "--model", &model, "-p", "go"]);
    wait_until("the turn", || world.json(&["info", &session])["open_turn"].is_string());
    std::thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    script(&world, "by = \"history\"\n[[calls]]\npieces = [{ text = \"whole\" }]\n");
    let resumed = world.json(&["resume", &session]);
    assert_eq!((resumed["outcome"].as_str(), resumed["text"].as_str()), (Some("completed"), Some("whole")));
    let texts = world.texts(&session, None);
    assert_eq!(texts.iter().filter(|text| *text == "go").count(), 1, "{texts:?}");
    assert_eq!(texts.last().map(String::as_str), Some("whole"));
}
