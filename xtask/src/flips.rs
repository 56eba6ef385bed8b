//! `cargo xtask flips [--rounds N] [--store sqlite|jsonl]`: flips random bits in the files of a store that the binary has
//! written, and compares every kind of read. The test in `crates/cli/tests/all/flips.rs` does the work.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const ROUNDS: &str = "1000";
const TEST: &str = "flips::a_flipped_bit_is_never_answered_as_data_and_the_doctor_reports_it";

pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let (mut rounds, mut store) = (ROUNDS, "sqlite");
    for pair in args.chunks(2) {
        match pair {
            [name, value] if name == "--rounds" => rounds = value,
            [name, value] if name == "--store" && ["sqlite", "jsonl"].contains(&value.as_str()) => {
                store = value
            }
            _ => bail!("usage: cargo xtask flips [--rounds N] [--store sqlite|jsonl]"),
        }
    }
    let status = Command::new("cargo")
        .args(["test", "-p", "sapwood-cli", "--test", "all", "--", "--exact", TEST, "--nocapture"])
        .env("SAPWOOD_TEST_FLIPS", rounds)
        .env("SAPWOOD_TEST_FLIPS_STORE", store)
        .current_dir(root)
        .status()
        .context("failed to run cargo")?;
    if !status.success() {
        bail!("the flips test failed: {status}");
    }
    Ok(())
}
