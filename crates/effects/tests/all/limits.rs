//! Programs that use too much: memory, processes, processor time, large files. Each ends with a result that names the
//! limit, its value and the setting, and nothing survives. The amounts are small, so that a failure harms no machine.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use sapwood_core::port::tool::{FsScope, ProgramLimits, ToolHost};
use sapwood_effects::sandbox::limits::{MIB, ResourceLimits};
use sapwood_effects::sandbox::{Confinement, FileRights, Network};
use sapwood_effects::tool::host::Host;
use serde_json::json;

use crate::tool_harness::{ToolHarness, Tools};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_sapwood-launcher");
const SMALL: ResourceLimits = ResourceLimits {
    memory_bytes_max: 200 * MIB,
    processes_max: 50,
    cpu_seconds_max: 2,
    file_bytes_max: 10 * MIB,
    open_files_max: 64,
};
/// Fills memory step by step, and waits if it is not stopped.
const FILL_MEMORY: &str = "perl -e 'my @a; for (1..60) { push @a, \"x\" x (10 << 20) } sleep 600'";
/// Two processes that are each below the limit.
const FILL_MEMORY_TOGETHER: &str =
    "for i in 1 2; do perl -e 'my $a = \"x\" x (130 << 20); sleep 600' & done; wait";
/// A bounded fork bomb: 510 processes if it is not stopped, each of which starts two others.
const BOMB: &str =
    "f() { [ $1 -gt 0 ] || { sleep 600; return; }; f $(($1 - 1)) & f $(($1 - 1)) & sleep 600; }; f 8";
const FILL_FILE: &str = "dd if=/dev/zero of=big bs=1M count=30";
const BURN_CPU: &str = "while :; do :; done";

fn script(command: &str) -> serde_json::Value {
    json!({"command": ["bash", "-c", command], "timeout_s": 300})
}

async fn open(harness: &ToolHarness, agent: ProgramLimits) -> Tools {
    let mut grant = harness.grant(FsScope::Project, &["bash -c *"]);
    grant.sandbox = agent;
    Tools(Host::new(harness.settings.clone()).open(&grant).await.unwrap())
}

async fn limited() -> (ToolHarness, Tools) {
    let mut harness = ToolHarness::new();
    harness.settings.limits = SMALL;
    let tools = open(&harness, ProgramLimits::default()).await;
    (harness, tools)
}

fn assert_explains(text: &str, parts: &[&str]) {
    for part in parts.iter().chain(&["[sandbox.command]", "sapwood.toml"]) {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

#[tokio::test]
async fn too_much_memory_stops_a_command() {
    let (_harness, tools) = limited().await;
    for command in [FILL_MEMORY, FILL_MEMORY_TOGETHER] {
        let text = tools.fails("run_command", script(command)).await;
        assert_explains(&text, &["limit reached: 200 MiB of memory", "memory_mb", "stopped at a limit"]);
    }
}

#[tokio::test]
async fn a_fork_bomb_is_stopped_with_all_its_processes() {
    let (harness, tools) = limited().await;
    let marked = BOMB.replace("sleep 600", "exec sleep 600.0612");
    let text = tools.fails("run_command", script(&marked)).await;
    assert_explains(&text, &["limit reached: 50 processes and threads", "processes in"]);
    assert_eq!(running("sleep\u{0}600.0612"), 0);
    drop(harness);
}

/// The number of processes with this command line.
fn running(command_line: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.trim_end_matches('\0') == command_line).count()
}

#[tokio::test]
async fn a_large_file_and_too_many_open_files_are_explained() {
    let (harness, tools) = limited().await;
    let text = tools.fails("run_command", script(FILL_FILE)).await;
    assert_explains(&text, &["10 MiB per file", "file_mb"]);
    assert!(fs::metadata(harness.project().join("big")).unwrap().len() <= 10 * MIB);
    // A program that ignores the signal gets an error, and reports it in its own words.
    let ignoring = "perl -e '$SIG{XFSZ} = \"IGNORE\"; open(F, \">\", \"b\"); print F \"x\" x (1 << 20) for 1..30; \
                    close(F) or die \"b: $!\\n\"'";
    assert_explains(&tools.fails("run_command", script(ignoring)).await, &["10 MiB per file", "file_mb"]);
    let many = "perl -e 'my @f; for (1..200) { open($f[$_], \"<\", \"/dev/null\") or die \"open: $!\\n\" }'";
    assert_explains(&tools.fails("run_command", script(many)).await, &["64 open files", "open_files"]);
}

#[tokio::test]
async fn processor_time_is_counted_over_all_processes() {
    let (_harness, tools) = limited().await;
    let shared = format!("for i in 1 2 3; do ({BURN_CPU}) & done; wait");
    for command in [BURN_CPU, &shared] {
        let text = tools.fails("run_command", script(command)).await;
        assert_explains(&text, &["2 s of processor time", "cpu_s"]);
    }
}

#[tokio::test]
async fn an_agent_lowers_the_limits_and_cannot_raise_them() {
    let (harness, _) = limited().await;
    let lower = ProgramLimits { file_mb: Some(1), ..ProgramLimits::default() };
    let text = open(&harness, lower).await.fails("run_command", script(FILL_FILE)).await;
    assert_explains(&text, &["1 MiB per file"]);
    let higher = ProgramLimits { file_mb: Some(100), ..ProgramLimits::default() };
    let text = open(&harness, higher).await.fails("run_command", script(FILL_FILE)).await;
    assert_explains(&text, &["10 MiB per file"]);
}

#[tokio::test]
async fn a_program_within_its_limits_is_not_disturbed() {
    let (_harness, tools) = limited().await;
    // Forked processes share their memory, so it counts once.
    let sharing =
        "perl -e 'my $a = \"x\" x (60 << 20); for (1..5) { fork or do { sleep 1; exit } } wait for 1..5'";
    tools.succeeds("run_command", script(sharing)).await;
    let text = tools.fails("run_command", script("exit 123")).await;
    assert!(text.contains("exit status 123") && !text.contains("limit"), "{text}");
}

#[tokio::test]
async fn a_command_creates_no_user_namespace() {
    let (harness, tools) = limited().await;
    if !harness.settings.launcher.confines() {
        return;
    }
    for command in ["unshare -U true", "unshare -Ur true", "perl -e 'exit(syscall(272, 0x10000000) ? 1 : 0)'"]
    {
        tools.fails("run_command", script(command)).await;
    }
    // Threads still start, although clone3 is refused.
    tools
        .succeeds(
            "run_command",
            script("perl -e 'my $p = fork // die; exit 0 if !$p; waitpid($p, 0); exit $?'"),
        )
        .await;
}

/// Run a script under the launcher as another user. `None` if this process cannot change its user.
fn run_as_nobody(dir: &Path, limits: ResourceLimits, command: &str) -> Option<Output> {
    if !rustix_is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        return None;
    }
    let launcher = dir.join("launcher");
    fs::copy(LAUNCHER, &launcher).unwrap();
    for path in [dir, &launcher] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let confinement = Confinement { limits, ..Confinement::new(FileRights::Open, Network::Open) };
    let mut child = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&launcher)
        .args(["__sandbox", "supervise", &serde_json::to_string(&confinement).unwrap()])
        .args(["/bin/bash", "-c", command])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The open pipe is the lifeline.
    let _lifeline = child.stdin.take();
    let mut stderr = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    Some(Output { status, stdout: Vec::new(), stderr })
}

fn rustix_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

#[test]
fn the_limits_hold_for_another_user() {
    let dir = tempfile::tempdir().unwrap();
    for (command, expected) in [
        (FILL_MEMORY, "200 MiB of memory"),
        (BOMB, "50 processes and threads"),
        (FILL_FILE, "10 MiB per file"),
        (BURN_CPU, "2 s of processor time"),
    ] {
        let Some(output) = run_as_nobody(dir.path(), SMALL, command) else { return };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(expected), "{command}: {text}");
        assert_eq!(output.status.code(), Some(123), "{command}: {text}");
    }
}

/// A directory for control groups that belongs to this test, if the machine has one of version 1 in whose root this
/// process is. Elsewhere the hierarchy belongs to another program.
fn delegated_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let is_at_root = own.lines().any(|line| line.ends_with(":pids:/"));
    let dir = Path::new("/sys/fs/cgroup/pids").join(format!("sapwood-test-{}", std::process::id()));
    (is_at_root && fs::create_dir(&dir).is_ok()).then_some(dir)
}

#[tokio::test]
async fn a_delegated_control_group_limits_processes_exactly() {
    let Some(group) = delegated_group() else { return };
    let (mut harness, _) = limited().await;
    harness.settings.cgroups = vec![group.clone()];
    let tools = open(&harness, ProgramLimits::default()).await;
    let text = tools.fails("run_command", script(BOMB)).await;
    assert_explains(&text, &["50 processes and threads"]);
    tools.succeeds("run_command", script("sleep 600 & setsid sleep 600 & true")).await;
    // Every group of a program is removed with it.
    fs::remove_dir(&group).unwrap();
    let text = open(&harness, ProgramLimits::default()).await.fails("run_command", script("true")).await;
    assert!(text.contains("control group"), "{text}");
}

#[test]
fn the_program_ends_with_its_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let confinement = Confinement::new(FileRights::Open, Network::Open);
    let mut launcher = Command::new(LAUNCHER)
        .args(["__sandbox", "supervise", &serde_json::to_string(&confinement).unwrap()])
        .args(["/bin/bash", "-c", "echo $$; exec sleep 600"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    let stdout = launcher.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut pid).unwrap();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let stat = PathBuf::from(format!("/proc/{}/cmdline", pid.trim()));
    while fs::read(&stat).is_ok_and(|line| !line.is_empty()) {
        std::thread::sleep(Duration::from_millis(20));
    }
}
