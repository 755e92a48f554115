//! Pools for the servers of endpoints, and the tables of the converted file.

use std::fmt::Write as _;

use super::endpoint::{
    RouterClientTls, RouterEndpoint, RouterRole, RouterServerSide, RouterServerTls, RouterServers,
    RouterStrategy,
};
use super::text;
use crate::write::line;

/// Stands for the members where none is known: a name that never resolves (RFC 6761 section 6.4).
pub const UNKNOWN_MEMBER: &str = "cluster-member.invalid:3306";
/// Where the password of the monitoring account is expected.
pub const PASSWORD_FILE: &str = "/etc/weir/mysql.password";
/// Longest name of a listener or pool that is made here, in bytes; Weir's own limit is above it.
const NAME_BYTES: usize = 48;

/// What all pools of the cluster have in common.
#[derive(Clone, Debug, Default)]
pub struct RouterCluster {
    /// Its members, from the state file.
    pub members: Vec<String>,
    /// Whether it is an InnoDB ReplicaSet (`cluster_type = rs`), which has no group to ask.
    pub is_replica_set: bool,
    /// `ttl`, in milliseconds, within the bounds of `interval`.
    pub interval_ms: Option<u64>,
    /// How Router's own questions are sent; holds for pools that no client's bytes say it of.
    pub own_tls: Option<RouterServerTls>,
    /// `max_idle_server_connections`.
    pub idle_connections: Option<u64>,
    /// Whether servers' connections are kept for further sessions in any of the pools.
    pub keeps_connections: bool,
    /// `idle_timeout` of `[connection_pool]`, in seconds.
    pub idle_seconds: Option<u64>,
}

/// One pool. Endpoints share a pool unless they want different things of it.
#[derive(Clone, Debug)]
pub struct RouterPool {
    /// Its name in the converted file.
    pub name: String,
    servers: PoolServers,
    balance: Option<&'static str>,
    reads: Option<&'static str>,
    waits_for_writes: Option<bool>,
    server_side: Option<RouterServerSide>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PoolServers {
    Cluster(String),
    /// Bytes are relayed to these, of the X protocol or not.
    Relayed(Vec<String>, bool),
    /// One server, which is spoken to.
    Single(Vec<String>),
}

impl RouterPool {
    fn of(endpoint: &RouterEndpoint) -> RouterPool {
        let (name, servers) = match &endpoint.servers {
            RouterServers::Cluster { name, .. } => {
                (name_of(name, "cluster"), PoolServers::Cluster(name.clone()))
            }
            RouterServers::Listed(list) => {
                let servers = match endpoint.relays() {
                    true => PoolServers::Relayed(list.clone(), endpoint.is_x),
                    false => PoolServers::Single(list.clone()),
                };
                (name_of(&endpoint.key, "routing"), servers)
            }
        };
        // There is one primary, whatever the pool's algorithm says.
        let chooses = endpoint.role() != Some(RouterRole::Primary);
        let reads = match endpoint.role() {
            Some(RouterRole::Secondary) => Some("secondaries"),
            Some(RouterRole::PrimaryAndSecondary) if endpoint.splits => Some("secondaries"),
            Some(RouterRole::PrimaryAndSecondary) => Some("all"),
            _ => None,
        };
        RouterPool {
            name,
            servers,
            balance: chooses.then(|| balance_of(endpoint.strategy)),
            reads,
            waits_for_writes: endpoint.splits.then_some(endpoint.waits_for_writes),
            server_side: Some(endpoint.server_side.clone())
                .filter(|side| *side != RouterServerSide::AsTheyLike),
        }
    }

    /// Takes over what another one wants. `false`, and nothing taken over, if they want different things.
    fn takes(&mut self, other: &RouterPool) -> bool {
        fn agree<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_none_or(|(one, other)| one == other)
        }
        let agrees = self.servers == other.servers
            && agree(self.balance.as_ref(), other.balance.as_ref())
            && agree(self.reads.as_ref(), other.reads.as_ref())
            && agree(self.waits_for_writes.as_ref(), other.waits_for_writes.as_ref())
            && agree(self.server_side.as_ref(), other.server_side.as_ref());
        if agrees {
            self.balance = self.balance.or(other.balance);
            self.reads = self.reads.or(other.reads);
            self.waits_for_writes = self.waits_for_writes.or(other.waits_for_writes);
            self.server_side = self.server_side.take().or_else(|| other.server_side.clone());
        }
        agrees
    }

    /// Whether it is of the cluster that the metadata are of.
    pub fn is_cluster(&self) -> bool {
        matches!(self.servers, PoolServers::Cluster(_))
    }

    /// Writes `[pool.NAME]` and the tables below it.
    pub fn write(&self, cluster: &RouterCluster, body: &mut String) {
        let name = &self.name;
        // Writing to a String cannot fail.
        let _ = writeln!(body, "[pool.{name}]");
        let backends = match &self.servers {
            PoolServers::Cluster(_) if cluster.members.is_empty() => {
                body.push_str(
                    "# Put the addresses of the cluster's members here; from one that answers Weir learns the others.\n",
                );
                vec![UNKNOWN_MEMBER.to_owned()]
            }
            PoolServers::Cluster(_) => cluster.members.clone(),
            PoolServers::Relayed(list, _) | PoolServers::Single(list) => list.clone(),
        };
        let backends: Vec<String> = backends.iter().map(|address| text(address)).collect();
        line(body, "backends", format_args!("[{}]", backends.join(", ")));
        if let Some(balance) = self.balance.filter(|_| backends.len() > 1 || self.is_cluster()) {
            line(body, "balance", text(balance));
        }
        if let PoolServers::Relayed(_, is_x) = self.servers {
            if backends.len() > 2 {
                let attempts = (backends.len() - 1).min(10);
                line(body, "retry", format_args!("{{ attempts = {attempts} }}"));
            }
            // A server's classic port locks out who connects often without a login.
            let check = if is_x { "tcp" } else { "mysql" };
            let _ = writeln!(body, "\n[pool.{name}.health]\ncheck = \"{check}\"\n");
            return;
        }
        let kept = [
            cluster.idle_connections.map(|most| format!("max = {}", most.min(65_536))),
            cluster.idle_seconds.map(|seconds| format!("idle = \"{}s\"", seconds.clamp(1, 86_400))),
        ];
        let kept: Vec<String> = kept.into_iter().flatten().collect();
        if !kept.is_empty() {
            line(body, "keep_alive", format_args!("{{ {} }}", kept.join(", ")));
        }
        body.push('\n');
        let tls = match &self.server_side {
            Some(RouterServerSide::Tls(tls)) => Some(tls),
            Some(RouterServerSide::Plain) => None,
            Some(RouterServerSide::AsTheyLike) | None => cluster.own_tls.as_ref(),
        };
        if let Some(tls) = tls {
            write_tls(name, tls, body);
        }
        self.write_mysql(cluster, body);
    }

    fn write_mysql(&self, cluster: &RouterCluster, body: &mut String) {
        let _ = writeln!(body, "[pool.{}.mysql]", self.name);
        if !self.is_cluster() {
            line(body, "topology", "\"static\"");
            body.push('\n');
            return;
        }
        line(
            body,
            "topology",
            if cluster.is_replica_set { "\"replication\"" } else { "\"group-replication\"" },
        );
        line(body, "user", "\"weir\"");
        line(body, "password_file", text(PASSWORD_FILE));
        if let Some(interval) = cluster.interval_ms {
            line(body, "interval", format_args!("\"{interval}ms\""));
        }
        if self.reads == Some("all") {
            line(body, "reads", "\"all\"");
        }
        if self.waits_for_writes == Some(false) {
            line(body, "read_your_writes", "false");
        }
        body.push('\n');
    }
}

fn write_tls(pool: &str, tls: &RouterServerTls, body: &mut String) {
    let _ = writeln!(body, "[pool.{pool}.tls]");
    line(body, "mode", if tls.is_required { "\"required\"" } else { "\"preferred\"" });
    line(body, "verify", tls.verify);
    for (key, file) in [("ca", &tls.ca), ("crl", &tls.crl)] {
        if let Some(file) = file {
            line(body, key, text(file));
        }
    }
    if let Some((cert, key)) = &tls.own {
        line(body, "cert", text(cert));
        line(body, "key", text(key));
    }
    body.push('\n');
}

const fn balance_of(strategy: RouterStrategy) -> &'static str {
    match strategy {
        RouterStrategy::FirstAvailable | RouterStrategy::NextAvailable => "first",
        RouterStrategy::RoundRobin | RouterStrategy::RoundRobinWithFallback => "round-robin",
    }
}

/// The pools of all endpoints, and for each endpoint the index of its own.
pub fn pools_of(endpoints: &[RouterEndpoint]) -> (Vec<RouterPool>, Vec<usize>) {
    let mut pools: Vec<RouterPool> = Vec::new();
    let mut own = Vec::new();
    for endpoint in endpoints {
        let mut wanted = RouterPool::of(endpoint);
        let found = pools.iter_mut().position(|pool| pool.takes(&wanted));
        own.push(found.unwrap_or_else(|| {
            wanted.name = unused(&wanted.name, pools.iter().map(|pool| pool.name.as_str()));
            pools.push(wanted);
            pools.len() - 1
        }));
    }
    (pools, own)
}

/// Writes `[listener.NAME]` and its `tls`.
pub fn write_listener(name: &str, endpoint: &RouterEndpoint, pool: &str, body: &mut String) {
    let relays = endpoint.relays();
    let _ = writeln!(body, "[listener.{name}]");
    line(body, "protocol", if relays { "\"tcp\"" } else { "\"mysql\"" });
    let socket = endpoint.socket.as_ref().filter(|_| relays).map(|path| format!("unix:{path}"));
    let bind: Vec<String> =
        endpoint.bind.iter().cloned().chain(socket).map(|address| text(&address)).collect();
    match bind.as_slice() {
        [one] => line(body, "bind", one),
        several => line(body, "bind", format_args!("[{}]", several.join(", "))),
    }
    let access = match endpoint.role() {
        Some(RouterRole::PrimaryAndSecondary) if endpoint.splits => Some("auto"),
        Some(RouterRole::Secondary | RouterRole::PrimaryAndSecondary) => Some("read-only"),
        Some(RouterRole::Primary) | None => Some("read-write"),
    };
    if let Some(access) = access.filter(|_| !relays) {
        line(body, "access", text(access));
    }
    line(body, "pool", text(pool));
    line(body, "max_connections", endpoint.connections.clamp(1, 10_000_000));
    let connect = endpoint.connect_seconds.clamp(1, 300);
    let other = match relays {
        true => "client_idle = \"off\"".to_owned(),
        false => format!("handshake = \"{}s\"", endpoint.handshake_seconds.clamp(1, 3600)),
    };
    line(body, "timeout", format_args!("{{ connect = \"{connect}s\", {other} }}"));
    body.push('\n');
    if !relays && endpoint.client_tls != RouterClientTls::Disabled {
        write_client_tls(name, endpoint, body);
    }
}

fn write_client_tls(name: &str, endpoint: &RouterEndpoint, body: &mut String) {
    let _ = writeln!(body, "[listener.{name}.tls]");
    let mode = match endpoint.client_tls {
        RouterClientTls::Passthrough => "passthrough",
        RouterClientTls::Required => "required",
        RouterClientTls::Preferred | RouterClientTls::Disabled => "preferred",
    };
    line(body, "mode", text(mode));
    if endpoint.client_tls != RouterClientTls::Passthrough {
        if let Some((cert, key)) = &endpoint.certificate {
            line(body, "certificates", format_args!("[{{ cert = {}, key = {} }}]", text(cert), text(key)));
        }
        if let Some(ca) = &endpoint.client_ca {
            line(body, "client_ca", text(ca));
            line(body, "client_auth", "\"optional\"");
            if let Some(crl) = &endpoint.client_crl {
                line(body, "crl", text(crl));
            }
        }
        if !endpoint.resumes {
            line(body, "tickets", "false");
        }
    }
    body.push('\n');
}

/// A name for a listener or pool that Weir takes, from one of Router's.
pub fn name_of(name: &str, otherwise: &str) -> String {
    let good = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let kept: String = name.chars().filter(good).take(NAME_BYTES).collect();
    let kept = kept.trim_start_matches(['-', '_']);
    if kept.is_empty() { otherwise.to_owned() } else { kept.to_owned() }
}

/// The name, or with a number behind it if it is taken.
pub fn unused<'n>(name: &str, taken: impl Iterator<Item = &'n str> + Clone) -> String {
    let is_taken = |name: &str| taken.clone().any(|other| other == name);
    let numbered = (2_usize..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    // There are more numbers than names.
    names.find(|name| !is_taken(name)).unwrap_or_default()
}
