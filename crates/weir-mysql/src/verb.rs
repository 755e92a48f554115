//! Classifies one statement by its first words. All verbs are in this one file, so that whoever adds one sees
//! the others.

use crate::lexer::SqlToken;
use crate::reading::{Part, Reading, Walk, is_word};
use crate::set::{set, value_token};
use crate::verdict::{
    BeyondReadOnly, Completion, KillTarget, LeftBehind, ReadsBack, Resend, RouteReason,
    StatementKind as Kind, TableUse, TransactionStep,
};

/// The walk over a read.
const READ: Walk = Walk { reads: true, defines: false, target: false, assigns: false };

/// Classifies the next statement that is not empty, and moves to its end; `None` if there is none.
pub(crate) fn part(at: &mut Reading<'_>) -> Option<Part> {
    while matches!(at.token, Some(SqlToken::Semicolon)) {
        at.advance();
    }
    at.token?;
    // Nothing precedes the statement, so `before` must be empty.
    at.before = None;
    let is_bracketed = matches!(at.token, Some(SqlToken::Open));
    let mut part = match if is_bracketed { word_in_brackets(at) } else { at.word() } {
        Some(word) if is_read(word) => read(at, Kind::Select, RouteReason::PlainRead),
        Some(word) if !is_bracketed => by_verb(at, word),
        _ => unknown(at),
    };
    // The rest of the statement, if the verb's own function has not read all of it.
    at.walk(&mut part, Walk::default());
    let frees = match part.step {
        TransactionStep::Commit { .. } | TransactionStep::Rollback { .. } => true,
        // UNLOCK commits only after LOCK.
        TransactionStep::ImplicitCommit => part.kind != Kind::Lock,
        _ => false,
    };
    if frees {
        part.tables = TableUse::Freed;
    }
    Some(part)
}

/// The first word after opening parentheses, if nothing else precedes it.
fn word_in_brackets<'t>(at: &Reading<'t>) -> Option<&'t [u8]> {
    let mut inner = at.clone();
    while matches!(inner.token, Some(SqlToken::Open)) {
        inner.advance();
    }
    inner.word()
}

fn is_read(word: &[u8]) -> bool {
    let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
    match word.len() {
        6 => is(b"SELECT") || is(b"VALUES"),
        5 => is(b"TABLE"),
        4 => is(b"WITH"),
        _ => false,
    }
}

fn read(at: &mut Reading<'_>, kind: Kind, reason: RouteReason) -> Part {
    let mut part = Part::new(kind, reason, Resend::Anywhere);
    at.walk(&mut part, READ);
    part
}

fn unknown(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Unknown, RouteReason::Unknown, Resend::Never);
    part.leaves |= LeftBehind::ANYTHING;
    part.step = TransactionStep::Unclear { autocommit: true, releases: false };
    part.blurs_the_rest = true;
    at.walk(&mut part, Walk::default());
    part
}

/// Marks a part as one that runs statements that are not in the text.
fn runs_unseen(part: &mut Part) {
    part.leaves |= LeftBehind::ANYTHING;
    part.step = TransactionStep::Unclear { autocommit: true, releases: false };
    part.blurs_the_rest = true;
}

/// A statement other than SELECT; the reading is at its first word.
fn by_verb(at: &mut Reading<'_>, word: &[u8]) -> Part {
    let mut upper = [0; 12];
    let Some(upper) = upper.get_mut(..word.len()) else { return unknown(at) };
    upper.copy_from_slice(word);
    upper.make_ascii_uppercase();
    let verb: &[u8] = upper;
    if matches!(verb, b"START" | b"RELEASE" | b"GET" | b"LOAD" | b"LOCK" | b"UNLOCK" | b"RESET") {
        return by_two_words(at, verb);
    }
    let simple = |kind, reason, resend| Part::new(kind, reason, resend);
    let (mut part, walk) = match verb {
        b"INSERT" | b"REPLACE" => {
            let part = simple(Kind::Write, RouteReason::Write, Resend::IfRefused);
            (part, Walk { target: true, ..Walk::default() })
        }
        b"UPDATE" | b"DELETE" => {
            (simple(Kind::Write, RouteReason::Write, Resend::IfRefused), Walk::default())
        }
        b"SHOW" => return show(at),
        b"EXPLAIN" | b"DESCRIBE" | b"DESC" => return explain(at),
        b"SET" => {
            let mut part = simple(Kind::Set, RouteReason::Setting, Resend::IfRefused);
            at.advance();
            set(at, &mut part);
            return part;
        }
        b"BEGIN" => {
            let mut part = simple(Kind::Begin, RouteReason::Transaction, Resend::IfRefused);
            part.step = TransactionStep::Begin { read_only: false };
            part.changes = true;
            (part, Walk::default())
        }
        b"COMMIT" | b"ROLLBACK" => return end(at, verb == b"COMMIT"),
        b"SAVEPOINT" => (simple(Kind::Savepoint, RouteReason::Transaction, Resend::Never), Walk::default()),
        b"USE" => (simple(Kind::Use, RouteReason::Setting, Resend::IfRefused), Walk::default()),
        b"CREATE" | b"DROP" | b"ALTER" | b"RENAME" | b"TRUNCATE" => return definition(at),
        b"GRANT" | b"REVOKE" => {
            let mut part = simple(Kind::Account, RouteReason::Account, Resend::IfRefused);
            part.step = TransactionStep::ImplicitCommit;
            (part, Walk { defines: true, ..Walk::default() })
        }
        b"CALL" => {
            let mut part = simple(Kind::Call, RouteReason::Call, Resend::Never);
            runs_unseen(&mut part);
            (part, Walk::default())
        }
        b"DO" => (simple(Kind::Do, RouteReason::Effect, Resend::IfRefused), Walk::default()),
        b"HANDLER" => return handler(at),
        b"PREPARE" | b"EXECUTE" | b"DEALLOCATE" => {
            let mut part = simple(Kind::Prepared, RouteReason::Prepared, Resend::Never);
            part.leaves |= LeftBehind::PREPARED;
            if verb == b"EXECUTE" {
                runs_unseen(&mut part);
            }
            (part, Walk::default())
        }
        b"KILL" => return kill(at),
        b"XA" => {
            let mut part = simple(Kind::Xa, RouteReason::Xa, Resend::Never);
            part.leaves |= LeftBehind::XA;
            part.step = TransactionStep::Unclear { autocommit: false, releases: false };
            (part, Walk::default())
        }
        b"FLUSH" => return flush(at),
        b"ANALYZE" | b"OPTIMIZE" | b"REPAIR" | b"CHECK" | b"CACHE" | b"CHANGE" | b"STOP" | b"INSTALL"
        | b"UNINSTALL" => {
            let mut part = simple(Kind::Administration, RouteReason::Administration, Resend::Never);
            part.step = TransactionStep::ImplicitCommit;
            (part, Walk::default())
        }
        b"CHECKSUM" | b"HELP" | b"PURGE" | b"SHUTDOWN" | b"RESTART" | b"CLONE" | b"IMPORT" => {
            let part = simple(Kind::Administration, RouteReason::Administration, Resend::Never);
            (part, Walk::default())
        }
        _ => return unknown(at),
    };
    at.advance();
    at.walk(&mut part, walk);
    part
}

/// HANDLER. Only OPEN leaves a handler: READ and CLOSE need one that is already open.
fn handler(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Handler, RouteReason::Handler, Resend::Never);
    if at.lexer.clone().any(|token| is_word(Some(token), b"OPEN")) {
        part.leaves |= LeftBehind::HANDLER;
    }
    at.advance();
    at.walk(&mut part, Walk::default());
    part
}

/// Verbs that need their second word to be classified.
fn by_two_words(at: &mut Reading<'_>, verb: &[u8]) -> Part {
    let second = |word: &[u8]| is_word(at.next, word);
    let (kind, reason, resend) = match verb {
        b"START" if second(b"TRANSACTION") => return start_transaction(at),
        b"LOAD" if second(b"DATA") || second(b"XML") => return load(at),
        b"RELEASE" if second(b"SAVEPOINT") => (Kind::Savepoint, RouteReason::Transaction, Resend::Never),
        b"GET" => (Kind::Diagnostics, RouteReason::LastResult, Resend::Never),
        b"LOCK" | b"UNLOCK" => (Kind::Lock, RouteReason::Lock, Resend::Never),
        b"START" | b"LOAD" | b"RESET" => (Kind::Administration, RouteReason::Administration, Resend::Never),
        _ => return unknown(at),
    };
    let mut part = Part::new(kind, reason, resend);
    match kind {
        Kind::Diagnostics => {
            part.reads_back |= ReadsBack::WARNINGS;
            let mut words = at.lexer.clone().take_while(|token| *token != SqlToken::Semicolon);
            if words.any(|token| is_word(Some(token), b"ROW_COUNT")) {
                part.reads_back |= ReadsBack::ROW_COUNT;
            }
            at.advance();
            at.walk(&mut part, Walk { assigns: true, ..Walk::default() });
        }
        Kind::Lock => {
            part.changes = verb == b"LOCK";
            if part.changes {
                part.leaves |= LeftBehind::TABLE_LOCK;
            }
            if second(b"TABLES") || second(b"TABLE") {
                part.step = TransactionStep::ImplicitCommit;
            }
        }
        Kind::Administration => part.step = TransactionStep::ImplicitCommit,
        _ => {}
    }
    part
}

fn start_transaction(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Begin, RouteReason::Transaction, Resend::IfRefused);
    let (mut read_only, mut read_write) = (false, false);
    at.advance();
    while !at.is_at_end() {
        if is_word(at.token, b"READ") && is_word(at.next, b"ONLY") {
            read_only = true;
        }
        read_write |= is_word(at.token, b"READ") && is_word(at.next, b"WRITE");
        if let Some(SqlToken::Irregular(_)) = at.token {
            at.give_up(&mut part);
            return part;
        }
        at.advance();
    }
    part.step = TransactionStep::Begin { read_only };
    part.changes = !read_only;
    // Without an access mode, the new transaction stays READ ONLY if the one before was.
    part.beyond = read_write.then_some(BeyondReadOnly::AtOnce);
    if read_only {
        part.reason = RouteReason::ReadOnlyTransaction;
        part.resend = Resend::Anywhere;
    }
    part
}

/// COMMIT, ROLLBACK and their options.
fn end(at: &mut Reading<'_>, commits: bool) -> Part {
    let mut part = Part::new(Kind::End, RouteReason::Transaction, Resend::Never);
    at.advance();
    at.take(b"WORK");
    if !commits && is_word(at.token, b"TO") {
        part.kind = Kind::Savepoint;
        return part;
    }
    // MySQL has no `COMMIT PREPARE`; the options are AND [NO] CHAIN and [NO] RELEASE.
    let (mut chain, mut release) = (Completion::AsSet, Completion::AsSet);
    while !at.is_at_end() {
        let said = if is_word(at.before, b"NO") { Completion::No } else { Completion::Yes };
        if is_word(at.token, b"CHAIN") {
            chain = said;
        }
        if is_word(at.token, b"RELEASE") {
            release = said;
        }
        if let Some(SqlToken::Irregular(_)) = at.token {
            at.give_up(&mut part);
            return part;
        }
        at.advance();
    }
    part.step = match commits {
        true => TransactionStep::Commit { chain, release },
        false => TransactionStep::Rollback { chain, release },
    };
    part
}

fn load(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Write, RouteReason::Write, Resend::IfRefused);
    // Its OK packet reports no insert id, whatever LAST_INSERT_ID() returns afterwards.
    part.leaves |= LeftBehind::INSERT_ID;
    at.advance();
    at.advance();
    let _ = at.take(b"LOW_PRIORITY") || at.take(b"CONCURRENT");
    let _ = at.take(b"FROM");
    if is_word(at.token, b"LOCAL") && is_word(at.next, b"INFILE") {
        part.local_infile = true;
        part.resend = Resend::Never;
    }
    at.walk(&mut part, Walk { assigns: true, defines: false, target: false, reads: false });
    part
}

fn show(at: &mut Reading<'_>) -> Part {
    at.advance();
    while at.take(b"FULL")
        || at.take(b"EXTENDED")
        || at.take(b"GLOBAL")
        || at.take(b"SESSION")
        || at.take(b"LOCAL")
    {}
    let word = at.word().unwrap_or_default();
    let is_one_of = |words: &[&[u8]]| words.iter().any(|other| word.eq_ignore_ascii_case(other));
    let is_shared = is_one_of(&[
        b"DATABASES",
        b"SCHEMAS",
        b"TABLES",
        b"COLUMNS",
        b"FIELDS",
        b"CREATE",
        b"TRIGGERS",
        b"EVENTS",
        b"CHARACTER",
        b"CHARSET",
        b"COLLATION",
        b"PLUGINS",
        b"PRIVILEGES",
        b"GRANTS",
        b"VARIABLES",
        b"ENGINES",
        b"STORAGE",
    ]) || is_one_of(&[b"PROCEDURE", b"FUNCTION"]) && is_word(at.next, b"STATUS");
    let clauses = at.clone();
    let mut part = read(at, Kind::Show, RouteReason::Metadata);
    if is_one_of(&[b"VARIABLES"]) {
        variables_named(clauses, &mut part);
    }
    if is_one_of(&[b"WARNINGS", b"ERRORS", b"COUNT"]) {
        part.refuse(RouteReason::LastResult);
        part.reads_back |= ReadsBack::WARNINGS;
    } else if !is_shared {
        part.refuse(RouteReason::ServerState);
    }
    part
}

/// SHOW VARIABLES can show variables about the previous statement, or about one server: `LIKE
/// 'last_insert_id'`, `LIKE '%read\_only'`.
fn variables_named(mut at: Reading<'_>, part: &mut Part) {
    while !at.is_at_end() {
        if let Some(SqlToken::Text(name)) = at.token {
            at.system_variable(name, part);
            let letters = name.iter().filter(|byte| !matches!(byte, b'%' | b'\\'));
            if letters.rev().take(9).map(u8::to_ascii_lowercase).eq(b"read_only".iter().rev().copied()) {
                part.refuse(RouteReason::ServerState);
            }
        }
        at.advance();
    }
}

fn explain(at: &mut Reading<'_>) -> Part {
    at.advance();
    let mut runs = false;
    loop {
        if at.take(b"ANALYZE") {
            runs = true;
        } else if is_word(at.token, b"FORMAT") && at.next == Some(SqlToken::Symbol(b'=')) {
            at.advance();
            at.advance();
            if !is_format(at.token) {
                break;
            }
            at.advance();
        } else if !at.take(b"EXTENDED") && !at.take(b"PARTITIONS") {
            break;
        }
    }
    // ANALYZE runs the statement, so it counts as any other read.
    let reason = if runs { RouteReason::PlainRead } else { RouteReason::Metadata };
    at.before = None;
    read(at, Kind::Show, reason)
}

/// Whether a token is a valid value of `FORMAT = `. Any other token is read as part of the statement.
fn is_format(token: Option<SqlToken<'_>>) -> bool {
    let words: [&[u8]; 3] = [b"TRADITIONAL", b"JSON", b"TREE"];
    words.iter().any(|word| is_word(token, word))
        || matches!(token, Some(SqlToken::Name(_) | SqlToken::Text(_)))
}

fn kill(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Kill, RouteReason::Kill, Resend::Never);
    at.advance();
    let query_only = at.take(b"QUERY");
    if !query_only {
        at.take(b"CONNECTION");
    }
    let id = match (at.token, at.next) {
        (Some(SqlToken::Number(digits)), None | Some(SqlToken::Semicolon)) => {
            std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok())
        }
        _ => None,
    };
    part.kill = Some(KillTarget { query_only, id });
    part
}

fn flush(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Administration, RouteReason::Administration, Resend::Never);
    part.step = TransactionStep::ImplicitCommit;
    at.advance();
    while !at.is_at_end() {
        let holds = is_word(at.token, b"WITH") && is_word(at.next, b"READ")
            || is_word(at.token, b"FOR") && is_word(at.next, b"EXPORT");
        if holds {
            part.leaves |= LeftBehind::TABLE_LOCK;
            part.reason = RouteReason::Lock;
            part.kind = Kind::Lock;
        }
        if let Some(SqlToken::Irregular(_)) = at.token {
            at.give_up(&mut part);
            return part;
        }
        at.advance();
    }
    part
}

/// CREATE, ALTER, DROP, RENAME, TRUNCATE.
fn definition(at: &mut Reading<'_>) -> Part {
    let mut part = Part::new(Kind::Definition, RouteReason::Definition, Resend::IfRefused);
    part.step = TransactionStep::ImplicitCommit;
    let drops = is_word(at.token, b"DROP");
    at.advance();
    if drops && is_word(at.token, b"PREPARE") {
        let mut part = Part::new(Kind::Prepared, RouteReason::Prepared, Resend::Never);
        part.leaves |= LeftBehind::PREPARED;
        return part;
    }
    // The words before the kind of object: OR REPLACE, DEFINER = ..., SQL SECURITY ..., TEMPORARY.
    for _ in 0..MOST_WORDS_BEFORE_THE_OBJECT {
        let Some(word) = at.word() else {
            if at.is_at_end() || matches!(at.token, Some(SqlToken::Irregular(_) | SqlToken::Open)) {
                break;
            }
            at.advance();
            continue;
        };
        let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
        if is(b"TEMPORARY") {
            part.leaves |= LeftBehind::TEMPORARY_TABLE;
            part.reason = RouteReason::TemporaryTable;
            part.changes = false;
            part.step = TransactionStep::None;
        } else if is(b"USER") || is(b"ROLE") {
            part.kind = Kind::Account;
            part.reason = RouteReason::Account;
            break;
        } else if is(b"PROCEDURE") || is(b"FUNCTION") || is(b"TRIGGER") || is(b"EVENT") || is(b"LIBRARY") {
            return routine(at, part, is(b"EVENT"));
        } else if is(b"TABLE") {
            at.advance();
            break;
        } else if is(b"TABLES") || is(b"VIEW") || is(b"INDEX") || is(b"DATABASE") || is(b"SCHEMA") {
            break;
        }
        at.advance();
    }
    at.walk(&mut part, Walk { defines: true, ..Walk::default() });
    part
}

/// Most tokens between CREATE and the word for the kind of object.
const MOST_WORDS_BEFORE_THE_OBJECT: usize = 24;

/// The definition of a routine. Its body may contain semicolons, and nothing in it runs now. The schedule of
/// an event, which comes before the body, is evaluated now.
fn routine(at: &mut Reading<'_>, mut part: Part, is_event: bool) -> Part {
    let (mut in_times, mut depth) = (false, 0_u32);
    while let Some(token) = at.token {
        match token {
            SqlToken::Open => depth = depth.saturating_add(1),
            SqlToken::Close => depth = depth.saturating_sub(1),
            _ if is_event && is_word(at.token, b"SCHEDULE") => in_times = true,
            _ if depth == 0 && is_word(at.token, b"DO") && at.before != Some(SqlToken::Dot) => {
                in_times = false
            }
            _ => {}
        }
        if in_times {
            value_token(at, &mut part);
        }
        // Only the full grammar could tell whether the routine ends here.
        if matches!(token, SqlToken::Semicolon) && at.next.is_some() {
            part.leaves |= LeftBehind::ANYTHING;
            part.step = TransactionStep::Unclear { autocommit: true, releases: false };
            part.resend = Resend::Never;
        }
        if let SqlToken::Irregular(_) = token {
            at.give_up(&mut part);
        }
        at.advance();
    }
    part
}
