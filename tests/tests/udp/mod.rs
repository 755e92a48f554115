//! UDP through the proxy plane: datagrams, relayed by flow.

mod proxied;
mod relay;
