//! The git tools on ordinary repositories.

use std::path::Path;
use std::process::Command;

use sapwood_core::port::tool::FsScope;
use serde_json::json;

use crate::tool_harness::ToolHarness;

pub fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A project with one commit that contains `a.txt`.
pub fn repository() -> ToolHarness {
    let harness = ToolHarness::new();
    harness.put("a.txt", "one\n");
    git(&harness.project(), &["init", "-q"]);
    git(&harness.project(), &["add", "."]);
    git(&harness.project(), &["commit", "-qm", "first"]);
    harness
}

#[tokio::test]
async fn status_diff_and_commit_are_consistent() {
    let harness = repository();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## main\n");
    assert_eq!(toolbox.succeeds("git_diff", json!({})).await, "[no differences]");
    harness.put("a.txt", "two\n");
    harness.put("sub/new.txt", "new\n");
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## main\n M a.txt\n?? sub/new.txt\n");
    let diff = toolbox.succeeds("git_diff", json!({"path": "a.txt"})).await;
    assert!(diff.contains("-one\n+two\n"), "{diff}");
    assert_eq!(toolbox.succeeds("git_diff", json!({"path": "sub"})).await, "[no differences]");
    let text =
        toolbox.succeeds("git_commit", json!({"message": "second; $(id)", "paths": ["sub/new.txt"]})).await;
    assert!(text.contains("second; $(id)"), "{text}");
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## main\n M a.txt\n");
    git(&harness.project(), &["add", "a.txt"]);
    assert!(toolbox.succeeds("git_diff", json!({"staged": true})).await.contains("+two"));
    toolbox.succeeds("git_commit", json!({"message": "third"})).await;
    let log = git(&harness.project(), &["log", "--format=%s|%an"]);
    assert_eq!(log, "third|Sapwood\nsecond; $(id)|Sapwood\nfirst|T\n");
    assert!(!toolbox.fails("git_commit", json!({"message": "nothing"})).await.is_empty());
}

#[tokio::test]
async fn the_configured_author_of_a_repository_is_used_for_commits() {
    let harness = repository();
    git(&harness.project(), &["config", "user.name", "Ada"]);
    git(&harness.project(), &["config", "user.email", "ada@localhost"]);
    std::fs::remove_file(harness.project().join("a.txt")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    toolbox.succeeds("git_commit", json!({"message": "gone"})).await;
    assert_eq!(git(&harness.project(), &["log", "-1", "--format=%s|%an"]), "gone|Ada\n");
    assert_eq!(git(&harness.project(), &["ls-files"]), "");
}

#[tokio::test]
async fn protected_files_are_neither_shown_nor_committed() {
    let harness = repository();
    harness.put("sub/.ENV", "canary\n");
    git(&harness.project(), &["add", "-f", "."]);
    git(&harness.project(), &["commit", "-qm", "committed manually"]);
    harness.put("sub/.ENV", "canary2\n");
    harness.put("x/id_rsa", "canary3\n");
    harness.put("b.txt", "b\n");
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## main\n?? b.txt\n");
    assert_eq!(toolbox.succeeds("git_diff", json!({})).await, "[no differences]");
    assert!(toolbox.fails("git_diff", json!({"path": "sub/.ENV"})).await.contains("protected"));
    assert!(
        toolbox
            .fails("git_commit", json!({"message": "m", "paths": ["x/id_rsa"]}))
            .await
            .contains("protected")
    );
    toolbox.succeeds("git_commit", json!({"message": "m"})).await;
    assert_eq!(git(&harness.project(), &["show", "--name-only", "--format="]), "b.txt\n");
    toolbox.fails("git_commit", json!({"message": "m", "paths": ["x"]})).await;
    assert_eq!(git(&harness.project(), &["log", "-1", "--format=%s"]), "m\n");
}

#[tokio::test]
async fn a_linked_work_tree_works_and_a_forged_link_does_not() {
    let harness = repository();
    let linked = harness.outside("linked");
    git(&harness.project(), &["worktree", "add", "-q", &linked.display().to_string()]);
    let mut grant = harness.grant(FsScope::Project, &[]);
    grant.cwd = Some(linked.display().to_string());
    let host = sapwood_effects::tool::host::Host::new(harness.settings.clone());
    let toolbox =
        crate::tool_harness::Tools(sapwood_core::port::tool::ToolHost::open(&host, &grant).await.unwrap());
    std::fs::write(linked.join("n.txt"), "n").unwrap();
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## linked\n?? n.txt\n");
    toolbox.succeeds("git_commit", json!({"message": "in the linked tree"})).await;

    let forged = harness.outside("forged");
    std::fs::create_dir(&forged).unwrap();
    std::fs::copy(linked.join(".git"), forged.join(".git")).unwrap();
    grant.cwd = Some(forged.display().to_string());
    let toolbox =
        crate::tool_harness::Tools(sapwood_core::port::tool::ToolHost::open(&host, &grant).await.unwrap());
    assert!(toolbox.fails("git_status", json!({})).await.contains("does not list this work tree"));
}

#[tokio::test]
async fn lfs_files_are_not_committed_as_plain_files() {
    let harness = repository();
    harness.put(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    harness.put("b.bin", "big");
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert!(toolbox.fails("git_commit", json!({"message": "m"})).await.contains("b.bin belongs in Git LFS"));
    std::fs::remove_file(harness.project().join("b.bin")).unwrap();
    toolbox.succeeds("git_commit", json!({"message": "m"})).await;
}

#[tokio::test]
async fn outside_of_a_repository_git_reports_an_error() {
    let harness = ToolHarness::new();
    git(&harness.outside(""), &["init", "-q"]);
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert!(toolbox.fails("git_status", json!({})).await.contains("not the top of a git repository"));
}

#[tokio::test]
async fn another_name_of_a_protected_file_is_neither_shown_nor_committed() {
    let harness = repository();
    let project = harness.project();
    let secret = harness.put(".env", "canary-one\n");
    std::fs::create_dir(project.join("sub")).unwrap();
    std::fs::hard_link(&secret, project.join("sub/notes.txt")).unwrap();
    std::fs::hard_link(&secret, project.join("staged.txt")).unwrap();
    // The user staged this name before. It is a change, although it equals the index.
    git(&project, &["add", "staged.txt"]);
    harness.put("b.txt", "b\n");
    std::fs::hard_link(project.join("b.txt"), project.join("c.txt")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.succeeds("git_status", json!({})).await, "## main\n?? b.txt\n?? c.txt\n");
    let staged = toolbox.succeeds("git_diff", json!({"staged": true})).await;
    assert!(!staged.contains("canary"), "{staged}");
    let text = toolbox.succeeds("git_commit", json!({"message": "m"})).await;
    assert!(text.contains("sub/notes.txt is left out"), "{text}");
    assert_eq!(git(&project, &["show", "--name-only", "--format="]), "b.txt\nc.txt\n");
    let everything = git(&project, &["log", "-p", "--all"]);
    assert!(!everything.contains("canary"), "{everything}");
    // A named path is refused as well, and a later change of the protected file is not shown.
    toolbox.fails("git_commit", json!({"message": "m", "paths": ["sub/notes.txt"]})).await;
    git(&project, &["commit", "-qm", "by the user", "staged.txt"]);
    std::fs::write(&secret, "canary-two\n").unwrap();
    assert_eq!(toolbox.succeeds("git_diff", json!({})).await, "[no differences]");
}

#[tokio::test]
async fn a_list_of_many_changed_files_is_checked_completely() {
    let harness = repository();
    let project = harness.project();
    let secret = harness.put(".env", "canary\n");
    // The list is longer than the part of an output that commands keep, and the link is in its middle.
    for number in 0..3_000 {
        harness.put(&format!("{}/{number:05}", "d".repeat(200)), "x");
    }
    std::fs::hard_link(&secret, project.join("d".repeat(200)).join("01500-link")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let text = toolbox.succeeds("git_commit", json!({"message": "m"})).await;
    assert!(text.contains("01500-link is left out"), "{}", text.len());
    assert!(!git(&project, &["ls-files"]).contains("link"));
}
