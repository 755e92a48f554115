//! TCP through the proxy plane: bytes, relayed.

mod leaving;
mod limits;
mod lists;
mod proxy_protocol;
mod relay;
mod source;
