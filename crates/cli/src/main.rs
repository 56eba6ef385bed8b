//! The `sapwood` binary: the command line of the engine. It contains no session logic.
//!
//! - [`args`] defines the command-line options.
//! - [`app`] builds an engine and a scope from options, environment and configuration.
//! - [`cmd`] has one file per command, and [`dispatch`] calls it.
//! - [`render`] writes the output of commands, except the screen of a chat.
//! - [`failure`] defines the errors, with their exit codes and hints.
//!
//! Stdout contains only data. Errors, notes and progress go to stderr, even with `--json`.

mod agents;
mod answer_links;
mod app;
mod app_paths;
mod args;
mod chat;
mod cmd;
mod config;
mod confirm;
mod dispatch;
mod failure;
mod global_args;
mod hook_settings;
mod hooks;
mod key;
mod keychain;
mod lines;
mod log;
mod number_arg;
mod providers;
mod render;
mod sandbox_settings;
mod suggest;
mod telemetry;
mod temp_store;
mod time_arg;
mod triggers;

use std::process::ExitCode;

use failure::Failure;

/// mimalloc, because building a long context allocates hundreds of thousands of strings on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The sandbox starts a tool's program through this binary, which first drops the rights that the program must
    // not have.
    if let Some(exit) = sapwood::effects::sandbox::launch_if_asked() {
        return exit;
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let format = cli.global.format();
    if let args::Command::Bench(args) = &cli.command {
        return cmd::bench::run(args, format);
    }
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => render::report(&failure, format),
    }
}

fn run(cli: args::Cli) -> Result<(), Failure> {
    // Only a server runs many tasks concurrently, so other commands use a single-threaded runtime.
    let mut builder = match &cli.command {
        args::Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build()?.block_on(dispatch::run(cli))
}
