//! What the cache would say to a request, in words.

use weir_cache::{KeyBuffer, KeySource, Lookup, Reuse, admits, reuse};
use weir_http::{Limits, Progress, RequestHead, Scheme, parse_request};
use weir_io::clock;

use super::RouteCache;

/// A request as an explanation has it.
pub struct Asked<'a> {
    /// Method.
    pub method: &'a str,
    /// Whether it comes over TLS.
    pub secure: bool,
    /// Host, with its port where one was given.
    pub authority: &'a str,
    /// The path that backends see.
    pub path: &'a str,
    /// Path and query as sent.
    pub target: &'a str,
    /// Header fields.
    pub headers: &'a [(String, String)],
}

/// What happens to the request at the cache of its route, and why.
///
/// # Errors
/// It is no request.
pub fn explain(route: &RouteCache, asked: &Asked<'_>) -> Result<String, String> {
    let mut text = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", asked.method, asked.target, asked.authority);
    for (name, value) in asked.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    let received = text.as_bytes();
    let mut head = RequestHead::new();
    match parse_request(received, &Limits::default(), &mut head) {
        Ok(Progress::Complete { .. }) => {}
        Ok(Progress::Partial) => return Err("the request has no end".to_owned()),
        Err(violation) => return Err(violation.to_string()),
    }
    let facts = match admits(&head, received, &route.rules, false) {
        Ok(facts) => facts,
        Err(bypass) => return Ok(format!("goes past the cache: {}", bypass.word())),
    };
    let mut key = KeyBuffer::new();
    let source = KeySource {
        scope: &route.scope,
        scheme: if asked.secure { Scheme::Https } else { Scheme::Http },
        authority: asked.authority.as_bytes(),
        path: asked.path.as_bytes(),
        query: head.query(received),
        head: &head,
        buffer: received,
        trusted: false,
    };
    key.build(&source, &route.rules, route.cache.store.seed());
    let now = clock::now();
    let verdict = match route.cache.store.get(&mut key, &head, received) {
        Lookup::Absent if route.cache.fetches.passes(key.hash(), &facts, now) => {
            "nothing is kept, and is not waited for: an answer a moment ago was not to be kept".to_owned()
        }
        Lookup::Absent => "nothing is kept: it is fetched".to_owned(),
        Lookup::VariantAbsent => "kept for other values of what `vary` names: it is fetched".to_owned(),
        Lookup::Hit(object) => {
            let size = object.body().len();
            match reuse(&object, &facts, now) {
                Reuse::Fresh { age, ttl } => format!(
                    "answered from memory: {} with {size} bytes, {} s old, fresh for {} s more",
                    object.status(),
                    age.as_secs(),
                    ttl.as_secs()
                ),
                Reuse::Stale { age, while_revalidate } => format!(
                    "answered from memory though out of date, {} s old{}",
                    age.as_secs(),
                    if while_revalidate { ", while it is fetched anew" } else { ": the client takes it so" }
                ),
                Reuse::Validate { age, why } => {
                    format!("kept, {} s old, and confirmed before it is given: {}", age.as_secs(), why.word())
                }
                Reuse::OnlyIfCached => {
                    "kept, but not fit without asking, which the client does not want: 504".to_owned()
                }
            }
        }
    };
    Ok(format!("{verdict} (key {:016x})", key.hash()))
}
