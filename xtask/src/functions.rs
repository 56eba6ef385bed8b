//! Checks the median and the maximum length of functions over all crates, without tests.

use syn::visit::{self, Visit};

use crate::source::{SourceFile, is_test};

const MEDIAN_LINES_MAX: usize = 8;
const LINES_MAX: usize = 70;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
    /// Number of lines from the signature to the closing brace.
    lines: usize,
}

/// Report the statistics and return the faults.
pub fn check(files: &[SourceFile]) -> Vec<String> {
    let mut all: Vec<(&str, Function)> = Vec::new();
    for file in files {
        all.extend(functions_of(&file.syntax).into_iter().map(|function| (file.name.as_str(), function)));
    }
    all.sort_by_key(|(_, function)| function.lines);
    let (Some((_, middle)), Some((_, longest))) = (all.get(all.len() / 2), all.last()) else {
        return Vec::new();
    };
    println!("tidy: {} functions, median {} lines, maximum {} lines", all.len(), middle.lines, longest.lines);
    let too_long = all.iter().rev().take_while(|(_, function)| function.lines > LINES_MAX);
    let mut faults: Vec<String> = too_long.map(|(file, function)| describe(file, function)).collect();
    if middle.lines > MEDIAN_LINES_MAX {
        faults.push(format!(
            "the median function has {} lines, over the limit of {MEDIAN_LINES_MAX}",
            middle.lines
        ));
    }
    faults
}

fn describe(file: &str, function: &Function) -> String {
    let Function { name, line, lines } = function;
    format!("{file}:{line} {name} has {lines} lines, over the limit of {LINES_MAX}: split it")
}

fn functions_of(file: &syn::File) -> Vec<Function> {
    let mut finder = Finder::default();
    finder.visit_file(file);
    finder.0
}

#[derive(Default)]
struct Finder(Vec<Function>);

impl Finder {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let lines = body.brace_token.span.close().end().line + 1 - line;
        self.0.push(Function { name: signature.ident.to_string(), line, lines });
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.add(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.add(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_the_signature_to_the_brace() {
        let text = "
            /// A comment does not count.
            fn short() {}
            impl A {
                fn long(
                    &self,
                ) -> u8 {
                    1
                }
            }
            trait B { fn without_body(&self); }
            #[cfg(test)]
            mod tests { fn skipped() {} }";
        let found = functions_of(&syn::parse_str(text).unwrap());
        let found: Vec<(&str, usize, usize)> =
            found.iter().map(|function| (function.name.as_str(), function.line, function.lines)).collect();
        assert_eq!(found, [("short", 3, 1), ("long", 5, 5)]);
    }
}
