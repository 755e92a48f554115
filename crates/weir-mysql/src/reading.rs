//! Walks over one statement's tokens and notes what they say about it, whatever its verb.

use crate::functions::{Called, called};
use crate::lexer::{Lexer, SqlDialect, SqlToken};
use crate::verdict::{
    BeyondReadOnly, KillTarget, LeftBehind, ReadsBack, Resend, RoleWanted, RouteReason, StatementKind,
    TableUse, TransactionStep,
};

/// What is known of one statement of a text.
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
    /// Whether what follows may be read by other rules, or holds more of the same statement.
    pub blurs_the_rest: bool,
    /// See [`crate::StatementVerdict::changes`].
    pub changes: bool,
    /// See [`crate::StatementVerdict::tables`].
    pub tables: TableUse,
    /// What of it is beyond a READ ONLY transaction, where more than its step says so.
    pub beyond: Option<BeyondReadOnly>,
    /// Of several statements: one of them may have ended a READ ONLY transaction.
    pub leaves_read_only: bool,
    /// Of several statements: the first ends the transaction that it comes in.
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

    /// Whether it may change, or lock, more than what is its connection's own.
    pub fn may_change(&self) -> bool {
        self.changes || self.leaves.has(LeftBehind::ANYTHING)
    }

    /// What of it is beyond a READ ONLY transaction that it comes in. What a routine does there is not seen.
    pub fn beyond_read_only(&self) -> BeyondReadOnly {
        self.beyond.unwrap_or(match self.step {
            TransactionStep::ImplicitCommit if self.changes => BeyondReadOnly::AtOnce,
            _ => BeyondReadOnly::Nothing,
        })
    }

    /// Notes a reason against reading elsewhere; the first one stays.
    pub fn refuse(&mut self, reason: RouteReason) {
        self.changes |= reason.changes();
        if self.reason.wants() == RoleWanted::AnyMember {
            self.reason = reason;
        }
    }

    /// Notes that nobody can say what the statement does.
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

/// How a statement's tokens are to be taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// It is a read unless a word says otherwise.
    pub reads: bool,
    /// Names before brackets are no calls, until a SELECT, TABLE or VALUES comes.
    pub defines: bool,
    /// A table's name comes first, which a bracket may follow.
    pub target: bool,
    /// User variables in it are assigned to.
    pub assigns: bool,
}

/// A place in a text: the token at hand, the one before and the one behind it.
#[derive(Clone, Debug)]
pub(crate) struct Reading<'t> {
    pub lexer: Lexer<'t>,
    pub before: Option<SqlToken<'t>>,
    pub token: Option<SqlToken<'t>>,
    pub next: Option<SqlToken<'t>>,
    /// Whether white space or a comment stands before `next`.
    next_is_spaced: bool,
    ignores_space: bool,
}

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

    /// Goes past the token at hand if it is this word, and says whether it was.
    pub fn take(&mut self, word: &[u8]) -> bool {
        let found = is_word(self.token, word);
        if found {
            self.advance();
        }
        found
    }

    /// Goes to the end of a text that cannot be read from here on.
    pub fn give_up(&mut self, part: &mut Part) {
        part.unreadable();
        while self.token.is_some() {
            self.advance();
        }
    }

    /// The word at hand, with its letters as they came.
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

    /// Goes to the statement's end and notes what its tokens say. `WITH`, if that was its first word, is
    /// still at hand.
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
                            // Not of partitions, which are `LESS THAN (1)` and `IN (1)`.
                            counts_calls |= is_word(self.next, b"ROW");
                            target = false;
                        }
                        Keyword::From => part.tables = TableUse::Used,
                        Keyword::Table => {
                            part.tables = TableUse::Used;
                            counts_calls = true;
                            // LOAD DATA has a list of columns behind the name.
                            target = is_word(self.before, b"INTO");
                        }
                        Keyword::Into => {
                            // An INSERT that is explained, not a SELECT.
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

    /// Whether the name at hand is one that a WITH gives, before names of its columns: `, name (a, b) AS (`.
    /// Behind no call comes that, so it need not be known where the list of a WITH ends.
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
            // MariaDB takes the next number of a sequence so.
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

    /// A name before a dot may be a schema whose tables show what one server has of its own; behind one, it
    /// may be such a table.
    fn name(&self, name: &[u8], part: &mut Part) {
        let is_own_table = self.is_behind_dot()
            && (starts_with(name, b"INNODB_") || name.eq_ignore_ascii_case(b"PROCESSLIST"));
        let is_own = match name.len() {
            3 => name.eq_ignore_ascii_case(b"sys"),
            18 => name.eq_ignore_ascii_case(b"performance_schema"),
            _ => false,
        };
        if is_own_table || is_own && matches!(self.next, Some(SqlToken::Dot)) {
            part.refuse(RouteReason::ServerState);
        }
    }

    pub fn system_variable(&self, name: &'t [u8], part: &mut Part) {
        let mut name = name;
        if self.next == Some(SqlToken::Dot) {
            // Of `@@session.name` the name is two tokens on.
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
        }
    }

    /// Whether a dot stands before the token at hand, with or without white space between.
    fn is_behind_dot(&self) -> bool {
        self.before == Some(SqlToken::Dot)
    }

    /// Notes a call, with the function's name at hand.
    pub fn call(&self, name: &[u8], part: &mut Part) {
        // What has a schema is a stored function, whatever its name.
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

/// Whether a token is this word, in any case.
pub(crate) fn is_word(token: Option<SqlToken<'_>>, wanted: &[u8]) -> bool {
    matches!(token, Some(SqlToken::Word(word)) if word.eq_ignore_ascii_case(wanted))
}

fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|front| front.eq_ignore_ascii_case(prefix))
}

impl StatementKind {
    /// What such a statement does to tables without a `FROM` or `TABLE` in its text.
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
            // With autocommit off one is kept until the next COMMIT, and no status flag tells of it either.
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

/// Words that say something wherever they stand: all but one are reserved, so no name without quotes is one.
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
    // By length and first letter at most one is left to be compared.
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
