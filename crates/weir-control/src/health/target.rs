//! The target to probe for a backend, from its pool, its listeners and its address.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_config::{Check, GrpcProbe, HttpProbe, ServerTlsMode};
use weir_io::at::At;
use weir_state::{Backend, Choice, Origin, Pool};

use super::probe::{LoginAccount, Question, Secured, Target};
use super::vips::AskedAtVips;
use crate::kernel::VipProbes;

/// The target for a backend of a pool; `None` when nothing is probed: the check is off, or the name is not
/// resolved.
pub(super) fn target(pool: &Pool, backend: &Backend, vip_probes: Option<&Arc<VipProbes>>) -> Option<Target> {
    let health = &pool.config.health;
    let host = || host_at(&name_of(backend), health.port);
    let question = match &health.check {
        Check::Off => return None,
        Check::Tcp(probe) if probe.steps.is_empty() => Question::Connect,
        Check::Tcp(probe) => Question::Talk(probe.steps.clone()),
        Check::Mysql => Question::Login {
            account: pool.account.clone().map(LoginAccount),
            requires_tls: pool.config.tls.as_ref().is_none_or(|tls| tls.mode == ServerTlsMode::Required),
        },
        Check::Http(probe) => Question::Http {
            probe: HttpProbe { host: Some(probe.host.clone().unwrap_or_else(host)), ..probe.clone() },
            protocol: pool.config.protocol,
        },
        Check::Grpc(probe) => {
            Question::Grpc(GrpcProbe { host: Some(probe.host.clone().unwrap_or_else(host)), ..probe.clone() })
        }
    };
    let tls = backend.tls.clone().map(Secured);
    let (mut at, send_proxy) = (backend.resolved.at()?, pool.config.send_proxy);
    if let (At::Inet(address), Some(port)) = (&mut at, health.port.and_then(|port| u16::try_from(port).ok()))
    {
        address.set_port(port);
    }
    let local_end = pool.local_end.as_ref().map(|end| end.without_client()).unwrap_or_default();
    let port = at.inet().map(|address| address.port()).filter(|_| pool.config.mysql.is_none());
    let choice = choice_at(backend, port);
    let at_vips = at.inet().zip(vip_probes).and_then(|(address, probes)| {
        let places = probes.places_of(&pool.config.name, address.ip());
        (!places.ways.is_empty()).then(|| AskedAtVips { places, probes: probes.clone() })
    });
    Some(Target { at, choice, local_end, tls, send_proxy, question, at_vips })
}

/// The addresses to choose from for a probe, with this port. A MySQL server is excluded, since it is
/// identified by what it said.
fn choice_at(backend: &Backend, port: Option<u16>) -> Option<Arc<Choice>> {
    let (choice, port) = (backend.resolved.choice()?, port?);
    if choice.addresses.iter().all(|address| address.port() == port) {
        return Some(choice);
    }
    let addresses = choice.addresses.iter().map(|address| SocketAddr::new(address.ip(), port));
    Some(Arc::new(Choice { addresses: addresses.collect(), pause: choice.pause }))
}

/// The name of a backend in requests to it: one discovered through a name has that name, and its own port.
fn name_of(backend: &Backend) -> Cow<'_, str> {
    match &backend.origin {
        Origin::Name(name) if weir_config::is_service(name) => {
            let host = name.splitn(3, '.').last().unwrap_or(name);
            let port = backend.resolved.address().map_or(0, |address| address.port());
            Cow::Owned(format!("{host}:{port}"))
        }
        Origin::Name(name) => Cow::Borrowed(name),
        _ => Cow::Borrowed(&backend.address),
    }
}

/// The host field for a probe of a backend, perhaps with another port than its own. A Unix socket has no
/// host, and its server is on this machine.
fn host_at(address: &str, port: Option<u32>) -> String {
    if weir_config::unix_name(address).is_some() {
        return "localhost".to_owned();
    }
    let Some(port) = port else { return address.to_owned() };
    let host = match address.rsplit_once(':') {
        Some((host, own)) if own.parse::<u16>().is_ok() => host,
        _ => address,
    };
    format!("{host}:{port}")
}
