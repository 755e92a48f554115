//! Datagrams of peers that name others by a PROXY protocol header: in each, or in the first of a flow.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use weir_config::ProxyDatagrams;
use weir_http::proxy_protocol;
use weir_stats::table::Rejected;

use super::{Key, Relay};
use crate::client::is_unix;
use crate::worker::WorkerListener;

/// Who sends, and to which of our addresses, if the socket has several.
type Ends = (SocketAddr, Option<IpAddr>);

/// Whom peers have named at the head of a flow. As many as there are flows at most.
#[derive(Default)]
pub(super) struct Named(RefCell<HashMap<Ends, SocketAddr, foldhash::quality::RandomState>>);

impl Named {
    /// A flow is over: what its peer sends next has to name somebody again.
    pub fn forget(&self, key: &Key) {
        let mut named = self.0.borrow_mut();
        if named.get(&(key.peer, key.own)) == Some(&key.client) {
            named.remove(&(key.peer, key.own));
        }
    }
}

impl Relay {
    /// Hands datagrams on to the flows of the clients that they name. Which datagrams have a header is what
    /// the config says, and never what they look like: a client chooses how what it sends begins.
    pub(super) fn deliver_named(self: &Rc<Self>, listener: &WorkerListener, from: Ends, datagrams: &[&[u8]]) {
        let (peer, own) = from;
        let is_each = listener.shared.config.proxy_datagrams == ProxyDatagrams::Each;
        for datagram in datagrams {
            let known = self.named.0.borrow().get(&from).copied().filter(|_| !is_each);
            if let Some(client) = known {
                self.deliver_to(Key { peer, own, client }, None, &[datagram]);
                continue;
            }
            let (told, content) = match proxy_protocol::parse_datagram(datagram) {
                Ok(parsed) => parsed,
                Err(violation) => {
                    tracing::debug!(%peer, %violation, "PROXY protocol header of a datagram");
                    self.count_rejected(Rejected::BadProxyHeader);
                    continue;
                }
            };
            let told = told.filter(|told| !is_unix(told.source.ip().to_canonical()));
            let client = told.map_or(peer, |told| told.source);
            let key = Key { peer, own, client };
            self.deliver_to(key, told.map(|told| told.destination), &[content]);
            if !is_each && self.flows.borrow().contains_key(&key) {
                self.named.0.borrow_mut().insert(from, client);
            }
        }
    }
}
