//! Comments must keep to the width that rustfmt gives the code. rustfmt does not wrap them, and text beyond
//! the edge goes unread.

use crate::tree::{Finding, Tree};

/// The file that sets the width.
const FORMAT: &str = "rustfmt.toml";

/// Comment lines that are too wide. Code in comments, citations, and text without a space to break at may be.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(width) = tree.text(FORMAT).and_then(width) else { return Vec::new() };
    let mut findings = Vec::new();
    let sources = tree.with_extension(&["rs"]);
    for (path, text) in sources {
        let mut is_code = false;
        for (index, line) in text.lines().enumerate() {
            let Some(comment) = comment(line) else {
                is_code = false;
                continue;
            };
            if comment.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            let length = line.chars().count();
            if !is_code && length > width && comment.trim().contains(' ') {
                let message = format!("a comment of {length} characters, at most {width} are expected");
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// The value of `max_width`.
fn width(format: &str) -> Option<usize> {
    let line = format.lines().find(|line| line.starts_with("max_width"))?;
    line.split('=').nth(1)?.trim().parse().ok()
}

/// The text of a comment line that is not a citation of a standard.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    (!text.starts_with(['=', '#'])).then(|| text.trim_start_matches(['/', '!']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_is_wider_than_the_code_is_found_on_its_line() {
        let wide = "a ".repeat(20);
        let text = format!(
            "//! short\nfn f() {{\n    // {wide}\n    //# {wide}\n    let x = 1; // {wide}\n}}\n/// ```\n/// {wide}\n/// ```\n\
             /// {}\n/// {wide}\n",
            "a".repeat(60)
        );
        let files = [("rustfmt.toml", "max_width = 30\n"), ("crates/a/src/lib.rs", text.as_str())];
        let found = check(&Tree::of(&files));
        let lines: Vec<_> = found.iter().map(|finding| (finding.file.as_str(), finding.line)).collect();
        assert_eq!(lines, [("crates/a/src/lib.rs", 3), ("crates/a/src/lib.rs", 11)]);
        assert_eq!(found[0].message, "a comment of 47 characters, at most 30 are expected");
    }
}
