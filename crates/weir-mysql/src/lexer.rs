//! Reads a statement as the tokens that one MySQL server takes it for.
//!
//! A text that the server could read otherwise than this lexer does ends in [`SqlToken::Irregular`]: whoever
//! decides by tokens then knows that he does not know. Comments and white space give no token. Nothing is
//! copied or allocated, and each byte is looked at a bounded number of times.
//!
//! Source: MySQL 9.x reference manual, "Language Structure" (literals, names, comments), "Server SQL Modes".

use crate::charset::ClientCharset;
use crate::sql_mode::SqlMode;

/// By which rules a text is read: facts of the session that sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqlDialect {
    /// `character_set_client`.
    pub charset: ClientCharset,
    /// `sql_mode`, as far as it changes how a text is read.
    pub mode: SqlMode,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlToken<'t> {
    /// A keyword, or a name without quotes; also `_utf8` before a string.
    Word(&'t [u8]),
    /// A name directly behind a dot: never a keyword.
    Member(&'t [u8]),
    /// A quoted name, what is between its quotes.
    Name(&'t [u8]),
    /// A string or a literal of hexadecimal digits or bits in quotes; what is between its quotes, escapes
    /// as they came.
    Text(&'t [u8]),
    /// A number in any notation.
    Number(&'t [u8]),
    /// `@name`, without its `@` and quotes. The host of an account (`'u'@'host'`) looks the same.
    UserVariable(&'t [u8]),
    /// `@@name`, without its `@@` and quotes; of `@@session.name` it is `session`.
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
    /// From here on the server may read something else, or refuse the text. The last token.
    Irregular(Irregularity),
}

/// Why a text cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irregularity {
    /// A string, a quoted name or a comment has no end.
    Unclosed,
    /// A zero byte outside of strings: some readers end there.
    ZeroByte,
    /// Bytes beyond ASCII that are no characters, or whose meaning outside of quotes depends on tables that
    /// are not here.
    Character,
    /// `1.e(`, a number that stops being one.
    Number,
    /// `$tag$` with more behind it: a name to old servers, a quote to new ones.
    Dollar,
    /// `x'0g'`, `@@` without a name, a lone backslash.
    Literal,
    /// A session's character set or SQL mode by which nothing can be read.
    Dialect,
}

/// Comments whose content a server runs as part of the statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutableComment {
    /// None so far.
    #[default]
    None,
    /// `/*! ... */`, run by every MySQL.
    Always,
    /// `/*!80013 ... */`, `/*M! ... */`: run, or not, depending on the server. Its content gives tokens.
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

    /// Whether white space or a comment stands before the token read last.
    pub fn spaced(&self) -> bool {
        self.spaced
    }

    /// Which executable comments were met so far.
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

    /// Goes past white space and comments; says where that cannot be done.
    fn skip_blank(&mut self) -> Result<(), Irregularity> {
        loop {
            match self.peek(0) {
                b' ' | b'\t'..=b'\r' => self.at += 1,
                b'#' => self.skip_line()?,
                b'-' if self.peek(1) == b'-' => match self.peek(2) {
                    // At the end of the text the server sees a zero byte, a control character.
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
        // A server reads a hint by its own rules, in which a quote could hide the comment's end.
        if is_hint && !quotes_close(content) { Err(Irregularity::Unclosed) } else { Ok(()) }
    }

    /// The next token where it is a word of ASCII alone, behind one space at most: most of a statement. What
    /// may be anything else is left to [`Self::any`], which finds the same word.
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
        // The letter may be a string's, as in `x'0f'`.
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
        // Most tokens have one space before them, or nothing.
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
            // Directly behind a dot comes a name, were it made of digits.
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
            // What a single byte beyond ASCII is (in latin1 0xa0 is white space) needs the server's tables.
            match self.dialect.charset.length(self.rest()) {
                Some(length) if length > 1 => self.at += length,
                _ => return self.irregular(Irregularity::Character),
            }
        }
        SqlToken::Word(self.since(start))
    }

    /// A word with a dollar in front. To servers of 9.x it may open a quote, which can hide only what is
    /// behind it: with nothing there, no server takes it for more than one name or string.
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

    /// The rest of a number from its point on.
    fn fraction_from(&mut self, start: usize) -> SqlToken<'t> {
        self.at += 1;
        self.digits();
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            // The server forgets such a number and goes on behind it: `sleep 1.e(5)` is a call.
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

    /// A string, with its first quote at the front.
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
                // One byte is escaped, not one character.
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

    /// Goes to the next quote or backslash that is a character of its own.
    fn step_to(&mut self, charset: ClientCharset, quote: u8, backslash: u8) -> Option<()> {
        loop {
            let rest = self.rest();
            let byte = *rest.first()?;
            if byte == quote || byte == backslash {
                return Some(());
            }
            // In a string a byte that begins no character stands for itself.
            self.at += charset.length(rest).unwrap_or(1);
        }
    }

    /// A quoted name, with its first quote at the front.
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
                // The server goes by the first byte alone, and over a quote if need be.
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

    /// `@name` and `@@name`, with its `@` at the front.
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

/// Whether a byte can be the first of white space, of a comment, or of an executable comment's end.
fn may_be_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r' | b'#' | b'-' | b'/' | b'*')
}

/// Whether a byte can be part of a name without quotes.
const fn is_word(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | 0x80..)
}

/// The same of ASCII, by a table: most of a statement is words.
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

/// Where the first of three bytes is. Looks at 32 bytes at a time: long statements are long strings.
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

/// Whether each quote in a hint has its second one.
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
