//! Escapes through repositories that make git run programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use sapwood_core::port::tool::FsScope;
use sapwood_effects::sandbox::Launcher;
use serde_json::json;

use super::{CANARY, harness_with_vault};
use crate::git::{git, repository};
use crate::tool_harness::ToolHarness;

/// Plant a program that records its execution and behaves the way git expects.
fn plant(harness: &ToolHarness) -> String {
    let program = harness.outside("evil");
    let script = format!("#!/bin/sh\necho \"$0 $*\" >>{}\ncat\n", harness.outside("pwned").display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.display().to_string()
}

/// A repository with every known git setting that makes git run a program.
fn hostile() -> ToolHarness {
    let harness = repository();
    let evil = plant(&harness);
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
        fs::create_dir_all(harness.project().join(".git/hooks")).unwrap();
        fs::copy(&evil, harness.project().join(".git/hooks").join(hook)).unwrap();
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
        git(&harness.project(), &["config", key, &value]);
    }
    for (key, value) in [("commit.gpgSign", "true"), ("core.hooksPath", ".git/hooks"), ("gc.auto", "1")] {
        git(&harness.project(), &["config", key, value]);
    }
    // Git may have run the program during this setup.
    harness.put("a.txt", "changed\n");
    harness.put("new.txt", "new\n");
    harness.put(".gitattributes", "* diff=evil\n");
    let _ = fs::remove_file(harness.outside("pwned"));
    harness
}

fn assert_nothing_ran(harness: &ToolHarness) {
    let record = fs::read_to_string(harness.outside("pwned")).unwrap_or_default();
    assert_eq!(record, "", "git ran a planted program");
}

#[tokio::test]
async fn no_setting_of_a_repository_runs_a_program() {
    let mut harness = hostile();
    // Run without the sandbox, because a planted program in the sandbox could not record its execution.
    harness.settings.launcher = Launcher::None;
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert!(toolbox.succeeds("git_status", json!({})).await.contains(" M a.txt"));
    assert!(toolbox.succeeds("git_diff", json!({})).await.contains("+changed"));
    assert_nothing_ran(&harness);
    toolbox.succeeds("git_commit", json!({"message": "m"})).await;
    assert_nothing_ran(&harness);
    assert!(toolbox.succeeds("git_diff", json!({"staged": true})).await.contains("no differences"));
    assert_nothing_ran(&harness);
}

#[tokio::test]
async fn the_hostile_repository_is_hostile() {
    let harness = hostile();
    let _ = std::process::Command::new("git").arg("status").current_dir(harness.project()).output().unwrap();
    let record = fs::read_to_string(harness.outside("pwned")).unwrap_or_default();
    assert!(
        record.contains("evil"),
        "plain git runs none of the planted programs, so the tests in this file prove nothing"
    );
}

#[tokio::test]
async fn no_filter_runs_whatever_its_name() {
    let mut harness = repository();
    let evil = plant(&harness);
    harness.put(".gitattributes", "*.txt filter=evil\n*.md filter=a.b=c\n");
    for name in ["evil", "a.b=c"] {
        for part in ["clean", "smudge", "process"] {
            git(&harness.project(), &["config", &format!("filter.{name}.{part}"), &evil]);
        }
        git(&harness.project(), &["config", &format!("filter.{name}.required"), "true"]);
    }
    harness.put("a.txt", "changed\n");
    harness.put("b.md", "new\n");
    harness.settings.launcher = Launcher::None;
    let toolbox = harness.open(FsScope::Project, &[]).await;
    toolbox.succeeds("git_status", json!({})).await;
    assert!(toolbox.succeeds("git_diff", json!({})).await.contains("+changed"));
    assert!(toolbox.fails("git_commit", json!({"message": "m"})).await.contains("filter"));
    assert_nothing_ran(&harness);
}

#[tokio::test]
async fn a_repository_cannot_redirect_git_to_other_files() {
    let harness = harness_with_vault();
    git(&harness.outside("vault"), &["init", "-q"]);
    git(&harness.outside("vault"), &["add", "."]);
    git(&harness.outside("vault"), &["commit", "-qm", CANARY]);
    fs::write(harness.outside("vault/secret"), format!("{CANARY} changed")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let assert_no_leak = async |what: &str| {
        for tool in ["git_status", "git_diff"] {
            let text = crate::tool_harness::text_of(&toolbox.call(tool, json!({})).await);
            assert!(!text.contains(CANARY) && !text.contains("secret\n"), "{what}, {tool}: {text}");
        }
    };
    symlink(harness.outside("vault/.git"), harness.project().join(".git")).unwrap();
    assert_no_leak("a linked .git").await;
    fs::remove_file(harness.project().join(".git")).unwrap();
    harness.put(".git", &format!("gitdir: {}", harness.outside("vault/.git").display()));
    assert_no_leak("a .git file").await;
    fs::remove_file(harness.project().join(".git")).unwrap();
    git(&harness.project(), &["init", "-q"]);
    git(&harness.project(), &["config", "core.worktree", &harness.outside("vault").display().to_string()]);
    assert_no_leak("core.worktree").await;
    for path in ["../vault/secret", "/etc/passwd", "..", ":(top)..", ":/../vault"] {
        let text = crate::tool_harness::text_of(&toolbox.call("git_diff", json!({"path": path})).await);
        assert!(!text.contains(CANARY), "{path}: {text}");
    }
    for path in ["--output=pwned", "-O../evil", "--no-index"] {
        toolbox.call("git_diff", json!({"path": path})).await;
        toolbox.call("git_commit", json!({"message": path, "paths": [path]})).await;
        assert!(!harness.project().join("pwned").exists(), "a path was interpreted as an option");
    }
}
