//! `cargo xtask torture [FACTOR]`: longer runs of the tests that kill processes, cut the power, damage files, fill disks and
//! set clocks wrong. FACTOR multiplies their rounds. Prints the rounds of each fault and what was acknowledged and lost.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::FEATURES;

const FACTOR_DEFAULT: u64 = 10;
/// Simulated runs for each factor.
const SEEDS_PER_FACTOR: u64 = 100;
/// Parts of the names of the tests, by package.
const TESTS: &[(&str, &[&str])] = &[
    ("sapwood", &["simulate::nothing_is_lost"]),
    ("sapwood-cli", &["kill::", "power::", "disk::", "damage::", "flips::", "leases::", "servers::another"]),
];

/// What one kind of fault did.
#[derive(Default)]
struct Count {
    rounds: u64,
    acknowledged: u64,
    lost: u64,
}

pub fn run(root: &Path, factor: Option<&str>) -> Result<()> {
    let factor = factor.map_or(Ok(FACTOR_DEFAULT), str::parse).context("the factor is not a number")?;
    let mut counts = BTreeMap::new();
    let mut has_failed = false;
    for (package, names) in TESTS {
        has_failed |= !run_tests(root, package, names, factor, &mut counts)?;
    }
    println!("\n{:<42} {:>8} {:>13} {:>6}", "fault", "rounds", "acknowledged", "lost");
    for (fault, Count { rounds, acknowledged, lost }) in &counts {
        println!("{fault:<42} {rounds:>8} {acknowledged:>13} {lost:>6}");
    }
    if has_failed || counts.values().any(|count| count.lost > 0) {
        bail!("a test failed: its output names what was lost");
    }
    Ok(())
}

/// Run the tests of a package, and add up the lines that they print. Returns whether they passed.
fn run_tests(
    root: &Path,
    package: &str,
    names: &[&str],
    factor: u64,
    counts: &mut BTreeMap<String, Count>,
) -> Result<bool> {
    let mut command = Command::new("cargo");
    command.args(["test", "-p", package, "--test", "all", "--features", FEATURES, "--locked", "--"]);
    command.args(names).args(["--nocapture", "--test-threads", "2"]);
    command.env("SAPWOOD_TORTURE", factor.to_string());
    command.env("SAPWOOD_SEEDS", factor.saturating_mul(SEEDS_PER_FACTOR).to_string());
    let mut child =
        command.current_dir(root).stdout(Stdio::piped()).spawn().context("failed to run cargo")?;
    let stdout = child.stdout.take().context("cargo has no stdout")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        if let Some((fault, count)) = parse(&line) {
            let total = counts.entry(fault).or_default();
            total.rounds += count.rounds;
            total.acknowledged += count.acknowledged;
            total.lost += count.lost;
        }
    }
    Ok(child.wait()?.success())
}

/// Read a line such as `torture: power cuts: 400 rounds, 12000 acknowledged, 0 lost`. The name of a test may precede it.
fn parse(line: &str) -> Option<(String, Count)> {
    let (fault, counts) = line.split_once("torture: ")?.1.split_once(": ")?;
    let mut numbers = counts.split(", ").map(|part| part.split(' ').next()?.parse().ok());
    let mut next = || numbers.next().flatten();
    let count = Count { rounds: next()?, acknowledged: next()?, lost: next()? };
    Some((fault.to_owned(), count))
}
