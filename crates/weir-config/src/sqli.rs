//! `sqli` of a listener or a route: detection of SQL injection.

use crate::keys::{KIB, Limit, MIB, size, word};
use crate::setting::{table, words};

table! {
    /// How requests are looked at for SQL injection.
    #[derive(Copy, Eq)]
    pub struct Sqli {
        /// Detection of SQL injection in path, query, headers, cookies, forms and JSON.
        mode as "sqli": SqliMode = word(SqliMode::WORDS, "off").http().inherited();
        /// With `sqli`: how much of a body (a form, JSON, text) is held back and looked at before it is
        /// forwarded; what follows passes unread, and is counted. `"0B"` looks at no body.
        body_bytes as "sqli_body": u64 =
            size(Limit::new(
                64 * KIB,
                0,
                MIB,
                "it is held in memory for each request whose body is under way",
            ))
            .http()
            .inherited();
    }
}

words! {
    /// What becomes of a request that looks like SQL injection.
    pub enum SqliMode {
        Off = "off": "no request is looked at",
        Report = "report": "what looks like an injection is logged and counted, and passes",
        Block = "block": "what looks like an injection gets 403, and so does a body that cannot be read as its type says",
    }
}
