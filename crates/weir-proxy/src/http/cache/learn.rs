//! What the cache learns from a backend's answer to a request that bypassed it.

use weir_cache::{Exchange as Asked, KeySource, invalidated, invalidates, judge_response};

use super::lookup::{scheme_of, source_of};
use super::{RouteCache, times};
use crate::http::exchange::Exchange;
use crate::http::forwarding::Forwarding;
use crate::http::requester::Requester;
use crate::http::session::Session;

/// Updates the cache after a backend's answer to a request that bypassed it.
pub fn learn(session: &Session, exchange: &mut Exchange, forwarding: &Forwarding<'_>, received: &[u8]) {
    let Some(route) = forwarding.route.and_then(|route| route.cache.as_deref()) else { return };
    if let Some(facts) = exchange.ledger.cache.passing.take() {
        let text = &received[..exchange.response.head_bytes()];
        let asked = Asked { asked_at: exchange.ledger.head, times: times() };
        if judge_response(&facts, &exchange.response, text, &route.rules, asked).is_ok() {
            route.cache.fetches.pass_no_more(exchange.key.hash(), &facts);
        }
    }
    if !exchange.ledger.cache.unsafe_request.is_empty() {
        invalidate(&session.requester, exchange, route, received);
    }
}

/// After a backend's answer to an unsafe request: invalidates stored responses of its URI, and of the URIs
/// that the answer names (RFC 9111 §4.4).
fn invalidate(requester: &Requester, exchange: &mut Exchange, route: &RouteCache, received: &[u8]) {
    let Exchange { request, response, key, ledger, .. } = exchange;
    if !invalidates(request.method(), response.status()) {
        return;
    }
    let text = &ledger.cache.unsafe_request[..];
    let store = &route.cache.store;
    store.remove(key);
    for target in invalidated(request, text, scheme_of(requester), response, received) {
        let of_request = source_of(requester, request, text, route);
        let source = KeySource { path: &target.path, query: target.query.as_deref(), ..of_request };
        key.build(&source, &route.rules, store.seed());
        store.remove(key);
    }
}
