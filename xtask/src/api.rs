//! The public API of the façade. `cargo xtask api` compares it with `crates/sapwood/api.txt` and checks that it is complete:
//! every item has documentation, and mentions only types that the façade also exports. `cargo xtask api --update` writes
//! the file.
//!
//! The façade exports types that other crates define. rustdoc's JSON of the façade has only their names, so this module
//! also reads the JSON of the defining crates. docs/adr/0036 explains the choice of tools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use public_api::{Builder, PublicItem};
use serde_json::Value;

const FACADE: &str = "sapwood";
/// The crates whose items the façade may export.
const CRATES: &[&str] =
    &[FACADE, "sapwood-core", "sapwood-effects", "sapwood-engine", "sapwood-formats", "sapwood-store"];
const SNAPSHOT: &str = "crates/sapwood/api.txt";

/// Lints are disabled, because only this program reads the JSON.
const RUSTDOC_FLAGS: &str = "-Zunstable-options --output-format json --cap-lints allow";

/// Whether to write the snapshot or to compare with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    Check,
    Update,
}

pub fn run(root: &Path, snapshot: Snapshot) -> Result<()> {
    let crates = read_crates(root)?;
    let surface = Surface::of(&crates)?;
    let mut faults = surface.undocumented();
    faults.extend(surface.unexported());
    for fault in &faults {
        eprintln!("api: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} problems in the public API", faults.len());
    }
    let listed = surface.list();
    let file = root.join(SNAPSHOT);
    if snapshot == Snapshot::Update {
        return std::fs::write(&file, listed).context("failed to write the snapshot");
    }
    compare(&std::fs::read_to_string(&file).unwrap_or_default(), &listed)?;
    println!("api: {} public items, as in {SNAPSHOT}", surface.items.len());
    Ok(())
}

fn compare(old: &str, new: &str) -> Result<()> {
    let (before, after): (BTreeSet<&str>, BTreeSet<&str>) = (old.lines().collect(), new.lines().collect());
    for line in before.difference(&after) {
        eprintln!("- {line}");
    }
    for line in after.difference(&before) {
        eprintln!("+ {line}");
    }
    if before != after {
        bail!("the public API differs from {SNAPSHOT}; if this is intended, run `cargo xtask api --update`");
    }
    Ok(())
}

/// A crate's rustdoc JSON, and its public items with their signatures.
struct CrateApi {
    json: Value,
    items: Vec<PublicItem>,
    /// The item that contains each item.
    parents: BTreeMap<u32, u32>,
}

impl CrateApi {
    fn item(&self, id: u32) -> &Value {
        &self.json["index"][id.to_string()]
    }

    /// The path of an item where it is defined.
    fn path(&self, id: u32) -> Option<String> {
        let parts = self.json["paths"][id.to_string()]["path"].as_array()?;
        Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("::"))
    }
}

fn read_crates(root: &Path) -> Result<BTreeMap<String, CrateApi>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["doc", "--no-deps", "--lib", "--locked", "--quiet"]);
    command.args(CRATES.iter().flat_map(|name| ["--package", name]));
    command.env("RUSTDOC", root.join("xtask/rustdoc-json.sh"));
    command.env("RUSTDOCFLAGS", RUSTDOC_FLAGS);
    if !command.current_dir(root).status().context("failed to run cargo doc")?.success() {
        bail!("cargo doc failed");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut crates = BTreeMap::new();
    for name in CRATES.iter().map(|name| name.replace('-', "_")) {
        let file = target.join("doc").join(format!("{name}.json"));
        let json = serde_json::from_slice(&std::fs::read(&file)?)?;
        let api = Builder::from_rustdoc_json(&file)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build()
            .with_context(|| format!("failed to read {}", file.display()))?;
        let items: Vec<PublicItem> = api.into_items().collect();
        let parents = items.iter().filter_map(|item| Some((item.id().0, item.parent_id()?.0))).collect();
        crates.insert(name, CrateApi { json, items, parents });
    }
    Ok(crates)
}

/// An item of the API: the crate that defines it, its id in that crate's JSON, and its signature.
struct Item<'a> {
    home: &'a CrateApi,
    id: u32,
    parent: Option<u32>,
    signature: String,
}

impl Item<'_> {
    fn kind(&self) -> &str {
        kind_of(self.home.item(self.id))
    }

    fn is_documented(&self) -> bool {
        self.home.item(self.id)["docs"].as_str().is_some_and(|docs| !docs.trim().is_empty())
    }

    /// Whether another doc comment covers the item: a re-export has the comment of its target, an implementation of a
    /// trait has the trait's, and a variant's comment describes its fields.
    fn is_covered(&self) -> bool {
        let parent = self.parent.map(|id| self.home.item(id));
        let in_trait_impl = parent.is_some_and(|parent| !parent["inner"]["impl"]["trait"].is_null());
        let in_variant = parent.is_some_and(|parent| kind_of(parent) == "variant");
        matches!(self.kind(), "use" | "impl") || in_trait_impl || in_variant
    }
}

fn kind_of(item: &Value) -> &str {
    item["inner"].as_object().and_then(|inner| inner.keys().next()).map_or("", String::as_str)
}

/// Everything that the façade's documentation shows.
struct Surface<'a> {
    items: Vec<Item<'a>>,
    /// The paths of all exported items in the crates that define them.
    exported: BTreeSet<String>,
}

impl<'a> Surface<'a> {
    fn of(crates: &'a BTreeMap<String, CrateApi>) -> Result<Self> {
        let facade = &crates[FACADE];
        let mut exported = BTreeSet::new();
        for item in &facade.items {
            let target = &facade.item(item.id().0)["inner"]["use"]["id"];
            let id = target.as_u64().map_or(Ok(item.id().0), u32::try_from)?;
            exported.extend(facade.path(id));
        }
        let mut items = Vec::new();
        for home in crates.values() {
            let mut seen = BTreeSet::new();
            for item in &home.items {
                // A crate lists an item once for each of its paths. The façade's re-exports are items of their own.
                let (id, parent) = (item.id().0, item.parent_id().map(|id| id.0));
                let is_shown = std::ptr::eq(home, facade) || is_exported(home, &exported, id);
                if is_shown && seen.insert(id) {
                    items.push(Item { home, id, parent, signature: item.to_string() });
                }
            }
        }
        Ok(Self { items, exported })
    }

    fn undocumented(&self) -> Vec<String> {
        let missing = self.items.iter().filter(|item| !item.is_documented() && !item.is_covered());
        missing.map(|item| format!("no documentation: {}", item.signature)).collect()
    }

    /// Types of this workspace in signatures that a user of the façade cannot name.
    fn unexported(&self) -> Vec<String> {
        let mut faults = BTreeSet::new();
        for item in self.items.iter().filter(|item| item.kind() != "use") {
            let mut ids = Vec::new();
            collect_ids(&item.home.item(item.id)["inner"], &mut ids);
            let paths = ids.into_iter().filter_map(|id| item.home.path(id));
            for path in paths.filter(|path| path.starts_with("sapwood") && !path.ends_with("::Result")) {
                if !self.exported.contains(&path) {
                    faults.insert(format!("the façade does not export {path}: {}", item.signature));
                }
            }
        }
        faults.into_iter().collect()
    }

    fn list(&self) -> String {
        let is_inherent = |item: &Item| item.kind() == "impl" && !item.signature.contains(" for ");
        let items = self.items.iter().filter(|item| !is_inherent(item));
        let lines: BTreeSet<String> = items.map(|item| format!("{}\n", item.signature)).collect();
        lines.into_iter().collect()
    }
}

/// Whether an item is exported, or is part of an exported one. An implementation is part of its type, not of its trait.
fn is_exported(home: &CrateApi, exported: &BTreeSet<String>, id: u32) -> bool {
    let implementor = &home.item(id)["inner"]["impl"]["for"]["resolved_path"]["id"];
    let id = implementor.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(id);
    match home.path(id) {
        Some(path) => exported.contains(&path),
        None => home.parents.get(&id).is_some_and(|parent| is_exported(home, exported, *parent)),
    }
}

/// The ids of all types and traits in a signature. Members are separate items, so they are not visited.
fn collect_ids(value: &Value, ids: &mut Vec<u32>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if matches!(name.as_str(), "resolved_path" | "trait") {
                    ids.extend(field["id"].as_u64().and_then(|id| u32::try_from(id).ok()));
                }
                collect_ids(field, ids);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_ids(value, ids)),
        _ => {}
    }
}
