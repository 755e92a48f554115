//! The session state changes that OK packets report.
//!
//! Source: MySQL internals, "OK_Packet: Session State Information"; MySQL manual, "Server Tracking of Client
//! Session State".

use crate::value::{PayloadCursor, write_string};
use crate::wire_error::WireError;

/// One change that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackedChange<'a> {
    /// A system variable listed in `session_track_system_variables` now has this value.
    SystemVariable {
        /// Its name, in lower case.
        name: &'a [u8],
        /// Its value, as text.
        value: &'a [u8],
    },
    /// The new default schema; empty if there is none.
    Schema(&'a [u8]),
    /// Whether anything has changed that `session_track_state_change` covers: a system variable, user
    /// variable, temporary table, prepared statement or the schema.
    State(bool),
    /// The GTIDs that this statement committed (`session_track_gtids`).
    Gtids(&'a [u8]),
    /// Statements that would begin the same transaction elsewhere (`SET TRANSACTION …; START …;`).
    TransactionCharacteristics(&'a [u8]),
    /// What the transaction did, eight characters such as `T_R_____` (`session_track_transaction_info`).
    TransactionState(&'a [u8]),
    /// A change of a kind that this crate does not know.
    Other {
        /// The type byte.
        kind: u8,
        /// The payload.
        bytes: &'a [u8],
    },
}

const SYSTEM_VARIABLES: u8 = 0;
const SCHEMA: u8 = 1;
const STATE_CHANGE: u8 = 2;
const GTIDS: u8 = 3;
const TRANSACTION_CHARACTERISTICS: u8 = 4;
const TRANSACTION_STATE: u8 = 5;

/// Iterates over the changes in an OK packet; ends after the first error.
#[derive(Clone, Debug)]
pub struct TrackedChanges<'a> {
    changes: PayloadCursor<'a>,
    /// The rest of an item with several variables, which MariaDB sends.
    variables: PayloadCursor<'a>,
}

impl<'a> TrackedChanges<'a> {
    /// The changes in `told`, as in [`crate::outcome::SessionChanges::Told`].
    pub fn new(told: &'a [u8]) -> TrackedChanges<'a> {
        TrackedChanges { changes: PayloadCursor::new(told), variables: PayloadCursor::new(b"") }
    }

    fn read(&mut self) -> Result<TrackedChange<'a>, WireError> {
        if !self.variables.is_at_end() {
            return self.variable();
        }
        let kind = self.changes.u8()?;
        let bytes = self.changes.string()?;
        let mut item = PayloadCursor::new(bytes);
        let change = match kind {
            SYSTEM_VARIABLES => {
                self.variables = item;
                return self.variable();
            }
            SCHEMA => TrackedChange::Schema(item.string()?),
            // The only kind whose payload is not a length-encoded string: it is a single character.
            STATE_CHANGE => TrackedChange::State(item.rest() == b"1"),
            GTIDS => {
                // The encoding specification; 0 (text) is the only one.
                item.u8()?;
                TrackedChange::Gtids(item.string()?)
            }
            TRANSACTION_CHARACTERISTICS => TrackedChange::TransactionCharacteristics(item.string()?),
            TRANSACTION_STATE => TrackedChange::TransactionState(item.string()?),
            _ => TrackedChange::Other { kind, bytes: item.rest() },
        };
        item.end()?;
        Ok(change)
    }

    fn variable(&mut self) -> Result<TrackedChange<'a>, WireError> {
        Ok(TrackedChange::SystemVariable { name: self.variables.string()?, value: self.variables.string()? })
    }
}

impl<'a> Iterator for TrackedChanges<'a> {
    type Item = Result<TrackedChange<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.changes.is_at_end() && self.variables.is_at_end() {
            return None;
        }
        let change = self.read();
        if change.is_err() {
            *self = TrackedChanges::new(b"");
        }
        Some(change)
    }
}

/// Appends one change in the server's format, for an OK packet that Weir writes.
pub fn write_change(out: &mut Vec<u8>, change: &TrackedChange<'_>) {
    let mut item = Vec::new();
    let kind = match change {
        TrackedChange::SystemVariable { name, value } => {
            write_string(&mut item, name);
            write_string(&mut item, value);
            SYSTEM_VARIABLES
        }
        TrackedChange::Schema(name) => written(&mut item, name, SCHEMA),
        TrackedChange::State(changed) => {
            item.push(if *changed { b'1' } else { b'0' });
            STATE_CHANGE
        }
        TrackedChange::Gtids(set) => {
            item.push(0);
            written(&mut item, set, GTIDS)
        }
        TrackedChange::TransactionCharacteristics(text) => {
            written(&mut item, text, TRANSACTION_CHARACTERISTICS)
        }
        TrackedChange::TransactionState(text) => written(&mut item, text, TRANSACTION_STATE),
        TrackedChange::Other { kind, bytes } => {
            item.extend_from_slice(bytes);
            *kind
        }
    };
    out.push(kind);
    write_string(out, &item);
}

fn written(item: &mut Vec<u8>, text: &[u8], kind: u8) -> u8 {
    write_string(item, text);
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        let changes = [
            TrackedChange::SystemVariable { name: b"autocommit", value: b"OFF" },
            TrackedChange::Schema(b"shop"),
            TrackedChange::Schema(b""),
            TrackedChange::State(true),
            TrackedChange::Gtids(b"c1ab0000-0000-0000-0000-000000000000:7"),
            TrackedChange::TransactionCharacteristics(b"START TRANSACTION READ ONLY;"),
            TrackedChange::TransactionState(b"T_R_____"),
            TrackedChange::Other { kind: 77, bytes: b"later" },
        ];
        let mut told = Vec::new();
        for change in &changes {
            write_change(&mut told, change);
        }
        let read: Result<Vec<_>, _> = TrackedChanges::new(&told).collect();
        assert_eq!(read.as_deref(), Ok(&changes[..]));
    }

    #[test]
    fn several_variables_in_one_item_are_told_one_by_one() {
        let told = b"\x00\x0c\x01a\x011\x01b\x03two\x01\x02\x01x";
        let read: Vec<_> = TrackedChanges::new(told).collect();
        assert_eq!(read.first(), Some(&Ok(TrackedChange::SystemVariable { name: b"a", value: b"1" })));
        assert_eq!(read.get(1), Some(&Ok(TrackedChange::SystemVariable { name: b"b", value: b"two" })));
    }

    #[test]
    fn a_change_of_state_is_a_character_without_a_length_of_its_own() {
        let read: Vec<_> = TrackedChanges::new(b"\x01\x02\x01w\x02\x01\x31").collect();
        assert_eq!(read, [Ok(TrackedChange::Schema(b"w")), Ok(TrackedChange::State(true))]);
    }

    #[test]
    fn what_can_not_be_read_is_an_error_and_the_last_item() {
        for told in
            [&b"\x01\x05\x04sho"[..], b"\x01\x06\x04shop!", b"\x03\x02\0\x05", b"\x00\x02\x01a", b"\x01"]
        {
            let read: Vec<_> = TrackedChanges::new(told).collect();
            assert_eq!(read.len(), 1, "{told:?}: {read:?}");
            assert!(read[0].is_err(), "{told:?}");
        }
    }
}
