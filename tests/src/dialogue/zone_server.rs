//! A real name server (Knot) that has a zone and accepts signed updates of it.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{free_address, tool, until};

/// The key that updates are signed with, base64.
pub const UPDATE_KEY: &str = "c2l4dGVlbiBvY3RldHMgb2YgYSBrZXkgZm9yIHdlaXI=";

/// A name server of `shop.example`. Ends when dropped.
#[derive(Debug)]
pub struct ZoneServer {
    address: SocketAddr,
    dir: PathBuf,
    child: Child,
}

impl ZoneServer {
    /// Starts one that accepts updates signed with the key `weir`.
    pub fn start() -> ZoneServer {
        ZoneServer::of(free_address(), None, "acl: [update, transfer]\n    file: \"zone\"")
    }

    /// Starts one that accepts updates and notifies another server of them.
    pub fn telling(other: SocketAddr) -> ZoneServer {
        ZoneServer::of(
            free_address(),
            Some(other),
            "acl: [update, transfer]\n    file: \"zone\"\n    notify: other",
        )
    }

    /// Starts one at an address that transfers the zone from another server.
    pub fn following(address: SocketAddr, other: SocketAddr) -> ZoneServer {
        ZoneServer::of(address, Some(other), "acl: notify\n    master: other")
    }

    fn of(address: SocketAddr, other: Option<SocketAddr>, zone: &str) -> ZoneServer {
        let dir = std::env::temp_dir().join(format!("weir-knot-{}-{}", std::process::id(), address.port()));
        fs::create_dir_all(&dir).expect("a directory");
        let at = |address: SocketAddr| format!("{}@{}", address.ip(), address.port());
        let remote = other.map_or_else(String::new, |other| {
            format!("remote:\n  - id: other\n    address: {}\n", at(other))
        });
        let (shown, listen) = (dir.display(), at(address));
        let config = format!(
            "server:\n    rundir: \"{shown}\"\n    listen: {listen}\n\
             database:\n    storage: \"{shown}\"\n\
             key:\n  - id: weir\n    algorithm: hmac-sha256\n    secret: {UPDATE_KEY}\n\
             {remote}\
             acl:\n  - id: update\n    key: weir\n    action: update\n\
             \x20 - id: transfer\n    address: 127.0.0.0/8\n    action: transfer\n\
             \x20 - id: notify\n    address: 127.0.0.0/8\n    action: notify\n\
             zone:\n  - domain: shop.example\n    storage: \"{shown}\"\n    {zone}\n"
        );
        fs::write(dir.join("knot.conf"), config).expect("a config");
        let records =
            "$ORIGIN shop.example.\n$TTL 60\n@ SOA ns host 1 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1\n";
        fs::write(dir.join("zone"), records).expect("a zone");
        let child = spawn(&dir);
        until("knotd to listen", || TcpStream::connect(address).ok());
        ZoneServer { address, dir, child }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn spawn(dir: &Path) -> Child {
    let knotd = tool("knotd", "knot");
    Command::new(&knotd)
        .arg("-c")
        .arg(dir.join("knot.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|problem| panic!("{} does not start: {problem}", knotd.display()))
}

impl Drop for ZoneServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
