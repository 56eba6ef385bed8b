//! `cargo xtask compat`: builds the previous version from the history of this repository, and runs it and the current
//! version as servers on one PostgreSQL database. SAPWOOD_COMPAT_BINARY names an existing binary of the previous version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The last commit that writes log format 2.
const PREVIOUS: &str = "8599301";
const TEST: &str = "compat::the_previous_version_and_this_one_share_a_database_until_it_is_upgraded";

pub fn run(root: &Path) -> Result<()> {
    let binary = match std::env::var_os("SAPWOOD_COMPAT_BINARY") {
        Some(path) => PathBuf::from(path),
        None => build_previous(root)?,
    };
    let mut test = Command::new("cargo");
    test.args(["test", "-p", "sapwood-cli", "--test", "all", "--", "--exact", TEST, "--nocapture"]);
    succeed(test.current_dir(root).env("SAPWOOD_COMPAT_BINARY", binary))
}

/// Builds the previous version in a work tree below `target`, which is removed afterwards. Its build directory is kept.
fn build_previous(root: &Path) -> Result<PathBuf> {
    let (tree, target) = (root.join("target/compat/source"), root.join("target/compat/build"));
    let remove = || -> Result<()> {
        if tree.exists() {
            succeed(
                Command::new("git").args(["worktree", "remove", "--force"]).arg(&tree).current_dir(root),
            )?;
        }
        Ok(())
    };
    remove()?;
    succeed(
        Command::new("git").args(["worktree", "add", "--detach"]).arg(&tree).arg(PREVIOUS).current_dir(root),
    )?;
    let mut build = Command::new("cargo");
    build
        .args(["build", "--locked", "-p", "sapwood-cli"])
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &target);
    let built = succeed(&mut build);
    remove()?;
    built?;
    Ok(target.join("debug/sapwood"))
}

fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("failed to run {program}"))?;
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    Ok(())
}
