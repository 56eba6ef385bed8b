//! Escapes through path spellings, links and special files.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use sapwood_core::port::tool::{FsScope, ToolHost};
use sapwood_effects::tool::host::{Host, Settings};
use serde_json::json;

use super::{
    CANARY, assert_refused, assert_vault_unchanged, attempts, harness_with_vault, restricted_toolboxes,
};
use crate::tool_harness::{ToolHarness, Tools, read};

#[tokio::test]
async fn no_path_spelling_leads_out() {
    let harness = harness_with_vault();
    let vault = harness.outside("vault/secret").display().to_string();
    for (_, toolbox) in restricted_toolboxes(&harness).await {
        for path in [
            vault.clone(),
            format!("/{vault}"),
            format!("/proc/self/root{vault}"),
            format!("/proc/self/cwd/../../../../../../../../..{vault}"),
            "../vault/secret".into(),
            "a/../../vault/secret".into(),
            "./.././vault/secret".into(),
            format!("../../../../../../../../../../../..{vault}"),
            format!("{}/../vault/secret", harness.project().display()),
            format!("{}x/secret", harness.project().display()),
            "../project-2/x".into(),
            "..".into(),
            "/".into(),
            "/etc/passwd".into(),
            "~/x/../../../etc/passwd".into(),
            "a\0b".into(),
            "..\0/vault/secret".into(),
            "a/".repeat(2_100),
            "a/".repeat(100),
        ] {
            assert_refused(&harness, &toolbox, &path).await;
        }
        let overlong = "x".repeat(300);
        toolbox.fails("write_file", json!({"path": overlong, "content": ""})).await;
        toolbox.fails("read_file", json!({"path": overlong})).await;
    }
}

#[tokio::test]
async fn no_symlink_leads_out() {
    let harness = harness_with_vault();
    for (files, toolbox) in restricted_toolboxes(&harness).await {
        let link = |target: &str, name: &str| symlink(target, files.join(name)).unwrap();
        let vault = harness.outside("vault");
        let climb = "../".repeat(files.components().count());
        link(&vault.join("secret").display().to_string(), "absolute");
        link(&format!("{climb}{}", vault.join("secret").display()), "relative");
        link(&vault.display().to_string(), "dir");
        link("absolute", "chain-1");
        link("chain-1", "chain-2");
        link("loop", "loop");
        link(&vault.join("new").display().to_string(), "dangling");
        link(&vault.join("new-dir").display().to_string(), "dangling-dir");
        link("/proc/self/root", "root");
        link("/proc/self/cwd", "cwd");
        link(".", "here");
        for path in [
            "absolute",
            "relative",
            "dir/secret",
            "chain-2",
            "loop",
            "dangling",
            "dangling-dir/x",
            "here/here/absolute",
            "here/dir/secret",
        ] {
            assert_refused(&harness, &toolbox, path).await;
        }
        let through_proc = format!("root{}", vault.join("secret").display());
        assert_refused(&harness, &toolbox, &through_proc).await;
        for path in ["dir", "root", "cwd"] {
            toolbox.fails("list_directory", json!({"path": path})).await;
            toolbox.fails("find_files", json!({"path": path, "pattern": "*"})).await;
            toolbox.fails("search_text", json!({"path": path, "pattern": "."})).await;
        }
        let walked = toolbox.succeeds("search_text", json!({"pattern": "canary"})).await;
        assert!(!walked.contains(CANARY), "the search followed a link: {walked}");
        toolbox.fails("write_file", json!({"path": "dir/planted", "content": "x"})).await;
        assert_vault_unchanged(&harness);
    }
}

#[tokio::test]
async fn no_spelling_opens_a_protected_file() {
    let harness = harness_with_vault();
    for path in [".env", ".git/config", "sub/server.pem", ".ssh/id_rsa", ".aws/credentials", ".npmrc"] {
        harness.put(path, CANARY);
    }
    symlink(".env", harness.project().join("innocent")).unwrap();
    symlink(".git", harness.project().join("history")).unwrap();
    symlink("innocent", harness.project().join("twice")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    for path in [
        ".env",
        "./.env",
        "sub/../.env",
        ".ENV",
        ".Env",
        ".env.",
        ".env ",
        ".env. . ",
        ".env::$DATA",
        ".git/config",
        ".GIT/config",
        ".git./config",
        ".git /config",
        "GIT~1/config",
        ".g\u{200c}it/config",
        "sub/server.pem",
        "sub/SERVER.PEM",
        ".ssh/id_rsa",
        ".aws/credentials",
        ".npmrc",
        "innocent",
        "twice",
        "history/config",
        &harness.project().join(".env").display().to_string(),
    ] {
        for (name, input) in attempts(path) {
            let text = toolbox.fails(name, input).await;
            assert!(!text.contains(CANARY), "{name} {path:?}");
        }
    }
    for path in
        [".env.local", ".git/hooks/pre-commit", "new/.ssh/authorized_keys", ".Git/hooks/x", "history/hooks/x"]
    {
        toolbox.fails("write_file", json!({"path": path, "content": "x"})).await;
        assert!(!harness.project().join(path).exists(), "{path}");
    }
    assert_eq!(read(harness.project().join(".env")), CANARY);
    for text in [
        toolbox.succeeds("search_text", json!({"pattern": "canary"})).await,
        toolbox.succeeds("find_files", json!({"pattern": "*"})).await,
        toolbox.succeeds("list_directory", json!({})).await,
    ] {
        assert!(!text.contains(CANARY) && !text.contains(".env") && !text.contains(".git/"), "{text}");
    }
}

#[tokio::test]
async fn no_hard_link_gives_access_to_files_outside_the_session() {
    let harness = harness_with_vault();
    harness.put(".env", CANARY);
    harness.put(".git/deep/key", CANARY);
    harness.put("shared", "plain");
    fs::hard_link(harness.project().join(".env"), harness.project().join("innocent")).unwrap();
    fs::hard_link(harness.project().join(".git/deep/key"), harness.project().join("object")).unwrap();
    fs::hard_link(harness.project().join("shared"), harness.project().join("shared-2")).unwrap();
    let project = harness.open(FsScope::Project, &[]).await;
    for path in ["innocent", "object"] {
        assert!(project.fails("read_file", json!({"path": path})).await.contains("protected"));
        project.fails("edit_file", json!({"path": path, "old_text": "c", "new_text": "x"})).await;
        project.fails("write_file", json!({"path": path, "content": "x"})).await;
    }
    assert!(!project.succeeds("search_text", json!({"pattern": "canary"})).await.contains(CANARY));
    assert_eq!(project.succeeds("read_file", json!({"path": "shared"})).await, "plain");
    assert!(
        project.fails("write_file", json!({"path": "shared", "content": "x"})).await.contains("hard links")
    );
    assert_eq!(read(harness.project().join(".env")), CANARY);

    let sandboxed = harness.open(FsScope::Sandboxed, &[]).await;
    fs::hard_link(harness.outside("vault/secret"), harness.scratch().join("linked")).unwrap();
    for (name, input) in [
        ("read_file", json!({"path": "linked"})),
        ("write_file", json!({"path": "linked", "content": "x"})),
        ("edit_file", json!({"path": "linked", "old_text": "c", "new_text": "x"})),
    ] {
        assert!(sandboxed.fails(name, input).await.contains("hard links"));
    }
    assert!(!sandboxed.succeeds("search_text", json!({"pattern": "canary"})).await.contains(CANARY));
    assert_vault_unchanged(&harness);
}

#[tokio::test]
async fn pipes_sockets_and_devices_are_refused_without_blocking() {
    let harness = harness_with_vault();
    for (files, toolbox) in restricted_toolboxes(&harness).await {
        assert!(Command::new("mkfifo").arg(files.join("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(files.join("socket")).unwrap();
        for path in ["pipe", "socket"] {
            for (name, input) in attempts(path).into_iter().filter(|(name, _)| *name != "find_files") {
                let refused = tokio::time::timeout(Duration::from_secs(60), toolbox.fails(name, input)).await;
                assert!(refused.is_ok(), "{name} blocks on {path}");
            }
        }
        let walked = tokio::time::timeout(
            Duration::from_secs(60),
            toolbox.succeeds("search_text", json!({"pattern": "."})),
        );
        walked.await.expect("the search must not wait for a pipe");
    }
    let full = harness.open(FsScope::Full, &[]).await;
    for path in ["/dev/zero", "/dev/null", "/dev/stdin"] {
        full.fails("read_file", json!({"path": path})).await;
        full.fails("write_file", json!({"path": path, "content": "x"})).await;
    }
}

#[tokio::test]
async fn a_scratch_directory_that_is_a_link_is_refused() {
    let harness = harness_with_vault();
    let session = harness.scratch().parent().unwrap().to_owned();
    fs::create_dir_all(session.parent().unwrap()).unwrap();
    symlink(harness.outside("vault"), &session).unwrap();
    let host = Host::new(harness.settings.clone());
    let refused =
        host.open(&harness.grant(FsScope::Sandboxed, &[])).await.err().expect("the toolbox was opened");
    assert_eq!(refused.code(), "tool.no_directory");
    assert_vault_unchanged(&harness);
}

/// Set in the process that runs inside of its own mounts.
const MOUNTED: &str = "SAPWOOD_TEST_MOUNTED";

/// A bind mount gives a protected directory a second name. The test runs itself again in its own mount namespace, and is
/// skipped where this process may not mount.
#[tokio::test]
async fn a_protected_file_is_not_read_through_a_bind_mount() {
    if let Some(project) = std::env::var_os(MOUNTED) {
        return read_in_mounted_project(&project.into_string().unwrap()).await;
    }
    let harness = harness_with_vault();
    harness.put(".ssh/config", CANARY);
    harness.put("plain/a.txt", "ordinary");
    fs::create_dir(harness.project().join("mounted")).unwrap();
    let script = "mount --bind .ssh mounted || exit 77; exec \"$0\" --exact \
                  escapes::paths::a_protected_file_is_not_read_through_a_bind_mount";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .current_dir(harness.project())
        .env(MOUNTED, harness.project())
        .output();
    let Ok(output) = output else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) || String::from_utf8_lossy(&output.stderr).contains("unshare failed")
    {
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn read_in_mounted_project(project: &str) {
    let mut grant = ToolHarness::new().grant(FsScope::Project, &[]);
    grant.cwd = Some(project.to_owned());
    let scratch = tempfile::tempdir().unwrap();
    let toolbox = Tools(Host::new(Settings::new(scratch.path())).open(&grant).await.unwrap());
    let text = toolbox.fails("read_file", json!({"path": "mounted/config"})).await;
    assert!(text.contains("protected"), "{text}");
    let found = toolbox.succeeds("search_text", json!({"pattern": CANARY, "literal": true})).await;
    assert!(!found.contains("mounted"), "{found}");
    assert_eq!(toolbox.succeeds("read_file", json!({"path": "plain/a.txt"})).await, "ordinary");
}
