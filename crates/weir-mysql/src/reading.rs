//! Walks over the tokens of one statement and collects what they imply, whatever its verb.

use crate::functions::{Called, called};
use crate::lexer::{Lexer, SqlDialect, SqlToken};
use crate::verdict::{
    BeyondReadOnly, KillTarget, LeftBehind, ReadsBack, Resend, RoleWanted, RouteReason, StatementKind,
    TableUse, TransactionStep,
};

/// What is known about one statement of a text, or about all of them so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub kind: StatementKind,
    pub reason: RouteReason,
    pub leaves: LeftBehind,
    pub reads_back: ReadsBack,
    pub step: TransactionStep,
    pub local_infile: bool,
    pub kill: Option<KillTarget>,
    pub resend: Resend,
    /// Whether the text after it may follow other rules, or may still belong to this statement.
    pub blurs_the_rest: bool,
    /// See [`crate::StatementVerdict::changes`].
    pub changes: bool,
    /// See [`crate::StatementVerdict::tables`].
    pub tables: TableUse,
    /// How far it goes beyond a READ ONLY transaction; `None` if its transaction step decides.
    pub beyond: Option<BeyondReadOnly>,
    /// For several statements: whether one of them may have ended a READ ONLY transaction.
    pub leaves_read_only: bool,
    /// For several statements: whether the first ends the transaction that is open when the text arrives.
    pub ends_at_once: bool,
    /// See [`crate::StatementVerdict::ends_as_set`].
    pub ends_as_set: bool,
}

impl Part {
    pub fn new(kind: StatementKind, reason: RouteReason, resend: Resend) -> Part {
        Part {
            kind,
            reason,
            leaves: LeftBehind::NONE,
            reads_back: ReadsBack::NONE,
            step: TransactionStep::None,
            local_infile: false,
            kill: None,
            resend,
            blurs_the_rest: false,
            changes: reason.changes(),
            tables: kind.tables_unnamed(),
            beyond: None,
            leaves_read_only: false,
            ends_at_once: false,
            ends_as_set: false,
        }
    }

    /// Whether it may change, or lock, more than the state of its own connection.
    pub fn may_change(&self) -> bool {
        self.changes || self.leaves.has(LeftBehind::ANYTHING)
    }

    /// How far it goes beyond a READ ONLY transaction that is open when it arrives. Effects of a routine on
    /// the transaction are not visible here.
    pub fn beyond_read_only(&self) -> BeyondReadOnly {
        self.beyond.unwrap_or(match self.step {
            TransactionStep::ImplicitCommit if self.changes => BeyondReadOnly::AtOnce,
            _ => BeyondReadOnly::Nothing,
        })
    }

    /// Notes a reason for running on the primary; the first one is kept.
    pub fn refuse(&mut self, reason: RouteReason) {
        self.changes |= reason.changes();
        if self.reason.wants() == RoleWanted::AnyMember {
            self.reason = reason;
        }
    }

    /// Notes that the effects of the statement are unknown.
    pub fn unreadable(&mut self) {
        self.reason = RouteReason::Unreadable;
        self.changes = true;
        self.tables = TableUse::Used;
        self.leaves |= LeftBehind::ANYTHING;
        self.reads_back |= ReadsBack::ANYTHING;
        self.step = TransactionStep::Unclear { autocommit: true, releases: false };
        self.resend = Resend::Never;
    }
}

/// How to interpret a statement's tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// It is a read unless a keyword says otherwise.
    pub reads: bool,
    /// Names before parentheses are not calls, until a SELECT, TABLE or VALUES.
    pub defines: bool,
    /// A table name comes first, and a parenthesis may follow it.
    pub target: bool,
    /// User variables in it are assigned.
    pub assigns: bool,
}

/// A position in a text: the current token, the previous one and the next one.
#[derive(Clone, Debug)]
pub(crate) struct Reading<'t> {
    pub lexer: Lexer<'t>,
    pub before: Option<SqlToken<'t>>,
    pub token: Option<SqlToken<'t>>,
    pub next: Option<SqlToken<'t>>,
    /// Whether white space or a comment precedes `next`.
    next_is_spaced: bool,
    ignores_space: bool,
}

/// Tables of `information_schema` with numbers that each server measures or counts by itself: sizes, rows,
/// cardinalities, times of changes, and the next AUTO_INCREMENT, of which a replica does not know what the
/// primary has given away in vain.
///
/// Source: MySQL 8.4 Reference Manual, "Optimizing INFORMATION_SCHEMA Queries" (cached statistics).
const MEASURED: [&[u8]; 4] = [b"TABLES", b"STATISTICS", b"PARTITIONS", b"FILES"];
/// Tables of `mysql` that are not replicated.
const OF_SERVER_IN_MYSQL: [&[u8]; 6] = [
    b"general_log",
    b"slow_log",
    b"gtid_executed",
    b"slave_master_info",
    b"slave_relay_log_info",
    b"slave_worker_info",
];

impl<'t> Reading<'t> {
    pub fn new(text: &'t [u8], dialect: SqlDialect) -> Reading<'t> {
        let mut lexer = Lexer::new(text, dialect);
        let token = lexer.next();
        let next = lexer.next();
        let next_is_spaced = lexer.spaced();
        let ignores_space = dialect.mode.ignore_space();
        Reading { lexer, before: None, token, next, next_is_spaced, ignores_space }
    }

    pub fn advance(&mut self) {
        self.before = self.token;
        self.token = self.next;
        self.next = self.lexer.next();
        self.next_is_spaced = self.lexer.spaced();
    }

    /// Skips the current token if it is this word, and returns whether it was.
    pub fn take(&mut self, word: &[u8]) -> bool {
        let found = is_word(self.token, word);
        if found {
            self.advance();
        }
        found
    }

    /// Moves to the end of a text that cannot be read any further.
    pub fn give_up(&mut self, part: &mut Part) {
        part.unreadable();
        while self.token.is_some() {
            self.advance();
        }
    }

    /// The current word, in its original case.
    pub fn word(&self) -> Option<&'t [u8]> {
        match self.token {
            Some(SqlToken::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Whether the statement ends here.
    pub fn is_at_end(&self) -> bool {
        matches!(self.token, None | Some(SqlToken::Semicolon))
    }

    /// Moves to the end of the statement and notes what its tokens imply. If `WITH` is its first word, that
    /// is still the current token.
    pub fn walk(&mut self, part: &mut Part, how: Walk) {
        let mut target = how.target;
        let mut counts_calls = !how.defines;
        let mut is_assigned = how.assigns;
        let mut has_with = false;
        while !self.is_at_end() {
            let Some(token) = self.token else { return };
            let may_be_called = matches!(self.next, Some(SqlToken::Open)) && counts_calls && !target;
            let is_called = may_be_called
                && self.before != Some(SqlToken::Close)
                && !is_word(self.before, b"AS")
                && !(has_with && self.has_columns_of_with());
            match token {
                SqlToken::Irregular(_) => return self.give_up(part),
                SqlToken::Open => target = false,
                SqlToken::UserVariable(_) => {
                    part.refuse(RouteReason::UserVariable);
                    if is_assigned || matches!(self.next, Some(SqlToken::Assign)) {
                        part.leaves |= LeftBehind::USER_VARIABLE;
                    }
                }
                SqlToken::SystemVariable(name) => self.system_variable(name, part),
                SqlToken::Member(name) | SqlToken::Name(name) => {
                    if is_called {
                        unknown_call(part);
                    }
                    self.name(name, part);
                }
                SqlToken::Word(word) => {
                    if is_called {
                        self.call(word, part);
                    }
                    self.name(word, part);
                    match keyword(word) {
                        Keyword::None => {}
                        Keyword::With => {
                            has_with = true;
                            target = false;
                        }
                        Keyword::Select => {
                            counts_calls = true;
                            target = false;
                        }
                        Keyword::Values => {
                            // Not the VALUES of partitions: `LESS THAN (1)` and `IN (1)`.
                            counts_calls |= is_word(self.next, b"ROW");
                            target = false;
                        }
                        Keyword::From => part.tables = TableUse::Used,
                        Keyword::Table => {
                            part.tables = TableUse::Used;
                            counts_calls = true;
                            // In LOAD DATA, a column list follows the name.
                            target = is_word(self.before, b"INTO");
                        }
                        Keyword::Into => {
                            // EXPLAIN of an INSERT, not a SELECT.
                            target = !how.reads || part.reason == RouteReason::Write;
                            is_assigned |= !target;
                            if !target {
                                self.select_into(part);
                            }
                        }
                        Keyword::CalcFoundRows => part.leaves |= LeftBehind::FOUND_ROWS,
                        verb if how.reads => self.verb_in_read(verb, part),
                        _ => {}
                    }
                }
                _ => {}
            }
            self.advance();
        }
    }

    /// Whether the current name is a common table expression with a column list: `, name (a, b) AS (`. No
    /// function call is followed by that, so the end of the WITH list need not be known.
    fn has_columns_of_with(&self) -> bool {
        let may_begin = self.before == Some(SqlToken::Comma)
            || is_word(self.before, b"WITH")
            || is_word(self.before, b"RECURSIVE");
        let mut behind = self.lexer.clone();
        while may_begin && matches!(behind.next(), Some(SqlToken::Word(_) | SqlToken::Name(_))) {
            match behind.next() {
                Some(SqlToken::Comma) => {}
                Some(SqlToken::Close) => {
                    return is_word(behind.next(), b"AS") && behind.next() == Some(SqlToken::Open);
                }
                _ => return false,
            }
        }
        false
    }

    fn verb_in_read(&self, verb: Keyword, part: &mut Part) {
        match verb {
            Keyword::InsertOrReplace if self.next == Some(SqlToken::Open) => {}
            Keyword::Update if is_word(self.before, b"FOR") => {}
            Keyword::InsertOrReplace | Keyword::Update | Keyword::Delete => {
                part.refuse(RouteReason::Write);
                if part.kind == StatementKind::Select {
                    part.kind = StatementKind::Write;
                }
            }
            Keyword::Lock => part.refuse(RouteReason::LockingRead),
            Keyword::For if is_word(self.next, b"UPDATE") || is_word(self.next, b"SHARE") => {
                part.refuse(RouteReason::LockingRead);
            }
            Keyword::For if is_word(self.next, b"CONNECTION") => part.refuse(RouteReason::ServerState),
            // MariaDB's NEXT VALUE FOR advances a sequence.
            Keyword::For if is_word(self.before, b"VALUE") => unknown_call(part),
            _ => {}
        }
    }

    fn select_into(&self, part: &mut Part) {
        match self.next {
            Some(SqlToken::UserVariable(_)) => part.refuse(RouteReason::IntoVariable),
            next if is_word(next, b"OUTFILE") || is_word(next, b"DUMPFILE") => {
                part.refuse(RouteReason::IntoFile);
                part.resend = Resend::Never;
            }
            _ => {
                part.refuse(RouteReason::IntoVariable);
                part.leaves |= LeftBehind::ANYTHING;
            }
        }
    }

    /// A name before a dot may be a schema whose tables show state of the individual server; a name after a
    /// dot may be such a table.
    fn name(&self, name: &[u8], part: &mut Part) {
        let is_own_table = self.is_behind_dot()
            && (starts_with(name, b"INNODB_") || name.eq_ignore_ascii_case(b"PROCESSLIST"));
        let is_own = match name.len() {
            3 => name.eq_ignore_ascii_case(b"sys"),
            5 if name.eq_ignore_ascii_case(b"mysql") => self.is_before_one_of(&OF_SERVER_IN_MYSQL),
            18 if name.eq_ignore_ascii_case(b"information_schema") => self.is_before_one_of(&MEASURED),
            18 => name.eq_ignore_ascii_case(b"performance_schema"),
            _ => false,
        };
        if is_own_table || is_own && matches!(self.next, Some(SqlToken::Dot)) {
            part.refuse(RouteReason::ServerState);
        }
    }

    /// Whether the next tokens are a dot and one of these names.
    #[cold]
    fn is_before_one_of(&self, names: &[&[u8]]) -> bool {
        let member = match self.lexer.clone().next() {
            Some(SqlToken::Member(name) | SqlToken::Word(name) | SqlToken::Name(name)) => name,
            _ => return false,
        };
        self.next == Some(SqlToken::Dot) && names.iter().any(|name| member.eq_ignore_ascii_case(name))
    }

    pub fn system_variable(&self, name: &'t [u8], part: &mut Part) {
        let mut name = name;
        if self.next == Some(SqlToken::Dot) {
            // For `@@session.name`, the name is two tokens further.
            match self.lexer.clone().next() {
                Some(SqlToken::Member(member) | SqlToken::Word(member) | SqlToken::Name(member)) => {
                    name = member
                }
                _ => return part.unreadable(),
            }
        }
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"last_insert_id") || is(b"identity") || is(b"insert_id") {
            part.reads_back |= ReadsBack::INSERT_ID;
            part.refuse(RouteReason::LastResult);
        } else if is(b"warning_count") || is(b"error_count") {
            part.reads_back |= ReadsBack::WARNINGS;
            part.refuse(RouteReason::LastResult);
        } else if is(b"pseudo_thread_id") {
            part.reads_back |= ReadsBack::CONNECTION_ID;
            part.refuse(RouteReason::ConnectionId);
        } else if is(b"read_only") || is(b"super_read_only") || is(b"innodb_read_only") {
            // Whoever asks wants to know whether this client can write.
            part.refuse(RouteReason::ServerState);
        }
    }

    /// Whether a dot precedes the current token, with or without white space between.
    fn is_behind_dot(&self) -> bool {
        self.before == Some(SqlToken::Dot)
    }

    /// Notes a function call; the current token is the function's name.
    pub fn call(&self, name: &[u8], part: &mut Part) {
        // A function with a schema is a stored function, whatever its name.
        if self.is_behind_dot() {
            return unknown_call(part);
        }
        let back = match called(name, self.ignores_space || !self.next_is_spaced) {
            Called::Pure | Called::Grammar => return,
            Called::UserLock => {
                part.leaves |= LeftBehind::USER_LOCK;
                return part.refuse(RouteReason::ServerFunction);
            }
            Called::OneServer => return part.refuse(RouteReason::ServerFunction),
            Called::Unknown => return unknown_call(part),
            Called::LastInsertId if self.lexer.clone().next() != Some(SqlToken::Close) => {
                part.leaves |= LeftBehind::INSERT_ID;
                return part.refuse(RouteReason::LastResult);
            }
            Called::ConnectionId => {
                part.reads_back |= ReadsBack::CONNECTION_ID;
                return part.refuse(RouteReason::ConnectionId);
            }
            Called::LastInsertId => ReadsBack::INSERT_ID,
            Called::FoundRows => ReadsBack::FOUND_ROWS,
            Called::RowCount => ReadsBack::ROW_COUNT,
        };
        part.reads_back |= back;
        part.refuse(RouteReason::LastResult);
    }
}

pub(crate) fn unknown_call(part: &mut Part) {
    part.refuse(RouteReason::UnknownFunction);
    part.leaves |= LeftBehind::ANYTHING;
}

/// Whether a token is this word; the case does not matter.
pub(crate) fn is_word(token: Option<SqlToken<'_>>, wanted: &[u8]) -> bool {
    matches!(token, Some(SqlToken::Word(word)) if word.eq_ignore_ascii_case(wanted))
}

fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|front| front.eq_ignore_ascii_case(prefix))
}

impl StatementKind {
    /// The table use of such a statement if its text has no `FROM` or `TABLE`.
    fn tables_unnamed(self) -> TableUse {
        match self {
            StatementKind::Empty
            | StatementKind::Select
            | StatementKind::Begin
            | StatementKind::End
            | StatementKind::Set
            | StatementKind::Use
            | StatementKind::Do
            | StatementKind::Diagnostics
            | StatementKind::Kill
            | StatementKind::Xa => TableUse::Unused,
            // With autocommit off, a savepoint lasts until the next COMMIT, and no status flag shows it.
            StatementKind::Savepoint
            | StatementKind::Show
            | StatementKind::Write
            | StatementKind::Definition
            | StatementKind::Account
            | StatementKind::Lock
            | StatementKind::Handler
            | StatementKind::Prepared
            | StatementKind::Call
            | StatementKind::Administration
            | StatementKind::Several
            | StatementKind::Unknown => TableUse::Used,
        }
    }
}

/// Words with the same meaning in every position: all but one are reserved, so an unquoted name cannot be one
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyword {
    None,
    Select,
    With,
    Values,
    From,
    Table,
    Into,
    InsertOrReplace,
    Update,
    Delete,
    For,
    Lock,
    CalcFoundRows,
}

fn keyword(word: &[u8]) -> Keyword {
    // Length and first letter leave at most one word to compare.
    let first = word.first().map_or(0, u8::to_ascii_uppercase);
    let (found, keyword): (&[u8], Keyword) = match (word.len(), first) {
        (3, b'F') => (b"FOR", Keyword::For),
        (3, b'S') => (b"SET", Keyword::Values),
        (4, b'F') => (b"FROM", Keyword::From),
        (4, b'I') => (b"INTO", Keyword::Into),
        (4, b'W') => (b"WITH", Keyword::With),
        (4, b'L') => (b"LOCK", Keyword::Lock),
        (5, b'T') => (b"TABLE", Keyword::Table),
        (5, b'V') => (b"VALUE", Keyword::Values),
        (6, b'S') => (b"SELECT", Keyword::Select),
        (6, b'V') => (b"VALUES", Keyword::Values),
        (6, b'U') => (b"UPDATE", Keyword::Update),
        (6, b'D') => (b"DELETE", Keyword::Delete),
        (6, b'I') => (b"INSERT", Keyword::InsertOrReplace),
        (7, b'R') => (b"REPLACE", Keyword::InsertOrReplace),
        (19, b'S') => (b"SQL_CALC_FOUND_ROWS", Keyword::CalcFoundRows),
        _ => return Keyword::None,
    };
    if word.eq_ignore_ascii_case(found) { keyword } else { Keyword::None }
}
