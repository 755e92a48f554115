//! `stats` in a proxy: the admin API and its pages take their place.

use super::ledger::Ledger;
use super::proxies::Proxy;

/// Where Weir's admin API is by default.
const DEFAULT: &str = "127.0.0.1:9900";

/// Whether a proxy is there for statistics alone, and becomes no listener.
pub fn is_alone(proxy: &Proxy<'_>) -> bool {
    let has = |word: &str| proxy.lines_of(word).next().is_some();
    let answers =
        proxy.lines_of("http-request").any(|line| matches!(line.word(1), "return" | "redirect" | "deny"));
    proxy.is_front()
        && !proxy.is_tcp
        && (has("stats")
            || proxy
                .lines_of("http-request")
                .any(|line| line.words.iter().any(|word| word.contains("prometheus"))))
        && !["server", "server-template", "use_backend", "default_backend", "redirect"]
            .iter()
            .any(|word| has(word))
        && !answers
}

/// Gives the lines of such a proxy their verdicts. The address of the admin API, if it can be the proxy's.
pub fn alone(proxy: &Proxy<'_>, ledger: &mut Ledger) -> Option<String> {
    let bind = proxy.lines_of("bind").next();
    let own = bind.map(|line| line.word(1)).filter(|address| {
        (address.starts_with("127.") || address.starts_with("[::1]:") || address.starts_with("localhost:"))
            && !address.contains(',')
            && bind.is_some_and(|line| !line.words.iter().any(|word| word == "ssl"))
    });
    let own = own.map(|address| address.replace("localhost:", "127.0.0.1:"));
    let place = own.clone().unwrap_or_else(|| DEFAULT.to_owned());
    ledger.approximate(
        proxy.section.number,
        format!("no listener: statistics are pages and metrics of `[admin]`, at {place}"),
    );
    let own_lines = proxy.lines.iter().filter(|line| line.number > proxy.section.number);
    for line in own_lines {
        match line.word(0) {
            "bind" if own.is_some() => ledger.exact(line.number, "`admin.bind`"),
            "bind" => ledger.approximate(
                line.number,
                format!("the admin API is at {DEFAULT}; another address needs a `token_file` (`admin.bind`)"),
            ),
            "stats" => self::line(line.word(1), line.number, ledger),
            "http-request" => ledger.approximate(line.number, "metrics are at `/metrics` of the admin API"),
            _ => ledger.exact(line.number, "no listener is made of this proxy"),
        }
    }
    own
}

/// Statistics beside the traffic of a proxy.
pub fn beside(proxy: &Proxy<'_>, ledger: &mut Ledger) {
    for line in proxy.lines_of("stats") {
        match line.word(1) {
            "uri" | "enable" => ledger
                .approximate(line.number, format!("not at this listener, but in `[admin]`, at {DEFAULT}")),
            word => self::line(word, line.number, ledger),
        }
    }
}

fn line(word: &str, number: usize, ledger: &mut Ledger) {
    let note = match word {
        "auth" => {
            "NO PASSWORD IS ASKED FOR: who reaches the address may read; `admin.token_file` protects what changes something"
        }
        "admin" => "changes by the admin API need the token where there is a `token_file`",
        "uri" | "enable" => "pages are at `/`, metrics at `/metrics`",
        "http-request" => "rules for statistics are not in Weir: who reaches the address may read",
        _ => "the look of these pages is Weir's",
    };
    ledger.approximate(number, note);
}
