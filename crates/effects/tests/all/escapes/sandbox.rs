//! Escapes of a running program: files, environment, network, and outliving its call. On a system without a sandbox,
//! only the environment and the termination of programs are tested.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sapwood_core::port::tool::FsScope;
use sapwood_effects::sandbox::{Confinement, FileRights, Network};
use serde_json::json;

use super::{CANARY, assert_vault_unchanged, harness_with_vault};
use crate::tool_harness::{ToolHarness, Tools, text_of};

async fn shell(toolbox: &Tools, script: &str) -> String {
    text_of(&toolbox.call("run_command", json!({"command": ["bash", "-c", script], "timeout_s": 20})).await)
}

#[tokio::test]
async fn a_program_does_not_inherit_sapwoods_environment() {
    let harness = harness_with_vault();
    let known = ["PATH", "HOME", "TMPDIR", "LANG", "TERM", "NO_COLOR", "PWD", "SHLVL", "_"];
    assert!(std::env::var("CARGO_PKG_NAME").is_ok(), "cargo sets variables that the program must not see");
    for scope in [FsScope::Sandboxed, FsScope::Project, FsScope::Full] {
        let toolbox = harness.open(scope, &["env", "bash -c *"]).await;
        let env = toolbox.succeeds("run_command", json!({"command": "env"})).await;
        let names = env.lines().filter(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
        for (name, _) in names {
            assert!(known.contains(&name), "{name} is in the environment of a program");
        }
        if !harness.settings.launcher.confines() {
            continue;
        }
        let pid = std::process::id();
        let output =
            shell(&toolbox, &format!("for p in {pid} $PPID 1; do tr '\\0' '\\n' </proc/$p/environ; done"))
                .await;
        assert!(!output.contains("CARGO_PKG_NAME"), "{output}");
        if scope != FsScope::Full {
            let output =
                shell(&toolbox, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps").await;
            assert!(!output.contains("CARGO_") && !output.contains("sapwood_effects"), "{output}");
        }
    }
}

#[tokio::test]
async fn a_confined_program_neither_reads_nor_writes_outside() {
    let harness = harness_with_vault();
    if !harness.settings.launcher.confines() {
        return;
    }
    let vault = harness.outside("vault").display().to_string();
    let project = harness.project().display().to_string();
    for scope in [FsScope::Sandboxed, FsScope::Project] {
        let toolbox = harness.open(scope, &["bash -c *"]).await;
        for script in [
            format!("cat {vault}/secret"),
            format!("cat /proc/self/root{vault}/secret"),
            format!("ln -s {vault}/secret l; cat l"),
            format!("ln {vault}/secret h; cat h"),
            format!("cp -r {vault} copied; cat copied/secret"),
            format!("cd {vault} && cat secret"),
            format!("ls {vault}; echo {vault}/*"),
            format!("echo x >{vault}/new; echo x >{vault}/secret; rm -f {vault}/secret; mv {vault}/secret ."),
            format!(
                "mkdir {vault}/d; touch {vault}/t; chmod 777 {vault}/secret; truncate -s 0 {vault}/secret"
            ),
            format!("unshare -Urm bash -c 'mount --bind {vault} . && cat secret; cat {vault}/secret'"),
            format!("bash -c 'exec 9<{vault}/secret; cat <&9'"),
            "cat /etc/shadow; cat /root/.bashrc; ls /root /home".to_owned(),
        ] {
            let text = shell(&toolbox, &script).await;
            assert!(
                !text.contains(CANARY) && !text.contains("root:*") && !text.contains("root:!"),
                "{script}: {text}"
            );
        }
        assert_vault_unchanged(&harness);
        let planted = format!("/tmp/sapwood-escape-{}", std::process::id());
        shell(&toolbox, &format!("echo x >{planted}; echo x >/var/tmp/x-{}", std::process::id())).await;
        assert!(!Path::new(&planted).exists());
    }
    let sandboxed = harness.open(FsScope::Sandboxed, &["bash -c *"]).await;
    harness.put("mine", CANARY);
    let text =
        shell(&sandboxed, &format!("cat {project}/mine; echo x >{project}/planted; echo ok >own; cat own"))
            .await;
    assert!(!text.contains(CANARY) && text.starts_with("ok\n"), "{text}");
    assert!(!harness.project().join("planted").exists());
}

#[tokio::test]
async fn a_confined_program_reaches_no_network_and_no_socket() {
    let mut harness = harness_with_vault();
    if !harness.settings.launcher.confines() {
        return;
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let socket = harness.project().join("s");
    let _unix = UnixListener::bind(&socket).unwrap();
    let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    let by_tcp = format!("exec 3<>/dev/tcp/127.0.0.1/{tcp_port} && echo reached");
    let by_udp = format!("echo hello >/dev/udp/127.0.0.1/{udp_port} && echo reached");
    let by_unix = format!(
        "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) && connect(S, sockaddr_un(\"{}\")) && print \"reached\\n\"'",
        socket.display()
    );
    let pair = "perl -MSocket -e 'socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) && print \"paired\\n\"'";
    let toolbox = harness.open(FsScope::Project, &["bash -c *"]).await;
    for script in [&by_tcp, &by_udp, &by_unix] {
        let text = shell(&toolbox, script).await;
        assert!(!text.contains("reached"), "{script}: {text}");
    }
    assert!(udp.recv(&mut [0; 16]).is_err(), "a packet arrived");
    assert!(shell(&toolbox, pair).await.contains("paired"));

    // With an open network the same scripts succeed, so the sandbox causes the refusals above.
    harness.settings.network = Network::Open;
    let toolbox = harness.open(FsScope::Project, &["bash -c *"]).await;
    for script in [&by_tcp, &by_udp, &by_unix] {
        let text = shell(&toolbox, script).await;
        assert!(text.contains("reached"), "{script}: {text}");
    }
}

/// Appends to a file while the process is alive.
const HEARTBEAT: &str = "while :; do echo x >>heartbeat; sleep 0.02; done";

/// Scripts that detach from the parent process.
async fn detached_scripts(toolbox: &Tools) -> Vec<String> {
    let mut scripts = vec![
        format!("({HEARTBEAT}) &"),
        format!("setsid bash -c '{HEARTBEAT}' &"),
        format!("(setsid bash -c '(setsid bash -c \"{HEARTBEAT}\" &)' &) "),
        format!(
            "trap '' TERM HUP INT; nohup setsid bash -c 'trap \"\" TERM HUP; {HEARTBEAT}' >/dev/null 2>&1 &"
        ),
        format!("setsid setsid bash -c 'exec >/dev/null 2>&1 <&-; {HEARTBEAT}' & disown -a"),
    ];
    // Kernels before 6.12 cannot restrict which processes a program signals.
    if shell(toolbox, "kill -0 $PPID || echo refused").await.contains("refused") {
        scripts.push(format!("kill -9 $PPID; kill -STOP $PPID; setsid bash -c '{HEARTBEAT}' &"));
    }
    scripts
}

/// Wait for the first heartbeat.
async fn wait_for_heartbeat(harness: &ToolHarness) {
    while !harness.project().join("heartbeat").exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Assert that the process was alive and is dead now.
fn assert_dead(harness: &ToolHarness, how: &str) {
    let file = harness.project().join("heartbeat");
    let beats = || fs::metadata(&file).map_or(0, |found| found.len());
    std::thread::sleep(Duration::from_millis(100));
    let before = beats();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(beats(), before, "still alive: {how}");
    fs::remove_file(&file).unwrap_or_else(|_| panic!("never started: {how}"));
}

#[tokio::test]
async fn no_process_outlives_a_finished_call() {
    let harness = harness_with_vault();
    let toolbox = harness.open(FsScope::Project, &["bash -c *"]).await;
    for detach_script in detached_scripts(&toolbox).await {
        shell(&toolbox, &format!("{detach_script}\nuntil [ -e heartbeat ]; do sleep 0.02; done; true")).await;
        assert_dead(&harness, &detach_script);
    }
}

#[tokio::test]
async fn no_process_outlives_a_timed_out_call() {
    let harness = harness_with_vault();
    let toolbox = harness.open(FsScope::Project, &["bash -c *"]).await;
    for detach_script in detached_scripts(&toolbox).await {
        // On a busy machine the first heartbeat may take longer than a second.
        for timeout_s in [1, 5, 25] {
            let command = json!({"command": ["bash", "-c", format!("{detach_script}\nsleep 600")], "timeout_s": timeout_s});
            toolbox.fails("run_command", command).await;
            if harness.project().join("heartbeat").exists() {
                break;
            }
        }
        assert_dead(&harness, &detach_script);
    }
}

#[tokio::test]
async fn no_process_outlives_a_dropped_call() {
    let harness = harness_with_vault();
    let toolbox = harness.open(FsScope::Project, &["bash -c *"]).await;
    for detach_script in detached_scripts(&toolbox).await {
        let script = format!("{detach_script}\nsleep 600");
        tokio::select! {
            _ = shell(&toolbox, &script) => panic!("the call ended before it was dropped: {detach_script}"),
            () = wait_for_heartbeat(&harness) => {}
        }
        assert_dead(&harness, &detach_script);
    }
}

#[test]
fn no_process_outlives_the_calling_process() {
    let harness = harness_with_vault();
    let confinement = Confinement::new(FileRights::Open, Network::Open);
    // When a process dies for any reason, its end of the pipe closes. The launcher relies only on the closed pipe.
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_sapwood-launcher"))
        .args(["__sandbox", "supervise", &serde_json::to_string(&confinement).unwrap()])
        .args(["/bin/bash", "-c", &format!("setsid bash -c '{HEARTBEAT}' & echo begun; sleep 60")])
        .current_dir(harness.project())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    launcher.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    while !harness.project().join("heartbeat").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(launcher.stdin.take());
    launcher.wait().unwrap();
    assert_dead(&harness, "the pipe was closed");
}

#[test]
fn a_launcher_with_invalid_arguments_starts_nothing() {
    for args in [
        &["__sandbox"][..],
        &["__sandbox", "enter"],
        &["__sandbox", "enter", "{}", "/bin/true"],
        &["__sandbox", "enter", "{\"files\":\"open\",\"network\":\"open\"}"],
        &["__sandbox", "other", "{}", "/bin/true"],
        &["echo"],
    ] {
        let status =
            Command::new(env!("CARGO_BIN_EXE_sapwood-launcher")).args(args).stderr(Stdio::null()).status();
        assert_eq!(status.unwrap().code(), Some(126), "{args:?}");
    }
}
