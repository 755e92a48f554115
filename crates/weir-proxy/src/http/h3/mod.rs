//! HTTP/3 (RFC 9114): from clients' QUIC connections to exchanges, and from exchanges to backends.
//! `weir_http::h3` defines what frames and fields mean, [`weir_quic`] transports the datagrams.

mod asked;
mod backend;
mod connections;
mod front;
mod server;
mod shared;
mod stream;

pub use backend::{IDLE_TIMEOUT, settings};
pub use connections::{QuicConnections, QuicSlot};
pub use front::ListenerFront;
pub use server::{ReceivedRequest, serve_request};
pub use stream::{ResponseParts, Stream};
