//! Whole sites of the guide, with configs as they stand on its pages, before other people's programs.

pub(crate) mod haproxy;
mod nginx;

use std::process::Command;

use weir_tests::dialogue::{
    Authority, Gunicorn, PATIENCE, Program, client_program, free_address, run_tool, tool,
};

/// The first block of a page in this language.
fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let (_, block) = page.split_once(&format!("```{language}\n")).expect("a block");
    block.split_once("\n```").expect("it ends").0
}

/// `text` with each of these in place of what it has, which it must have.
fn replaced(text: &str, pairs: &[(&str, String)]) -> String {
    pairs.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the page has {from}");
        text.replace(from, to)
    })
}

/// What curl printed of one exchange.
struct Answer(String);

impl Answer {
    fn status(&self) -> &str {
        self.0.split(' ').nth(1).unwrap_or_default()
    }

    /// Each line of a field, without regard to case.
    fn all(&self, name: &str) -> Vec<&str> {
        let head = self.0.split("\r\n\r\n").next().unwrap_or_default();
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    fn one(&self, name: &str) -> &str {
        self.all(name).first().copied().unwrap_or_default()
    }

    fn says(&self, what: &str) {
        assert!(self.0.contains(what), "{what}\n{}", self.0);
    }
}
