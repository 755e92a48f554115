//! Which crate may depend on which: compares the list in `ARCHITECTURE.md` with the manifests.
//!
//! The page holds two fenced blocks, so that the picture people read is the one that is enforced. ````
//! ```edges ```` names the crates of ours that each crate depends on (for any purpose), ```` ```externals
//! ```` the foreign crates that a pure crate may link. Both are exact: an edge that is gone must leave the
//! page too.

use std::collections::{BTreeMap, BTreeSet};

use crate::fences::fences;
use crate::tree::{Finding, Tree, line_where};

/// The page with the lists.
const PAGE: &str = "ARCHITECTURE.md";

/// Crates that do no I/O. The crates that they link are listed, because a dependency could do I/O for them.
const PURE: &[&str] = &[
    "weir-balance",
    "weir-cache",
    "weir-config",
    "weir-convert",
    "weir-http",
    "weir-mysql",
    "weir-screen",
    "weir-stats",
];

/// Deterministic crates: each has a `clippy.toml` that bans clocks, sockets, files and the like.
const TIMELESS: &[&str] =
    &["weir-balance", "weir-cache", "weir-config", "weir-convert", "weir-http", "weir-mysql", "weir-screen"];

/// Crates that drive the built binary. If they linked a product crate, a shared mistake could go unnoticed.
const OUTSIDERS: &[&str] = &["weir-lab", "weir-tests"];

/// A package of the workspace.
struct Package<'a> {
    manifest: &'a str,
    text: &'a str,
    /// Names of the packages it depends on, with the purpose (`dependencies`, `dev-dependencies` …).
    needs: Vec<(String, String)>,
}

/// One line of a list: the names after the arrow, and the line's number.
struct Declared {
    line: usize,
    names: BTreeSet<String>,
}

/// Compares the lists with the manifests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let packages = packages(tree, &mut findings);
    let Some(page) = tree.text(PAGE) else {
        findings.push(Finding::at(PAGE, 1, "the page with the list of allowed edges is missing"));
        return findings;
    };
    let edges = declared(page, "edges", &mut findings);
    let externals = declared(page, "externals", &mut findings);
    for (name, package) in &packages {
        let (ours, foreign): (Vec<_>, Vec<_>) =
            package.needs.iter().partition(|(need, _)| packages.contains_key(need));
        let linked = |(_, purpose): &&&(String, String)| !purpose.ends_with("dev-dependencies");
        compare(name, package, &ours, edges.get(name), "edges", &mut findings);
        if PURE.contains(&name.as_str()) {
            let linked: Vec<_> = foreign.iter().filter(linked).copied().collect();
            compare(name, package, &linked, externals.get(name), "externals", &mut findings);
        }
        let bans = package.manifest.replace("Cargo.toml", "clippy.toml");
        if TIMELESS.contains(&name.as_str())
            && !tree.text(&bans).is_some_and(|text| text.contains("disallowed-methods"))
        {
            findings.push(Finding::at(
                &bans,
                1,
                format!("`{name}` needs a list of `disallowed-methods`: it reads no clock and opens nothing"),
            ));
        }
        if OUTSIDERS.contains(&name.as_str()) {
            for (need, _) in &ours {
                let message =
                    format!("`{name}` must not depend on `{need}`: it judges the built program from outside");
                findings.push(Finding::at(package.manifest, package.line_of(need), message));
            }
        }
    }
    for (list, what) in [(&edges, "edges"), (&externals, "externals")] {
        for (name, declared) in list.iter().filter(|(name, _)| !packages.contains_key(*name)) {
            findings.push(Finding::at(
                PAGE,
                declared.line,
                format!("the list of {what} names `{name}`, and no such package exists"),
            ));
        }
    }
    findings
}

/// The directories of the packages for which `is` holds, and of all that depend on one of them, directly or
/// through others.
pub fn with_dependents(tree: &Tree, is: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let packages = packages(tree, &mut Vec::new());
    let directory = |package: &Package<'_>| package.manifest.trim_end_matches("/Cargo.toml").to_owned();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    loop {
        let met = packages.iter().filter(|(_, package)| {
            is(&directory(package)) || package.needs.iter().any(|(need, _)| names.contains(need.as_str()))
        });
        let met: BTreeSet<&str> = met.map(|(name, _)| name.as_str()).collect();
        if met.len() == names.len() {
            return names.iter().map(|name| directory(&packages[*name])).collect();
        }
        names = met;
    }
}

/// Both directions: what the manifest has and the list lacks, and what the list has and the manifest lacks.
fn compare(
    name: &str,
    package: &Package<'_>,
    needs: &[&(String, String)],
    declared: Option<&Declared>,
    what: &str,
    findings: &mut Vec<Finding>,
) {
    let Some(declared) = declared else {
        let message = format!("`{name}` has no line in the list of {what} in {PAGE}");
        findings.push(Finding::at(package.manifest, 1, message));
        return;
    };
    for (need, _) in needs.iter().filter(|(need, _)| !declared.names.contains(need)) {
        let message =
            format!("`{name}` depends on `{need}`, which the list of {what} in {PAGE} does not allow");
        findings.push(Finding::at(package.manifest, package.line_of(need), message));
    }
    for gone in declared.names.iter().filter(|gone| !needs.iter().any(|(need, _)| need == *gone)) {
        let message = format!(
            "the list of {what} says `{name}` depends on `{gone}`, and {} does not",
            package.manifest
        );
        findings.push(Finding::at(PAGE, declared.line, message));
    }
}

impl Package<'_> {
    fn line_of(&self, need: &str) -> usize {
        line_where(self.text, |line| {
            line.strip_prefix(need).is_some_and(|rest| rest.trim_start().starts_with(['.', '=']))
                || line.contains(&format!("\"{need}\""))
        })
    }
}

/// Every `Cargo.toml` with a `[package]`, by package name.
fn packages<'a>(tree: &'a Tree, findings: &mut Vec<Finding>) -> BTreeMap<String, Package<'a>> {
    let mut packages = BTreeMap::new();
    for (manifest, text) in
        tree.texts().filter(|(path, _)| *path == "Cargo.toml" || path.ends_with("/Cargo.toml"))
    {
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                findings.push(Finding::at(manifest, 1, format!("not readable as TOML: {}", error.message())));
                continue;
            }
        };
        let name = table.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
        let Some(name) = name else { continue };
        let mut needs = Vec::new();
        collect_needs(&table, &mut needs);
        let targets = table.get("target").and_then(toml::Value::as_table);
        for target in targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table) {
            collect_needs(target, &mut needs);
        }
        packages.insert(name.to_owned(), Package { manifest, text, needs });
    }
    packages
}

fn collect_needs(table: &toml::Table, needs: &mut Vec<(String, String)>) {
    for purpose in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (key, value) in table.get(purpose).and_then(toml::Value::as_table).into_iter().flatten() {
            // `alias = { package = "name" }` depends on `name`, whatever it is called here.
            let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
            needs.push((name.to_owned(), purpose.to_owned()));
        }
    }
}

/// Reads the fenced list called `what`: lines of the form `name -> name name`, or `name -> nothing`.
fn declared(page: &str, what: &str, findings: &mut Vec<Finding>) -> BTreeMap<String, Declared> {
    let mut list = BTreeMap::new();
    let Some(fence) = fences(page).into_iter().find(|fence| fence.info == what) else {
        findings.push(Finding::at(PAGE, 1, format!("a fenced block marked `{what}` is expected")));
        return list;
    };
    for (index, text) in fence.text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = fence.line + 1 + index;
        let Some((name, names)) = text.split_once("->") else {
            findings.push(Finding::at(
                PAGE,
                line,
                format!("expected `name -> names`, found `{}`", text.trim()),
            ));
            continue;
        };
        let names = names.split_whitespace().filter(|name| *name != "nothing").map(str::to_owned).collect();
        list.insert(name.trim().to_owned(), Declared { line, names });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "```edges\nweir-http -> nothing\nweir-proxy -> weir-http\n```\n```externals\nweir-http -> nothing\n```\n";

    const BANS: &str = "disallowed-methods = []\n";

    fn findings(page: &str, http: &str, proxy: &str) -> Vec<String> {
        let http = format!("[package]\nname = \"weir-http\"\n{http}");
        let proxy = format!("[package]\nname = \"weir-proxy\"\n{proxy}");
        let files = [
            ("ARCHITECTURE.md", page),
            ("crates/weir-http/Cargo.toml", &http),
            ("crates/weir-http/clippy.toml", BANS),
            ("crates/weir-proxy/Cargo.toml", &proxy),
        ];
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_tree_that_follows_its_list_passes() {
        let dev = "[dev-dependencies]\nproptest.workspace = true\n";
        assert_eq!(
            findings(LISTS, dev, "[dependencies]\nweir-http.workspace = true\ntokio = \"1\"\n"),
            [""; 0]
        );
    }

    #[test]
    fn an_edge_that_is_not_in_the_list_is_found_where_it_stands() {
        let found = findings(
            LISTS,
            "[dependencies]\nweir-proxy.workspace = true\n",
            "[dependencies]\nweir-http = \"1\"\n",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("crates/weir-http/Cargo.toml:4: `weir-http` depends on `weir-proxy`"),
            "{found:?}"
        );
    }

    #[test]
    fn an_edge_for_tests_or_one_target_or_under_another_name_counts_too() {
        for edge in [
            "[dev-dependencies]\nweir-proxy.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nweir-proxy.workspace = true\n",
            "[build-dependencies]\nplane = { package = \"weir-proxy\", path = \"../weir-proxy\" }\n",
        ] {
            let found = findings(LISTS, edge, "[dependencies]\nweir-http = \"1\"\n");
            assert_eq!(found.len(), 1, "{edge}: {found:?}");
        }
    }

    #[test]
    fn an_edge_that_is_gone_must_leave_the_list() {
        let found = findings(LISTS, "", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("ARCHITECTURE.md:3: "), "{found:?}");
    }

    #[test]
    fn a_pure_crate_links_only_what_is_listed() {
        let found = findings(LISTS, "[dependencies]\ntokio = \"1\"\n", "[dependencies]\nweir-http = \"1\"\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`weir-http` depends on `tokio`"), "{found:?}");
    }

    #[test]
    fn a_package_without_a_line_and_a_line_without_a_package_are_found() {
        let page = "```edges\nweir-http -> nothing\nweir-cache -> weir-http\n```\n```externals\nweir-http -> nothing\n```\n";
        let found = findings(page, "", "");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`weir-proxy` has no line"), "{found:?}");
        assert!(found[1].contains("`weir-cache`, and no such package exists"), "{found:?}");
    }

    #[test]
    fn the_judges_depend_on_no_product_crate_even_when_the_list_says_so() {
        let page = "```edges\nweir-tests -> weir-http\nweir-http -> nothing\n```\n```externals\nweir-http -> nothing\n```\n";
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", page),
            ("crates/weir-http/Cargo.toml", "[package]\nname = \"weir-http\"\n"),
            ("crates/weir-http/clippy.toml", BANS),
            (
                "tests/Cargo.toml",
                "[package]\nname = \"weir-tests\"\n\n[dependencies]\nweir-http.workspace = true\n",
            ),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("tests/Cargo.toml", 5));
    }

    #[test]
    fn a_crate_that_reads_no_clock_says_so_to_clippy() {
        let page = "```edges\nweir-config -> nothing\n```\n```externals\nweir-config -> nothing\n```\n";
        let manifest = ("crates/weir-config/Cargo.toml", "[package]\nname = \"weir-config\"\n");
        let found = check(&Tree::of(&[("ARCHITECTURE.md", page), manifest]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "crates/weir-config/clippy.toml");
    }

    #[test]
    fn a_page_without_its_lists_is_itself_a_finding() {
        let found = findings("no lists here", "", "");
        assert!(
            found.iter().any(|found| found.contains("a fenced block marked `edges` is expected")),
            "{found:?}"
        );
    }
}
