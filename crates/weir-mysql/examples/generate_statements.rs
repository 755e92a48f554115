//! Prints statements that any member may get, to be run on a server that lets nobody write: those of
//! `statements_read.txt`, then so many drawn at random, each ended by a semicolon on a line of its own.
//!
//! `cargo run -p weir-mysql --example generate_statements -- 5000 SEED | mysql --force --comments`

#[path = "../tests/against_sqlparser/generate.rs"]
mod generate;

use generate::{Draws, Statements};
use weir_mysql::{RoleWanted, SessionFacts, classify};

#[expect(clippy::disallowed_methods, reason = "a run needs its arguments")]
fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let (count, seed) = (numbers.next().unwrap_or(5_000), numbers.next().unwrap_or(1));
    let table = include_str!("../src/statements_read.txt");
    for text in table.lines().filter_map(|line| line.splitn(3, " | ").nth(2)) {
        println!("{text}\n;");
    }
    let (mut draws, mut printed) = (Draws(seed), 0);
    while printed < count {
        let text = Statements { draws: &mut draws, dirty_once_in: 20 }.text();
        if classify(text.as_bytes(), &SessionFacts::default()).wants == RoleWanted::AnyMember {
            println!("{text}\n;");
            printed += 1;
        }
    }
}
