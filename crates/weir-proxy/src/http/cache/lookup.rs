//! The one place where requests are looked up in the cache.

use std::sync::Arc;
use std::time::Duration;

use weir_cache::{
    Bypass, Conditional, KeySource, Lookup, Object, Part, RequestFacts, Reuse, Why, admits, conditional,
    heads, range, reuse, ttl_seconds,
};
use weir_http::values::entity_tag::EntityTag;
use weir_http::{KnownHeader, Method, RequestHead, Scheme};

use super::note::Forward;
use super::{RouteCache, wall_seconds};
use crate::http::compress::Offer;
use crate::http::exchange::Exchange;
use crate::http::requester::Requester;
use crate::http::session::Session;

/// The result of a look-up.
pub enum Found {
    /// A stored response that answers the request.
    Hit { object: Arc<Object>, facts: RequestFacts, age: Duration, ttl_seconds: i64 },
    /// A stale response that is served once more while it is fetched anew.
    Stale { object: Arc<Object>, facts: RequestFacts, age: Duration },
    /// Nothing that answers it. `stale` may be revalidated, or served if the backend fails.
    Nothing { facts: RequestFacts, stale: Option<Arc<Object>>, why: Forward },
    /// As [`Found::Nothing`], but the client accepts only stored responses.
    NotCached,
    /// The request bypasses the cache.
    Past(Bypass),
    /// The request's key is one whose responses are currently not stored.
    Passes(RequestFacts),
}

/// Looks the request up; leaves the key in `exchange.key`.
pub fn look_up(session: &Session, exchange: &mut Exchange, route: &RouteCache) -> Found {
    let received = session.requester.received();
    let now = exchange.ledger.head;
    let admitted = admits(&exchange.request, received, &route.rules, session.requester.identity.is_trusted());
    if let Ok(_) | Err(Bypass::Method) = admitted {
        build_key(&session.requester, exchange, route, received);
    }
    let Exchange { request, key, .. } = exchange;
    let facts = match admitted {
        Ok(facts) => facts,
        Err(bypass) => return Found::Past(bypass),
    };
    match route.cache.store.get(key, request, received) {
        Lookup::Hit(object) => judge(object, facts, now),
        _ if facts.only_if_cached() => Found::NotCached,
        Lookup::Absent | Lookup::VariantAbsent if route.cache.fetches.passes(key.hash(), &facts, now) => {
            Found::Passes(facts)
        }
        Lookup::Absent => Found::Nothing { facts, stale: None, why: Forward::UriMiss },
        Lookup::VariantAbsent => Found::Nothing { facts, stale: None, why: Forward::VaryMiss },
    }
}

fn judge(object: Arc<Object>, facts: RequestFacts, now: Duration) -> Found {
    match reuse(&object, &facts, now) {
        Reuse::Fresh { age, ttl } => Found::Hit { object, facts, age, ttl_seconds: ttl.as_secs() as i64 },
        Reuse::Stale { age, while_revalidate: true } => Found::Stale { object, facts, age },
        // The client accepts it stale.
        Reuse::Stale { age, while_revalidate: false } => {
            let ttl_seconds = ttl_seconds(&object, now);
            Found::Hit { object, facts, age, ttl_seconds }
        }
        Reuse::OnlyIfCached => Found::NotCached,
        Reuse::Validate { why, .. } => {
            let by_client = matches!(why, Why::ClientNoCache | Why::ClientAge);
            let why = if by_client { Forward::Request } else { Forward::Stale };
            Found::Nothing { facts, stale: Some(object), why }
        }
    }
}

/// The parts of the request that its key is made of.
pub fn source_of<'a>(
    requester: &Requester,
    request: &'a RequestHead,
    received: &'a [u8],
    route: &'a RouteCache,
) -> KeySource<'a> {
    KeySource {
        scope: &route.scope,
        scheme: scheme_of(requester),
        authority: request.host(received).unwrap_or_default(),
        path: request.path(received),
        query: request.query(received),
        head: request,
        buffer: received,
        trusted: requester.identity.is_trusted(),
    }
}

/// The scheme that the client uses.
pub fn scheme_of(requester: &Requester) -> Scheme {
    if requester.secure.is_some() { Scheme::Https } else { Scheme::Http }
}

fn build_key(requester: &Requester, exchange: &mut Exchange, route: &RouteCache, received: &[u8]) {
    let Exchange { request, key, paths, .. } = exchange;
    let mut source = source_of(requester, request, received, route);
    source.path = paths.forwarded().unwrap_or(source.path);
    source.query = paths.query(source.query);
    key.build(&source, &route.rules, route.cache.store.seed());
}

/// How much of an object a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    Whole,
    /// Only its head, since the client has the content.
    NotModified,
    /// Content bytes `start..end`.
    Part { start: u64, end: u64 },
    /// The requested range is beyond the content.
    Unsatisfiable,
}

/// Decides how much the request gets. Unless that is the whole object, it leaves the head to send in
/// `exchange.response` and its text in `exchange.outgoing`.
pub fn share_of(
    session: &Session,
    exchange: &mut Exchange,
    object: &Object,
    facts: &RequestFacts,
    offer: Option<&Offer>,
) -> Share {
    if !facts.conditional && !facts.range {
        return Share::Whole;
    }
    let received = session.requester.received();
    let Exchange { request, response, outgoing, .. } = exchange;
    let wall = wall_seconds();
    outgoing.clear();
    if facts.conditional && conditional(object, request, received, wall) == Conditional::NotModified {
        heads::not_modified(object, response, outgoing);
        return Share::NotModified;
    }
    // RFC 9110 §14.2: a range means nothing for any other method.
    if !facts.range || facts.method != Method::Get {
        return Share::Whole;
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-8.8.3.3
    //# Note: Content codings are a property of the representation data, so a
    //# strong entity tag for a content-encoded representation has to be
    //# distinct from the entity tag of an unencoded representation
    // Ranges apply to the content without coding, which alone has the strong tag. A date does not tell the
    // two forms apart: the client may hold the beginning of the encoded content.
    let wants_coding = offer.is_some_and(|offer| offer.coding.is_some());
    let dated =
        request.value(KnownHeader::IfRange, received).is_some_and(|text| EntityTag::parse(text).is_none());
    if wants_coding && dated {
        return Share::Whole;
    }
    match range(object, request, received, wall) {
        Part::Whole => Share::Whole,
        Part::Part { start, end } => {
            heads::partial(object, &(start..end), response, outgoing);
            Share::Part { start, end }
        }
        Part::Unsatisfiable => {
            heads::unsatisfiable(object, response, outgoing);
            Share::Unsatisfiable
        }
    }
}
