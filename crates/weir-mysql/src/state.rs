//! The part of a session's state that servers report through session trackers: the default schema and a list
//! of system variables. With it, another connection can be brought to the same state. The tracker gets a list
//! of names rather than `*`, because `*` makes each point read a quarter more expensive for the server.

mod steps;

use std::sync::LazyLock;
use std::time::Duration;

pub use self::steps::StateStep;
use self::steps::is_plain;
use crate::charset::ClientCharset;
use crate::lexer::SqlDialect;
use crate::session_track::{TrackedChange, TrackedChanges};
use crate::sql_mode::SqlMode;
use crate::wire_error::WireError;

/// How a variable's value is written in SET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueForm {
    Text,
    Number,
    /// ON or OFF. A server reports these words in a tracker, but 1 and 0 when the value is selected.
    Switch,
    /// Text or NULL. Servers report NULL as an empty value.
    TextOrNull,
}

/// The system variables that are tracked by name and value. MySQL 8.0 and later has all of them. If setting
/// one variable also changes others, those come after it, so that one SET in this order gives each variable
/// its value.
///
/// Source: MySQL 9.x reference manual, "Server Tracking of Client Session State",
/// `session_track_system_variables`.
const TRACKED: [(&str, ValueForm); VARIABLES] = [
    ("autocommit", ValueForm::Switch),
    ("character_set_client", ValueForm::Text),
    ("character_set_connection", ValueForm::Text),
    ("character_set_results", ValueForm::TextOrNull),
    ("collation_connection", ValueForm::Text),
    ("completion_type", ValueForm::Text),
    ("div_precision_increment", ValueForm::Number),
    ("foreign_key_checks", ValueForm::Switch),
    ("group_concat_max_len", ValueForm::Number),
    ("innodb_lock_wait_timeout", ValueForm::Number),
    ("interactive_timeout", ValueForm::Number),
    ("lc_time_names", ValueForm::Text),
    ("lock_wait_timeout", ValueForm::Number),
    ("max_execution_time", ValueForm::Number),
    ("net_read_timeout", ValueForm::Number),
    ("net_write_timeout", ValueForm::Number),
    ("sql_mode", ValueForm::Text),
    ("sql_safe_updates", ValueForm::Switch),
    ("sql_select_limit", ValueForm::Number),
    ("time_zone", ValueForm::Text),
    ("transaction_isolation", ValueForm::Text),
    ("transaction_read_only", ValueForm::Switch),
    ("unique_checks", ValueForm::Switch),
    ("wait_timeout", ValueForm::Number),
];

const VARIABLES: usize = 24;

/// The variables of [`TRACKED`] that control how transactions begin and end.
const OF_TRANSACTIONS: [&str; 4] =
    ["autocommit", "completion_type", "transaction_isolation", "transaction_read_only"];

const CLIENT_SET: usize = 1;
const CONNECTION_SET: usize = 2;
const RESULTS_SET: usize = 3;
const COLLATION: usize = 4;
const COMPLETION: usize = 5;
const READ_ONLY: usize = 21;
const _: () = {
    let names: [(usize, &[u8]); 6] = [
        (CLIENT_SET, b"character_set_client"),
        (CONNECTION_SET, b"character_set_connection"),
        (RESULTS_SET, b"character_set_results"),
        (COLLATION, b"collation_connection"),
        (COMPLETION, b"completion_type"),
        (READ_ONLY, b"transaction_read_only"),
    ];
    let mut at = 0;
    while at < names.len() {
        let (index, name) = names[at];
        assert!(TRACKED[index].0.as_bytes().eq_ignore_ascii_case(name));
        at += 1;
    }
};

/// Timeouts of a server that waits for its client. The server's client is Weir, so each connection keeps its
/// own values until a client sets one: a session does not inherit the timeouts that an older connection
/// started with.
const OF_WAITS: [&str; 4] = ["interactive_timeout", "net_read_timeout", "net_write_timeout", "wait_timeout"];

/// The variables whose values are fixed by a login or a reset. They follow from the client's collation,
/// `init_connect` and the server's settings, so they may differ between servers and change over time.
fn settled() -> impl Iterator<Item = (&'static str, ValueForm)> {
    TRACKED.into_iter().filter(|(name, _)| !OF_WAITS.contains(name))
}

/// Whether a system variable is tracked. The case of `name` does not matter.
pub fn is_tracked(name: &[u8]) -> bool {
    TRACKED.iter().any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
}

/// The query that asks a server for the values that a login fixes. It gives one row, for
/// [`TrackedState::settle`], followed by the server's `init_connect`. Text is cast to binary, so it comes as
/// UTF-8 whatever character set results are in.
pub fn settled_sql() -> &'static str {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let asked = |(name, form)| match form {
            ValueForm::Text | ValueForm::TextOrNull => format!("CAST(@@{name} AS BINARY), "),
            ValueForm::Number | ValueForm::Switch => format!("@@{name}, "),
        };
        let values: String = settled().map(asked).collect();
        format!(
            "SELECT {values}CAST(DATABASE() AS BINARY), CAST(CURRENT_ROLE() AS BINARY), \
             CAST(@@GLOBAL.init_connect AS BINARY)"
        )
    });
    &SQL
}

/// The SET that turns on session trackers for state changes and for the GTIDs that a statement has committed.
/// It must be sent again after COM_RESET_CONNECTION and COM_CHANGE_USER.
pub fn trackers_sql() -> &'static str {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let names = TRACKED.map(|(name, _)| name).join(",");
        format!(
            "SET session_track_system_variables = _utf8mb4'{names}', session_track_schema = ON, \
             session_track_state_change = ON, session_track_gtids = OWN_GTID"
        )
    });
    &SQL
}

/// The tracked state of a session, or of a connection to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrackedState {
    /// The default schema, in UTF-8; `None` where there is none.
    schema: Option<Box<[u8]>>,
    /// The active roles, in UTF-8 and as the server writes them: those of the login. No session tracker
    /// reports a change of roles, so a session that changes them keeps its connection.
    roles: Option<Box<[u8]>>,
    /// The values, in the order of [`TRACKED`]. `None` is the value that the server gives a new session; on a
    /// settled connection only those of [`OF_WAITS`] can be `None`. An empty collation is the one that SET
    /// NAMES gives to the connection's character set.
    variables: [Option<Box<[u8]>>; VARIABLES],
    /// The collation that the column definitions of results report; `None` is the default collation of their
    /// character set. No variable shows it: a login and SET NAMES set it.
    results_collation: Option<Box<[u8]>>,
}

/// The state changes that an OK packet reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldChanges<'a> {
    /// Whether the packet reported the schema or a tracked variable.
    pub changed: bool,
    /// Whether the server reported that some session state has changed (`session_track_state_change`). That
    /// may be tracked state or something else: a user variable, temporary table, prepared statement or
    /// untracked variable. The server reports it once per packet, so a trigger that sets two variables looks
    /// the same as one that sets one.
    pub state_changed: bool,
    /// Whether the connection's collation may have changed. Servers do not report a collation that follows
    /// from a change of character set, so the caller must call [`TrackedState::set_collation`].
    pub opens_collation: bool,
    /// The GTIDs of the transactions that were committed.
    pub gtids: Option<&'a [u8]>,
}

impl ToldChanges<'_> {
    /// Whether untracked state may have changed. `runs_no_stored_code` means that the statement text names
    /// everything that it changes; then a reported change of tracked state is the only change.
    pub fn is_beyond_tracked(&self, runs_no_stored_code: bool) -> bool {
        self.state_changed && !(self.changed && runs_no_stored_code)
    }
}

impl TrackedState {
    /// The memory that it takes (bytes).
    pub fn held_bytes(&self) -> usize {
        let texts = [&self.schema, &self.roles, &self.results_collation].into_iter().chain(&self.variables);
        size_of::<TrackedState>() + texts.flatten().map(|text| text.len()).sum::<usize>()
    }

    /// A state with this default schema and a server's defaults for everything else.
    pub fn of_schema(schema: Option<&[u8]>) -> TrackedState {
        TrackedState { schema: schema.map(Into::into), ..TrackedState::default() }
    }

    /// Takes the values that [`settled_sql`] selects, from the first up to the roles; `None` is NULL.
    pub fn settle<'v>(&mut self, values: impl IntoIterator<Item = Option<&'v [u8]>>) {
        let mut values = values.into_iter();
        for ((name, form), value) in settled().zip(values.by_ref()) {
            // The same words that session trackers use.
            let value = match (form, value.unwrap_or_default()) {
                (ValueForm::Switch, b"0") => &b"OFF"[..],
                (ValueForm::Switch, b"1") => b"ON",
                (_, value) => value,
            };
            self.put(name.as_bytes(), value);
        }
        self.schema = values.next().flatten().map(Into::into);
        self.roles = values.next().flatten().map(Into::into);
        let results = self.value(RESULTS_SET).filter(|set| Some(*set) == self.value(CONNECTION_SET));
        self.results_collation = results.and(self.value(COLLATION)).map(Into::into);
    }

    fn value(&self, index: usize) -> Option<&[u8]> {
        self.variables.get(index)?.as_deref()
    }

    /// Whether the tables of the default schema show state of the individual server.
    pub fn is_in_own_schema(&self) -> bool {
        let is = |name: &[u8]| self.schema.as_deref().is_some_and(|schema| schema.eq_ignore_ascii_case(name));
        is(b"performance_schema") || is(b"sys") || is(b"information_schema")
    }

    /// The rules by which a server in this state reads statements. `ignores_space` is whether the login set
    /// CLIENT_IGNORE_SPACE.
    pub fn dialect(&self, ignores_space: bool) -> SqlDialect {
        let mode = self.variable("sql_mode").map(String::from_utf8_lossy);
        let mode = mode.map_or_else(SqlMode::default, |value| SqlMode::read(&value));
        let mode = mode.with_ignore_space(ignores_space || mode.ignore_space());
        SqlDialect { charset: self.client_charset(), mode }
    }

    fn client_charset(&self) -> ClientCharset {
        let name = self.value(CLIENT_SET).map(String::from_utf8_lossy);
        name.map_or(ClientCharset::Unknown, |name| ClientCharset::named(&name))
    }

    /// The default schema, in UTF-8; `None` where there is none.
    pub fn schema(&self) -> Option<&[u8]> {
        self.schema.as_deref()
    }

    /// The default schema for a login packet. Servers read it in a character set that is not known in
    /// advance, so this is also `None` for a name that differs between character sets.
    pub fn schema_for_login(&self) -> Option<&[u8]> {
        self.schema().filter(|name| is_plain(name))
    }

    /// The active roles, as the server writes them.
    pub fn roles(&self) -> Option<&[u8]> {
        self.roles.as_deref()
    }

    /// Whether COMMIT and ROLLBACK without [NO] CHAIN begin the next transaction at once (`completion_type`).
    pub fn chains(&self) -> bool {
        matches!(self.value(COMPLETION), Some(b"CHAIN" | b"1"))
    }

    /// Whether the server closes the connection after a COMMIT or ROLLBACK without [NO] RELEASE.
    pub fn releases(&self) -> bool {
        matches!(self.value(COMPLETION), Some(b"RELEASE" | b"2"))
    }

    /// The value of a tracked variable, as the server reported it. `None` means the server's default, or that
    /// the variable is not tracked.
    pub fn variable(&self, name: &str) -> Option<&[u8]> {
        let index = TRACKED.iter().position(|(known, _)| *known == name)?;
        self.variables.get(index)?.as_deref()
    }

    /// The longest idle time that the session itself has set (`wait_timeout`); `None` if it has not set one.
    pub fn longest_idle(&self) -> Option<Duration> {
        let seconds = std::str::from_utf8(self.variable("wait_timeout")?).ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Applies the changes that an OK packet reported. After an error the state is unknown.
    pub fn apply<'a>(&mut self, told: &'a [u8]) -> Result<ToldChanges<'a>, WireError> {
        let mut changes = ToldChanges::default();
        for change in TrackedChanges::new(told) {
            match change? {
                TrackedChange::SystemVariable { name, value } => {
                    changes.changed |= self.put(name, value);
                    match name {
                        b"character_set_connection" => changes.opens_collation = true,
                        b"collation_connection" => changes.opens_collation = false,
                        b"character_set_results" => self.results_collation = None,
                        _ => {}
                    }
                }
                TrackedChange::Schema(name) => {
                    self.schema = Some(name).filter(|name| !name.is_empty()).map(Into::into);
                    changes.changed = true;
                }
                TrackedChange::State(is_changed) => changes.state_changed |= is_changed,
                TrackedChange::Gtids(set) => changes.gtids = Some(set),
                TrackedChange::TransactionCharacteristics(_)
                | TrackedChange::TransactionState(_)
                | TrackedChange::Other { .. } => {}
            }
        }
        Ok(changes)
    }

    /// Takes the connection's collation from a server's answer to a query for it.
    pub fn set_collation(&mut self, collation: &[u8]) {
        self.put(b"collation_connection", collation);
    }

    /// Takes the collation of a SET NAMES; `None` is the default collation of its character set.
    pub fn set_names_collation(&mut self, collation: Option<&[u8]>) {
        let collation = collation.map(<[u8]>::to_ascii_lowercase);
        self.set_collation(collation.as_deref().unwrap_or_default());
        self.results_collation = collation.map(Into::into);
    }

    fn put(&mut self, name: &[u8], value: &[u8]) -> bool {
        let index = TRACKED.iter().position(|(known, _)| known.as_bytes() == name);
        match index.and_then(|index| self.variables.get_mut(index)) {
            Some(place) => {
                *place = Some(value.into());
                true
            }
            None => false,
        }
    }

    /// Whether a connection in state `from` can be brought to this state. A connection can change its default
    /// schema but cannot go back to having none.
    pub fn is_reachable_from(&self, from: &TrackedState) -> bool {
        self.schema.is_some() || from.schema.is_none()
    }

    /// This state, with the schema of `other`.
    pub fn in_schema_of(&self, other: &TrackedState) -> TrackedState {
        TrackedState { schema: other.schema.clone(), ..self.clone() }
    }

    /// This state, without a default schema.
    pub fn without_schema(&self) -> TrackedState {
        TrackedState { schema: None, ..self.clone() }
    }

    /// This state, with `transaction_read_only` on or off.
    pub fn with_read_only(&self, is_on: bool) -> TrackedState {
        let mut state = self.clone();
        state.put(b"transaction_read_only", if is_on { b"ON" } else { b"OFF" });
        state
    }

    /// Whether transactions are READ ONLY by default (`transaction_read_only`).
    pub fn is_read_only(&self) -> bool {
        self.value(READ_ONLY) == Some(b"ON")
    }

    /// This state, with the transaction variables of `other`. Those do not affect how a statement is read,
    /// and setting them may commit a transaction.
    pub fn with_transactions_of(&self, other: &TrackedState) -> TrackedState {
        let mut state = self.clone();
        let both = state.variables.iter_mut().zip(&other.variables).zip(&TRACKED);
        for ((mine, theirs), _) in both.filter(|(_, (name, _))| OF_TRANSACTIONS.contains(name)) {
            mine.clone_from(theirs);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_track::write_change;
    use crate::{SessionFacts, classify};

    fn told(changes: &[TrackedChange<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        changes.iter().for_each(|change| write_change(&mut out, change));
        out
    }

    #[test]
    fn a_state_is_what_servers_tell_and_another_connection_is_brought_there() {
        let mut state = TrackedState::of_schema(Some(b"shop"));
        let changes = told(&[
            TrackedChange::SystemVariable { name: b"sql_mode", value: b"ANSI_QUOTES,STRICT_ALL_TABLES" },
            TrackedChange::SystemVariable { name: b"group_concat_max_len", value: b"2048" },
            TrackedChange::SystemVariable { name: b"character_set_results", value: b"" },
            TrackedChange::State(true),
        ]);
        let changes = state.apply(&changes).unwrap();
        assert_eq!(changes, ToldChanges { changed: true, state_changed: true, ..ToldChanges::default() });
        let fresh = TrackedState::of_schema(Some(b"shop"));
        assert!(!state.steps_from(&fresh).contains(&StateStep::Schema(b"shop")));
        let sql = state.set_from(&fresh).unwrap();
        assert_eq!(
            String::from_utf8(sql).unwrap(),
            "SET @@SESSION.character_set_results = NULL, @@SESSION.group_concat_max_len = 2048, \
             @@SESSION.sql_mode = _utf8mb4'ANSI_QUOTES,STRICT_ALL_TABLES'"
        );
        let back = String::from_utf8(fresh.set_from(&state).unwrap()).unwrap();
        assert!(back.ends_with("@@SESSION.sql_mode = @@GLOBAL.sql_mode"), "{back}");
        assert_eq!(state.set_from(&state.clone()), None);
    }

    #[test]
    fn a_collation_that_no_server_tells_comes_along_to_another_connection() {
        let settled = |set: &[u8], collation: &[u8]| {
            let mut state = TrackedState::default();
            state.settle([Some(&b"1"[..]), Some(set), Some(set), Some(set), Some(collation)]);
            state
        };
        let sql = |to: &TrackedState, from: &TrackedState| {
            to.set_from(from).map(|sql| String::from_utf8(sql).unwrap()).unwrap_or_default()
        };
        let set = |name| TrackedChange::SystemVariable { name, value: b"utf8mb4" };
        let sets =
            [set(b"character_set_client"), set(b"character_set_connection"), set(b"character_set_results")];
        let latin = settled(b"latin1", b"latin1_bin");
        let mut state = latin.clone();
        assert!(state.apply(&told(&sets)).unwrap().opens_collation);
        state.set_names_collation(None);
        assert_eq!(sql(&state, &latin), "SET NAMES 'utf8mb4'");
        assert_eq!(sql(&latin, &state), "SET NAMES 'latin1' COLLATE 'latin1_bin'");
        let mut named = state.clone();
        named.set_names_collation(Some(b"utf8mb4_BIN"));
        assert_eq!(sql(&named, &state), "SET NAMES 'utf8mb4' COLLATE 'utf8mb4_bin'");
        assert_eq!(sql(&named, &settled(b"utf8mb4", b"utf8mb4_bin")), "");
        assert!(!named.apply(&told(&[set(b"character_set_results")])).unwrap().opens_collation);
        assert_eq!(
            sql(&named, &settled(b"utf8mb4", b"utf8mb4_bin")),
            "SET @@SESSION.character_set_results = _utf8mb4'utf8mb4'"
        );
        // Setting one of them would change the other.
        let mut asked = latin.clone();
        asked.set_collation(b"utf8mb4_bin");
        let expected = "SET @@SESSION.character_set_connection = _utf8mb4'latin1', \
                        @@SESSION.collation_connection = _utf8mb4'utf8mb4_bin'";
        assert_eq!(sql(&asked, &latin), expected);
        let both = told(&[set(b"character_set_connection"), set(b"collation_connection")]);
        assert!(!state.apply(&both).unwrap().opens_collation);
    }

    /// Later changes by `SET GLOBAL`, or the settings of another server, do not affect the session.
    #[test]
    fn a_session_keeps_the_values_that_it_began_with_on_connections_that_began_with_others() {
        let settled = |zone: &'static [u8], read_only: &'static [u8]| {
            let mut state = TrackedState::default();
            let value = |name| match name {
                "time_zone" => zone,
                "transaction_read_only" => read_only,
                _ => &b"1"[..],
            };
            let values: Vec<_> = settled().map(|(name, _)| Some(value(name))).collect();
            state.settle(values);
            state
        };
        let (before, now) = (settled(b"SYSTEM", b"0"), settled(b"+07:00", b"1"));
        let sql = before.set_from(&now).map(|sql| String::from_utf8(sql).unwrap()).unwrap();
        let expected =
            "SET @@SESSION.time_zone = _utf8mb4'SYSTEM', @@SESSION.transaction_read_only = _utf8mb4'OFF'";
        assert_eq!(sql, expected);
        let mut told_so = now.clone();
        let told = told(&[TrackedChange::SystemVariable { name: b"transaction_read_only", value: b"ON" }]);
        told_so.apply(&told).unwrap();
        assert_eq!(told_so, now);
        assert_eq!(now.longest_idle(), None);
    }

    #[test]
    fn how_long_a_session_may_be_idle_is_known_where_it_has_said_so() {
        let mut state = TrackedState::default();
        assert_eq!(state.longest_idle(), None);
        state.apply(&told(&[TrackedChange::SystemVariable { name: b"wait_timeout", value: b"3" }])).unwrap();
        assert_eq!(state.longest_idle(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_schema_can_be_changed_and_not_be_left() {
        let (none, shop) = (TrackedState::default(), TrackedState::of_schema(Some(b"shop")));
        assert!(shop.is_reachable_from(&none) && !none.is_reachable_from(&shop));
        assert_eq!(shop.steps_from(&none), [StateStep::Schema(b"shop")]);
        let mut left = shop.clone();
        let changes = told(&[TrackedChange::Schema(b"")]);
        assert!(left.apply(&changes).unwrap().changed);
        assert_eq!(left, none);
    }

    #[test]
    fn a_change_of_state_that_nothing_explains_is_untracked() {
        let mut state = TrackedState::default();
        let changes = told(&[TrackedChange::State(true), TrackedChange::Gtids(b"u:1-5")]);
        let changes = state.apply(&changes).unwrap();
        let expected = ToldChanges { state_changed: true, gtids: Some(b"u:1-5"), ..ToldChanges::default() };
        assert_eq!(changes, expected);
        let unlisted = told(&[
            TrackedChange::SystemVariable { name: b"statement_id", value: b"7" },
            TrackedChange::State(true),
        ]);
        let changes = state.apply(&unlisted).unwrap();
        assert!(changes.is_beyond_tracked(true));
        assert!(state.apply(b"\x05\x03abc").is_err());
    }

    /// A trigger or a view may set a variable that is tracked, and one that is not.
    #[test]
    fn a_change_of_what_is_tracked_explains_all_only_behind_a_text_that_runs_no_stored_code() {
        let changes = told(&[
            TrackedChange::SystemVariable { name: b"group_concat_max_len", value: b"77" },
            TrackedChange::State(true),
        ]);
        let changes = TrackedState::default().apply(&changes).unwrap();
        let schema = told(&[TrackedChange::Schema(b"shop"), TrackedChange::State(true)]);
        let schema = TrackedState::default().apply(&schema).unwrap();
        let verdict = |sql: &str| classify(sql.as_bytes(), &SessionFacts::default()).runs_no_stored_code();
        for sql in [
            "SET group_concat_max_len = 77",
            "SET NAMES utf8mb4, @@session.group_concat_max_len = 7 * 11",
            "SET SESSION TRANSACTION READ ONLY",
            "SET autocommit = 0; SET time_zone = '+01:00'; USE shop",
            "USE shop",
            "BEGIN",
        ] {
            assert!(!changes.is_beyond_tracked(verdict(sql)), "{sql}");
            assert!(!schema.is_beyond_tracked(verdict(sql)), "{sql}");
        }
        for sql in [
            "INSERT INTO t VALUES (1)",
            "SELECT * FROM v",
            "TABLE v",
            "DO (SELECT a FROM v)",
            "SET group_concat_max_len = (SELECT a FROM v)",
            "SET group_concat_max_len = f()",
            "SET NAMES utf8mb4; INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (1); COMMIT",
            "CALL p()",
            "EXECUTE s",
            "SET sql_mode = 'ANSI' /*!80000 , @a = f() */",
        ] {
            assert!(changes.is_beyond_tracked(verdict(sql)), "{sql}");
        }
        // A write alone reports no state change.
        let write =
            TrackedState::default().apply(&told(&[TrackedChange::Gtids(b"u:7")])).unwrap().state_changed;
        assert!(!write);
    }

    #[test]
    fn what_is_tracked_is_asked_for_by_name() {
        assert!(is_tracked(b"SQL_MODE") && !is_tracked(b"sql_log_bin"));
        assert!(trackers_sql().contains(",sql_mode,"));
        assert!(settled_sql().contains("CAST(@@sql_mode AS BINARY), "));
        assert!(trackers_sql().contains(",wait_timeout'") && !settled_sql().contains("@@wait_timeout"));
    }
}
