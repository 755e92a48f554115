//! `[listener.NAME]`: where clients are accepted, and what happens to their requests.

pub(crate) mod binds;
mod interfaces;
pub(crate) mod unix;

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;
use weir_screen::Settings as Screen;

use self::unix::UnixSocket;
use crate::acme::{self, Acme};
use crate::auth::{self, Authentication};
use crate::bandwidth::{self, Bandwidth};
use crate::client_address::{self, ClientAddress};
use crate::compress::{self, Compress};
use crate::error_page::{self, ErrorPage};
use crate::fields::{Fields, Value};
use crate::headers::{self, Headers, Marks};
use crate::keys::{
    Each, Key, Kind, Limit, Planes, Row, count, flag, list, table as below, table_or_true, text, word,
};
use crate::maintenance::{self, Maintenance};
use crate::mysql::{self, ListenerMysql};
use crate::named_pool;
use crate::plane::forward::{Forward, PORTS, PortRange, SOURCE};
use crate::plane::{self, Plane};
use crate::pool::ProxyDatagrams;
use crate::protocol::{Protocol, applies, audience, spoken};
use crate::report::{Findings, Span};
use crate::route::{self, Route};
use crate::screen::ClientScreen;
use crate::setting::{Part, Section as _, table};
use crate::shared::TakesOver;
use crate::sqli::Sqli;
use crate::timeout::{self, HttpLimits, Timeouts};
use crate::tls::{self, ListenerTls};
use crate::values::NAME;
use crate::values::address::NETWORK;
use crate::values::bind::{BINDS, Bind};
use crate::values::http::HttpVersion;
use crate::values::interface::{INTERFACE, InterfacePattern};
use crate::{screen, values};

table! {
    /// One place where clients are accepted.
    pub struct Listener(name) at "[listener.NAME]" {
        /// Addresses of this machine to accept at; port 0 takes a free one. On the kernel plane a range of
        /// ports as well: `"10.0.9.9:30000-30100"`. For http and tcp Unix sockets as well:
        /// `"unix:/run/weir/web.sock"`, and in the abstract namespace `"unix:@web"`.
        bind: Vec<Bind> =
            list(Each::Text(&BINDS)).required().also(&["listen", "address", "addr"]);
        /// Who may connect to the Unix sockets of `bind` that are files.
        unix_socket: UnixSocket = below(UnixSocket::TABLE).routed();
        /// What it takes over.
        shared: TakesOver;
        /// The pool that takes whatever no route takes. Needed for tcp, udp and mysql; without it HTTP
        /// answers 404.
        pool: Option<String> =
            text(&NAME)
                .default("none")
                .also(&["default_backend", "use_backend", "proxy_pass", "backend", "upstream"]);
        /// Peers that must open with a PROXY protocol header (v1 or v2; of udp v2); nobody else may.
        /// `"unix:"` stands for all who come by a Unix socket, here and in other lists of networks.
        accept_proxy: Vec<IpNet> =
            list(Each::Text(&NETWORK))
                .default("nobody")
                .on(Planes::Proxy("the header stands within the connection, which nobody reads there"))
                .also(&["proxy_protocol"]);
        /// Which datagrams of those peers have the header.
        proxy_datagrams: ProxyDatagrams =
            word(ProxyDatagrams::WORDS, "first")
                .udp()
                .on(Planes::Proxy("the header stands within the datagram, which nobody reads there"));
        /// Most client connections at once, over all workers; for udp, flows.
        max_connections: u32 =
            count(Limit::new(
                100_000,
                1,
                10_000_000,
                "each connection is a file descriptor; there are at most a few million",
            ))
            .on(Planes::Proxy("`flows` of `[kernel]` bounds the flows of all listeners together"))
            .also(&["maxconn"]);
        /// Most client connections at once of one client: an IPv4 address, or an IPv6 /64. Those of
        /// `trusted_proxies` are not counted.
        max_connections_per_client: Option<u32> =
            count(Limit::optional(1, 10_000_000, "0 would lock every client out"))
                .default("no limit of its own")
                .on(Planes::Proxy("nobody counts the flows of a client there"));
        /// The timers.
        timeout: Timeouts =
            below(Timeouts::TABLE)
                .instead(&[(
                    &["a text", "a whole number"],
                    "say which: `timeout = { backend = \"30s\" }`, for example",
                )])
                .also(&["timeouts"]);
        /// Certificates and TLS settings.
        tls: Option<ListenerTls> =
            below(ListenerTls::TABLE)
                .default("off")
                .stream()
                .on(Planes::Proxy("connections go through to the backend, and nobody decrypts them"))
                .instead(&[(
                    &["`true` or `false`", "a text"],
                    "expected `{ certificates = [{ cert = \"shop.pem\", key = \"shop.key\" }] }`, for example",
                )])
                .also(&["ssl"]);
        /// Who carries its packets.
        plane: Plane = word(Plane::WORDS, "proxy").transport();
        /// Interfaces, VRFs among them, by which clients come to the addresses of `bind`; each has sockets of
        /// its own, and must be there. On the kernel plane those at which its packets are taken, backends'
        /// answers among them, by name or pattern (`"eth*"`), whether they are there already or come later.
        interfaces as "interface": Vec<InterfacePattern> =
            list(Each::Text(&INTERFACE))
                .default("all; on the kernel plane those that routes lead to, or that have an address of `bind`")
                .also(&["interfaces", "device", "devices", "nic"]);
        /// What is done to packets.
        forward: Forward =
            word(Forward::WORDS, "nat")
                .transport()
                .on(Planes::Kernel)
                .also(&["forwarding", "mode"])
                .instead(&[(&["masq", "masquerade", "masquerading"], "did you mean \"nat\"?")]);
        /// Addresses that packets to backends leave from by `"full-nat"`: of this machine, or routed to it.
        /// By `"ipip"` one for each family, which outer headers come from.
        source_addresses as "source_address": Vec<IpAddr> =
            list(Each::Text(&SOURCE))
                .default("by `\"full-nat\"` none, and it needs one; by `\"ipip\"` what the route to the backend has")
                .transport()
                .on(Planes::Kernel)
                .also(&["source", "snat", "source_addresses", "usesrc"]);
        /// Ports of these addresses that packets leave from. Nothing else on this machine may use them: they
        /// lie outside of `net.ipv4.ip_local_port_range`, or in `net.ipv4.ip_local_reserved_ports`.
        source_ports: Option<PortRange> =
            text(&PORTS)
                .default("the larger part of 1024-65535 below or above `net.ipv4.ip_local_port_range`")
                .transport()
                .on(Planes::Kernel)
                .also(&["source_port", "port_range"]);
        /// From whom it takes connections and datagrams, and how many, where it speaks no HTTP.
        client_screen: ClientScreen;
        /// How fast bytes may pass, in either direction. Beyond it connections wait, and datagrams are
        /// dropped.
        bandwidth: Option<Bandwidth> =
            below(Bandwidth::TABLE)
                .default("no limit")
                .transport()
                .on(Planes::Proxy("nobody counts bytes there"))
                .also(&["bwlim", "limit_rate", "shaping"]);
        /// Whether its lines are written to access logs; metrics count them anyway.
        access_log: bool =
            flag(true).on(Planes::ProxyTuning("packets are counted there, and not logged"));
        /// The access logs that its lines are written to: names of `[access_log.NAME]`, and `"main"` for that
        /// of `[log]`.
        access_logs: Vec<String> =
            list(Each::Text(&NAME))
                .default("all that there are")
                .on(Planes::ProxyTuning("packets are counted there, and not logged"))
                .also(&["logs", "log"]);
        /// What it speaks to its clients, and what is said about that only.
        speaks: Speaks;
        /// In file order, first match wins.
        routes as "route": Vec<Route> =
            Key::new(Kind::Tables(Route::TABLE))
                .routed()
                .on(Planes::Proxy("the server name stands within the connection, which nobody reads there"))
                .also(&["routes", "location", "rule", "acl"]);
    }
}

/// What a listener speaks to its clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Speaks {
    /// HTTP.
    Http(Box<Http>),
    /// Bytes, relayed.
    Tcp,
    /// Datagrams, relayed by flow.
    Udp,
    /// MySQL.
    Mysql(Box<ListenerMysql>),
}

table! {
    /// What is said of a listener that speaks HTTP.
    pub struct Http {
        /// HTTP versions that are spoken. A client that knows several gets HTTP/2 by TLS.
        versions as "http": Vec<HttpVersion> =
            list(Each::Word(HttpVersion::WORDS))
                .default("`[\"h1\", \"h2\"]` with `tls`, else `[\"h1\"]`")
                .http()
                .instead(&[
                    (&["http1", "http/1", "http/1.1", "http1.1"], "did you mean \"h1\"?"),
                    (&["http2", "http/2"], "did you mean \"h2\"?"),
                    (&["http3", "http/3", "quic"], "did you mean \"h3\"?"),
                ])
                .also(&["alpn", "versions", "http_versions"]);
        /// Peers whose `forwarded` and `x-forwarded-*` are believed and extended rather than overwritten;
        /// whom they name is the client everywhere.
        trusted_proxies: Vec<IpNet> =
            list(Each::Text(&NETWORK))
                .default("nobody")
                .http()
                .also(&["set_real_ip_from", "real_ip_from"]);
        /// By which field these say who asks; a text is the name of the field.
        client_address: Option<ClientAddress> =
            Key::new(Kind::TableOrText(ClientAddress::TABLE, "field"))
                .http()
                .default("the last entry of `x-forwarded-for` that is none of the `trusted_proxies`")
                .also(&["real_ip_header", "real_ip", "client_ip_header"]);
        /// Takes `//` in a path for `/`, for routes and for backends: where backends do so, a route guards no
        /// path without it.
        merge_slashes: bool = flag(false).http();
        /// Takes a client of HTTP/1.1 that ends its direction of the connection for one that has left, and
        /// its backend off the request. A few clients (netcat) end it and wait for the answer.
        abort_on_close: bool =
            flag(false).http().also(&["abortonclose", "proxy_ignore_client_abort"]);
        /// Compresses responses for clients that ask for it; a route may say otherwise.
        compress: Option<Compress> =
            table_or_true(Compress::TABLE)
                .default("off")
                .http()
                .also(&["compression", "gzip", "brotli", "encode"]);
        /// What clients are told of errors, where their route does not say it.
        error_page: Vec<ErrorPage> =
            Key::new(Kind::Tables(ErrorPage::TABLE))
                .http()
                .default("Weir's own line of text")
                .also(&["error_pages", "errorfile", "errors", "http-errors"]);
        /// What clients are told while `weir maintenance` has switched the service off, and who gets through;
        /// a route may say otherwise.
        maintenance: Option<Maintenance> = below(Maintenance::TABLE).http().default("503, for all");
        /// Who may ask, and who says so; a route may say otherwise.
        auth: Option<Authentication> =
            table_or_true(Authentication::TABLE)
                .default("everybody")
                .http()
                .also(&["authentication", "auth_request", "forward_auth", "forwardauth"]);
        /// Counts requests and their duration by route, too; of at most 500 routes.
        route_metrics: bool = flag(false).http().also(&["status_zone", "metrics_by_route"]);
        /// Sizes a client may make Weir hold or parse.
        limits: HttpLimits = below(HttpLimits::TABLE).http().also(&["limit"]);
        /// Rules about header fields.
        headers: Headers;
        /// What Weir says of itself and of the client.
        marks: Marks;
        /// How requests are looked at for SQL injection where no route says otherwise.
        sqli: Sqli;
        /// What is asked of every request, before its route is asked.
        screen: Screen;
    }
}

impl Part for Speaks {
    const ROWS: &'static [Row] = &[
        Row::Key(
            word(Protocol::WORDS, "http")
                .first()
                .also(&["mode"])
                .instead(&[
                    (
                        &["https", "tls", "ssl"],
                        "expected \"http\", \"tcp\", \"udp\" or \"mysql\"; TLS is what `tls` of the listener asks for",
                    ),
                    (
                        &["h1", "h2", "h3", "http1", "http2", "http3", "http/2", "http/3", "grpc", "quic"],
                        "expected \"http\"; `http = [\"h1\", \"h2\", \"h3\"]` says which versions are spoken, of which \"h3\" wants `tls`",
                    ),
                ])
                .named("protocol", "What it speaks to its clients."),
        ),
        Row::Part(Http::ROWS),
        Row::Part(ListenerMysql::ROWS),
    ];

    fn of(fields: &Fields) -> Speaks {
        match spoken(fields).unwrap_or_default() {
            Protocol::Http => Speaks::Http(Box::new(Http::of(fields))),
            Protocol::Tcp => Speaks::Tcp,
            Protocol::Udp => Speaks::Udp,
            Protocol::Mysql => Speaks::Mysql(Box::new(ListenerMysql::of(fields))),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("protocol", Some(Value::Word(self.protocol().word())));
        match self {
            Speaks::Http(http) => http.put(fields),
            Speaks::Tcp | Speaks::Udp => {}
            Speaks::Mysql(mysql) => mysql.put(fields),
        }
    }
}

impl Speaks {
    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Speaks::Http(_) => Protocol::Http,
            Speaks::Tcp => Protocol::Tcp,
            Speaks::Udp => Protocol::Udp,
            Speaks::Mysql(_) => Protocol::Mysql,
        }
    }
}

impl Listener {
    /// The protocol that it speaks.
    pub fn protocol(&self) -> Protocol {
        self.speaks.protocol()
    }

    /// Its HTTP settings. If it does not speak HTTP: settings without any version and without any checks.
    pub fn http(&self) -> &Http {
        static NONE: LazyLock<Http> = LazyLock::new(|| Http {
            versions: Vec::new(),
            ..Http::of(&Fields::new(Listener::TABLE, Span::default()))
        });
        match &self.speaks {
            Speaks::Http(http) => http,
            Speaks::Tcp | Speaks::Udp | Speaks::Mysql(_) => &NONE,
        }
    }

    /// Its MySQL settings; `None` if it speaks another protocol.
    pub fn mysql(&self) -> Option<&ListenerMysql> {
        match &self.speaks {
            Speaks::Mysql(mysql) => Some(mysql),
            Speaks::Http(_) | Speaks::Tcp | Speaks::Udp => None,
        }
    }
}

/// Fills in values that follow from other settings of a listener.
pub(crate) fn assume(listener: &mut Fields) {
    let versions: &[HttpVersion] = match listener.get("tls") {
        Some(_) => &[HttpVersion::H1, HttpVersion::H2],
        None => &[HttpVersion::H1],
    };
    let versions = versions.iter().map(|version| (Span::default(), Value::Word(version.word())));
    listener.assume("http", Value::List(versions.collect()));
    timeout::assume(listener);
    route::assume(listener);
}

/// Reports mistakes in the listeners of a file.
pub(crate) fn check(root: &Fields, listeners: &[Arc<Listener>], findings: &mut Findings<'_>) {
    let speaks_plain_http = |fields: &Fields| {
        fields.lacks("tls") && spoken(fields).is_none_or(|protocol| protocol == Protocol::Http)
    };
    let answers_plainly = root.named("listener").any(speaks_plain_http);
    let mut orders: Vec<(&str, &Acme)> = Vec::new();
    let mut looked = auth::Looked::default();
    for (listener, fields) in listeners.iter().zip(root.named("listener")) {
        of_protocol(listener, fields, findings);
        plane::check_listener(root, fields, findings);
        interfaces::check(fields, findings);
        unix::check(root, listener, fields, findings);
        if matches!(spoken(fields), Some(Protocol::Http | Protocol::Mysql)) {
            plane::ranges(fields, findings);
        }
        mysql::check_listener(root, fields, findings);
        if spoken(fields) == Some(Protocol::Http) {
            versions(fields, findings);
        }
        if let Some(tls) = fields.table("tls") {
            let spoken = spoken(fields);
            let speaks_h3 = listener.http().versions.contains(&HttpVersion::H3);
            tls::check_listener(&listener.name, tls, speaks_h3, findings);
            let own = listener.tls.iter().flat_map(|tls| &tls.acme);
            for (own, (_, fields)) in own.zip(tls.tables("acme")) {
                acme::check(&listener.name, own, fields, answers_plainly, &orders, findings);
                if let (Some(Protocol::Mysql), Some(entry)) = (spoken, fields.get("on_demand")) {
                    let hint = "its clients give up before a certificate has come: expected `domains`";
                    findings.error(entry.key, "`on_demand` is not for `protocol = \"mysql\"`", hint);
                }
                orders.push((&listener.name, own));
            }
        }
        bandwidth::check(fields, findings);
        compress::check(fields, findings);
        error_page::check(fields, findings);
        client_address::check(fields, findings);
        headers::check_listener(root, fields, findings);
        maintenance::check(fields, findings);
        auth::check(root, fields, &mut looked, findings);
        for (_, route) in fields.tables("route") {
            auth::check(root, route, &mut looked, findings);
            auth::cached(route, findings);
        }
        route::check(fields, &listener.routes, findings);
        match spoken(fields) {
            None | Some(Protocol::Http) => screen::check_listener(fields, findings),
            Some(_) => screen::check_connections(fields, findings),
        }
        named_pool::exists(root, fields, "pool", findings);
        for (_, route) in fields.tables("route").filter(|_| spoken(fields).is_none_or(Protocol::has_routes)) {
            named_pool::exists(root, route, "pool", findings);
        }
    }
}

/// Checks what a protocol needs, and keys that it does not use.
fn of_protocol(listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(protocol) = spoken(fields) else { return };
    inapplicable(fields, fields, protocol, findings);
    if fields.lacks("pool") {
        no_pool(fields, protocol, findings);
    }
    if let (Protocol::Udp, Some(entry)) = (protocol, fields.get("proxy_datagrams"))
        && fields.lacks("accept_proxy")
    {
        let hint = "expected `accept_proxy` with those who send a header";
        findings.warning(entry.key, "`proxy_datagrams` has no effect", hint);
    }
    if let (Some(most), Some(entry)) =
        (listener.max_connections_per_client, fields.get("max_connections_per_client"))
        && most > listener.max_connections
        && fields.value("max_connections").is_some()
    {
        let hint = format!(
            "`max_connections` is {} already ({})",
            listener.max_connections,
            findings.place(fields.at("max_connections"))
        );
        findings.warning(entry.at, "`max_connections_per_client` has no effect", hint);
    }
    timeout::check(fields, findings);
}

/// Reports keys of other protocols. A table without effect is reported once, not once for each of its keys.
fn inapplicable(listener: &Fields, fields: &Fields, protocol: Protocol, findings: &mut Findings<'_>) {
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name) else { continue };
        if applies(key.only, protocol) {
            for below in entry.value.tables() {
                inapplicable(listener, below, protocol, findings);
            }
            continue;
        }
        let place = findings.place(listener.at("protocol"));
        let spoken = protocol.word();
        let message = format!("`{}` means nothing to a {spoken} listener", key.name);
        let hint =
            format!("it is for {}, and `{}` speaks {spoken} ({place})", audience(key.only), listener.name);
        findings.error(entry.key, message, hint);
    }
}

fn no_pool(listener: &Fields, protocol: Protocol, findings: &mut Findings<'_>) {
    let name = &listener.name;
    let expected = match protocol {
        Protocol::Http if listener.lacks("route") => {
            let message = format!("listener `{name}` answers every request with 404");
            findings.warning(listener.at, message, "it has no `pool` and no `[[route]]`");
            return;
        }
        Protocol::Tcp if listener.lacks("route") => "expected `pool = \"NAME\"`, or routes by `sni`",
        Protocol::Http | Protocol::Tcp => return,
        Protocol::Udp => "a udp listener has no routes: expected `pool = \"NAME\"`",
        Protocol::Mysql => "a mysql listener has no routes: expected `pool = \"NAME\"`",
    };
    findings.error(listener.at, format!("listener `{name}` has no `pool`"), expected);
}

/// Checks a listener's `http`.
fn versions(listener: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = listener.get("http") else { return };
    let Value::List(list) = &entry.value else { return };
    values::said_once(listener, "http", findings);
    let h3 =
        list.iter().find(|(_, value)| matches!(value, Value::Word(word) if *word == HttpVersion::H3.word()));
    let Some((at, _)) = h3 else { return };
    if listener.lacks("tls") {
        let hint = format!(
            "QUIC is always encrypted (RFC 9001): expected `[listener.{}.tls]` with `certificates`",
            listener.name
        );
        findings.error(*at, "`h3` needs `tls`", hint);
    }
    if listener.get("accept_proxy").is_some() {
        let hint = format!(
            "QUIC carries none: whoever comes by h3 is taken for the client ({})",
            findings.place(listener.at("accept_proxy"))
        );
        findings.warning(*at, "`h3` knows no PROXY protocol", hint);
    }
}
