//! `cargo xtask fuzz [TARGET …] [--seconds N]`: runs the fuzz targets with libFuzzer, one after the other. Inputs that reach
//! new code are kept in `fuzz/corpus`, and the next run starts with them. A crash leaves its input in `fuzz/artifacts`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::install;
use crate::run::run_and_show;

/// Default time per target.
const SECONDS: u32 = 120;
const INPUT_BYTES_MAX: u32 = 65_536;
/// The toolchain that libFuzzer needs.
const TOOLCHAIN: &str = "nightly";

/// What to run.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    targets: Vec<String>,
    seconds: u32,
}

pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let known = targets(root)?;
    let plan = plan(args, &known)?;
    install::toolchain(TOOLCHAIN)?;
    install::cargo_program("fuzz")?;
    let mut failed = Vec::new();
    for target in &plan.targets {
        if !fuzz(root, target, plan.seconds)? {
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("these targets failed: {}; their inputs are in fuzz/artifacts", failed.join(", "));
    }
    println!("fuzz: {} targets ran for {} s each without a failure", plan.targets.len(), plan.seconds);
    Ok(())
}

fn plan(args: &[String], known: &[String]) -> Result<Plan> {
    let mut plan = Plan { targets: Vec::new(), seconds: SECONDS };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let seconds = args.next().and_then(|seconds| seconds.parse().ok());
                plan.seconds = seconds.context("--seconds needs a number")?;
            }
            target if known.iter().any(|name| name == target) => plan.targets.push(target.to_owned()),
            other => bail!("{other} is not a fuzz target; targets: {}", known.join(", ")),
        }
    }
    if plan.targets.is_empty() {
        plan.targets = known.to_vec();
    }
    Ok(plan)
}

/// The names of the targets, from the files in `fuzz/fuzz_targets`.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn fuzz(root: &Path, target: &str, seconds: u32) -> Result<bool> {
    let fuzz_dir = root.join("fuzz");
    let corpus = fuzz_dir.join("corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    let mut command = Command::new("cargo");
    command.arg(format!("+{TOOLCHAIN}")).args(["fuzz", "run"]).current_dir(&fuzz_dir);
    // The variables of the running cargo would select its own toolchain.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    if target == "server" {
        command.args(["--features", "server"]);
    }
    command.arg(target).arg(&corpus).args(seeds(root, target)).arg("--");
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={INPUT_BYTES_MAX}"));
    Ok(run_and_show(&mut command)?.succeeded)
}

/// Directories with inputs to begin with.
fn seeds(root: &Path, target: &str) -> Vec<PathBuf> {
    let seeds = root.join("fuzz/seeds");
    match target.starts_with("import_") {
        true => vec![seeds.join("sapwood"), root.join("crates/formats/tests/fixtures")],
        false => vec![seeds.join(target)].into_iter().filter(|dir| dir.is_dir()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_time_can_be_chosen_and_unknown_targets_are_refused() {
        let known = ["request".to_owned(), "workflow".to_owned()];
        let args = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let all = plan(&[], &known).unwrap();
        assert_eq!((all.targets.len(), all.seconds), (2, SECONDS));
        let one = plan(&args("workflow --seconds 5"), &known).unwrap();
        assert_eq!(one, Plan { targets: vec!["workflow".to_owned()], seconds: 5 });
        assert!(plan(&args("wrokflow"), &known).unwrap_err().to_string().contains("workflow"));
        assert!(plan(&args("--seconds"), &known).is_err());
    }

    #[test]
    fn every_target_has_seeds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for target in targets(root).unwrap() {
            let found = seeds(root, &target);
            assert!(!found.is_empty() && found.iter().all(|dir| dir.is_dir()), "{target}");
        }
    }
}
