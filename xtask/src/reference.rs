//! The generated pages in `docs/reference`, and the parts of hand-written pages that are determined by a
//! table in the code.
//!
//! `cargo xtask docs` runs these tests with `WEIR_BLESS` set: then they rewrite a stale page instead of
//! failing.

mod admin_api;
mod config;
mod metrics;
mod statements;

use std::collections::BTreeSet;

use weir_admin::endpoints::ENDPOINTS;
use weir_stats::expose;
use weir_stats::table::End;

use crate::tree::Tree;

/// Every generated page: its path and its text.
fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("docs/reference/admin-api.md", admin_api::page()),
        ("docs/reference/config.md", config::page()),
        ("docs/reference/metrics.md", metrics::page()),
        ("docs/reference/statements.md", statements::page()),
    ]
}

#[test]
fn the_reference_pages_are_what_the_code_says() {
    let root = crate::root();
    let write = std::env::var_os("WEIR_BLESS").is_some();
    let mut stale = Vec::new();
    for (path, page) in pages() {
        if std::fs::read_to_string(root.join(path)).is_ok_and(|found| found == page) {
            continue;
        }
        if write {
            std::fs::create_dir_all(root.join("docs/reference")).expect("a directory that can be written");
            std::fs::write(root.join(path), page).expect("a page that can be written");
        } else {
            stale.push(path);
        }
    }
    assert!(stale.is_empty(), "stale: {stale:?}; run `cargo xtask docs` and look at the difference");
}

#[test]
fn the_guide_explains_every_end_reason_and_no_other() {
    let page = std::fs::read_to_string(crate::root().join("docs/guide/logs-and-metrics.md"))
        .expect("the guide's page");
    let section = page.split("## Why it ended").nth(1).expect("a section on end reasons");
    let section = section.split("\n## ").next().unwrap_or(section);
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let explained: BTreeSet<&str> =
        rows.filter_map(|row| row.split('`').nth(1)).filter(|word| *word != "end").collect();
    let known: BTreeSet<&str> = End::ALL.iter().map(|end| end.word()).collect();
    assert_eq!(explained, known);
}

/// The cells in code style of the first column of the table after `heading`.
fn first_column<'p>(page: &'p str, heading: &str) -> BTreeSet<&'p str> {
    let table = page.split(heading).nth(1).expect("the heading of the table").trim_start();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)).collect()
}

fn page(path: &str) -> String {
    std::fs::read_to_string(crate::root().join(path)).expect("a page of the guide")
}

#[test]
fn the_guide_shows_every_call_of_the_admin_api_and_no_other() {
    let page = page("docs/guide/admin-api.md");
    // The page shows calls as they are made, with the names of its examples.
    let names = [
        ("{pool}", "app"),
        ("{address}", "10.0.0.1:8080"),
        ("{listener}", "secure"),
        ("{certificate}", "shop"),
    ];
    let example =
        |path: &str| names.iter().fold(path.to_owned(), |path, (name, example)| path.replace(name, example));
    let known = ENDPOINTS.iter().map(|it| format!("{} {}", it.method.word(), example(it.path)));
    let known: BTreeSet<String> = known.collect();
    let shown = first_column(&page, "| call | does |\n|---|---|");
    let shown = shown.iter().map(|call| call.replace('…', "/v1/pools/app"));
    assert_eq!(shown.collect::<BTreeSet<String>>(), known);
}

#[test]
fn the_guide_shows_every_field_of_the_access_log_and_no_other() {
    let tree = Tree::tracked(&crate::root()).expect("a checkout");
    let render =
        tree.paths().find(|path| path.ends_with("/access_log/render.rs")).expect("what writes lines");
    let render = std::fs::read_to_string(crate::root().join(render)).expect("source");
    let calls = ["json_key(out, \"", "json_text(out, \"", "json_number(out, \"", "json_seconds(out, \""];
    let written =
        calls.iter().flat_map(|call| render.split(call).skip(1)).filter_map(|rest| rest.split('"').next());
    let written: BTreeSet<&str> = written.chain(["time"]).collect();
    let page = page("docs/guide/logs-and-metrics.md");
    assert_eq!(first_column(&page, "| field | what |\n|---|---|"), written);
}

#[test]
fn every_metric_that_a_page_names_is_exported() {
    let tree = Tree::tracked(&crate::root()).expect("a checkout");
    let known: BTreeSet<&str> = expose::ALL.iter().map(|metric| metric.name).collect();
    let mut unknown = Vec::new();
    let pages = tree.with_extension(&["md"]).filter(|(path, _)| {
        *path == "README.md" || path.starts_with("docs/guide/") || path.starts_with("docs/threat")
    });
    for (path, page) in pages {
        let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        for name in page.split(|character| !is_of_name(character)).filter(|word| word.starts_with("weir_")) {
            let plain =
                ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            // Crates have names of this form too.
            let is_crate = page.contains(&format!("{name}::"));
            if !is_crate && !known.contains(name) && !known.contains(plain) {
                unknown.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}
