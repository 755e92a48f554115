//! Finds which file of a crate uses something that another file defines: the graph behind the rules on
//! circles and on parts.
//!
//! An edge is a `use`, or a path in the code that begins with `crate`, `super` or an imported module;
//! re-exports are followed to the file that defines the item. A `mod` is not an edge, nor is anything between
//! a module and its own submodules, nor what only tests compile.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Kind, Token, closing, tokens, without_tests};
use crate::tree::Tree;

/// The files under a crate's `src`, and which of them each one needs.
pub struct Imports {
    /// By path from the root of the repository; every file has an entry.
    pub needs: BTreeMap<String, BTreeSet<String>>,
}

/// Segments of a path within the crate, without `crate`.
type Names = Vec<String>;

/// One file: its module and what it uses of others.
#[derive(Default)]
struct Module {
    file: String,
    /// Every path of the file that may lead into the crate, from its root.
    paths: Vec<Names>,
    /// Names that are imported here, and their meanings: others may use them through this module.
    exports: BTreeMap<String, Names>,
    /// Names of the items that the file defines.
    defines: BTreeSet<String>,
    /// Modules whose names are all re-exported here.
    exports_all_of: Vec<Names>,
}

/// Directories with a `src` that is compiled as a crate, as `crates/weir-http`.
pub fn crates(tree: &Tree) -> BTreeSet<String> {
    let manifests = tree.texts().filter(|(_, text)| text.contains("[package]"));
    manifests.filter_map(|(path, _)| path.strip_suffix("/Cargo.toml").map(str::to_owned)).collect()
}

impl Imports {
    /// Reads every file under `directory`/src.
    pub fn of(tree: &Tree, directory: &str) -> Imports {
        let under = format!("{directory}/src/");
        let files = tree
            .with_extension(&["rs"])
            .filter_map(|(path, text)| Some((path, path.strip_prefix(&under)?, text)));
        let files: Vec<_> = files.map(|(path, inside, text)| (module_of(inside), path, text)).collect();
        let known: BTreeSet<Names> = files.iter().map(|(module, _, _)| module.clone()).collect();
        let modules: BTreeMap<Names, Module> = files
            .into_iter()
            .map(|(module, path, text)| (module.clone(), read(&module, path, text, &known)))
            .collect();
        let mut needs = BTreeMap::new();
        for (name, module) in &modules {
            let met = module.paths.iter().filter_map(|path| holder(&modules, path.clone()));
            let met = met.filter(|(other, _)| !are_family(name, other));
            needs.insert(module.file.clone(), met.map(|(_, other)| other.file.clone()).collect());
        }
        Imports { needs }
    }

    /// The circles: sets of files each of which needs every other, directly or through others. Largest first,
    /// each sorted.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.needs.keys().map(|file| (file.as_str(), self.reached_from(file))).collect();
        let mut circles: Vec<Vec<&str>> = Vec::new();
        for (file, others) in &reached {
            if circles.iter().any(|circle| circle.contains(file)) {
                continue;
            }
            let circle: Vec<&str> =
                others.iter().filter(|other| reached[*other].contains(file)).copied().collect();
            if circle.len() > 1 {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn reached_from<'a>(&'a self, file: &'a str) -> BTreeSet<&'a str> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(file) = open.pop() {
            for next in self.needs.get(file).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    }
}

/// The module of a file under `src`: `a/mod.rs` and `a.rs` are `a`, the crate's root is the empty path.
fn module_of(inside: &str) -> Names {
    let stem = inside.strip_suffix(".rs").unwrap_or(inside);
    let mut names: Names = stem.split('/').map(str::to_owned).collect();
    if matches!(names.last().map(String::as_str), Some("mod")) || matches!(stem, "lib" | "main") {
        names.pop();
    }
    names
}

/// Whether the two are one module, or one is right below the other.
fn are_family(one: &[String], other: &[String]) -> bool {
    let (upper, lower) = if one.len() < other.len() { (one, other) } else { (other, one) };
    lower.starts_with(upper) && lower.len() - upper.len() <= 1
}

/// The module that defines what `path` names: re-exports are followed, then the longest prefix that is a
/// module is taken.
fn holder(modules: &BTreeMap<Names, Module>, mut path: Names) -> Option<(&[String], &Module)> {
    // Re-exports form chains of at most a few; a circle of them must not hang the check.
    for _ in 0..8 {
        let mut depths = (0..=path.len()).rev();
        let (name, module) = depths.find_map(|depth| modules.get_key_value(&path[..depth]))?;
        let Some(next) = path.get(name.len()).and_then(|item| followed(modules, module, item)) else {
            return Some((name, module));
        };
        path = next.into_iter().chain(path[name.len() + 1..].iter().cloned()).collect();
    }
    None
}

fn followed(modules: &BTreeMap<Names, Module>, module: &Module, name: &str) -> Option<Names> {
    if module.defines.contains(name) {
        return None;
    }
    if let Some(path) = module.exports.get(name) {
        return Some(path.clone());
    }
    // `pub use a::*;` hides which names it brings.
    let has_it = |path: &&Names| modules.get(*path).is_some_and(|held| held.defines.contains(name));
    let hidden = module.exports_all_of.iter().find(has_it)?;
    Some(hidden.iter().cloned().chain([name.to_owned()]).collect())
}

/// Reads a file without its tests.
fn read(module: &[String], path: &str, text: &str, known: &BTreeSet<Names>) -> Module {
    let all = tokens(text);
    let kept = without_tests(&all);
    let found = Module { file: path.to_owned(), defines: defined(&kept), ..Module::default() };
    let mut reader = Reader { module, known, found };
    reader.imports(&kept, 0);
    reader.paths(&kept, 0);
    reader.found
}

struct Reader<'a> {
    module: &'a [String],
    known: &'a BTreeSet<Names>,
    found: Module,
}

/// One leaf of an import: `a::b as c`.
struct Leaf {
    path: Vec<String>,
    name: Option<String>,
}

impl Reader<'_> {
    /// Collects every `use`, at any depth of inline modules.
    fn imports(&mut self, tokens: &[Token<'_>], depth: usize) {
        let mut at = 0;
        while at < tokens.len() {
            if let Some(close) = inline_module(tokens, at) {
                self.imports(&tokens[at + 3..close], depth + 1);
                at = close;
            } else if is_import(tokens, at) {
                let end = tokens[at..]
                    .iter()
                    .position(|token| token.text == ";")
                    .map_or(tokens.len(), |end| at + end);
                let is_public = at > 0 && matches!(tokens[at - 1].text, "pub" | ")");
                self.import(&tokens[at + 1..end], is_public && depth == 0, depth);
                at = end;
            }
            at += 1;
        }
    }

    fn import(&mut self, tree: &[Token<'_>], is_public: bool, depth: usize) {
        for leaf in leaves(tree, &[]) {
            let Some(path) = self.resolved(&leaf.path, depth) else { continue };
            match leaf.name {
                None if is_public => self.found.exports_all_of.push(path),
                None => self.found.paths.push(path),
                Some(name) => {
                    if depth == 0 {
                        self.found.exports.insert(name, path.clone());
                    }
                    if !is_public {
                        self.found.paths.push(path);
                    }
                }
            }
        }
    }

    /// Collects every path in the code outside imports.
    fn paths(&mut self, tokens: &[Token<'_>], depth: usize) {
        let mut at = 0;
        while at < tokens.len() {
            if let Some(close) = inline_module(tokens, at) {
                self.paths(&tokens[at + 3..close], depth + 1);
                at = close + 1;
                continue;
            }
            if is_import(tokens, at) {
                at += tokens[at..].iter().position(|token| token.text == ";").unwrap_or(tokens.len());
                continue;
            }
            let imported = self.imported_module(tokens, at);
            let begins = imported.is_some() || matches!(tokens[at].text, "crate" | "super");
            let names = if begins { path_at(&tokens[at..]) } else { Vec::new() };
            if names.len() > 1 {
                let path = match imported {
                    Some(module) => Some(module.into_iter().chain(names[1..].iter().cloned()).collect()),
                    None => self.resolved(&names, depth),
                };
                self.found.paths.extend(path);
            }
            at += (names.len() * 2).saturating_sub(1).max(1);
        }
    }

    /// The module that the first name of a path stands for: `use crate::a;` makes `a::X` a path into it.
    fn imported_module(&self, tokens: &[Token<'_>], at: usize) -> Option<Names> {
        let is_first = at == 0 || !matches!(tokens[at - 1].text, "::" | ".");
        let path = self.found.exports.get(tokens[at].text).filter(|_| is_first)?;
        self.known.contains(path).then(|| path.clone())
    }

    /// A path as it stands in the file, from the crate's root; `None` when it leads out of the crate.
    fn resolved(&self, path: &[String], depth: usize) -> Option<Names> {
        // Each inline module is one level deeper.
        let mut here = self.module.to_vec();
        here.extend((0..depth).map(|_| String::new()));
        let mut rest = path;
        match rest.first().map(String::as_str)? {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    here.pop()?;
                    rest = &rest[1..];
                }
            }
            child => {
                here.truncate(self.module.len());
                here.push(child.to_owned());
                let is_child = self.known.contains(&here);
                return is_child.then(|| here.into_iter().chain(rest[1..].iter().cloned()).collect());
            }
        }
        here.retain(|name| !name.is_empty());
        Some(here.into_iter().chain(rest.iter().cloned()).collect())
    }
}

/// The names of all items in a file.
fn defined(tokens: &[Token<'_>]) -> BTreeSet<String> {
    let begins =
        |word: &str| ["struct", "enum", "union", "trait", "type", "fn", "const", "static"].contains(&word);
    let pairs = tokens.windows(2).filter(|pair| begins(pair[0].text) && pair[1].kind == Kind::Word);
    pairs.map(|pair| pair[1].text.to_owned()).collect()
}

/// The index of the closing bracket when a module with a body begins here.
fn inline_module(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let begins = tokens[at].text == "mod"
        && tokens.get(at + 1).is_some_and(|name| name.kind == Kind::Word)
        && tokens.get(at + 2).is_some_and(|open| open.text == "{");
    begins.then(|| closing(tokens, at + 2))
}

/// Whether an import begins here; `use<'a>` in a type is not one.
fn is_import(tokens: &[Token<'_>], at: usize) -> bool {
    tokens[at].text == "use" && tokens.get(at + 1).is_some_and(|next| next.text != "<")
}

/// The path at the beginning of `tokens`.
fn path_at(tokens: &[Token<'_>]) -> Names {
    let mut names = Names::new();
    let mut at = 0;
    while tokens.get(at).is_some_and(|token| token.kind == Kind::Word) {
        names.push(tokens[at].text.to_owned());
        if tokens.get(at + 1).is_none_or(|next| next.text != "::") {
            break;
        }
        at += 2;
    }
    names
}

/// Every leaf of an import's tree, with the names that precede the tree.
fn leaves(tree: &[Token<'_>], before: &[String]) -> Vec<Leaf> {
    let mut found = Vec::new();
    for part in split_at_commas(tree) {
        let mut path = before.to_vec();
        let mut at = 0;
        while let Some(token) = part.get(at) {
            match token.text {
                "::" => {}
                "{" => {
                    let close = closing(part, at);
                    found.extend(leaves(&part[at + 1..close.min(part.len())], &path));
                    path.clear();
                    break;
                }
                "*" => {
                    found.push(Leaf { path: std::mem::take(&mut path), name: None });
                    break;
                }
                "as" => break,
                name => path.push(name.to_owned()),
            }
            at += 1;
        }
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(last) = path.last().cloned() {
            let name =
                part.get(at + 1).filter(|_| at < part.len()).map_or(last, |alias| alias.text.to_owned());
            found.push(Leaf { path, name: Some(name) });
        }
    }
    found
}

fn split_at_commas<'a, 'b>(tree: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while at < tree.len() {
        match tree[at].text {
            "{" => at = closing(tree, at),
            "," => {
                parts.push(&tree[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if begin < tree.len() {
        parts.push(&tree[begin..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(files: &[(&str, &str)], file: &str) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("c/src/{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let imports = Imports::of(&Tree::of(&files), "c");
        let found = &imports.needs[&format!("c/src/{file}")];
        found.iter().map(|path| path.trim_start_matches("c/src/").to_owned()).collect()
    }

    const FILES: [(&str, &str); 6] = [
        ("lib.rs", "pub mod a;\npub mod b;\npub fn top() {}\n"),
        ("a/mod.rs", "mod deep;\npub mod side;\npub use deep::Thing;\npub use side::*;\npub struct Own;\n"),
        ("a/deep.rs", "pub struct Thing;\n"),
        ("a/side.rs", "pub struct Aside;\n"),
        ("b.rs", ""),
        ("c.rs", ""),
    ];

    fn needs_of_b(text: &str) -> Vec<String> {
        let mut files = FILES.to_vec();
        files[4].1 = text;
        needs(&files, "b.rs")
    }

    #[test]
    fn every_leaf_of_an_import_is_an_edge() {
        let found = needs_of_b("use std::fmt;\nuse crate::{a::{self, deep::Thing as T}, c};\n");
        assert_eq!(found, ["a/deep.rs", "a/mod.rs", "c.rs"]);
    }

    #[test]
    fn a_reexport_leads_to_the_file_that_holds_the_item() {
        assert_eq!(needs_of_b("use crate::a::Thing;\n"), ["a/deep.rs"]);
        assert_eq!(needs_of_b("use crate::a::Aside;\n"), ["a/side.rs"]);
    }

    #[test]
    fn a_path_that_begins_with_an_imported_module_leads_into_that_module() {
        assert_eq!(needs_of_b("use crate::a;\nfn f() { a::go(a::Thing) }\n"), ["a/deep.rs", "a/mod.rs"]);
        assert_eq!(
            needs_of_b("use crate::{a as other, c};\nfn f() { other::side::go(x.a::<u8>()) }\n"),
            ["a/mod.rs", "a/side.rs", "c.rs"]
        );
    }

    #[test]
    fn a_path_in_the_code_is_an_edge_as_much_as_an_import() {
        assert_eq!(
            needs_of_b("fn f() { super::a::side::go(); let x: crate::c::X = y.crate_; }\n"),
            ["a/side.rs", "c.rs"]
        );
    }

    #[test]
    fn a_module_and_its_own_submodules_are_one_thing_and_two_submodules_are_not() {
        let mut files = FILES.to_vec();
        files[2].1 = "use super::Own;\nuse super::side::Aside;\npub struct Thing;\n";
        assert_eq!(needs(&files, "a/mod.rs"), [""; 0]);
        assert_eq!(needs(&files, "a/deep.rs"), ["a/side.rs"]);
    }

    #[test]
    fn super_within_a_module_of_the_file_is_the_file_itself() {
        assert_eq!(needs_of_b("mod inner { use super::x; use super::super::c; }\n"), ["c.rs"]);
    }

    #[test]
    fn what_only_tests_import_is_no_edge() {
        assert_eq!(
            needs_of_b("#[cfg(test)]\nmod tests { use crate::c; }\n#[cfg(test)]\nuse crate::a;\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_circle_holds_the_files_that_need_each_other_and_no_more() {
        let files = [
            ("c/src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("c/src/a.rs", "use crate::b::B;"),
            ("c/src/b.rs", "use crate::c::C;"),
            ("c/src/c.rs", "use crate::a::A; use crate::d::D;"),
            ("c/src/d.rs", ""),
        ];
        let imports = Imports::of(&Tree::of(&files), "c");
        assert_eq!(imports.circles(), [["c/src/a.rs", "c/src/b.rs", "c/src/c.rs"]]);
    }
}
