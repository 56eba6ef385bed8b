//! The event stream: past events, and new events written by another process.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use crate::harness::on_each_store;

#[test]
fn events_are_json_lines_with_or_without_the_flag() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        world.ok(&["rename", &session, "Named"]);
        let events = world.lines(&["events", &session]);
        assert_eq!(world.ok(&["events", &session]), world.ok(&["events", &session, "--json"]));
        let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["session:message", "agent:message", "session:renamed"]);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], at + 1);
            assert_eq!(event["session"], session.as_str());
            assert!(event["at"].is_u64());
        }
        assert_eq!(world.lines(&["events", &session, "--after", "2"]).len(), 1);
        assert_eq!(world.lines(&["events", &session, "--after", "3"]).len(), 0);
        assert_eq!(world.fail(2, &["events", &session, "--after", "4"])["code"], "input.invalid");
    });
}

#[test]
fn a_follower_sees_each_event_of_another_process_once_and_in_order() {
    on_each_store(|world| {
        let session = world.session(&["u:one"]);
        let mut child = world.spawn(&["events", &session, "--follow"]);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut next = || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).unwrap()["seq"].as_u64().unwrap()
        };
        assert_eq!(next(), 1);
        for expected in 2..=5 {
            world.add_messages(&session, &["u:more"]);
            assert_eq!(next(), expected);
        }
        end_quietly(child);
    });
}

#[cfg(unix)]
fn end_quietly(child: std::process::Child) {
    let interrupted =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[cfg(not(unix))]
fn end_quietly(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let long = format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(2_000)).repeat(500);
        world.run_with(&["inject", &session, "--message", "-"], long.as_bytes());
        for args in [
            &["events", &session][..],
            &["show", &session],
            &["context", &session, "--json"],
            &["export", &session],
        ] {
            let mut child = world.spawn(args);
            let mut first = [0u8; 1];
            let mut stdout = child.stdout.take().unwrap();
            std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
            drop(stdout);
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args:?}");
            assert_eq!(output.status.code(), Some(0), "{args:?}");
        }
    });
}
