//! Whose share of the memory budget (`runtime.memory_share_per_client`) the memory of a connection or a
//! request is.
//!
//! A connection's client is looked up once, when the connection begins. Trusted proxies speak for many
//! clients and have no share of their own: there the client of each request is looked up. Clients on Unix
//! sockets have no address, and no share either.

use std::rc::Rc;

use weir_io::buffers::Buffers;
use weir_screen::{address_key, site_key};

use crate::client::{Client, is_unix};
use crate::worker::Worker;

/// The buffers for a connection of `client`, which may be a trusted proxy.
pub fn of_connection(worker: &Worker, client: &Client, is_trusted: bool) -> Rc<Buffers> {
    let address = client.address.ip();
    if is_trusted || is_unix(address) {
        return worker.buffers.clone();
    }
    worker.buffers.of_client(address_key(address), site_key(address))
}

/// The buffers for a request of `client` that came over the connection of the trusted proxy `proxy`; `before`
/// are those of the request before it. Takes a look-up unless it is of the same client.
pub fn behind_proxy(worker: &Worker, before: &Rc<Buffers>, proxy: &Client, client: &Client) -> Rc<Buffers> {
    let address = client.address.ip();
    if before.is_of(address_key(address)) {
        return before.clone();
    }
    of_connection(worker, client, address == proxy.address.ip())
}
