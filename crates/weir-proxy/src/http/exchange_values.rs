//! Variables of a request that is in an exchange, or about to be in one.

use std::net::SocketAddr;

use weir_http::Scheme;

use crate::http::exchange::Exchange;
use crate::http::plan::Received;
use crate::http::request_values::{TlsValues, Values, Who};
use crate::http::requester::Requester;
use crate::worker::WorkerListener;

impl<'a> Values<'a> {
    /// The values for the request in `exchange`, as long as its bytes are there.
    pub(crate) fn of(
        requester: &'a Requester,
        listener: &'a WorkerListener,
        exchange: &'a Exchange,
    ) -> Values<'a> {
        let Exchange { request, paths, request_id, ledger, key, user, .. } = exchange;
        let is_here = request.is_complete() && !exchange.forwarded;
        let text = requester.received();
        // A fetch for the cache uses the host from its key, and not the spelling of the client that asked
        // first (threat E1).
        let asked = key.parts().filter(|_| exchange.is_keyed).map(|key| key.authority);
        let tls = requester.secure.as_deref();
        Values {
            head: is_here.then_some((request, text)),
            path: if is_here { paths.compared(request.path(text)) } else { b"" },
            groups: paths.groups(),
            authority: asked.or_else(|| request.host(text).filter(|_| is_here)).unwrap_or_default(),
            client: ledger.client(requester).address,
            scheme: if tls.is_some() { Scheme::Https } else { Scheme::Http },
            request_id,
            listener_port: requester.identity.port(),
            tls: tls.map(TlsValues::of),
            maps: listener.shared.maps.as_deref(),
            // A fetch for the cache has no user.
            user: if exchange.is_keyed { Who::Nobody } else { Who::Known(user) },
        }
    }

    /// The values for a request whose head is there. They lack its `x-request-id`, and have its path only
    /// after [`Self::along`].
    pub(crate) fn of_head(
        requester: &'a Requester,
        listener: &'a WorkerListener,
        request: &Received<'a>,
        client: SocketAddr,
    ) -> Values<'a> {
        let Received { head, text, .. } = *request;
        let tls = requester.secure.as_deref();
        Values {
            head: Some((head, text)),
            path: b"",
            groups: None,
            authority: head.host(text).unwrap_or_default(),
            client,
            scheme: if tls.is_some() { Scheme::Https } else { Scheme::Http },
            request_id: b"",
            listener_port: requester.identity.port(),
            tls: tls.map(TlsValues::of),
            maps: listener.shared.maps.as_deref(),
            user: Who::Nobody,
        }
    }
}
