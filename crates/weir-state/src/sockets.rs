//! Listening sockets: bound before anything else changes, kept across reloads, handed over on an upgrade.
//!
//! Each address has one `SO_REUSEPORT` socket per worker. The control side owns the set; workers get
//! duplicates. A socket that is never closed never drops the connections in its accept queue, so reloads and
//! upgrades move sockets and do not reopen them. A socket that has to be closed is withdrawn first and closed
//! [`LINGER`] later, since a close resets the handshakes in progress.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_config::{Bind, Config, HttpVersion, InetBind, Plane, Speaks};
use weir_io::at::{At, UnixName};
use weir_io::system;
use weir_io::unix_socket::{self, Listening, Permissions, SocketFile};

use crate::plane::Placements;

mod opening;

/// How long a withdrawn socket is still served, for handshakes in progress: one round trip, or two if the
/// client's last packet was lost (a SYN-ACK is sent again after 1 s, RFC 6298 section 2.1).
pub const LINGER: Duration = Duration::from_secs(2);
/// The same when the process ends and no other takes over: short, so as not to hold up a restart.
pub const LAST_LINGER: Duration = Duration::from_millis(500);

/// Longest wait for an address that is just being given up, in a process that serves: its control side does
/// nothing else meanwhile.
const RELEASE_PATIENCE: Duration = Duration::from_millis(200);
/// The same at start and soon after an upgrade, when the previous process may still hold the address
/// ([`LINGER`]).
const RELEASE_PATIENCE_AT_START: Duration = Duration::from_millis(2500);

/// What a listening socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// QUIC connections, in datagrams.
    Quic,
}

impl Transport {
    /// Whether two sockets of these transports can't both have a port.
    fn shares_ports_with(self, other: Transport) -> bool {
        (self == Transport::Tcp) == (other == Transport::Tcp)
    }
}

/// Where Weir accepts connections or datagrams.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// What it carries.
    pub transport: Transport,
    /// The address; connections may also come by a Unix socket.
    pub at: At,
    /// Name of the only interface that it accepts from; `None` for all.
    pub interface: Option<Arc<str>>,
}

impl Endpoint {
    /// An endpoint that accepts from any interface.
    pub fn new(transport: Transport, at: At) -> Endpoint {
        Endpoint { transport, at, interface: None }
    }

    /// Index of the interface that a socket of this endpoint is bound to; `None` if it is bound to none.
    pub fn interface_of(&self, socket: &OwnedFd) -> Option<NonZeroU32> {
        self.interface.as_ref().and_then(|_| system::interface_of(socket))
    }
}

/// `10.0.0.1:80`, or `10.0.0.1:80 by eth0`.
impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            None => write!(out, "{}", self.at),
            Some(interface) => write!(out, "{} by {interface}", self.at),
        }
    }
}

/// The state of an interface that sockets are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterfaceState {
    /// Present: the sockets receive what comes by it.
    Here,
    /// No interface has the name, or the one that has it lacks the address yet: nothing arrives.
    Gone,
    /// It has come back as a new interface: nothing arrives until the sockets are bound again, which is
    /// possible.
    Anew,
}

/// Connections a listening socket's accept queue holds while its worker is busy; the kernel caps it at
/// `net.core.somaxconn`.
pub const BACKLOG: u16 = 4096;

/// All listening sockets of the process: one per worker and endpoint; a Unix socket is shared by all workers.
#[derive(Default)]
pub struct Sockets {
    by_endpoint: BTreeMap<Endpoint, Vec<OwnedFd>>,
    /// What was withdrawn, and when: until it is closed its port is not free for others.
    leaving: Vec<(Endpoint, Instant)>,
    /// The files of Unix sockets.
    files: BTreeMap<Endpoint, SocketFile>,
    /// Whether they were bound for this process's config; false if they were handed down.
    is_in_service: bool,
    /// When this process took over from another one, which may still serve what it had withdrawn.
    taken_over: Option<Instant>,
}

/// A listening socket could not be opened, or its file could not be set up. Nothing has changed; the old
/// configuration stays in force.
#[derive(Debug)]
pub struct BindError {
    /// The operation that failed.
    attempt: Attempt,
    /// The listener that wanted it.
    pub listener: String,
    /// Where.
    pub endpoint: Endpoint,
    /// What the kernel said.
    pub source: io::Error,
}

/// An operation on a socket.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    Bind,
    /// Change who may connect.
    Allow,
}

impl fmt::Display for BindError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.endpoint.transport {
            Transport::Tcp => "tcp",
            Transport::Udp | Transport::Quic => "udp",
        };
        if let (Attempt::Allow, at) = (self.attempt, &self.endpoint.at) {
            let listener = &self.listener;
            return write!(
                out,
                "listener `{listener}` can't change who may connect to {at}: {}",
                self.source
            );
        }
        if let At::Unix(name) = &self.endpoint.at {
            write!(out, "listener `{}` can't bind {name}: {}", self.listener, self.source)?;
            return match self.source.kind() {
                io::ErrorKind::PermissionDenied => {
                    write!(
                        out,
                        " (Weir needs the right to make files in that folder, and CAP_CHOWN for an `owner`)"
                    )
                }
                _ => Ok(()),
            };
        }
        write!(
            out,
            "listener `{}` can't bind {transport} {}: {}",
            self.listener, self.endpoint, self.source
        )?;
        if let Some(said) = self.of_interface() {
            return write!(out, " ({said})");
        }
        if system::is_no_family(&self.source) {
            return write!(
                out,
                " (this host has no sockets of that family, as without IPv6, or `RestrictAddressFamilies=` of systemd keeps them from Weir: leave the address out)"
            );
        }
        match self.source.kind() {
            io::ErrorKind::AddrInUse => write!(out, " (another program holds it; see `ss -ltnup`)"),
            io::ErrorKind::PermissionDenied => {
                write!(out, " (ports below 1024 need CAP_NET_BIND_SERVICE, see the guide's page on systemd)")
            }
            io::ErrorKind::AddrNotAvailable => {
                write!(out, " (no interface of this machine has that address)")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}

impl BindError {
    /// Advice for the operator if an interface is missing or in the way.
    fn of_interface(&self) -> Option<String> {
        let is_link_local = |at: SocketAddr| matches!(at.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        let error = &self.source;
        match (&self.endpoint.interface, error.kind()) {
            (Some(name), _) if system::is_no_interface(error) => {
                Some(format!("no interface is named `{name}` here; `ip link` shows those that there are"))
            }
            (Some(name), _) if system::is_not_permitted(error) => {
                Some(format!("before Linux 5.7 it takes CAP_NET_RAW to bind to an interface, here `{name}`"))
            }
            (Some(name), io::ErrorKind::AddrNotAvailable) => {
                Some(format!("no interface of this machine has that address, or `{name}` is of another VRF"))
            }
            (None, io::ErrorKind::InvalidInput) if self.endpoint.at.inet().is_some_and(is_link_local) => {
                Some("an address of one link needs `interface`".to_owned())
            }
            _ => None,
        }
    }
}

impl Sockets {
    /// The sockets that `config` needs, taken from `previous` where it has them and bound anew otherwise.
    /// Listeners in the kernel get none, except the UDP sockets that they had before.
    ///
    /// Nothing in `previous` is closed: on `Err` it is unchanged, on `Ok` the caller drops it once the
    /// workers have moved over.
    pub fn bind(
        config: &Config,
        placements: &Placements,
        workers: usize,
        previous: &Sockets,
    ) -> Result<Sockets, BindError> {
        // QUIC sockets are served for as long as they have connections.
        let is_there = |(endpoint, since): &&(Endpoint, Instant)| {
            endpoint.transport == Transport::Quic || since.elapsed() < 2 * LINGER
        };
        let leaving = previous.leaving.iter().filter(is_there);
        let takes_over = !previous.is_in_service && !previous.by_endpoint.is_empty();
        let mut bound = Sockets {
            is_in_service: true,
            leaving: leaving.cloned().collect(),
            taken_over: previous.taken_over.or_else(|| takes_over.then(Instant::now)),
            ..Sockets::default()
        };
        let done = bound.bind_all(config, placements, workers, previous);
        if done.is_err() {
            bound.give_up(previous);
        }
        done.map(|()| bound)
    }

    fn bind_all(
        &mut self,
        config: &Config,
        placements: &Placements,
        workers: usize,
        previous: &Sockets,
    ) -> Result<(), BindError> {
        let has_just_begun = self.taken_over.is_some_and(|since| since.elapsed() < 2 * LINGER);
        let is_settled = previous.is_in_service && !has_just_begun;
        let patience = if is_settled { RELEASE_PATIENCE } else { RELEASE_PATIENCE_AT_START };
        for listener in &config.listeners {
            let is_in_kernel = placements.is_in_kernel(&listener.name);
            // Datagrams to clients of UDP sessions leave by the socket that the clients sent to, and it is
            // not known when the last session ends. The listener may also come back to it later.
            let keeps = |endpoint: &Endpoint| {
                !is_in_kernel
                    || endpoint.transport == Transport::Udp && previous.by_endpoint.contains_key(endpoint)
            };
            for endpoint in endpoints_of(listener).filter(keeps) {
                let failed = |attempt| {
                    let (listener, endpoint) = (listener.name.clone(), endpoint.clone());
                    move |source| BindError { attempt, listener, endpoint, source }
                };
                if let Some(file) = previous.files.get(&endpoint) {
                    file.may_allow(&permissions_of(listener)).map_err(failed(Attempt::Allow))?;
                }
                let sockets = self.group(listener, &endpoint, workers.max(1), patience, previous);
                let sockets = sockets.map_err(failed(Attempt::Bind))?;
                self.by_endpoint.insert(endpoint, sockets);
            }
        }
        Ok(())
    }

    /// The sockets of one endpoint: those in `previous`, or new ones.
    fn group(
        &mut self,
        listener: &weir_config::Listener,
        endpoint: &Endpoint,
        workers: usize,
        patience: Duration,
        previous: &Sockets,
    ) -> io::Result<Vec<OwnedFd>> {
        match (previous.by_endpoint.get(endpoint), &endpoint.at) {
            (Some(old), At::Unix(_)) => {
                self.files.extend(previous.files.get(endpoint).map(|file| (endpoint.clone(), file.clone())));
                old.iter().map(OwnedFd::try_clone).collect()
            }
            (Some(old), At::Inet(address)) => {
                let moved = (has_come_anew(endpoint, old))
                    .then(|| opening::open_group(endpoint, *address, workers, None))
                    .and_then(Result::ok);
                match moved {
                    Some(opened) => Ok(opened),
                    // An interface appears first, and its addresses a moment later.
                    None => opening::keep_group(endpoint, *address, old, workers),
                }
            }
            (None, At::Unix(name)) => {
                let permissions = permissions_of(listener);
                let open = || unix_socket::listen(name, &permissions, BACKLOG.into());
                let opened = opening::with_patience(patience, open);
                let Listening { socket, file } = opened.map_err(|error| {
                    let held = name.path().and_then(|path| self.holder_of(path).or(previous.holder_of(path)));
                    held.map_or(error, |held| {
                        io::Error::other(format!("this Weir listens there already, as {held}"))
                    })
                })?;
                self.files.extend(file.map(|file| (endpoint.clone(), file)));
                Ok(vec![socket])
            }
            (None, At::Inet(address)) => {
                let is_ours = previous.holds_port_of(endpoint) || self.holds_port_of(endpoint);
                opening::open_group(endpoint, *address, workers, (!is_ours).then_some(patience))
            }
        }
    }

    /// Removes what was made for a config that does not come into force.
    pub fn give_up(&self, in_service: &Sockets) {
        let made = self.gone_from(in_service);
        // They are closed next, and nothing has been served on them.
        let _ = self.withdraw(&made);
    }

    /// Changes who may connect to existing Unix sockets, as `config` says.
    ///
    /// # Errors
    /// The last one that could not be changed, although [`Self::bind`] found that it could be.
    pub fn allow(&mut self, config: &Config) -> Result<(), BindError> {
        let mut outcome = Ok(());
        for listener in &config.listeners {
            for endpoint in endpoints_of(listener) {
                let Some(file) = self.files.get_mut(&endpoint) else { continue };
                if let Err(source) = file.allow(&permissions_of(listener)) {
                    let (attempt, listener) = (Attempt::Allow, listener.name.clone());
                    outcome = Err(BindError { attempt, listener, endpoint, source });
                }
            }
        }
        outcome
    }

    /// Unix sockets that clients can no longer reach at their paths.
    pub fn lost(&self) -> impl Iterator<Item = &Endpoint> {
        let is_lost = move |endpoint: &&Endpoint| {
            matches!(&endpoint.at, At::Unix(name) if name.path().is_some())
                && !self.files.get(*endpoint).is_some_and(SocketFile::stands)
        };
        self.by_endpoint.keys().filter(is_lost)
    }

    /// The Unix socket of the set whose file is at this path, whatever the path's spelling.
    fn holder_of(&self, path: &str) -> Option<&At> {
        let found = unix_socket::id_of(path)?;
        self.files.iter().find(|(_, file)| file.id() == found).map(|(endpoint, _)| &endpoint.at)
    }

    /// Whether a socket of the set has this port, on any address, or had it until a moment ago.
    fn holds_port_of(&self, endpoint: &Endpoint) -> bool {
        let port_of = |endpoint: &Endpoint| endpoint.at.inet().map(|address| address.port());
        let same = |held: &Endpoint| {
            held.transport.shares_ports_with(endpoint.transport) && port_of(held) == port_of(endpoint)
        };
        self.by_endpoint.keys().any(same) || self.leaving.iter().any(|(endpoint, _)| same(endpoint))
    }

    /// Endpoints that `other` does not have, or has on an interface that was re-created.
    pub fn missing_from(&self, other: &Sockets) -> Vec<Endpoint> {
        let is_there = |endpoint: &Endpoint, sockets: &[OwnedFd]| {
            let there = other.by_endpoint.get(endpoint);
            there.is_some_and(|there| index_of(endpoint, there) == index_of(endpoint, sockets))
        };
        let missing = self.by_endpoint.iter().filter(|(endpoint, sockets)| !is_there(endpoint, sockets));
        missing.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    /// Those of [`Self::missing_from`] whose sockets can be withdrawn; QUIC connections keep receiving at
    /// theirs.
    pub fn gone_from(&self, other: &Sockets) -> Vec<Endpoint> {
        let mut gone = self.missing_from(other);
        gone.retain(|endpoint| endpoint.transport != Transport::Quic);
        gone
    }

    /// The state of each interface that sockets are bound to, by name.
    pub fn interfaces(&self) -> BTreeMap<Arc<str>, InterfaceState> {
        let (mut found, mut known) = (BTreeMap::new(), BTreeMap::new());
        for (endpoint, sockets) in &self.by_endpoint {
            let Some(name) = &endpoint.interface else { continue };
            let now = *known.entry(name).or_insert_with(|| system::interface_named(name));
            let state = if now.is_some() && now == index_of(endpoint, sockets) {
                InterfaceState::Here
            } else if now.is_some() && opening::can_be_opened(endpoint) {
                InterfaceState::Anew
            } else {
                InterfaceState::Gone
            };
            // An interface takes the worst state of its sockets.
            let worst = found.entry(name.clone()).or_insert(state);
            *worst = state.max(*worst);
        }
        found
    }

    /// Hides the sockets of these endpoints from new connections and datagrams, in any process that has them.
    /// Their owners serve them for [`LINGER`] longer.
    ///
    /// # Errors
    /// Some sockets can't be withdrawn ([`system::withdraw`]); the others are.
    pub fn withdraw(&self, endpoints: &[Endpoint]) -> io::Result<()> {
        let mut outcome = Ok(());
        for endpoint in endpoints {
            let sockets = self.by_endpoint.get(endpoint).into_iter().flatten();
            let withdrawn = match &endpoint.at {
                At::Inet(_) => {
                    let withdraw = match endpoint.transport {
                        Transport::Udp => system::datagrams::withdraw,
                        Transport::Tcp | Transport::Quic => system::withdraw,
                    };
                    sockets.map(withdraw).fold(Ok(()), io::Result::and)
                }
                At::Unix(_) => {
                    // First the file, so that new clients find no socket rather than a dead one.
                    if let Some(file) = self.files.get(endpoint) {
                        file.remove();
                    }
                    sockets.map(unix_socket::withdraw).fold(Ok(()), io::Result::and)
                }
            };
            outcome = outcome.and(withdrawn);
        }
        outcome
    }

    /// Records that sockets of these endpoints were given up, and will be closed when nothing is served on
    /// them.
    pub fn note_leaving(&mut self, endpoints: Vec<Endpoint>) {
        let now = Instant::now();
        self.leaving.retain(|(endpoint, _)| !endpoints.contains(endpoint));
        self.leaving.extend(endpoints.into_iter().map(|endpoint| (endpoint, now)));
    }

    /// Duplicates for worker number `worker` of `workers`. If an earlier process left more sockets than there
    /// are workers, they are dealt out so that all are served.
    pub fn for_worker(&self, worker: usize, workers: usize) -> io::Result<Vec<(Endpoint, OwnedFd)>> {
        let mut dealt = Vec::new();
        for (endpoint, sockets) in &self.by_endpoint {
            for socket in sockets.iter().skip(worker).step_by(workers.max(1)) {
                dealt.push((endpoint.clone(), socket.try_clone()?));
            }
            // Fewer sockets than workers, after an upgrade to more workers: the additional workers share one.
            if worker >= sockets.len()
                && let Some(socket) = sockets.get(worker % sockets.len().max(1))
            {
                dealt.push((endpoint.clone(), socket.try_clone()?));
            }
        }
        Ok(dealt)
    }

    /// Every endpoint in the set.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        self.by_endpoint.keys().cloned()
    }

    /// Takes over a socket that an earlier process handed down, unless that process has withdrawn it since.
    pub fn adopt(&mut self, endpoint: Endpoint, socket: OwnedFd) {
        let is_withdrawn = match &endpoint.at {
            At::Inet(_) => system::is_withdrawn(&socket),
            At::Unix(_) => unix_socket::is_withdrawn(&socket),
        };
        if is_withdrawn {
            return;
        }
        self.by_endpoint.entry(endpoint).or_default().push(socket);
    }

    /// Sets the files of the Unix sockets that were taken over, by their paths.
    pub fn know_files(&mut self, file_at: impl Fn(&str) -> Option<SocketFile>) {
        for endpoint in self.by_endpoint.keys() {
            if let At::Unix(name) = &endpoint.at
                && let Some(file) = name.path().and_then(&file_at)
            {
                self.files.insert(endpoint.clone(), file);
            }
        }
    }

    /// The file of an endpoint's socket.
    pub fn file_of(&self, endpoint: &Endpoint) -> Option<&SocketFile> {
        self.files.get(endpoint)
    }

    /// The address that a socket is bound to: for port 0 the one that the kernel chose.
    pub fn local_address(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let socket = self.by_endpoint.get(endpoint)?.first()?;
        socket2::SockRef::from(socket).local_addr().ok()?.as_socket()
    }
}

/// The endpoints of a listener: QUIC uses the ports of TCP too, or has them alone if the listener speaks only
/// HTTP/3.
pub fn endpoints_of(listener: &weir_config::Listener) -> impl Iterator<Item = Endpoint> + '_ {
    let (first, has_quic) = match &listener.speaks {
        Speaks::Udp => (Some(Transport::Udp), false),
        Speaks::Tcp | Speaks::Mysql(_) => (Some(Transport::Tcp), false),
        Speaks::Http(http) => {
            let first = (http.versions != [HttpVersion::H3]).then_some(Transport::Tcp);
            (first, http.versions.contains(&HttpVersion::H3) && listener.tls.is_some())
        }
    };
    let transports = [first, has_quic.then_some(Transport::Quic)].into_iter().flatten();
    // If no interface is named, one socket accepts from all of them.
    let any = interfaces_of(listener).next().is_none().then_some(None);
    transports.flat_map(move |transport| {
        let any = any.clone();
        let inet = listener.bind.iter().filter_map(Bind::inet).flat_map(InetBind::each).map(At::Inet);
        let inet = inet.flat_map(move |at| {
            let each = any.clone().into_iter().chain(interfaces_of(listener).map(Some));
            each.map(move |interface| Endpoint { transport, at: at.clone(), interface })
        });
        // QUIC needs addresses.
        let names = listener.bind.iter().filter_map(Bind::unix).filter(move |_| transport == Transport::Tcp);
        inet.chain(names.map(move |name| Endpoint::new(transport, At::Unix(UnixName::new(name)))))
    })
}

/// Names of the interfaces that a listener's sockets are bound to, if any. For a listener that may be on the
/// kernel plane, `interface` says where packets are taken and does not concern sockets.
pub fn interfaces_of(listener: &weir_config::Listener) -> impl Iterator<Item = Arc<str>> + '_ {
    let said = if listener.plane == Plane::Proxy { &listener.interfaces[..] } else { &[] };
    said.iter().map(|name| name.to_string().into())
}

/// Index of the interface that a group of sockets is bound to.
fn index_of(endpoint: &Endpoint, group: &[OwnedFd]) -> Option<NonZeroU32> {
    endpoint.interface_of(group.first()?)
}

/// Whether the interface of a group was replaced by a new one with the same name: nothing arrives by the old
/// one.
fn has_come_anew(endpoint: &Endpoint, group: &[OwnedFd]) -> bool {
    let Some(name) = &endpoint.interface else { return false };
    system::interface_named(name).is_some_and(|now| Some(now) != index_of(endpoint, group))
}

/// Who may connect to the Unix sockets (files) of a listener.
fn permissions_of(listener: &weir_config::Listener) -> Permissions {
    let said = &listener.unix_socket;
    Permissions { mode: said.mode.0, owner: said.owner.clone(), group: said.group.clone() }
}
