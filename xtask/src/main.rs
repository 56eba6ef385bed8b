//! The project's own checks. `cargo xtask test` is what the README and CI run: it installs what the tests need, then runs
//! formatting, clippy, the tidy checks and every test, those in the browser included. `cargo xtask tidy` runs the tidy
//! checks alone; `cargo xtask console` builds the console, which the next `cargo build` puts into the binary.

mod arrows;
mod console;
mod install;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Everything is tested with encryption in, so that one build serves all tests.
const FEATURES: &str = "sapwood-cli/encryption,sapwood-store/conformance,sapwood-store/bench";

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

fn test(root: &Path) -> Result<()> {
    install::system_packages(install::FOR_TESTS, install::PROBES)?;
    cargo(root, &["fmt", "--all", "--check"])?;
    tidy(root)?;
    console::build(root)?;
    console::check(root)?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        FEATURES,
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    cargo(root, &clippy)?;
    cargo(root, &["test", "--workspace", "--features", FEATURES, "--locked"])?;
    console::walk(root)
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
