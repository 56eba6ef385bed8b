//! The arrows of the house: which crate may depend on which, and which outside crates belong to one crate alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Each crate of the workspace, and the crates of the workspace it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("sapwood-core", &[]),
    ("sapwood-formats", &["sapwood-core"]),
    ("sapwood-store", &["sapwood-core"]),
    ("sapwood-effects", &["sapwood-core"]),
    ("sapwood-engine", &["sapwood-core", "sapwood-formats"]),
    ("sapwood", &["sapwood-core", "sapwood-formats", "sapwood-store", "sapwood-effects", "sapwood-engine"]),
    ("sapwood-server", &["sapwood"]),
    ("sapwood-cli", &["sapwood", "sapwood-server"]),
    ("xtask", &[]),
];

/// Outside crates that only these may name.
const HOMES: &[(&str, &[&str])] = &[
    ("rusqlite", &["sapwood-store"]),
    ("tokio-postgres", &["sapwood-store"]),
    ("deadpool-postgres", &["sapwood-store"]),
    ("lz4_flex", &["sapwood-store"]),
    ("reqwest", &["sapwood-effects"]),
    ("rmcp", &["sapwood-effects"]),
    ("axum", &["sapwood-server"]),
    ("utoipa", &["sapwood-server"]),
    ("utoipa-axum", &["sapwood-server"]),
    ("clap", &["sapwood-cli"]),
    ("keyring", &["sapwood-cli"]),
    ("anyhow", &["sapwood-cli", "xtask"]),
];

/// What core and formats may not have: they are pure.
const IMPURE: &[&str] = &["tokio", "rusqlite", "reqwest", "rand", "getrandom", "jiff", "chrono", "tempfile"];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cargo metadata cannot be run")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("metadata lists packages")?;
    Ok(packages.iter().flat_map(check_package).collect())
}

fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let dependencies = normal_dependencies(package);
    let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
        return vec![format!("crate {name} is not in xtask/src/arrows.rs: say what it may depend on")];
    };
    let mut faults = Vec::new();
    for dependency in &dependencies {
        let in_workspace = ARROWS.iter().any(|(known, _)| known == dependency);
        if in_workspace && !allowed.contains(&dependency.as_str()) {
            faults.push(format!("{name} depends on {dependency}: that arrow points up or sideways"));
        }
        let home = HOMES.iter().find(|(outside, _)| outside == dependency);
        if home.is_some_and(|(_, homes)| !homes.contains(&name)) {
            faults.push(format!("{name} depends on {dependency}, which has its home elsewhere"));
        }
        if matches!(name, "sapwood-core" | "sapwood-formats") && IMPURE.contains(&dependency.as_str()) {
            faults.push(format!("{name} is pure and may not depend on {dependency}"));
        }
    }
    faults
}

fn normal_dependencies(package: &Value) -> BTreeSet<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
    normal.filter_map(|dependency| dependency["name"].as_str()).map(str::to_owned).collect()
}
