//! A standalone launcher, for tests and for programs whose `main` is not a launcher.

use std::process::ExitCode;

fn main() -> ExitCode {
    sapwood_effects::sandbox::launch_if_asked().unwrap_or_else(|| {
        eprintln!("this program is only for use by Sapwood's tools");
        ExitCode::from(sapwood_effects::sandbox::NOT_STARTED)
    })
}
