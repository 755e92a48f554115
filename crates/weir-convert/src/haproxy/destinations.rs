//! `set-dst` and `set-dst-port`: where a client meant to go, which decides for servers that are `0.0.0.0`
//! alone.

use super::ledger::Ledger;
use super::networks::{Endpoint, place};
use super::proxies::Proxy;
use super::sections::Line;

/// Whether a rule says where a client meant to go.
pub fn is_set(line: &Line) -> bool {
    let action = match line.word(0) {
        "http-request" => line.word(1),
        "tcp-request" => line.word(2),
        _ => return false,
    };
    matches!(action, "set-dst" | "set-dst-port")
}

/// Whether a server stands for wherever the client meant to go.
pub fn is_open(address: &str) -> bool {
    matches!(place(address), Ok((Endpoint::Host(host, _), _)) if matches!(host.as_str(), "" | "*" | "0.0.0.0" | "::"))
}

/// Gives these rules their verdicts.
pub fn judge(proxies: &[Proxy<'_>], ledger: &mut Ledger) {
    let servers = proxies.iter().flat_map(|proxy| proxy.lines_of("server"));
    let has_open = servers.into_iter().any(|line| is_open(line.word(2)));
    for line in proxies.iter().flat_map(|proxy| &proxy.lines).filter(|line| is_set(line)) {
        match has_open {
            true => ledger.unsupported(
                line.number,
                "backends have addresses of their own, and no client or rule says another: where it may go is a list of pools, and a route, or `pool_map`, for each",
            ),
            false => ledger.approximate(
                line.number,
                "nothing goes elsewhere by it, since no server is `0.0.0.0`; `send_proxy` and logs say the address that the client came to",
            ),
        }
    }
}
