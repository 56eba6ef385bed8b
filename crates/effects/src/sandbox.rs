//! What a program that a tool starts may touch, and the launcher that sees to it.
//!
//! Rights can only be given up by the process that has them, between its birth and the program it becomes; code there
//! would be `unsafe`, which this workspace forbids. So the tools start a launcher instead, which is a Sapwood binary with
//! [`ARGUMENT`] as its first argument. It runs twice: as a supervisor, which ends every process the program leaves behind
//! ([`supervise`]), and below it as the process that gives up its rights and becomes the program ([`restrict`]).
//!
//! A binary is a launcher when its `main` begins with [`launch_if_asked`].

#[cfg(target_os = "linux")]
mod restrict;
#[cfg(unix)]
mod supervise;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The first argument that makes a binary a launcher.
pub const ARGUMENT: &str = "__sandbox";
/// What the launcher exits with when the program was never started, as shells do.
pub const NOT_STARTED: u8 = 126;

/// What a program may touch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub files: FileRights,
    pub network: Network,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileRights {
    /// What the process itself may.
    Open,
    /// These and what is below them; what does not exist is left out.
    Confined { read: Vec<PathBuf>, write: Vec<PathBuf> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    Open,
    /// No sockets of any kind, not even to programs on this machine.
    Denied,
}

/// How the tools start programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launcher {
    /// A binary whose `main` calls [`launch_if_asked`].
    Binary(PathBuf),
    /// Programs are started directly: unconfined, and only their own process group is ended with them.
    None,
}

impl Launcher {
    /// The binary that is running, which must call [`launch_if_asked`].
    pub fn this_binary() -> Self {
        // On Linux this name stays right when the file is replaced under a running process.
        if cfg!(target_os = "linux") {
            return Launcher::Binary("/proc/self/exe".into());
        }
        std::env::current_exe().map_or(Launcher::None, Launcher::Binary)
    }

    /// Whether what is started is confined by the operating system.
    pub fn confines(&self) -> bool {
        *self != Launcher::None && is_available()
    }
}

/// Whether this system can confine a program's files.
#[cfg(target_os = "linux")]
fn is_available() -> bool {
    restrict::is_landlock_available()
}
#[cfg(not(target_os = "linux"))]
fn is_available() -> bool {
    false
}

/// Does a launcher's work if this process was started as one, and says what to exit with. Must be the first thing in
/// `main`: it expects a process with one thread.
pub fn launch_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != ARGUMENT {
        return None;
    }
    Some(launch(args).unwrap_or_else(|why| {
        eprintln!("sapwood: the command was not started: {why}");
        ExitCode::from(NOT_STARTED)
    }))
}

/// Which of the launcher's two lives this is.
const SUPERVISE: &str = "supervise";
const ENTER: &str = "enter";

#[cfg(unix)]
fn launch(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let life = args.next().ok_or("the launcher was given nothing to do")?;
    let confinement = args.next().ok_or("the launcher was given no confinement")?;
    let command: Vec<OsString> = args.collect();
    match life.to_str() {
        Some(SUPERVISE) => supervise::supervise(&confinement, &command),
        Some(ENTER) => enter(&confinement, &command),
        _ => Err("the launcher does not know what to do".to_owned()),
    }
}
#[cfg(not(unix))]
fn launch(_: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    Err("there is no launcher for this system".to_owned())
}

/// Gives up rights, then becomes the program.
#[cfg(unix)]
fn enter(confinement: &OsString, command: &[OsString]) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    let text = confinement.to_str().ok_or("the confinement is not text")?;
    let confinement: Confinement = serde_json::from_str(text).map_err(|why| why.to_string())?;
    let (program, args) = command.split_first().ok_or("there is no command")?;
    #[cfg(target_os = "linux")]
    restrict::give_up_rights(&confinement)?;
    #[cfg(not(target_os = "linux"))]
    let _ = confinement;
    let why = std::process::Command::new(program).args(args).exec();
    Err(format!("{}: {why}", program.display()))
}

/// The arguments that make a launcher supervise a command.
pub(crate) fn launcher_args(confinement: &Confinement) -> [String; 3] {
    let confinement = serde_json::to_string(confinement).expect("paths that came as text print as text");
    [ARGUMENT.to_owned(), SUPERVISE.to_owned(), confinement]
}
