//! The project's own checks. `cargo xtask test` is what the README and CI run: it installs what the tests need, then runs
//! formatting, clippy, the tidy checks and every test, those in the browser included, and ends with a summary of what
//! failed. `cargo xtask tidy` runs the tidy checks alone; `cargo xtask console` builds the console, which the next `cargo
//! build` puts into the binary.

mod arrows;
mod console;
mod install;
mod report;
mod run;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use report::{Outcome, Report, Tests};

/// Everything is tested with encryption in, so that one build serves all tests.
const FEATURES: &str = "sapwood-cli/encryption,sapwood-store/conformance,sapwood-store/bench";

const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--locked", "--", "-D", "warnings"];

const NOT_BUILT: &str = "something it needs was not built";

fn main() -> Result<()> {
    let task = std::env::args().nth(1).unwrap_or_default();
    let root = root()?;
    match task.as_str() {
        "test" => test(&root),
        "tidy" => tidy(&root),
        "console" => console::build(&root),
        _ => bail!("usage: cargo xtask test | tidy | console"),
    }
}

/// Runs every stage, whatever became of those before it, and says at the end what failed. Only what cannot be compiled is
/// not run.
fn test(root: &Path) -> Result<()> {
    let mut report = Report::default();
    report.note("programs", outcome_of(install::system_packages(install::FOR_TESTS, install::PROBES)));
    report.note("format", outcome_of(cargo(root, &["fmt", "--all", "--check"])));
    report.note("tidy", outcome_of(tidy(root)));
    let has_console = report.note("console", outcome_of(console::build(root)));
    report.note("console types and style", outcome_of(console::check(root)));
    report.note("console units", tests_of(console::test_units(root)));
    report.note("clippy", outcome_of(cargo(root, CLIPPY)));
    let build = ["test", "--workspace", "--features", FEATURES, "--locked", "--no-run"];
    let is_built = report.note("build", outcome_of(cargo(root, &build)));
    report.note("tests", if is_built { tests_of(run_tests(root)) } else { Outcome::Skipped(NOT_BUILT) });
    let walk = || tests_of(console::walk(root));
    report.note("journeys", if is_built && has_console { walk() } else { Outcome::Skipped(NOT_BUILT) });
    print!("\n{report}");
    if report.failed() > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn outcome_of(done: Result<()>) -> Outcome {
    match done {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn tests_of(done: Result<Tests>) -> Outcome {
    match done {
        Ok(tests) => Outcome::Tested(tests),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// One failing program does not keep the others from running.
fn run_tests(root: &Path) -> Result<Tests> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--features", FEATURES, "--locked", "--no-fail-fast"]);
    let ran = run::show(command.current_dir(root))?;
    let tests = report::read_cargo(&ran.lines);
    if !ran.succeeded && tests.failed.is_empty() && tests.broken.is_empty() {
        bail!("cargo test failed, and named no test");
    }
    Ok(tests)
}

fn tidy(root: &Path) -> Result<()> {
    let mut faults = arrows::check(root)?;
    faults.extend(text::check(root)?);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} tidy checks failed", faults.len());
    }
    println!("tidy: the arrows point down, and every file is in order");
    Ok(())
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    eprintln!("$ cargo {}", args.join(" "));
    let status =
        Command::new(env!("CARGO")).args(args).current_dir(root).status().context("cargo cannot be run")?;
    if !status.success() {
        bail!("cargo {} failed", args[0]);
    }
    Ok(())
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask lies in the workspace")?.to_owned())
}
