//! The statements and commands that bring a connection from one state to another.

use super::{CLIENT_SET, COLLATION, CONNECTION_SET, RESULTS_SET, TRACKED, TrackedState, ValueForm};
use crate::charset::ClientCharset;

/// One step on the way to a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateStep<'a> {
    /// A statement.
    Query(Vec<u8>),
    /// Another default schema (COM_INIT_DB).
    Schema(&'a [u8]),
}

impl TrackedState {
    /// The steps that bring a connection from state `from` to this state, in order. Servers read names in the
    /// client's character set, so that is set to UTF-8 first if a name needs it. Roles come before the
    /// schema, because a role may grant access to the schema.
    pub fn steps_from(&self, from: &TrackedState) -> Vec<StateStep<'_>> {
        let schema = self.schema().filter(|_| self.schema != from.schema);
        let roles = self.roles().filter(|_| self.roles != from.roles);
        let is_plain = [schema, roles].into_iter().flatten().all(is_plain);
        let mut steps = Vec::new();
        let mut reads_utf8 = None;
        if !is_plain && from.client_charset() != ClientCharset::Utf8 {
            let mut state = from.clone();
            state.put(b"character_set_client", b"utf8mb4");
            steps.extend(state.set_from(from).map(StateStep::Query));
            reads_utf8 = Some(state);
        }
        steps.extend(roles.map(|roles| StateStep::Query([b"SET ROLE ", roles].concat())));
        steps.extend(schema.map(StateStep::Schema));
        steps.extend(self.set_from(reads_utf8.as_ref().unwrap_or(from)).map(StateStep::Query));
        steps
    }

    /// The SET that changes the variables of `from` to those of this state; `None` if they are equal.
    pub(super) fn set_from(&self, from: &TrackedState) -> Option<Vec<u8>> {
        let mut sql = Vec::new();
        let differs = |index: usize| self.variables.get(index) != from.variables.get(index);
        let results_differ = differs(RESULTS_SET) || self.results_collation != from.results_collation;
        // Setting either one may change the other.
        let connection_differs = differs(CONNECTION_SET) || differs(COLLATION);
        let names = self.names_to_set(results_differ, connection_differs);
        if let Some((set, collation)) = names {
            sql.extend_from_slice(b"SET NAMES ");
            quote_name(&mut sql, set);
            if let Some(collation) = collation {
                sql.extend_from_slice(b" COLLATE ");
                quote_name(&mut sql, collation);
            }
        }
        for (index, (name, form)) in TRACKED.iter().enumerate() {
            let value = self.value(index);
            let is_to_be_set = match (index, names) {
                (CLIENT_SET | CONNECTION_SET | RESULTS_SET, Some((set, _))) => value != Some(set),
                (COLLATION, Some((_, collation))) => value != Some(collation.unwrap_or_default()),
                (CONNECTION_SET | COLLATION, None) => connection_differs,
                (RESULTS_SET, None) => results_differ,
                _ => differs(index),
            };
            if !is_to_be_set {
                continue;
            }
            sql.extend_from_slice(if sql.is_empty() { b"SET @@SESSION." } else { b", @@SESSION." });
            sql.extend_from_slice(name.as_bytes());
            sql.extend_from_slice(b" = ");
            match (value, form) {
                // DEFAULT does not work: mysqld 9.7.4 leaves `foreign_key_checks` and `unique_checks`
                // unchanged.
                (None, _) => {
                    sql.extend_from_slice(b"@@GLOBAL.");
                    sql.extend_from_slice(name.as_bytes());
                }
                (Some(b""), ValueForm::TextOrNull) => sql.extend_from_slice(b"NULL"),
                (Some(value), ValueForm::Number) if is_number(value) => sql.extend_from_slice(value),
                (Some(value), _) => quote(&mut sql, value),
            }
        }
        (!sql.is_empty()).then_some(sql)
    }

    /// The character set and collation of the SET NAMES that must come first; `None` if none is needed.
    fn names_to_set(&self, results_differ: bool, connection_differs: bool) -> Option<(&[u8], Option<&[u8]>)> {
        if results_differ && let Some(collation) = self.results_collation.as_deref() {
            return Some((self.value(RESULTS_SET)?, Some(collation)));
        }
        let is_of_set = self.value(COLLATION) == Some(b"");
        (connection_differs && is_of_set).then(|| Some((self.value(CONNECTION_SET)?, None))).flatten()
    }
}

fn is_number(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(u8::is_ascii_digit)
}

/// Whether text has the same bytes in every client character set, and contains no quotes.
pub(super) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-+:,./$ ".contains(byte))
}

/// Appends the name of a character set or collation in quotes, without any characters that such names never
/// have.
fn quote_name(sql: &mut Vec<u8>, name: &[u8]) {
    sql.push(b'\'');
    sql.extend(name.iter().filter(|byte| is_plain(&[**byte])));
    sql.push(b'\'');
}

/// Appends a string literal that every `sql_mode` and character set reads alike. It is hexadecimal if the
/// text has anything but plain characters. It names its character set, because servers reject variable values
/// in utf16, which may be the connection's character set.
fn quote(sql: &mut Vec<u8>, value: &[u8]) {
    sql.extend_from_slice(b"_utf8mb4");
    if is_plain(value) {
        return quote_name(sql, value);
    }
    sql.extend_from_slice(b" 0x");
    for byte in value {
        sql.extend([byte >> 4, byte & 15].map(|digit| b"0123456789ABCDEF"[usize::from(digit)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_can_not_end_its_quotes() {
        let mut sql = Vec::new();
        quote(&mut sql, b"a'\\");
        assert_eq!(sql, b"_utf8mb4 0x61275C");
    }

    #[test]
    fn a_name_is_sent_where_it_is_read_as_utf8_and_behind_the_roles() {
        let of = |set: &[u8], schema: &str, roles: &str| {
            let mut state = TrackedState::of_schema(Some(schema.as_bytes()));
            state.put(b"character_set_client", set);
            state.roles = Some(roles.as_bytes().into());
            state
        };
        let said = |to: &TrackedState, from: &TrackedState| -> Vec<String> {
            let said = |step: &StateStep<'_>| match step {
                StateStep::Query(sql) => String::from_utf8_lossy(sql).into_owned(),
                StateStep::Schema(name) => format!("schema {}", String::from_utf8_lossy(name)),
            };
            to.steps_from(from).iter().map(said).collect()
        };
        let (none, reader) = ("NONE", "`reader`@`%`");
        let set = |set: &str| format!("SET @@SESSION.character_set_client = _utf8mb4'{set}'");
        let latin = of(b"latin1", "shop", none);
        assert_eq!(said(&of(b"latin1", "other", none), &latin), ["schema other"]);
        let umlaut = of(b"latin1", "sch\u{f6}n", none);
        assert_eq!(said(&umlaut, &latin), [set("utf8mb4"), "schema sch\u{f6}n".to_owned(), set("latin1")]);
        assert_eq!(
            said(&umlaut, &of(b"utf8mb4", "shop", none)),
            ["schema sch\u{f6}n".to_owned(), set("latin1")]
        );
        assert_eq!((umlaut.schema_for_login(), latin.schema_for_login()), (None, Some(&b"shop"[..])));
        // A bracket is a letter in swe7.
        assert_eq!(of(b"swe7", "a[b", none).schema_for_login(), None);
        let read = of(b"utf8mb4", "shop", reader);
        let expected = ["SET ROLE `reader`@`%`", "schema shop"];
        assert_eq!(said(&read, &of(b"utf8mb4", "other", none)), expected);
        assert_eq!(said(&of(b"utf8mb4", "shop", none), &read), ["SET ROLE NONE"]);
        assert!(read.is_reachable_from(&latin));
    }
}
