//! What a listener speaks, and which keys mean something to whom.

use crate::fields::Fields;
use crate::keys::Only;
use crate::setting::words;

words! {
    /// What a listener speaks to its clients.
    pub enum Protocol {
        Http = "http": "HTTP",
        Tcp = "tcp": "bytes, relayed",
        Udp = "udp": "datagrams, relayed by flow",
        Mysql = "mysql": "MySQL, to the servers of the role that is wanted",
    }
}

impl Protocol {
    /// Whether its listeners have routes. Without them all goes to the listener's pool.
    pub(crate) fn has_routes(self) -> bool {
        match self {
            Protocol::Http | Protocol::Tcp => true,
            Protocol::Udp | Protocol::Mysql => false,
        }
    }

    /// How backends of a pool are probed that only such listeners use, and no key says it.
    pub(crate) fn usual_check(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Tcp => "tcp",
            // A connection says nothing about a UDP service, and a datagram that nobody answers says nothing
            // either.
            Protocol::Udp => "off",
            // To a server a connection without a login is a failed handshake; after 100 of them
            // (`max_connect_errors`) it locks Weir's address out.
            Protocol::Mysql => "mysql",
        }
    }

    /// What is hashed for the backend where no key says it.
    pub(crate) fn usual_hash_key(self) -> &'static str {
        match self {
            Protocol::Http => "uri",
            Protocol::Tcp | Protocol::Udp | Protocol::Mysql => "client_ip",
        }
    }

    /// Whether a backend that got the bytes of one client's attempt can get them again.
    pub(crate) fn sends_again(self) -> bool {
        match self {
            Protocol::Http => true,
            Protocol::Tcp | Protocol::Udp | Protocol::Mysql => false,
        }
    }
}

/// What the listener of these keys speaks; `None` when that could not be read.
pub(crate) fn spoken(listener: &Fields) -> Option<Protocol> {
    if listener.is_bad("protocol") { None } else { Protocol::from_word(listener.word("protocol")) }
}

/// Whether a key means something to a protocol.
pub(crate) fn applies(only: Only, protocol: Protocol) -> bool {
    let protocols: &[Protocol] = match only {
        Only::Any => &Protocol::ALL,
        Only::Http => &[Protocol::Http],
        Only::Stream => &[Protocol::Http, Protocol::Tcp, Protocol::Mysql],
        Only::Routed => &[Protocol::Http, Protocol::Tcp],
        Only::Tcp => &[Protocol::Tcp],
        Only::Transport => &[Protocol::Tcp, Protocol::Udp],
        Only::Udp => &[Protocol::Udp],
        Only::Kept => &[Protocol::Http, Protocol::Mysql],
        Only::Mysql => &[Protocol::Mysql],
    };
    protocols.contains(&protocol)
}

/// Who a key is for.
pub(crate) fn audience(only: Only) -> &'static str {
    match only {
        Only::Any => "every listener",
        Only::Http => "http",
        Only::Stream => "http, tcp and mysql",
        Only::Routed => "http and tcp",
        Only::Tcp => "tcp",
        Only::Transport => "tcp and udp",
        Only::Udp => "udp",
        Only::Kept => "http and mysql",
        Only::Mysql => "mysql",
    }
}
