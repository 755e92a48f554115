//! `remember` of an authentication service: how long its answer is reused.

use std::time::Duration;

use crate::keys::{Each, Limit, count, duration, list_or, seconds};
use crate::setting::{table, words};

table! {
    /// Lets requests pass without another question for which the service has just said so. It is known again
    /// by a keyed hash of all that the service was told, but for `x-request-id` and what `by` leaves out;
    /// credentials are always part of it. What it refuses, and answers that set a cookie, are asked about
    /// each time. A reload that changes anything forgets all.
    #[derive(Eq)]
    pub struct RememberedAnswers at "[listener.NAME.auth.forward.remember]" {
        /// For how long.
        ttl: Duration =
            duration(Limit::new(seconds(10), seconds(1), seconds(3600), "who logs out, or may no more, passes for so long"))
                .http()
                .also(&["for", "duration", "valid", "cache_valid", "max_age"]);
        /// What of a request, besides the fields that the service is told, its answer is for. Leave out only
        /// what it does not look at: without `path`, one answer is for all paths.
        by: Vec<QuestionPart> =
            list_or(Each::Word(QuestionPart::WORDS), &["host", "method", "path", "query", "client_ip"])
                .http()
                .also(&["key", "vary", "cache_key"]);
        /// Most answers in memory, of all workers together. Beyond it some of the others go, also those whose
        /// time is not over.
        entries: u32 =
            count(Limit::new(10_000, 16, 1_000_000, "each takes some hundred bytes and what the service says of the user"))
                .http()
                .also(&["max", "size", "max_entries"]);
    }
}

words! {
    /// A part of a request that the answer about it is for.
    pub enum QuestionPart {
        Host = "host": "host and port that are asked for",
        Method = "method": "the method",
        Path = "path": "the path in its normal form",
        Query = "query": "the query as sent",
        ClientIp = "client_ip": "the client's address, with what proxies that are trusted say of it",
    }
}
