//! What the cache says to a request: the one place that asks it.

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

/// What a request meets.
pub enum Found {
    /// An answer.
    Hit { object: Arc<Object>, facts: RequestFacts, age: Duration, ttl_seconds: i64 },
    /// An answer that is given once more while another is fetched.
    Stale { object: Arc<Object>, facts: RequestFacts, age: Duration },
    /// Nothing that answers it. What there is may be confirmed, or given if nothing better can be had.
    Nothing { facts: RequestFacts, stale: Option<Arc<Object>>, why: Forward },
    /// As [`Found::Nothing`], for a client that wants nothing else.
    NotCached,
    /// It does not concern the cache.
    Past(Bypass),
    /// It is for a key whose answers are not kept.
    Passes(RequestFacts),
}

/// Looks up; leaves the key in `exchange.key`.
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
        // The client takes it as it is.
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

/// What the key of a request is made of.
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

/// By which scheme the client asks.
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

/// What of an object a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    Whole,
    /// Its head, for it has the rest.
    NotModified,
    /// Content bytes `start..end`.
    Part { start: u64, end: u64 },
    /// There are not so many.
    Unsatisfiable,
}

/// Decides; where it is not the whole, the head to send is left in `exchange.response` and its text in
/// `exchange.outgoing`.
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
    // Ranges are those of the content as it is, which alone has the strong tag. A date tells the two no more
    // apart than no condition does: what its owner has may be the beginning of the encoded one.
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
