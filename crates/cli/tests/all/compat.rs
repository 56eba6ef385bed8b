//! The previous version and this one as servers on one PostgreSQL database, and the upgrade after which only this one can
//! use it.
//!
//! `cargo xtask compat` builds the previous version and runs this test; SAPWOOD_COMPAT_BINARY names the binary. Other test
//! runs skip it, because the build takes minutes.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sapwood_store::conformance::cluster;
use serde_json::{Value, json};

use crate::harness::{CommandResult, World, finish, parse_lines, texts_of};
use crate::serve::{Served, open, request};

/// Number of sessions that the two versions work on in turn.
const ROUNDS: usize = 10;
/// Deadline for every wait.
const DEADLINE: Duration = Duration::from_secs(180);

const AGENT: &str = "\
model: demo
system_prompt: You are a careful worker.
tools: [run_command]
fs_scope: project
allowed_commands: [\"echo ready\"]
";

/// The role hands over its work, and the run waits until a person approves it.
const FLOW: &str = r#"
schema_version: "1.0"
workflow:
  id: waiting
  agents: [{ id: writer, model: demo }]
  nodes:
    - { id: input, type: input }
    - id: draft
      type: agent
      role: owner
      agent_ref: writer
      human_colab: true
      prompt_template: 'use handoff {"targets": [{"node": "output", "artifact": "work.md", "content": "moss grows"}]}'
    - { id: output, type: output }
  edges: [{ from: input, to: draft }, { from: draft, to: output }]
"#;

const CONFIG: &str = "\
[pressure]
yellow_percent = 1
orange_percent = 2
red_percent = 100

[[triggers]]
name = \"build\"
webhook = {}
session = \"builds\"
prompt = \"Look at {{payload.branch}}.\"
";

/// One of the two versions.
struct Version<'w> {
    world: &'w World,
    binary: PathBuf,
    name: &'static str,
}

impl Version<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let known = self.world.command(args);
        let mut command = Command::new(&self.binary);
        command.args(known.get_args()).current_dir(self.world.dir.path()).stdin(Stdio::null());
        for (name, value) in known.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn run(&self, args: &[&str]) -> CommandResult {
        finish(self.command(&[args, &["--json"]].concat()))
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(args);
        assert_eq!(ran.status, Some(0), "{} {args:?}: {}", self.name, ran.stderr);
        serde_json::from_str(&ran.out()).unwrap_or_else(|_| panic!("{args:?} printed {:?}", ran.out()))
    }

    fn lines(&self, args: &[&str]) -> Vec<Value> {
        let ran = self.run(args);
        assert_eq!(ran.status, Some(0), "{} {args:?}: {}", self.name, ran.stderr);
        parse_lines(&ran.out())
    }

    fn serve(&self) -> Served {
        let mut command = self.command(&["serve", "--addr", "127.0.0.1:0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("unexpected {line:?}"));
        Served { child, addr: announced["addr"].as_str().unwrap().to_owned() }
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn begin(server: &Served, session: &str, input: &str) -> String {
    let path = format!("/v1/sessions/{session}/turns");
    let (status, accepted) =
        request(&server.addr, "POST", &path, None, &json!({ "input": input }).to_string());
    assert_eq!(status, 202, "{accepted}");
    accepted["turn"].as_str().unwrap().to_owned()
}

fn await_status(server: &Served, session: &str, turn: &str, wanted: &str) {
    let path = format!("/v1/sessions/{session}/turns/{turn}");
    wait_for(&format!("{session} to be {wanted}"), || {
        let (_, found) = request(&server.addr, "GET", &path, None, "");
        (found["status"] == wanted).then_some(())
    });
}

/// Runs a turn on one server while a client of the other server follows the session's events.
fn turn_followed(writer: &Served, follower: &Served, session: &str, input: &str) {
    let path = format!("/v1/sessions/{session}/events");
    let (status, mut events) = open(&follower.addr, "GET", &path, &[], "").unwrap();
    assert_eq!(status, 200);
    let before = request(&writer.addr, "GET", &format!("/v1/sessions/{session}"), None, "").1;
    let done = before["turns"].as_u64().unwrap_or(0) as usize;
    let turn = begin(writer, session, input);
    let (mut seen, mut line) = (0, String::new());
    while seen <= done {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream of {session} ended");
        seen += usize::from(line.starts_with("data:") && line.contains("session:turn_completed"));
    }
    await_status(follower, session, &turn, "completed");
}

/// A turn that asks for approval on one server and is answered on the other.
fn turn_approved(asking: &Served, answering: &Served, session: &str) {
    let turn = begin(asking, session, "run echo ready");
    await_status(answering, session, &turn, "waiting");
    let (_, waiting) =
        request(&answering.addr, "GET", &format!("/v1/sessions/{session}/approvals"), None, "");
    let approval = waiting["items"][0]["approval"].as_str().unwrap_or_else(|| panic!("{waiting}"));
    let answer = json!({ "answer": "approved" }).to_string();
    let (status, answered) =
        request(&answering.addr, "POST", &format!("/v1/approvals/{approval}"), None, &answer);
    assert!(status < 300, "{status} {answered}");
    await_status(asking, session, &turn, "completed");
}

/// Works on one session with both versions in turn.
fn round(number: usize, one: (&Version<'_>, &Served), two: (&Version<'_>, &Served)) {
    let (session, fork) = (format!("s{number}"), format!("f{number}"));
    one.0.json(&["new", "--id", &session, "--agent", "asker"]);
    turn_followed(one.1, two.1, &session, &format!("write 80 words about topic{number}"));
    turn_followed(two.1, one.1, &session, "what did I say?");
    turn_approved(one.1, two.1, &session);
    turn_approved(two.1, one.1, &session);
    two.0.json(&["fork", &session, "--id", &fork]);
    turn_followed(one.1, two.1, &fork, "what did I say?");
    two.0.json(&["compact", &session, "--keep-last", "1", "--compact-strategy", "truncate"]);
    turn_followed(one.1, two.1, &session, "what did I say?");
    one.0.json(&["rename", &session, "A new title"]);
}

/// Runs a flow on one version until it waits, and completes it on the other.
fn flow(number: usize, one: &Version<'_>, two: &Version<'_>) {
    let id = format!("run{number}");
    let ran = one.run(&["flow", "run", "flow.yaml", "--id", &id, "--input", "harbour"]);
    let view: Value = serde_json::from_str(&ran.out()).unwrap_or_else(|_| panic!("{}", ran.stderr));
    assert_eq!(view["status"], "waiting", "{view}");
    let seen = two.json(&["flow", "show", &id]);
    assert_eq!(seen["status"], "waiting", "{seen}");
    let done = two.json(&["approve", seen["approvals"][0]["approval"].as_str().unwrap()]);
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(one.json(&["flow", "show", &id])["status"], "completed");
}

/// Fires a trigger with the same key on both versions: it runs once.
fn trigger(key: &str, one: &Version<'_>, two: &Version<'_>) {
    let payload = json!({ "branch": format!("branch-{key}") }).to_string();
    for version in [one, two] {
        version.json(&["trigger", "fire", "build", "--payload", &payload, "--key", key]);
    }
    let texts = texts_of(&two.json(&["context", "builds"]));
    let count = texts.iter().filter(|text| **text == format!("Look at branch-{key}.")).count();
    assert_eq!(count, 1, "{texts:?}");
}

/// Everything that can be compared between the versions.
fn reading(version: &Version<'_>) -> Vec<(String, Value)> {
    let mut ids: Vec<String> =
        version.lines(&["ls"]).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    let read = |id: String| {
        // The previous version does not mark summaries.
        let context = version.json(&["context", &id])["messages"].to_string();
        let context = context.replace("<summary>\\n", "").replace("\\n</summary>", "");
        let events: Vec<Value> =
            version.lines(&["events", &id]).iter().map(|event| event["id"].clone()).collect();
        let usage = version.json(&["usage", &id])["total"].clone();
        let rounds: Vec<Value> = version
            .lines(&["ledger", &id])
            .iter()
            .map(|round| json!([round["seq"], round["action"], round["result"]["tokens"]]))
            .collect();
        (id, json!({ "context": context, "events": events, "usage": usage, "rounds": rounds }))
    };
    ids.into_iter().map(read).collect()
}

fn sql(world: &World, sql: &str) -> String {
    cluster::shared().sql(world.url.rsplit('/').next().unwrap(), sql).trim().to_owned()
}

fn check_both_read_the_same(old: &Version<'_>, new: &Version<'_>) -> usize {
    let (by_old, by_new) = (reading(old), reading(new));
    for (before, after) in by_old.iter().zip(&by_new) {
        assert_eq!(before, after);
    }
    assert_eq!(by_old.len(), by_new.len());
    for number in 0..ROUNDS {
        for version in [old, new] {
            let hits = version.lines(&["search", &format!("topic{number}")]);
            assert!(!hits.is_empty(), "{} does not find topic{number}", version.name);
        }
    }
    for version in [old, new] {
        let doctor = version.json(&["doctor"]);
        assert_eq!(doctor["findings"], json!([]), "{}", version.name);
    }
    by_old.len()
}

/// Upgrades the database. The old version then refuses it, and the running new server writes the new format.
fn upgrade(old: &Version<'_>, new: &Version<'_>, old_server: Served, new_server: &Served) {
    let refused = new.run(&["store", "upgrade"]);
    assert_eq!(refused.error()["code"], "store.in_use", "{}", refused.stderr);
    drop(old_server);
    wait_for("the connections of the old server to close", || {
        (new.json(&["store", "show"])["older_connections"] == 0).then_some(())
    });
    let before = reading(new);
    assert_eq!(new.json(&["store", "upgrade"])["upgraded"], true);
    assert_eq!(reading(new), before, "the upgrade changed what is read");
    let refused = old.run(&["ls"]);
    assert_eq!(refused.error()["code"], "store.too_new", "{}", refused.stderr);
    let turn_in = |session: &str| {
        let turn = begin(new_server, session, "what did I say?");
        await_status(new_server, session, &turn, "completed");
    };
    let count = |version: u32| {
        let sql_text = format!("SELECT count(*) FROM sapwood.entries WHERE version = {version}");
        sql(new.world, &sql_text).parse::<u64>().unwrap()
    };
    wait_for("the running server to write the new format", || {
        turn_in("s0");
        (count(3) > 0).then_some(())
    });
    turn_in("s0");
    let of_version_2 = count(2);
    for number in 0..ROUNDS {
        turn_in(&format!("s{number}"));
    }
    assert_eq!(count(2), of_version_2, "the server still writes the previous format");
    new.json(&["new", "--id", "after", "--agent", "asker"]);
}

#[test]
fn the_previous_version_and_this_one_share_a_database_until_it_is_upgraded() {
    let Ok(binary) = std::env::var("SAPWOOD_COMPAT_BINARY") else {
        // Write straight to stderr: the output of eprintln! in a passing test is captured.
        let _ = writeln!(std::io::stderr(), "SKIPPED compat: run `cargo xtask compat`");
        return;
    };
    let world = World::new("postgres");
    let old = Version { world: &world, binary: binary.into(), name: "old" };
    let new = Version { world: &world, binary: env!("CARGO_BIN_EXE_sapwood").into(), name: "new" };
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path("agents/asker.yaml"), format!("id: asker\napprovals: ask\n{AGENT}")).unwrap();
    std::fs::write(world.path("flow.yaml"), FLOW).unwrap();
    world.configure(CONFIG);
    old.json(&["new", "--id", "first"]);
    let (old_server, new_server) = (old.serve(), new.serve());
    assert_eq!(sql(&world, "SELECT max(step) FROM sapwood.layout"), "3");
    for number in 0..ROUNDS {
        let (old, new) = ((&old, &old_server), (&new, &new_server));
        if number % 2 == 0 { round(number, old, new) } else { round(number, new, old) }
    }
    for (number, (one, two)) in [(&old, &new), (&new, &old)].into_iter().enumerate() {
        flow(number, one, two);
        trigger(&number.to_string(), one, two);
        one.json(&["memory", "add", &format!("Fact number {number} by {}.", one.name)]);
        assert_eq!(two.lines(&["memory", "ls"]).len(), number + 1);
    }
    let sessions = check_both_read_the_same(&old, &new);
    let versions = "SELECT string_agg(version || ':' || count, ' ' ORDER BY version) FROM
                    (SELECT version, count(*) FROM sapwood.entries GROUP BY version) AS counted";
    let before = sql(&world, versions);
    assert!(before.starts_with("2:") && !before.contains(' '), "{before}");
    upgrade(&old, &new, old_server, &new_server);
    let after = sql(&world, versions);
    assert!(after.contains(" 3:"), "{after}");
    new.json(&["doctor"]);
    println!("{sessions} sessions; entries by format before the upgrade {before}, after it {after}");
}
