//! Tells systemd what state the service is in: the datagram protocol of `sd_notify(3)`, without its library.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The way to the service manager; does nothing when there is none.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// From `$NOTIFY_SOCKET` and `$WATCHDOG_USEC`, as the service manager set them.
    pub fn from_environment() -> Notifier {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable("WATCHDOG_USEC").filter(|_| ours).and_then(|usec| usec.parse().ok());
        Notifier {
            socket: variable("NOTIFY_SOCKET").and_then(|path| connect(&path).ok()),
            // Twice per period, as sd_watchdog_enabled(3) advises.
            watchdog: watchdog
                .map(|usec: u64| Duration::from_micros(usec) / 2)
                .filter(|period| !period.is_zero()),
        }
    }

    /// How often to call [`Self::alive`]; `None` when nobody watches.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Serving. `status` is one line for `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// A reload begins; [`Self::ready`] ends it. The time stamp is what `Type=notify-reload` waits for.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading"));
    }

    /// Draining before exit.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Another process is the service from now on.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\nREADY=1"));
    }

    /// Still working.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        // A service manager that does not listen is no reason to stop serving.
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }
}

fn connect(path: &str) -> std::io::Result<UnixDatagram> {
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
        let notifier = Notifier { socket: Some(connect(&format!("@{name}")).unwrap()), watchdog: None };
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

    #[test]
    fn without_a_service_manager_nothing_happens() {
        Notifier::default().ready("nobody listens");
    }
}
