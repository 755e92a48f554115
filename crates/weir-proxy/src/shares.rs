//! Whose share of the memory budget (`runtime.memory_share_per_client`) the memory of a connection or a
//! request is.
//!
//! A connection's client is looked up once, when the connection begins. Trusted proxies speak for many
//! clients and have no share of their own; neither have clients on Unix sockets, which have no address.

use std::rc::Rc;

use weir_io::buffers::Buffers;
use weir_screen::address_key;

use crate::client::{Client, is_unix};
use crate::worker::Worker;

/// The buffers for a connection of `client`, which may be a trusted proxy.
pub fn of_connection(worker: &Worker, client: &Client, is_trusted: bool) -> Rc<Buffers> {
    let address = client.address.ip();
    if is_trusted || is_unix(address) {
        return worker.buffers.clone();
    }
    worker.buffers.of_client(address_key(address))
}

/// The buffers for a request of `client` that came over the connection of the trusted proxy `proxy`.
///
/// The client is looked up only while half of the budget is in use: before that nobody is refused, and such
/// a proxy may forward all requests that there are.
pub fn behind_proxy(worker: &Worker, proxy: &Client, client: &Client) -> Rc<Buffers> {
    let is_named = client.address.ip() != proxy.address.ip();
    of_connection(worker, client, !is_named || !worker.buffers.is_half_used())
}
