//! Splits a value into SQL tokens: everything that any of MySQL, PostgreSQL, SQL Server, Oracle and SQLite
//! accepts as a token.
//!
//! A value is read once from beginning to end; nothing is copied.

use crate::sqli::words::{self, Word};

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'v> {
    /// The end of the value.
    End,
    /// A number in any notation.
    Number,
    /// A quoted string.
    Text {
        /// The text between the quotes.
        content: &'v [u8],
        /// `'` or `"`.
        quote: u8,
        /// Whether its closing quote is there too.
        closed: bool,
    },
    /// A word, and its role.
    Word(Word, &'v [u8]),
    /// A name in backticks or brackets.
    Name,
    /// `@name`, `@@name`.
    Variable {
        /// Whether it reveals something about the server.
        of_server: bool,
    },
    /// `+ - * / % & | ^ <<` and others.
    Arithmetic,
    /// `+`, `-`, `~`, `!`: may also precede an operand.
    Sign,
    /// `*`: also stands for all columns.
    Star,
    /// `= < > <=> !=` and others.
    Compare,
    /// `&&`.
    Logic,
    /// `||`: joins conditions in MySQL, strings elsewhere.
    Pipes,
    /// `::`.
    Cast,
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `,`.
    Comma,
    /// `.`.
    Dot,
    /// `;`.
    Semicolon,
    /// A comment up to the end of the value.
    Comment {
        /// The text after its mark.
        rest: &'v [u8],
        /// `-`, `#`, `/` or NUL.
        mark: u8,
    },
    /// A byte that never occurs in SQL.
    Garbage,
}

/// A position within a value.
#[derive(Clone)]
pub struct Tokens<'v> {
    value: &'v [u8],
    at: usize,
    /// Comments between tokens (count).
    pub comments_count: u32,
    /// MySQL's executable comments `/*! … */`, whose content is read (count).
    pub hidden_count: u32,
    /// Hexadecimal numbers (count).
    pub hex_count: u32,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || (byte >= 0x80 && byte != 0xa0)
}

impl<'v> Tokens<'v> {
    /// The tokens of `value` from `at` on.
    pub fn new(value: &'v [u8], at: usize) -> Tokens<'v> {
        Tokens { value, at, comments_count: 0, hidden_count: 0, hex_count: 0 }
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.value.get(self.at + ahead).copied()
    }

    fn rest(&self, from: usize) -> &'v [u8] {
        self.value.get(from..).unwrap_or_default()
    }

    fn span(&self, from: usize) -> &'v [u8] {
        self.value.get(from..self.at).unwrap_or_default()
    }

    /// The last byte that was consumed.
    pub fn last_byte(&self) -> Option<u8> {
        self.at.checked_sub(1).and_then(|at| self.value.get(at)).copied()
    }

    /// Whether `(` comes next, ignoring spaces.
    pub fn opens_next(&self) -> bool {
        self.clone().next_token() == Token::Open
    }

    /// The next token, without consuming it.
    pub fn peek(&self) -> Token<'v> {
        self.clone().next_token()
    }

    /// Skips spaces and comments that end within the value. `Some` is a comment that does not.
    fn skip(&mut self) -> Option<Token<'v>> {
        loop {
            match (self.byte(0)?, self.byte(1)) {
                (byte, _) if is_space(byte) => self.at += 1,
                // A non-breaking space, in Latin-1 or in UTF-8.
                (0xa0, _) => self.at += 1,
                (0xc2, Some(0xa0)) => self.at += 2,
                (b'-', Some(b'-')) => {
                    if let Some(comment) = self.line_comment(2, b'-') {
                        return Some(comment);
                    }
                }
                (b'#', _) => {
                    if let Some(comment) = self.line_comment(1, b'#') {
                        return Some(comment);
                    }
                }
                (0, None) => return Some(Token::Comment { rest: self.rest(self.at + 1), mark: 0 }),
                (0, _) => self.at += 1,
                (b'/', Some(b'*')) if self.byte(2) == Some(b'!') => {
                    self.at += 3;
                    let digits =
                        self.rest(self.at).iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
                    self.at += digits;
                    self.hidden_count += 1;
                }
                (b'*', Some(b'/')) if self.hidden_count + self.comments_count > 0 => self.at += 2,
                (b'/', Some(b'*')) => {
                    let rest = self.rest(self.at + 2);
                    match rest.windows(2).position(|pair| pair == b"*/") {
                        Some(end) => {
                            self.at += end + 4;
                            self.comments_count += 1;
                        }
                        None => return Some(Token::Comment { rest, mark: b'/' }),
                    }
                }
                _ => return None,
            }
        }
    }

    fn line_comment(&mut self, mark_bytes: usize, mark: u8) -> Option<Token<'v>> {
        let rest = self.rest(self.at + mark_bytes);
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            return Some(Token::Comment { rest, mark });
        };
        if rest.get(end..)?.iter().all(|&byte| is_space(byte)) {
            return Some(Token::Comment { rest: rest.get(..end)?, mark });
        }
        self.at += mark_bytes + end + 1;
        self.comments_count += 1;
        None
    }

    /// Consumes the next token. Looks at each byte a bounded number of times.
    pub fn next_token(&mut self) -> Token<'v> {
        if let Some(comment) = self.skip() {
            self.at = self.value.len();
            return comment;
        }
        let Some(byte) = self.byte(0) else { return Token::End };
        match byte {
            b'0'..=b'9' => self.number(),
            b'.' if self.byte(1).is_some_and(|next| next.is_ascii_digit()) => self.number(),
            b'\'' | b'"' => {
                self.at += 1;
                self.text(byte)
            }
            b'`' => self.delimited(b'`'),
            b'[' => self.delimited(b']'),
            b'@' if self.byte(1) == Some(b'>') => self.take(2, Token::Compare),
            b'@' => self.variable(),
            // A placeholder of a prepared statement.
            b'?' => self.take(1, Token::Variable { of_server: false }),
            b'$' if self.byte(1) == Some(b'$') => self.dollars(),
            b'\\' if self.byte(1) == Some(b'N') => self.take(2, Token::Word(Word::Literal, b"null")),
            _ if is_name(byte) => self.word(),
            _ => self.operator(byte),
        }
    }

    fn take(&mut self, count: usize, token: Token<'v>) -> Token<'v> {
        self.at += count;
        token
    }

    fn operator(&mut self, byte: u8) -> Token<'v> {
        let (second, third) = (self.byte(1).unwrap_or(0), self.byte(2).unwrap_or(0));
        match (byte, second, third) {
            (b'<', b'=', b'>') => self.take(3, Token::Compare),
            (b'<', b'@', _) => self.take(2, Token::Compare),
            (b'!', b'~', b'*') => self.take(3, Token::Compare),
            (b'<', b'<', _) | (b'>', b'>', _) => self.take(2, Token::Arithmetic),
            (b'<', b'=' | b'>', _)
            | (b'>', b'=', _)
            | (b'!', b'=' | b'<' | b'>' | b'~', _)
            | (b'^', b'=', _) => self.take(2, Token::Compare),
            (b'=', b'=', _) | (b'~', b'*' | b'=', _) => self.take(2, Token::Compare),
            (b'=' | b'<' | b'>', _, _) => self.take(1, Token::Compare),
            (b':', b'=', _) => self.take(2, Token::Compare),
            (b'&', b'&', _) => self.take(2, Token::Logic),
            (b'|', b'|', _) => self.take(2, Token::Pipes),
            (b':', b':', _) => self.take(2, Token::Cast),
            (b'-', b'>', b'>') => self.take(3, Token::Arithmetic),
            (b'-', b'>', _) => self.take(2, Token::Arithmetic),
            (b'+' | b'-' | b'~' | b'!', _, _) => self.take(1, Token::Sign),
            (b'*', _, _) => self.take(1, Token::Star),
            (b'/' | b'%' | b'&' | b'|' | b'^', _, _) => self.take(1, Token::Arithmetic),
            (b'(', _, _) => self.take(1, Token::Open),
            (b')', _, _) => self.take(1, Token::Close),
            (b',', _, _) => self.take(1, Token::Comma),
            (b'.', _, _) => self.take(1, Token::Dot),
            (b';', _, _) => self.take(1, Token::Semicolon),
            _ => self.take(1, Token::Garbage),
        }
    }

    fn run(&mut self, belongs: impl Fn(u8) -> bool) -> usize {
        let count = self.rest(self.at).iter().take_while(|&&byte| belongs(byte)).count();
        self.at += count;
        count
    }

    /// A number; a word that begins with digits; or a number with a word attached, as in `1or 1=1`, which
    /// MySQL accepts.
    fn number(&mut self) -> Token<'v> {
        let from = self.at;
        if self.byte(0) == Some(b'0') && matches!(self.byte(1), Some(b'x' | b'X' | b'b' | b'B')) {
            self.at += 2;
            let digits = self.run(|byte| byte.is_ascii_hexdigit());
            if digits > 0 && !self.byte(0).is_some_and(is_name) {
                self.hex_count += 1;
                return Token::Number;
            }
            self.at = from;
        }
        self.run(|byte| byte.is_ascii_digit());
        let mut has_dot = false;
        if self.byte(0) == Some(b'.') {
            has_dot = true;
            self.at += 1;
            self.run(|byte| byte.is_ascii_digit());
        }
        if matches!(self.byte(0), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.byte(1), Some(b'+' | b'-')));
            if self.byte(1 + sign).is_some_and(|next| next.is_ascii_digit()) {
                self.at += 1 + sign;
                self.run(|byte| byte.is_ascii_digit());
            } else if has_dot && !self.byte(1).is_some_and(is_name) {
                self.at += 1;
            }
        }
        let number_end = self.at;
        if self.run(is_name) == 0 {
            return Token::Number;
        }
        let stuck = self.span(number_end);
        let splits = matches!(
            words::class_of(stuck),
            Word::Logic
                | Word::Union
                | Word::Arithmetic
                | Word::Compare
                | Word::Is
                | Word::In
                | Word::From
                | Word::Between
        );
        if splits {
            self.at = number_end;
            return Token::Number;
        }
        Token::Word(Word::Name, self.span(from))
    }

    /// A string after its opening quote. Inside it, quotes are doubled or preceded by a backslash.
    fn text(&mut self, quote: u8) -> Token<'v> {
        let from = self.at;
        while let Some(byte) = self.byte(0) {
            if byte == b'\\' {
                self.at += 2;
            } else if byte != quote {
                self.at += 1;
            } else if self.byte(1) == Some(quote) {
                self.at += 2;
            } else {
                let content = self.span(from);
                self.at += 1;
                return Token::Text { content, quote, closed: true };
            }
        }
        self.at = self.value.len();
        Token::Text { content: self.span(from), quote, closed: false }
    }

    /// A name between backticks or brackets. Names are short: anything longer is something else.
    fn delimited(&mut self, end: u8) -> Token<'v> {
        let inner = self.rest(self.at + 1);
        match inner.iter().take(130).position(|&byte| byte == end) {
            Some(length) => self.take(length + 2, Token::Name),
            // The closing backtick may be the application's.
            None if end == b'`' => {
                self.at = self.value.len();
                Token::Text { content: inner, quote: b'`', closed: false }
            }
            None => self.take(1, Token::Garbage),
        }
    }

    fn dollars(&mut self) -> Token<'v> {
        let inner = self.rest(self.at + 2);
        match inner.iter().take(1000).collect::<Vec<_>>().windows(2).position(|pair| pair == [&b'$', &b'$']) {
            Some(length) => {
                let content = inner.get(..length).unwrap_or_default();
                self.take(length + 4, Token::Text { content, quote: b'$', closed: true })
            }
            None => self.take(2, Token::Garbage),
        }
    }

    fn variable(&mut self) -> Token<'v> {
        self.at += 1;
        let of_server = self.byte(0) == Some(b'@');
        self.at += usize::from(of_server);
        match self.byte(0) {
            Some(quote @ (b'\'' | b'"')) => {
                self.at += 1;
                self.text(quote);
            }
            Some(b'`') => {
                self.delimited(b'`');
            }
            _ => {
                self.run(|byte| is_name(byte) || byte == b'.');
            }
        }
        Token::Variable { of_server }
    }

    fn word(&mut self) -> Token<'v> {
        let from = self.at;
        self.run(is_name);
        let word = self.span(from);
        // Strings with a prefix: N'…', X'…', E'…', _utf8'…'.
        if let Some(quote @ (b'\'' | b'"')) = self.byte(0)
            && (word.first() == Some(&b'_')
                || (word.len() == 1 && matches!(word, b"n" | b"N" | b"x" | b"X" | b"e" | b"E" | b"b" | b"B")))
        {
            let is_hex = matches!(word, b"x" | b"X");
            self.at += 1;
            let text = self.text(quote);
            if is_hex {
                self.hex_count += 1;
            }
            return text;
        }
        Token::Word(words::class_of(word), word)
    }
}
