//! One `[routing:NAME]`: where Router listens, for which servers, and how it speaks to either side.

use std::net::IpAddr;

use super::addresses::{CLASSIC_PORT, X_PORT, destinations, joined, shown, split};
use super::ini::{RouterFile, RouterSection};

/// Which members of the cluster an endpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterRole {
    Primary,
    Secondary,
    PrimaryAndSecondary,
}

/// The servers of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterServers {
    /// Those of the cluster that the metadata are of.
    Cluster { name: String, role: RouterRole },
    /// A list, as backends are written.
    Listed(Vec<String>),
}

/// How Router chooses a server for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterStrategy {
    FirstAvailable,
    NextAvailable,
    RoundRobin,
    RoundRobinWithFallback,
}

/// TLS towards clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterClientTls {
    Disabled,
    Preferred,
    Required,
    Passthrough,
}

/// TLS towards servers, as the pool has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterServerTls {
    /// Whether a server without TLS is refused.
    pub is_required: bool,
    /// `false`, `"ca"` or `true` of `tls.verify`.
    pub verify: &'static str,
    /// Set where certificates are verified.
    pub ca: Option<String>,
    /// Set where certificates are verified.
    pub crl: Option<String>,
    /// The client certificate that servers are shown, and its key.
    pub own: Option<(String, String)>,
}

/// Whether servers are spoken to with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterServerSide {
    /// The client and the server agree on it between them.
    AsTheyLike,
    /// Without.
    Plain,
    /// With TLS, or where the server offers it.
    Tls(RouterServerTls),
}

/// An endpoint that can be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterEndpoint {
    /// The section's key, which the listener is named after.
    pub key: String,
    /// `address:port`; `None` where it listens at a Unix socket only.
    pub bind: Option<String>,
    /// What `bind_address` says if that is a name: listeners need an address.
    pub bind_name: Option<String>,
    /// The Unix socket, if it listens at one.
    pub socket: Option<String>,
    /// Its servers.
    pub servers: RouterServers,
    /// How it chooses among them.
    pub strategy: RouterStrategy,
    /// `access_mode = auto`: it splits reads from writes.
    pub splits: bool,
    /// Whether it is for the X protocol.
    pub is_x: bool,
    /// TLS towards clients.
    pub client_tls: RouterClientTls,
    /// Certificate and key that clients are shown.
    pub certificate: Option<(String, String)>,
    /// File of the authorities of client certificates.
    pub client_ca: Option<String>,
    /// File of what these have revoked.
    pub client_crl: Option<String>,
    /// TLS towards servers.
    pub server_side: RouterServerSide,
    /// Whether sessions read their own writes.
    pub waits_for_writes: bool,
    /// `client_ssl_session_cache_mode`: whether clients may resume TLS sessions.
    pub resumes: bool,
    /// `connect_timeout`, in seconds.
    pub connect_seconds: u64,
    /// `client_connect_timeout`, in seconds.
    pub handshake_seconds: u64,
    /// Most connections at once.
    pub connections: u64,
}

/// Router's defaults, from `routing.h` of version 9.
pub const CONNECT_SECONDS: u64 = 5;
pub const HANDSHAKE_SECONDS: u64 = 9;
pub const TOTAL_CONNECTIONS: u64 = 512;

impl RouterEndpoint {
    /// Whether bytes are relayed without a look at the protocol (`protocol = "tcp"`). A list of servers says
    /// nothing about their roles: only so each of them may serve any client, as with Router. One server alone
    /// may as well be spoken to, so that TLS can end here.
    pub fn relays(&self) -> bool {
        match &self.servers {
            RouterServers::Cluster { .. } => false,
            RouterServers::Listed(list) => {
                list.len() > 1
                    || self.is_x
                    || self.client_tls == RouterClientTls::Passthrough
                    || list.iter().any(|address| address.starts_with("unix:"))
            }
        }
    }

    /// The role of cluster members that it is for; `None` for a list of servers.
    pub fn role(&self) -> Option<RouterRole> {
        match self.servers {
            RouterServers::Cluster { role, .. } => Some(role),
            RouterServers::Listed(_) => None,
        }
    }

    /// Reads a section. `Err` says why it can't be converted.
    pub fn read(file: &RouterFile, section: &RouterSection) -> Result<RouterEndpoint, String> {
        let options = Options { file, section };
        let protocol = options.word("protocol").unwrap_or_else(|| "classic".to_owned());
        let is_x = match protocol.as_str() {
            "classic" => false,
            "x" => true,
            other => return Err(format!("`protocol` is `{}`; expected `classic` or `x`", shown(other))),
        };
        let servers = options.servers(is_x)?;
        if is_x && matches!(servers, RouterServers::Cluster { .. }) {
            return Err("Weir knows the roles of a cluster's members for the classic protocol only; clients of the X protocol need a `tcp` listener before listed servers".to_owned());
        }
        let (bind, bind_name) = options.bind()?;
        let mut endpoint = RouterEndpoint {
            key: section.key.clone(),
            bind,
            bind_name,
            socket: options.given("socket"),
            strategy: options.strategy(&servers)?,
            splits: options.splits()?,
            is_x,
            client_tls: RouterClientTls::Passthrough,
            certificate: options.given("client_ssl_cert").zip(options.given("client_ssl_key")),
            client_ca: options.given("client_ssl_ca"),
            client_crl: options.given("client_ssl_crl"),
            server_side: RouterServerSide::AsTheyLike,
            waits_for_writes: options.flag("wait_for_my_writes", true),
            resumes: options.flag("client_ssl_session_cache_mode", true),
            connect_seconds: options.number("connect_timeout").unwrap_or(CONNECT_SECONDS),
            handshake_seconds: options.number("client_connect_timeout").unwrap_or(HANDSHAKE_SECONDS),
            connections: options.connections(),
            servers,
        };
        if options.given("client_ssl_cert").is_some() != options.given("client_ssl_key").is_some() {
            return Err("Router refuses it, too: expected `client_ssl_cert` and `client_ssl_key`".to_owned());
        }
        endpoint.client_tls = options.client_tls(&endpoint)?;
        endpoint.server_side = options.server_side(endpoint.client_tls)?;
        endpoint.check()?;
        Ok(endpoint)
    }

    /// Reports what Router would refuse, and what no listener can do.
    fn check(&self) -> Result<(), String> {
        let expected = match (self.role(), self.client_tls) {
            (None | Some(RouterRole::Primary | RouterRole::Secondary), _) if self.splits => {
                "`destinations = metadata-cache://NAME/?role=PRIMARY_AND_SECONDARY`"
            }
            (_, RouterClientTls::Passthrough) if self.splits => "another `client_ssl_mode` than PASSTHROUGH",
            (_, RouterClientTls::Preferred | RouterClientTls::Required) if self.certificate.is_none() => {
                "`client_ssl_cert` and `client_ssl_key`"
            }
            _ if self.bind.is_none() && self.socket.is_none() => "`bind_port`, or `socket`",
            _ if self.bind.is_none() && !self.relays() => {
                return Err(
                    "it has a Unix socket only, and `mysql` listeners take TCP connections only".to_owned()
                );
            }
            _ => return Ok(()),
        };
        Err(format!("Router refuses it, too: expected {expected}"))
    }
}

/// The options of one section, with those of `[DEFAULT]` behind them.
struct Options<'f> {
    file: &'f RouterFile,
    section: &'f RouterSection,
}

impl Options<'_> {
    /// The value; `None` if it is empty or not there.
    fn given(&self, name: &str) -> Option<String> {
        self.file.value(self.section, name).filter(|value| !value.is_empty())
    }

    fn word(&self, name: &str) -> Option<String> {
        self.given(name).map(|value| value.to_ascii_lowercase())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.given(name)?.parse().ok().filter(|number| *number > 0)
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        match self.word(name).as_deref() {
            Some("1" | "true") => true,
            Some("0" | "false") => false,
            _ => default,
        }
    }

    /// The lower one of the endpoint's own limit and that of all endpoints together.
    fn connections(&self) -> u64 {
        let total = self.number("max_total_connections").unwrap_or(TOTAL_CONNECTIONS);
        self.number("max_connections").map_or(total, |own| own.min(total))
    }

    fn servers(&self, is_x: bool) -> Result<RouterServers, String> {
        let text = self.given("destinations").ok_or("it has no `destinations`")?;
        let Some(rest) = text.strip_prefix("metadata-cache://") else {
            let port = if is_x { X_PORT } else { CLASSIC_PORT };
            let listed =
                destinations(&text, port).map_err(|problem| format!("of `destinations` {problem}"))?;
            return Ok(RouterServers::Listed(listed));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let name = place.split('/').next().unwrap_or_default().to_owned();
        let role = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == "role");
        let role = match role.map(|(_, role)| role.to_ascii_uppercase()).as_deref() {
            Some("PRIMARY") => RouterRole::Primary,
            Some("SECONDARY") => RouterRole::Secondary,
            Some("PRIMARY_AND_SECONDARY") => RouterRole::PrimaryAndSecondary,
            _ => {
                return Err("`destinations` has no `role` that Router knows; expected PRIMARY, SECONDARY or PRIMARY_AND_SECONDARY".to_owned());
            }
        };
        Ok(RouterServers::Cluster { name, role })
    }

    /// `routing_strategy`, or what the old option `mode` stands for.
    fn strategy(&self, servers: &RouterServers) -> Result<RouterStrategy, String> {
        let is_listed = matches!(servers, RouterServers::Listed(_));
        Ok(match self.word("routing_strategy").as_deref() {
            Some("first-available") => RouterStrategy::FirstAvailable,
            Some("next-available") => RouterStrategy::NextAvailable,
            Some("round-robin") => RouterStrategy::RoundRobin,
            Some("round-robin-with-fallback") if !is_listed => RouterStrategy::RoundRobinWithFallback,
            Some(other) => return Err(format!("Router refuses `routing_strategy` `{}`, too", shown(other))),
            None => match self.word("mode").as_deref() {
                Some("read-write") => RouterStrategy::FirstAvailable,
                Some("read-only") => RouterStrategy::RoundRobin,
                _ => return Err("it has no `routing_strategy`, which Router needs, too".to_owned()),
            },
        })
    }

    fn splits(&self) -> Result<bool, String> {
        match self.word("access_mode").as_deref() {
            None => Ok(false),
            Some("auto") => Ok(true),
            Some(other) => Err(format!("`access_mode` is `{}`; expected `auto`", shown(other))),
        }
    }

    /// The address to listen at, and the name that stands for it.
    fn bind(&self) -> Result<(Option<String>, Option<String>), String> {
        let address = self.given("bind_address").unwrap_or_else(|| "127.0.0.1".to_owned());
        let no_port =
            || format!("its `bind_port` is no port: `{}`", self.given("bind_port").unwrap_or_default());
        let own_port = match self.given("bind_port") {
            None => None,
            Some(text) => Some(text.parse().ok().filter(|port: &u16| *port > 0).ok_or_else(no_port)?),
        };
        let (host, port) = split(&address)
            .ok_or_else(|| format!("its `bind_address` is no address: `{}`", shown(&address)))?;
        let Some(port) = port.or(own_port) else { return Ok((None, None)) };
        match host.parse::<IpAddr>() {
            Ok(_) => Ok((Some(joined(&host, port)), None)),
            // A name is looked up by Router. The address that others can't reach is the one that exposes
            // nothing by mistake.
            Err(_) => Ok((Some(format!("127.0.0.1:{port}")), Some(host))),
        }
    }

    fn client_tls(&self, endpoint: &RouterEndpoint) -> Result<RouterClientTls, String> {
        Ok(match self.word("client_ssl_mode").as_deref() {
            None if endpoint.certificate.is_none() => RouterClientTls::Passthrough,
            None | Some("preferred") => RouterClientTls::Preferred,
            Some("disabled") => RouterClientTls::Disabled,
            Some("required") => RouterClientTls::Required,
            Some("passthrough") => RouterClientTls::Passthrough,
            Some(other) => return Err(format!("Router refuses `client_ssl_mode` `{}`, too", shown(other))),
        })
    }

    fn server_side(&self, client: RouterClientTls) -> Result<RouterServerSide, String> {
        if client == RouterClientTls::Passthrough {
            return Ok(RouterServerSide::AsTheyLike);
        }
        let is_required = match self.word("server_ssl_mode").as_deref() {
            Some("disabled") => return Ok(RouterServerSide::Plain),
            None | Some("as_client") if client == RouterClientTls::Disabled => {
                return Ok(RouterServerSide::Plain);
            }
            None | Some("as_client") => client == RouterClientTls::Required,
            Some("preferred") => false,
            Some("required") => true,
            Some(other) => return Err(format!("Router refuses `server_ssl_mode` `{}`, too", shown(other))),
        };
        let verify = match self.word("server_ssl_verify").as_deref() {
            None | Some("disabled") => "false",
            Some("verify_ca") => "\"ca\"",
            Some("verify_identity") => "true",
            Some(other) => return Err(format!("Router refuses `server_ssl_verify` `{}`, too", shown(other))),
        };
        let is_verified = verify != "false";
        let ca = match (self.given("server_ssl_ca"), self.given("server_ssl_capath")) {
            (None, None) if is_verified => {
                return Err(
                    "Router refuses it, too: expected `server_ssl_ca`, or `server_ssl_capath`".to_owned()
                );
            }
            (Some(ca), _) => Some(ca),
            (None, Some(_)) => Some(CA_OF_FOLDER.to_owned()),
            (None, None) => None,
        };
        Ok(RouterServerSide::Tls(RouterServerTls {
            is_required,
            verify,
            ca: ca.filter(|_| is_verified),
            crl: self.given("server_ssl_crl").filter(|_| is_verified),
            own: self.given("server_ssl_cert").zip(self.given("server_ssl_key")),
        }))
    }
}

/// The one file that stands for a folder of authorities.
pub const CA_OF_FOLDER: &str = "/etc/weir/mysql-ca.pem";
