//! Listeners' addresses at which a backend is probed; a backend that answers directly has them.

use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_io::local_end::LocalEnd;

use crate::kernel::{AskedPlaces, PassingProbe, VipProbes, VipWay};

/// The listener addresses (VIPs) at which a backend is probed instead of, or besides, its own address.
#[derive(Clone)]
pub struct AskedAtVips {
    /// At least one, each of the backend's address family.
    pub places: AskedPlaces,
    /// Sends probes to these addresses through the kernel.
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
    /// Each way to probe; `None` stands for the backend's own address, if that is probed as well.
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

/// Names the probed address for messages: "at VIP 192.0.2.1:80 through the tunnel", or "at its own address"
/// if there is no way.
pub(super) fn place_of(way: Option<&VipWay>, port: u16) -> String {
    way.map_or_else(
        || "at its own address".to_owned(),
        |way| format!("at VIP {} {way}", SocketAddr::new(way.vip, port)),
    )
}
