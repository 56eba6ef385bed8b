//! Access rights of members and tenants, and the audit log.

use serde_json::json;

use crate::harness::on_each_store;

#[test]
fn a_session_is_private_until_it_is_shared() {
    on_each_store(|world| {
        world.ok(&["--as", "ana", "new", "--id", "private"]);
        world.ok(&["--as", "ana", "inject", "private", "--role", "user", "--text", "secret fern"]);
        // The error is exactly the same as for an unknown id.
        let hidden = world.fail(3, &["--as", "bob", "show", "private"]);
        let unknown = world.fail(3, &["--as", "bob", "show", "unknown"]);
        assert_eq!(hidden["message"].as_str().unwrap().replace("private", "unknown"), unknown["message"]);
        assert_eq!(world.lines(&["--as", "bob", "ls"]).len(), 0);
        assert_eq!(world.lines(&["--as", "bob", "search", "fern"]).len(), 0);

        world.ok(&["--as", "ana", "share", "private", "bob", "--role", "reader"]);
        assert_eq!(world.texts("private", None), ["secret fern"]);
        assert_eq!(world.lines(&["--as", "bob", "ls"]).len(), 1);
        assert_eq!(world.lines(&["--as", "bob", "search", "fern"]).len(), 1);
        let write = ["--as", "bob", "inject", "private", "--role", "user", "--text", "mine"];
        assert_eq!(world.fail(5, &write)["code"], "session.denied");

        world.ok(&["--as", "ana", "share", "private", "bob", "--role", "collaborator"]);
        world.ok(&write);
        assert_eq!(world.fail(5, &["--as", "bob", "erase", "private", "--yes"])["code"], "session.denied");
        assert_eq!(world.fail(5, &["--as", "bob", "archive", "private"])["code"], "session.denied");
        let members = world.lines(&["members", "private"]);
        assert_eq!(
            members,
            [
                json!({ "member": "user:ana", "role": "owner" }),
                json!({ "member": "user:bob", "role": "collaborator" })
            ]
        );
        world.ok(&["--as", "ana", "share", "private", "bob", "--role", "none"]);
        world.fail(3, &["--as", "bob", "show", "private"]);
    });
}

#[test]
fn a_tenant_never_sees_another_tenants_sessions() {
    on_each_store(|world| {
        world.ok(&["--tenant", "acme", "new", "--id", "theirs"]);
        world.ok(&["--tenant", "acme", "inject", "theirs", "--role", "user", "--text", "plans"]);
        assert_eq!(world.fail(3, &["show", "theirs"])["code"], "session.not_found");
        assert_eq!(world.lines(&["ls"]).len(), 0);
        assert_eq!(world.lines(&["search", "plans"]).len(), 0);
        assert_eq!(world.lines(&["audit"]).len(), 0);
        world.ok(&["new", "--id", "theirs"]);
        assert_eq!(world.json(&["info", "theirs"])["messages"], 0);
        assert_eq!(world.lines(&["--tenant", "acme", "ls"]).len(), 1);
    });
}

#[test]
fn the_audit_records_who_did_what_and_can_be_verified() {
    on_each_store(|world| {
        world.ok(&["--as", "ana", "new", "--id", "s"]);
        world.ok(&["--as", "ana", "inject", "s", "--role", "user", "--text", "x"]);
        world.ok(&["--as", "ana", "share", "s", "bob", "--role", "reader"]);
        world.ok(&["archive", "s"]);
        world.ok(&["export", "s"]);
        let lines = world.lines(&["audit", "--session", "s"]);
        let actions: Vec<&str> = lines.iter().map(|line| line["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["create", "edit", "share", "archive", "export"]);
        assert_eq!(
            (&lines[2]["by"], &lines[2]["detail"]),
            (&json!("user:ana"), &json!("user:bob as reader"))
        );
        assert_eq!(lines[4]["by"], "user:tester");
        let verified = world.json(&["audit", "--verify"]);
        assert_eq!((&verified["ok"], &verified["lines"]), (&json!(true), &json!(5)));
        let anchor = |number: u64| format!("{number}:{}", verified["hash"].as_str().unwrap());
        world.ok(&["share", "s", "bob", "--role", "none"]);
        world.ok(&["audit", "--verify", "--from", &anchor(5)]);
        for wrong in [anchor(4), anchor(9)] {
            assert_eq!(world.fail(1, &["audit", "--verify", "--from", &wrong])["code"], "audit.broken");
        }
        assert_eq!(world.fail(2, &["audit", "--verify", "--from", "5"])["code"], "input.usage");
        assert_eq!(world.lines(&["audit", "--session", "s"])[5]["detail"], "user:bob removed");
        assert_eq!(world.lines(&["audit", "--limit", "2"]).len(), 2);
        assert_eq!(world.lines(&["audit", "--after", "4"]).len(), 2);
        // A user who sees only part of the audit log cannot verify it, and the doctor reports no finding about it.
        assert_eq!(world.fail(2, &["--as", "bob", "audit", "--verify"])["code"], "input.usage");
        assert_eq!(world.json(&["--as", "bob", "doctor"])["findings"], json!([]));
    });
}

/// Commands that change a session, run by a collaborator or by the owner, and the audit lines that they add to it.
const CHANGES: &[(&str, &str, &[&str])] = &[
    ("bob", "new --id s", &["open"]),
    ("bob", "inject s --role user --text one", &["edit inject"]),
    ("bob", "inject s --role assistant --text two", &["edit inject"]),
    ("bob", "send s hello --model demo", &["edit settings", "edit turn"]),
    ("bob", "chat s -p hello", &["open", "edit turn"]),
    ("bob", "rename s T", &["edit rename"]),
    ("bob", "thinking s high", &["edit settings"]),
    ("bob", "input add s notes.txt", &["edit input"]),
    ("bob", "artifact add s notes.txt", &["edit artifact"]),
    ("ana", "set s --var who=Ada", &["edit set"]),
    ("ana", "set s --turns-max 9", &["edit set"]),
    ("bob", "compact s --keep-last 1 --compact-strategy truncate --force", &["edit compact"]),
    ("bob", "uncompact s", &["edit uncompact"]),
    ("ana", "prune s --inactive-for 0s --keep-last 1", &["edit prune"]),
    ("bob", "label s 2 here", &["edit label"]),
    ("bob", "branch s 2", &["edit branch"]),
    ("bob", "trim s --keep-last 0", &["edit trim"]),
    ("bob", "uncompact s", &["edit uncompact"]),
    ("bob", "reset s", &["edit reset"]),
    ("bob", "fork s --id fork", &[]),
    ("ana", "share s eve --role reader", &["share user:eve as reader"]),
    ("ana", "export s --format jsonl", &["export jsonl"]),
    ("ana", "close s", &["close"]),
    ("ana", "archive s", &["archive"]),
    ("ana", "erase s --yes", &["erase"]),
];

/// Commands that change no session, or whose changes other tests check: cancel, resume, approve and deny need a turn.
/// The rest reads, or works on the store.
const OTHER_COMMANDS: &[&str] = &[
    "resume",
    "cancel",
    "approvals",
    "approve",
    "deny",
    "ls",
    "search",
    "info",
    "show",
    "feed",
    "tree",
    "context",
    "events",
    "ledger",
    "usage",
    "archives",
    "ancestry",
    "audit",
    "members",
    "memory",
    "graft",
    "import",
    "migrate",
    "flow",
    "agent",
    "skill",
    "hook",
    "trigger",
    "serve",
    "key",
    "tenant",
    "doctor",
    "bench",
    "keychain",
    "allowance",
    "hold",
    "retention",
    "sandbox",
    "completions",
    "version",
    "help",
    "exists",
    "length",
    "backup",
    "restore",
    "store",
    "model",
];

#[test]
fn every_command_that_changes_a_session_adds_its_audit_lines() {
    on_each_store(|world| {
        std::fs::write(world.path("notes.txt"), "notes").unwrap();
        world.ok(&["--as", "ana", "new", "--id", "s"]);
        world.ok(&["--as", "ana", "share", "s", "bob", "--role", "collaborator"]);
        for (who, command, expected) in CHANGES.iter() {
            let before = world.lines(&["audit", "--session", "s"]).len();
            world.ok(&[&["--as", who][..], &command.split(' ').collect::<Vec<_>>()].concat());
            let lines = world.lines(&["audit", "--session", "s"]).split_off(before);
            let text = |line: &serde_json::Value| {
                assert_eq!(line["by"], format!("user:{who}"), "{command}");
                let detail = line["detail"].as_str().unwrap_or_default();
                format!("{} {detail}", line["action"].as_str().unwrap()).trim().to_owned()
            };
            let lines: Vec<String> = lines.iter().filter(|line| line["action"] != "read").map(text).collect();
            assert_eq!(lines, *expected, "{command}");
        }
        assert_eq!(world.lines(&["audit", "--session", "fork"])[0]["detail"], "from s");
    });
}

/// A new command must be added to one of the lists, so that its audit lines are checked.
#[test]
fn every_command_is_known_to_the_audit_test() {
    let world = crate::harness::World::new("sqlite");
    let help = world.run(&["--help"]).out();
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names = help.lines().filter(is_name).filter_map(|line| line.split_whitespace().next());
    let changes = |name: &str| CHANGES.iter().any(|(_, command, _)| command.split(' ').next() == Some(name));
    let commands: Vec<&str> = names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase())).collect();
    assert!(commands.len() > 30, "{commands:?}");
    for name in commands.into_iter().filter(|name| *name != "sapwood") {
        assert!(changes(name) || OTHER_COMMANDS.contains(&name), "add `{name}` to one of the lists");
    }
}

#[test]
fn repeated_reads_by_another_user_are_audited_once() {
    on_each_store(|world| {
        for verb in [&["show"][..], &["info"], &["search"], &["feed"], &["context"], &["events"]] {
            let id = format!("s-{}", verb[0]);
            world.ok(&["--as", "ana", "new", "--id", &id]);
            let text = format!("fern {}", verb[0]);
            world.ok(&["--as", "ana", "inject", &id, "--role", "user", "--text", &text]);
            world.ok(&["--as", "ana", "share", &id, "bob", "--role", "reader"]);
            let what = if verb[0] == "search" { text.as_str() } else { id.as_str() };
            for user in ["ana", "bob", "bob"] {
                world.ok(&["--as", user, verb[0], what]);
            }
            let lines = world.lines(&["audit", "--session", &id]);
            let reads: Vec<_> = lines.iter().filter(|line| line["action"] == "read").collect();
            assert_eq!(reads.len(), 1, "{verb:?}: {lines:?}");
            assert_eq!(reads[0]["by"], "user:bob", "{verb:?}");
        }
    });
}
