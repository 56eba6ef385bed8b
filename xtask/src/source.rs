//! Reads and parses the Rust files of every crate, without tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One file below `src/` of a crate.
pub struct SourceFile {
    /// The path relative to the root.
    pub name: String,
    /// The name of the crate's folder.
    pub krate: String,
    /// The names of the modules that lead to this file. Empty for the crate root.
    pub module: Vec<String>,
    pub syntax: syn::File,
}

pub fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let mut crates: Vec<PathBuf> = vec![root.join("xtask")];
    for entry in fs::read_dir(root.join("crates"))? {
        crates.push(entry?.path());
    }
    crates.sort();
    let mut files = Vec::new();
    for folder in crates {
        let mut paths = Vec::new();
        collect(&folder.join("src"), &mut paths)?;
        for path in paths {
            files.push(parse(root, &folder, &path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(files)
}

fn parse(root: &Path, folder: &Path, path: &Path) -> Result<SourceFile> {
    let text = fs::read_to_string(path)?;
    let krate = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = path.strip_prefix(root)?.display().to_string();
    let module = module_of(path.strip_prefix(folder.join("src"))?);
    Ok(SourceFile { name, krate, module, syntax: syn::parse_file(&text)? })
}

/// The module of a file, from its path below `src/`.
fn module_of(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let mut names: Vec<String> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut entries = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Whether an item is compiled only for tests.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        syn::Meta::NameValue(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_gives_the_module() {
        let module = |path: &str| module_of(Path::new(path)).join("::");
        assert_eq!(module("lib.rs"), "");
        assert_eq!(module("port/store.rs"), "port::store");
        assert_eq!(module("port/mod.rs"), "port");
    }

    #[test]
    fn test_items_are_recognised() {
        let is_test = |text: &str| match syn::parse_str(text).unwrap() {
            syn::Item::Mod(item) => is_test(&item.attrs),
            syn::Item::Fn(item) => is_test(&item.attrs),
            _ => unreachable!(),
        };
        assert!(is_test("#[cfg(test)] mod tests {}"));
        assert!(is_test("#[test] fn works() {}"));
        assert!(!is_test("#[cfg(unix)] mod pipe {}"));
    }
}
