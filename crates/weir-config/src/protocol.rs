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
    }
    not built {
        "mysql": "MySQL, split by statement",
    }
}

impl Protocol {
    /// Whether its listeners have routes. Without them all goes to the listener's pool.
    pub(crate) fn has_routes(self) -> bool {
        match self {
            Protocol::Http | Protocol::Tcp => true,
            Protocol::Udp => false,
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
        }
    }

    /// What is hashed for the backend where no key says it.
    pub(crate) fn usual_hash_key(self) -> &'static str {
        match self {
            Protocol::Http => "uri",
            Protocol::Tcp | Protocol::Udp => "client_ip",
        }
    }

    /// Whether a backend that got the bytes of one client's attempt can get them again.
    pub(crate) fn sends_again(self) -> bool {
        match self {
            Protocol::Http => true,
            Protocol::Tcp | Protocol::Udp => false,
        }
    }
}

/// What the listener of these keys speaks; `None` when that could not be read.
pub(crate) fn spoken(listener: &Fields) -> Option<Protocol> {
    if listener.is_bad("protocol") { None } else { Protocol::from_word(listener.word("protocol")) }
}

/// Whether a key means something to a protocol.
pub(crate) fn applies(only: Only, protocol: Protocol) -> bool {
    match (only, protocol) {
        (Only::Any, _) | (Only::Http | Only::Stream, Protocol::Http) => true,
        (Only::Stream | Only::Tcp | Only::Transport, Protocol::Tcp) | (Only::Transport, Protocol::Udp) => {
            true
        }
        (Only::Http, Protocol::Tcp) | (Only::Tcp | Only::Transport, Protocol::Http) => false,
        (Only::Http | Only::Stream | Only::Tcp, Protocol::Udp) => false,
    }
}

/// Who a key is for.
pub(crate) fn audience(only: Only) -> &'static str {
    match only {
        Only::Any => "every listener",
        Only::Http => "http",
        Only::Stream => "http and tcp",
        Only::Tcp => "tcp",
        Only::Transport => "tcp and udp",
    }
}
