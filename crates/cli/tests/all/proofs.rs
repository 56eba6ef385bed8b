//! Entry hashes at the command line: heads, changed entries, older copies, and sessions that cannot be read.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::World;
use crate::serve::{request, serve};

fn heads(world: &World) -> Vec<String> {
    let heads = world.json(&["doctor", "--heads"])["heads"].clone();
    let text = |head: &Value| format!("{} {}", head["session"], head["head"].as_str().unwrap());
    let mut heads: Vec<String> = heads.as_array().unwrap().iter().map(text).collect();
    heads.sort();
    heads
}

fn head_of(world: &World, session: &str) -> String {
    let found = heads(world).into_iter().find(|head| head.starts_with(&format!("\"{session}\"")));
    found.unwrap().split(' ').nth(1).unwrap().to_owned()
}

fn fill(world: &World) {
    world.ok(&["new", "--id", "talk"]);
    world.add_messages("talk", &["u:one", "a:two", "u:three"]);
    world.ok(&["fork", "talk", "--at", "2", "--id", "fork"]);
    world.add_messages("fork", &["u:its own"]);
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

#[test]
fn a_head_kept_elsewhere_shows_that_a_store_is_an_older_copy() {
    for scheme in ["sqlite", "jsonl"] {
        let world = World::new(scheme);
        fill(&world);
        let first = head_of(&world, "talk");
        let older = World::new(scheme);
        copy_dir(world.dir.path(), older.dir.path());
        world.add_messages("talk", &["a:four"]);
        let second = head_of(&world, "talk");
        assert_ne!(first, second);
        world.ok(&["doctor", "--from", &first, "--from", &second]);
        older.ok(&["doctor", "--from", &first]);
        older.ok(&["doctor"]);
        let ran = older.run(&["doctor", "--json", "--from", &second]);
        assert_eq!(ran.error()["code"], "doctor.findings");
        let found: Value = serde_json::from_str(&ran.out()).unwrap();
        assert_eq!(found["findings"][0]["rule"], "head", "{found}");
        assert_eq!(world.fail(2, &["doctor", "--from", "nonsense"])["code"], "input.usage");
    }
}

#[test]
fn backup_restore_and_migration_keep_the_heads_and_an_import_makes_its_own() {
    let world = World::new("sqlite");
    fill(&world);
    let before = heads(&world);
    assert_eq!(before.len(), 2);
    let backup = world.path("backup.db");
    world.ok(&["backup", backup.to_str().unwrap()]);
    for scheme in ["jsonl", "postgres", "sqlite"] {
        let target = World::new(scheme);
        target.ok(&["restore", backup.to_str().unwrap()]);
        assert_eq!(heads(&target), before, "{scheme}");
        let again = World::new("sqlite");
        world.ok(&["migrate", "--from", &target.url, "--to", &again.url]);
        assert_eq!(heads(&again), before, "{scheme}");
    }
    let export = world.ok(&["export", "talk"]);
    assert!(!export.contains("\"salt\"") && !export.contains("\"hash\""), "{export}");
    let (file, other) = (world.path("export.jsonl"), World::new("jsonl"));
    std::fs::write(&file, &export).unwrap();
    other.ok(&["import", file.to_str().unwrap()]);
    assert_eq!(other.ok(&["export", "talk"]), export, "export, import, export is byte-identical");
    assert_ne!(heads(&other)[0], before[1], "an import has salts of its own");
    other.ok(&["doctor"]);
}

#[test]
fn a_changed_entry_is_named_by_doctor_and_audit() {
    let changes = [
        "UPDATE entries SET at = at + 1 WHERE key = (SELECT min(key) + 1 FROM entries)",
        "UPDATE entries SET body = replace(body, 'two', 'TWO') WHERE key = (SELECT min(key) + 1 FROM entries)",
        "UPDATE entries SET proof = zeroblob(48) WHERE key = (SELECT min(key) + 1 FROM entries)",
        "UPDATE entries SET by = (SELECT max(pk) FROM principals) + 0, kind = 4 WHERE key = (SELECT min(key) + 1 FROM entries)",
    ];
    for change in changes {
        let world = World::new("sqlite");
        fill(&world);
        world.ok(&["audit", "--verify"]);
        sapwood_store::conformance::sqlite_file::execute(&world.path("store.sqlite"), change);
        let ran = world.run(&["doctor", "--json"]);
        let found: Value = serde_json::from_str(&ran.out()).unwrap();
        let hash = found["findings"].as_array().unwrap().iter().find(|finding| finding["rule"] == "hash");
        assert!(hash.unwrap()["what"].as_str().unwrap().contains("entry "), "{change}: {found}");
        let error = world.fail(1, &["audit", "--verify"]);
        assert_eq!(error["code"], "audit.broken", "{change}");
    }
}

/// Returns a JSONL store with an unreadable session, and the session's file.
fn with_damaged_session() -> (World, PathBuf) {
    let world = World::new("jsonl");
    fill(&world);
    let dir = world.path("store.jsonl");
    let paths = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let file = paths.into_iter().find(|path| path.to_string_lossy().ends_with("_fork.jsonl")).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("its own", "its pwn and more")).unwrap();
    (world, file)
}

#[test]
fn commands_name_the_sessions_that_they_left_out() {
    let (world, file) = with_damaged_session();
    let place = format!("{}:2", file.display());
    for args in [&["ls"][..], &["search", "one"]] {
        let ran = world.run(&[args, &["--json"]].concat());
        assert!(ran.out().contains("talk"), "the other sessions are shown: {}", ran.out());
        assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(1), Some("store.incomplete")));
        assert!(ran.error()["message"].as_str().unwrap().contains(&place), "{}", ran.stderr);
    }
    let target = World::new("sqlite");
    let ran = world.run(&["migrate", "--from", &world.url, "--to", &target.url]);
    assert!(ran.status == Some(1) && ran.stderr.contains(&place), "{}", ran.stderr);
    let ran = world.run(&["backup", world.path("b.db").to_str().unwrap()]);
    assert!(ran.status == Some(1) && ran.stderr.contains(&place), "{}", ran.stderr);
    assert_eq!(world.fail(1, &["export", "fork"])["code"], "store.damaged");
}

#[test]
fn the_server_answers_that_a_list_is_incomplete() {
    let (world, _) = with_damaged_session();
    let served = serve(&world, "127.0.0.1:0");
    for path in ["/v1/sessions", "/v1/search?q=one", "/v1/sessions?q=one"] {
        let (status, page) = request(&served.addr, "GET", path, None, "");
        assert_eq!(status, 200, "{page}");
        assert!(!page["items"].as_array().unwrap().is_empty(), "{page}");
        assert_eq!(page["incomplete"].as_array().map(Vec::len), Some(1), "{path}: {page}");
    }
}

#[test]
fn a_repair_restores_a_changed_bit_and_keeps_the_damaged_line() {
    let world = World::new("jsonl");
    fill(&world);
    let dir = world.path("store.jsonl");
    let paths = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let file = paths.into_iter().find(|path| path.to_string_lossy().ends_with("_talk.jsonl")).unwrap();
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, whole.replace("\"two\"", "\"twn\"")).unwrap();
    assert_eq!(world.fail(1, &["context", "talk"])["code"], "store.damaged");
    world.ok(&["doctor", "--repair"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), whole);
    let kept = std::fs::read_to_string(file.with_extension("jsonl.damaged")).unwrap();
    assert!(kept.contains("\"twn\""), "{kept}");
    assert_eq!(world.texts("talk", None), ["one", "two", "three"]);
    world.ok(&["doctor"]);
}
