//! The words of an nginx.conf, as nginx itself separates them (`ngx_conf_read_token`).

use std::iter::Peekable;
use std::str::Chars;

use crate::NotConverted;

/// A word or what ends one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NginxToken {
    /// A word, without the quotes around it and with its escapes undone.
    Word(String),
    /// `;`
    Semicolon,
    /// `{`
    Open,
    /// `}`
    Close,
}

/// Splits a file into words; each with its line, from 1.
///
/// # Errors
/// A quote has no end, or a word follows a quote without a space.
pub fn words(file: &str, text: &str) -> Result<Vec<(NginxToken, usize)>, NotConverted> {
    let mut lexer = Lexer { chars: text.chars().peekable(), line: 1, file };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

/// An error at a line of a file.
pub fn mistake(file: &str, line: usize, what: impl std::fmt::Display) -> NotConverted {
    let place = if file.is_empty() { format!("line {line}") } else { format!("{file}:{line}") };
    NotConverted { message: format!("{place}: {what}"), hint: String::new() }
}

struct Lexer<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
    file: &'t str,
}

impl Lexer<'_> {
    fn take(&mut self) -> Option<char> {
        let taken = self.chars.next();
        if taken == Some('\n') {
            self.line += 1;
        }
        taken
    }

    fn next(&mut self) -> Result<Option<(NginxToken, usize)>, NotConverted> {
        loop {
            let Some(c) = self.chars.peek().copied() else { return Ok(None) };
            let line = self.line;
            let token = match c {
                ' ' | '\t' | '\r' | '\n' | '\u{feff}' => {
                    self.take();
                    continue;
                }
                '#' => {
                    while self.chars.peek().is_some_and(|c| *c != '\n') {
                        self.take();
                    }
                    continue;
                }
                ';' => NginxToken::Semicolon,
                '{' => NginxToken::Open,
                '}' => NginxToken::Close,
                '"' | '\'' => {
                    self.take();
                    return Ok(Some((NginxToken::Word(self.quoted(c, line)?), line)));
                }
                _ => return Ok(Some((NginxToken::Word(self.bare()), line))),
            };
            self.take();
            return Ok(Some((token, line)));
        }
    }

    /// The rest of a quoted word. After it there must be a space, `;`, `{` or `)`.
    fn quoted(&mut self, quote: char, begun: usize) -> Result<String, NotConverted> {
        let mut word = String::new();
        loop {
            match self.take() {
                None => {
                    let what = format!("the {quote} that begins here has no end; expected another {quote}");
                    return Err(mistake(self.file, begun, what));
                }
                Some('\\') => self.escape(&mut word),
                Some(c) if c == quote => break,
                Some(c) => word.push(c),
            }
        }
        match self.chars.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | ';' | '{' | ')') => Ok(word),
            Some(c) => {
                let what = format!("unexpected {c:?} behind a quote; expected a space, `;` or `{{`");
                Err(mistake(self.file, self.line, what))
            }
        }
    }

    fn bare(&mut self) -> String {
        let mut word = String::new();
        let mut is_variable = false;
        while let Some(c) = self.chars.peek().copied() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                '{' if !is_variable => break,
                '\\' => {
                    self.take();
                    self.escape(&mut word);
                    is_variable = false;
                }
                _ => {
                    self.take();
                    is_variable = c == '$';
                    word.push(c);
                }
            }
        }
        word
    }

    /// What stands behind a backslash: nginx undoes the escapes of quotes, of a backslash, and of `t`, `r`,
    /// `n`; any other keeps its backslash.
    fn escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let tokens = words("", text).unwrap_or_else(|error| panic!("{error}"));
        let show = |(token, line): (NginxToken, usize)| match token {
            NginxToken::Word(word) => format!("{line}:{word}"),
            NginxToken::Semicolon => ";".to_owned(),
            NginxToken::Open => "{".to_owned(),
            NginxToken::Close => "}".to_owned(),
        };
        tokens.into_iter().map(show).collect()
    }

    #[test]
    fn words_are_separated_as_nginx_does() {
        assert_eq!(
            shown("a b;# c;\nlocation ~ \\.php$ { return 200 \"a;{}'\\\"\\n\"; }"),
            [
                "1:a",
                "1:b",
                ";",
                "2:location",
                "2:~",
                "2:\\.php$",
                "{",
                "2:return",
                "2:200",
                "2:a;{}'\"\n",
                ";",
                "}"
            ]
        );
        assert_eq!(
            shown("x ${a}b$c{"),
            ["1:x", "1:${a}b$c", "{"],
            "a brace behind a dollar is of the variable"
        );
        assert_eq!(shown("x a#b 'c d';"), ["1:x", "1:a#b", "1:c d", ";"]);
        assert_eq!(shown("if ($a = \"\") {"), ["1:if", "1:($a", "1:=", "1:", "1:)", "{"]);
    }

    #[test]
    fn a_quote_without_an_end_is_told_with_its_line() {
        let error = words("a.conf", "x;\ny \"abc;\n}").unwrap_err();
        assert!(error.message.starts_with("a.conf:2: the \" that begins here has no end"), "{error}");
        let error = words("", "x \"a\"b;").unwrap_err();
        assert_eq!(error.message, "line 1: unexpected 'b' behind a quote; expected a space, `;` or `{`");
    }
}
