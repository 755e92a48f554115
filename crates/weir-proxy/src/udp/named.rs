//! Datagrams from peers that name the client in a PROXY protocol header, in each datagram or in a flow's
//! first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_config::ProxyDatagrams;
use weir_http::proxy_protocol;
use weir_io::clock;
use weir_state::named::{NamedClient, NamedClients, SenderEnds};
use weir_stats::table::Rejected;

use super::{Key, Relay};
use crate::client::is_unix;
use crate::worker::WorkerListener;

/// The sender, and the address of ours that it sends to if the socket has several.
type Ends = (SocketAddr, Option<IpAddr>);

/// The clients named for flows on this socket, kept so that datagrams of these flows are assigned without
/// asking [`NamedClients`]. There are at most as many as there are flows.
#[derive(Default)]
pub(super) struct Named(RefCell<HashMap<Ends, NamedFlow, foldhash::quality::RandomState>>);

struct NamedFlow {
    client: SocketAddr,
    ends: SenderEnds,
    names: Arc<NamedClients>,
}

impl Named {
    /// Called when a flow is over that was last active at `heard`. Its client is remembered as long as that
    /// of a flow that was refused.
    pub fn end_flow(&self, key: &Key, heard: Duration) {
        let mut flows = self.0.borrow_mut();
        let ends = (key.peer, key.own);
        if flows.get(&ends).is_some_and(|flow| flow.client == key.client)
            && let Some(flow) = flows.remove(&ends)
        {
            flow.names.end_flow(&flow.ends, heard);
        }
    }

    fn client_of_flow(&self, ends: &Ends) -> Option<SocketAddr> {
        self.0.borrow().get(ends).map(|flow| flow.client)
    }
}

impl Relay {
    /// Hands datagrams to the flows of the clients that they name. Only the config says which datagrams have
    /// a header, never their bytes: clients choose how their datagrams begin.
    pub(super) fn deliver_named(self: &Rc<Self>, listener: &WorkerListener, from: Ends, datagrams: &[&[u8]]) {
        let (peer, own) = from;
        let is_each = listener.shared.config.proxy_datagrams == ProxyDatagrams::Each;
        for datagram in datagrams {
            if is_each {
                if let Some((named, content)) = self.read_header(peer, datagram) {
                    self.deliver_to(Key { peer, own, client: named.client }, named.asked, &[content]);
                }
                continue;
            }
            if let Some(client) = self.named.client_of_flow(&from) {
                self.deliver_to(Key { peer, own, client }, None, &[datagram]);
                continue;
            }
            let ends = SenderEnds { peer, own: self.destination(Key::of_peer(peer, own)) };
            let Some((named, content)) = self.name_of(listener, ends, datagram) else { continue };
            let key = Key { peer, own, client: named.client };
            self.deliver_to(key, named.asked, &[content]);
            if self.flows.borrow().contains_key(&key) {
                let names = listener.shared.named.clone();
                names.begin_flow(&ends);
                self.named.0.borrow_mut().insert(from, NamedFlow { client: named.client, ends, names });
            }
        }
    }

    /// The client that the sender of a datagram has named, before or in this datagram, and the datagram's
    /// content. The name is remembered before anything else is decided, so that it holds even if the flow is
    /// refused.
    fn name_of<'d>(
        &self,
        listener: &WorkerListener,
        ends: SenderEnds,
        datagram: &'d [u8],
    ) -> Option<(NamedClient, &'d [u8])> {
        let (now, idle) = (clock::now(), listener.shared.config.timeout.client_idle);
        if let Some(named) = listener.shared.named.find(&ends, now, idle) {
            return Some((named, datagram));
        }
        let (named, content) = self.read_header(ends.peer, datagram)?;
        let forgotten = listener.shared.named.remember(ends, named, now, idle);
        listener.shared.cells.of(self.worker.number).names_forgotten.add(forgotten);
        Some((named, content))
    }

    /// The client that a datagram's header names, and the content after it; `None`, and counted, if the
    /// header is malformed.
    fn read_header<'d>(&self, peer: SocketAddr, datagram: &'d [u8]) -> Option<(NamedClient, &'d [u8])> {
        match proxy_protocol::parse_datagram(datagram) {
            Ok((told, content)) => {
                let told = told.filter(|told| !is_unix(told.source.ip().to_canonical()));
                let client = told.map_or(peer, |told| told.source);
                Some((NamedClient { client, asked: told.map(|told| told.destination) }, content))
            }
            Err(violation) => {
                tracing::debug!(%peer, %violation, "PROXY protocol header of a datagram");
                self.count_rejected(Rejected::BadProxyHeader);
                None
            }
        }
    }
}
