//! Addresses nobody listens on.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below the kernel's range for outgoing connections (32768 up), so that no client's own port can take one of ours
/// between the moment it was found free and the moment the program under test binds it.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A loopback address that is free for TCP and for UDP, and that this process has not handed out before.
pub fn free_address() -> SocketAddr {
    if NEXT.load(Ordering::Relaxed) == 0 {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.subsec_nanos());
        let start = (nanos ^ std::process::id().wrapping_mul(2_654_435_761)) % COUNT + 1;
        let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    for _ in 0..COUNT {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("below 32768")));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
