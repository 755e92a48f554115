//! The directives of an nginx.conf, with the blocks of those that have one.

use std::rc::Rc;

use super::lexer::{NginxToken, mistake, words};
use crate::NotConverted;

/// Deepest nesting of blocks that is read: nginx.confs have some six, and each takes stack here.
const DEEPEST: usize = 64;

/// Most directives in all files together.
const MOST: usize = 500_000;

/// A directive.
#[derive(Debug)]
pub struct NginxDirective {
    /// Its number over all files, in the order in which they are read.
    pub id: usize,
    /// The included file; empty for the main one.
    pub file: Rc<str>,
    /// Line, from 1.
    pub line: usize,
    /// First word.
    pub name: String,
    /// The other words.
    pub words: Vec<String>,
    /// What its block has.
    pub block: Option<Vec<NginxDirective>>,
}

impl NginxDirective {
    /// The word at a place, from 0; empty if there is none.
    pub fn word(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// Its block; empty if it has none.
    pub fn inner(&self) -> &[NginxDirective] {
        self.block.as_deref().unwrap_or_default()
    }

    /// How it is named in verdicts: a block with the words that tell it from others.
    pub fn shown(&self) -> String {
        let words = self.words.join(" ");
        match (self.block.is_some(), words.is_empty()) {
            (true, false) => format!("{} {}", self.name, shortened(&words)),
            _ => self.name.clone(),
        }
    }
}

/// A text of at most some 60 characters.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Where the next directive gets its number from.
#[derive(Debug, Default)]
pub struct DirectiveNumbers(usize);

impl DirectiveNumbers {
    fn next(&mut self) -> usize {
        self.0 += 1;
        self.0 - 1
    }

    /// How many were given.
    pub fn count(&self) -> usize {
        self.0
    }
}

/// Reads the directives of one file. `file` is empty for the main one.
///
/// # Errors
/// It is no file of nginx; the message has the line.
pub fn parse(
    file: &str,
    text: &str,
    numbers: &mut DirectiveNumbers,
) -> Result<Vec<NginxDirective>, NotConverted> {
    let tokens = words(file, text)?;
    let last = text.lines().count().max(1);
    let mut parser = Parser { tokens: tokens.into_iter(), file: file.into(), last, numbers };
    parser.block(None, 0)
}

struct Parser<'n> {
    tokens: std::vec::IntoIter<(NginxToken, usize)>,
    file: Rc<str>,
    last: usize,
    numbers: &'n mut DirectiveNumbers,
}

impl Parser<'_> {
    fn error<T>(&self, line: usize, what: impl std::fmt::Display) -> Result<T, NotConverted> {
        Err(mistake(&self.file, line, what))
    }

    /// The directives up to the end of a block, which the directive at line `of` has begun, or of the file.
    fn block(
        &mut self,
        of: Option<(&str, usize)>,
        depth: usize,
    ) -> Result<Vec<NginxDirective>, NotConverted> {
        if depth > DEEPEST {
            return self
                .error(of.map_or(1, |(_, line)| line), "blocks are nested too deep; expected at most 64");
        }
        let mut directives = Vec::new();
        loop {
            match self.tokens.next() {
                None => match of {
                    None => return Ok(directives),
                    Some((name, line)) => {
                        let what = format!("the block of `{name}` (line {line}) has no end; expected `}}`");
                        return self.error(self.last, what);
                    }
                },
                Some((NginxToken::Close, line)) => match of {
                    Some(_) => return Ok(directives),
                    None => return self.error(line, "unexpected `}`; no block is open here"),
                },
                Some((NginxToken::Semicolon, line)) => {
                    return self.error(line, "unexpected `;`; expected a directive");
                }
                Some((NginxToken::Open, line)) => {
                    return self.error(line, "unexpected `{`; expected a directive");
                }
                Some((NginxToken::Word(name), line)) => {
                    directives.push(self.directive(name, line, depth)?);
                    if self.numbers.count() > MOST {
                        return self.error(line, format!("more than {MOST} directives"));
                    }
                }
            }
        }
    }

    fn directive(&mut self, name: String, line: usize, depth: usize) -> Result<NginxDirective, NotConverted> {
        let id = self.numbers.next();
        let mut words = Vec::new();
        loop {
            let block = match self.tokens.next() {
                Some((NginxToken::Word(word), _)) => {
                    words.push(word);
                    continue;
                }
                Some((NginxToken::Semicolon, _)) => None,
                Some((NginxToken::Open, _)) if name.ends_with("_by_lua_block") => {
                    self.skip(&name, line)?;
                    Some(Vec::new())
                }
                Some((NginxToken::Open, _)) => Some(self.block(Some((name.as_str(), line)), depth + 1)?),
                Some((NginxToken::Close, at)) => {
                    return self.error(at, format!("unexpected `}}`; `{name}` (line {line}) has no `;`"));
                }
                None => {
                    return self.error(self.last, format!("`{name}` (line {line}) has no end; expected `;`"));
                }
            };
            return Ok(NginxDirective { id, file: self.file.clone(), line, name, words, block });
        }
    }

    /// Skips a program, in which `;` and words mean nothing to nginx.
    fn skip(&mut self, name: &str, line: usize) -> Result<(), NotConverted> {
        let mut open = 1;
        while open > 0 {
            match self.tokens.next() {
                Some((NginxToken::Open, _)) => open += 1,
                Some((NginxToken::Close, _)) => open -= 1,
                Some(_) => {}
                None => {
                    return self.error(self.last, format!("the block of `{name}` (line {line}) has no end"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        parse("", text, &mut DirectiveNumbers::default()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_nginx_conf_is_refused_with_one_error_and_its_line() {
        for (text, said) in [
            ("http {\n  server {\n}\n", "line 3: the block of `http` (line 1) has no end; expected `}`"),
            ("a;\n}\n", "line 2: unexpected `}`; no block is open here"),
            ("http {\n  a b\n}\n", "line 3: unexpected `}`; `a` (line 2) has no `;`"),
            ("a b", "line 1: `a` (line 1) has no end; expected `;`"),
            (";", "line 1: unexpected `;`; expected a directive"),
        ] {
            assert_eq!(error_of(text), said, "{text}");
        }
        assert!(error_of(&"a {".repeat(100)).contains("nested too deep"));
    }
}
