//! Escapes through the command line of `run_command`.

use sapwood_core::port::tool::FsScope;
use serde_json::json;

use super::harness_with_vault;

#[tokio::test]
async fn no_injection_runs_a_second_command() {
    let harness = harness_with_vault();
    let toolbox = harness.open(FsScope::Project, &["echo *", "git status", "cat src/*.txt"]).await;
    for line in [
        "echo a; touch pwned",
        "echo a && touch pwned",
        "echo a || touch pwned",
        "echo a | touch pwned",
        "echo a & touch pwned",
        "echo a\ntouch pwned",
        "echo a\r\ntouch pwned",
        "echo $(touch pwned)",
        "echo `touch pwned`",
        "echo a > pwned",
        "echo 'a",
        "touch pwned",
        "git status; touch pwned",
        "git  'status;touch pwned'",
        "'git status'",
        "\"echo\"x pwned",
        "/bin/echo a",
        "./echo a",
        "../../bin/echo a",
        "ECHO a",
        "echo\u{a0}a",
        "env echo a",
        "cat src/../../vault/secret.txt",
        "cat src/a/b.txt",
        "cat src/a.txt src/b.txt",
        "cat -- src/a.txt",
        "",
        " ",
    ] {
        toolbox.fails("run_command", json!({"command": line})).await;
    }
    for words in [
        json!(["echo;touch", "pwned"]),
        json!(["git", "status", "-s"]),
        json!(["git status"]),
        json!(["git", "status\ntouch pwned"]),
        json!(["sh", "-c", "touch pwned"]),
        json!(["", "echo"]),
        json!([" echo", "a"]),
        json!(["echo", "a\0b"]),
        json!(["echo\0sh", "a"]),
        json!(["echo", 1]),
        json!([]),
        json!({"echo": "a"}),
        json!(null),
    ] {
        toolbox.fails("run_command", json!({"command": words})).await;
    }
    assert!(!harness.project().join("pwned").exists());
}

#[tokio::test]
async fn arguments_reach_the_program_unchanged() {
    let harness = harness_with_vault();
    harness.put("a.txt", "");
    let toolbox = harness.open(FsScope::Project, &["echo *"]).await;
    for word in [
        "; touch pwned",
        "$(touch pwned)",
        "`id`",
        "$HOME",
        "*.txt",
        "~",
        "a\nb",
        "'\"'",
        "${IFS}",
        "-n -e \\n",
    ] {
        let text = toolbox.succeeds("run_command", json!({"command": ["echo", "x", word]})).await;
        assert!(text.starts_with(&format!("x {word}\n[exit")), "{word:?}: {text}");
    }
    assert!(!harness.project().join("pwned").exists());
}

#[tokio::test]
async fn a_program_planted_in_the_project_is_not_run() {
    let harness = harness_with_vault();
    let planted = harness.put("echo", "#!/bin/sh\ntouch pwned\n");
    std::fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let toolbox = harness.open(FsScope::Project, &["echo *"]).await;
    toolbox.succeeds("run_command", json!({"command": "echo a"})).await;
    assert!(!harness.project().join("pwned").exists());
}

#[tokio::test]
async fn a_command_does_not_start_outside_of_the_scope() {
    let harness = harness_with_vault();
    std::os::unix::fs::symlink(harness.outside("vault"), harness.project().join("link")).unwrap();
    let toolbox = harness.open(FsScope::Project, &["ls *", "pwd"]).await;
    for directory in ["..", "../vault", "link", "/", "/proc/self/root"] {
        toolbox.fails("run_command", json!({"command": "pwd", "directory": directory})).await;
    }
}
