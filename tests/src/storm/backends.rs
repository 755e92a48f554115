//! Backends whose answers can be checked, in this process or in processes of their own.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::dialogue::{After, Backend, Request, Wire, fingerprint, pattern};

/// How often each numbered POST was executed.
#[derive(Debug)]
pub struct Executed {
    counts: Vec<AtomicU8>,
}

impl Executed {
    /// Room for numbers below `most`.
    pub fn with_room(most: usize) -> Arc<Executed> {
        Arc::new(Executed { counts: (0..most).map(|_| AtomicU8::new(0)).collect() })
    }

    /// Counts one execution.
    pub fn note(&self, number: usize) {
        if let Some(count) = self.counts.get(number) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How often this one was executed.
    pub fn times(&self, number: usize) -> u8 {
        self.counts.get(number).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// The numbers executed more than once.
    pub fn repeated(&self) -> Vec<usize> {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| count.load(Ordering::SeqCst) > 1).map(|(number, _)| number).collect()
    }
}

/// What `GET /r/SEED/LENGTH` answers.
pub fn body_of(seed: u64, length: usize) -> Vec<u8> {
    pattern(seed, length)
}

/// Answers `GET /r/SEED/LENGTH` with that body, `POST /p/NUMBER` with the length and fingerprint of what was
/// sent, and a WebSocket handshake with an echo.
fn answer(request: &Request, wire: &mut Wire, mut note: impl FnMut(usize)) -> After {
    let parts: Vec<&str> = request.target.split('/').collect();
    if request.fields.lists("upgrade", "websocket") {
        return echo(wire);
    }
    match parts[..] {
        ["", "r", seed, length] => {
            let (seed, length) = (seed.parse().unwrap_or(0), length.parse().unwrap_or(0));
            wire.answers(200, &[], body_of(seed, length));
        }
        ["", "p", number] => {
            if let Ok(number) = number.parse() {
                note(number);
            }
            wire.answers(200, &[], receipt(&request.body));
        }
        // Other requests, such as probes.
        _ => wire.answers(200, &[], "up"),
    }
    After::Keep
}

/// What a backend answers to a POST of this body.
pub fn receipt(body: &[u8]) -> String {
    format!("{} {:016x}", body.len(), fingerprint(body))
}

fn echo(wire: &mut Wire) -> After {
    wire.sends("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n");
    let (Ok(mut reader), Ok(mut writer)) = (wire.socket().try_clone(), wire.socket().try_clone()) else {
        return After::Close;
    };
    let _ = reader.set_read_timeout(None);
    let _ = std::io::copy(&mut reader, &mut writer);
    After::Close
}

/// A checkable backend in this process.
pub fn serving(address: SocketAddr, executed: Arc<Executed>) -> Backend {
    Backend::counting_at(address, move |request, wire| answer(request, wire, |number| executed.note(number)))
}

/// Becomes a checkable backend: serves until the process is killed. Executed POSTs are appended to `ledger`,
/// a number a line, before they are answered, so that they survive the kill.
pub fn serve_process(address: SocketAddr, ledger: &Path) -> ! {
    serve_process_with(address, ledger, |_, _| None)
}

/// [`serve_process`], where `other` is asked first: it answers the requests that it knows, and gives `None`
/// for the others.
pub(crate) fn serve_process_with(
    address: SocketAddr,
    ledger: &Path,
    other: impl Fn(&Request, &mut Wire) -> Option<After> + Send + Sync + 'static,
) -> ! {
    let file: File = OpenOptions::new()
        .create(true)
        .append(true)
        .open(ledger)
        .unwrap_or_else(|problem| panic!("{}: {problem}", ledger.display()));
    let _backend = Backend::counting_at(address, move |request, wire| {
        if let Some(after) = other(request, wire) {
            return after;
        }
        answer(request, wire, |number| {
            // One write per line: appends of that size are whole even when the process is killed.
            let _ = (&file).write_all(format!("{number}\n").as_bytes());
        })
    });
    loop {
        std::thread::park();
    }
}
