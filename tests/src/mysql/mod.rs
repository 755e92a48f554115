//! MySQL from outside: servers of the tests' own, a client that shows every byte of an answer, and random
//! sessions.

mod arrivals;
mod client;
mod compare;
mod data;
mod packets;
mod programs;
mod servers;

pub use arrivals::{Arrivals, send_texts, watched_pair};
pub use client::{Client, Login, LoginFailed, query, trusting};
pub use compare::{Found, Plan, run_plan, weir_for_programs};
pub use packets::{
    Answer, Asked, COMPRESS, DEPRECATE_EOF, LOCAL_FILES, SESSION_TRACK, Value, error_of, execution,
};
pub use programs::{Leaving, Program, Step, Who};
pub use servers::{Mysqld, Pair, pair, words_of};

/// Weir in front of a pair: a listener that splits reads and writes, one for writes, and one for reads.
pub const BEFORE_PAIR: &str = r#"
[listener.auto]
protocol = "mysql"
bind = "@auto"
access = "auto"
pool = "pair"
[listener.writes]
protocol = "mysql"
bind = "@writes"
access = "read-write"
pool = "pair"
[listener.reads]
protocol = "mysql"
bind = "@reads"
access = "read-only"
pool = "pair"
[pool.pair]
backends = ["@primary", "@replica"]
[pool.pair.mysql]
topology = "static"
"#;
