//! Listeners' addresses at which a backend is probed; a backend that answers directly has them.

use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_io::local_end::LocalEnd;

use crate::kernel::{PassingProbe, VipProbes, VipWay};

/// The addresses at which a backend is probed, instead of its own.
#[derive(Clone)]
pub struct AskedAtVips {
    /// One path for each, of the backend's address family; not empty.
    pub ways: Vec<VipWay>,
    /// Sends probes on those paths.
    pub probes: Arc<VipProbes>,
}

impl std::fmt::Debug for AskedAtVips {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ways.fmt(out)
    }
}

impl PartialEq for AskedAtVips {
    fn eq(&self, other: &AskedAtVips) -> bool {
        self.ways == other.ways
    }
}

impl Eq for AskedAtVips {}

impl Hash for AskedAtVips {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ways.hash(state);
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

/// "at VIP 192.0.2.1:80 through the tunnel".
pub(super) fn place_of(way: &VipWay, port: u16) -> String {
    format!("at VIP {} {way}", SocketAddr::new(way.vip, port))
}
