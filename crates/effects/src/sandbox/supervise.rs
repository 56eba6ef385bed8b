//! The supervisor process of the launcher. It starts the program, and kills all processes that the program started,
//! even detached ones, when the program exits, when they reach a limit together, or when the lifeline closes.
//!
//! The lifeline is a pipe whose other end the caller keeps open: the supervisor's standard input, or its standard error
//! if the program reads the standard input. The pipe closes on timeout, when the call is dropped, and when the calling
//! process dies, even by `kill -9`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::limits::{Limit, limit_of_signal};
use super::{ARGUMENT, Confinement, ENTER, LIMIT_NOTE, LIMIT_REACHED, read_confinement};
#[cfg(target_os = "linux")]
use super::{cgroup::ControlGroups, process_tree};

/// Maximum number of passes over the descendants before the supervisor gives up.
const ROUNDS_MAX: u32 = 1_000;
const ROUND_PAUSE: Duration = Duration::from_millis(3);
/// Shells add this to a signal's number to form an exit status.
const SIGNAL_BASE: i32 = 128;
/// The pause between two measurements. It grows with their cost, so that measuring takes little processor time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
const PAUSE_PER_COST: u32 = 10;
/// If the machine has this many more processes than at the last measurement, or an eighth of the limit, the program is
/// suspended and measured at once: among thousands of new processes, a measurement would take too long.
const NEW_PROCESSES_MAX: u64 = 64;
const NEW_PROCESSES_SHARE: u64 = 8;
/// Scheduling priority of the supervisor, where it may be raised: among many processes it must still run in time.
const NICE: i32 = -10;

/// What the program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Nothing. The supervisor's standard input is the lifeline.
    Empty,
    /// The supervisor's standard input. Its standard error is the lifeline.
    Inherited,
}

pub fn supervise(confinement: &OsStr, command: &[OsString], input: Input) -> Result<ExitCode, String> {
    let order = read_confinement(confinement)?;
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|why| why.to_string())?;
    let supervision = Arc::new(Supervision::new(order)?);
    let program = supervision.spawn(confinement, command, input)?;
    // Only root may do this. The program keeps its priority, because it is already running.
    let _ = rustix::process::setpriority_process(None, NICE);
    let watched = Arc::clone(&supervision);
    std::thread::spawn(move || watched.watch(program, input));
    let status = wait_for(program).map_err(|why| why.to_string())?;
    supervision.stop(supervision.reached_in_groups(), program, Reap::Yes);
    supervision.remove_groups();
    Ok(supervision.report(status))
}

/// A program and the limits that it shares with its descendants.
struct Supervision {
    order: Confinement,
    #[cfg(target_os = "linux")]
    groups: ControlGroups,
    /// Why the processes are being killed: a limit that they reached, or none.
    reached: OnceLock<Option<Limit>>,
}

impl Supervision {
    fn new(order: Confinement) -> Result<Self, String> {
        Ok(Self {
            #[cfg(target_os = "linux")]
            groups: ControlGroups::create(&order.cgroups, &order.limits)?,
            order,
            reached: OnceLock::new(),
        })
    }

    fn spawn(&self, confinement: &OsStr, command: &[OsString], input: Input) -> Result<Pid, String> {
        let super::Launcher::Binary(binary) = super::Launcher::this_binary() else {
            return Err("the launcher binary was not found".to_owned());
        };
        let stdin = if input == Input::Empty { Stdio::null() } else { Stdio::inherit() };
        let program = Command::new(binary)
            .args([OsStr::new(ARGUMENT), OsStr::new(ENTER), confinement])
            .arg(self.member_files()?)
            .args(command)
            .stdin(stdin)
            .spawn()
            .map_err(|why| why.to_string())?;
        Ok(Pid::from_child(&program))
    }

    /// The control groups that the program joins, as an argument of the launcher.
    #[cfg(target_os = "linux")]
    fn member_files(&self) -> Result<String, String> {
        serde_json::to_string(&self.groups.member_files()).map_err(|why| why.to_string())
    }
    #[cfg(not(target_os = "linux"))]
    fn member_files(&self) -> Result<String, String> {
        Ok("[]".to_owned())
    }

    /// Kill all processes when the lifeline closes or a limit is reached.
    fn watch(&self, program: Pid, input: Input) {
        let growth_max = NEW_PROCESSES_MAX.max(self.order.limits.processes_max / NEW_PROCESSES_SHARE);
        let (mut next, mut counted, mut reached) = (Instant::now(), count_processes(), None);
        while reached.is_none() && !is_lifeline_closed(input, PAUSE_MIN) {
            let (began, count) = (Instant::now(), count_processes());
            reached = match count >= counted + growth_max {
                true => self.measure_suspended(program),
                false if began < next => continue,
                false => self.measure(),
            };
            counted = count;
            next = Instant::now() + (began.elapsed() * PAUSE_PER_COST).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        self.stop(reached, program, Reap::No);
    }

    /// Suspend the program's process group during a measurement. Its members then start no further processes.
    fn measure_suspended(&self, program: Pid) -> Option<Limit> {
        let _ = rustix::process::kill_process_group(program, Signal::STOP);
        let reached = self.measure();
        if reached.is_none() {
            let _ = rustix::process::kill_process_group(program, Signal::CONT);
        }
        reached
    }

    #[cfg(target_os = "linux")]
    fn reached_in_groups(&self) -> Option<Limit> {
        self.groups.reached()
    }
    #[cfg(not(target_os = "linux"))]
    fn reached_in_groups(&self) -> Option<Limit> {
        None
    }

    fn remove_groups(&self) {
        #[cfg(target_os = "linux")]
        self.groups.remove();
    }

    /// The limit that the program and its descendants exceed now.
    #[cfg(target_os = "linux")]
    fn measure(&self) -> Option<Limit> {
        let limits = &self.order.limits;
        if let Some(limit) = self.reached_in_groups() {
            return Some(limit);
        }
        let usage = process_tree::read_usage(rustix::process::getpid());
        if usage.threads > limits.processes_max {
            return Some(Limit::Processes);
        }
        if usage.cpu_seconds >= limits.cpu_seconds_max {
            return Some(Limit::CpuTime);
        }
        // Shared pages count several times in the cheap sum, so the exact sum decides.
        let is_over = usage.resident_bytes > limits.memory_bytes_max
            && process_tree::proportional_bytes(&usage.living) > limits.memory_bytes_max;
        is_over.then_some(Limit::Memory)
    }
    #[cfg(not(target_os = "linux"))]
    fn measure(&self) -> Option<Limit> {
        None
    }

    /// Record why, then kill every process. Stopped groups refuse new processes, which would count as a reached limit.
    fn stop(&self, reached: Option<Limit>, program: Pid, reap: Reap) {
        let _ = self.reached.set(reached);
        #[cfg(target_os = "linux")]
        self.groups.stop();
        for _ in 0..ROUNDS_MAX {
            let living = kill_descendants_once(program);
            while reap == Reap::Yes && matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            if living == 0 {
                return;
            }
            std::thread::sleep(ROUND_PAUSE);
        }
    }

    /// The exit status, with a note on standard error if a limit ended the program.
    fn report(&self, status: WaitStatus) -> ExitCode {
        let code = status.exit_status().or(status.terminating_signal().map(|signal| SIGNAL_BASE + signal));
        let by_signal = || code.and_then(|code| limit_of_signal(code - SIGNAL_BASE));
        let Some(limit) = self.reached.get().copied().flatten().or_else(by_signal) else {
            return ExitCode::from(
                code.and_then(|code| u8::try_from(code).ok()).unwrap_or(super::NOT_STARTED),
            );
        };
        let note = limit.explain(&self.order.limits, self.order.profile);
        // The caller may have closed the pipe.
        let _ = writeln!(std::io::stderr(), "\n{LIMIT_NOTE}{note}");
        ExitCode::from(LIMIT_REACHED)
    }
}

/// The number of processes of the machine, or zero if it is unknown.
#[cfg(target_os = "linux")]
fn count_processes() -> u64 {
    process_tree::count_of_machine().unwrap_or(0)
}
#[cfg(not(target_os = "linux"))]
fn count_processes() -> u64 {
    0
}

/// Wait for a while, and return whether the other end of the lifeline is closed.
fn is_lifeline_closed(input: Input, pause: Duration) -> bool {
    let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
    let lifeline = match input {
        Input::Empty => stdin.as_fd(),
        Input::Inherited => stderr.as_fd(),
    };
    let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
    // A closed pipe is reported even if no event is requested.
    let mut polled = [PollFd::from_borrowed_fd(lifeline, PollFlags::empty())];
    match rustix::event::poll(&mut polled, Some(&pause)) {
        Ok(0) | Err(Errno::INTR) => false,
        Ok(_) | Err(_) => true,
    }
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

/// Kill all descendants that are alive, and return their number.
#[cfg(target_os = "linux")]
fn kill_descendants_once(_: Pid) -> usize {
    process_tree::kill_descendants_once(rustix::process::getpid())
}

/// Other systems cannot list descendants, so only the program's process group is killed.
#[cfg(not(target_os = "linux"))]
fn kill_descendants_once(program: Pid) -> usize {
    let _ = rustix::process::kill_process_group(program, Signal::KILL);
    0
}
