//! MySQL Router's configuration: `mysqlrouter.conf` as `mysqlrouter --bootstrap` writes it, or by hand.
//!
//! Each `[routing:NAME]` becomes a listener, and the servers behind it a pool; endpoints that want the same
//! of the same servers share a pool. Which members a cluster has stands in another file (`dynamic_state`).
//!
//! Source: the manual of MySQL Router 9.7, its source where that is silent, and the program itself.

mod addresses;
mod endpoint;
mod ini;
mod pools;
mod routing;
mod sections;

use std::fmt::Write as _;

use self::addresses::shown;
use self::endpoint::{
    CONNECT_SECONDS, HANDSHAKE_SECONDS, RouterClientTls, RouterEndpoint, RouterServerSide, RouterServerTls,
    TOTAL_CONNECTIONS,
};
use self::ini::{RouterFile, RouterSection};
use self::pools::{RouterCluster, UNKNOWN_MEMBER, name_of, pools_of, unused, write_listener};
use crate::verdicts::Verdicts;
use crate::{Converted, DirectiveVerdict, NotConverted, SourceFiles};
use weir_config::quoted;

/// A verdict, and the note beside it.
type Said = (DirectiveVerdict, String);

/// Whether a file looks like one of Router's, even if it has mistakes.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().map(|line| line.trim().to_ascii_lowercase()).any(|line| {
        let name = line.strip_prefix('[').and_then(|rest| rest.split([':', ']']).next());
        matches!(name, Some("routing" | "metadata_cache"))
    })
}

/// Converts a file. The file of `dynamic_state` is one of `files`.
pub(super) fn convert(text: &str, files: &dyn SourceFiles) -> Result<Converted, NotConverted> {
    let file = RouterFile::parse(text)?;
    let mut verdicts = Verdicts::default();
    let mut cluster = cluster_of(&file);
    let mut endpoints = Vec::new();
    let mut reasons = Vec::new();
    for section in file.sections.iter().filter(|section| section.name == "routing") {
        match RouterEndpoint::read(&file, section) {
            Ok(endpoint) => {
                routing_options(&file, section, &endpoint, &mut verdicts);
                endpoints.push(endpoint);
            }
            Err(reason) => {
                refused_endpoint(section, &reason, &mut verdicts);
                reasons.push(format!("[{}]: {reason}", section.title()));
            }
        }
    }
    if endpoints.is_empty() {
        let none = "it has no `[routing:NAME]` that can be converted".to_owned();
        return Err(NotConverted { message: none, hint: reasons.join("; ") });
    }
    let keeps =
        |endpoint: &RouterEndpoint| !endpoint.relays() && endpoint.client_tls != RouterClientTls::Passthrough;
    cluster.keeps_connections = endpoints.iter().any(keeps);
    if endpoints.iter().any(|endpoint| endpoint.role().is_some()) {
        members_of(&file, &mut cluster, files, &mut verdicts);
    } else if let Some(option) = file.defaults.option("dynamic_state") {
        let (verdict, note) = exact("means nothing: no endpoint is for the cluster");
        verdicts.say(option.line, "DEFAULT.dynamic_state", verdict, note);
    }
    default_options(&file, &endpoints, &cluster, &mut verdicts);
    let mut seen_metadata = false;
    for section in file.sections.iter().filter(|section| section.name != "routing") {
        let again = section.name == "metadata_cache" && std::mem::replace(&mut seen_metadata, true);
        other_options(&file, section, again, &cluster, &mut verdicts);
    }
    unsaid(&file, &endpoints, &mut verdicts);
    let body = body_of(&file, &cluster, &endpoints);
    Ok(Converted { from: "MySQL Router", body, files: Vec::new(), directives: verdicts.in_order() })
}

/// What `[metadata_cache]` and `[connection_pool]` say of the cluster's pools.
fn cluster_of(file: &RouterFile) -> RouterCluster {
    let mut cluster = RouterCluster::default();
    let named = |name: &str| file.sections.iter().find(|section| section.name == name);
    let number = |section: &RouterSection, name: &str| file.value(section, name)?.parse::<u64>().ok();
    let pooled = named("connection_pool");
    cluster.idle_connections = number(pooled.unwrap_or(&file.defaults), "max_idle_server_connections");
    cluster.idle_seconds = pooled.and_then(|section| number(section, "idle_timeout"));
    let Some(metadata) = named("metadata_cache") else { return cluster };
    let said = |name: &str| file.value(metadata, name).filter(|value| !value.is_empty());
    cluster.is_replica_set = said("cluster_type").is_some_and(|kind| kind.eq_ignore_ascii_case("rs"));
    // With notices of the group Router looks once a minute, and Weir has no such notices.
    let has_notices = matches!(said("use_gr_notifications").as_deref(), Some("1" | "true"));
    let seconds = said("ttl").and_then(|ttl| ttl.parse::<f64>().ok()).filter(|_| !has_notices);
    cluster.interval_ms = seconds.filter(|ttl| (0.01..=3600.0).contains(ttl)).map(milliseconds);
    cluster.own_tls = own_tls(said("ssl_mode").as_deref(), said("ssl_ca"), said("ssl_crl"));
    if let Some(listed) = said("bootstrap_server_addresses") {
        cluster.members = addresses::members(listed.split(','));
    }
    cluster
}

/// Seconds, from 0.01 to 3600, as whole milliseconds.
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// How Router's own questions are sent to the members.
fn own_tls(mode: Option<&str>, ca: Option<String>, crl: Option<String>) -> Option<RouterServerTls> {
    let mode = mode.map_or_else(|| "preferred".to_owned(), str::to_ascii_lowercase);
    let verify = match mode.as_str() {
        "disabled" => return None,
        "verify_ca" => "\"ca\"",
        "verify_identity" => "true",
        _ => "false",
    };
    let is_verified = verify != "false";
    Some(RouterServerTls {
        is_required: mode != "preferred",
        verify,
        ca: ca.filter(|_| is_verified),
        crl: crl.filter(|_| is_verified),
        own: None,
    })
}

/// Finds the cluster's members in the state file, and says what came of it.
fn members_of(
    file: &RouterFile,
    cluster: &mut RouterCluster,
    files: &dyn SourceFiles,
    verdicts: &mut Verdicts,
) {
    let Some(option) = file.defaults.option("dynamic_state") else { return };
    let path = file.value(&file.defaults, "dynamic_state").unwrap_or_default();
    let read = files.read(&path).map_err(|why| format!("`{}` cannot be read ({why})", shown(&path)));
    let state = read.and_then(|text| addresses::state(&text));
    let (verdict, note) = match state {
        Ok(state) => {
            let count = state.members.len();
            cluster.members = state.members;
            match state.has_cluster_set {
                true => approximate(format!(
                    "`backends` of the pool: {count} members; their cluster belongs to a ClusterSet, and Weir follows this one cluster alone: a switchover between clusters is up to you"
                )),
                false => exact(format!("`backends` of the pool: {count} members")),
            }
        }
        Err(problem) if cluster.members.is_empty() => unsupported(format!(
            "it has the addresses of the cluster's members, and {problem}: put them into `backends` in place of {UNKNOWN_MEMBER}"
        )),
        Err(problem) => approximate(format!("it has the addresses of the cluster's members, and {problem}")),
    };
    verdicts.say(option.line, "DEFAULT.dynamic_state", verdict, note);
}

/// Gives each option of a section the same kind of verdict; or the section itself, if it has none.
fn all_options(section: &RouterSection, verdicts: &mut Verdicts, of: impl Fn(&str) -> Said) {
    let title = section.title();
    if section.options.is_empty() {
        let (verdict, note) = of("");
        verdicts.say(section.line, &format!("[{title}]"), verdict, note);
    }
    for option in &section.options {
        let (verdict, note) = of(&option.name);
        verdicts.say(option.line, &format!("{title}.{}", option.name), verdict, note);
    }
}

/// Gives the options of an endpoint that is not converted their verdicts, with the reason beside the first.
fn refused_endpoint(section: &RouterSection, reason: &str, verdicts: &mut Verdicts) {
    let first = section.options.first().map(|option| (option.name.as_str(), option.line));
    all_options(section, verdicts, |name| match first {
        Some((other, line)) if other != name => {
            unsupported(format!("this endpoint is not converted: see line {line}"))
        }
        _ => unsupported(format!("this endpoint is not converted: {reason}")),
    });
}

fn routing_options(
    file: &RouterFile,
    section: &RouterSection,
    endpoint: &RouterEndpoint,
    verdicts: &mut Verdicts,
) {
    all_options(section, verdicts, |name| {
        let value = file.value(section, name).unwrap_or_default();
        routing::verdict(name, &value, endpoint).unwrap_or_else(|| unknown("[routing]"))
    });
}

/// Verdicts on `[DEFAULT]`.
fn default_options(
    file: &RouterFile,
    endpoints: &[RouterEndpoint],
    cluster: &RouterCluster,
    verdicts: &mut Verdicts,
) {
    for option in file.defaults.options.iter().filter(|option| option.name != "dynamic_state") {
        let name = option.name.as_str();
        let value = file.value(&file.defaults, name).unwrap_or_default();
        let (verdict, note) = of_all(file, endpoints, name, &value)
            .or_else(|| sections::default(name, &value, cluster))
            .unwrap_or_else(|| unknown("[DEFAULT]"));
        verdicts.say(option.line, &format!("DEFAULT.{name}"), verdict, note);
    }
}

/// The verdict on an option of `[routing]` that `[DEFAULT]` says: the worst of all endpoints that it holds
/// for. `None` if it is none of `[routing]`.
fn of_all(file: &RouterFile, endpoints: &[RouterEndpoint], name: &str, value: &str) -> Option<Said> {
    let own =
        |key: &str| file.sections.iter().find(|section| section.name == "routing" && section.key == key);
    let holds =
        |endpoint: &&RouterEndpoint| own(&endpoint.key).is_none_or(|section| section.option(name).is_none());
    let mut all: Vec<Said> = Vec::new();
    for endpoint in endpoints.iter().filter(holds) {
        let said = routing::verdict(name, value, endpoint)?;
        if !all.contains(&said) {
            all.push(said);
        }
    }
    if all.is_empty() {
        let is_known = endpoints.iter().any(|endpoint| routing::verdict(name, value, endpoint).is_some());
        return is_known.then(|| exact("each `[routing]` section says it itself"));
    }
    all.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
    let notes: Vec<&str> = all.iter().map(|(_, note)| note.as_str()).collect();
    Some((all[0].0, notes.join("; for other endpoints: ")))
}

fn other_options(
    file: &RouterFile,
    section: &RouterSection,
    again: bool,
    cluster: &RouterCluster,
    verdicts: &mut Verdicts,
) {
    let title = format!("[{}]", section.name);
    all_options(section, verdicts, |name| {
        if again {
            return unsupported("Router takes one `[metadata_cache]` only");
        }
        if name.is_empty() {
            return sections::empty(&section.name)
                .unwrap_or_else(|| unsupported("no section of MySQL Router's"));
        }
        let value = file.value(section, name).unwrap_or_default();
        sections::verdict(&section.name, name, &value, cluster).unwrap_or_else(|| unknown(&title))
    });
}

/// Notes what Router does by default and Weir does otherwise, or only if it is told.
fn unsaid(file: &RouterFile, endpoints: &[RouterEndpoint], verdicts: &mut Verdicts) {
    let says = |name: &str| {
        file.defaults.option(name).is_some()
            || file.sections.iter().any(|section| section.name == "routing" && section.option(name).is_some())
    };
    let mut note = |name: &str, said: Said| verdicts.say(0, name, said.0, said.1);
    if !says("connect_timeout") {
        note("connect_timeout", exact(format!("Router's default, {CONNECT_SECONDS} s: `timeout.connect`")));
    }
    if !says("client_connect_timeout") && endpoints.iter().any(|endpoint| !endpoint.relays()) {
        note(
            "client_connect_timeout",
            exact(format!("Router's default, {HANDSHAKE_SECONDS} s: `timeout.handshake`")),
        );
    }
    if !says("max_total_connections") {
        note(
            "max_total_connections",
            approximate(format!(
                "Router has {TOTAL_CONNECTIONS} connections at most over all endpoints by default: written as `max_connections` of each listener"
            )),
        );
    }
    if !says("max_connect_errors") {
        note(
            "max_connect_errors",
            approximate(
                "Router locks out a client after 100 broken-off logins until it starts again; Weir bounds logins a second instead (`full_logins_per_client`)",
            ),
        );
    }
    if endpoints.iter().any(|endpoint| endpoint.splits) && !says("wait_for_my_writes_timeout") {
        note(
            "wait_for_my_writes_timeout",
            approximate(
                "a read waits for the session's own write for one second at most, 2 s with Router; then the primary answers",
            ),
        );
    }
    unsaid_of_servers(file, endpoints, &mut note, &says);
    let note_idle = match endpoints.iter().any(|endpoint| !endpoint.relays()) {
        true => approximate(
            "Router never ends an idle connection; Weir does after `timeout.client_idle`, 8 h for mysql as the servers' own `wait_timeout`",
        ),
        false => exact("Router never ends an idle connection: `timeout.client_idle` is \"off\""),
    };
    note("idle clients", note_idle);
    let logs_in =
        |endpoint: &RouterEndpoint| !endpoint.relays() && endpoint.client_tls != RouterClientTls::Passthrough;
    if endpoints.iter().any(logs_in) {
        note(
            "logins",
            approximate(
                "clients log in to Weir, which keeps their passwords in memory and logs in to a server with them (`passwords` of the pool's `mysql`); accounts with REQUIRE X509, SUBJECT or ISSUER need `mode = \"passthrough\"`",
            ),
        );
    }
    note(
        "probes",
        approximate(
            "Router learns from clients' connections that a server is down; Weir asks each as well (`health`)",
        ),
    );
}

/// The same of options about servers, and of TLS.
fn unsaid_of_servers(
    file: &RouterFile,
    endpoints: &[RouterEndpoint],
    note: &mut dyn FnMut(&str, Said),
    says: &dyn Fn(&str) -> bool,
) {
    let is_watched = |endpoint: &&RouterEndpoint| endpoint.role().is_some();
    let watched: Vec<&RouterEndpoint> = endpoints.iter().filter(is_watched).collect();
    let metadata = file.sections.iter().find(|section| section.name == "metadata_cache");
    if !watched.is_empty() && metadata.is_none_or(|section| file.value(section, "ttl").is_none()) {
        note(
            "ttl",
            approximate(
                "Router asks for the roles each 0.5 s by default, Weir each 100 ms (`interval` of the pool's `mysql`)",
            ),
        );
    }
    let passes = |endpoint: &RouterEndpoint| endpoint.client_tls == RouterClientTls::Passthrough;
    if watched.iter().any(|endpoint| passes(endpoint)) && !says("client_ssl_mode") {
        note(
            "client_ssl_mode",
            exact("`mode = \"passthrough\"` of the listener's `tls`: Router's default without a certificate"),
        );
    }
    let has_tls = |endpoint: &RouterEndpoint| matches!(endpoint.server_side, RouterServerSide::Tls(_));
    if endpoints.iter().any(|endpoint| !endpoint.relays() && has_tls(endpoint)) && !says("server_ssl_mode") {
        note(
            "server_ssl_mode",
            approximate(
                "Router's default is AS_CLIENT: `tls` of the pool, whether or not the client uses it",
            ),
        );
    }
    let shares = |endpoint: &&RouterEndpoint| !passes(endpoint) && !endpoint.splits;
    if watched.iter().copied().any(|endpoint| shares(&endpoint)) && !says("connection_sharing") {
        note(
            "connection_sharing",
            approximate(
                "with Router each client has a connection of its own to a server; Weir's sessions share them unless `passwords = \"relay\"` of the pool's `mysql`",
            ),
        );
    }
}

fn body_of(file: &RouterFile, cluster: &RouterCluster, endpoints: &[RouterEndpoint]) -> String {
    let mut body = String::new();
    let said = |section: &str, name: &str| {
        let section = file.sections.iter().find(|other| other.name == section)?;
        section.option(name)?;
        file.value(section, name)
    };
    let threads = said("io", "threads").and_then(|value| value.parse::<u64>().ok());
    // Writing to a String cannot fail.
    if let Some(threads) = threads.filter(|threads| (1..=1024).contains(threads)) {
        let _ = writeln!(body, "[runtime]\nworkers = {threads}\n");
    }
    if let Some((level, _)) = said("logger", "level").and_then(|value| sections::level(&value)) {
        let _ = writeln!(body, "[log]\nlevel = \"{level}\"\n");
    }
    let (pools, own) = pools_of(endpoints);
    let mut names: Vec<String> = Vec::new();
    for (endpoint, pool) in endpoints.iter().zip(own) {
        let name = unused(&name_of(&endpoint.key, "routing"), names.iter().map(String::as_str));
        write_listener(&name, endpoint, &pools[pool].name, &mut body);
        names.push(name);
    }
    for pool in &pools {
        pool.write(cluster, &mut body);
    }
    let end = body.trim_end().len();
    body.truncate(end);
    body.push('\n');
    body
}

fn exact(note: impl Into<String>) -> Said {
    (DirectiveVerdict::Exact, note.into())
}

fn approximate(note: impl Into<String>) -> Said {
    (DirectiveVerdict::Approximate, note.into())
}

fn unsupported(note: impl Into<String>) -> Said {
    (DirectiveVerdict::Unsupported, note.into())
}

fn unknown(section: &str) -> Said {
    unsupported(format!("MySQL Router 9.7 has no such option in `{section}`: left out"))
}

/// A text of the converted file. What stands in it for the environment or a file there (`${env:…}`) is not
/// one here.
fn text(value: &str) -> String {
    quoted(&value.replace("${env:", "$${env:").replace("${file:", "$${file:"))
}

#[cfg(test)]
mod tests;
