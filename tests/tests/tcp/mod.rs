//! TCP through the proxy plane: bytes, relayed.

mod proxy_protocol;
mod relay;
