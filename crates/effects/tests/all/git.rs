//! The git tools on ordinary repositories.

use std::path::Path;
use std::process::Command;

use sapwood_core::port::tool::FsScope;
use serde_json::json;

use crate::tool_harness::Desk;

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
pub fn repository() -> Desk {
    let desk = Desk::new();
    desk.put("a.txt", "one\n");
    git(&desk.project(), &["init", "-q"]);
    git(&desk.project(), &["add", "."]);
    git(&desk.project(), &["commit", "-qm", "first"]);
    desk
}

#[tokio::test]
async fn status_diff_and_commit_are_consistent() {
    let desk = repository();
    let toolbox = desk.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.does("git_status", json!({})).await, "## main\n");
    assert_eq!(toolbox.does("git_diff", json!({})).await, "[no differences]");
    desk.put("a.txt", "two\n");
    desk.put("sub/new.txt", "new\n");
    assert_eq!(toolbox.does("git_status", json!({})).await, "## main\n M a.txt\n?? sub/new.txt\n");
    let diff = toolbox.does("git_diff", json!({"path": "a.txt"})).await;
    assert!(diff.contains("-one\n+two\n"), "{diff}");
    assert_eq!(toolbox.does("git_diff", json!({"path": "sub"})).await, "[no differences]");
    let text =
        toolbox.does("git_commit", json!({"message": "second; $(id)", "paths": ["sub/new.txt"]})).await;
    assert!(text.contains("second; $(id)"), "{text}");
    assert_eq!(toolbox.does("git_status", json!({})).await, "## main\n M a.txt\n");
    git(&desk.project(), &["add", "a.txt"]);
    assert!(toolbox.does("git_diff", json!({"staged": true})).await.contains("+two"));
    toolbox.does("git_commit", json!({"message": "third"})).await;
    let log = git(&desk.project(), &["log", "--format=%s|%an"]);
    assert_eq!(log, "third|Sapwood\nsecond; $(id)|Sapwood\nfirst|T\n");
    assert!(!toolbox.fails("git_commit", json!({"message": "nothing"})).await.is_empty());
}

#[tokio::test]
async fn the_repositorys_own_author_is_used_for_commits() {
    let desk = repository();
    git(&desk.project(), &["config", "user.name", "Ada"]);
    git(&desk.project(), &["config", "user.email", "ada@localhost"]);
    std::fs::remove_file(desk.project().join("a.txt")).unwrap();
    let toolbox = desk.open(FsScope::Project, &[]).await;
    toolbox.does("git_commit", json!({"message": "gone"})).await;
    assert_eq!(git(&desk.project(), &["log", "-1", "--format=%s|%an"]), "gone|Ada\n");
    assert_eq!(git(&desk.project(), &["ls-files"]), "");
}

#[tokio::test]
async fn protected_files_are_neither_shown_nor_committed() {
    let desk = repository();
    desk.put("sub/.ENV", "canary\n");
    git(&desk.project(), &["add", "-f", "."]);
    git(&desk.project(), &["commit", "-qm", "committed manually"]);
    desk.put("sub/.ENV", "canary2\n");
    desk.put("x/id_rsa", "canary3\n");
    desk.put("b.txt", "b\n");
    let toolbox = desk.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.does("git_status", json!({})).await, "## main\n?? b.txt\n");
    assert_eq!(toolbox.does("git_diff", json!({})).await, "[no differences]");
    assert!(toolbox.fails("git_diff", json!({"path": "sub/.ENV"})).await.contains("protected"));
    assert!(
        toolbox
            .fails("git_commit", json!({"message": "m", "paths": ["x/id_rsa"]}))
            .await
            .contains("protected")
    );
    toolbox.does("git_commit", json!({"message": "m"})).await;
    assert_eq!(git(&desk.project(), &["show", "--name-only", "--format="]), "b.txt\n");
    toolbox.fails("git_commit", json!({"message": "m", "paths": ["x"]})).await;
    assert_eq!(git(&desk.project(), &["log", "-1", "--format=%s"]), "m\n");
}

#[tokio::test]
async fn a_linked_work_tree_works_and_a_forged_link_does_not() {
    let desk = repository();
    let linked = desk.outside("linked");
    git(&desk.project(), &["worktree", "add", "-q", &linked.display().to_string()]);
    let mut grant = desk.grant(FsScope::Project, &[]);
    grant.cwd = Some(linked.display().to_string());
    let host = sapwood_effects::tool::host::Host::new(desk.settings.clone());
    let toolbox =
        crate::tool_harness::Tools(sapwood_core::port::tool::ToolHost::open(&host, &grant).await.unwrap());
    std::fs::write(linked.join("n.txt"), "n").unwrap();
    assert_eq!(toolbox.does("git_status", json!({})).await, "## linked\n?? n.txt\n");
    toolbox.does("git_commit", json!({"message": "in the linked tree"})).await;

    let forged = desk.outside("forged");
    std::fs::create_dir(&forged).unwrap();
    std::fs::copy(linked.join(".git"), forged.join(".git")).unwrap();
    grant.cwd = Some(forged.display().to_string());
    let toolbox =
        crate::tool_harness::Tools(sapwood_core::port::tool::ToolHost::open(&host, &grant).await.unwrap());
    assert!(toolbox.fails("git_status", json!({})).await.contains("does not know this work tree"));
}

#[tokio::test]
async fn lfs_files_are_not_committed_as_plain_files() {
    let desk = repository();
    desk.put(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    desk.put("b.bin", "big");
    let toolbox = desk.open(FsScope::Project, &[]).await;
    assert!(toolbox.fails("git_commit", json!({"message": "m"})).await.contains("b.bin belongs in Git LFS"));
    std::fs::remove_file(desk.project().join("b.bin")).unwrap();
    toolbox.does("git_commit", json!({"message": "m"})).await;
}

#[tokio::test]
async fn outside_of_a_repository_git_reports_an_error() {
    let desk = Desk::new();
    git(&desk.outside(""), &["init", "-q"]);
    let toolbox = desk.open(FsScope::Project, &[]).await;
    assert!(toolbox.fails("git_status", json!({})).await.contains("not the top of a git repository"));
}
