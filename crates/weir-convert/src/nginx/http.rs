//! `http`: listeners with their routes.

use weir_config::quoted;

use super::conversion::Conversion;
use super::listen::{ListenGroup, groups};
use super::names::{first_name, turns};
use super::request_test::{RequestTest, RouteTest};
use super::route::{NewRoute, in_common, taken_lines, write_routes};
use super::scope::NginxScope;
use super::serve::{NginxServer, routes};
use super::timers::{NginxTimers, of_listener};
use super::tls::{self, AsksClients, asks_clients};
use super::tree::NginxDirective;
use super::units::{nginx_size, size_text};
use super::variables::NginxPlace;
use crate::DirectiveVerdict;
use crate::write::{line, texts};

/// A listener as it will be written: routes may still change.
pub struct NewListener {
    name: String,
    body: String,
    routes: Vec<NewRoute>,
}

impl NewListener {
    /// A listener without routes.
    pub fn without_routes(name: String, body: String) -> NewListener {
        NewListener { name, body, routes: Vec::new() }
    }

    /// Writes it, with the table of what its routes have in common.
    pub fn write(mut self, conversion: &Conversion<'_>, out: &mut String) {
        conversion.logs.settle(&mut self.routes);
        let shared = in_common(&mut self.routes, &self.name);
        out.push_str(&self.body);
        write_routes(&self.name, &self.routes, out);
        out.push_str(&shared);
    }
}

/// A name that no listener has yet.
pub fn free_name(listeners: &[NewListener], wished: &str) -> String {
    let numbered = (2..).map(|number| format!("{wished}-{number}"));
    let mut names = std::iter::once(wished.to_owned()).chain(numbered);
    names.find(|name| listeners.iter().all(|listener| listener.name != *name)).unwrap_or_default()
}

/// The listeners of all servers.
pub fn listeners<'c>(conversion: &mut Conversion<'c>, http: &'c [NginxDirective]) -> Vec<NewListener> {
    let servers: Vec<&NginxDirective> = http.iter().filter(|it| it.name == "server").collect();
    let groups = groups(&servers, false, &mut conversion.ledger);
    let mut listeners = Vec::new();
    for group in &groups {
        let tcp = groups.iter().find(|other| !std::ptr::eq(*other, group) && other.binds == group.binds);
        if group.flags.quic && tcp.is_some_and(|other| other.flags.tls) {
            continue;
        }
        let name = name_of(group, &listeners);
        if let Some(listener) = listener(conversion, group, &servers, name) {
            listeners.push(listener);
        }
    }
    listeners
}

fn name_of(group: &ListenGroup, listeners: &[NewListener]) -> String {
    let scheme = if group.flags.tls { "https" } else { "http" };
    let usual = if group.flags.tls { 443 } else { 80 };
    let wished = match group.port() {
        Some(port) if port == usual => scheme.to_owned(),
        Some(port) => format!("{scheme}-{port}"),
        None => format!("{scheme}-unix"),
    };
    free_name(listeners, &wished)
}

fn listener<'c>(
    conversion: &mut Conversion<'c>,
    group: &ListenGroup,
    servers: &[&'c NginxDirective],
    name: String,
) -> Option<NewListener> {
    let outer = conversion.outer.clone();
    // The default server first: what a listener has once is as that says.
    let ordered =
        std::iter::once(group.default).chain(group.servers.iter().copied().filter(|at| *at != group.default));
    let ordered: Vec<usize> = ordered.collect();
    let scopes: Vec<NginxScope<'c>> = ordered.iter().map(|at| outer.within(servers[*at].inner())).collect();
    let default = scopes.first()?.clone();
    let timers = NginxTimers::of(conversion, &default);
    let mut lines = String::new();
    line(&mut lines, "bind", texts(&group.binds));
    versions(conversion, group, &scopes, &mut lines);
    line(&mut lines, "timeout", of_listener(conversion, &default, &timers));
    of_default_server(conversion, &default, &mut lines);
    clients(conversion, group, &default, &mut lines);
    let mut body = header(conversion, (&name, &lines), group.flags.tls, &default.own("listen"))?;
    for scope in scopes.iter().skip(1) {
        of_other_server(conversion, scope, &default);
    }
    let mut has_client_ca = false;
    if group.flags.tls {
        let Some(table) = tls::table(conversion, &name, &scopes) else {
            for listen in default.own("listen") {
                let note = "there is no certificate for it that is a file: it is NOT LISTENED THERE";
                conversion.ledger.unsupported(listen, note);
            }
            return None;
        };
        has_client_ca = table.contains("\nclient_ca = ");
        body.push_str(&table);
    }
    let all_ask = scopes.iter().all(|scope| asks_clients(scope) == AsksClients::Required);
    let of_group: Vec<(usize, &NginxDirective)> =
        group.servers.iter().map(|at| (*at, servers[*at])).collect();
    let mut all = Vec::new();
    for turn in turns(&of_group, group.default, &mut conversion.ledger) {
        let server = NginxServer::of(&outer, servers[turn.server], timers.clone());
        let place = NginxPlace {
            server_name: first_name(server.directive),
            is_tls: group.flags.tls,
            has_client_ca,
            ..NginxPlace::default()
        };
        if has_client_ca && !all_ask && asks_clients(&server.scope) == AsksClients::Required {
            let map = conversion.certificate_map();
            let test = RouteTest::of_hosts(&turn.hosts).and_not(&RequestTest::value("map", map, "SUCCESS"));
            all.push(NewRoute::answering(test, "who shows no certificate", 400));
        }
        all.extend(routes(conversion, &server, &turn.hosts, &place));
    }
    Some(NewListener { name, body, routes: all })
}

/// The table of a listener with the lines that Weir takes; `None` if it could not even listen.
pub fn header(
    conversion: &mut Conversion<'_>,
    (name, lines): (&str, &str),
    has_tls: bool,
    listens: &[&NginxDirective],
) -> Option<String> {
    let starts = |key: &str| lines.lines().find(|line| line.starts_with(key));
    let protocol = starts("protocol = ").unwrap_or_default();
    let bind = starts("bind = ").unwrap_or_default();
    let tls = if has_tls { "tls = { certificates = [{ cert = \"c\", key = \"k\" }] }\n" } else { "" };
    let pools = format!("{}{}", conversion.pools.stubs(), conversion.logs.stubs());
    // A stream without a pool of its own has routes, which are not tried here.
    let (pool, spare) = match (protocol, starts("pool = ")) {
        ("", _) => ("", ""),
        (_, Some(pool)) => (pool, ""),
        (_, None) => ("pool = \"none\"", "[pool.none]\nbackends = [\"127.0.0.1:1\"]\n"),
    };
    let is_own = |line: &&str| ["protocol = ", "bind = ", "pool = "].iter().any(|key| line.starts_with(key));
    let rest: String = lines.lines().filter(|line| !is_own(line)).flat_map(|line| [line, "\n"]).collect();
    let before = format!("[listener.x]\n{protocol}\n{bind}\n{pool}\n{tls}");
    let after = format!("{spare}{pools}");
    let refused_bind = taken_lines("# what it listens at\n", &before, &after).1;
    let (taken, refused) = taken_lines(&rest, &before, &after);
    for listen in listens {
        for why in &refused {
            let note = format!("Weir would not take what is said of the listener ({why}): left out");
            conversion.ledger.unsupported(listen, note);
        }
        for why in &refused_bind {
            let note = format!("Weir would not take the address ({why}): it is NOT LISTENED THERE");
            conversion.ledger.unsupported(listen, note);
        }
    }
    if !refused_bind.is_empty() {
        return None;
    }
    let own: String = lines.lines().filter(is_own).flat_map(|line| [line, "\n"]).collect();
    Some(format!("\n[listener.{name}]\n{own}{taken}"))
}

fn versions(
    conversion: &mut Conversion<'_>,
    group: &ListenGroup,
    scopes: &[NginxScope<'_>],
    body: &mut String,
) {
    let mut has_h2 = group.flags.http2;
    for scope in scopes {
        if let Some(directive) = scope.one("http2") {
            has_h2 |= directive.word(0) == "on";
            conversion.ledger.exact(directive, "`http` of the listener");
        }
        for name in ["http3", "quic_retry", "quic_gso", "quic_host_key"] {
            if let Some(directive) = scope.one(name) {
                conversion.ledger.exact(directive, "`http` of the listener; QUIC's settings are Weir's own");
            }
        }
    }
    let is_quic_too = scopes
        .iter()
        .any(|scope| scope.own("listen").iter().any(|listen| listen.words.iter().any(|word| word == "quic")));
    let mut versions = vec!["\"h1\""];
    if has_h2 {
        versions.push("\"h2\"");
    }
    if group.flags.tls && is_quic_too {
        versions.push("\"h3\"");
    }
    if group.flags.tls && !has_h2 {
        let note = "`http = [\"h1\"]`, as nginx without `http2`; take it out to speak HTTP/2, too";
        conversion.ledger.unsaid("http2", DirectiveVerdict::Exact, note);
    }
    if group.flags.tls || has_h2 {
        line(body, "http", format!("[{}]", versions.join(", ")));
    }
}

/// What a listener has once: nginx knows no more than the default server when a request's head arrives.
fn of_default_server(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, body: &mut String) {
    let merges = scope.one("merge_slashes").is_none_or(|directive| directive.word(0) == "on");
    if merges {
        line(body, "merge_slashes", "true");
    }
    match scope.one("merge_slashes") {
        Some(directive) => conversion.ledger.exact(directive, "`merge_slashes` of the listener"),
        None => conversion.ledger.unsaid(
            "merge_slashes",
            DirectiveVerdict::Exact,
            "`merge_slashes = true`: off by default in Weir",
        ),
    }
    let buffers = scope.one("large_client_header_buffers");
    let (number, size) = buffers
        .and_then(|directive| Some((directive.word(0).parse::<u64>().ok()?, nginx_size(directive.word(1))?)))
        .unwrap_or((4, 8 << 10));
    if let Some(directive) = buffers {
        conversion
            .ledger
            .approximate(directive, "`limits`: `request_line` is one buffer, `header` all of them");
        let (line_most, head_most) =
            (size.clamp(256, 1 << 20), number.saturating_mul(size).clamp(1 << 10, 16 << 20));
        line(
            body,
            "limits",
            format!("{{ request_line = {}, header = {} }}", size_text(line_most), size_text(head_most)),
        );
    }
    for (name, note) in [
        (
            "keepalive_requests",
            "left out: a connection is closed when it is idle, not after a number of requests",
        ),
        ("keepalive_time", "left out: a connection is closed when it is idle"),
        ("http2_max_concurrent_streams", "`limits.streams` is 128, as nginx's default"),
        (
            "underscores_in_headers",
            "fields with underscores that could be mistaken for others are dropped, all others pass",
        ),
        ("ignore_invalid_headers", "a request with an invalid field is refused with 400"),
        ("server_tokens", "Weir adds no `server`"),
    ] {
        if let Some(directive) = scope.one(name) {
            conversion.ledger.approximate(directive, note);
        }
    }
    conversion.ledger.unsaid(
        "proxy_pass",
        DirectiveVerdict::Approximate,
        "backends get paths in their normal form (nginx passes them as sent where `proxy_pass` has no URI), and `x-forwarded-…`, `x-real-ip`, `forwarded`, `via` and `x-request-id` besides, whatever `proxy_set_header` says",
    );
}

/// Who the client is: `set_real_ip_from`, `real_ip_header`, `listen … proxy_protocol`.
fn clients(conversion: &mut Conversion<'_>, group: &ListenGroup, scope: &NginxScope<'_>, body: &mut String) {
    let from = scope.all("set_real_ip_from");
    let mut networks: Vec<String> = from.iter().map(|directive| directive.word(0).to_owned()).collect();
    networks.dedup();
    let header =
        scope.one("real_ip_header").map_or("X-Real-IP", |directive| directive.word(0)).to_ascii_lowercase();
    if group.flags.proxy_protocol {
        let peers = match (networks.is_empty(), header.as_str()) {
            (false, "proxy_protocol") => networks.clone(),
            _ => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        };
        line(body, "accept_proxy", texts(&peers));
        let note = "`accept_proxy`: these peers must send the header, nobody else may, and whom it names is the client";
        conversion.ledger.unsaid("listen … proxy_protocol", DirectiveVerdict::Approximate, note);
    }
    let recursive = scope.one("real_ip_recursive");
    let is_recursive = recursive.is_some_and(|directive| directive.word(0) == "on");
    if networks.is_empty() {
        return;
    }
    for directive in &from {
        conversion.ledger.exact(
            directive,
            if header == "proxy_protocol" { "`accept_proxy`" } else { "`trusted_proxies`" },
        );
    }
    if let Some(directive) = scope.one("real_ip_header") {
        conversion.ledger.exact(directive, "`client_address` of the listener");
    }
    if let Some(directive) = recursive {
        conversion.ledger.exact(directive, "`client_address`: by default the last that is none of the `trusted_proxies`, `hops = 1` without it");
    }
    if header == "proxy_protocol" {
        return;
    }
    line(body, "trusted_proxies", texts(&networks));
    match (header.as_str(), is_recursive) {
        ("x-forwarded-for", true) => {}
        ("x-forwarded-for", false) => line(body, "client_address", "{ hops = 1 }"),
        (header, _) => line(body, "client_address", quoted(header)),
    }
    let note = "these are believed in `x-forwarded-proto`, `-host` and `forwarded`, too, which are passed on extended";
    conversion.ledger.unsaid("set_real_ip_from", DirectiveVerdict::Approximate, note);
}

/// Directives of another server that hold for a whole listener in Weir.
fn of_other_server(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, default: &NginxScope<'_>) {
    for name in [
        "set_real_ip_from",
        "real_ip_header",
        "real_ip_recursive",
        "keepalive_timeout",
        "client_header_timeout",
        "large_client_header_buffers",
        "merge_slashes",
        "keepalive_requests",
        "ssl_protocols",
        "ssl_session_tickets",
        "ssl_early_data",
    ] {
        let of_default: Vec<&[String]> =
            default.all(name).iter().map(|directive| directive.words.as_slice()).collect();
        for directive in scope.own(name) {
            match of_default.contains(&directive.words.as_slice()) {
                true => conversion.ledger.exact(directive, "the same for all servers of the listener"),
                false => conversion.ledger.approximate(
                    directive,
                    "of a listener in Weir: what its default server says holds for all",
                ),
            }
        }
    }
    for name in [
        "underscores_in_headers",
        "ignore_invalid_headers",
        "server_tokens",
        "http2_max_concurrent_streams",
        "keepalive_time",
    ] {
        for directive in scope.own(name) {
            conversion.ledger.approximate(directive, "of a listener in Weir, which has its own way");
        }
    }
}
