//! TCP through the proxy plane: bytes, relayed.

mod lists;
mod proxy_protocol;
mod relay;
