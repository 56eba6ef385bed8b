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
        assert_eq!(actions, ["create", "share", "archive", "export"]);
        assert_eq!(
            (&lines[1]["by"], &lines[1]["detail"]),
            (&json!("user:ana"), &json!("user:bob as reader"))
        );
        assert_eq!(lines[3]["by"], "user:tester");
        let verified = world.json(&["audit", "--verify"]);
        assert_eq!((&verified["ok"], &verified["lines"]), (&json!(true), &json!(4)));
        let anchor = |number: u64| format!("{number}:{}", verified["hash"].as_str().unwrap());
        world.ok(&["share", "s", "bob", "--role", "none"]);
        world.ok(&["audit", "--verify", "--from", &anchor(4)]);
        for wrong in [anchor(3), anchor(9)] {
            assert_eq!(world.fail(1, &["audit", "--verify", "--from", &wrong])["code"], "audit.broken");
        }
        assert_eq!(world.fail(2, &["audit", "--verify", "--from", "4"])["code"], "input.usage");
        assert_eq!(world.lines(&["audit", "--session", "s"])[4]["detail"], "user:bob removed");
        assert_eq!(world.lines(&["audit", "--limit", "2"]).len(), 2);
        assert_eq!(world.lines(&["audit", "--after", "3"]).len(), 2);
        // A user who sees only part of the audit log cannot verify it, and the doctor reports no finding about it.
        assert_eq!(world.fail(2, &["--as", "bob", "audit", "--verify"])["code"], "input.usage");
        assert_eq!(world.json(&["--as", "bob", "doctor"])["findings"], json!([]));
    });
}

#[test]
fn every_command_adds_an_audit_line() {
    on_each_store(|world| {
        world.ok(&["new", "--id", "s"]);
        for text in ["one", "two"] {
            world.ok(&["inject", "s", "--role", "user", "--text", text]);
        }
        world.ok(&["rename", "s", "T"]);
        world.ok(&["label", "s", "1", "here"]);
        world.ok(&["branch", "s", "1"]);
        world.ok(&["trim", "s", "--keep-last", "0"]);
        world.ok(&["uncompact", "s"]);
        world.ok(&["reset", "s"]);
        world.ok(&["new", "--id", "s"]);
        let lines = world.lines(&["audit", "--session", "s"]);
        let recorded: Vec<(&str, Option<&str>)> =
            lines.iter().map(|line| (line["action"].as_str().unwrap(), line["detail"].as_str())).collect();
        let edits =
            ["rename", "label", "branch", "trim", "uncompact", "reset"].map(|verb| ("edit", Some(verb)));
        assert_eq!(recorded, [&[("create", None)][..], &edits, &[("open", None)]].concat());
    });
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
