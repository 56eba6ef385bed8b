//! The supervisor process of the launcher. It starts the program, and kills all processes that the program started,
//! even detached ones, when the program exits or the lifeline closes.
//!
//! The supervisor's standard input is the lifeline: a pipe whose other end the tool keeps open. The pipe closes on
//! timeout, when the call is dropped, and when the calling process dies, even by `kill -9`.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::{ARGUMENT, ENTER};

/// Maximum number of scans for descendants before the supervisor gives up.
const ROUNDS_MAX: u32 = 1_000;
const ROUND_PAUSE: Duration = Duration::from_millis(3);
/// Shells add this to a signal's number to form an exit status.
const SIGNAL_BASE: i32 = 128;

pub fn supervise(confinement: &OsStr, command: &[OsString]) -> Result<ExitCode, String> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|why| why.to_string())?;
    let launcher = super::Launcher::this_binary();
    let super::Launcher::Binary(binary) = launcher else {
        return Err("the launcher binary was not found".to_owned());
    };
    let program = Command::new(binary)
        .args([OsStr::new(ARGUMENT), OsStr::new(ENTER), confinement])
        .args(command)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|why| why.to_string())?;
    let program = Pid::from_child(&program);
    std::thread::spawn(move || {
        wait_for_lifeline_close();
        kill_descendants(program, Reap::No);
    });
    let status = wait_for(program).map_err(|why| why.to_string())?;
    kill_descendants(program, Reap::Yes);
    let code = status.exit_status().or(status.terminating_signal().map(|signal| SIGNAL_BASE + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(super::NOT_STARTED)))
}

/// Wait until the lifeline closes. No data is ever written to it.
fn wait_for_lifeline_close() {
    let mut ignored = [0; 64];
    let mut lifeline = std::io::stdin();
    while lifeline.read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
}

/// Reap children until the program itself exits.
fn wait_for(program: Pid) -> Result<WaitStatus, Errno> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => return Ok(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(why),
        }
    }
}

/// Only the waiting thread may reap, because a status taken by another thread would be lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reap {
    Yes,
    No,
}

fn kill_descendants(program: Pid, reap: Reap) {
    for _ in 0..ROUNDS_MAX {
        let living = descendants(program);
        for pid in &living {
            // The process may have exited in the meantime.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        while reap == Reap::Yes && matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        if living.is_empty() {
            return;
        }
        std::thread::sleep(ROUND_PAUSE);
    }
}

/// List all descendants of this process. It is the subreaper, so orphaned descendants become its children, and its tree
/// contains every process that the program started.
#[cfg(target_os = "linux")]
fn descendants(_: Pid) -> Vec<Pid> {
    let processes = list_processes();
    let mut found = vec![rustix::process::getpid()];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(processes.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    let is_living = |pid: &Pid| processes.iter().any(|process| process.pid == *pid && process.is_living);
    found.into_iter().skip(1).filter(is_living).collect()
}

#[cfg(target_os = "linux")]
struct Process {
    pid: Pid,
    parent: Pid,
    is_living: bool,
}

#[cfg(target_os = "linux")]
fn list_processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read_process).collect()
}

/// Parse `PID (NAME) STATE PARENT …`, where the name may contain parentheses and spaces.
#[cfg(target_os = "linux")]
fn read_process(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_living = !matches!(fields.next()?, "Z" | "X");
    let parent = Pid::from_raw(fields.next()?.parse().ok()?)?;
    Some(Process { pid: Pid::from_raw(pid)?, parent, is_living })
}

/// Other systems cannot list descendants, so only the program's process group is killed.
#[cfg(not(target_os = "linux"))]
fn descendants(program: Pid) -> Vec<Pid> {
    let _ = rustix::process::kill_process_group(program, Signal::KILL);
    Vec::new()
}
