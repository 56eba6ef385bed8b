//! A launcher and nothing else, for the tests and for programs whose own `main` is no launcher.

use std::process::ExitCode;

fn main() -> ExitCode {
    sapwood_effects::sandbox::launch_if_asked().unwrap_or_else(|| {
        eprintln!("this program is started by Sapwood's tools");
        ExitCode::from(sapwood_effects::sandbox::NOT_STARTED)
    })
}
