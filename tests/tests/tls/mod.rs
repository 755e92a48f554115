//! TLS, by `openssl s_client` and `curl`, with certificates that each test makes for itself.

mod alerts;
mod backends;
mod expiry;
mod handshakes;
mod kept;
mod mutual;
mod named_files;
mod names;
mod policy;
mod probes;
mod reload;
mod resumption;
mod revoked;
mod shared_tickets;
mod uploads;

use std::net::SocketAddr;

pub use weir_tests::dialogue::Authority;
use weir_tests::dialogue::{After, Backend, Finished, ONE_POOL, PATIENCE, Weir, run_tool, tool};

/// `openssl s_client`, told to send `input`; it ends when Weir closes or its input does.
pub fn s_client(address: SocketAddr, words: &str, input: &str) -> Finished {
    let address = address.to_string();
    let mut arguments = vec!["s_client", "-connect", &address, "-ign_eof"];
    arguments.extend(words.split_whitespace());
    run_tool(&tool("openssl", "openssl"), &arguments, input.as_bytes(), PATIENCE)
}

/// A request after which Weir closes.
pub const LAST: &str = "GET / HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\r\n";

/// Asks `https://HOST/` of a listener with curl; everything it says, and the status at the end.
pub fn curl(weir: &Weir, listener: &str, host: &str, more: &[&str]) -> Finished {
    let address = weir.address(listener);
    let resolve = format!("{host}:{}:{}", address.port(), address.ip());
    let url = format!("https://{host}:{}/", address.port());
    let mut arguments =
        vec!["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--resolve", &resolve];
    arguments.extend(["--write-out", "\nstatus %{http_code}"]);
    arguments.extend(more);
    arguments.push(&url);
    run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE)
}

/// A listener of HTTP/1.1 with the certificate `shop`, and so many workers.
pub fn shop(workers: usize) -> String {
    let of_listener = "[listener.web]\nhttp = [\"h1\"]\ntls = { certificates = [{ cert = \"@dir/shop.pem\", key = \"@dir/shop.key\" }] }";
    let of_pool = ONE_POOL.replace("[listener.web]", of_listener);
    format!("[runtime]\nworkers = {workers}\n{of_pool}health = \"off\"\n")
}

/// A backend that answers with the request's head.
pub fn mirror() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[], &request.head);
        After::Keep
    })
}
