//! Checks that no two modules of a crate import each other. Re-exports (`pub use`) are not imports: an import through a
//! re-export counts as an import of the module that defines the name.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::source::{SourceFile, is_test};

/// Maximum number of re-exports to follow for one name.
const RE_EXPORTS_MAX: usize = 5;

type ModulePath = Vec<String>;

/// The modules of one crate.
type Modules = BTreeMap<ModulePath, Module>;

/// What one module defines, re-exports and imports.
#[derive(Debug, Default)]
struct Module {
    defined: BTreeSet<String>,
    /// Re-exported names and their paths.
    exported: BTreeMap<String, Vec<String>>,
    /// Paths in imports and in code, as written.
    used: BTreeSet<Vec<String>>,
}

/// Find modules that import each other, in all crates.
pub fn check(files: &[SourceFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for file in files {
        let modules = crates.entry(&file.krate).or_default();
        let mut reader = Reader { modules, at: file.module.clone() };
        reader.modules.entry(file.module.clone()).or_default();
        reader.visit_file(&file.syntax);
    }
    let mut faults = Vec::new();
    for (krate, modules) in &crates {
        let pairs = mutual_imports(modules).into_iter().map(|(one, other)| (name_of(&one), name_of(&other)));
        faults.extend(pairs.map(|(one, other)| format!("{krate}: {one} and {other} import each other")));
    }
    faults
}

fn name_of(path: &[String]) -> String {
    if path.is_empty() { "the crate root".to_owned() } else { path.join("::") }
}

/// The pairs of modules that import each other, in order.
fn mutual_imports(modules: &Modules) -> Vec<(ModulePath, ModulePath)> {
    let imported: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        modules.iter().map(|(at, module)| (at, imports_of(modules, at, module))).collect();
    let mut pairs = Vec::new();
    for (one, others) in &imported {
        let back = others.iter().filter(|other| *one < other && imported[other].contains(*one));
        pairs.extend(back.map(|other| ((*one).clone(), other.clone())));
    }
    pairs
}

fn imports_of(modules: &Modules, at: &ModulePath, module: &Module) -> BTreeSet<ModulePath> {
    let targets = module.used.iter().filter_map(|path| resolve(modules, at, path, 0));
    targets.filter(|target| target != at).collect()
}

/// The module that defines the last name of a path, if it is in this crate.
fn resolve(modules: &Modules, at: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
    let (mut target, mut rest) = start_of(modules, at, path)?;
    while let Some((name, after)) = rest.split_first() {
        let child: ModulePath = target.iter().chain([name]).cloned().collect();
        if !modules.contains_key(&child) {
            break;
        }
        (target, rest) = (child, after);
    }
    let module = modules.get(&target)?;
    let Some(name) = rest.first() else { return Some(target) };
    let exported = module.exported.get(name).filter(|_| !module.defined.contains(name));
    let origin = exported.filter(|_| depth < RE_EXPORTS_MAX);
    origin.and_then(|path| resolve(modules, &target, path, depth + 1)).or(Some(target))
}

/// The module in which a path starts, and the rest of the path.
fn start_of<'a>(
    modules: &Modules,
    at: &ModulePath,
    path: &'a [String],
) -> Option<(ModulePath, &'a [String])> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some((Vec::new(), rest)),
        "self" => Some((at.clone(), rest)),
        "super" => {
            let levels = path.iter().take_while(|name| *name == "super").count();
            Some((at[..at.len().checked_sub(levels)?].to_vec(), &path[levels..]))
        }
        name => {
            let child: ModulePath = at.iter().cloned().chain([name.to_owned()]).collect();
            modules.contains_key(&child).then(|| (at.clone(), path))
        }
    }
}

/// Collects the facts about the modules of one file.
struct Reader<'a> {
    modules: &'a mut Modules,
    at: ModulePath,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.entry(self.at.clone()).or_default()
    }

    /// Record a path that starts with `crate`, `super` or `self`. A path that starts with a child module is
    /// not recorded: a module may use its children, and children may use what their parent defines.
    fn record_use(&mut self, path: Vec<String>) {
        if matches!(path.first().map(String::as_str), Some("crate" | "super" | "self")) {
            self.module().used.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if let Some(name) = defined_name(item) {
            self.module().defined.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) || item.content.is_none() {
            return;
        }
        self.at.push(item.ident.to_string());
        self.module();
        visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let is_export = !matches!(item.vis, syn::Visibility::Inherited);
        for (name, path) in paths_of(&item.tree) {
            if is_export {
                self.module().exported.insert(name, path);
            } else {
                self.record_use(path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.record_use(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    // A `pub(super)` is not a use of the parent.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}

fn defined_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Every imported name of a `use`, with its path.
fn paths_of(tree: &syn::UseTree) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    expand(tree, &mut Vec::new(), &mut found);
    found
}

fn expand(tree: &syn::UseTree, prefix: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let mut add = |name: &syn::Ident, visible: &syn::Ident| {
        let path = prefix.iter().cloned().chain([name.to_string()]).collect();
        found.push((visible.to_string(), path));
    };
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            expand(&path.tree, prefix, found);
            prefix.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|item| expand(item, prefix, found)),
        syn::UseTree::Name(name) => add(&name.ident, &name.ident),
        syn::UseTree::Rename(rename) => add(&rename.ident, &rename.rename),
        syn::UseTree::Glob(_) => found.push(("*".to_owned(), prefix.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a crate with these files.
    fn check_files(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(module, text): &(&str, &str)| SourceFile {
            name: format!("{module}.rs"),
            krate: "demo".to_owned(),
            module: module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            syntax: syn::parse_str(text).unwrap(),
        };
        check(&files.iter().map(parse).collect::<Vec<_>>())
    }

    #[test]
    fn imports_in_both_directions_are_found() {
        let one = ("one", "use crate::two::{Two, self as other}; pub struct One;");
        assert_eq!(
            check_files(&[one, ("two", "pub struct Two; fn f(_: crate::one::One) {}")]),
            ["demo: one and two import each other"]
        );
        assert!(check_files(&[one, ("two", "pub struct Two;")]).is_empty());
    }

    #[test]
    fn a_re_export_leads_to_the_module_that_defines_the_name() {
        let files = [
            ("", "mod parent;"),
            ("parent", "mod one; mod two; pub use one::One; pub use two::Two;"),
            ("parent::one", "use super::Two; pub struct One;"),
            ("parent::two", "use crate::parent::One; pub struct Two;"),
        ];
        assert_eq!(check_files(&files), ["demo: parent::one and parent::two import each other"]);
    }

    #[test]
    fn a_parent_may_use_its_child() {
        let files = [
            ("parent", "mod child; pub struct Shared; fn f() { child::run() } use child::run;"),
            ("parent::child", "use super::Shared; pub(super) fn run() {}"),
        ];
        assert!(check_files(&files).is_empty());
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let two = ("two", "pub struct Two; #[cfg(test)] mod tests { use crate::one::One; }");
        assert!(check_files(&[("one", "use crate::two::Two; pub struct One;"), two]).is_empty());
    }
}
