//! What is found out about a statement: closed sets, each with the words that `weir explain sql` prints.

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
            /// None of them.
            pub const NONE: $name = $name(0);
            $(#[doc = $meaning] pub const $flag: $name = $name(1 << $bit);)*
            /// Each flag with its word and its meaning.
            pub const ALL: &'static [($name, &'static str, &'static str)] =
                &[$(($name::$flag, $word, $meaning),)*];

            /// Whether there is none.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether any of `others` is there.
            pub const fn has(self, others: $name) -> bool {
                self.0 & others.0 != 0
            }

            /// Those of both.
            pub const fn and(self, others: $name) -> $name {
                $name(self.0 | others.0)
            }

            /// Those that `others` has not.
            pub const fn without(self, others: $name) -> $name {
                $name(self.0 & !others.0)
            }

            /// The words of those that are there.
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
    /// What kind of statement it is.
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
    /// Why a statement wants the member it wants. The first that holds, from the top.
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
    /// What a statement leaves on its connection that session trackers do not tell, or tell without what
    /// would be needed to say it again elsewhere.
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
    /// What only the next statement can ask for; all else stays until the connection is reset.
    pub const FOR_THE_NEXT: LeftBehind = LeftBehind::FOUND_ROWS.and(LeftBehind::INSERT_ID);

    /// What a single statement leaves only where it succeeds.
    pub const OF_SUCCESS: LeftBehind = LeftBehind::TEMPORARY_TABLE
        .and(LeftBehind::PREPARED)
        .and(LeftBehind::TABLE_LOCK)
        .and(LeftBehind::HANDLER)
        .and(LeftBehind::XA);

    /// What COM_RESET_CONNECTION leaves as it is (mysqld 9.7.4): such a connection is never another
    /// session's.
    pub const BEYOND_RESET: LeftBehind =
        LeftBehind::ROLE.and(LeftBehind::RESOURCE_GROUP).and(LeftBehind::OPTION);

    /// What of it a reset does not undo.
    pub const fn behind_reset(self) -> LeftBehind {
        self.without(self.without(LeftBehind::BEYOND_RESET))
    }

    /// Whether the session must keep its connection until a reset.
    pub const fn pins(self) -> bool {
        !self.without(LeftBehind::FOR_THE_NEXT).is_empty()
    }
}

flags! {
    /// What a statement asks about its connection that a statement before left there.
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
    /// What each statement replaces.
    pub const ABOUT_THE_LAST: ReadsBack =
        ReadsBack::FOUND_ROWS.and(ReadsBack::ROW_COUNT).and(ReadsBack::WARNINGS);
}

/// What a statement does to the session's transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionStep {
    /// Nothing by itself.
    #[default]
    None,
    /// Begins one, and commits the one before.
    Begin {
        /// It said READ ONLY.
        read_only: bool,
    },
    /// Ends it.
    Commit {
        /// The next one begins at once.
        chain: Completion,
        /// The server then closes the connection.
        release: Completion,
    },
    /// Ends it without effect.
    Rollback {
        /// The next one begins at once.
        chain: Completion,
        /// The server then closes the connection.
        release: Completion,
    },
    /// Commits it on the way.
    ImplicitCommit,
    /// `SET autocommit`; `None` where the value is no literal. Switching it on commits.
    Autocommit(Option<bool>),
    /// Several of these, or nobody knows: the server's status flags tell.
    Unclear {
        /// Autocommit may be switched on.
        autocommit: bool,
        /// One of them says that the server is to close the connection.
        releases: bool,
    },
}

impl TransactionStep {
    /// Whether the server closes the connection behind it, unless it refuses it; `as_set` says that it does
    /// where the statement does not say.
    pub fn releases(&self, as_set: bool) -> bool {
        match self {
            Self::Commit { release, .. } | Self::Rollback { release, .. } => release.holds(as_set),
            Self::Unclear { releases, .. } => *releases,
            Self::None | Self::Begin { .. } | Self::ImplicitCommit | Self::Autocommit(_) => false,
        }
    }

    /// Whether it may switch autocommit on, which ends a transaction but keeps what that said of itself, as
    /// READ ONLY, for the next statement.
    pub fn may_switch_autocommit_on(&self) -> bool {
        matches!(self, Self::Autocommit(Some(true) | None) | Self::Unclear { autocommit: true, .. })
    }
}

/// What a statement that ends a transaction says of AND CHAIN, or of RELEASE.
///
/// Source: MySQL 8.4 Reference Manual, "START TRANSACTION, COMMIT, and ROLLBACK Statements".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// That it is not to be.
    No,
    /// Nothing: `completion_type` decides.
    AsSet,
    /// That it is to be.
    Yes,
}

impl Completion {
    /// Whether it comes to that, where `as_set` is what `completion_type` decides.
    pub fn holds(self, as_set: bool) -> bool {
        match self {
            Self::No => false,
            Self::AsSet => as_set,
            Self::Yes => true,
        }
    }
}

/// Whether a text goes beyond a READ ONLY transaction that it comes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BeyondReadOnly {
    /// It changes nothing, or the transaction that it comes in is open meanwhile and refuses that.
    #[default]
    Nothing,
    /// It ends the transaction before anything else, and then may change something.
    AtOnce,
    /// It does something else in the transaction first.
    Later,
}

/// What a text does to the tables that its connection holds. One that was looked at is locked against
/// definitions until the transaction ends (MySQL 8.4 Reference Manual section 10.11.4), whatever the status
/// flags say: they tell only of engines that have transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableUse {
    /// It looks at none.
    Unused,
    /// It may look at some, or sets a savepoint, which lasts as long.
    Used,
    /// It ends the transaction, and looks at none behind that.
    Freed,
}

/// What `KILL` is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillTarget {
    /// Only the running statement (`KILL QUERY`), not the connection.
    pub query_only: bool,
    /// The connection's number; `None` where it is an expression.
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

/// What a listener's `access` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitAccess {
    /// `read-write`: all goes to the primary.
    #[default]
    ReadWrite,
    /// `read-only`: all goes to secondaries.
    ReadOnly,
    /// `auto`: each statement where it may run.
    Auto,
}

/// The transaction a session is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenTransaction {
    /// None.
    #[default]
    None,
    /// One that may write.
    ReadWrite,
    /// One that began with READ ONLY (`SERVER_STATUS_IN_TRANS_READONLY`).
    ReadOnly,
}

/// What must be known of the session to judge its next statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// The listener's.
    pub access: SplitAccess,
    /// From the server's last status flags.
    pub transaction: OpenTransaction,
    /// From the server's last status flags, or the tracked variable.
    pub autocommit: bool,
    /// By which rules its texts are read.
    pub dialect: crate::SqlDialect,
    /// Whether the tables of the default schema show what each server has of its own (`performance_schema`,
    /// `sys`): then a name without a schema may be one of those.
    pub is_in_own_schema: bool,
}

impl Default for SessionFacts {
    /// A new session by a server's own defaults on a listener with `access = "auto"`.
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

/// What a text wants, does and leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementVerdict {
    /// Where it may run.
    pub wants: RoleWanted,
    /// Why there.
    pub reason: RouteReason,
    /// Why its own text wants what it wants, whatever the session's state and the listener say.
    pub own_reason: RouteReason,
    /// What kind it is.
    pub kind: StatementKind,
    /// Statements in the text, those that are not empty.
    pub statements: u32,
    /// What it leaves on its connection.
    pub leaves: LeftBehind,
    /// What it asks about the statement before it.
    pub reads_back: ReadsBack,
    /// What it does to the transaction.
    pub transaction: TransactionStep,
    /// Whether the server may ask the client for a file: it said `LOAD DATA LOCAL`.
    pub local_infile: bool,
    /// What it is to end.
    pub kill: Option<KillTarget>,
    /// Whether it may be sent again.
    pub resend: Resend,
    /// Whether its text says that it changes, or locks, more than what is its connection's own. Of what it
    /// calls it says nothing: see [`StatementVerdict::may_change`].
    pub changes: bool,
    /// Whether it does so behind a READ ONLY transaction that is open before it.
    pub beyond_read_only: BeyondReadOnly,
    /// Whether, of several statements, the first is a COMMIT or ROLLBACK that does not say whether the next
    /// transaction begins behind it, READ ONLY as the one before: `completion_type` decides.
    pub ends_as_set: bool,
    /// What it does to the tables that its connection holds.
    pub tables: TableUse,
}

impl StatementVerdict {
    /// Whether it may change, or lock, more than what is its connection's own: what only the primary is to
    /// do.
    pub const fn may_change(&self) -> bool {
        self.changes || self.leaves.has(LeftBehind::ANYTHING)
    }

    /// Whether it can write nothing where transactions are READ ONLY unless a text says otherwise, whatever
    /// stored code it calls: that runs in the transaction of its statement, and can end none. It does not say
    /// otherwise itself, nor runs statements that are not in it, as CALL and EXECUTE do.
    ///
    /// A SET that reads a table is no such: it may say otherwise of the read that is in it.
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

    /// Whether all that runs is in its text: it looks at no table, behind which there may be a view or a
    /// trigger, and calls no function that is not built in.
    pub const fn runs_no_stored_code(&self) -> bool {
        matches!(self.tables, TableUse::Unused) && !self.leaves.has(LeftBehind::ANYTHING)
    }

    /// Whether it is refused to a session that is kept, by `pins`, at a server that is not the primary. A
    /// lock of GET_LOCK is asked for where all ask, unless the session has one there.
    pub const fn is_for_the_primary_alone(&self, pins: LeftBehind) -> bool {
        let locks = self.leaves.has(LeftBehind::USER_LOCK) && !pins.has(LeftBehind::USER_LOCK);
        self.may_change() || locks
    }
}
