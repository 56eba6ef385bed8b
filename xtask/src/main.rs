//! The project's checks. `cargo xtask test` is what CI runs: it installs the required programs, then runs formatting,
//! clippy, the tidy checks and all tests, including the browser tests, and ends with a summary of the failures.
//!
//! | command | what it does |
//! |---|---|
//! | `test` | all checks, as in CI |
//! | `tidy` | only the tidy checks |
//! | `api [--update]` | check or record the façade's public API |
//! | `console` | build the console, which the next `cargo build` embeds in the binary |
//! | `compat` | run the previous version and this one on one PostgreSQL database |
//! | `torture [FACTOR]` | repeat the tests with faults many times |
//! | `flips [OPTIONS]` | flip bits in the files of a store |
//! | `load [--quick]` | measure a server under load |
//! | `audit` | check the dependencies |
//! | `fuzz [TARGET …] [--seconds N]` | run the fuzz targets |

mod api;
mod arrows;
mod audit;
mod cited_tests;
mod compat;
mod console;
mod flips;
mod functions;
mod fuzz;
mod imports;
mod install;
mod prose;
mod report;
mod run;
mod source;
mod text;
mod torture;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use api::Snapshot;
use report::{Outcome, Report, Tests};

/// All tests run with encryption enabled, so that one build serves all of them.
const FEATURES: &str = "sapwood-cli/encryption,sapwood-store/conformance,sapwood-store/bench";

const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--locked", "--", "-D", "warnings"];

const COMMANDS: &[&str] = &[
    "test",
    "tidy",
    "api [--update]",
    "console",
    "compat",
    "torture [FACTOR]",
    "flips [OPTIONS]",
    "load [--quick]",
    "audit",
    "fuzz [TARGET …] [--seconds N]",
];

const NOT_BUILT: &str = "a required build failed";

fn main() -> Result<()> {
    let task = std::env::args().nth(1).unwrap_or_default();
    let root = root()?;
    match task.as_str() {
        "test" => test(&root),
        "tidy" => tidy(&root),
        "api" if std::env::args().nth(2).as_deref() == Some("--update") => api::run(&root, Snapshot::Update),
        "api" => api::run(&root, Snapshot::Check),
        "console" => console::build(&root),
        "compat" => compat::run(&root),
        "audit" => audit::run(&root),
        "fuzz" => fuzz::run(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        "torture" => torture::run(&root, std::env::args().nth(2).as_deref()),
        "flips" => flips::run(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        "load" => load(&root),
        _ => bail!("usage: cargo xtask {}", COMMANDS.join(" | ")),
    }
}

/// Build the release binaries, and measure a server under load. Further arguments are passed to `sapwood bench`.
fn load(root: &Path) -> Result<()> {
    cargo(root, &["build", "--release", "--locked", "-p", "sapwood-cli", "-p", "sapwood-bench"])?;
    let program = root.join("target/release/sapwood-bench");
    let status = Command::new(program).args(["--axis", "load"]).args(std::env::args().skip(2)).status()?;
    if !status.success() {
        bail!("a goal was missed");
    }
    Ok(())
}

/// Run every stage, even if earlier ones failed, and list the failures at the end. Stages whose build failed are skipped.
fn test(root: &Path) -> Result<()> {
    let mut report = Report::default();
    report.record("programs", outcome_of(install::system_packages(install::FOR_TESTS, install::PROBES)));
    report.record("format", outcome_of(cargo(root, &["fmt", "--all", "--check"])));
    report.record("tidy", outcome_of(tidy(root)));
    let has_console = report.record("console", outcome_of(console::build(root)));
    report.record("console types and style", outcome_of(console::check(root)));
    report.record("console units", tests_of(console::test_units(root)));
    report.record("clippy", outcome_of(cargo(root, CLIPPY)));
    report.record("api", outcome_of(api::run(root, Snapshot::Check)));
    let build = ["test", "--workspace", "--features", FEATURES, "--locked", "--no-run"];
    let is_built = report.record("build", outcome_of(cargo(root, &build)));
    report.record("tests", if is_built { tests_of(run_tests(root)) } else { Outcome::Skipped(NOT_BUILT) });
    let journeys = || tests_of(console::test_journeys(root));
    report.record("journeys", if is_built && has_console { journeys() } else { Outcome::Skipped(NOT_BUILT) });
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

/// Run all test programs, even if one fails.
fn run_tests(root: &Path) -> Result<Tests> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--features", FEATURES, "--locked", "--no-fail-fast"]);
    let ran = run::run_and_show(command.current_dir(root))?;
    let tests = report::read_cargo(&ran.lines);
    if !ran.succeeded && tests.failed.is_empty() && tests.crashed.is_empty() {
        bail!("cargo test failed, but its output names no failed test");
    }
    Ok(tests)
}

fn tidy(root: &Path) -> Result<()> {
    let mut faults = arrows::check(root)?;
    faults.extend(text::check(root)?);
    faults.extend(prose::check(root)?);
    faults.extend(cited_tests::check(root)?);
    let files = source::read(root)?;
    faults.extend(imports::check(&files));
    faults.extend(functions::check(&files));
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} tidy checks failed", faults.len());
    }
    println!("tidy: all checks passed");
    Ok(())
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    eprintln!("$ cargo {}", args.join(" "));
    let status =
        Command::new(env!("CARGO")).args(args).current_dir(root).status().context("failed to run cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args[0]);
    }
    Ok(())
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("failed to find the workspace folder")?.to_owned())
}
