//! Questions across all sessions, their deadlines, and which session `chat -c` continues.

use serde_json::Value;

use crate::harness::{World, on_each_store};

/// An agent that asks a person before it writes a file.
fn asking_agent(world: &World, wait: &str) {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let agent =
        format!("id: asker\nmodel: demo\ntools: [write_file]\nfs_scope: project\napprovals: ask\n{wait}");
    std::fs::write(world.path("agents/asker.yaml"), agent).unwrap();
}

fn ask(world: &World, id: &str) -> Value {
    world.ok(&["new", "--id", id, "--agent", "asker"]);
    let report = world.json(&["send", id, "write a.txt: x"]);
    assert_eq!(report["outcome"], "waiting", "{report}");
    report
}

#[test]
fn approvals_lists_what_waits_in_all_sessions() {
    on_each_store(|world| {
        asking_agent(world, "");
        assert_eq!(world.lines(&["approvals"]), Vec::<Value>::new());
        assert!(world.run(&["approvals"]).stderr.contains("no question waits"));
        ask(world, "one");
        ask(world, "two");
        let waiting = world.lines(&["approvals"]);
        let sessions: Vec<&str> = waiting.iter().map(|line| line["session"].as_str().unwrap()).collect();
        assert_eq!(sessions, ["two", "one"]);
        assert_eq!(waiting[0]["call"]["name"], "write_file");
        assert!(waiting[0]["asked_at"].is_i64() && waiting[0].get("expires_at").is_none());
        let text = world.ok(&["approvals"]);
        let approval = waiting[1]["approval"].as_str().unwrap();
        assert!(text.contains(&format!("sapwood approve {approval}")), "{text}");
        assert_eq!(world.lines(&["--as", "eve", "approvals"]), Vec::<Value>::new());
        world.ok(&["deny", approval]);
        assert_eq!(world.lines(&["approvals"]).len(), 1);
    });
}

#[test]
fn a_link_is_created_only_for_a_pending_approval() {
    let world = World::new("sqlite");
    asking_agent(&world, "");
    let report = ask(&world, "s");
    let approval = world.lines(&["approvals"])[0]["approval"].as_str().unwrap().to_owned();
    let link = world.json(&["approvals", "--link", &approval, "--expires", "2h"]);
    assert!(link["url"].as_str().unwrap().starts_with("http://127.0.0.1:7420/answer/"), "{link}");
    let unknown = world.fail(3, &["approvals", "--link", "s~00000000.9"]);
    assert_eq!(unknown["code"], "approval.not_found");
    assert_eq!(
        world.fail(2, &["approvals", "--link", &approval, "--expires", "30d"])["code"],
        "input.invalid"
    );
    let key = world.path(".local/share/sapwood/link.key");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_to_string(key).unwrap().len(), 64);
    world.configure("[server]\npublic_url = \"https://agents.example.org\"\n");
    let link = world.ok(&["approvals", "--link", &approval]);
    assert!(link.starts_with("https://agents.example.org/answer/"), "{link}");
    world.configure("[server]\npublic_url = \"agents.example.org\"\n");
    assert_eq!(world.fail(2, &["approvals", "--link", &approval])["code"], "config.invalid");
    assert_eq!(report["session"], "s");
}

#[test]
fn a_question_that_expired_is_denied_when_the_turn_is_resumed() {
    on_each_store(|world| {
        asking_agent(world, "approval_wait:\n  expire_after_s: 1\n");
        ask(world, "s");
        let waiting = world.lines(&["approvals"]);
        let (asked, expires) = (&waiting[0]["asked_at"], &waiting[0]["expires_at"]);
        assert_eq!(expires.as_i64().unwrap(), asked.as_i64().unwrap() + 1_000);
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let approval = waiting[0]["approval"].as_str().unwrap();
        assert_eq!(world.fail(4, &["approve", approval])["code"], "approval.expired");
        let resumed = world.json(&["resume", "s"]);
        assert_eq!(resumed["outcome"], "completed", "{resumed}");
        assert!(!world.path("a.txt").exists());
    });
}

#[test]
fn an_agent_with_an_impossible_wait_is_refused() {
    let world = World::new("sqlite");
    asking_agent(&world, "approval_wait:\n  escalate_after_s: 60\n  expire_after_s: 60\n");
    let checked = world.run(&["agent", "check", "agents/asker.yaml"]);
    assert_eq!(checked.status, Some(1), "{}", checked.stderr);
    let output = checked.out() + &checked.stderr;
    assert!(output.contains("approval_wait.escalate_after_s is not less than expire_after_s"), "{output}");
}

/// The session that `chat -c` continued, by its last message.
fn continued(world: &World, who: &[&str], prompt: &str) -> Option<String> {
    let ran = world.run(&[who, &["chat", "-c", "-p", prompt, "--json"]].concat());
    let all = world.lines(&["ls"]);
    let has_prompt = |id: &&str| {
        let show = world.ok(&["show", id]);
        ran.status == Some(0) && show.contains(prompt)
    };
    all.iter().map(|line| line["id"].as_str().unwrap()).find(has_prompt).map(str::to_owned)
}

#[test]
fn chat_continue_skips_archived_sessions_and_those_of_other_users() {
    on_each_store(|world| {
        for (who, id) in [("ana", "anas-old"), ("ana", "anas-new"), ("bob", "bobs")] {
            world.ok(&["--as", who, "new", "--id", id, "--cwd", "."]);
            world.ok(&["--as", who, "inject", id, "--role", "user", "--text", "hello"]);
        }
        world.ok(&["--as", "bob", "share", "bobs", "ana", "--role", "reader"]);
        assert_eq!(continued(world, &["--as", "ana"], "first prompt").as_deref(), Some("anas-new"));
        world.ok(&["--as", "ana", "archive", "anas-new"]);
        assert_eq!(continued(world, &["--as", "ana"], "second prompt").as_deref(), Some("anas-old"));
        assert_eq!(continued(world, &["--as", "bob"], "third prompt").as_deref(), Some("bobs"));
        // The local user is an operator, but continues only their own sessions.
        let none = world.fail(3, &["chat", "-c", "-p", "fourth prompt"]);
        assert_eq!(none["code"], "session.not_found");
    });
}
