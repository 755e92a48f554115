//! The verdict on each option of a `[routing:NAME]`, also where `[DEFAULT]` says it.

use super::Said;
use super::addresses::shown;
use super::endpoint::{
    CA_OF_FOLDER, RouterClientTls, RouterEndpoint, RouterRole, RouterServerSide, RouterServers,
    RouterStrategy,
};
use super::{approximate, exact, unsupported};

/// The verdict on an option, for an endpoint that it holds for. `None` if Router's `[routing]` has no such
/// option.
pub fn verdict(name: &str, value: &str, endpoint: &RouterEndpoint) -> Option<Said> {
    Some(match name {
        "bind_address" | "bind_port" | "socket" => place(name, endpoint),
        "destinations" => servers(value, endpoint),
        "routing_strategy" | "mode" => strategy(name, endpoint),
        "protocol" if endpoint.is_x => exact("`protocol = \"tcp\"`: bytes are relayed as they are"),
        "protocol" if endpoint.relays() => {
            exact("`protocol = \"tcp\"`: the client and its server speak with each other, as with Router")
        }
        "protocol" => exact("`protocol = \"mysql\"`"),
        "access_mode" if value.is_empty() => exact("nothing is set"),
        "access_mode" => exact("`access = \"auto\"`"),
        "connection_sharing" | "connection_sharing_delay" => sharing(name, value, endpoint),
        "wait_for_my_writes" if !endpoint.splits => exact("means nothing without `access_mode = auto`"),
        "wait_for_my_writes" => exact("`read_your_writes` of the pool"),
        "wait_for_my_writes_timeout" if !endpoint.splits => {
            exact("means nothing without `access_mode = auto`")
        }
        "wait_for_my_writes_timeout" => approximate(
            "a read waits for the session's own write for one second at most, then the primary answers",
        ),
        "connect_timeout" => bounded(value, 1, 300, "`timeout.connect`"),
        "client_connect_timeout" if endpoint.relays() => {
            unsupported("the server alone limits the login (its `connect_timeout`)")
        }
        "client_connect_timeout" => bounded(value, 2, 3600, "`timeout.handshake`"),
        "connect_retry_timeout" => approximate(
            "a statement that needs the primary waits for it for up to `park` (10 s) of the pool's `mysql`; other connections try the next server at once",
        ),
        "max_connections" => limit(value),
        "max_connect_errors" => unsupported(
            "no client is locked out for broken-off logins: Weir bounds logins a second instead (`full_logins_per_client`), and `max_connections_per_client`",
        ),
        "net_buffer_length" => exact("Weir sizes its buffers itself"),
        "thread_stack_size" => exact("Weir has no thread for each connection"),
        "router_require_enforce" => require(value, endpoint),
        _ if name.starts_with("client_ssl_") => client_tls(name, value, endpoint)?,
        _ if name.starts_with("server_ssl_") => server_tls(name, value, endpoint)?,
        _ => return None,
    })
}

fn place(name: &str, endpoint: &RouterEndpoint) -> Said {
    match (name, &endpoint.bind_name) {
        ("socket", _) if endpoint.socket.is_none() => exact("no Unix socket"),
        ("socket", _) if endpoint.relays() => exact("`bind`, beside the port"),
        ("socket", _) => unsupported(
            "`mysql` listeners take TCP connections only: clients of this socket must use the address and port",
        ),
        ("bind_address", Some(host)) if host == "localhost" => {
            approximate("`bind` at 127.0.0.1: listeners take addresses, no names")
        }
        ("bind_address", Some(_)) => unsupported(
            "listeners take addresses, no names: it listens at 127.0.0.1 until you put the address into `bind`",
        ),
        _ if endpoint.bind.is_none() => exact("no port: it listens at its socket only"),
        _ => exact("`bind`"),
    }
}

fn servers(value: &str, endpoint: &RouterEndpoint) -> Said {
    let RouterServers::Cluster { role, .. } = &endpoint.servers else {
        return match endpoint.relays() {
            true => exact(
                "`backends` of the pool; connections are relayed, so that each of them may serve any client",
            ),
            false => exact("the one backend of the pool, which `topology = \"static\"` makes the primary"),
        };
    };
    let passes = endpoint.client_tls == RouterClientTls::Passthrough;
    let mut notes = vec![match role {
        RouterRole::Primary => "`access = \"read-write\"`: the member that is the primary",
        RouterRole::Secondary => "`access = \"read-only\"`: secondaries",
        RouterRole::PrimaryAndSecondary if endpoint.splits => {
            "`access = \"auto\"`: each statement where it may run"
        }
        RouterRole::PrimaryAndSecondary if passes => {
            "`access = \"read-only\"` with `reads = \"all\"`: every member"
        }
        RouterRole::PrimaryAndSecondary => {
            "`access = \"read-only\"` with `reads = \"all\"`: every member, but on the primary writes are refused; for reads and writes on one port use `access = \"auto\"`"
        }
    }];
    let mut is_exact = *role != RouterRole::PrimaryAndSecondary || endpoint.splits || passes;
    let yes = |option: &str| value.to_ascii_lowercase().contains(&format!("{option}=yes"));
    if yes("disconnect_on_metadata_unavailable") {
        is_exact = false;
        notes.push("sessions stay while their server answers, whether or not others can be asked for roles");
    }
    if yes("disconnect_on_promoted_to_primary") {
        is_exact = false;
        notes.push("a session stays on a server that becomes the primary, where it may only read");
    }
    let note = notes.join("; ");
    if is_exact { exact(note) } else { approximate(note) }
}

fn strategy(name: &str, endpoint: &RouterEndpoint) -> Said {
    let passes = endpoint.client_tls == RouterClientTls::Passthrough;
    let note = match (endpoint.strategy, endpoint.role()) {
        _ if name == "mode" => {
            return exact("`balance` of the pool: an option of Router before 8.0, which said how to choose");
        }
        (RouterStrategy::FirstAvailable, Some(RouterRole::Primary)) => return exact("there is one primary"),
        (_, Some(RouterRole::Primary)) => "where a group has several primaries, one of them gets all writes",
        (RouterStrategy::NextAvailable, _) => {
            "`balance = \"first\"`: the first server that is up, also one that was down before; Router leaves that out until it starts again"
        }
        (RouterStrategy::FirstAvailable, None) => {
            return exact("`balance = \"first\"`: the first server that is up");
        }
        (RouterStrategy::RoundRobin, None) => return exact("`balance = \"round-robin\"`"),
        (RouterStrategy::FirstAvailable, _) if passes => return exact("`balance = \"first\"`"),
        (RouterStrategy::FirstAvailable, _) => "`balance = \"first\"`, for each statement anew",
        (RouterStrategy::RoundRobin, Some(RouterRole::Secondary)) if passes => {
            "`balance = \"round-robin\"`; where no secondary is up, the primary answers, which Router refuses"
        }
        (RouterStrategy::RoundRobin, Some(RouterRole::Secondary)) => {
            "`balance = \"round-robin\"`, for each statement anew; where no secondary is up, the primary answers reads, which Router refuses"
        }
        (RouterStrategy::RoundRobin | RouterStrategy::RoundRobinWithFallback, _) if passes => {
            return exact("`balance = \"round-robin\"`");
        }
        (RouterStrategy::RoundRobin, _) => "`balance = \"round-robin\"`, for each statement anew",
        (RouterStrategy::RoundRobinWithFallback, _) => {
            "`balance = \"round-robin\"`, for each statement anew; on the primary, which answers where no secondary is up, writes are refused (1290, 1792)"
        }
    };
    approximate(note)
}

fn sharing(name: &str, value: &str, endpoint: &RouterEndpoint) -> Said {
    let is_on = matches!(value.to_ascii_lowercase().as_str(), "1" | "true");
    let keeps = endpoint.relays() || endpoint.client_tls == RouterClientTls::Passthrough;
    match name {
        _ if keeps && name == "connection_sharing" && is_on => {
            unsupported("bytes are relayed as they are: each client has a connection of its own to a server")
        }
        _ if keeps => exact("each client has a connection of its own to a server"),
        "connection_sharing" if is_on => exact(
            "Weir always does so: a session holds a server's connection only while it leaves something on it",
        ),
        "connection_sharing" => approximate(
            "sessions share servers' connections all the same; `passwords = \"relay\"` of the pool's `mysql` gives each its own",
        ),
        _ => approximate("a connection is free for others as soon as a statement has left nothing on it"),
    }
}

/// A number of seconds that Weir takes within bounds.
fn bounded(value: &str, least: u64, most: u64, key: &str) -> Said {
    match value.parse::<u64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => exact(key),
        Ok(_) => approximate(format!("{key}, from {least}s to {most}s")),
        Err(_) => refused(value, "a number of seconds"),
    }
}

fn limit(value: &str) -> Said {
    match value.parse::<u16>() {
        Ok(0) => exact("no limit of its own: `max_connections` is that of all together"),
        Ok(_) => exact("`max_connections`, unless `max_total_connections` is lower"),
        Err(_) => refused(value, "a number from 0 to 65535"),
    }
}

fn require(value: &str, endpoint: &RouterEndpoint) -> Said {
    let is_on = matches!(value.to_ascii_lowercase().as_str(), "1" | "true");
    if !is_on {
        return exact("accounts' `router_require` is not looked at");
    }
    if endpoint.relays() || endpoint.client_tls == RouterClientTls::Passthrough {
        return exact("means nothing where TLS is between the client and its server");
    }
    unsupported(
        "accounts' ATTRIBUTE `router_require` is not looked at: to have all clients use TLS set `mode = \"required\"` in the listener's `tls`, and for certificates of all `client_auth = \"required\"`",
    )
}

/// What is said of TLS with clients, where it ends.
const CLIENT_TLS: [&str; 9] = [
    "client_ssl_cert",
    "client_ssl_key",
    "client_ssl_cipher",
    "client_ssl_ca",
    "client_ssl_capath",
    "client_ssl_crl",
    "client_ssl_crlpath",
    "client_ssl_curves",
    "client_ssl_dh_params",
];

/// What is said of TLS sessions that clients resume.
const RESUMING: [&str; 3] =
    ["client_ssl_session_cache_mode", "client_ssl_session_cache_size", "client_ssl_session_cache_timeout"];

fn client_tls(name: &str, value: &str, endpoint: &RouterEndpoint) -> Option<Said> {
    let ends_here = !endpoint.relays()
        && matches!(endpoint.client_tls, RouterClientTls::Preferred | RouterClientTls::Required);
    Some(match name {
        "client_ssl_mode" => client_mode(endpoint),
        name if CLIENT_TLS.contains(&name) && value.is_empty() => exact("nothing is set"),
        name if !ends_here && (CLIENT_TLS.contains(&name) || RESUMING.contains(&name)) => {
            match endpoint.relays() && endpoint.client_tls != RouterClientTls::Passthrough {
                true => approximate("the servers' own, with whom clients speak TLS"),
                false => exact("means nothing: TLS does not end here"),
            }
        }
        "client_ssl_cert" | "client_ssl_key" => exact("`certificates` of the listener's `tls`"),
        "client_ssl_ca" => approximate(
            "`client_ca` with `client_auth = \"optional\"`: a certificate is asked for, and a wrong one is refused; no account demands one (`router_require`)",
        ),
        "client_ssl_crl" if endpoint.client_ca.is_some() => exact("`crl` of the listener's `tls`"),
        "client_ssl_crl" | "client_ssl_crlpath" if endpoint.client_ca.is_none() => {
            exact("means nothing without `client_ssl_ca`")
        }
        "client_ssl_crlpath" => unsupported(
            "a folder: revoked client certificates are accepted until you name its files in `crl` of the listener's `tls`",
        ),
        "client_ssl_capath" if endpoint.client_ca.is_some() => {
            unsupported("a folder: put its files into the one of `client_ca`")
        }
        "client_ssl_capath" => unsupported(
            "a folder: no client is asked for a certificate until you put its files into one and name that as `client_ca`",
        ),
        "client_ssl_cipher" | "client_ssl_curves" | "client_ssl_dh_params" => approximate(
            "Weir has cipher suites and groups of its own, none of them weak (`ciphers` of the listener's `tls`)",
        ),
        "client_ssl_session_cache_mode" => exact("`tickets` of the listener's `tls`"),
        "client_ssl_session_cache_size" => exact("tickets are kept by the clients"),
        "client_ssl_session_cache_timeout" => approximate("tickets are good for 12 to 18 hours"),
        _ => return None,
    })
}

fn client_mode(endpoint: &RouterEndpoint) -> Said {
    match (endpoint.client_tls, endpoint.relays()) {
        (RouterClientTls::Passthrough, false) => exact("`mode = \"passthrough\"` of the listener's `tls`"),
        (RouterClientTls::Passthrough, true) => exact("clients and servers speak TLS with each other"),
        (RouterClientTls::Disabled, false) => exact("no `tls`"),
        (RouterClientTls::Preferred, false) => exact("`mode = \"preferred\"` of the listener's `tls`"),
        (RouterClientTls::Required, false) => exact("`mode = \"required\"` of the listener's `tls`"),
        (RouterClientTls::Preferred, true) => {
            approximate("connections are relayed: clients and servers speak TLS with each other")
        }
        (RouterClientTls::Disabled, true) => {
            approximate("connections are relayed: clients may speak TLS with the servers")
        }
        (RouterClientTls::Required, true) => unsupported(
            "connections are relayed, and clients without TLS are not refused: have the accounts `REQUIRE SSL`",
        ),
    }
}

fn server_tls(name: &str, value: &str, endpoint: &RouterEndpoint) -> Option<Said> {
    let tls = match &endpoint.server_side {
        RouterServerSide::Tls(tls) if !endpoint.relays() => Some(tls),
        _ => None,
    };
    let is_verified = tls.is_some_and(|tls| tls.ca.is_some());
    Some(match name {
        "server_ssl_mode" => server_mode(value, endpoint),
        "server_ssl_cert" | "server_ssl_key" | "server_ssl_cipher" | "server_ssl_ca"
        | "server_ssl_capath" | "server_ssl_crl" | "server_ssl_crlpath" | "server_ssl_curves"
            if value.is_empty() =>
        {
            exact("nothing is set")
        }
        "server_ssl_verify"
        | "server_ssl_cert"
        | "server_ssl_key"
        | "server_ssl_cipher"
        | "server_ssl_ca"
        | "server_ssl_capath"
        | "server_ssl_crl"
        | "server_ssl_crlpath"
        | "server_ssl_curves"
        | "server_ssl_session_cache_mode"
        | "server_ssl_session_cache_size"
        | "server_ssl_session_cache_timeout"
            if tls.is_none() =>
        {
            match endpoint.relays() && endpoint.client_tls != RouterClientTls::Passthrough {
                true => unsupported("connections are relayed: clients see to it themselves"),
                false => exact("means nothing: Weir speaks no TLS with servers here"),
            }
        }
        "server_ssl_verify" => exact("`verify` of the pool's `tls`"),
        "server_ssl_cert" | "server_ssl_key" => exact("`cert` and `key` of the pool's `tls`"),
        "server_ssl_ca" | "server_ssl_capath" | "server_ssl_crl" | "server_ssl_crlpath" if !is_verified => {
            exact("means nothing without `server_ssl_verify`")
        }
        "server_ssl_ca" => exact("`ca` of the pool's `tls`"),
        "server_ssl_crl" => exact("`crl` of the pool's `tls`"),
        "server_ssl_capath" if tls.and_then(|tls| tls.ca.as_deref()) == Some(CA_OF_FOLDER) => approximate(
            format!("a folder: put its files into one, {CA_OF_FOLDER}, which is `ca` of the pool's `tls`"),
        ),
        "server_ssl_capath" => {
            unsupported("a folder: put its files into the one of `ca` of the pool's `tls`")
        }
        "server_ssl_crlpath" => unsupported(
            "a folder: revoked certificates of servers are accepted until you name its files in `crl` of the pool's `tls`",
        ),
        "server_ssl_cipher" | "server_ssl_curves" => {
            approximate("Weir has cipher suites and groups of its own, none of them weak")
        }
        "server_ssl_session_cache_mode"
        | "server_ssl_session_cache_size"
        | "server_ssl_session_cache_timeout" => approximate(
            "connections to servers are kept for further sessions (`keep_alive`), and so are handshakes saved",
        ),
        _ => return None,
    })
}

fn server_mode(value: &str, endpoint: &RouterEndpoint) -> Said {
    let as_client = value.eq_ignore_ascii_case("as_client");
    match &endpoint.server_side {
        _ if endpoint.relays() && endpoint.client_tls != RouterClientTls::Passthrough => {
            approximate("connections are relayed: a server's TLS is the client's")
        }
        RouterServerSide::AsTheyLike => exact("clients and servers speak TLS with each other"),
        RouterServerSide::Plain => exact("no `tls` of the pool"),
        RouterServerSide::Tls(tls) if as_client && !tls.is_required => approximate(
            "`mode = \"preferred\"` of the pool's `tls`: with TLS where the server offers it, whether or not the client uses it",
        ),
        RouterServerSide::Tls(tls) if tls.is_required => exact("`mode = \"required\"` of the pool's `tls`"),
        RouterServerSide::Tls(_) => exact("`mode = \"preferred\"` of the pool's `tls`"),
    }
}

/// A value that Router itself refuses.
fn refused(value: &str, expected: &str) -> Said {
    unsupported(format!("Router refuses `{}`, too; expected {expected}: left out", shown(value)))
}
