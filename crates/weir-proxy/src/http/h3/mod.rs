//! HTTP/3 towards clients (RFC 9114): requests of QUIC connections to exchanges. What frames and fields mean
//! is `weir_http::h3`'s, how datagrams go is [`weir_quic`]'s.

mod front;
mod server;
mod shared;
mod stream;

pub use front::ListenerFront;
pub use server::{ReceivedRequest, serve_request};
pub use stream::{ResponseParts, Stream};
