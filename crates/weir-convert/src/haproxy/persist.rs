//! `ignore-persist`, `force-persist` and `option persist`: whether a client goes to the server that its
//! cookie names.

use super::ledger::Ledger;
use super::proxies::Proxy;
use super::sections::Line;

/// What becomes of requests that go wherever the balance says.
pub fn told(pool: &str, is_hidden: bool) -> String {
    let seen = if is_hidden { "; backends see the cookie there" } else { "" };
    format!(
        "a route to `[pool.{pool}]`, the same servers without `sticky`: it probes them by itself, and counts their connections apart (`max_connections`, `least-connections`){seen}"
    )
}

/// Whether a proxy is one of those that a line is about.
pub fn is_about(line: &Line) -> bool {
    match line.word(0) {
        "option" => line.word(1) == "persist" && !line.negated,
        word => matches!(word, "force-persist" | "ignore-persist"),
    }
}

/// Says of a proxy what a line comes to, besides routes.
pub fn judge(proxy: &Proxy<'_>, line: &Line, ledger: &mut Ledger) {
    let number = line.number;
    let has = |word: &str| proxy.last(&[word]).is_some();
    if !proxy.is_back() {
        return ledger.exact(number, "no effect: this proxy has no servers");
    }
    if !(has("cookie") || has("stick") || has("appsession") || has("persist")) {
        return ledger.exact(number, "no effect: no client has a server of its own (`cookie`, `stick`)");
    }
    match (line.word(0), proxy.option("redispatch").is_some()) {
        ("option", true) => ledger.approximate(
            number,
            "a server that is down is not tried first: its clients go to another one at once",
        ),
        ("option", false) => ledger.unsupported(
            number,
            "clients of a server that is down go to another one, where HAProxy sends them there all the same and answers 503",
        ),
        ("force-persist", _) => ledger.unsupported(
            number,
            "a server that is down gets no request, whatever a cookie says: a pool of that server alone, with `health = \"off\"`, reaches it",
        ),
        _ if proxy.is_tcp => ledger.exact(number, "no effect in `mode tcp`"),
        _ => {}
    }
}
