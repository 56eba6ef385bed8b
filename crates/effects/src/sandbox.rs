//! The sandbox for programs that tools start, and the launcher that enforces it.
//!
//! A process must drop its rights after `fork` and before `exec`. Code at that point would be `unsafe`, which this
//! workspace forbids. So the tools start a launcher instead: a Sapwood binary with [`ARGUMENT`] as its first
//! argument. The launcher runs as two processes: a supervisor that kills every remaining process of the program
//! ([`supervise`]), and its child, which drops its rights and becomes the program ([`restrict`]).
//!
//! The launcher also extracts the text of documents ([`crate::extract`]). The launcher does this itself and starts no
//! program. On Linux it drops all its rights before it reads the document.
//!
//! A binary is a launcher if its `main` begins with [`launch_if_asked`].

#[cfg(target_os = "linux")]
mod cgroup;
pub mod limits;
#[cfg(target_os = "linux")]
mod process_tree;
#[cfg(target_os = "linux")]
mod restrict;
#[cfg(unix)]
mod supervise;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sapwood_core::port::document::DocumentFormat;
use serde::{Deserialize, Serialize};

use limits::{Profile, ResourceLimits};

/// The first argument that turns a binary into a launcher.
pub const ARGUMENT: &str = "__sandbox";
/// Exit status of the launcher if the program was not started, as in shells.
pub const NOT_STARTED: u8 = 126;
/// Exit status of the launcher if the program reached a limit. The last line of standard error then begins with
/// [`LIMIT_NOTE`].
pub const LIMIT_REACHED: u8 = 123;
/// Beginning of the line that explains a reached limit.
pub const LIMIT_NOTE: &str = "sapwood: stopped with every process it started: ";

/// The files, network and resources that a program may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub files: FileRights,
    pub network: Network,
    #[serde(default)]
    pub profile: Profile,
    #[serde(default)]
    pub limits: ResourceLimits,
    /// Directories for control groups that the operator has delegated to Sapwood.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

impl Confinement {
    /// The default limits with these rights.
    pub fn new(files: FileRights, network: Network) -> Self {
        Self {
            files,
            network,
            profile: Profile::default(),
            limits: ResourceLimits::default(),
            cgroups: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileRights {
    /// All rights of Sapwood itself: only the resource limits apply.
    Unconfined,
    /// All files that Sapwood itself may access.
    Open,
    /// These paths and all paths below them. Paths that do not exist are skipped.
    Confined { read: Vec<PathBuf>, write: Vec<PathBuf> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    Open,
    /// No connections, not even to programs on this machine. Pairs of connected sockets are allowed.
    Denied,
}

/// How tools start programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launcher {
    /// A binary whose `main` calls [`launch_if_asked`].
    Binary(PathBuf),
    /// Start programs directly, without a sandbox. Only the program's process group is killed when it ends.
    None,
}

impl Launcher {
    /// The running binary, which must call [`launch_if_asked`].
    pub fn this_binary() -> Self {
        // On Linux this path stays valid if the file is replaced while the process runs.
        if cfg!(target_os = "linux") {
            return Launcher::Binary("/proc/self/exe".into());
        }
        std::env::current_exe().map_or(Launcher::None, Launcher::Binary)
    }

    /// Whether the operating system confines started programs.
    pub fn confines(&self) -> bool {
        *self != Launcher::None && is_available()
    }
}

/// The memory of this machine, where the system reports it.
pub fn physical_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()?.saturating_mul(1_024))
}

/// Whether this system can restrict a program's file access.
#[cfg(target_os = "linux")]
fn is_available() -> bool {
    restrict::is_landlock_available()
}
#[cfg(not(target_os = "linux"))]
fn is_available() -> bool {
    false
}

/// Run as a launcher if this process was started as a launcher, and return the exit code. Must be the first call in
/// `main`, because it expects a single-threaded process.
pub fn launch_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != ARGUMENT {
        return None;
    }
    Some(launch(args).unwrap_or_else(|why| {
        eprintln!("sapwood: failed to start the command: {why}");
        ExitCode::from(NOT_STARTED)
    }))
}

/// The modes of the launcher's two processes. The supervisor has two: see [`supervise::Input`].
const SUPERVISE: &str = "supervise";
const SUPERVISE_WITH_INPUT: &str = "supervise_with_input";
const ENTER: &str = "enter";
/// The mode that extracts the text of a document.
const EXTRACT: &str = "extract";
/// Maximum processor time of an extraction.
pub const EXTRACT_TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum address space of an extraction.
const EXTRACT_MEMORY_MAX: u64 = 2 << 30;

#[cfg(unix)]
fn launch(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let mode = args.next().ok_or("the launcher's mode is missing")?;
    if mode == EXTRACT {
        return extract(args.next().as_deref().and_then(std::ffi::OsStr::to_str));
    }
    let confinement = args.next().ok_or("the launcher's confinement is missing")?;
    let command: Vec<OsString> = args.collect();
    match mode.to_str() {
        Some(SUPERVISE) => supervise::supervise(&confinement, &command, supervise::Input::Empty),
        Some(SUPERVISE_WITH_INPUT) => {
            supervise::supervise(&confinement, &command, supervise::Input::Inherited)
        }
        Some(ENTER) => enter(&confinement, &command),
        _ => Err("unknown launcher mode".to_owned()),
    }
}
#[cfg(not(unix))]
fn launch(_: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    Err("the launcher does not support this system".to_owned())
}

/// Drop all rights, then extract the text of the document on standard input.
#[cfg(unix)]
fn extract(format: Option<&str>) -> Result<ExitCode, String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let format = format.and_then(DocumentFormat::from_name).ok_or("the document's format is unknown")?;
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    let limits = [(Resource::Cpu, EXTRACT_TIME_MAX.as_secs()), (Resource::As, EXTRACT_MEMORY_MAX)];
    for (resource, limit) in limits {
        setrlimit(resource, at_most(limit)).map_err(|why| format!("failed to set resource limits: {why}"))?;
    }
    #[cfg(target_os = "linux")]
    {
        let files = FileRights::Confined { read: Vec::new(), write: Vec::new() };
        let confinement = Confinement::new(files, Network::Denied);
        restrict::limit_resources(&confinement.limits)?;
        restrict::drop_rights(&confinement)?;
    }
    Ok(crate::extract::extract_stdin(format))
}

/// Accept the limits and drop rights, then become the program.
#[cfg(unix)]
fn enter(confinement: &OsString, command: &[OsString]) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    let confinement = read_confinement(confinement)?;
    let (member_files, command) = command.split_first().ok_or("the list of control groups is missing")?;
    let (program, args) = command.split_first().ok_or("the command is missing")?;
    // A separate session has no terminal, and many schedulers share the processor fairly between sessions.
    rustix::process::setsid().map_err(|why| why.to_string())?;
    #[cfg(target_os = "linux")]
    restrict::enter(&confinement, &read_json::<Vec<PathBuf>>(member_files)?)?;
    #[cfg(not(target_os = "linux"))]
    let _ = (confinement, member_files);
    let why = std::process::Command::new(program).args(args).exec();
    Err(format!("{}: {why}", program.display()))
}

fn read_confinement(argument: &OsStr) -> Result<Confinement, String> {
    read_json(argument)
}

fn read_json<T: serde::de::DeserializeOwned>(argument: &OsStr) -> Result<T, String> {
    let text = argument.to_str().ok_or("an argument of the launcher is not text")?;
    serde_json::from_str(text).map_err(|why| why.to_string())
}

/// The arguments with which a launcher extracts the text of a document.
pub(crate) fn extract_args(format: DocumentFormat) -> [&'static str; 3] {
    [ARGUMENT, EXTRACT, format.as_str()]
}

/// Whether a supervised program reads the launcher's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramInput {
    /// The program reads nothing. It is killed when the launcher's standard input closes.
    Empty,
    /// The program is killed when the reader of the launcher's standard error closes it.
    Piped,
}

/// The arguments with which a launcher supervises a command.
pub(crate) fn launcher_args(confinement: &Confinement, input: ProgramInput) -> [String; 3] {
    let mode = match input {
        ProgramInput::Empty => SUPERVISE,
        ProgramInput::Piped => SUPERVISE_WITH_INPUT,
    };
    let confinement = serde_json::to_string(confinement).expect("confinement paths are UTF-8");
    [ARGUMENT.to_owned(), mode.to_owned(), confinement]
}

/// The explanation at the end of a program's standard error, if a limit ended the program.
pub(crate) fn limit_note(exit_code: Option<i32>, stderr: &str) -> Option<&str> {
    let last = stderr.trim_end().lines().next_back()?;
    last.strip_prefix(LIMIT_NOTE).filter(|_| exit_code == Some(i32::from(LIMIT_REACHED)))
}
