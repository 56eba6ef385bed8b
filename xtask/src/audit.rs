//! `cargo xtask audit`: checks the dependencies with cargo-deny, by the rules in `deny.toml`: which crates may be used by
//! whom, their licences and their sources. Known vulnerabilities are checked if the advisory database can be fetched.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::install;
use crate::run::{CommandOutput, run_and_show};

/// Checks that need only the source code of the dependencies.
const LOCAL_CHECKS: &[&str] = &["bans", "licenses", "sources"];
/// What cargo-deny prints if the advisory database cannot be fetched.
const NOT_FETCHED: &[&str] = &["failed to fetch advisory database", "failed to load advisory database"];

pub fn run(root: &Path) -> Result<()> {
    install::cargo_program("deny")?;
    if !deny(root, LOCAL_CHECKS)?.succeeded {
        bail!("cargo deny found dependencies that deny.toml does not allow");
    }
    let advisories = deny(root, &["advisories"])?;
    match (advisories.succeeded, reason_not_fetched(&advisories.lines)) {
        (true, _) => println!("audit: bans, licences, sources and advisories are checked"),
        (false, Some(why)) => {
            println!("audit: bans, licences and sources are checked\naudit: advisories are UNCHECKED: {why}");
        }
        (false, None) => bail!("cargo deny found advisories for dependencies"),
    }
    Ok(())
}

fn deny(root: &Path, checks: &[&str]) -> Result<CommandOutput> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["deny", "--all-features", "--locked", "check"]).args(checks).current_dir(root);
    run_and_show(&mut command)
}

fn reason_not_fetched(lines: &[String]) -> Option<&str> {
    let is_reason = |line: &&String| NOT_FETCHED.iter().any(|reason| line.contains(reason));
    lines.iter().find(is_reason).map(|line| line.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_cannot_be_fetched_is_not_a_vulnerability() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let offline = lines("x\n[ERROR] failed to fetch advisory database https://example.org: offline\n");
        assert!(reason_not_fetched(&offline).unwrap().contains("offline"));
        assert_eq!(
            reason_not_fetched(&lines("error[vulnerability]: overflow in x\nadvisories FAILED")),
            None
        );
    }
}
