//! `sapwood memory` and `sapwood graft`, on each store: memories are learned, found by rephrased questions, changed and
//! deleted; grafts are created, read and withheld.

use serde_json::{Value, json};

use crate::harness::{log_file, on_each_store, user};

fn code(error: Value) -> String {
    error["code"].as_str().unwrap().to_owned()
}

#[test]
fn closing_a_session_learns_a_memory_that_a_rephrased_question_finds() {
    on_each_store(|world| {
        let session = world.session(&["u:Please remember that our staging database is heron.", "a:Noted."]);
        assert!(world.lines(&["memory", "ls"]).is_empty());
        world.ok(&["close", &session]);
        let learned = world.lines(&["memory", "ls"]);
        assert_eq!(learned.len(), 1);
        assert_eq!(learned[0]["text"], "Our staging database is heron");
        assert_eq!(learned[0]["sources"][0]["session"], json!(session));
        assert_eq!(learned[0]["learned"], "by_rules");
        let found = world.lines(&["memory", "search", "which db is used in staging?"]);
        assert_eq!((found.len(), &found[0]["id"]), (1, &learned[0]["id"]));
        assert!(world.lines(&["memory", "search", "--words", "which db"]).is_empty());
        assert_eq!(world.lines(&["memory", "search", "--words", "stag* heron"]).len(), 1);
        // Nothing is learned twice, and erasing the session deletes the memories that have no other source.
        assert_eq!(world.json(&["memory", "extract", &session])["kept"], json!([]));
        world.ok(&["erase", &session, "--yes"]);
        assert!(world.lines(&["memory", "ls", "--superseded", "--all"]).is_empty());
    });
}

#[test]
fn memories_are_added_changed_superseded_and_forgotten() {
    on_each_store(|world| {
        let added = world.json(&["memory", "add", "I prefer tabs to spaces", "--kind", "preference"]);
        assert_eq!((&added["outcome"], &added["version"]), (&json!("learned"), &json!(1)));
        let id = added["id"].as_str().unwrap().to_owned();
        assert_eq!(world.json(&["memory", "add", "I prefer tabs to spaces"])["outcome"], "known");
        let edited =
            world.json(&["memory", "edit", &id, "--text", "Tables are made with care", "--version", "1"]);
        assert_eq!(edited["version"], 2);
        assert_eq!(
            code(world.fail(4, &["memory", "edit", &id, "--text", "x y", "--version", "1"])),
            "memory.conflict"
        );
        let newer = world.json(&["memory", "add", "I prefer spaces over tabs"]);
        assert_eq!(newer["outcome"], "learned");
        let third = world.json(&["memory", "add", "I prefer tabs over spaces"]);
        assert_eq!((&third["outcome"], &third["old"]), (&json!("superseded"), &newer["id"]));
        let shown = world.json(&["memory", "show", third["id"].as_str().unwrap()]);
        assert_eq!(shown["supersedes"], json!([newer["id"]]));
        let forgotten = world.json(&["memory", "forget", third["id"].as_str().unwrap()]);
        assert_eq!(forgotten["forgotten"], 2);
        assert_eq!(
            code(world.fail(3, &["memory", "show", newer["id"].as_str().unwrap()])),
            "memory.not_found"
        );
        assert_eq!(world.lines(&["memory", "ls"]).len(), 1);
        let audit = world.lines(&["audit"]);
        assert!(audit.iter().any(|line| line["action"] == "memory_change"));
        assert!(!format!("{audit:?}").contains("spaces"));
    });
}

#[test]
fn a_users_memories_are_hidden_from_other_users() {
    on_each_store(|world| {
        let id = world.json(&["memory", "add", "The gate code changes in May", "--as", "ana"])["id"].clone();
        let id = id.as_str().unwrap();
        assert!(world.lines(&["memory", "ls", "--all", "--as", "bob"]).is_empty());
        assert!(world.lines(&["memory", "search", "gate code", "--as", "bob"]).is_empty());
        for verb in [["memory", "show"], ["memory", "forget"]] {
            assert_eq!(code(world.fail(3, &[verb[0], verb[1], id, "--as", "bob"])), "memory.not_found");
            assert_eq!(code(world.fail(3, &[verb[0], verb[1], id, "--tenant", "other"])), "memory.not_found");
        }
        world.ok(&["memory", "edit", id, "--everybody", "--as", "ana"]);
        assert_eq!(world.lines(&["memory", "ls", "--as", "bob"]).len(), 1);
        assert_eq!(code(world.fail(5, &["memory", "forget", id, "--as", "bob"])), "memory.denied");
        assert!(world.lines(&["memory", "ls", "--tenant", "other"]).is_empty());
    });
}

#[test]
fn a_new_session_receives_memories_and_a_secret_is_not_stored() {
    on_each_store(|world| {
        world.ok(&["memory", "add", "Our mascot is a badger"]);
        let session = world.json(&["new", "--agent", "default"])["id"].as_str().unwrap().to_owned();
        let system = world.json(&["context", &session])["system"].as_str().unwrap().to_owned();
        assert!(
            system.contains("\"Our mascot is a badger\" [user:tester; written down by hand;"),
            "{system}"
        );
        let secret = format!("my key is sk-ant-{}", "aB3x".repeat(6));
        assert_eq!(code(world.fail(2, &["memory", "add", &secret])), "input.invalid");
    });
}

#[test]
fn a_graft_is_created_listed_read_and_withheld() {
    on_each_store(|world| {
        let source = world.session(&["u:question one", "a:answer one", "u:question two", "a:answer two"]);
        let session = world.session(&["u:hello"]);
        let made = world.json(&["graft", &session, "--from", &source, "--rounds", "2..2"]);
        assert_eq!(
            (&made["what"], &made["first"], &made["state"]),
            (&json!("rounds"), &json!(2), &json!("readable"))
        );
        let seq = made["seq"].to_string();
        let got = world.json(&["graft", "get", &session, &seq]);
        assert_eq!(got["text"], "Round 2\nUser: question two\nAssistant: answer two");
        world.ok(&["graft", &session, "--from", &source, "--digest"]);
        let context = world.json(&["context", &session]);
        assert!(
            context["messages"][2]["text"].as_str().unwrap().contains("1. asked: question one → answer one")
        );
        assert_eq!(world.lines(&["graft", "digest", &source]).len(), 2);
        assert_eq!(world.lines(&["graft", "ls", &session]).len(), 2);
        assert_eq!(
            code(world.fail(3, &["graft", &session, "--from", &source, "--artifact", "x"])),
            "graft.not_found"
        );
        assert_eq!(code(world.fail(2, &["graft", &session, "--from", &source])), "input.usage");
        world.ok(&["erase", &source, "--yes"]);
        assert_eq!(code(world.fail(5, &["graft", "get", &session, &seq])), "graft.withheld");
        assert_eq!(world.lines(&["graft", "ls", &session])[0]["state"], "withheld");
        let context = world.json(&["context", &session]).to_string();
        assert!(context.contains("withheld") && !context.contains("answer one"), "{context}");
    });
}

/// Collects the files below a directory that contain this text.
fn find_files_with(dir: &std::path::Path, wanted: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_files_with(&path, wanted, found);
        } else if std::fs::read(&path)
            .unwrap_or_default()
            .windows(wanted.len())
            .any(|w| w == wanted.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn forgotten_and_erased_text_is_in_no_file() {
    on_each_store(|world| {
        let canary = "zebrafinch4711";
        let files_with_canary = || {
            let mut found = Vec::new();
            find_files_with(&world.path("."), canary, &mut found);
            found
        };
        let added = world.json(&["memory", "add", &format!("The bird is a {canary}")]);
        assert!(!files_with_canary().is_empty(), "the stored memory was not found");
        world.ok(&["memory", "forget", added["id"].as_str().unwrap()]);
        assert_eq!(files_with_canary(), Vec::<String>::new());
        let session = world.session(&[&format!("u:Remember that the bird is a {canary}.")]);
        world.ok(&["close", &session]);
        assert_eq!(world.lines(&["memory", "ls"]).len(), 1);
        world.ok(&["erase", &session, "--yes"]);
        assert_eq!(files_with_canary(), Vec::<String>::new());
    });
}

#[test]
fn a_server_learns_from_sessions_that_have_been_idle() {
    on_each_store(|world| {
        let home = world.path(".local/share/sapwood");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("sapwood.toml"), "[memory]\nidle_minutes = 1\n").unwrap();
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        let text = log_file("idle", &[(None, user("Our mascot is a badger."))]);
        let text = text.replace("user:ana", "user:tester");
        // Replace the fixed timestamps, which are long past, with the time ten minutes ago.
        let text = text.replace("1700000000000", &(now - 600_000).to_string());
        let text = text.replace("1700000000001", &(now - 600_000).to_string());
        std::fs::write(world.path("idle.jsonl"), text).unwrap();
        world.ok(&["import", world.path("idle.jsonl").to_str().unwrap()]);
        let mut server = world.spawn(&["serve", "--addr", "127.0.0.1:0"]);
        let learned = (0..1_200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            !world.lines(&["memory", "ls"]).is_empty()
        });
        let _ = server.kill();
        let _ = server.wait();
        assert!(learned, "{:?}", world.lines(&["ls"]));
        assert_eq!(world.lines(&["memory", "ls"])[0]["by"], "system");
    });
}
