//! `sapwood migrate` between all kinds of stores, repeatedly, and while the source is in use.

use std::process::Stdio;

use serde_json::Value;

use crate::harness::World;

/// A store with branches, a fork of a fork, a label, a compaction, a key and a blob.
fn fill(world: &World) {
    world.ok(&["new", "--id", "root", "--title", "Root"]);
    world.add_messages("root", &["u:one", "a:two", "u:three", "a:four"]);
    world.ok(&["label", "root", "2", "here"]);
    world.ok(&["branch", "root", "2"]);
    world.add_messages("root", &["u:another way"]);
    world.ok(&["fork", "root", "--at", "2", "--id", "fork"]);
    world.add_messages("fork", &["u:its own"]);
    world.ok(&["fork", "fork", "--id", "inner"]);
    world.add_messages("inner", &["u:deeper"]);
    world.ok(&["fork", "root", "--at", "1", "--id", "orphan"]);
    world.add_messages("orphan", &["u:alone"]);
    world.ok(&["trim", "root", "--keep-last", "1"]);
    world.ok(&["key", "new", "--user", "ana"]);
}

fn migrate(from: &World, to: &World, more: &[&str]) -> Vec<Value> {
    let args = ["migrate", "--from", &from.url, "--to", &to.url];
    from.lines(&[&args, more].concat())
}

fn total(lines: &[Value], key: &str) -> u64 {
    lines.last().unwrap()["total"][key].as_u64().unwrap()
}

/// Checks that the read commands print the same output for both stores.
fn check_same(from: &World, to: &World) {
    let listed = |world: &World| -> Vec<String> {
        let mut ids: Vec<String> =
            world.lines(&["ls"]).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(from), listed(to));
    for session in listed(from) {
        for command in ["events", "context", "tree", "info", "usage"] {
            assert_eq!(
                from.ok(&[command, &session, "--json"]),
                to.ok(&[command, &session, "--json"]),
                "{command} {session}"
            );
        }
    }
    assert_eq!(from.lines(&["search", "deeper"]).len(), to.lines(&["search", "deeper"]).len());
    assert_eq!(from.ok(&["key", "ls", "--json"]), to.ok(&["key", "ls", "--json"]));
    to.ok(&["doctor"]);
    to.ok(&["audit", "--verify"]);
}

#[test]
fn everything_migrates_from_store_to_store_and_back() {
    let worlds = ["sqlite", "postgres", "jsonl", "sqlite"].map(World::new);
    fill(&worlds[0]);
    for pair in worlds.windows(2) {
        let dry = migrate(&pair[0], &pair[1], &["--dry-run"]);
        assert!(total(&dry, "added") > 10 && pair[1].lines(&["ls"]).is_empty(), "{dry:?}");
        let lines = migrate(&pair[0], &pair[1], &[]);
        assert_eq!((total(&lines, "problems"), total(&lines, "sessions")), (0, 4), "{lines:?}");
        assert_eq!(total(&lines, "added"), total(&dry, "added"));
        assert!(lines.iter().rev().skip(1).all(|line| line["hash"].is_string()), "{lines:?}");
        check_same(&pair[0], &pair[1]);
        let again = migrate(&pair[0], &pair[1], &[]);
        assert_eq!(total(&again, "added"), 0);
    }
}

#[test]
fn an_interrupted_migration_resumes_and_includes_new_entries() {
    let (from, to) = (World::new("sqlite"), World::new("postgres"));
    from.ok(&["new", "--id", "s"]);
    let text: String = (0..3_000).map(|n| format!("{{\"role\":\"user\",\"content\":\"{n}\"}}\n")).collect();
    let ran = from.run_with(&["inject", "s", "--message", "-", "--json"], text.as_bytes());
    assert_eq!(ran.status, Some(0));
    let mut child = from.command(&["migrate", "--from", &from.url, "--to", &to.url, "--json"]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let _ = child.kill();
    child.wait().unwrap();
    from.add_messages("s", &["u:meanwhile"]);
    let lines = migrate(&from, &to, &[]);
    assert_eq!((total(&lines, "entries"), total(&lines, "problems")), (3_001, 0));
    check_same(&from, &to);
}

#[test]
fn a_diverged_target_is_reported_and_left_unchanged() {
    let (from, to) = (World::new("sqlite"), World::new("jsonl"));
    for (world, text) in [(&from, "u:here"), (&to, "u:there")] {
        world.ok(&["new", "--id", "s"]);
        world.add_messages("s", &[text]);
    }
    let ran = from.run(&["migrate", "--from", &from.url, "--to", &to.url, "--json"]);
    assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(1), Some("migrate.problems")));
    assert!(ran.out().contains("does not exist in the source"), "{}", ran.out());
    assert_eq!(to.texts("s", None), ["there"]);
}
