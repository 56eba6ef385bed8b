//! Builds the console with Node, checks its types and style, and runs its unit tests and, in the system's
//! Chromium, its browser tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::report::{self, Tests};
use crate::{install, run};

/// Install the console's dependencies and build it. The next `cargo build` embeds it in the binary.
pub fn build(root: &Path) -> Result<()> {
    install::system_packages(install::FOR_CONSOLE, &[])?;
    install_packages(root)?;
    npm(root, &["run", "build"], &[])
}

/// Check types and style, and that the generated types match the API.
pub fn check(root: &Path) -> Result<()> {
    let generated = root.join("web/src/api.gen.ts");
    let before = fs::read(&generated).context("failed to read web/src/api.gen.ts")?;
    npm(root, &["run", "generate"], &[])?;
    if fs::read(&generated)? != before {
        bail!("web/src/api.gen.ts did not match crates/server/openapi.json and was regenerated: commit it");
    }
    npm(root, &["run", "check"], &[])
}

pub fn test_units(root: &Path) -> Result<Tests> {
    npm_tests(root, "unit", &[])
}

/// Run the browser tests against the binary in the target folder.
pub fn test_journeys(root: &Path) -> Result<Tests> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let binary = target.join("debug/sapwood");
    npm_tests(root, "journeys", &[("SAPWOOD_BIN", &binary)])
}

fn npm_tests(root: &Path, suite: &str, environment: &[(&str, &Path)]) -> Result<Tests> {
    let mut command = Command::new("npm");
    command.args(["test", "--", suite]).current_dir(root.join("web")).envs(environment.iter().copied());
    let ran = run::run_and_show(&mut command)?;
    let tests = report::read_node(&ran.lines);
    if !ran.succeeded && tests.failed.is_empty() {
        bail!("npm test {suite} failed, but its output names no failed test");
    }
    Ok(tests)
}

/// Install npm packages if the lock file is newer than the installed packages.
fn install_packages(root: &Path) -> Result<()> {
    let modified = |path: &str| fs::metadata(root.join(path)).and_then(|found| found.modified()).ok();
    if modified("web/node_modules/.package-lock.json") >= modified("web/package-lock.json") {
        return Ok(());
    }
    npm(root, &["install", "--no-save", "--no-audit", "--no-fund"], &[])
}

fn npm(root: &Path, args: &[&str], environment: &[(&str, &Path)]) -> Result<()> {
    eprintln!("$ npm {}", args.join(" "));
    let mut command = Command::new("npm");
    command.args(args).current_dir(root.join("web")).envs(environment.iter().copied());
    let status = command.status().context("failed to run npm: install Node 18 or later")?;
    if !status.success() {
        bail!("npm {} failed", args.join(" "));
    }
    Ok(())
}
