//! Fuzzes what OK packets tell of changes in a session: no panic, nothing told behind an error, and changes
//! that are the same when they are written and read again.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_trackers -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use weir_mysql::session_track::{TrackedChange, TrackedChanges, write_change};
use weir_mysql::state::is_tracked;

const SEEDS: &[&[u8]] = &[
    b"\0\x0f\x0aautocommit\x03OFF",
    b"\0\x16\x08sql_mode\x0cNO_BACKSLASH",
    b"\0\x12\x01a\x01b\x04zone\x03UTC\x01c\0\x01d\0",
    b"\x01\x05\x04shop",
    b"\x01\x01\0",
    b"\x02\x01\x31\x02\x01\x30",
    b"\x03\x07\0\x0527-28",
    b"\x04\x13\x12START TRANSACTION;",
    b"\x05\x09\x08T_R_____",
    b"\x09\x02ab\xff\0",
];

const PIECES: &[&[u8]] = &[
    b"\0",
    b"\x02\x01\x31",
    b"\xfb",
    b"\xfc\xff\xff",
    b"\xfd\x01\0\0",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x15\x14character_set_client",
    b"\x01\x05\x04shop",
];

fn main() -> ExitCode {
    fuzzing::run("trackers", SEEDS, PIECES, |bytes, draws| {
        let told: Vec<_> = TrackedChanges::new(bytes).collect();
        if told.len() > bytes.len() {
            return Err(format!("{} changes in {} bytes", told.len(), bytes.len()));
        }
        let good = told.iter().take_while(|change| change.is_ok()).count();
        if good + 1 < told.len() {
            return Err(format!("more is told behind an error: {told:?}"));
        }
        let mut written = Vec::new();
        let mut outcome = u64::from(good < told.len());
        for change in told.iter().flatten() {
            write_change(&mut written, change);
            outcome |= match change {
                TrackedChange::SystemVariable { name, .. } => 2 + u64::from(is_tracked(name)) * 2,
                TrackedChange::Schema(name) => 8 + u64::from(name.is_empty()) * 8,
                TrackedChange::State(_) => 32,
                TrackedChange::Gtids(_) => 64,
                TrackedChange::TransactionCharacteristics(_) => 128,
                TrackedChange::TransactionState(_) => 256,
                TrackedChange::Other { .. } => 512,
            };
        }
        let again: Vec<_> = TrackedChanges::new(&written).collect();
        if again != told[..good] {
            return Err(format!("{:?} is written and read as {again:?}", &told[..good]));
        }
        // What is cut off tells the same as far as it goes.
        let head = &bytes[..draws.below(bytes.len() + 1)];
        let shorter = TrackedChanges::new(head).take_while(Result::is_ok).count();
        if shorter > good || TrackedChanges::new(head).take(shorter).ne(told.iter().take(shorter).copied()) {
            return Err(format!("{} bytes of it tell something else", head.len()));
        }
        Ok(outcome)
    })
}
