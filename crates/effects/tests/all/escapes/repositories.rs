//! Escapes through repositories that make git run programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use sapwood_core::port::tool::FsScope;
use sapwood_effects::sandbox::Launcher;
use serde_json::json;

use super::{CANARY, guarded_desk};
use crate::git::{git, repository};
use crate::tool_harness::Desk;

/// Plant a program that records its execution and behaves the way git expects.
fn plant(desk: &Desk) -> String {
    let program = desk.outside("evil");
    let script = format!("#!/bin/sh\necho \"$0 $*\" >>{}\ncat\n", desk.outside("pwned").display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.display().to_string()
}

/// A repository with every known git setting that makes git run a program.
fn hostile() -> Desk {
    let desk = repository();
    let evil = plant(&desk);
    for hook in [
        "pre-commit",
        "commit-msg",
        "prepare-commit-msg",
        "post-commit",
        "post-index-change",
        "reference-transaction",
        "pre-auto-gc",
        "fsmonitor-watchman",
        "post-checkout",
    ] {
        fs::create_dir_all(desk.project().join(".git/hooks")).unwrap();
        fs::copy(&evil, desk.project().join(".git/hooks").join(hook)).unwrap();
    }
    for key in [
        "core.fsmonitor",
        "core.pager",
        "pager.status",
        "pager.diff",
        "core.editor",
        "core.sshCommand",
        "core.askPass",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "gpg.program",
        "gpg.ssh.program",
        "credential.helper",
        "core.alternateRefsCommand",
        "interactive.diffFilter",
        "sequence.editor",
        "trailer.x.command",
        "alias.status",
        "alias.diff",
        "uploadpack.packObjectsHook",
    ] {
        let value = if key.starts_with("alias") { format!("!{evil}") } else { evil.clone() };
        git(&desk.project(), &["config", key, &value]);
    }
    for (key, value) in [("commit.gpgSign", "true"), ("core.hooksPath", ".git/hooks"), ("gc.auto", "1")] {
        git(&desk.project(), &["config", key, value]);
    }
    // Git may have run the program during this setup.
    desk.put("a.txt", "changed\n");
    desk.put("new.txt", "new\n");
    desk.put(".gitattributes", "* diff=evil\n");
    let _ = fs::remove_file(desk.outside("pwned"));
    desk
}

fn assert_nothing_ran(desk: &Desk) {
    let mark = fs::read_to_string(desk.outside("pwned")).unwrap_or_default();
    assert_eq!(mark, "", "git ran a planted program");
}

#[tokio::test]
async fn no_setting_of_a_repository_runs_a_program() {
    let mut desk = hostile();
    // Without the sandbox, so that only the git settings are tested: in the sandbox the programs could not leave a
    // mark.
    desk.settings.launcher = Launcher::None;
    let toolbox = desk.open(FsScope::Project, &[]).await;
    assert!(toolbox.does("git_status", json!({})).await.contains(" M a.txt"));
    assert!(toolbox.does("git_diff", json!({})).await.contains("+changed"));
    assert_nothing_ran(&desk);
    toolbox.does("git_commit", json!({"message": "m"})).await;
    assert_nothing_ran(&desk);
    assert!(toolbox.does("git_diff", json!({"staged": true})).await.contains("no differences"));
    assert_nothing_ran(&desk);
}

#[tokio::test]
async fn the_hostile_repository_is_hostile() {
    let desk = hostile();
    let _ = std::process::Command::new("git").arg("status").current_dir(desk.project()).output().unwrap();
    let mark = fs::read_to_string(desk.outside("pwned")).unwrap_or_default();
    assert!(
        mark.contains("evil"),
        "plain git runs none of the planted programs, so the tests here mean nothing"
    );
}

#[tokio::test]
async fn no_filter_runs_whatever_its_name() {
    let mut desk = repository();
    let evil = plant(&desk);
    desk.put(".gitattributes", "*.txt filter=evil\n*.md filter=a.b=c\n");
    for name in ["evil", "a.b=c"] {
        for part in ["clean", "smudge", "process"] {
            git(&desk.project(), &["config", &format!("filter.{name}.{part}"), &evil]);
        }
        git(&desk.project(), &["config", &format!("filter.{name}.required"), "true"]);
    }
    desk.put("a.txt", "changed\n");
    desk.put("b.md", "new\n");
    desk.settings.launcher = Launcher::None;
    let toolbox = desk.open(FsScope::Project, &[]).await;
    toolbox.does("git_status", json!({})).await;
    assert!(toolbox.does("git_diff", json!({})).await.contains("+changed"));
    assert!(toolbox.fails("git_commit", json!({"message": "m"})).await.contains("filter"));
    assert_nothing_ran(&desk);
}

#[tokio::test]
async fn a_repository_does_not_point_git_elsewhere() {
    let desk = guarded_desk();
    git(&desk.outside("vault"), &["init", "-q"]);
    git(&desk.outside("vault"), &["add", "."]);
    git(&desk.outside("vault"), &["commit", "-qm", CANARY]);
    fs::write(desk.outside("vault/secret"), format!("{CANARY} changed")).unwrap();
    let toolbox = desk.open(FsScope::Project, &[]).await;
    let seen = async |what: &str| {
        for tool in ["git_status", "git_diff"] {
            let text = crate::tool_harness::text_of(&toolbox.call(tool, json!({})).await);
            assert!(!text.contains(CANARY) && !text.contains("secret\n"), "{what}, {tool}: {text}");
        }
    };
    symlink(desk.outside("vault/.git"), desk.project().join(".git")).unwrap();
    seen("a linked .git").await;
    fs::remove_file(desk.project().join(".git")).unwrap();
    desk.put(".git", &format!("gitdir: {}", desk.outside("vault/.git").display()));
    seen("a .git file").await;
    fs::remove_file(desk.project().join(".git")).unwrap();
    git(&desk.project(), &["init", "-q"]);
    git(&desk.project(), &["config", "core.worktree", &desk.outside("vault").display().to_string()]);
    seen("core.worktree").await;
    for path in ["../vault/secret", "/etc/passwd", "..", ":(top)..", ":/../vault"] {
        let text = crate::tool_harness::text_of(&toolbox.call("git_diff", json!({"path": path})).await);
        assert!(!text.contains(CANARY), "{path}: {text}");
    }
    for path in ["--output=pwned", "-O../evil", "--no-index"] {
        toolbox.call("git_diff", json!({"path": path})).await;
        toolbox.call("git_commit", json!({"message": path, "paths": [path]})).await;
        assert!(!desk.project().join("pwned").exists(), "a path was interpreted as an option");
    }
}
