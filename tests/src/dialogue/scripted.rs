//! A backend that does what the test says, when the test says it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use super::PATIENCE;
use super::wire::Wire;

/// A listening socket whose connections the test accepts and drives itself, in its own thread.
#[derive(Debug)]
pub struct ScriptedBackend {
    listener: TcpListener,
    address: SocketAddr,
}

impl ScriptedBackend {
    /// Listens on a free address.
    pub fn start() -> ScriptedBackend {
        ScriptedBackend::at(super::free_address())
    }

    /// Listens on this address.
    pub fn at(address: SocketAddr) -> ScriptedBackend {
        let listener = super::listen_at(address);
        listener.set_nonblocking(true).expect("non-blocking");
        ScriptedBackend { listener, address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a connection.
    pub fn accepts(&self) -> Wire {
        let begun = Instant::now();
        loop {
            if let Some(wire) = self.accepts_if_any() {
                return wire;
            }
            assert!(begun.elapsed() < PATIENCE, "backend {}: nobody connected in {PATIENCE:?}", self.address);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Accepts a connection that has arrived by now; does not wait.
    pub fn accepts_if_any(&self) -> Option<Wire> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("blocking");
                Some(Wire::over(stream, "backend"))
            }
            Err(problem) if problem.kind() == ErrorKind::WouldBlock => None,
            Err(problem) => panic!("backend {} can't accept: {problem}", self.address),
        }
    }

    /// Fails if a connection has arrived that was not accepted.
    pub fn has_nobody_waiting(&self) {
        if let Some(mut wire) = self.accepts_if_any() {
            wire.looks();
            panic!("backend {} has a connection it should not have: {wire:?}", self.address);
        }
    }
}
