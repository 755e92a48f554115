//! Reports the state of the service to systemd: the datagram protocol of `sd_notify(3)`, without its library.

use std::collections::VecDeque;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lock;

/// Most messages that wait for the service manager; the oldest are dropped.
const MOST_WAITING: usize = 64;
/// Interval between two attempts while the service manager accepts nothing.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The connection to the service manager; does nothing if there is none.
///
/// No caller waits for it. Messages that it does not accept at once (it is busy, or other services send a
/// lot) go to a thread that may wait: a service whose READY=1 is lost is killed after a while, and one whose
/// MAINPID is lost is started a second time.
#[derive(Debug, Default)]
pub struct Notifier {
    line: Option<Arc<Line>>,
    watchdog: Option<Duration>,
}

/// Queued messages, in order.
#[derive(Debug)]
struct Line {
    socket: UnixDatagram,
    state: Mutex<Waiting>,
    all_sent: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<String>,
    has_thread: bool,
}

impl Notifier {
    /// From `$NOTIFY_SOCKET` and `$WATCHDOG_USEC`, as the service manager set them.
    pub fn from_environment() -> Notifier {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable("WATCHDOG_USEC").filter(|_| ours).and_then(|usec| usec.parse().ok());
        Notifier {
            line: variable("NOTIFY_SOCKET").and_then(|path| connect(&path).ok()).map(Line::of),
            // Twice per period, as sd_watchdog_enabled(3) recommends.
            watchdog: watchdog
                .map(|usec: u64| Duration::from_micros(usec) / 2)
                .filter(|period| !period.is_zero()),
        }
    }

    /// Whether there is a service manager.
    pub fn has_manager(&self) -> bool {
        self.line.is_some()
    }

    /// How often to call [`Self::alive`]; `None` without a watchdog.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that the service is ready. `status` is one line for `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that a reload begins; [`Self::ready`] ends it. `Type=notify-reload` requires the time stamp.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading"));
    }

    /// Reports that the process drains before it exits.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Reports that another process is the main process from now on.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\nREADY=1"));
    }

    /// Resets the watchdog.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Waits until the service manager has accepted all messages; `false` if that takes longer than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        let Some(line) = &self.line else { return true };
        let waits = |waiting: &mut Waiting| !waiting.messages.is_empty();
        let waited = line.all_sent.wait_timeout_while(lock(&line.state), limit, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn send(&self, message: &str) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }
}

impl Line {
    fn of(socket: UnixDatagram) -> Arc<Line> {
        Arc::new(Line { socket, state: Mutex::default(), all_sent: Condvar::new() })
    }

    fn send(self: &Arc<Self>, message: &str) {
        let mut waiting = lock(&self.state);
        // If the service manager does not listen, that is no reason to stop serving.
        if waiting.messages.is_empty() && !is_full(&self.socket.send(message.as_bytes())) {
            return;
        }
        if waiting.messages.back().is_some_and(|last| last == message) {
            return;
        }
        if waiting.messages.len() >= MOST_WAITING {
            waiting.messages.pop_front();
        }
        waiting.messages.push_back(message.to_owned());
        if !waiting.has_thread {
            let line = self.clone();
            let thread = std::thread::Builder::new().name("weir-notify".to_owned());
            waiting.has_thread = thread.spawn(move || line.send_on()).is_ok();
        }
    }

    /// The main function of the thread, which exists as long as messages wait.
    fn send_on(&self) {
        loop {
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&LOOK));
            let mut waiting = lock(&self.state);
            while let Some(first) = waiting.messages.front() {
                if is_full(&self.socket.send(first.as_bytes())) {
                    break;
                }
                waiting.messages.pop_front();
            }
            if waiting.messages.is_empty() {
                waiting.has_thread = false;
                self.all_sent.notify_all();
                return;
            }
        }
    }
}

/// Whether a message would be accepted later.
fn is_full(sent: &io::Result<usize>) -> bool {
    sent.as_ref().is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
    })
}

fn connect(path: &str) -> io::Result<UnixDatagram> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_hears_each_state_in_its_words() {
        let name = format!("weir-notify-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let line = Some(Line::of(connect(&format!("@{name}")).unwrap()));
        let notifier = Notifier { line, watchdog: None };
        let hear = || {
            let mut message = [0; 256];
            let length = manager.recv(&mut message).unwrap();
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        notifier.ready("2 listeners");
        assert_eq!(hear(), "READY=1\nSTATUS=2 listeners");
        notifier.reloading();
        let reloading = hear();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        notifier.main_process(4711);
        assert_eq!(hear(), "MAINPID=4711\nREADY=1");
        notifier.stopping("draining");
        assert_eq!(hear(), "STOPPING=1\nSTATUS=draining");
    }

    /// READY=1 was lost where the manager's queue was full, and the service with it.
    #[test]
    fn what_a_busy_service_manager_does_not_take_at_once_it_gets_in_order_later() {
        let name = format!("weir-notify-busy-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Each sender has a limit of its own, below that of the queue.
        let others: Vec<_> = (0..8).map(|_| connect(&format!("@{name}")).unwrap()).collect();
        let mut fill = 0;
        for other in &others {
            while other.send(b"of others").is_ok() {
                fill += 1;
            }
        }
        let line = Some(Line::of(connect(&format!("@{name}")).unwrap()));
        let notifier = Notifier { line, watchdog: None };
        notifier.ready("1");
        notifier.alive();
        notifier.alive();
        notifier.main_process(7);
        assert!(!notifier.finish(Duration::from_millis(1)), "nobody has read");
        let mut heard = Vec::new();
        while heard.len() < fill + 3 {
            let mut message = [0; 256];
            let length = manager.recv(&mut message).unwrap();
            heard.push(String::from_utf8_lossy(&message[..length]).into_owned());
        }
        assert_eq!(heard[fill..], ["READY=1\nSTATUS=1", "WATCHDOG=1", "MAINPID=7\nREADY=1"]);
        assert!(notifier.finish(Duration::from_secs(10)));
    }

    #[test]
    fn without_a_service_manager_nothing_happens() {
        Notifier::default().ready("nobody listens");
    }
}
