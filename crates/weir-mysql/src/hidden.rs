//! Tables and views whose stored code leaves state on a connection that shows neither in the statement text
//! nor in session trackers. For example, a view calls a function that takes a user lock, or a trigger does.
//!
//! The caller finds out which tables and views these are. A statement that names one is treated as if it
//! called an unknown function.

use std::collections::HashSet;

use crate::lexer::{Lexer, SqlDialect, SqlToken};
use crate::topology::TextRow;
use crate::verdict::{LeftBehind, Resend, RoleWanted, RouteReason, SessionFacts, StatementVerdict};

/// Whether a text contains one of these names, with or without quotes and a schema. Time grows with the
/// text's length.
pub fn names_any(text: &[u8], dialect: SqlDialect, is_one: impl Fn(&[u8]) -> bool) -> bool {
    let name = |token| match token {
        SqlToken::Word(name) | SqlToken::Member(name) | SqlToken::Name(name) => Some(name),
        _ => None,
    };
    Lexer::new(text, dialect).filter_map(name).any(is_one)
}

impl StatementVerdict {
    /// The verdict on a statement that names such a table or view: it goes to the primary, and its session
    /// keeps the connection.
    pub fn with_hidden_code(&self, facts: &SessionFacts) -> StatementVerdict {
        let own_reason = match self.own_reason.wants() {
            RoleWanted::AnyMember => RouteReason::HiddenCode,
            RoleWanted::Primary => self.own_reason,
        };
        let leaves = self.leaves.and(LeftBehind::ANYTHING);
        StatementVerdict { own_reason, leaves, resend: Resend::Never, ..*self }.under(facts)
    }
}

/// Most names in one query.
pub const MOST_NAMES: usize = 200;
/// How many levels of code are followed; a view on a view on a function is three.
const MOST_LEVELS: usize = 6;
/// A regular expression for effects that session trackers do not report: user locks, and user variables set
/// in other ways than by SET.
const UNTOLD: &str = "(get|release(_all)?)_lock|into[[:space:]]+@|@[^[:space:]]+[[:space:]]*:=";

/// The same for views alone: what routines and triggers do to LAST_INSERT_ID() is undone at their end.
const UNTOLD_BY_VIEWS: &str = "last_insert_id[(][^)]";

/// The search for such tables and views. It gives the next query for a server until nothing new is found.
#[derive(Debug, Default)]
pub struct HiddenSearch {
    /// Tables and views that were found. Routines are not needed: a statement that calls one has an unknown
    /// function or is a CALL.
    names: HashSet<Box<[u8]>>,
    /// These and routines: the names that the search follows.
    followed: HashSet<Box<[u8]>>,
    newest: Vec<Box<[u8]>>,
    levels: usize,
}

impl HiddenSearch {
    /// The next query. It looks for routines, views and tables with triggers whose code has such an effect,
    /// or contains a name that was found before. `None` when the search is over.
    pub fn next_sql(&mut self) -> Option<String> {
        if self.levels == MOST_LEVELS || (self.levels > 0 && self.newest.is_empty()) {
            return None;
        }
        self.levels += 1;
        let (pattern, of_views) = match self.newest.is_empty() {
            true => (UNTOLD.to_owned(), format!("{UNTOLD}|{UNTOLD_BY_VIEWS}")),
            false => {
                let names = self.newest.iter().map(|name| String::from_utf8_lossy(name).replace('$', "[$]"));
                let names: Vec<String> = names.collect();
                let pattern = format!("(^|[^[:alnum:]_$])({})([^[:alnum:]_$]|$)", names.join("|"));
                (pattern.clone(), pattern)
            }
        };
        Some(sql(&pattern, &of_views))
    }

    /// Takes an answer: each row has a name, and whether it is a table or view.
    pub fn take(&mut self, rows: &[TextRow]) {
        self.newest.clear();
        for row in rows {
            let [Some(name), Some(is_table)] = row.as_slice() else { continue };
            let name: Box<[u8]> = name.to_ascii_lowercase().into();
            if is_table == b"1" {
                self.names.insert(name.clone());
            }
            let is_plain =
                name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$'));
            // Names with other characters are found but not followed.
            if is_plain && self.followed.insert(name.clone()) {
                self.newest.push(name);
            }
        }
    }

    /// The tables and views that were found, in lower case.
    pub fn into_names(self) -> HashSet<Box<[u8]>> {
        self.names
    }
}

/// A query for the names of all objects whose code matches a pattern, and of views that match another, as far
/// as the account may see them. The patterns are in hexadecimal, so that nothing in them ends the literal.
fn sql(pattern: &str, of_views: &str) -> String {
    let of = |table: &str, (name, is_table): (&str, u8), code: &str, schema: &str| {
        let pattern = if table == "views" { of_views } else { pattern };
        let digits: String = pattern.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "SELECT {name} AS name, {is_table} AS is_table FROM information_schema.{table} WHERE {schema} NOT IN \
             ('sys', 'mysql', 'performance_schema', 'information_schema') \
             AND {code} REGEXP CONVERT(0x{digits} USING utf8mb4)"
        )
    };
    let routines = of("routines", ("routine_name", 0), "routine_definition", "routine_schema");
    let views = of("views", ("table_name", 1), "view_definition", "table_schema");
    let triggers = of("triggers", ("event_object_table", 1), "action_statement", "trigger_schema");
    format!("{routines} UNION {views} UNION {triggers} LIMIT {MOST_NAMES}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify;

    #[test]
    fn a_statement_that_names_one_goes_to_the_primary_and_keeps_its_connection() {
        let facts = SessionFacts::default();
        let is_one = |name: &[u8]| name.eq_ignore_ascii_case(b"jobs");
        for (text, is_named) in [
            ("SELECT * FROM jobs", true),
            ("SELECT * FROM `Jobs`", true),
            ("SELECT a FROM shop . jobs AS j", true),
            ("SELECT * FROM jobs2 /* jobs */ WHERE a = 'jobs' -- jobs", false),
        ] {
            assert_eq!(names_any(text.as_bytes(), facts.dialect, is_one), is_named, "{text}");
        }
        let verdict = classify(b"/* weir: secondary */ SELECT * FROM jobs", &facts).with_hidden_code(&facts);
        assert_eq!((verdict.wants, verdict.reason), (RoleWanted::Primary, RouteReason::HiddenCode));
        assert!(verdict.leaves.pins() && verdict.resend == Resend::Never);
    }

    #[test]
    fn a_search_follows_what_it_finds_and_ends() {
        let rows = |names: &[(&str, &str)]| -> Vec<TextRow> {
            let row = |texts: [&str; 2]| texts.map(|text| Some(text.as_bytes().to_vec())).to_vec();
            names.iter().map(|(name, is_table)| row([name, is_table])).collect()
        };
        let mut search = HiddenSearch::default();
        assert!(search.next_sql().unwrap().contains("REGEXP CONVERT(0x286765747c"));
        search.take(&rows(&[("Takes", "0"), ("od'd", "1")]));
        let pattern: String = b"(takes)".iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(search.next_sql().unwrap().contains(&pattern), "what has another name is not followed");
        search.take(&rows(&[("takes", "0"), ("Shows", "1")]));
        assert!(search.next_sql().is_some());
        search.take(&rows(&[("takes", "0")]));
        assert_eq!(search.next_sql(), None);
        let mut names: Vec<_> = search.into_names().into_iter().collect();
        names.sort();
        assert_eq!(names, [&b"od'd"[..], b"shows"].map(Into::into));
        assert_eq!((HiddenSearch { levels: MOST_LEVELS, ..HiddenSearch::default() }).next_sql(), None);
    }
}
