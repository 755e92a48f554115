//! Recognises another statement that begins after the one into which the value is inserted.

use crate::sqli::facts::Ending;
use crate::sqli::grammar::{Reader, Stop};
use crate::sqli::token::{Token, Tokens};
use crate::sqli::words::{Verb, Word};

impl<'v> Reader<'v, '_> {
    /// After `;`: nothing, a comment, or another statement.
    pub(crate) fn semicolon(&mut self) -> Result<(), Stop> {
        if !self.facts.semicolon {
            self.facts.before_semicolon_count = self.facts.tokens_count - 1;
        }
        self.facts.semicolon = true;
        let token = self.tokens.next_token();
        let ending = match token {
            Token::Semicolon => return self.semicolon(),
            Token::End => Ending::Semicolon,
            Token::Comment { rest, mark } => Ending::Comment { rest, mark, unfinished: false },
            Token::Word(Word::Select, _) => {
                self.facts.separated = true;
                self.begin_select(true);
                return Ok(());
            }
            Token::Open => {
                self.push_group();
                return Ok(());
            }
            Token::Word(Word::Verb(verb), text) if begins_statement(&self.tokens, verb, text, true) => {
                self.facts.stacked = true;
                self.facts.separated = true;
                Ending::Semicolon
            }
            Token::Word(Word::Verb(Verb::If), _) => {
                self.begin_condition();
                return Ok(());
            }
            // SQL Server's and Access's `; iif(1=1,1,1/0)`.
            Token::Word(Word::Function, text)
                if text.eq_ignore_ascii_case(b"iif") && self.tokens.opens_next() =>
            {
                self.facts.stacked = true;
                self.facts.separated = true;
                Ending::Semicolon
            }
            _ => Ending::Broken,
        };
        self.facts.ending = ending;
        Err(Stop)
    }
}

/// Whether `verb` begins a statement; `tokens` is what follows. Without a `;` before it, which only SQL
/// Server accepts, more must follow.
pub(super) fn begins_statement(tokens: &Tokens<'_>, verb: Verb, text: &[u8], separated: bool) -> bool {
    let mut tokens = tokens.clone();
    match verb {
        Verb::Define => defines(&mut tokens, separated),
        Verb::Insert => inserts(&mut tokens, separated),
        Verb::Update => updates(&mut tokens),
        Verb::Delete => deletes(&mut tokens, separated) && names(&mut tokens),
        Verb::Execute => executes(&mut tokens),
        Verb::Declare => match tokens.next_token() {
            Token::Variable { .. } => true,
            Token::Word(..) => is_word(&mut tokens, &[b"cursor"]),
            _ => false,
        },
        Verb::Begin => begins(&mut tokens, separated),
        Verb::Goto => {
            names(&mut tokens) && is(&mut tokens, |word| matches!(word, Word::Verb(_) | Word::Select))
        }
        Verb::Alone => {
            let next = tokens.next_token();
            let is_over = matches!(next, Token::End | Token::Comment { .. } | Token::Semicolon);
            is_over && (separated || text.eq_ignore_ascii_case(b"shutdown"))
                || matches!(next, Token::Word(_, word) if word.eq_ignore_ascii_case(b"with"))
        }
        Verb::WaitFor => {
            is_word(&mut tokens, &[b"delay", b"time"])
                && matches!(tokens.next_token(), Token::Text { .. } | Token::Variable { .. })
        }
        Verb::If => conditional(&mut tokens),
        Verb::Other => other(text, &mut tokens, separated),
    }
}

fn is(tokens: &mut Tokens<'_>, wanted: impl Fn(Word) -> bool) -> bool {
    matches!(tokens.next_token(), Token::Word(word, _) if wanted(word))
}

fn is_word(tokens: &mut Tokens<'_>, wanted: &[&[u8]]) -> bool {
    matches!(tokens.next_token(), Token::Word(_, word) if wanted.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

fn names(tokens: &mut Tokens<'_>) -> bool {
    let token = tokens.next_token();
    matches!(token, Token::Word(..) | Token::Name | Token::Text { closed: true, .. } | Token::Variable { .. })
}

/// `into name`; after `;` also `name (… values (…`.
fn inserts(tokens: &mut Tokens<'_>, separated: bool) -> bool {
    match tokens.next_token() {
        Token::Word(Word::Into, _) => names(tokens),
        Token::Word(Word::Name, _) if separated && tokens.peek() == Token::Open => loop {
            match tokens.next_token() {
                Token::Word(Word::Values, _) => return tokens.peek() == Token::Open,
                Token::Open | Token::Close | Token::Comma | Token::Name | Token::Word(..) => {}
                _ => return false,
            }
        },
        _ => false,
    }
}

/// `create or replace`, `drop table name`; after `;` also `drop name --`.
fn defines(tokens: &mut Tokens<'_>, separated: bool) -> bool {
    match tokens.next_token() {
        Token::Word(Word::Object | Word::Telling | Word::Procedure, _) => names(tokens),
        Token::Word(Word::Logic, _) => is_word(tokens, &[b"replace"]),
        Token::Word(Word::Prefix | Word::Quantifier, _) => is(tokens, |word| word == Word::Object),
        Token::Word(_, word) => {
            let known: [&[u8]; 4] = [b"session", b"system", b"proc", b"global"];
            match known.iter().any(|known| known.eq_ignore_ascii_case(word)) {
                true => names(tokens),
                false => separated && matches!(tokens.peek(), Token::Comment { .. }),
            }
        }
        _ => false,
    }
}

/// `name set`, with a name of several parts.
fn updates(tokens: &mut Tokens<'_>) -> bool {
    loop {
        if !names(tokens) {
            return false;
        }
        match tokens.next_token() {
            Token::Dot => {}
            Token::Word(_, word) => {
                let is_set = word.eq_ignore_ascii_case(b"set");
                return is_set && names(tokens) && matches!(tokens.next_token(), Token::Compare | Token::Dot);
            }
            _ => return false,
        }
    }
}

/// Something that is clearly a procedure: its name has several parts, or is in parentheses, in a variable, or
/// well-known.
fn executes(tokens: &mut Tokens<'_>) -> bool {
    match tokens.next_token() {
        Token::Word(Word::Hostile, _)
        | Token::Open
        | Token::Variable { .. }
        | Token::Text { .. }
        | Token::Name => true,
        Token::Word(_, text) => {
            text.len() > 3 && text.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case(b"sp_"))
                || matches!(tokens.peek(), Token::Dot | Token::Open)
                || (text.eq_ignore_ascii_case(b"as") && is_word(tokens, &[b"login", b"user"]))
        }
        _ => false,
    }
}

/// A statement, `try`, `transaction`; after `;` also a procedure of a package: `begin user_lock.sleep(5);
/// end`.
fn begins(tokens: &mut Tokens<'_>, separated: bool) -> bool {
    match tokens.next_token() {
        Token::Word(Word::Verb(_) | Word::Select, _) => true,
        Token::Word(_, word) => {
            let known: [&[u8]; 3] = [b"try", b"tran", b"transaction"];
            known.iter().any(|known| known.eq_ignore_ascii_case(word))
                || (separated
                    && tokens.next_token() == Token::Dot
                    && names(tokens)
                    && tokens.peek() == Token::Open)
        }
        _ => false,
    }
}

/// `if (…) statement`, if a statement begins after the parentheses. `if exists (select …`.
fn conditional(tokens: &mut Tokens<'_>) -> bool {
    let mut depth = 0_u32;
    match tokens.peek() {
        Token::Open => {}
        Token::Word(Word::Prefix | Word::Not, _) => {
            while let Token::Word(Word::Prefix | Word::Not, _) = tokens.peek() {
                tokens.next_token();
            }
            return tokens.next_token() == Token::Open && is(tokens, |word| word == Word::Select);
        }
        _ => return false,
    }
    loop {
        match tokens.next_token() {
            Token::Open => depth += 1,
            Token::Close if depth <= 1 => break,
            Token::Close => depth -= 1,
            Token::End | Token::Comment { .. } | Token::Garbage => return false,
            _ => {}
        }
    }
    match tokens.next_token() {
        Token::Word(Word::Select, _) => true,
        Token::Word(Word::Verb(verb), text) => begins_statement(tokens, verb, text, false),
        _ => false,
    }
}

/// `from`, possibly after `low_priority`.
fn deletes(tokens: &mut Tokens<'_>, separated: bool) -> bool {
    match tokens.next_token() {
        Token::Word(Word::From, _) => true,
        Token::Word(Word::Name, _) if separated => is(tokens, |word| word == Word::From),
        _ => false,
    }
}

fn other(verb: &[u8], tokens: &mut Tokens<'_>, separated: bool) -> bool {
    let verb = verb.to_ascii_lowercase();
    match verb.as_slice() {
        b"backup" | b"restore" => is_word(tokens, &[b"database", b"log"]),
        b"attach" => is_word(tokens, &[b"database"]),
        b"rename" => is_word(tokens, &[b"table"]),
        b"load" => is_word(tokens, &[b"data", b"xml"]),
        b"bulk" => is_word(tokens, &[b"insert"]),
        b"handler" => names(tokens) && is_word(tokens, &[b"open", b"read"]),
        b"show" => is_word(
            tokens,
            &[b"tables", b"databases", b"columns", b"grants", b"variables", b"processlist", b"schemas"],
        ),
        b"prepare" => names(tokens) && is(tokens, |word| word == Word::From),
        b"copy" => tokens.peek() == Token::Open || (names(tokens) && is_word(tokens, &[b"from", b"to"])),
        b"do" | b"openrowset" | b"raiserror" => {
            tokens.peek() == Token::Open
                || (is(tokens, |word| word == Word::Delay) && tokens.peek() == Token::Open)
        }
        b"grant" | b"revoke" => is_word(
            tokens,
            &[
                b"all",
                b"select",
                b"insert",
                b"update",
                b"delete",
                b"connect",
                b"resource",
                b"dba",
                b"execute",
            ],
        ),
        b"kill" => tokens.next_token() == Token::Number,
        b"use" => separated && names(tokens) && tokens.next_token() == Token::Semicolon,
        b"print" => separated && matches!(tokens.next_token(), Token::Text { .. } | Token::Variable { .. }),
        _ => false,
    }
}
