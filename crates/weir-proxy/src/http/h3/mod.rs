//! HTTP/3 (RFC 9114): requests of clients' QUIC connections to exchanges, and those of exchanges to backends.
//! What frames and fields mean is `weir_http::h3`'s, how datagrams go is [`weir_quic`]'s.

mod asked;
mod backend;
mod connections;
mod front;
mod server;
mod shared;
mod stream;

pub use backend::{IDLE_TIMEOUT, client_config};
pub use connections::{QuicConnections, QuicSlot};
pub use front::ListenerFront;
pub use server::{ReceivedRequest, serve_request};
pub use stream::{ResponseParts, Stream};
