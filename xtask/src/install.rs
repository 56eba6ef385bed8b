//! Installs programs that the checks need and a fresh machine may lack.

use std::process::Command;

use anyhow::{Result, bail};

/// A program, and the Debian package that contains it.
pub type Program = (&'static str, &'static str);

pub const FOR_CONSOLE: &[Program] = &[("node", "nodejs"), ("npm", "npm")];
pub const FOR_TESTS: &[Program] = &[
    ("strace", "strace"),
    ("sqlite3", "sqlite3"),
    ("perl", "perl"),
    ("make", "make"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("tmux", "tmux"),
    ("git", "git"),
    ("chromium", "chromium"),
    ("dbus-run-session", "dbus-daemon"),
    ("gnome-keyring-daemon", "gnome-keyring"),
    ("python3", "python3"),
];

/// Requirements other than programs: a command that succeeds if the requirement is met, and the package.
pub const PROBES: &[Program] = &[
    ("python3 -c 'import ensurepip, venv'", "python3-venv"),
    // Debian installs the server's programs outside PATH, in one directory per version.
    ("ls /usr/lib/postgresql/*/bin/initdb || command -v initdb", "postgresql"),
];

/// Install missing packages with apt-get. Fails with a list of the missing packages if there is no apt-get.
pub fn system_packages(programs: &[Program], probes: &[Program]) -> Result<()> {
    let programs = programs.iter().filter(|(program, _)| !is_installed(program));
    let others = probes.iter().filter(|(probe, _)| !succeeds(probe));
    let missing: Vec<&str> = programs.chain(others).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_installed("apt-get") {
        bail!("missing packages: {}: install them and try again", missing.join(", "));
    }
    eprintln!("$ apt-get install {}", missing.join(" "));
    run(&["apt-get", "update", "-q"])?;
    let mut install = vec!["apt-get", "install", "-y", "-q", "--no-install-recommends"];
    install.extend(&missing);
    run(&install)
}

/// Install a cargo subcommand if it is missing. Building it takes some minutes.
pub fn cargo_program(name: &str) -> Result<()> {
    let program = format!("cargo-{name}");
    if is_installed(&program) {
        return Ok(());
    }
    eprintln!("$ cargo install --locked {program}");
    let status = Command::new(env!("CARGO")).args(["install", "--locked", &program]).status();
    match status.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => {
            bail!("{program} is missing and could not be installed: run `cargo install --locked {program}`")
        }
    }
}

/// Install a Rust toolchain if it is missing.
pub fn toolchain(name: &str) -> Result<()> {
    if succeeds(&format!("rustc +{name} --version")) {
        return Ok(());
    }
    let install = format!("rustup toolchain install {name} --profile minimal");
    eprintln!("$ {install}");
    match succeeds(&install) {
        true => Ok(()),
        false => bail!("the toolchain {name} is missing and could not be installed: run `{install}`"),
    }
}

fn is_installed(program: &str) -> bool {
    succeeds(&format!("command -v {program}"))
}

fn succeeds(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).output().is_ok_and(|ran| ran.status.success())
}

/// Run a command as root, with sudo if necessary.
fn run(command: &[&str]) -> Result<()> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let mut argv = command.to_vec();
    if !is_root {
        argv.insert(0, "sudo");
    }
    let status = Command::new(argv[0]).args(&argv[1..]).env("DEBIAN_FRONTEND", "noninteractive").status()?;
    if !status.success() {
        bail!("{} failed", argv.join(" "));
    }
    Ok(())
}
