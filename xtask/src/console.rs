//! The console: built with Node, checked for types and style, and walked through in the system's Chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::report::{self, Tests};
use crate::{install, run};

/// Installs what the console needs and builds it. The next `cargo build` puts it into the binary.
pub fn build(root: &Path) -> Result<()> {
    install::system_packages(install::FOR_CONSOLE, &[])?;
    install_packages(root)?;
    npm(root, &["run", "build"], &[])
}

/// Types, style, and whether the generated types are those of the API.
pub fn check(root: &Path) -> Result<()> {
    let generated = root.join("web/src/api.gen.ts");
    let before = fs::read(&generated).context("web/src/api.gen.ts")?;
    npm(root, &["run", "generate"], &[])?;
    if fs::read(&generated)? != before {
        bail!("web/src/api.gen.ts was not generated from crates/server/openapi.json: it is now, commit it");
    }
    npm(root, &["run", "check"], &[])
}

/// What is pure in the console.
pub fn test_units(root: &Path) -> Result<Tests> {
    npm_tests(root, "unit", &[])
}

/// The journeys, against the binary that the tests have built.
pub fn walk(root: &Path) -> Result<Tests> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let binary = target.join("debug/sapwood");
    npm_tests(root, "journeys", &[("SAPWOOD_BIN", &binary)])
}

fn npm_tests(root: &Path, which: &str, environment: &[(&str, &Path)]) -> Result<Tests> {
    let mut command = Command::new("npm");
    command.args(["test", "--", which]).current_dir(root.join("web")).envs(environment.iter().copied());
    let ran = run::show(&mut command)?;
    let tests = report::read_node(&ran.lines);
    if !ran.succeeded && tests.failed.is_empty() {
        bail!("npm test {which} failed, and named no test");
    }
    Ok(tests)
}

/// Only when the list of them is newer than what is there.
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
    let status = command.status().context("npm cannot be run: install Node 18 or later")?;
    if !status.success() {
        bail!("npm {} failed", args.join(" "));
    }
    Ok(())
}
