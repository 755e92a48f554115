//! HTTP/2 (RFC 9113). The `h2` crate reads and writes frames; what a message means, and what is done with it,
//! is decided in the same place as for other protocols.

mod awaiting;
mod backend;
mod connections;
mod empty_data;
mod flood_budget;
mod frames;
mod head;
mod heard;
mod interim;
mod malformed;
mod presence;
mod resets;
mod send_window;
mod server;
mod small_frames;
mod stream;
mod turn;
mod wire;

pub use connections::{BackendConnections, SETTINGS_PATIENCE, StreamSlot};
pub use frames::PREFACE;
pub use head::{RequestParts, ResponseParts};
pub use server::{ReceivedRequest, serve, serve_request};
pub use stream::Stream;
