//! `sapwood bench`: runs the benchmark, which is a separate program, so that this binary does not contain it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::failure::Failure;
use crate::render::{self, Format};

/// Benchmark this build on this machine, compared with the machine's baseline
///
/// Runs the program `sapwood-bench`, which must be in the directory of this program or on PATH.
/// `sapwood bench --help` lists its options.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  sapwood bench --quick
  sapwood bench --axis append --axis search --dir /var/tmp"
)]
pub struct BenchArgs {
    /// Arguments of sapwood-bench
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the benchmark and returns its exit code.
pub fn run(args: &BenchArgs, format: Format) -> ExitCode {
    let program = find_program();
    let mut command = Command::new(&program);
    command.args(&args.args);
    // A `--json` before the first argument of the benchmark was parsed as a global option.
    let has_json = args.args.iter().any(|arg| arg == "--json");
    if format == Format::Json && !has_json {
        command.arg("--json");
    }
    match command.status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into(),
        Err(error) => {
            let message = format!("failed to run {}: {error}", program.display());
            let format = if has_json { Format::Json } else { format };
            render::report(&Failure::new("bench.missing", message), format)
        }
    }
}

/// The program beside this one, or else its name, which the system looks up on PATH.
fn find_program() -> PathBuf {
    let name = format!("sapwood-bench{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(&name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name))
}
