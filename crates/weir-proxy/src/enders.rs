//! Ends connections to a backend that went down, if its pool asks for that (`on_down = "end-sessions"`).
//!
//! In such a pool, each connection leaves a duplicate of its descriptor here. Shutting that down looks like a
//! crash of the backend to whoever uses the connection. An exchange moves to another backend if it may; a
//! relay also checks [`Ender::has_ended`], so that it does not take this for the end of the stream. Other
//! pools keep nothing here.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::{Rc, Weak};

use socket2::SockRef;
use tokio::net::TcpStream;

/// The connections to one backend on one worker.
#[derive(Default)]
pub struct Enders(RefCell<Vec<Weak<Ender>>>);

/// One connection; exists as long as that is open.
pub struct Ender {
    /// A duplicate descriptor of the connection's socket.
    socket: OwnedFd,
    has_ended: Cell<bool>,
}

impl Ender {
    /// Whether the connection was ended by [`Enders::end_all`].
    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }
}

impl Enders {
    /// Registers a connection.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn register(&self, stream: &TcpStream) -> io::Result<Rc<Ender>> {
        let socket = stream.as_fd().try_clone_to_owned()?;
        let ender = Rc::new(Ender { socket, has_ended: Cell::new(false) });
        let mut all = self.0.borrow_mut();
        if all.len() == all.capacity() {
            // Removes closed connections before the list would grow, so that they take no more room than open
            // ones.
            all.retain(|ender| ender.strong_count() > 0);
        }
        all.push(Rc::downgrade(&ender));
        Ok(ender)
    }

    /// Ends all of them; gives how many there were.
    pub fn end_all(&self) -> u64 {
        let mut count = 0;
        for ender in self.0.take().iter().filter_map(Weak::upgrade) {
            ender.has_ended.set(true);
            // An error means that the peer has already closed it.
            let _ = SockRef::from(&ender.socket).shutdown(Shutdown::Both);
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    #[tokio::test(flavor = "local")]
    async fn those_that_are_open_are_ended_and_those_that_were_are_forgotten() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let enders = Enders::default();
        for _ in 0..1000 {
            let stream = TcpStream::connect(address).await.unwrap();
            drop(enders.register(&stream).unwrap());
            drop(listener.accept().await.unwrap());
        }
        assert!(enders.0.borrow().len() <= 8, "{} are kept", enders.0.borrow().len());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let ender = enders.register(&stream).unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        assert!(!ender.has_ended());
        assert_eq!(enders.end_all(), 1);
        assert!(ender.has_ended());
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(enders.end_all(), 0);
    }
}
