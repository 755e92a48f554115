//! HTTP/3 and QPACK against their specifications, another implementation's recordings, hostile peers, and any
//! bytes at all.

mod bounds;
mod connections;
mod misuse;
mod peer;
mod properties;
mod recordings;
mod rfc9204_examples;
mod streams;

use peer::{Peer, fields_of, hex, settings_frame, uni};
use weir_http::Limits;
use weir_http::h3::{
    self, Code, Connection, Event, Fault, OwnStream, PeerStream, RequestStream, Scope, SectionError,
    SectionLimits, SectionRead, SectionWriter, StreamEvent, qpack::Decoder, varint,
};
