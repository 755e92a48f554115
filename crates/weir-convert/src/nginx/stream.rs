//! `stream`: tcp and udp listeners.

use std::time::Duration;

use weir_config::quoted;
use weir_config::units::show_byte_rate;

use super::conversion::Conversion;
use super::http::{NewListener, free_name, header};
use super::listen::{ListenGroup, groups};
use super::networks::lists;
use super::pools::{PoolKind, pool};
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::units::{duration_between, is_plain_host, nginx_size, nginx_time, timer};
use super::variables::{NginxPlace, single_variable};
use super::{logs, tls};
use crate::DirectiveVerdict;
use crate::write::{line, texts};

/// How long a stream may be silent, where nothing is said.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// The slowest rate that a listener can hold its connections to, in bytes per second.
const SLOWEST: u64 = 16 << 10;

/// Adds the listeners of all servers.
pub fn add_listeners<'c>(
    conversion: &mut Conversion<'c>,
    stream: &'c [NginxDirective],
    outer: &NginxScope<'c>,
    listeners: &mut Vec<NewListener>,
) {
    let servers: Vec<&NginxDirective> = stream.iter().filter(|it| it.name == "server").collect();
    for group in groups(&servers, true, &mut conversion.ledger) {
        let kind = if group.flags.udp { "udp" } else { "tcp" };
        let wished = match group.port() {
            Some(port) => format!("{kind}-{port}"),
            None => format!("{kind}-unix"),
        };
        let name = free_name(listeners, &wished);
        for other in group.servers.iter().filter(|at| **at != group.default) {
            let note = "of several servers at one address the default one takes all: left out";
            conversion.ledger.unsupported(servers[*other], note);
            conversion.ledger.judge_below(servers[*other].inner(), DirectiveVerdict::Unsupported, note);
        }
        let server = servers[group.default];
        let scope = outer.within(stream).within(server.inner());
        match listener(conversion, &group, (server, &scope), &name) {
            Ok(body) => {
                conversion.ledger.exact(server, "a listener");
                listeners.push(NewListener::without_routes(name, body));
            }
            Err(why) => {
                let note = format!("{why}: IT IS NOT LISTENED THERE");
                conversion.ledger.unsupported(server, note);
                conversion.ledger.judge_below(
                    server.inner(),
                    DirectiveVerdict::Unsupported,
                    "left out with its server",
                );
            }
        }
    }
}

fn listener<'c>(
    conversion: &mut Conversion<'c>,
    group: &ListenGroup,
    (server, scope): (&'c NginxDirective, &NginxScope<'c>),
    name: &str,
) -> Result<String, String> {
    let mut place = NginxPlace { is_tls: group.flags.tls, ..NginxPlace::default() };
    for directive in scope.own("set") {
        let value = place.constant(directive.word(1));
        place.constants.insert(directive.word(0).trim_start_matches('$').to_owned(), value);
        conversion.ledger.exact(directive, "its value stands where it is used");
    }
    let pass = scope.own("proxy_pass").last().copied().ok_or("it has no `proxy_pass`")?;
    let mut body = String::new();
    line(&mut body, "protocol", quoted(if group.flags.udp { "udp" } else { "tcp" }));
    line(&mut body, "bind", texts(&group.binds));
    let (own, routes) = pools(conversion, (pass, scope), &place, name)?;
    if let Some(pool) = own {
        line(&mut body, "pool", quoted(&pool));
    }
    timeouts(conversion, scope, group, &mut body);
    clients(conversion, scope, &mut body);
    rates(conversion, scope, &mut body);
    if group.flags.proxy_protocol {
        let networks: Vec<String> =
            scope.all("set_real_ip_from").iter().map(|it| it.word(0).to_owned()).collect();
        for directive in scope.all("set_real_ip_from") {
            conversion.ledger.exact(directive, "`accept_proxy`");
        }
        let everybody = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        line(&mut body, "accept_proxy", texts(if networks.is_empty() { &everybody } else { &networks }));
    }
    if scope.all("access_log").is_empty() {
        line(&mut body, "access_log", "false");
    } else {
        let mut route = NewRoute::default();
        logs::of_route(conversion, scope, &mut route);
        for key in ["access_log", "access_logs"] {
            if let Some(value) = route.get(key) {
                line(&mut body, key, value);
            }
        }
    }
    let mut body = header(conversion, (name, &body), group.flags.tls, &scope.own("listen"))
        .ok_or("Weir cannot listen there")?;
    if group.flags.tls {
        let table = tls::table(conversion, name, std::slice::from_ref(scope));
        body.push_str(&table.ok_or("there is no certificate for it that is a file")?);
    }
    body.push_str(&routes);
    for directive in scope.own("ssl_preread") {
        conversion.ledger.exact(directive, "`sni` of routes has the greeting read");
    }
    others(conversion, server, scope);
    Ok(body)
}

/// The pool of a listener, and its routes: by the name in the client's greeting, where that chooses.
fn pools<'c>(
    conversion: &mut Conversion<'c>,
    (pass, scope): (&'c NginxDirective, &NginxScope<'c>),
    place: &NginxPlace,
    listener: &str,
) -> Result<(Option<String>, String), String> {
    let has_tls = scope.one("proxy_ssl").is_some_and(|directive| directive.word(0) == "on");
    if let Some(directive) = scope.one("proxy_ssl") {
        conversion.ledger.exact(directive, "`tls` of the pool");
    }
    let text = place.constant(pass.word(0));
    let named = |conversion: &mut Conversion<'c>, address: &str| {
        if !conversion.upstreams.contains_key(address)
            && !address.starts_with("unix:")
            && !address.contains(':')
        {
            return Err(format!("`{address}` is no upstream and has no port"));
        }
        let inner = NginxPlace { proxy_host: address.to_owned(), ..place.clone() };
        pool(conversion, address, PoolKind::Stream { has_tls }, scope, &inner).map(|found| found.name)
    };
    let Some(variable) = single_variable(&text) else {
        if text.contains("${") {
            return Err("whom to connect to is chosen by the client".to_owned());
        }
        let name = named(conversion, &text)?;
        conversion.ledger.exact(pass, "`pool` of the listener");
        return Ok((Some(name), String::new()));
    };
    let table = conversion.maps.table(&variable).filter(|table| table.name == "map");
    let table = table.ok_or_else(|| format!("`${variable}` is no map"))?;
    if table.word(0) != "$ssl_preread_server_name" && table.word(0) != "$ssl_server_name" {
        return Err(format!(
            "connections are told apart by the name in their greeting (`sni`), not by `{}`",
            table.word(0)
        ));
    }
    let (entries, default) = names_of(table, conversion);
    let mut routes = String::new();
    for (sni, each) in &entries {
        if !is_plain_host(sni.trim_start_matches("*.")) {
            conversion.ledger.unsupported(each, "no name of a host: left out");
            continue;
        }
        let name = match named(conversion, each.word(0)) {
            Ok(name) => name,
            Err(why) => {
                conversion.ledger.unsupported(each, format!("{why}: left out"));
                continue;
            }
        };
        routes.push_str(&format!("\n[[listener.{listener}.route]]\n"));
        line(&mut routes, "sni", quoted(sni));
        line(&mut routes, "pool", quoted(&name));
        conversion.ledger.exact(each, "a route by `sni`");
    }
    conversion.ledger.exact(table, "routes by `sni`");
    conversion.ledger.judge_below(table.inner(), DirectiveVerdict::Exact, "routes by `sni`");
    let own = default
        .filter(|default| !default.is_empty())
        .map(|default| named(conversion, &default))
        .transpose()?;
    conversion.ledger.exact(pass, "`pool` of routes by `sni`");
    if own.is_none() && routes.is_empty() {
        return Err("its map leads nowhere".to_owned());
    }
    Ok((own, routes))
}

/// The names of a map with the lines that say where they lead, in the order in which they are asked; and
/// where all others are led.
fn names_of<'c>(
    table: &'c NginxDirective,
    conversion: &mut Conversion<'_>,
) -> (Vec<(String, &'c NginxDirective)>, Option<String>) {
    let is_hostnames = table.inner().iter().any(|each| each.name == "hostnames");
    let mut default = None;
    let mut entries: Vec<(usize, String, &'c NginxDirective)> = Vec::new();
    for each in table.inner() {
        let key = each.name.to_ascii_lowercase();
        match key.as_str() {
            "default" => default = Some(each.word(0).to_owned()),
            "hostnames" | "volatile" | "include" => {}
            _ if key.starts_with('~') || key.ends_with(".*") => {
                let note = "a name in a greeting is compared as it is, or below a `*.`: left out, SUCH CONNECTIONS GO WHERE THE DEFAULT GOES";
                conversion.ledger.unsupported(each, note);
            }
            _ if is_hostnames && key.starts_with('.') => {
                entries.push((0, key[1..].to_owned(), each));
                entries.push((usize::MAX - key.len(), format!("*{key}"), each));
            }
            _ if key.starts_with("*.") && is_hostnames => entries.push((usize::MAX - key.len(), key, each)),
            "" | "\"\"" => {}
            _ => entries.push((0, key, each)),
        }
    }
    // Exact names first, then the longest wildcard.
    entries.sort_by_key(|(rank, ..)| *rank);
    (entries.into_iter().map(|(_, name, each)| (name, each)).collect(), default)
}

fn timeouts(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, group: &ListenGroup, body: &mut String) {
    let mut keys = Vec::new();
    let idle = scope.one("proxy_timeout").and_then(|directive| {
        conversion.ledger.exact(directive, "`timeout.client_idle`");
        nginx_time(directive.word(0))
    });
    let idle = idle.unwrap_or(TEN_MINUTES);
    keys.push(format!("client_idle = {}", timer(idle)));
    if !group.flags.udp {
        let connect = scope.one("proxy_connect_timeout").and_then(|directive| {
            conversion.ledger.exact(directive, "`timeout.connect`");
            nginx_time(directive.word(0))
        });
        let connect = connect.unwrap_or(Duration::from_secs(60));
        keys.push(format!(
            "connect = {}",
            duration_between(connect, Duration::from_millis(1), Duration::from_secs(300))
        ));
        let preread = scope.one("preread_timeout").and_then(|directive| {
            conversion.ledger.exact(directive, "`timeout.handshake`");
            nginx_time(directive.word(0))
        });
        if let Some(time) = preread {
            keys.push(format!(
                "handshake = {}",
                duration_between(time, Duration::from_millis(10), Duration::from_secs(3600))
            ));
        }
    }
    line(body, "timeout", format!("{{ {} }}", keys.join(", ")));
    let note = "nginx's defaults are written into `timeout`: 10m of silence, 60s to connect";
    conversion.ledger.unsaid("proxy_timeout", DirectiveVerdict::Exact, note);
}

fn clients(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, body: &mut String) {
    let lists = lists(&scope.any_of(&["allow", "deny"]), &mut conversion.ledger);
    if lists.refuses_all {
        line(body, "deny_address", "[\"0.0.0.0/0\", \"::/0\"]");
        return;
    }
    if !lists.allow.is_empty() {
        line(body, "allow_address", texts(&lists.allow));
    }
    if !lists.deny.is_empty() {
        line(body, "deny_address", texts(&lists.deny));
    }
    for directive in scope.all("limit_conn") {
        let zone = scope.everywhere("limit_conn_zone").into_iter().find(|zone| {
            zone.words.iter().any(|word| {
                word.strip_prefix("zone=")
                    .is_some_and(|name| name.split(':').next() == Some(directive.word(0)))
            })
        });
        let by_client =
            zone.is_some_and(|zone| matches!(zone.word(0), "$binary_remote_addr" | "$remote_addr"));
        match (by_client, directive.word(1).parse::<u64>()) {
            (true, Ok(most)) => {
                line(body, "max_connections_per_client", most.max(1));
                conversion.ledger.exact(directive, "`max_connections_per_client`");
            }
            _ => conversion
                .ledger
                .unsupported(directive, "connections are counted by client only: NOT LIMITED"),
        }
    }
}

fn rates(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, body: &mut String) {
    let mut keys = Vec::new();
    for (name, key) in [("proxy_download_rate", "to_client"), ("proxy_upload_rate", "from_client")] {
        let Some(directive) = scope.one(name) else { continue };
        match nginx_size(directive.word(0)) {
            Some(0) => conversion.ledger.exact(directive, "no limit"),
            Some(rate) => {
                keys.push(format!("{key} = \"{}\"", show_byte_rate(rate.max(SLOWEST))));
                match rate < SLOWEST {
                    true => conversion.ledger.approximate(directive, "`bandwidth`, of 16KiB/s at least"),
                    false => conversion.ledger.exact(directive, "`bandwidth`"),
                }
            }
            None => conversion.ledger.unsupported(directive, "no rate that never changes: NOT LIMITED"),
        }
    }
    if !keys.is_empty() {
        line(body, "bandwidth", format!("{{ {} }}", keys.join(", ")));
    }
}

fn others(conversion: &mut Conversion<'_>, server: &NginxDirective, scope: &NginxScope<'_>) {
    for (name, note) in [
        (
            "proxy_next_upstream",
            "`retry` of the pool: another backend is tried where a connection does not come about",
        ),
        ("proxy_next_upstream_tries", "`attempts` of the pool's `retry`, 2 by default"),
        ("proxy_next_upstream_timeout", "no limit of its own: each try has `timeout.connect`"),
        ("proxy_buffer_size", "not needed: buffers are Weir's own"),
        ("proxy_responses", "a flow ends when it is idle (`timeout.client_idle`)"),
        ("proxy_requests", "a flow ends when it is idle (`timeout.client_idle`)"),
        ("proxy_protocol_timeout", "`timeout.header`"),
        ("proxy_half_close", "as Weir does: one direction may end before the other"),
        ("proxy_socket_keepalive", "the system's own"),
    ] {
        if let Some(directive) = scope.one(name) {
            conversion.ledger.approximate(directive, note);
        }
    }
    for directive in server.inner().iter().filter(|it| it.name == "return" || it.name.starts_with("js_")) {
        conversion.ledger.unsupported(directive, "no counterpart in a stream: left out");
    }
}
