//! What source, hash and maglev choose by: the one place that decides it, for the data path and for
//! explanations. Pure.

use std::net::IpAddr;

use weir_balance::{Algorithm, address_hash, stable_hash};
use weir_config::HashKey;
use weir_screen::FieldLookup;

/// What of a request can be hashed.
pub struct KeySource<'a> {
    /// The client's address, as far as it is believed.
    pub client: IpAddr,
    /// The path as sent, without the query.
    pub path: &'a [u8],
    /// The request-target as sent.
    pub target: &'a [u8],
    /// Whole value of the header field of a name.
    pub header: &'a FieldLookup<'a>,
    /// Value of the first cookie of a name.
    pub cookie: &'a dyn Fn(&[u8]) -> Option<&'a [u8]>,
}

/// The hash that the pool's algorithm chooses by; `None` where it needs none, or where the request lacks what
/// the pool hashes.
#[inline]
pub fn choice_key(pool: &weir_config::Pool, source: &KeySource<'_>) -> Option<u64> {
    if pool.balance.needs_key() { hash(pool, source) } else { None }
}

fn hash(pool: &weir_config::Pool, source: &KeySource<'_>) -> Option<u64> {
    if pool.balance == Algorithm::Source {
        return Some(address_hash(source.client));
    }
    Some(match &pool.hash.key {
        HashKey::ClientIp => address_hash(source.client),
        HashKey::Path => stable_hash(source.path),
        HashKey::Uri => stable_hash(source.target),
        HashKey::Header(name) => stable_hash(&(source.header)(name.as_bytes())?),
        HashKey::Cookie(name) => stable_hash((source.cookie)(name.as_bytes())?),
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn key(balance: &str, lacks: bool) -> Option<u64> {
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:8080'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n{balance}\n"
        );
        let config = weir_config::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let found = |value: &'static [u8]| (!lacks).then_some(value);
        let source = KeySource {
            client: "::ffff:192.0.2.7".parse().unwrap(),
            path: b"/a",
            target: b"/a?b",
            header: &|name| found(b"green").filter(|_| name == b"x-user").map(Cow::Borrowed),
            cookie: &|name| found(b"blue").filter(|_| name == b"user"),
        };
        choice_key(&config.pools[0], &source)
    }

    #[test]
    fn each_key_word_hashes_the_part_of_the_request_that_it_names() {
        let client = Some(address_hash("192.0.2.7".parse().unwrap()));
        let by = |key: &str| format!("balance = 'hash'\nhash = {{ key = '{key}' }}");
        for (balance, expected) in [
            ("balance = 'source'".to_owned(), client),
            (by("client_ip"), client),
            (by("path"), Some(stable_hash(b"/a"))),
            (by("uri"), Some(stable_hash(b"/a?b"))),
            (by("header:x-user"), Some(stable_hash(b"green"))),
            (by("cookie:user"), Some(stable_hash(b"blue"))),
            ("balance = 'round-robin'".to_owned(), None),
        ] {
            assert_eq!(key(&balance, false), expected, "{balance}");
        }
    }

    #[test]
    fn a_request_without_the_header_or_cookie_has_no_key() {
        for word in ["header:x-user", "cookie:user"] {
            assert_eq!(key(&format!("balance = 'hash'\nhash = {{ key = '{word}' }}"), true), None, "{word}");
        }
    }
}
