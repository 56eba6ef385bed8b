//! `run_command` in normal use and at its limits.

use std::time::{Duration, Instant};

use sapwood_core::port::tool::FsScope;
use sapwood_effects::sandbox::Launcher;
use serde_json::json;

use crate::tool_harness::{ToolHarness, read};

#[tokio::test]
async fn a_command_runs_with_its_arguments_and_reports_its_exit_status() {
    let harness = ToolHarness::new();
    harness.put("sub/a.txt", "hello\n");
    let toolbox = harness.open(FsScope::Project, &["cat *", "sh -c *", "pwd"]).await;
    let text = toolbox.succeeds("run_command", json!({"command": "cat 'sub/a.txt'"})).await;
    assert!(text.starts_with("hello\n[exit status 0, "), "{text}");
    let text =
        toolbox.succeeds("run_command", json!({"command": ["cat", "a.txt"], "directory": "sub"})).await;
    assert!(text.starts_with("hello\n"));
    let text = toolbox
        .fails("run_command", json!({"command": ["sh", "-c", "echo out; echo err >&2; exit 3"]}))
        .await;
    assert!(text.starts_with("out\n[stderr]\nerr\n[exit status 3, "), "{text}");
    let text = toolbox.succeeds("run_command", json!({"command": "pwd"})).await;
    assert!(text.starts_with(&harness.project().display().to_string()), "{text}");
    assert!(
        toolbox.fails("run_command", json!({"command": "rm x"})).await.contains("Allowed commands: cat *")
    );
    assert!(
        toolbox
            .fails("run_command", json!({"command": "sh -c 'kill -9 $$'"}))
            .await
            .contains("exit status 137")
    );
}

#[tokio::test]
async fn without_allowed_commands_the_tool_does_not_exist() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert!(toolbox.0.specs().iter().all(|spec| spec.name != "run_command"));
    toolbox.fails("run_command", json!({"command": "ls"})).await;
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let harness = ToolHarness::new();
    harness.put("not-executable", "x");
    let toolbox = harness.open(FsScope::Project, &["no-such-program", "./not-executable"]).await;
    for command in ["no-such-program", "./not-executable"] {
        assert!(toolbox.fails("run_command", json!({"command": command})).await.contains("no program"));
    }
}

#[tokio::test]
async fn long_output_keeps_its_beginning_and_end() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Sandboxed, &["seq *"]).await;
    let text = toolbox.succeeds("run_command", json!({"command": "seq 1000000"})).await;
    assert!(text.starts_with("1\n2\n") && text.contains("bytes omitted") && text.contains("\n1000000\n["));
    assert!(text.len() < 300_000);
}

#[tokio::test]
async fn a_command_that_exceeds_its_timeout_is_killed() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Sandboxed, &["sh -c *"]).await;
    let began = Instant::now();
    let text = toolbox
        .fails("run_command", json!({"command": "sh -c 'echo begun; sleep 60'", "timeout_s": 1}))
        .await;
    assert!(text.starts_with("begun\n[killed after 1 s"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(50));
}

#[tokio::test]
async fn a_command_has_a_home_and_a_temporary_directory() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Project, &["sh -c *"]).await;
    let command = json!({"command": ["sh", "-c", "echo 1 >$HOME/h && echo 2 >$TMPDIR/t && echo 3 >here && cat $HOME/h"]});
    assert!(toolbox.succeeds("run_command", command).await.starts_with("1\n"));
    assert_eq!(read(harness.project().join("here")), "3\n");
}

#[tokio::test]
async fn without_a_launcher_the_output_states_that_there_is_no_sandbox() {
    let mut harness = ToolHarness::new();
    let confined = harness.open(FsScope::Sandboxed, &["echo *"]).await;
    assert!(!confined.succeeds("run_command", json!({"command": "echo a"})).await.contains("no sandbox"));
    harness.settings.launcher = Launcher::None;
    let open = harness.open(FsScope::Sandboxed, &["echo *", "sh -c *"]).await;
    let text = open.succeeds("run_command", json!({"command": "echo a"})).await;
    assert!(text.starts_with("a\n") && text.contains("no sandbox"), "{text}");
    let began = Instant::now();
    open.fails("run_command", json!({"command": "sh -c 'sleep 60 & sleep 60'", "timeout_s": 1})).await;
    open.succeeds("run_command", json!({"command": "sh -c 'sleep 60 & true'"})).await;
    assert!(began.elapsed() < Duration::from_secs(50), "the other processes of the group must be killed");
}
