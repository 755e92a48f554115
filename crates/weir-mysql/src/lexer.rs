//! Splits a statement into tokens the way a MySQL server does.
//!
//! If a server could read a text differently from this lexer, the tokens end in [`SqlToken::Irregular`], so
//! that the caller never relies on a doubtful reading. Comments and white space give no token. Nothing is
//! copied or allocated, and each byte is looked at a bounded number of times.
//!
//! Source: MySQL 9.x reference manual, "Language Structure" (literals, names, comments), "Server SQL Modes".

use crate::charset::ClientCharset;
use crate::sql_mode::SqlMode;

/// The session settings that decide how a text is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqlDialect {
    /// `character_set_client`.
    pub charset: ClientCharset,
    /// The part of `sql_mode` that changes how a text is read.
    pub mode: SqlMode,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlToken<'t> {
    /// A keyword, or a name without quotes; also a character set introducer such as `_utf8`.
    Word(&'t [u8]),
    /// A name directly after a dot, which is never a keyword.
    Member(&'t [u8]),
    /// A quoted name, without its quotes.
    Name(&'t [u8]),
    /// A string, or a hexadecimal or bit literal in quotes, without its quotes. Escapes are not decoded.
    Text(&'t [u8]),
    /// A number in any notation.
    Number(&'t [u8]),
    /// `@name`, without its `@` and quotes. The host part of an account (`'u'@'host'`) gives the same token.
    UserVariable(&'t [u8]),
    /// `@@name`, without its `@@` and quotes; for `@@session.name` it is `session`.
    SystemVariable(&'t [u8]),
    /// `?`.
    Parameter,
    /// `:=`.
    Assign,
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `,`.
    Comma,
    /// `.` between names.
    Dot,
    /// `;`.
    Semicolon,
    /// Any other character.
    Symbol(u8),
    /// From here on a server may read the text differently, or refuse it. Always the last token.
    Irregular(Irregularity),
}

/// Why a text cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irregularity {
    /// A string, a quoted name or a comment has no end.
    Unclosed,
    /// A zero byte outside of strings: some parsers stop there.
    ZeroByte,
    /// Bytes beyond ASCII that are no valid characters, or whose meaning outside of quotes depends on
    /// character set tables that Weir does not have.
    Character,
    /// `1.e(`: it starts like a number but is not one.
    Number,
    /// `$tag$` followed by more text: old servers read a name, new ones a dollar quote.
    Dollar,
    /// `x'0g'`, `@@` without a name, a lone backslash.
    Literal,
    /// The session has a character set or SQL mode whose rules this lexer does not implement.
    Dialect,
}

/// Comments whose content a server runs as part of the statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutableComment {
    /// None so far.
    #[default]
    None,
    /// `/*! ... */`, which every MySQL server runs.
    Always,
    /// `/*!80013 ... */`, `/*M! ... */`: whether it runs depends on the server. Its content gives tokens.
    Sometimes,
}

/// Reads a text from front to back; an iterator of [`SqlToken`]s.
#[derive(Clone, Debug)]
pub struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    dialect: SqlDialect,
    executable: ExecutableComment,
    in_executable: bool,
    behind_dot: bool,
    behind_name: bool,
    spaced: bool,
    irregular: bool,
}

impl<'t> Lexer<'t> {
    /// A lexer at the front of `text`.
    pub fn new(text: &'t [u8], dialect: SqlDialect) -> Lexer<'t> {
        let executable = ExecutableComment::None;
        Lexer {
            text,
            at: 0,
            dialect,
            executable,
            in_executable: false,
            behind_dot: false,
            behind_name: false,
            spaced: false,
            irregular: false,
        }
    }

    /// Whether white space or a comment precedes the last token.
    pub fn spaced(&self) -> bool {
        self.spaced
    }

    /// The kind of executable comments met so far.
    pub fn executable(&self) -> ExecutableComment {
        self.executable
    }

    /// Whether the text could not be read to its end.
    pub fn is_irregular(&self) -> bool {
        self.irregular
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn since(&self, start: usize) -> &'t [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn rest(&self) -> &'t [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn irregular(&mut self, why: Irregularity) -> SqlToken<'t> {
        self.at = self.text.len();
        self.in_executable = false;
        self.irregular = true;
        SqlToken::Irregular(why)
    }

    /// Skips white space and comments; Err if the text cannot be read there.
    fn skip_blank(&mut self) -> Result<(), Irregularity> {
        loop {
            match self.peek(0) {
                b' ' | b'\t'..=b'\r' => self.at += 1,
                b'#' => self.skip_line()?,
                b'-' if self.peek(1) == b'-' => match self.peek(2) {
                    // At the end of the text the server sees a zero byte, which is a control byte.
                    0..=b' ' | 0x7f => self.skip_line()?,
                    0x80.. => return Err(Irregularity::Character),
                    _ => return Ok(()),
                },
                b'/' if self.peek(1) == b'*' => self.skip_comment()?,
                b'*' if self.in_executable && self.peek(1) == b'/' => {
                    self.in_executable = false;
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    fn skip_line(&mut self) -> Result<(), Irregularity> {
        let rest = self.rest();
        let length = find(rest, [b'\n', 0, 0]).unwrap_or(rest.len());
        self.at += length;
        if rest.get(length) == Some(&0) { Err(Irregularity::ZeroByte) } else { Ok(()) }
    }

    fn skip_comment(&mut self) -> Result<(), Irregularity> {
        let is_mariadb = self.peek(2) == b'M' && self.peek(3) == b'!';
        if self.peek(2) == b'!' || is_mariadb {
            self.at += if is_mariadb { 4 } else { 3 };
            let versioned = self.at;
            if self.peek(0) == b'M' {
                self.at += 1;
            }
            while self.at < versioned + 6 && self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
            let is_versioned = is_mariadb || self.at > versioned;
            let kind = if is_versioned { ExecutableComment::Sometimes } else { ExecutableComment::Always };
            self.executable = self.executable.max(kind);
            self.in_executable = true;
            return Ok(());
        }
        let is_hint = self.peek(2) == b'+';
        self.at += 2;
        let start = self.at;
        loop {
            let rest = self.rest();
            let star = find(rest, [b'*', 0, 0]).ok_or(Irregularity::Unclosed)?;
            self.at += star;
            if self.peek(0) == 0 {
                return Err(Irregularity::ZeroByte);
            }
            self.at += 1;
            if self.peek(0) == b'/' {
                break;
            }
        }
        let content = self.text.get(start..self.at - 1).unwrap_or_default();
        self.at += 1;
        // A server reads a hint by its own rules, where a quote could hide the end of the comment.
        if is_hint && !quotes_close(content) { Err(Irregularity::Unclosed) } else { Ok(()) }
    }

    /// The next token if it is an ASCII word after at most one space, as most tokens are. Everything else is
    /// left to [`Self::any`], which would find the same word.
    #[inline]
    fn plain_word(&mut self) -> Option<&'t [u8]> {
        let is_spaced = self.peek(0) == b' ';
        let start = self.at + usize::from(is_spaced);
        let rest = self.text.get(start..)?;
        let begins = rest.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
        if !begins || self.behind_dot || self.dialect.mode.is_foreign() {
            return None;
        }
        let length = rest.iter().position(|byte| !is_ascii_word(*byte)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at_checked(length)?;
        // The word may be the prefix of a literal, as in `x'0f'`.
        if matches!(behind.first(), Some(b'\'' | 0x80..)) {
            return None;
        }
        self.at = start + length;
        self.spaced = is_spaced;
        self.behind_name = true;
        Some(word)
    }

    #[inline(never)]
    fn any(&mut self) -> Option<SqlToken<'t>> {
        if self.dialect.mode.is_foreign() && self.at < self.text.len() {
            return Some(self.irregular(Irregularity::Dialect));
        }
        let token = self.token();
        use SqlToken::{Member, Name, SystemVariable, Word};
        self.behind_name = matches!(token, Some(Word(_) | Member(_) | Name(_) | SystemVariable(_)));
        token
    }

    fn token(&mut self) -> Option<SqlToken<'t>> {
        let behind_dot = std::mem::take(&mut self.behind_dot);
        let before = self.at;
        // Most tokens have one space before them, or none.
        if self.peek(0) == b' ' {
            self.at += 1;
        }
        if may_be_blank(self.peek(0))
            && let Err(why) = self.skip_blank()
        {
            return Some(self.irregular(why));
        }
        self.spaced = self.at > before;
        if self.at >= self.text.len() {
            return self.in_executable.then(|| self.irregular(Irregularity::Unclosed));
        }
        let byte = self.peek(0);
        Some(match byte {
            b'(' => self.single(SqlToken::Open),
            b')' => self.single(SqlToken::Close),
            b',' => self.single(SqlToken::Comma),
            b'=' => self.single(SqlToken::Symbol(byte)),
            b'`' => self.name(byte, SqlToken::Name),
            // What follows a dot directly is a name, even if it consists of digits.
            _ if behind_dot && !self.spaced && is_word(byte) => match self.word() {
                SqlToken::Word(word) => SqlToken::Member(word),
                other => other,
            },
            b'0'..=b'9' => self.number(),
            b'n' | b'N' | b'x' | b'X' | b'b' | b'B' if self.peek(1) == b'\'' => self.prefixed(byte),
            b'$' => self.dollar(),
            _ if is_word(byte) => self.word(),
            b'\'' => self.quoted(byte, SqlToken::Text),
            b'"' if self.dialect.mode.ansi_quotes() => self.name(byte, SqlToken::Name),
            b'"' => self.quoted(byte, SqlToken::Text),
            b'@' => self.variable(),
            b'.' if (self.spaced || !self.behind_name) && self.peek(1).is_ascii_digit() => self.fraction(),
            b'.' => {
                self.behind_dot = true;
                self.single(SqlToken::Dot)
            }
            b':' if self.peek(1) == b'=' => {
                self.at += 1;
                self.single(SqlToken::Assign)
            }
            b'?' => self.single(SqlToken::Parameter),
            b';' => self.single(SqlToken::Semicolon),
            0 => self.irregular(Irregularity::ZeroByte),
            b'\\' => self.irregular(Irregularity::Literal),
            _ => self.single(SqlToken::Symbol(byte)),
        })
    }

    fn single(&mut self, token: SqlToken<'t>) -> SqlToken<'t> {
        self.at += 1;
        token
    }

    fn word(&mut self) -> SqlToken<'t> {
        let start = self.at;
        loop {
            let rest = self.rest();
            self.at += rest.iter().position(|byte| !is_ascii_word(*byte)).unwrap_or(rest.len());
            if self.peek(0) < 0x80 {
                break;
            }
            // The meaning of a single byte beyond ASCII needs the server's tables: 0xa0 is white space in
            // latin1.
            match self.dialect.charset.length(self.rest()) {
                Some(length) if length > 1 => self.at += length,
                _ => return self.irregular(Irregularity::Character),
            }
        }
        SqlToken::Word(self.since(start))
    }

    /// A word that begins with a dollar sign. Servers from 9.x on may read it as the start of a dollar quote.
    /// That matters only if text follows: with nothing behind it, every server reads a single name or string.
    fn dollar(&mut self) -> SqlToken<'t> {
        let token = self.word();
        if self.at == self.text.len() { token } else { self.irregular(Irregularity::Dollar) }
    }

    fn digits(&mut self) {
        let rest = self.rest();
        self.at += rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    }

    fn number(&mut self) -> SqlToken<'t> {
        let start = self.at;
        let is_digit: Option<fn(&u8) -> bool> = match (self.peek(0), self.peek(1)) {
            (b'0', b'x') => Some(u8::is_ascii_hexdigit),
            (b'0', b'b') => Some(|byte| matches!(byte, b'0' | b'1')),
            _ => None,
        };
        if let Some(is_digit) = is_digit {
            self.at += 2;
            while is_digit(&self.peek(0)) {
                self.at += 1;
            }
            if self.at > start + 2 && !is_word(self.peek(0)) {
                return SqlToken::Number(self.since(start));
            }
            self.at = start;
            return self.word();
        }
        self.digits();
        match self.peek(0) {
            b'.' => self.fraction_from(start),
            b'e' | b'E' => {
                let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
                if self.peek(1 + sign).is_ascii_digit() {
                    self.at += 1 + sign;
                    self.digits();
                    return SqlToken::Number(self.since(start));
                }
                self.at = start;
                self.word()
            }
            byte if is_word(byte) => {
                self.at = start;
                self.word()
            }
            _ => SqlToken::Number(self.since(start)),
        }
    }

    fn fraction(&mut self) -> SqlToken<'t> {
        self.fraction_from(self.at)
    }

    /// The rest of a number, from its decimal point on.
    fn fraction_from(&mut self, start: usize) -> SqlToken<'t> {
        self.at += 1;
        self.digits();
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            // The server drops such a number and continues after it: `sleep 1.e(5)` is a function call.
            if !self.peek(1 + sign).is_ascii_digit() {
                return self.irregular(Irregularity::Number);
            }
            self.at += 1 + sign;
            self.digits();
        }
        SqlToken::Number(self.since(start))
    }

    /// `N'..'`, `x'..'`, `b'..'`.
    fn prefixed(&mut self, prefix: u8) -> SqlToken<'t> {
        self.at += 1;
        let token = self.quoted(b'\'', SqlToken::Text);
        let SqlToken::Text(content) = token else { return token };
        let is_whole = match prefix {
            b'n' | b'N' => true,
            b'x' | b'X' => content.len() % 2 == 0 && content.iter().all(u8::is_ascii_hexdigit),
            _ => content.iter().all(|byte| matches!(byte, b'0' | b'1')),
        };
        if is_whole { token } else { self.irregular(Irregularity::Literal) }
    }

    /// A string; the lexer is at its opening quote.
    fn quoted(&mut self, quote: u8, token: fn(&'t [u8]) -> SqlToken<'t>) -> SqlToken<'t> {
        let escapes = !self.dialect.mode.no_backslash_escapes();
        let charset = self.dialect.charset;
        if charset == ClientCharset::Unknown {
            return self.irregular(Irregularity::Dialect);
        }
        let backslash = if escapes { b'\\' } else { quote };
        self.at += 1;
        let start = self.at;
        loop {
            if charset.hides_ascii() {
                match self.step_to(charset, quote, backslash) {
                    Some(()) => {}
                    None => return self.irregular(Irregularity::Unclosed),
                }
            } else {
                match find(self.rest(), [quote, backslash, quote]) {
                    Some(length) => self.at += length,
                    None => return self.irregular(Irregularity::Unclosed),
                }
            }
            if self.peek(0) == quote {
                if self.peek(1) != quote {
                    break;
                }
                self.at += 2;
            } else {
                // The backslash escapes one byte, even in a multi-byte character.
                self.at += 2;
                if self.at > self.text.len() {
                    return self.irregular(Irregularity::Unclosed);
                }
            }
        }
        let content = self.since(start);
        self.at += 1;
        token(content)
    }

    /// Moves to the next quote or backslash that is not part of a multi-byte character.
    fn step_to(&mut self, charset: ClientCharset, quote: u8, backslash: u8) -> Option<()> {
        loop {
            let rest = self.rest();
            let byte = *rest.first()?;
            if byte == quote || byte == backslash {
                return Some(());
            }
            // In a string, a byte that begins no character counts as a character.
            self.at += charset.length(rest).unwrap_or(1);
        }
    }

    /// A quoted name; the lexer is at its opening quote.
    fn name(&mut self, quote: u8, token: fn(&'t [u8]) -> SqlToken<'t>) -> SqlToken<'t> {
        self.at += 1;
        let start = self.at;
        loop {
            let rest = self.rest();
            match rest.first() {
                None => return self.irregular(Irregularity::Unclosed),
                Some(0) => return self.irregular(Irregularity::ZeroByte),
                Some(byte) if *byte == quote => {
                    if self.peek(1) != quote {
                        break;
                    }
                    self.at += 2;
                }
                Some(byte) if *byte < 0x80 => {
                    let is_plain = |byte: &u8| *byte != quote && matches!(*byte, 1..0x80);
                    self.at += rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
                }
                // The server takes the length from the first byte alone, and may skip a quote that way.
                Some(_) => match self.dialect.charset.length(rest) {
                    Some(length) => self.at += length,
                    None => return self.irregular(Irregularity::Character),
                },
            }
        }
        let content = self.since(start);
        self.at += 1;
        token(content)
    }

    /// `@name` and `@@name`; the lexer is at the first `@`.
    fn variable(&mut self) -> SqlToken<'t> {
        self.at += 1;
        match self.peek(0) {
            b'@' => {
                self.at += 1;
                match self.peek(0) {
                    b'`' => self.name(b'`', SqlToken::SystemVariable),
                    byte if is_word(byte) => match self.word() {
                        SqlToken::Word(word) => SqlToken::SystemVariable(word),
                        other => other,
                    },
                    _ => self.irregular(Irregularity::Literal),
                }
            }
            b'`' => self.name(b'`', SqlToken::UserVariable),
            b'"' if self.dialect.mode.ansi_quotes() => self.name(b'"', SqlToken::UserVariable),
            quote @ (b'\'' | b'"') => self.quoted(quote, SqlToken::UserVariable),
            _ => {
                let start = self.at;
                while matches!(self.peek(0), b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'_' | b'$') {
                    self.at += 1;
                }
                if self.peek(0) >= 0x80 {
                    return self.irregular(Irregularity::Character);
                }
                SqlToken::UserVariable(self.since(start))
            }
        }
    }
}

impl<'t> Iterator for Lexer<'t> {
    type Item = SqlToken<'t>;

    #[inline]
    fn next(&mut self) -> Option<SqlToken<'t>> {
        match self.plain_word() {
            Some(word) => Some(SqlToken::Word(word)),
            None => self.any(),
        }
    }
}

/// Whether a byte can begin white space, a comment, or the end of an executable comment.
fn may_be_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r' | b'#' | b'-' | b'/' | b'*')
}

/// Whether a byte can be part of a name without quotes.
const fn is_word(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | 0x80..)
}

/// The same for ASCII bytes, by a table, because most of a statement is words.
fn is_ascii_word(byte: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 0x80 {
            table[byte] = is_word(byte as u8);
            byte += 1;
        }
        table
    };
    TABLE[usize::from(byte)]
}

/// The position of the first of any of three bytes. Looks at 32 bytes at a time, because long statements are
/// mostly long strings.
fn find(bytes: &[u8], wanted: [u8; 3]) -> Option<usize> {
    let [a, b, c] = wanted;
    let is_wanted = |byte: &u8| (*byte == a) | (*byte == b) | (*byte == c);
    let mut from = 0;
    for chunk in bytes.chunks_exact(32) {
        if chunk.iter().fold(false, |any, byte| any | is_wanted(byte)) {
            break;
        }
        from += 32;
    }
    let rest = bytes.get(from..)?;
    rest.iter().position(is_wanted).map(|at| from + at)
}

/// Whether every quote in a hint is closed.
fn quotes_close(content: &[u8]) -> bool {
    let mut open = None;
    for byte in content {
        match open {
            Some(quote) if quote == byte => open = None,
            None if matches!(byte, b'\'' | b'"' | b'`') => open = Some(byte),
            _ => {}
        }
    }
    open.is_none()
}

#[cfg(test)]
#[path = "lexer_tests.rs"]
mod tests;
