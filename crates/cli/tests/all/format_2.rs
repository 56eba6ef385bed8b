//! Stores that the previous version wrote, in log format 2. `fixtures/format-2/make.sh` made them, with the contexts and
//! exports that the previous version printed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sapwood_store::conformance::cluster;
use serde_json::Value;

use crate::harness::{World, parse_lines, texts_of};
use crate::serve::{request, serve};

/// The custom types of format 2 that have their own kind in format 3.
const RECORDS: [(&str, &str); 8] = [
    ("turn_terms", "turn_terms"),
    ("sapwood.usage", "usage_reported"),
    ("sapwood.pressure", "pressure_changed"),
    ("sapwood.flow", "flow_event"),
    ("sapwood.flow_post", "flow_assigned"),
    ("sapwood.hook", "hook_ran"),
    ("sapwood.trigger", "trigger_event"),
    ("sapwood.memory", "memory_learned"),
];

struct Fixture {
    world: World,
    dir: PathBuf,
}

impl Fixture {
    /// Opens a copy of the fixture of this kind.
    fn open(kind: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-2").join(kind);
        let world = World::new(kind);
        let target = world.path(&format!("store.{kind}"));
        match kind {
            "sqlite" => drop(std::fs::copy(dir.join("store.db"), target).unwrap()),
            "jsonl" => copy_dir(&dir.join("store"), &target),
            _ => load(&world.url, &std::fs::read_to_string(dir.join("store.sql")).unwrap()),
        }
        Self { world, dir }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap()
    }

    fn sessions(&self) -> Vec<String> {
        self.text("sessions.txt").lines().map(str::to_owned).collect()
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Loads a dump into a database. The role that it grants access to exists in every cluster that Sapwood has used.
fn load(url: &str, dump: &str) {
    let cluster = cluster::shared();
    let create =
        "DO $$ BEGIN CREATE ROLE sapwood_app NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    cluster.sql("postgres", create);
    let mut psql = cluster.command("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = psql.spawn().unwrap();
    child.stdin.take().unwrap().write_all(dump.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Converts a line of an export of the previous version.
fn upcast(mut line: Value) -> Value {
    if line["type"] == "session_header" {
        line["version"] = 3.into();
    }
    if line["type"] == "custom_info"
        && let Some((_, kind)) = RECORDS.iter().find(|(old, _)| line["custom_type"] == *old)
    {
        line["type"] = (*kind).into();
        line.as_object_mut().unwrap().remove("custom_type");
    }
    if line["type"] == "round" {
        let status = match line["result"]["status"].as_str() {
            Some("error") => Some("failed"),
            Some("malformed") => Some("refused"),
            _ => None,
        };
        if let Some(status) = status {
            line["result"]["status"] = status.into();
        }
    }
    line
}

/// The messages of a context. The previous version did not mark summaries.
fn comparable(context: &Value) -> Value {
    let messages = context["messages"].to_string();
    let plain = messages.replace("<summary>\\n", "").replace("\\n</summary>", "");
    serde_json::json!({
        "messages": serde_json::from_str::<Value>(&plain).unwrap(),
        "system": context["system"], "model": context["model"], "skills": context["skills"],
    })
}

/// Checks that everything reads as the previous version left it.
fn check_unchanged(fixture: &Fixture) {
    let world = &fixture.world;
    let mut listed: Vec<String> =
        world.lines(&["ls"]).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    listed.sort();
    assert_eq!(listed, fixture.sessions());
    for session in listed {
        let before: Value = serde_json::from_str(&fixture.text(&format!("contexts/{session}.json"))).unwrap();
        assert_eq!(comparable(&world.json(&["context", &session])), comparable(&before), "{session}");
        let before = parse_lines(&fixture.text(&format!("exports/{session}.jsonl")));
        let expected: Vec<Value> = before.into_iter().map(upcast).collect();
        assert_eq!(parse_lines(&world.ok(&["export", &session])), expected, "{session}");
    }
    check_views(world);
    assert_eq!(world.texts_in("acme", "talk"), ["of another tenant"]);
    world.ok(&["doctor"]);
    world.ok(&["audit", "--verify"]);
}

fn check_views(world: &World) {
    let feed = world.lines(&["feed", "talk"]);
    assert!(feed.iter().any(|item| item["label"] == "hook"), "{feed:?}");
    let statuses: Vec<Value> =
        world.lines(&["ledger", "talk"]).iter().map(|round| round["result"]["status"].clone()).collect();
    assert!(statuses.len() > 5 && statuses.iter().all(|status| status == "ok"), "{statuses:?}");
    assert!(!world.lines(&["search", "ferns"]).is_empty());
    assert_eq!(world.lines(&["search", "machine"])[0]["session"], "imported");
    assert!(world.ok(&["memory", "ls"]).contains("The harbour closes at six."));
    assert_eq!(world.json(&["flow", "show", "done"])["status"], "completed");
    let open = world.json(&["flow", "show", "open"]);
    assert_eq!((open["status"].as_str(), open["phase"].as_str()), (Some("waiting"), Some("forward")));
    let events = world.lines(&["events", "talk"]);
    assert!(events.iter().any(|event| event["type"] == "session:pressure"));
    assert!(!world.lines(&["archives", "talk"]).is_empty());
    assert_eq!(world.lines(&["key", "ls"])[0]["user"], "ana");
    assert_eq!(world.json(&["ancestry", "fork"])["root"], "talk");
    assert_eq!(
        world.fail(4, &["inject", "closed", "--role", "user", "--text", "x"])["code"],
        "session.archived"
    );
}

/// Continues turns, approvals, flows and triggers.
fn check_continues(world: &World) {
    let answer = world.json(&["send", "talk", "run echo ready"]);
    assert_eq!(answer["outcome"], "completed", "{answer}");
    let last = world.lines(&["ledger", "talk"]);
    assert!(last.iter().rev().take(2).any(|round| round["action"]["what"] == "run_command"), "{last:?}");
    let events = world.lines(&["events", "waiting"]);
    let asked = events.iter().find(|event| event["type"] == "agent:approval_requested").unwrap();
    let answer = world.json(&["approve", asked["entry"]["approval"].as_str().unwrap()]);
    assert_eq!(answer["outcome"], "completed", "{answer}");
    assert!(texts_of(&world.json(&["context", "waiting"])).iter().any(|text| text.contains("ready")));
    let waiting = world.json(&["flow", "show", "open"]);
    let done = world.json(&["approve", waiting["approvals"][0]["approval"].as_str().unwrap()]);
    assert_eq!(
        (done["status"].as_str(), done["results"][0]["text"].as_str()),
        (Some("completed"), Some("moss grows"))
    );
    world.configure(
        "[[triggers]]\nname = \"build\"\nwebhook = {}\nsession = \"builds\"\nprompt = \"Look at {{payload.branch}}.\"\n",
    );
    let fire =
        |key| world.json(&["trigger", "fire", "build", "--payload", r#"{"branch":"dev"}"#, "--key", key]);
    fire("1");
    assert!(
        !world.texts("builds", None).iter().any(|text| text == "Look at dev."),
        "the firing was repeated"
    );
    assert_eq!(fire("2")["outcome"], "completed");
    let imported = world.json(&["send", "imported", "hello"]);
    assert!(imported["notice"].as_str().unwrap().contains("was imported"), "{imported}");
    world.ok(&["fork", "talk", "--id", "new-fork"]);
    assert_eq!(world.json(&["send", "new-fork", "run echo ready"])["outcome"], "completed");
    world.ok(&["doctor"]);
}

#[test]
fn a_sqlite_store_of_the_previous_version_reads_the_same_and_continues() {
    let fixture = Fixture::open("sqlite");
    check_unchanged(&fixture);
    check_continues(&fixture.world);
}

#[test]
fn entries_of_the_previous_version_are_unproven_until_they_are_sealed() {
    for kind in ["sqlite", "jsonl", "postgres"] {
        let fixture = Fixture::open(kind);
        let world = &fixture.world;
        let before = world.json(&["doctor"]);
        assert_eq!(before["unproven"], before["entries"], "{kind}: {before}");
        if kind == "postgres" {
            let sealed = world.run(&["doctor", "--seal", "--json"]);
            assert!(sealed.status == Some(1) && sealed.out().contains("store upgrade"), "{}", sealed.out());
            world.ok(&["store", "upgrade"]);
        }
        world.add_messages("talk", &["u:after the upgrade"]);
        let between = world.json(&["doctor"]);
        assert_eq!(between["unproven"], before["entries"], "{kind}: new entries are proven");
        let sealed = world.json(&["doctor", "--seal"]);
        assert!(sealed["sealed"]["entries"].as_u64() > Some(10), "{kind}: {sealed}");
        assert_eq!((&sealed["unproven"], &sealed["findings"]), (&0.into(), &serde_json::json!([])), "{kind}");
        let again = world.json(&["doctor", "--seal", "--heads"]);
        assert_eq!(again["sealed"]["entries"], 0, "{kind}");
        assert_eq!(again["heads"].as_array().map(Vec::len), Some(fixture.sessions().len()), "{kind}");
    }
}

#[test]
fn a_jsonl_store_of_the_previous_version_reads_the_same_and_continues() {
    let fixture = Fixture::open("jsonl");
    check_unchanged(&fixture);
    check_continues(&fixture.world);
}

/// The log format versions of the stored entries.
fn versions(world: &World) -> String {
    let database = world.url.rsplit('/').next().unwrap();
    let sql = "SELECT string_agg(DISTINCT version::text, ',') FROM sapwood.entries";
    cluster::shared().sql(database, sql).trim().to_owned()
}

#[test]
fn a_postgres_database_keeps_the_previous_format_until_it_is_upgraded() {
    let fixture = Fixture::open("postgres");
    let world = &fixture.world;
    let shown = world.json(&["store", "show"]);
    assert_eq!((&shown["layout"], &shown["log_format"]), (&3.into(), &2.into()), "{shown}");
    assert_eq!(shown["upgrade_pending"], true);
    check_unchanged(&fixture);
    check_continues(world);
    assert_eq!(versions(world), "2");
    let upgraded = world.json(&["store", "upgrade"]);
    assert_eq!((&upgraded["upgraded"], &upgraded["after"]["log_format"]), (&true.into(), &3.into()));
    assert_eq!(world.json(&["store", "upgrade"])["upgraded"], false);
    assert_eq!(world.json(&["send", "talk", "what did I say?"])["outcome"], "completed");
    assert_eq!(versions(world), "2,3");
    world.ok(&["doctor"]);
}

#[test]
fn a_running_server_notices_the_upgrade() {
    let fixture = Fixture::open("postgres");
    let world = &fixture.world;
    let served = serve(world, "127.0.0.1:0");
    let key = fixture.text("key.txt");
    let write = || {
        let message = r#"{"role":"user","content":"more"}"#;
        request(&served.addr, "POST", "/v1/sessions/mine/entries", Some(key.trim()), message).0
    };
    request(&served.addr, "POST", "/v1/sessions", Some(key.trim()), r#"{"id":"mine"}"#);
    assert_eq!((write(), versions(world).as_str()), (201, "2"));
    world.ok(&["store", "upgrade"]);
    let began = std::time::Instant::now();
    while versions(world) != "2,3" {
        assert!(began.elapsed().as_secs() < 120, "the server still writes the previous format");
        assert_eq!(write(), 201);
    }
}

#[test]
fn an_upgraded_database_of_the_previous_version_reads_the_same() {
    let fixture = Fixture::open("postgres");
    fixture.world.ok(&["store", "upgrade"]);
    check_unchanged(&fixture);
    check_continues(&fixture.world);
}

#[test]
fn an_upgrade_is_refused_while_a_server_of_the_previous_version_is_connected() {
    let fixture = Fixture::open("postgres");
    let mut psql = cluster::shared().command("psql");
    psql.env("PGAPPNAME", "sapwood").args(["-X", "-d", &fixture.world.url]);
    let mut old = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    while fixture.world.json(&["store", "show"])["older_connections"] != 1 {
        assert!(began.elapsed().as_secs() < 120, "psql did not connect");
    }
    let refused = fixture.world.fail(1, &["store", "upgrade"]);
    assert_eq!(refused["code"], "store.in_use");
    assert_eq!(fixture.world.json(&["store", "show"])["log_format"], 2);
    assert_eq!(fixture.world.json(&["store", "upgrade", "--force"])["upgraded"], true);
    drop(old.stdin.take());
    old.wait().unwrap();
}
