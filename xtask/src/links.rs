//! Checks links between the pages of this repository: the file and the heading must exist.

use crate::fences::prose;
use crate::tree::{Finding, Tree};

/// Finds relative links in Markdown whose file or heading does not exist.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["md"]) {
        for (line, target) in
            prose(text).flat_map(|(number, line)| targets(line).map(move |target| (number, target)))
        {
            if let Some(problem) = problem(tree, path, text, target) {
                findings.push(Finding::at(path, line, problem));
            }
        }
    }
    findings
}

/// The mistake in a link to `target` in the page `path`, if any.
fn problem(tree: &Tree, path: &str, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) =
        target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let (resolved, page) = if file.is_empty() {
        (path.to_owned(), Some(text))
    } else {
        let Some(resolved) = resolve(path, file) else {
            return Some(format!("link to `{target}` leads out of the repository"));
        };
        if !tree.holds(&resolved) {
            return Some(format!("link to `{target}`: no tracked file or directory `{resolved}`"));
        }
        let page = tree.text(&resolved);
        (resolved, page)
    };
    let heading = heading?;
    let is_page = resolved.ends_with(".md");
    let there = page.is_some_and(|page| anchors(page).any(|anchor| anchor == heading));
    (is_page && !there).then(|| format!("link to `{target}`: {resolved} has no heading `#{heading}`"))
}

/// The targets of the inline links of a line; text in backticks is not a link.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let in_code = |at: usize| line[..at].matches('`').count() % 2 == 1;
    line.match_indices("](").filter(move |(at, _)| !in_code(*at)).filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        let target = rest[..rest.find(')')?].trim();
        // A title may follow the target.
        target
            .split(' ')
            .next()
            .map(|target| target.trim_matches(['<', '>']))
            .filter(|target| !target.is_empty())
    })
}

/// The path that `target` means in the page `page`; `None` if it climbs above the root.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    if let Some(absolute) = target.strip_prefix('/') {
        return Some(absolute.trim_end_matches('/').to_owned());
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchors of a page's headings, as Git forges make them: lower case, punctuation dropped, spaces to
/// hyphens.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    prose(page).filter_map(|(_, line)| {
        let text = line.trim_start_matches('#');
        let depth = line.len() - text.len();
        let is_heading = (1..=6).contains(&depth) && text.starts_with(' ');
        is_heading.then(|| {
            let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("README.md", "# Weir\n## What it replaces, and what it doesn't (yet)\n"),
            ("docs/guide/reload.md", page),
            ("docs/guide/limits.md", "# Limits\n"),
            ("Makefile", ""),
        ]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_to_files_directories_headings_and_other_sites_pass() {
        let page = "# Reload\n[a](limits.md) [b](../../README.md#what-it-replaces-and-what-it-doesnt-yet \"title\")\n\
                    [c](#reload) [d](..) [e](https://example.com/x.md) [f](../../Makefile#L3) [g](/docs/guide/)\n";
        assert_eq!(found(page), [""; 0]);
    }

    #[test]
    fn a_link_to_a_missing_file_is_found_on_its_line() {
        let found = found("one\n\nsee [limits](limit.md) and [more](../internals/x.md)\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            found[0],
            "docs/guide/reload.md:3: link to `limit.md`: no tracked file or directory `docs/guide/limit.md`"
        );
    }

    #[test]
    fn a_link_to_a_missing_heading_is_found() {
        let found = found("[a](limits.md#sizes) [b](#nowhere)\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("docs/guide/limits.md has no heading `#sizes`"), "{found:?}");
    }

    #[test]
    fn a_link_out_of_the_repository_is_found() {
        assert!(found("[a](../../../secret.md)\n")[0].ends_with("leads out of the repository"));
    }

    #[test]
    fn code_is_not_searched_for_links() {
        assert_eq!(found("`array[0](x)` and\n```sh\nx[1](y)\n```\n"), [""; 0]);
    }
}
