//! The generated pages in `docs/reference`, and the parts of hand-written pages that a table of the code decides.
//!
//! `cargo xtask docs` runs these tests with `WEIR_BLESS` set: then a stale page is written instead of failing.

use std::collections::BTreeSet;

use weir_stats::table::End;

/// Every generated page: its path and its text.
fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("docs/reference/admin-api.md", weir_control::admin::endpoints::reference_page()),
        ("docs/reference/config.md", weir_config::reference::page()),
        ("docs/reference/metrics.md", weir_stats::expose::reference_page()),
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
