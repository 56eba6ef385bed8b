//! Commands for the programs that an axis measures from outside: `sapwood`, and this program as the
//! server of a baseline.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::scratch::Scratch;

/// Context of the error when `sapwood` does not start.
pub const NOT_STARTED: &str =
    "failed to start `sapwood`: build it with `cargo build --release -p sapwood-cli`, or add it to PATH";

/// A command that runs the `sapwood` in this program's directory, or else the one on PATH.
pub fn sapwood(scratch: &Scratch) -> Command {
    let name = format!("sapwood{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(&name));
    isolate(beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name)), scratch)
}

/// A command that runs this program again.
pub fn this_program(scratch: &Scratch) -> std::io::Result<Command> {
    Ok(isolate(std::env::current_exe()?, scratch))
}

/// Keep the user's configuration and store out of the measurement.
fn isolate(program: PathBuf, scratch: &Scratch) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", scratch.path()).env("SAPWOOD_HOME", scratch.path()).env_remove("SAPWOOD_STORE");
    command.current_dir(scratch.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
