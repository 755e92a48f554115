//! What `SET` changes, as far as its text shows.

use crate::lexer::{Lexer, SqlDialect, SqlToken};
use crate::reading::{Part, Reading, Walk, is_word};
use crate::state::is_tracked;
use crate::verdict::{LeftBehind, Resend, RouteReason, StatementKind, TableUse, TransactionStep};

/// Reads the rest of a `SET`, after its first word.
pub(crate) fn set(at: &mut Reading<'_>, part: &mut Part) {
    let two = |first: &[u8], second: &[u8]| is_word(at.token, first) && is_word(at.next, second);
    if is_word(at.token, b"PASSWORD") || two(b"DEFAULT", b"ROLE") {
        *part = Part::new(StatementKind::Account, RouteReason::Account, Resend::IfRefused);
        part.step = TransactionStep::ImplicitCommit;
    } else if is_word(at.token, b"ROLE") {
        part.leaves |= LeftBehind::ROLE;
    } else if two(b"RESOURCE", b"GROUP") {
        part.leaves |= LeftBehind::RESOURCE_GROUP;
    } else if is_word(at.token, b"TRANSACTION") {
        part.leaves |= LeftBehind::NEXT_TRANSACTION;
    } else if is_word(at.token, b"STATEMENT") {
        // MariaDB's SET STATEMENT sets variables for one statement, which may be any statement.
        part.leaves |= LeftBehind::ANYTHING;
        part.resend = Resend::Never;
    } else if is_word(at.token, b"NAMES")
        || is_word(at.token, b"CHARSET")
        || two(b"CHARACTER", b"SET")
        || two(b"CHAR", b"SET")
    {
        part.blurs_the_rest = true;
        // Variables may follow: `SET NAMES utf8mb4, autocommit = 0`.
        assignments(at, part, false);
        return;
    } else {
        assignments(at, part, true);
        return;
    }
    at.walk(part, Walk::default());
}

/// The collation that a `SET NAMES` gives to the connection and its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesCollation<'t> {
    /// The default collation of the character set.
    OfSet,
    /// This one.
    Named(&'t [u8]),
    /// The server's, for `DEFAULT`.
    OfServer,
}

/// Reads a text that consists of one `SET NAMES`; `None` for any other text.
pub fn collation_of_set_names(text: &[u8], dialect: SqlDialect) -> Option<NamesCollation<'_>> {
    let mut tokens = Lexer::new(text, dialect).filter(|token| *token != SqlToken::Semicolon);
    let mut next = || tokens.next();
    let is_set_names = is_word(next(), b"SET") && is_word(next(), b"NAMES");
    let set = next();
    let is_named = matches!(set, Some(SqlToken::Word(_) | SqlToken::Text(_) | SqlToken::Name(_)));
    if !is_set_names || !is_named {
        return None;
    }
    match next() {
        None if is_word(set, b"DEFAULT") => Some(NamesCollation::OfServer),
        None => Some(NamesCollation::OfSet),
        collate if is_word(collate, b"COLLATE") => match (next(), next()) {
            (Some(SqlToken::Word(name) | SqlToken::Text(name) | SqlToken::Name(name)), None) => {
                Some(NamesCollation::Named(name))
            }
            _ => None,
        },
        Some(_) => None,
    }
}

/// Reads assignments separated by commas. `at_name` is whether the first one begins here.
fn assignments(at: &mut Reading<'_>, part: &mut Part, at_name: bool) {
    let mut depth = 0_u32;
    let mut at_name = at_name;
    while !at.is_at_end() {
        if at_name {
            assignment(at, part);
            at_name = false;
            continue;
        }
        match at.token {
            Some(SqlToken::Open) => depth = depth.saturating_add(1),
            Some(SqlToken::Close) => depth = depth.saturating_sub(1),
            Some(SqlToken::Comma) if depth == 0 => at_name = true,
            _ => {}
        }
        value_token(at, part);
        at.advance();
    }
}

/// Reads one token of a value, with the same meaning as in any expression.
pub(crate) fn value_token(at: &mut Reading<'_>, part: &mut Part) {
    // A walk over a copy for this token alone would cost as much as a whole walk, so the token is interpreted
    // here.
    match at.token {
        Some(SqlToken::Irregular(_)) => part.unreadable(),
        Some(SqlToken::Word(word)) if at.next == Some(SqlToken::Open) => at.call(word, part),
        Some(SqlToken::Member(_) | SqlToken::Name(_)) if at.next == Some(SqlToken::Open) => {
            part.leaves |= LeftBehind::ANYTHING;
        }
        Some(SqlToken::UserVariable(_)) if at.next == Some(SqlToken::Assign) => {
            part.leaves |= LeftBehind::USER_VARIABLE;
        }
        Some(SqlToken::SystemVariable(name)) => at.system_variable(name, part),
        Some(SqlToken::Open) if [&b"SELECT"[..], b"TABLE", b"WITH"].iter().any(|it| is_word(at.next, it)) => {
            part.tables = TableUse::Used;
        }
        _ => {}
    }
}

/// The scope of a variable that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The session, given by a word or after `@@`.
    Session,
    /// `@@name`: for transaction characteristics, only the next transaction.
    Bare,
    /// The server, now or after its next start.
    Server,
}

/// Reads the name of one assignment, up to its `=`, and its value if that matters.
fn assignment(at: &mut Reading<'_>, part: &mut Part) {
    let mut scope = Scope::Session;
    let name: &[u8] = match at.token {
        Some(SqlToken::UserVariable(_)) => {
            part.leaves |= LeftBehind::USER_VARIABLE;
            return at.advance();
        }
        Some(SqlToken::SystemVariable(first)) => {
            at.advance();
            if at.token == Some(SqlToken::Dot) {
                at.advance();
                scope = scope_of(first).unwrap_or(Scope::Session);
                let name = name_at_hand(at);
                at.advance();
                name
            } else {
                scope = Scope::Bare;
                first
            }
        }
        Some(SqlToken::Word(word)) if scope_of(word).is_some() && at.next != Some(SqlToken::Dot) => {
            scope = scope_of(word).unwrap_or(Scope::Session);
            at.advance();
            if at.take(b"TRANSACTION") {
                // Sets a characteristic of all transactions of the session, which is a tracked variable.
                return;
            }
            let name = name_at_hand(at);
            at.advance();
            name
        }
        Some(SqlToken::Irregular(_)) | None => {
            part.unreadable();
            return at.advance();
        }
        _ => {
            let name = name_at_hand(at);
            at.advance();
            name
        }
    };
    // Otherwise it is `component.variable` or not a name, neither of which is tracked.
    let is_plain = matches!(at.token, Some(SqlToken::Assign | SqlToken::Symbol(b'=')));
    if scope == Scope::Server {
        part.resend = Resend::IfRefused;
        part.changes = true;
        return;
    }
    if !is_plain || name.is_empty() {
        part.leaves |= LeftBehind::VARIABLE;
        return;
    }
    at.advance();
    note(at, part, name, scope);
}

fn note(at: &Reading<'_>, part: &mut Part, name: &[u8], scope: Scope) {
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    if is(b"autocommit") {
        part.step = TransactionStep::Autocommit(switch(at));
    } else if is(b"sql_mode") || is(b"character_set_client") || is(b"charset") {
        part.blurs_the_rest = true;
    }
    let is_characteristic = is(b"transaction_isolation")
        || is(b"transaction_read_only")
        || is(b"tx_isolation")
        || is(b"tx_read_only");
    if is_characteristic && scope == Scope::Bare {
        part.leaves |= LeftBehind::NEXT_TRANSACTION;
    } else if is(b"last_insert_id") || is(b"identity") {
        part.leaves |= LeftBehind::INSERT_ID;
    } else if !is_tracked(name) {
        part.leaves |= LeftBehind::VARIABLE;
    }
}

/// The current literal as on or off, if it is the whole value.
fn switch(at: &Reading<'_>) -> Option<bool> {
    let text = match at.token {
        Some(SqlToken::Word(text) | SqlToken::Number(text) | SqlToken::Text(text)) => text,
        _ => return None,
    };
    if !matches!(at.next, None | Some(SqlToken::Semicolon | SqlToken::Comma)) {
        return None;
    }
    let is = |word: &[u8]| text.eq_ignore_ascii_case(word);
    match () {
        () if is(b"1") || is(b"ON") || is(b"TRUE") => Some(true),
        () if is(b"0") || is(b"OFF") || is(b"FALSE") => Some(false),
        () => None,
    }
}

fn name_at_hand<'t>(at: &Reading<'t>) -> &'t [u8] {
    match at.token {
        Some(SqlToken::Word(name) | SqlToken::Member(name) | SqlToken::Name(name)) => name,
        _ => b"",
    }
}

fn scope_of(word: &[u8]) -> Option<Scope> {
    let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
    if is(b"SESSION") || is(b"LOCAL") {
        Some(Scope::Session)
    } else if is(b"GLOBAL") || is(b"PERSIST") || is(b"PERSIST_ONLY") {
        Some(Scope::Server)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_names_tells_its_collation() {
        let told = |text: &'static str| collation_of_set_names(text.as_bytes(), SqlDialect::default());
        assert_eq!(told("set names utf8mb4;"), Some(NamesCollation::OfSet));
        assert_eq!(told("/* hello */ SET NAMES 'latin1'"), Some(NamesCollation::OfSet));
        assert_eq!(told("SET NAMES DEFAULT"), Some(NamesCollation::OfServer));
        let named = Some(NamesCollation::Named(b"utf8mb4_unicode_ci"));
        assert_eq!(told("SET NAMES utf8mb4 COLLATE utf8mb4_unicode_ci"), named);
        assert_eq!(told("SET NAMES 'utf8mb4' COLLATE 'utf8mb4_unicode_ci'"), named);
        for unclear in [
            "SET NAMES utf8mb4, collation_connection = 'utf8mb4_bin'",
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin, autocommit = 0",
            "SET NAMES utf8mb4; SET collation_connection = 'utf8mb4_bin'",
            "SET CHARACTER SET utf8mb4",
            "SET NAMES",
            "",
        ] {
            assert_eq!(told(unclear), None, "{unclear}");
        }
    }
}
