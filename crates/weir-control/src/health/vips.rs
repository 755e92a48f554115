//! Listeners' addresses at which a backend is probed; a backend that answers directly has them.

use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_io::local_end::LocalEnd;

use crate::kernel::{AskedPlaces, PassingProbe, VipProbes, VipWay};

/// At which addresses a backend is asked, rather than at its own alone.
#[derive(Clone)]
pub struct AskedAtVips {
    /// Ways of the backend's family, at least one.
    pub places: AskedPlaces,
    /// What has probes go those ways.
    pub probes: Arc<VipProbes>,
}

impl std::fmt::Debug for AskedAtVips {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.places.fmt(out)
    }
}

impl PartialEq for AskedAtVips {
    fn eq(&self, other: &AskedAtVips) -> bool {
        self.places == other.places
    }
}

impl Eq for AskedAtVips {}

impl Hash for AskedAtVips {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.places.hash(state);
    }
}

impl AskedAtVips {
    /// Each way, and `None` where a backend is asked at its own address as well.
    pub fn each(&self) -> impl Iterator<Item = Option<&VipWay>> {
        self.places.ways.iter().map(Some).chain(self.places.and_own.then_some(None))
    }
}

/// One of the paths, for one probe.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    way: &'a VipWay,
    probes: &'a VipProbes,
    limit: Duration,
}

impl<'a> By<'a> {
    /// One of the paths of `asked`, for at most `limit`.
    pub fn new(way: &'a VipWay, asked: &'a AskedAtVips, limit: Duration) -> By<'a> {
        By { way, probes: &asked.probes, limit }
    }

    /// Connects to the listener's address at a backend.
    pub async fn connect(
        &self,
        local_end: &LocalEnd,
        to: SocketAddr,
    ) -> io::Result<(TcpStream, PassingProbe)> {
        self.probes.connect(self.way, local_end, to, self.limit).await
    }
}

/// "at VIP 192.0.2.1:80 through the tunnel"; without a way, at its own address.
pub(super) fn place_of(way: Option<&VipWay>, port: u16) -> String {
    way.map_or_else(
        || "at its own address".to_owned(),
        |way| format!("at VIP {} {way}", SocketAddr::new(way.vip, port)),
    )
}
