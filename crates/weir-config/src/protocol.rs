//! The protocol of a listener, and which keys have an effect for which protocol.

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
    /// Whether its listeners have routes. Without routes everything goes to the listener's pool.
    pub(crate) fn has_routes(self) -> bool {
        match self {
            Protocol::Http | Protocol::Tcp => true,
            Protocol::Udp | Protocol::Mysql => false,
        }
    }

    /// The default probe of a pool that only such listeners use.
    pub(crate) fn usual_check(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Tcp => "tcp",
            // A connection proves nothing about a UDP service, and neither does an unanswered datagram.
            Protocol::Udp => "off",
            // A server counts a connection without a login as a failed handshake, and blocks Weir's address
            // after 100 of them (`max_connect_errors`).
            Protocol::Mysql => "mysql",
        }
    }

    /// The default hash key.
    pub(crate) fn usual_hash_key(self) -> &'static str {
        match self {
            Protocol::Http => "uri",
            Protocol::Tcp | Protocol::Udp | Protocol::Mysql => "client_ip",
        }
    }

    /// Whether the bytes of a client's first attempt can be sent again to another backend.
    pub(crate) fn sends_again(self) -> bool {
        match self {
            Protocol::Http => true,
            Protocol::Tcp | Protocol::Udp | Protocol::Mysql => false,
        }
    }
}

/// The protocol of a listener; `None` when it could not be read.
pub(crate) fn spoken(listener: &Fields) -> Option<Protocol> {
    if listener.is_bad("protocol") { None } else { Protocol::from_word(listener.word("protocol")) }
}

/// Whether a key has an effect for a protocol.
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

/// The listeners for which a key is meant, in words.
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
