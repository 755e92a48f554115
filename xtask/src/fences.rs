//! Fenced blocks of Markdown: their places, labels and contents.

/// One fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Fence<'a> {
    /// What follows the opening backticks, trimmed: `toml`, `toml fragment`, or nothing.
    pub info: &'a str,
    /// Line of the opening backticks, from 1; the block's first line is the next one.
    pub line: usize,
    /// The lines between the fences, each with its line end; for an indented fence without that indentation.
    pub text: String,
}

/// The fenced blocks of a Markdown text, in order. A fence that is never closed reaches to the end.
pub fn fences(markdown: &str) -> Vec<Fence<'_>> {
    let mut found = Vec::new();
    let mut open: Option<(Fence<'_>, &str, usize)> = None;
    for (index, line) in markdown.lines().enumerate() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some((fence, ticks, indent)) = &mut open {
            if bare.starts_with(*ticks) && bare.trim_end().chars().all(|c| c == '`') {
                found.extend(open.take().map(|(fence, ..)| fence));
            } else {
                fence.text.push_str(
                    line.get(*indent..)
                        .filter(|_| line.as_bytes()[..*indent].trim_ascii().is_empty())
                        .unwrap_or(line),
                );
                fence.text.push('\n');
            }
        } else if bare.starts_with("```") {
            let ticks = &bare[..bare.len() - bare.trim_start_matches('`').len()];
            let info = bare[ticks.len()..].trim();
            open = Some((Fence { info, line: index + 1, text: String::new() }, ticks, indent));
        }
    }
    found.extend(open.map(|(fence, ..)| fence));
    found
}

/// The lines of a Markdown text outside fenced blocks, each with its number from 1.
pub fn prose(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let inside: Vec<std::ops::Range<usize>> = fences(markdown)
        .iter()
        .map(|fence| fence.line..fence.line + fence.text.lines().count() + 2)
        .collect();
    markdown
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(move |(number, _)| !inside.iter().any(|range| range.contains(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_says_what_it_holds_and_where_it_begins() {
        let found = fences("text\n\n```toml fragment\na = 1\n\nb = 2\n```\nmore\n```\nplain\n```\n");
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].info, found[0].line, found[0].text.as_str()),
            ("toml fragment", 3, "a = 1\n\nb = 2\n")
        );
        assert_eq!((found[1].info, found[1].line, found[1].text.as_str()), ("", 9, "plain\n"));
    }

    #[test]
    fn a_longer_fence_holds_a_shorter_one() {
        let found = fences("````\n```toml\na = 1\n```\n````\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "```toml\na = 1\n```\n");
    }

    #[test]
    fn an_indented_fence_loses_its_indentation() {
        assert_eq!(fences("- point\n  ```sh\n  one\n    two\n\n  ```\n")[0].text, "one\n  two\n\n");
    }

    #[test]
    fn an_open_fence_reaches_to_the_end() {
        assert_eq!(fences("```\none\ntwo")[0].text, "one\ntwo\n");
    }

    #[test]
    fn prose_is_what_stands_outside_fences() {
        let lines: Vec<_> = prose("one\n```\ntwo\n```\nthree").collect();
        assert_eq!(lines, [(1, "one"), (5, "three")]);
    }
}
