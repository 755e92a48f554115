//! UDP through the proxy plane: datagrams, relayed by flow.

mod failures;
mod proxied;
mod relay;
