//! Fuzzes the lexer and the classifier: no panic, whole and cut anywhere; the same verdict whatever white
//! space and comments stand between the tokens; and what any member may get is one statement without a word
//! of a write, by a reading of its own that knows nothing but where strings and comments end.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_statements -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use fuzzing::Draws;
use weir_mysql::{
    ClientCharset, OpenTransaction, Resend, RoleWanted, RouteReason, SessionFacts, SplitAccess, SqlDialect,
    SqlMode, classify, classify_head,
};

const PIECES: &[&[u8]] = &[
    b"/*",
    b"*/",
    b"/*!50000 ",
    b"/*! ",
    b"/*+ ",
    b"-- ",
    b"#",
    b"\n",
    b"'",
    b"\"",
    b"`",
    b"\\",
    b"\\'",
    b"''",
    b"(",
    b")",
    b";",
    b".",
    b"@",
    b"@@",
    b":=",
    b" FOR UPDATE",
    b" FOR SHARE",
    b" INTO OUTFILE 'x'",
    b" INTO @a",
    b"DELETE FROM t",
    b"UPDATE t SET a = 1",
    b"INSERT INTO t VALUES (1)",
    b"REPLACE ",
    b"SELECT ",
    b"WITH a (b) AS ",
    b"EXPLAIN ",
    b"ANALYZE ",
    b"SET ",
    b"COUNT(",
    b"GET_LOCK(",
    b"f(",
    b"db . abs(",
    b"WITH a AS (SELECT 1) ",
    b"TABLE t",
    b" ORDER BY 1, ",
    b"VALUES ROW(",
    b" AS ",
    b"1.e",
    b"0x",
    b"x'",
    b"\xbf\x5c",
    b"\xc3\xa4",
    b"$$",
];

const CHARSETS: [ClientCharset; 4] =
    [ClientCharset::Utf8, ClientCharset::SingleByte, ClientCharset::Gbk, ClientCharset::Unknown];

const MODES: [&str; 5] = ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI,NO_BACKSLASH_ESCAPES", "ORACLE"];

fn main() -> ExitCode {
    let tables = [include_str!("../src/statements_read.txt"), include_str!("../src/statements_primary.txt")];
    let lines = tables.iter().flat_map(|table| table.lines());
    let seeds: Vec<&[u8]> =
        lines.filter_map(|line| line.splitn(3, " | ").nth(2)).map(str::as_bytes).collect();
    fuzzing::run("statements", &seeds, PIECES, check)
}

fn check(text: &[u8], draws: &mut Draws) -> Result<u64, String> {
    let charset = CHARSETS[draws.below(3 * CHARSETS.len()) % CHARSETS.len()];
    let mode = SqlMode::read(MODES[draws.below(2 * MODES.len()).saturating_sub(MODES.len())]);
    let dialect = SqlDialect { charset, mode };
    let auto = SessionFacts { dialect, ..SessionFacts::default() };
    let verdict = classify(text, &auto);
    let outcome = verdict.own_reason as u64 | (verdict.kind as u64) << 8;

    cut(text, &auto, draws)?;
    in_company(text, &auto)?;
    if verdict.wants == RoleWanted::Primary && verdict.resend == Resend::Anywhere {
        return Err(format!("wants the primary and may be sent anywhere: {verdict:?}"));
    }
    if verdict.resend == Resend::Anywhere && !(verdict.leaves.is_empty() && verdict.reads_back.is_empty()) {
        return Err(format!("may be sent anywhere and leaves or asks something: {verdict:?}"));
    }
    let sessions = [
        SessionFacts { transaction: OpenTransaction::ReadWrite, ..auto },
        SessionFacts { access: SplitAccess::ReadWrite, ..auto },
    ];
    if sessions.iter().any(|facts| classify(text, facts).wants != RoleWanted::Primary) {
        return Err("a transaction or the listener wants the primary, and this does not".to_owned());
    }

    // What follows trusts a reading that knows these character sets alone.
    let is_simple = matches!(charset, ClientCharset::Utf8 | ClientCharset::SingleByte) && !mode.is_foreign();
    if verdict.own_reason == RouteReason::Unreadable || !is_simple {
        return Ok(outcome);
    }
    let Some(tokens) = read(text, mode) else {
        return Ok(outcome);
    };
    if verdict.wants == RoleWanted::AnyMember
        && let Some(what) = write_in(&tokens)
    {
        return Err(format!("any member may get it ({}), and it has {what}", verdict.reason.word()));
    }
    if ends_in_dashes(&tokens) {
        return Ok(outcome);
    }
    let respaced = respaced(&tokens, draws);
    let again = classify(&respaced, &auto);
    if again != verdict {
        let respaced = respaced.escape_ascii();
        return Err(format!("{verdict:?}, and with other space {again:?}: \"{respaced}\""));
    }
    Ok(outcome)
}

/// A text that is cut anywhere is trusted in nothing.
fn cut(text: &[u8], auto: &SessionFacts, draws: &mut Draws) -> Result<(), String> {
    let head = &text[..draws.below(text.len() + 1)];
    classify(head, auto);
    let verdict = classify_head(head, auto);
    let is_distrusted = verdict.wants == RoleWanted::Primary
        && verdict.resend == Resend::Never
        && verdict.leaves.pins()
        && verdict.local_infile == classify(head, auto).local_infile;
    if is_distrusted { Ok(()) } else { Err(format!("{} bytes of it are trusted: {verdict:?}", head.len())) }
}

/// With a write before or behind it in the same text, it wants the primary, wherever its strings end.
fn in_company(text: &[u8], auto: &SessionFacts) -> Result<(), String> {
    for both in [[text, b"\n;DELETE FROM t"].concat(), [b"DELETE FROM t;\n", text].concat()] {
        let verdict = classify(&both, auto);
        if verdict.wants != RoleWanted::Primary {
            return Err(format!("{:?} of \"{}\"", verdict.reason, both.escape_ascii()));
        }
    }
    Ok(())
}

/// A token as a second reading sees it.
#[derive(Clone, Copy, Debug)]
struct Token<'t> {
    bytes: &'t [u8],
    /// Whether white space or a comment stands before it.
    spaced: bool,
    /// Whether a bare name may not stand for itself here: it is directly behind a dot or an `@`.
    member: bool,
}

impl Token<'_> {
    fn is(&self, word: &str) -> bool {
        !self.member && self.bytes.eq_ignore_ascii_case(word.as_bytes())
    }
}

/// Words, strings and names in quotes, and single characters; `None` where a comment is more than a comment,
/// or something has no end.
fn read(text: &[u8], mode: SqlMode) -> Option<Vec<Token<'_>>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut at, mut spaced) = (0, false);
    while let Some(&byte) = text.get(at) {
        let next = |ahead: usize| text.get(at + ahead).copied();
        let length = match byte {
            b' ' | b'\t'..=b'\r' => {
                (at, spaced) = (at + 1, true);
                continue;
            }
            b'#' => 0,
            b'-' if next(1) == Some(b'-') && next(2).is_none_or(|byte| byte <= b' ' || byte == 0x7f) => 0,
            b'/' if next(1) == Some(b'*') => {
                let is_mariadb = next(2) == Some(b'M') && next(3) == Some(b'!');
                if is_mariadb || matches!(next(2), Some(b'!' | b'+')) {
                    return None;
                }
                let end = text[at + 2..].windows(2).position(|bytes| bytes == b"*/")?;
                (at, spaced) = (at + 4 + end, true);
                continue;
            }
            b'\'' | b'"' | b'`' => quoted(&text[at..], mode)?,
            byte if is_name(byte) => text[at..].iter().take_while(|byte| is_name(**byte)).count(),
            _ => 1,
        };
        if length == 0 {
            at += text[at..].iter().position(|byte| *byte == b'\n').unwrap_or(text.len() - at);
            spaced = true;
            continue;
        }
        let member = !spaced && tokens.last().is_some_and(|before| matches!(before.bytes, b"." | b"@"));
        tokens.push(Token { bytes: &text[at..at + length], spaced, member });
        (at, spaced) = (at + length, false);
    }
    Some(tokens)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// The length of a string or a name, with its quotes.
fn quoted(text: &[u8], mode: SqlMode) -> Option<usize> {
    let quote = text[0];
    let is_name = quote == b'`' || quote == b'"' && mode.ansi_quotes();
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' if !is_name && !mode.no_backslash_escapes() => at += 2,
            byte if byte == quote && text.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// What says that a text is more than one statement that reads.
fn write_in(tokens: &[Token<'_>]) -> Option<String> {
    let mut rest = tokens;
    while let [first, behind @ ..] = rest
        && first.bytes == b";"
    {
        rest = behind;
    }
    let end = rest.iter().position(|token| token.bytes == b";").unwrap_or(rest.len());
    if rest[end..].iter().any(|token| token.bytes != b";") {
        return Some("several statements".to_owned());
    }
    let first = rest.iter().find(|token| token.bytes != b"(");
    let reads = ["SELECT", "TABLE", "VALUES", "WITH", "SHOW", "DESC", "DESCRIBE", "EXPLAIN", "START"];
    if !first.is_some_and(|first| reads.iter().any(|word| first.is(word))) {
        return Some(format!("a first word {first:?}"));
    }
    if first.is_some_and(|first| first.is("START")) {
        return None;
    }
    for (number, token) in rest.iter().enumerate() {
        let next = rest.get(number + 1);
        let before = number.checked_sub(1).and_then(|number| rest.get(number));
        let is_call = next.is_some_and(|next| next.bytes == b"(");
        let says_for = before.is_some_and(|before| before.is("FOR"));
        // Names of tables that are made on the way may have a list of columns.
        let is_named =
            before.is_some_and(|it| it.bytes == b")" || it.is("AS")) || defines_columns(&rest[number + 1..]);
        let has_schema = number >= 2
            && before.is_some_and(|before| before.bytes == b".")
            && begins_name(&rest[number - 2])
            && begins_name(token);
        let is_write = ["UPDATE", "DELETE", "INTO", "LOCK"].iter().any(|word| token.is(word))
            || !is_call && ["INSERT", "REPLACE"].iter().any(|word| token.is(word))
            || says_for && token.is("SHARE")
            || is_call && has_schema
            || is_call
                && !is_named
                && ["GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS"].iter().any(|word| token.is(word));
        let is_variable = token.bytes == b"@"
            && next.is_some_and(|next| next.bytes != b"@" || next.spaced)
            && before.is_none_or(|before| before.bytes != b"@" || token.spaced);
        if is_write || is_variable {
            return Some(String::from_utf8_lossy(token.bytes).into_owned());
        }
    }
    None
}

/// Whether a token can be a name and nothing else; one of digits may be part of a number.
fn begins_name(token: &Token<'_>) -> bool {
    let byte = token.bytes[0];
    byte == b'`' || is_name(byte) && !byte.is_ascii_digit()
}

/// Whether what is behind a name makes it one that a WITH gives: `(a, b) AS (`.
fn defines_columns(behind: &[Token<'_>]) -> bool {
    let Some(end) = behind.iter().position(|token| token.bytes == b")") else { return false };
    let Some(columns) = behind.get(1..end) else { return false };
    let is_a_column = |token: &Token<'_>| is_name(token.bytes[0]) || matches!(token.bytes[0], b'`' | b'"');
    let alternates = columns.iter().enumerate().all(|(number, token)| match number % 2 {
        0 => is_a_column(token),
        _ => token.bytes == b",",
    });
    let opens = matches!(&behind[end + 1..], [first, second, ..] if first.is("AS") && second.bytes == b"(");
    alternates && opens
}

/// Whether two hyphens would begin a comment with other space behind them.
fn ends_in_dashes(tokens: &[Token<'_>]) -> bool {
    tokens.windows(2).enumerate().any(|(number, pair)| {
        let is_free = tokens.get(number + 2).is_none_or(|behind| behind.spaced);
        pair[0].bytes == b"-" && pair[1].bytes == b"-" && !pair[1].spaced && is_free
    })
}

/// The same tokens with other white space and comments where there was some, and behind commas.
fn respaced(tokens: &[Token<'_>], draws: &mut Draws) -> Vec<u8> {
    const BETWEEN: [&[u8]; 8] = [
        b" ",
        b"\n\t",
        b" /* ; DELETE FROM t */ ",
        b" /**/",
        b" # it's\n",
        b" -- INTO \"\n",
        b"\r\n/* * / ' */\r\n",
        b"\x0b\x0c",
    ];
    let mut text = Vec::new();
    for (number, token) in tokens.iter().enumerate() {
        let behind_comma = number > 0 && tokens[number - 1].bytes == b",";
        if token.spaced || behind_comma && draws.below(2) == 0 {
            text.extend_from_slice(BETWEEN[draws.below(BETWEEN.len())]);
        }
        text.extend_from_slice(token.bytes);
    }
    text
}
