//! Checks the dependencies between crates, and which crates may use certain external crates.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Each workspace crate, and the workspace crates it may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("sapwood-core", &[]),
    ("sapwood-formats", &["sapwood-core"]),
    ("sapwood-page-checksum", &[]),
    ("sapwood-store", &["sapwood-core", "sapwood-page-checksum"]),
    ("sapwood-effects", &["sapwood-core"]),
    ("sapwood-engine", &["sapwood-core", "sapwood-formats"]),
    ("sapwood", &["sapwood-core", "sapwood-formats", "sapwood-store", "sapwood-effects", "sapwood-engine"]),
    ("sapwood-server", &["sapwood"]),
    ("sapwood-cli", &["sapwood", "sapwood-server"]),
    ("sapwood-bench", &["sapwood", "sapwood-server"]),
    ("xtask", &[]),
];

/// External crates, and the workspace crates that may use them.
const RESERVED_CRATES: &[(&str, &[&str])] = &[
    ("rusqlite", &["sapwood-page-checksum", "sapwood-store"]),
    ("tokio-postgres", &["sapwood-store"]),
    ("deadpool-postgres", &["sapwood-store"]),
    ("lz4_flex", &["sapwood-store"]),
    ("reqwest", &["sapwood-effects"]),
    ("rmcp", &["sapwood-effects"]),
    ("axum", &["sapwood-server", "sapwood-bench"]),
    ("utoipa", &["sapwood-core", "sapwood-engine", "sapwood-server"]),
    ("utoipa-axum", &["sapwood-server"]),
    ("clap", &["sapwood-cli", "sapwood-bench"]),
    ("keyring", &["sapwood-cli"]),
    ("anyhow", &["sapwood-cli", "sapwood-bench", "xtask"]),
];

/// Crates that `core` and `formats`, which perform no I/O, must not use.
const IO_CRATES: &[&str] =
    &["tokio", "rusqlite", "reqwest", "rand", "getrandom", "jiff", "chrono", "tempfile"];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("failed to run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().flat_map(check_package).collect())
}

fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let dependencies = normal_dependencies(package);
    let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(known, _)| *known == name) else {
        return vec![format!("crate {name} is not in xtask/src/arrows.rs: list its allowed dependencies")];
    };
    let mut faults = Vec::new();
    for dependency in &dependencies {
        let in_workspace = ALLOWED_DEPENDENCIES.iter().any(|(known, _)| known == dependency);
        if in_workspace && !allowed.contains(&dependency.as_str()) {
            faults.push(format!("{name} must not depend on {dependency}"));
        }
        let reserved = RESERVED_CRATES.iter().find(|(external, _)| external == dependency);
        if reserved.is_some_and(|(_, users)| !users.contains(&name)) {
            faults.push(format!("{name} must not depend on {dependency}: reserved for other crates"));
        }
        if matches!(name, "sapwood-core" | "sapwood-formats") && IO_CRATES.contains(&dependency.as_str()) {
            faults.push(format!("{name} performs no I/O and must not depend on {dependency}"));
        }
    }
    faults
}

fn normal_dependencies(package: &Value) -> BTreeSet<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
    normal.filter_map(|dependency| dependency["name"].as_str()).map(str::to_owned).collect()
}
