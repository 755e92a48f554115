//! The backend processes of the soak.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dialogue::{After, Request, Signal, Wire, pattern};
use crate::storm::{body_of, serve_process_with};

/// Time between two events of `/events/SEED/COUNT`.
const BETWEEN_EVENTS: Duration = Duration::from_millis(100);

/// Becomes a backend: serves until the process is killed, or its parent has ended. Besides what
/// [`crate::storm::serve_process`] answers:
///
/// - `GET /events/SEED/COUNT`: so many server-sent events, one after the other ([`events_of`])
/// - `GET /c/SEED/LENGTH`: what `/r/SEED/LENGTH` has, to be cached for a minute; `x-version` has the number
///   in the file [`version_file`]
/// - datagrams to the same address: are sent back
pub fn serve_backend(address: SocketAddr, ledger: &Path) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // An answer to a proxy that has left panics in the thread of its connection. The clients judge that.
    std::panic::set_hook(Box::new(|_| {}));
    let socket = UdpSocket::bind(address).unwrap_or_else(|problem| panic!("{address}: {problem}"));
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        loop {
            if let Ok((length, from)) = socket.recv_from(&mut datagram) {
                let _ = socket.send_to(&datagram[..length], from);
            }
        }
    });
    let version = version_file(ledger);
    serve_process_with(address, ledger, move |request, wire| answer(request, wire, &version))
}

/// Where backends with this ledger read which version of cached answers is the current one.
pub(super) fn version_file(ledger: &Path) -> PathBuf {
    ledger.with_extension("version")
}

/// The content of `/events/SEED/COUNT`.
pub(super) fn events_of(seed: u64, count: u64) -> String {
    (0..count).map(|number| event(seed, number)).collect()
}

fn event(seed: u64, number: u64) -> String {
    let bytes = pattern(seed.wrapping_mul(31).wrapping_add(number), 8);
    let mark = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!("id: {number}\ndata: {seed} {mark}\n\n")
}

fn answer(request: &Request, wire: &mut Wire, version: &Path) -> Option<After> {
    let path = request.target.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["", "events", seed, count] => {
            let (seed, count) = (seed.parse().unwrap_or(0), count.parse().unwrap_or(0));
            send_events(wire, seed, count);
        }
        ["", "c", seed, length] => {
            let current = std::fs::read_to_string(version).unwrap_or_default();
            let (seed, length) = (seed.parse().unwrap_or(0), length.parse().unwrap_or(0));
            // So that purges fall between the question and its answer now and then.
            std::thread::sleep(Duration::from_millis(seed % 4 * 10));
            let fields = [("cache-control", "max-age=60"), ("x-version", current.trim())];
            wire.answers(200, &fields, body_of(seed, length));
        }
        _ => return None,
    }
    Some(After::Keep)
}

fn send_events(wire: &mut Wire, seed: u64, count: u64) {
    wire.sends("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    for number in 0..count {
        if number > 0 {
            std::thread::sleep(BETWEEN_EVENTS);
        }
        let event = event(seed, number);
        wire.sends(format!("{:x}\r\n{event}\r\n", event.len()));
    }
    wire.sends("0\r\n\r\n");
}
