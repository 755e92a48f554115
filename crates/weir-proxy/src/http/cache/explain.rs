//! Explains in words how the cache would treat a request.

use weir_cache::{KeyBuffer, KeySource, Lookup, Reuse, admits, reuse};
use weir_http::Scheme;
use weir_io::clock;

use super::RouteCache;
use crate::http::plan::{Paths, Received};

/// How the cache of the request's route would treat it, and why. `paths` holds the path and query that
/// backends see; `trusted` says whether a trusted proxy sends the request.
pub fn explain(
    route: &RouteCache,
    request: &Received<'_>,
    scheme: Scheme,
    paths: &Paths,
    trusted: bool,
) -> String {
    let Received { head, text, .. } = *request;
    let facts = match admits(head, text, &route.rules, trusted) {
        Ok(facts) => facts,
        Err(bypass) => return format!("goes past the cache: {}", bypass.word()),
    };
    let mut key = KeyBuffer::new();
    let source = KeySource {
        scope: &route.scope,
        scheme,
        authority: head.host(text).unwrap_or_default(),
        path: paths.forwarded().unwrap_or(head.path(text)),
        query: paths.query(head.query(text)),
        head,
        buffer: text,
        trusted,
    };
    key.build(&source, &route.rules, route.cache.store.seed());
    let now = clock::now();
    let verdict = match route.cache.store.get(&mut key, head, text) {
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
    format!("{verdict} (key {:016x})", key.hash())
}
