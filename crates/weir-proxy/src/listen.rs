//! Serves a listening socket: starts the tasks of its transport, which know the protocols.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use weir_io::listener::Listener;
use weir_quic::port::{Port, Serving};
use weir_quic::socket::BoundAt;
use weir_state::sockets::Transport;

use crate::http::h3::ListenerFront;
use crate::listener_socket::{Closing, ListenerSocket};
use crate::worker::Worker;
use crate::{accept, udp};

/// Begins to serve `socket`, whose descriptor is `descriptor`, until it is closed.
///
/// # Errors
/// The runtime can't poll it.
pub fn serve(worker: &Rc<Worker>, socket: &Rc<ListenerSocket>, descriptor: OwnedFd) -> io::Result<()> {
    match socket.endpoint.transport {
        Transport::Tcp => {
            let listener = Listener::new(descriptor)?;
            // Counted from now on, not only once the task runs.
            let acceptor = accept::Acceptor::new(worker, socket, listener);
            tokio::task::spawn_local(acceptor.run());
        }
        Transport::Quic => {
            let datagrams = weir_quic::socket::Socket::new(descriptor.into(), place_of(socket)?)?;
            let driver = worker.quic.driver();
            let front = ListenerFront::new(worker.clone(), socket.clone(), worker.quic.keys());
            front.warm_up();
            let port = Port::new(datagrams, Rc::new(front));
            driver.open(&port);
            driver.steer(&port);
            let closing = socket.clone();
            tokio::task::spawn_local(driver.run_socket(port, move |waker| match closing.closing(waker) {
                None => Serving::Open,
                Some(Closing::After(_)) => Serving::Closing,
                Some(Closing::IfWithdrawnAfter(_)) => Serving::HandedOver,
            }));
        }
        Transport::Udp => {
            let datagrams = tokio::net::UdpSocket::from_std(descriptor.into())?;
            tokio::task::spawn_local(udp::run(worker.clone(), socket.clone(), datagrams));
        }
    }
    Ok(())
}

/// The address that datagrams come to; a Unix socket receives none.
fn place_of(socket: &ListenerSocket) -> io::Result<BoundAt> {
    let address = socket.endpoint.at.inet();
    let address = address.ok_or_else(|| io::Error::other("datagrams come to addresses only"))?;
    Ok(BoundAt { address, interface: socket.interface })
}
