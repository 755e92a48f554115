//! What all the rest of a proxy becomes, which is mostly nothing.

use super::bandwidth::of_filter;
use super::ledger::Ledger;
use super::proxies::Proxy;
use super::sections::Line;

/// Options that change how connections are handled, and no answer.
const SETTINGS: &[&str] = &[
    "tcpka",
    "clitcpka",
    "srvtcpka",
    "tcp-smart-accept",
    "tcp-smart-connect",
    "nolinger",
    "independent-streams",
    "contstats",
    "socket-stats",
    "idle-close-on-response",
    "prefer-last-server",
    "http-pretend-keepalive",
    "http-ignore-probes",
    "h1-case-adjust-bogus-client",
    "h1-case-adjust-bogus-server",
    "http-restrict-req-hdr-names",
    "tcp-use-srv-name",
];

/// Directives without an effect on traffic.
const WITHOUT_EFFECT: &[&str] = &[
    "description",
    "id",
    "grace",
    "enabled",
    "bind-process",
    "backlog",
    "max-keep-alive-queue",
    "max-session-srv-conns",
    "clitcpka-cnt",
    "clitcpka-idle",
    "clitcpka-intvl",
    "srvtcpka-cnt",
    "srvtcpka-idle",
    "srvtcpka-intvl",
    "guid",
];

/// Directives for servers.
const OF_SERVERS: &[&str] = &[
    "fullconn",
    "balance",
    "hash-type",
    "hash-balance-factor",
    "cookie",
    "retries",
    "retry-on",
    "http-reuse",
    "server",
    "default-server",
    "http-check",
    "tcp-check",
    "dynamic-cookie-key",
    "stick",
    "appsession",
    "source",
];

/// Gives lines their verdicts that no other part looks at.
pub fn judge(proxy: &Proxy<'_>, ledger: &mut Ledger) {
    if proxy.is_upgraded {
        let note = format!("`{}` speaks HTTP, as all of its backends do", proxy.name());
        ledger.unsaid("mode", note);
    }
    for line in &proxy.lines {
        match line.word(0) {
            _ if super::persist::is_about(line) => super::persist::judge(proxy, line, ledger),
            "option" => option(proxy, line, ledger),
            "mode" => match line.word(1) {
                "http" | "tcp" => ledger.exact(line.number, "`protocol` of listeners"),
                other => ledger.unsupported(line.number, format!("there is no mode `{other}`: tcp")),
            },
            _ => {
                if !ledger.has(line.number) {
                    other(proxy, line, ledger);
                }
            }
        }
    }
}

fn option(proxy: &Proxy<'_>, line: &Line, ledger: &mut Ledger) {
    let number = line.number;
    if ledger.has(number) {
        return;
    }
    if line.negated {
        return ledger.exact(number, "off");
    }
    match line.word(1) {
        "httplog"
        | "tcplog"
        | "httpslog"
        | "dontlognull"
        | "dontlog-normal"
        | "logasap"
        | "log-separate-errors"
            if !proxy.is_front() =>
        {
            ledger.exact(number, "no effect: listeners write lines");
        }
        "forwardfor" | "abortonclose" if !proxy.is_front() && !proxy.is_tcp => {
            let note = if line.word(1) == "forwardfor" {
                "always on: Weir tells backends who the client is, and throws away what clients claim unless they are `trusted_proxies`"
            } else {
                "`abort_on_close` is a key of listeners: set it there"
            };
            ledger.approximate(number, note);
        }
        "forwardfor" | "abortonclose" | "http-keep-alive" | "http-server-close" | "httpclose"
        | "forceclose" | "http-no-delay" | "http-use-htx" | "http-tunnel"
            if proxy.is_tcp
                || matches!(line.word(1), "http-keep-alive" | "http-no-delay" | "http-use-htx") =>
        {
            ledger.exact(number, if proxy.is_tcp { "no effect in `mode tcp`" } else { "always so" });
        }
        "http-server-close" | "httpclose" | "forceclose" => ledger.exact(number, "of pools (`keep_alive`)"),
        "redispatch" => {
            ledger.approximate(number, "always so: a retry goes to another backend where there is one")
        }
        "allbackups" => ledger.exact(number, "always so"),
        "log-health-checks" => ledger.approximate(
            number,
            "changes of state are in Weir's own log; probes are counted (`weir_probes_total`)",
        ),
        "splice-auto" | "splice-request" | "splice-response" => {
            ledger.exact(number, "bulky streams are spliced by themselves")
        }
        name if SETTINGS.contains(&name) => {
            ledger.approximate(number, "not in Weir, and no request is answered otherwise by it");
        }
        "accept-invalid-http-request"
        | "accept-invalid-http-response"
        | "accept-unsafe-violations-in-http-request"
        | "accept-unsafe-violations-in-http-response" => {
            ledger.unsupported(number, "what breaks the rules of HTTP is refused (400, 502)");
        }
        "transparent" | "http_proxy" | "originalto" | "srvtcpka-cnt" => {
            ledger.unsupported(number, "there is nothing like it");
        }
        "checkcache" => {
            ledger.unsupported(number, "responses with a cookie that caches may keep pass in Weir");
        }
        "forwarded" => ledger.exact(number, "always on"),
        "http-buffer-request" => ledger.approximate(number, "`buffer` of pools: this proxy has none"),
        name if super::checks::OPTIONS.contains(&name) => {
            ledger.exact(
                number,
                if proxy.is_back() { "another check holds" } else { "no server is checked here" },
            );
        }
        _ => {}
    }
}

fn other(proxy: &Proxy<'_>, line: &Line, ledger: &mut Ledger) {
    let number = line.number;
    let word = line.word(0);
    match word {
        name if WITHOUT_EFFECT.contains(&name) => ledger.approximate(number, "no effect on traffic"),
        "http-send-name-header" => ledger.unsupported(number, "backends are not told their names"),
        "rate-limit" => ledger.unsupported(
            number,
            "`rate_limit` with `key = \"listener\"` refuses what is beyond it; nothing waits",
        ),
        "disabled" => {
            ledger.unsupported(number, "a proxy is not switched off: it is converted as if it were on")
        }
        "load-server-state-from-file" | "server-state-file-name" => {
            ledger.approximate(number, "a reload keeps states by itself")
        }
        "email-alert" => ledger.unsupported(number, "no mails are sent: alerts come from metrics"),
        "filter" if line.word(1).starts_with("bwlim-") && !proxy.is_tcp => match of_filter(line) {
            Ok(()) => ledger.exact(number, "`bandwidth` of the routes with `set-bandwidth-limit`"),
            Err(why) => ledger.unsupported(number, why),
        },
        "filter" => ledger.unsupported(number, filter(line)),
        "persist" | "dispatch" => ledger.unsupported(number, "there is nothing like it"),
        "monitor" | "monitor-uri" | "errorfile" | "errorfiles" | "http-error" if proxy.is_tcp => {
            ledger.exact(number, "no effect in `mode tcp`");
        }
        "monitor" => ledger.exact(number, "no effect: this proxy accepts nobody"),
        "monitor-net" => ledger.approximate(number, "clients of this network are served as others are"),
        "errorfile" | "errorloc" | "errorloc302" | "errorloc303" | "errorfiles" | "http-error"
            if !proxy.is_front() =>
        {
            ledger.unsupported(
                number,
                "pages stand on listeners: Weir's own line of text is sent for errors of this pool",
            );
        }
        "compression" if !proxy.is_front() => {
            ledger.unsupported(number, "`compress` stands on listeners and routes: say it there")
        }
        "unique-id-format" | "unique-id-header" => {
            ledger.approximate(number, "`x-request-id` is passed on or made for every request")
        }
        "http-request" | "http-response" | "http-after-response" | "redirect" | "use_backend" => {
            ledger.exact(number, "no effect in `mode tcp`");
        }
        "tcp-request" | "tcp-response" => ledger.unsupported(number, "not converted: it has no effect"),
        name if OF_SERVERS.contains(&name) && !proxy.is_back() => {
            ledger.exact(number, "no effect: this proxy has no servers");
        }
        "http-check" if proxy.option("httpchk").is_none() => {
            ledger.exact(number, "no effect: there is no `option httpchk`");
        }
        "dynamic-cookie-key" if proxy.last(&["cookie"]).is_none() => {
            ledger.exact(number, "no effect: there is no `cookie`");
        }
        name if OF_SERVERS.contains(&name) => {
            ledger.exact(number, "no effect: no server of this proxy is converted");
        }
        "bind" | "maxconn" | "default_backend" | "monitor-uri" | "log" | "compression"
            if !proxy.is_front() =>
        {
            ledger.exact(number, "no effect: this proxy accepts nobody");
        }
        "timeout" => timeout(proxy, line, ledger),
        _ => {}
    }
}

fn timeout(proxy: &Proxy<'_>, line: &Line, ledger: &mut Ledger) {
    let number = line.number;
    match line.word(1) {
        "client" | "http-request" | "http-keep-alive" | "client-fin" if !proxy.is_front() => {
            ledger.exact(number, "no effect: this proxy accepts nobody");
        }
        "connect" | "server" | "queue" | "check" | "tunnel" | "server-fin" | "tarpit" => {
            ledger.exact(number, "no effect: no server of this proxy is converted");
        }
        "client-fin" => ledger.approximate(number, "none of its own: the other timers hold"),
        _ => {}
    }
}

fn filter(line: &Line) -> &'static str {
    match line.word(1) {
        "spoe" => "there is no SPOE: `auth.forward` asks a service who may pass, `mirror` copies requests",
        "bwlim-in" | "bwlim-out" => "`bandwidth` of the listener limits bytes per second",
        "compression" | "cache" => "the order of filters is Weir's own",
        _ => "there is nothing like it",
    }
}
