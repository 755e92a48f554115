//! The properties of a statement: closed sets, each with the words that `weir explain sql` prints.

/// Declares an enum whose values have a word and a meaning.
macro_rules! worded {
    ($(#[$outer:meta])* $name:ident { $($variant:ident = $word:literal, $meaning:literal;)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $(#[doc = $meaning] $variant,)* }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Its word, for logs, metrics and status.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// Its meaning, as a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $($name::$variant => $meaning,)* }
            }
        }
    };
}

/// Declares a set of flags, each with a word.
macro_rules! flags {
    ($(#[$outer:meta])* $name:ident { $($flag:ident = $bit:literal, $word:literal, $meaning:literal;)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            /// The empty set.
            pub const NONE: $name = $name(0);
            $(#[doc = $meaning] pub const $flag: $name = $name(1 << $bit);)*
            /// Each flag with its word and its meaning.
            pub const ALL: &'static [($name, &'static str, &'static str)] =
                &[$(($name::$flag, $word, $meaning),)*];

            /// Whether the set is empty.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether the set has any of `others`.
            pub const fn has(self, others: $name) -> bool {
                self.0 & others.0 != 0
            }

            /// The union of both sets.
            pub const fn and(self, others: $name) -> $name {
                $name(self.0 | others.0)
            }

            /// The flags of this set that are not in `others`.
            pub const fn without(self, others: $name) -> $name {
                $name(self.0 & !others.0)
            }

            /// The words of the flags in the set.
            pub fn words(self) -> impl Iterator<Item = &'static str> {
                $name::ALL.iter().filter(move |(flag, ..)| self.has(*flag)).map(|(_, word, _)| *word)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, others: $name) {
                self.0 |= others.0;
            }
        }
    };
}

worded! {
    /// Where a statement may run.
    RoleWanted {
        Primary = "primary", "The primary, which alone takes writes.";
        AnyMember = "any", "Any member that serves reads.";
    }
}

worded! {
    /// The kind of a statement.
    StatementKind {
        Empty = "empty", "Nothing but white space, comments and semicolons.";
        Select = "select", "SELECT, TABLE, VALUES, WITH.";
        Show = "show", "SHOW, DESCRIBE, EXPLAIN.";
        Write = "write", "INSERT, UPDATE, DELETE, REPLACE, LOAD DATA.";
        Definition = "definition", "CREATE, ALTER, DROP, RENAME, TRUNCATE.";
        Account = "account", "Accounts, roles, grants, passwords.";
        Begin = "begin", "BEGIN, START TRANSACTION.";
        End = "end", "COMMIT, ROLLBACK.";
        Savepoint = "savepoint", "SAVEPOINT, RELEASE SAVEPOINT, ROLLBACK TO.";
        Set = "set", "SET.";
        Use = "use", "USE.";
        Lock = "lock", "LOCK, UNLOCK.";
        Handler = "handler", "HANDLER.";
        Prepared = "prepared", "PREPARE, EXECUTE, DEALLOCATE PREPARE.";
        Call = "call", "CALL.";
        Do = "do", "DO.";
        Diagnostics = "diagnostics", "GET DIAGNOSTICS.";
        Kill = "kill", "KILL.";
        Xa = "xa", "XA.";
        Administration = "administration", "FLUSH, ANALYZE, CHANGE REPLICATION SOURCE and others.";
        Several = "several", "More than one statement in one text.";
        Unknown = "unknown", "Not recognised.";
    }
}

worded! {
    /// Why a statement needs the role that it needs: the first reason, from the top, that applies.
    RouteReason {
        ReadWriteListener = "read_write_listener", "The listener has `access = \"read-write\"`.";
        ReadOnlyListener = "read_only_listener", "The listener has `access = \"read-only\"`.";
        InTransaction = "in_transaction", "A transaction is open.";
        InReadOnlyTransaction = "in_read_only_transaction", "A transaction is open that said READ ONLY.";
        HintedPrimary = "hinted_primary", "A comment or a query attribute of the client asks for the primary.";
        HintedSecondary = "hinted_secondary", "A comment or a query attribute of the client says that any member will do.";
        AutocommitOff = "autocommit_off", "Autocommit is off, so any statement opens a transaction.";
        PlainRead = "plain_read", "It reads, and calls only functions that change nothing.";
        Metadata = "metadata", "It reads definitions that all members share, or a variable.";
        ReadOnlyTransaction = "read_only_transaction", "It begins a transaction that says READ ONLY.";
        Unreadable = "unreadable", "The text cannot be read with certainty to its end.";
        NotWhole = "not_whole", "The text is longer than what is read of it.";
        SeveralStatements = "several_statements", "Statements that come in one text run in one place.";
        ExecutableComment = "executable_comment", "It has a comment whose content the server may run.";
        Write = "write", "It changes rows.";
        Definition = "definition", "It changes definitions.";
        Account = "account", "It changes accounts or grants.";
        Transaction = "transaction", "It begins or ends a transaction.";
        LockingRead = "locking_read", "It locks the rows it reads.";
        IntoVariable = "into_variable", "It selects into a variable.";
        IntoFile = "into_file", "It writes a file on the server.";
        UserVariable = "user_variable", "It has a user variable.";
        UnknownFunction = "unknown_function", "It calls a function that is not known to be built in.";
        HiddenCode = "hidden_code", "It names a table or view with stored code that leaves what nobody tells (`hidden_code`).";
        ServerFunction = "server_function", "It calls a function about one server, such as GET_LOCK.";
        LastResult = "last_result", "It asks about the statement before it.";
        ConnectionId = "connection_id", "It asks for the connection's number.";
        ServerState = "server_state", "It shows what each server has of its own.";
        Setting = "setting", "It changes the session.";
        Effect = "effect", "DO evaluates for its effects.";
        TemporaryTable = "temporary_table", "It makes or drops a temporary table.";
        Lock = "lock", "It takes or gives back locks of a connection.";
        Handler = "handler", "HANDLER belongs to a connection.";
        Prepared = "prepared", "It is about a statement prepared by name.";
        Call = "call", "A routine can do anything.";
        Kill = "kill", "KILL goes where its connection is.";
        Xa = "xa", "XA transactions belong to the primary.";
        Administration = "administration", "It administers a server.";
        Cursor = "cursor", "It leaves rows, or takes pieces of a parameter, that are fetched or used on the same connection.";
        OtherSchema = "other_schema", "It was prepared in another schema than the session's: its server tells of a change to that and back, behind which what stored code leaves does not show.";
        Empty = "empty", "There is nothing to run.";
        Unknown = "unknown", "It is not known what it does.";
    }
}

flags! {
    /// State that a statement leaves on its connection and that session trackers do not report, or do not
    /// report fully enough to recreate it on another connection.
    LeftBehind {
        USER_VARIABLE = 0, "user_variable", "A user variable.";
        TEMPORARY_TABLE = 1, "temporary_table", "A temporary table.";
        PREPARED = 2, "prepared", "A statement prepared by name.";
        USER_LOCK = 3, "user_lock", "A lock of GET_LOCK.";
        TABLE_LOCK = 4, "table_lock", "LOCK TABLES, FLUSH TABLES WITH READ LOCK, LOCK INSTANCE.";
        ROLE = 5, "role", "The roles of SET ROLE.";
        HANDLER = 6, "handler", "An open HANDLER.";
        RESOURCE_GROUP = 7, "resource_group", "A resource group.";
        XA = 8, "xa", "An XA transaction.";
        VARIABLE = 9, "variable", "A session variable that is not among the tracked ones.";
        NEXT_TRANSACTION = 10, "next_transaction", "A characteristic of the next transaction alone.";
        FOUND_ROWS = 11, "found_rows", "The count of SQL_CALC_FOUND_ROWS.";
        INSERT_ID = 12, "insert_id", "The value given to LAST_INSERT_ID(n), or the first id that LOAD DATA has given.";
        ANYTHING = 13, "anything", "Nobody knows: an unknown function, a routine, a text that cannot be read.";
        OPTION = 14, "option", "An option of COM_SET_OPTION, or that it is a replica (COM_REGISTER_SLAVE).";
    }
}

impl LeftBehind {
    /// State that only the next statement can ask for. All other state stays until the connection is reset.
    pub const FOR_THE_NEXT: LeftBehind = LeftBehind::FOUND_ROWS.and(LeftBehind::INSERT_ID);

    /// State that a single statement leaves only if it succeeds.
    pub const OF_SUCCESS: LeftBehind = LeftBehind::TEMPORARY_TABLE
        .and(LeftBehind::PREPARED)
        .and(LeftBehind::TABLE_LOCK)
        .and(LeftBehind::HANDLER)
        .and(LeftBehind::XA);

    /// State that COM_RESET_CONNECTION does not remove (mysqld 9.7.4). A connection with such state is never
    /// given to another session.
    pub const BEYOND_RESET: LeftBehind =
        LeftBehind::ROLE.and(LeftBehind::RESOURCE_GROUP).and(LeftBehind::OPTION);

    /// The part of this state that survives a reset.
    pub const fn behind_reset(self) -> LeftBehind {
        self.without(self.without(LeftBehind::BEYOND_RESET))
    }

    /// Whether the session must keep its connection until it is reset.
    pub const fn pins(self) -> bool {
        !self.without(LeftBehind::FOR_THE_NEXT).is_empty()
    }
}

flags! {
    /// State of its connection that a statement asks for and that an earlier statement left there.
    ReadsBack {
        INSERT_ID = 0, "last_insert_id", "LAST_INSERT_ID(), @@last_insert_id.";
        FOUND_ROWS = 1, "found_rows", "FOUND_ROWS().";
        ROW_COUNT = 2, "row_count", "ROW_COUNT().";
        WARNINGS = 3, "warnings", "SHOW WARNINGS, SHOW ERRORS, GET DIAGNOSTICS, @@warning_count.";
        CONNECTION_ID = 4, "connection_id", "CONNECTION_ID(), @@pseudo_thread_id.";
        ANYTHING = 5, "anything", "Nobody knows: a text that cannot be read.";
    }
}

impl ReadsBack {
    /// State that every statement replaces.
    pub const ABOUT_THE_LAST: ReadsBack =
        ReadsBack::FOUND_ROWS.and(ReadsBack::ROW_COUNT).and(ReadsBack::WARNINGS);
}

/// The effect of a statement on the session's transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionStep {
    /// None by itself.
    #[default]
    None,
    /// Begins a transaction, and commits the one before.
    Begin {
        /// Whether it says READ ONLY.
        read_only: bool,
    },
    /// Commits the transaction.
    Commit {
        /// Whether the next transaction begins at once.
        chain: Completion,
        /// Whether the server then closes the connection.
        release: Completion,
    },
    /// Rolls the transaction back.
    Rollback {
        /// Whether the next transaction begins at once.
        chain: Completion,
        /// Whether the server then closes the connection.
        release: Completion,
    },
    /// Commits the transaction implicitly.
    ImplicitCommit,
    /// `SET autocommit`; `None` if the value is not a literal. Turning it on commits.
    Autocommit(Option<bool>),
    /// Several of these, or unknown: the server's status flags show the outcome.
    Unclear {
        /// Whether it may turn autocommit on.
        autocommit: bool,
        /// Whether one of the steps makes the server close the connection.
        releases: bool,
    },
}

impl TransactionStep {
    /// Whether the server closes the connection after the statement, unless the statement fails. `as_set` is
    /// whether `completion_type` is RELEASE, which decides if the statement says nothing.
    pub fn releases(&self, as_set: bool) -> bool {
        match self {
            Self::Commit { release, .. } | Self::Rollback { release, .. } => release.holds(as_set),
            Self::Unclear { releases, .. } => *releases,
            Self::None | Self::Begin { .. } | Self::ImplicitCommit | Self::Autocommit(_) => false,
        }
    }

    /// Whether it may turn autocommit on. That ends a transaction, but the next statement keeps its
    /// characteristics, such as READ ONLY.
    pub fn may_switch_autocommit_on(&self) -> bool {
        matches!(self, Self::Autocommit(Some(true) | None) | Self::Unclear { autocommit: true, .. })
    }
}

/// Whether a statement that ends a transaction has AND CHAIN, or RELEASE.
///
/// Source: MySQL 8.4 Reference Manual, "START TRANSACTION, COMMIT, and ROLLBACK Statements".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It has NO CHAIN, or NO RELEASE.
    No,
    /// It has neither: `completion_type` decides.
    AsSet,
    /// It has CHAIN, or RELEASE.
    Yes,
}

impl Completion {
    /// Whether the option is in effect; `as_set` is what `completion_type` says.
    pub fn holds(self, as_set: bool) -> bool {
        match self {
            Self::No => false,
            Self::AsSet => as_set,
            Self::Yes => true,
        }
    }
}

/// Whether a text that arrives in a READ ONLY transaction has an effect outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BeyondReadOnly {
    /// It changes nothing, or it stays in the open transaction, which refuses changes.
    #[default]
    Nothing,
    /// It ends the transaction first, and then may change something.
    AtOnce,
    /// It first does something in the transaction, then ends it and may change something.
    Later,
}

/// The effect of a text on the metadata locks of its connection. A table that was used stays locked against
/// DDL until the transaction ends (MySQL 8.4 Reference Manual section 10.11.4). The status flags do not show
/// this: they cover only transactional engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableUse {
    /// It uses no table.
    Unused,
    /// It may use tables, or sets a savepoint, which lasts as long.
    Used,
    /// It ends the transaction and uses no table after that.
    Freed,
}

/// The target of `KILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillTarget {
    /// Whether only the running statement ends (`KILL QUERY`), not the connection.
    pub query_only: bool,
    /// The connection id; `None` if it is an expression.
    pub id: Option<u64>,
}

worded! {
    /// Whether a statement may be sent again, while no byte of an answer has gone to the client.
    Resend {
        Anywhere = "anywhere", "A read that leaves nothing behind: on any member, whatever became of the first.";
        IfRefused = "if_refused", "Only where the server refused it as read-only: 1836, or 1290 that says so.";
        Never = "never", "Part of it may have happened.";
    }
}

/// A listener's `access` setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitAccess {
    /// `read-write`: all goes to the primary.
    #[default]
    ReadWrite,
    /// `read-only`: all goes to secondaries.
    ReadOnly,
    /// `auto`: each statement goes where it may run.
    Auto,
}

/// The session's open transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenTransaction {
    /// None.
    #[default]
    None,
    /// It may write.
    ReadWrite,
    /// It began as READ ONLY (`SERVER_STATUS_IN_TRANS_READONLY`).
    ReadOnly,
}

/// The facts about a session that decide how its next statement is classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// The listener's setting.
    pub access: SplitAccess,
    /// From the server's last status flags.
    pub transaction: OpenTransaction,
    /// From the server's last status flags, or the tracked variable.
    pub autocommit: bool,
    /// The rules by which its statements are read.
    pub dialect: crate::SqlDialect,
    /// Whether the tables of the default schema show state of the individual server (`performance_schema`,
    /// `sys`). Then a name without a schema may be one of those tables.
    pub is_in_own_schema: bool,
}

impl Default for SessionFacts {
    /// A new session with a server's defaults, on a listener with `access = "auto"`.
    fn default() -> SessionFacts {
        SessionFacts {
            access: SplitAccess::Auto,
            transaction: OpenTransaction::None,
            autocommit: true,
            dialect: crate::SqlDialect::default(),
            is_in_own_schema: false,
        }
    }
}

/// The result of classifying a text: what it needs, does and leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementVerdict {
    /// The role of the servers where it may run.
    pub wants: RoleWanted,
    /// The reason for `wants`.
    pub reason: RouteReason,
    /// The reason from the text alone, regardless of the session's state and the listener.
    pub own_reason: RouteReason,
    /// The kind of statement.
    pub kind: StatementKind,
    /// The number of statements in the text, not counting empty ones.
    pub statements: u32,
    /// The state that it leaves on its connection.
    pub leaves: LeftBehind,
    /// What it asks about earlier statements on its connection.
    pub reads_back: ReadsBack,
    /// Its effect on the transaction.
    pub transaction: TransactionStep,
    /// Whether it contains `LOAD DATA LOCAL`, so that the server may ask the client for a file.
    pub local_infile: bool,
    /// The target, if it is a `KILL`.
    pub kill: Option<KillTarget>,
    /// Whether it may be sent again.
    pub resend: Resend,
    /// Whether its text shows that it changes, or locks, more than the state of its own connection. This does
    /// not cover the functions and routines that it calls: see [`StatementVerdict::may_change`].
    pub changes: bool,
    /// Whether it does so outside of a READ ONLY transaction that is open when it arrives.
    pub beyond_read_only: BeyondReadOnly,
    /// Whether the first of several statements is a COMMIT or ROLLBACK without [NO] CHAIN. Then
    /// `completion_type` decides whether the next transaction begins at once, READ ONLY like the one before.
    pub ends_as_set: bool,
    /// Its effect on the metadata locks of its connection.
    pub tables: TableUse,
}

impl StatementVerdict {
    /// Whether it may change, or lock, more than the state of its own connection, so that it must run on the
    /// primary.
    pub const fn may_change(&self) -> bool {
        self.changes || self.leaves.has(LeftBehind::ANYTHING)
    }

    /// Whether it can write nothing while transactions are READ ONLY by default, whatever stored code it
    /// calls: stored code runs in the transaction of its statement and cannot end it. The statement itself
    /// must not override the default, and must not run statements that are not in its text, as CALL and
    /// EXECUTE do.
    ///
    /// False for a SET that reads a table: it may override the default for the read that it contains.
    pub fn keeps_read_only(&self) -> bool {
        if self.statements > 1 || self.beyond_read_only != BeyondReadOnly::Nothing {
            return false;
        }
        match self.kind {
            StatementKind::Begin => !self.leaves.has(LeftBehind::ANYTHING),
            StatementKind::Select | StatementKind::Show | StatementKind::Do => !self.changes,
            StatementKind::Set => !self.may_change() && self.tables == TableUse::Unused,
            StatementKind::Empty
            | StatementKind::End
            | StatementKind::Savepoint
            | StatementKind::Use
            | StatementKind::Handler
            | StatementKind::Prepared
            | StatementKind::Diagnostics
            | StatementKind::Kill
            | StatementKind::Administration => !self.may_change(),
            StatementKind::Write
            | StatementKind::Definition
            | StatementKind::Account
            | StatementKind::Lock
            | StatementKind::Call
            | StatementKind::Xa
            | StatementKind::Several
            | StatementKind::Unknown => false,
        }
    }

    /// Whether everything that runs is in its text. It then uses no table, which could be a view or have a
    /// trigger, and calls only built-in functions.
    pub const fn runs_no_stored_code(&self) -> bool {
        matches!(self.tables, TableUse::Unused) && !self.leaves.has(LeftBehind::ANYTHING)
    }

    /// Whether a server that answers with a syntax error has run nothing. The error may otherwise be one of a
    /// text that stored code has prepared, or of a SIGNAL.
    pub fn runs_nothing_if_unparsed(&self) -> bool {
        let is_misspelt = self.kind == StatementKind::Unknown && self.own_reason != RouteReason::Unreadable;
        is_misspelt || self.runs_no_stored_code()
    }

    /// Whether a server that is not the primary must not run it for a session that is kept on its connection
    /// by `pins`. GET_LOCK belongs on the primary, where all sessions take locks, unless the session already
    /// holds one here.
    pub const fn is_for_the_primary_alone(&self, pins: LeftBehind) -> bool {
        let locks = self.leaves.has(LeftBehind::USER_LOCK) && !pins.has(LeftBehind::USER_LOCK);
        self.may_change() || locks
    }
}
