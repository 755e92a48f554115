//! Fuzzes the lexer and the classifier: no panic, tokens in order and nothing between them but white space
//! and comments, the same verdict whatever stands between the tokens, and no text with a write in it that any
//! member may get.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_statements -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;
