//! TCP through the proxy plane: bytes, relayed.

mod leaving;
mod limits;
mod lists;
mod proxy_protocol;
mod relay;
mod source;

/// The config of a TCP listener, `front`, in front of a pool with one backend, `app`; with these lines of the
/// listener and of the pool.
fn front(of_listener: &str, of_pool: &str) -> String {
    let listener =
        format!("[listener.front]\nprotocol = \"tcp\"\nbind = \"@front\"\npool = \"app\"\n{of_listener}");
    format!("{listener}\n[pool.app]\nbackends = [\"@app\"]\n{of_pool}\n")
}
