//! What is asked of requests, as text again.

use weir_screen::{ConcurrencyLimit, Key, RateLimit, Settings};

use super::{inline, list, size, text};
use crate::schema::Sqli;

/// Only what asks something: a route without any of it says nothing.
pub(super) fn keys(screen: &Settings) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if !screen.rate_limit.is_empty() {
        keys.push(("rate_limit", list(&screen.rate_limit, rate_limit)));
    }
    if !screen.concurrency_limit.is_empty() {
        keys.push(("concurrency_limit", list(&screen.concurrency_limit, concurrency_limit)));
    }
    let lists = screen.lists().filter(|(_, written)| !written.is_empty());
    keys.extend(lists.map(|(name, written)| (name, list(&written, |one| text(one)))));
    keys
}

/// What is looked at for SQL injection, where it is not as `above`.
pub(super) fn sqli(here: Sqli, above: Option<Sqli>) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if above.is_none_or(|above| above.mode != here.mode) {
        keys.push(("sqli", text(here.mode.word())));
    }
    if above.is_none_or(|above| above.body_bytes != here.body_bytes) {
        keys.push(("sqli_body", size(here.body_bytes)));
    }
    keys
}

fn rate_limit(limit: &RateLimit) -> String {
    let mut keys = vec![("rate", text(&limit.rate.to_string())), ("burst", limit.burst.to_string())];
    keys.extend(counted(&limit.key, limit.at.word(), limit.dry_run, limit.status));
    if !limit.key.is_whole() {
        keys.push(("keys", limit.keys.to_string()));
    }
    inline(keys)
}

fn concurrency_limit(limit: &ConcurrencyLimit) -> String {
    let mut keys = vec![("max", limit.max.to_string())];
    keys.extend(counted(&limit.key, limit.at.word(), limit.dry_run, limit.status));
    inline(keys)
}

fn counted(key: &Key, at: &str, dry_run: bool, status: u16) -> Vec<(&'static str, String)> {
    let mut keys = vec![
        ("key", text(&key.to_string())),
        ("at", text(at)),
        ("dry_run", dry_run.to_string()),
        ("status", status.to_string()),
    ];
    if let Key::ClientIp { v4_bits, v6_bits } = key {
        keys.push(("ipv4_prefix", v4_bits.to_string()));
        keys.push(("ipv6_prefix", v6_bits.to_string()));
    }
    keys
}
