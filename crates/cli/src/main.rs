//! The binary `sapwood`: a terminal, a configuration and an environment around the engine. It decides nothing about
//! sessions itself.
//!
//! A tour: [`args`] says what can be typed; [`app`] turns options, environment and configuration into an engine and a
//! scope; [`cmd`] has one file per command; [`render`] is everything that is printed; [`failure`] is everything that can
//! go wrong, with its exit code and hint.
//!
//! Data goes to stdout and nothing else does. Errors, notes and progress go to stderr, with `--json` too.

mod agents;
mod app;
mod args;
mod bench;
mod chat;
mod cmd;
mod config;
mod failure;
mod hooks;
mod key;
mod keychain;
mod lines;
mod log;
mod providers;
mod render;
mod suggest;
mod telemetry;
mod time_arg;
mod triggers;

use std::process::ExitCode;

use failure::Failure;

/// Long contexts are made of hundreds of thousands of strings, by several threads at once.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A tool's program is started by this very binary, which first gives up what the program may not have.
    if let Some(exit) = sapwood::effects::sandbox::launch_if_asked() {
        return exit;
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let format = cli.global.format();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => render::report(&failure, format),
    }
}

fn run(cli: args::Cli) -> Result<(), Failure> {
    // Commands do one thing; a server does many at once.
    let mut builder = match &cli.command {
        args::Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        args::Command::Bench(args) if args.is_server() => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build()?.block_on(cmd::run(cli))
}
