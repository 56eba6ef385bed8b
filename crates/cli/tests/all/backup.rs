//! `sapwood backup` and `sapwood restore` on every kind of store, under load, and with damaged files.

use std::path::Path;

use serde_json::Value;

use crate::actors::Injector;
use crate::harness::{World, log_file, user};
use crate::serve::{request, serve};

const KINDS: [&str; 3] = ["sqlite", "jsonl", "postgres"];

/// A store with two tenants, turns, a fork, a branch, a compaction, an imported session, a blob, a key and a memory.
fn fill(world: &World) {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let agent = "id: worker\nmodel: demo\ntools: [run_command]\nfs_scope: project\nallowed_commands: [\"echo ready\"]\napprovals: ask\n";
    std::fs::write(world.path("agents/worker.yaml"), agent).unwrap();
    world.ok(&["new", "--id", "talk", "--title", "A talk", "--agent", "worker"]);
    let first = world.json(&["inject", "talk", "--role", "user", "--text", "the first"])["seq"].to_string();
    world.ok(&["send", "talk", "what did I say?"]);
    world.ok(&["fork", "talk", "--at", &first, "--id", "fork"]);
    world.add_messages("fork", &["u:its own"]);
    world.ok(&["branch", "talk", &first]);
    world.add_messages("talk", &["u:another way", "a:fine"]);
    world.ok(&["trim", "talk", "--keep-last", "1"]);
    world.ok(&["new", "--id", "waiting", "--agent", "worker"]);
    world.run(&["send", "waiting", "run echo ready"]);
    world.ok(&["memory", "add", "The harbour closes at six."]);
    let file = world.path("imported.jsonl");
    let body = |text| (None, user(text));
    std::fs::write(&file, log_file("imported", &[body("from elsewhere")])).unwrap();
    world.ok(&["import", file.to_str().unwrap()]);
    world.ok(&["--tenant", "acme", "new", "--id", "talk"]);
    world.ok(&["--tenant", "acme", "inject", "talk", "--role", "user", "--text", "of another tenant"]);
    world.ok(&["tenant", "new", "empty"]);
}

fn put_artifact(world: &World, key: &str) {
    let served = serve(world, "127.0.0.1:0");
    let message = r#"{"role":"user","content":"by key"}"#;
    request(&served.addr, "POST", "/v1/sessions", Some(key), r#"{"id":"keyed"}"#);
    assert_eq!(request(&served.addr, "POST", "/v1/sessions/keyed/entries", Some(key), message).0, 201);
    let (status, put) =
        request(&served.addr, "POST", "/v1/sessions/keyed/artifacts?name=a.txt", Some(key), "\"bytes\"");
    assert!(status < 300, "{status} {put}");
}

fn sessions(world: &World) -> Vec<String> {
    let mut ids: Vec<String> =
        world.lines(&["ls"]).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

fn check_same(from: &World, to: &World) {
    assert_eq!(sessions(from), sessions(to));
    for session in sessions(from) {
        for command in ["events", "context", "tree", "info", "usage", "export", "ancestry"] {
            let read = |world: &World| world.ok(&[command, &session, "--json"]);
            assert_eq!(read(from), read(to), "{command} {session}");
        }
    }
    for list in
        [&["key", "ls", "--json"][..], &["tenant", "ls", "--json"], &["--tenant", "acme", "context", "talk"]]
    {
        assert_eq!(from.ok(list), to.ok(list), "{list:?}");
    }
    assert!(to.ok(&["memory", "ls"]).contains("The harbour closes at six."));
    to.ok(&["doctor"]);
    to.ok(&["audit", "--verify"]);
}

/// Checks what depends on authority: a local session keeps its agent, and an imported one stays inert.
fn check_authority(world: &World, key: &str) {
    let answer = world.json(&["send", "talk", "what did I say?"]);
    assert_eq!(
        (answer["outcome"].as_str(), &answer["notice"]),
        (Some("completed"), &Value::Null),
        "{answer}"
    );
    let events = world.lines(&["events", "waiting"]);
    let asked = events.iter().find(|event| event["type"] == "agent:approval_requested").unwrap();
    let answer = world.json(&["approve", asked["entry"]["approval"].as_str().unwrap()]);
    assert_eq!(answer["outcome"], "completed", "{answer}");
    let imported = world.json(&["send", "imported", "hello"]);
    assert!(imported["notice"].as_str().unwrap().contains("was imported"), "{imported}");
    let served = serve(world, "127.0.0.1:0");
    assert_eq!(request(&served.addr, "GET", "/v1/sessions/keyed/context", Some(key), "").0, 200);
    assert_eq!(request(&served.addr, "GET", "/v1/sessions/keyed/context", None, "").0, 401);
    let artifact = request(&served.addr, "GET", "/v1/sessions/keyed/artifacts/a.txt", Some(key), "");
    assert_eq!(artifact, (200, "bytes".into()));
}

#[test]
fn a_backup_of_each_store_restores_into_each_store() {
    for (at, kind) in KINDS.iter().enumerate() {
        let from = World::new(kind);
        fill(&from);
        let made = from.json(&["key", "new", "--user", "ana"]);
        let key = made["key"].as_str().unwrap();
        put_artifact(&from, key);
        let file = from.path("backup.db").display().to_string();
        let total = from.json(&["backup", &file]);
        assert_eq!(
            (&total["total"]["problems"], &total["total"]["tenants"]),
            (&0.into(), &3.into()),
            "{total}"
        );
        let before = std::fs::read(&file).unwrap();
        let to = World::new(KINDS[(at + 1) % KINDS.len()]);
        eprintln!("--- {} to {}", from.url, to.url);
        std::fs::create_dir_all(to.path("agents")).unwrap();
        let restored = to.json(&["restore", &file]);
        assert_eq!(restored["total"]["problems"], 0, "{restored}");
        assert_eq!(std::fs::read(&file).unwrap(), before, "the backup was changed");
        check_same(&from, &to);
        check_authority(&to, key);
        let refused = to.fail(1, &["restore", &file]);
        assert_eq!(refused["code"], "restore.not_empty");
    }
}

#[test]
fn a_merge_adds_what_is_missing_and_reports_what_diverged() {
    let (from, to) = (World::new("sqlite"), World::new("jsonl"));
    from.ok(&["new", "--id", "a"]);
    from.ok(&["new", "--id", "b"]);
    from.add_messages("b", &["u:from the backup"]);
    let file = from.path("backup.db").display().to_string();
    from.ok(&["backup", &file]);
    to.ok(&["new", "--id", "c"]);
    to.ok(&["restore", &file, "--merge"]);
    assert_eq!(sessions(&to), ["a", "b", "c"]);
    let other = World::new("sqlite");
    other.ok(&["new", "--id", "b"]);
    other.add_messages("b", &["u:another log"]);
    let ran = other.run(&["restore", &file, "--merge", "--json"]);
    assert_eq!((ran.status, other.texts("b", None)), (Some(1), vec!["another log".to_owned()]));
    assert_eq!(sessions(&other), ["a", "b"]);
}

#[test]
fn a_backup_contains_everything_acknowledged_before_it_began() {
    for kind in KINDS {
        let world = World::new(kind);
        world.ok(&["new", "--id", "s"]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let acknowledged = std::sync::atomic::AtomicUsize::new(0);
        let file = world.path("backup.db").display().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut injector = Injector::start(&world, "s", &[]);
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    let count = injector.send(&["one more"]).len();
                    acknowledged.fetch_add(count, std::sync::atomic::Ordering::SeqCst);
                }
                injector.finish();
            });
            while acknowledged.load(std::sync::atomic::Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            let before = acknowledged.load(std::sync::atomic::Ordering::SeqCst);
            let ran = world.run(&["backup", &file]);
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(ran.status, Some(0), "{}", ran.stderr);
            let to = World::new("sqlite");
            to.ok(&["restore", &file]);
            assert!(to.texts("s", None).len() >= before, "{kind}: an acknowledged message is missing");
            to.ok(&["doctor"]);
        });
    }
}

#[test]
fn a_backup_succeeds_while_sessions_are_forked_and_erased() {
    for kind in ["sqlite", "jsonl"] {
        let world = World::new(kind);
        world.session(&["u:kept"]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let file = world.path("backup.db").display().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if stop.load(std::sync::atomic::Ordering::SeqCst) {
                        return;
                    }
                    let (session, fork) = (format!("erased-{number}"), format!("fork-{number}"));
                    world.ok(&["new", "--id", &session]);
                    world.add_messages(&session, &["u:shared"]);
                    world.ok(&["fork", &session, "--id", &fork]);
                    world.ok(&["erase", &session, "--yes"]);
                }
            });
            for _ in 0..8 {
                let ran = world.run(&["backup", &file, "--force"]);
                if ran.status != Some(0) {
                    stop.store(true, std::sync::atomic::Ordering::SeqCst);
                }
                assert_eq!(ran.status, Some(0), "{kind}: {}", ran.stderr);
            }
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let to = World::new("sqlite");
        to.ok(&["restore", &file]);
        to.ok(&["doctor"]);
        let restored = sessions(&to);
        assert!(restored.iter().filter(|id| id.starts_with("erased-")).count() <= 1, "{restored:?}");
    }
}

/// Sessions with enough text that a changed byte in the middle of the file is part of a row.
fn backup_to_damage(world: &World) -> std::path::PathBuf {
    world.ok(&["new", "--id", "s"]);
    for number in 0..20 {
        world.add_messages("s", &[&format!("u:message {number} {}", "moss and ferns ".repeat(40))]);
    }
    let file = world.path("backup.db");
    world.ok(&["backup", file.to_str().unwrap()]);
    file
}

fn assert_refused(file: &Path, what: &str) {
    let to = World::new("sqlite");
    let ran = to.run(&["restore", file.to_str().unwrap(), "--json"]);
    assert_eq!(ran.status, Some(1), "{what}: {} {}", ran.out(), ran.stderr);
    let code = ran.error()["code"].as_str().unwrap().to_owned();
    assert!(matches!(code.as_str(), "backup.damaged" | "backup.invalid"), "{what}: {}", ran.stderr);
    assert!(!to.path("store.sqlite").exists(), "{what}: a store was created");
}

#[test]
fn a_damaged_or_truncated_backup_is_refused() {
    let world = World::new("sqlite");
    let file = backup_to_damage(&world);
    let bytes = std::fs::read(&file).unwrap();
    let damaged = world.path("damaged.db");
    for kept in [0, 50, 4_096, bytes.len() / 2, bytes.len() - 4_096, bytes.len() - 1] {
        std::fs::write(&damaged, &bytes[..kept]).unwrap();
        assert_refused(&damaged, &format!("{kept} of {} bytes", bytes.len()));
    }
    // Each entry is compressed separately, so a changed byte in the middle changes the text or cannot be read.
    let ids = world.lines(&["events", "s"]);
    let id: Vec<u8> = ids[3]["id"].as_str().unwrap().replace('-', "").as_bytes().chunks(2).map(hex).collect();
    let at = bytes.windows(16).position(|window| window == id).expect("the entry's id is in the file");
    let mut changed = bytes.clone();
    changed[at + 15] ^= 1;
    std::fs::write(&damaged, &changed).unwrap();
    assert_refused(&damaged, "another id");
    let plain = world.path("store.sqlite");
    assert_refused(&plain, "a store that is not a backup");
}

fn hex(pair: &[u8]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()
}

#[test]
fn a_backup_never_leaves_a_partial_file() {
    let world = World::new("sqlite");
    world.ok(&["new", "--id", "s"]);
    let missing = world.fail(1, &["backup", "nowhere/backup.db"]);
    assert!(missing["code"].as_str().unwrap().starts_with("file."), "{missing}");
    let file = world.path("backup.db").display().to_string();
    world.ok(&["backup", &file]);
    assert_eq!(world.fail(1, &["backup", &file])["code"], "backup.exists");
    world.add_messages("s", &["u:later"]);
    world.ok(&["backup", &file, "--force"]);
    let to = World::new("sqlite");
    to.ok(&["restore", &file]);
    assert_eq!(to.texts("s", None), ["later"]);
    let names: Vec<String> = std::fs::read_dir(world.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("backup"))
        .collect();
    assert_eq!(names, ["backup.db"]);
    let none = World::new("sqlite");
    assert_eq!(none.fail(1, &["backup", "b.db"])["code"], "file.not_found");
    assert!(!none.path("store.sqlite").exists() && !none.path("b.db").exists());
}

#[cfg(unix)]
#[test]
fn a_backup_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new("jsonl");
    world.ok(&["new", "--id", "s"]);
    let file = world.path("backup.db");
    world.ok(&["backup", file.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[cfg(feature = "encryption")]
#[test]
fn the_backup_of_an_encrypted_store_needs_its_key() {
    use crate::harness::finish;
    let (from, to) = (World::new("sqlite"), World::new("sqlite"));
    let with_key = |world: &World, args: &[&str]| {
        let mut command = world.command(args);
        command.env("SAPWOOD_KEY", "a long secret");
        let ran = finish(command);
        assert_eq!(ran.status, Some(0), "{args:?}: {}", ran.stderr);
        ran.out()
    };
    with_key(&from, &["new", "--id", "s"]);
    with_key(&from, &["inject", "s", "--role", "user", "--text", "a rare word"]);
    let file = from.path("backup.db").display().to_string();
    with_key(&from, &["backup", &file]);
    let bytes = std::fs::read(&file).unwrap();
    assert!(!bytes.starts_with(b"SQLite format 3"), "the backup is not encrypted");
    let refused = to.fail(1, &["restore", &file]);
    assert_eq!(refused["code"], "store.locked");
    with_key(&to, &["restore", &file]);
    assert!(with_key(&to, &["context", "s"]).contains("a rare word"));
}
