//! An emulated line between two network namespaces, with delay and loss, for kernels without netem.
//!
//! Each end is a TUN device in one namespace. This process carries the packets between them, one thread per
//! direction, and treats each packet as [`impairment`] decides. The kernel hands over packets of at most one
//! MTU each, so a loss is the loss of one packet on the wire, as on a real line. (netem on a device with
//! segmentation offload loses a whole train of up to 64 KiB at once.)

pub mod check;
pub mod impairment;
mod tun;

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::namespace::enter;
use impairment::{Counters, Impairment, Line};

/// The device's name in both namespaces.
pub const DEVICE: &str = "wire";
/// Longest packet that is read. The device announces no offload, so the kernel never sends a packet longer
/// than its MTU.
const PACKET_BYTES: usize = 9216;
/// Most packets read before due packets are sent.
const TURN_PACKETS: usize = 64;

/// What became of the packets of both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// From the first namespace (the client's) to the second.
    pub forth: Counters,
    /// From the second to the first.
    pub back: Counters,
}

/// Carries packets between a device in the namespace `first` and one in `second` (paths such as
/// `/proc/PID/ns/net`) until standard input ends; then prints the counters as JSON. Prints `ready` when the
/// devices exist.
pub fn serve([first, second]: [&str; 2], forth: Impairment, back: Impairment, seed: u64) -> io::Result<()> {
    let [one, other] = [device_in(first)?, device_in(second)?];
    println!("ready");
    io::stdout().flush()?;
    let stop = AtomicBool::new(false);
    // Each direction has its own random draws; otherwise the losses of one would depend on the traffic of the
    // other.
    let mut lines = [Line::new(forth, seed), Line::new(back, seed ^ 0xffff_ffff)];
    let [line_forth, line_back] = &mut lines;
    thread::scope(|scope| -> io::Result<()> {
        let carriers = [
            scope.spawn(|| carry(&one, &other, line_forth, &stop)),
            scope.spawn(|| carry(&other, &one, line_back, &stop)),
        ];
        let ended = io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
        for carrier in carriers {
            carrier.join().map_err(|_| io::Error::other("a carrier of packets panicked"))??;
        }
        ended.map(|_| ())
    })?;
    let mut counters = LinkCounters { forth: lines[0].counters(), back: lines[1].counters() };
    counters.forth.overrun = dropped_in(first)?;
    counters.back.overrun = dropped_in(second)?;
    println!("{}", serde_json::to_string(&counters)?);
    io::stdout().flush()
}

fn device_in(namespace: &str) -> io::Result<File> {
    enter(namespace)?;
    tun::open(DEVICE)
}

/// Packets that the kernel dropped because the queue that this process reads from was full.
fn dropped_in(namespace: &str) -> io::Result<u64> {
    enter(namespace)?;
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    transmit_drops(&table, DEVICE)
        .ok_or_else(|| io::Error::other(format!("/proc/net/dev has no line for {DEVICE}")))
}

/// The count of packets dropped on sending in the line of `device` of `/proc/net/dev`.
fn transmit_drops(table: &str, device: &str) -> Option<u64> {
    // Eight columns for what was received, then bytes, packets, errors, drops of what was sent.
    const DROPS: usize = 11;
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(DROPS)?.parse().ok()
}

fn carry(from: &File, to: &File, line: &mut Line, stop: &AtomicBool) -> io::Result<()> {
    /// How often it checks whether to stop.
    const LOOK: Duration = Duration::from_millis(50);
    // By default the kernel may wake a sleeper 50 us late to save power.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let origin = Instant::now();
    let mut buffer = vec![0; PACKET_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let mut full = true;
        for _ in 0..TURN_PACKETS {
            match rustix::io::read(from, &mut buffer[..]) {
                Ok(length) => line.enter(origin.elapsed(), &buffer[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    full = false;
                    break;
                }
                // The device is not up yet, or no longer up.
                Err(Errno::IO | Errno::BADFD) => {
                    full = false;
                    thread::sleep(Duration::from_millis(1));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // A packet that the other namespace does not accept is lost, as on a wire.
        let now = origin.elapsed();
        while line.leave(now, |packet| {
            let _ = rustix::io::write(to, packet);
        }) {}
        if full {
            continue;
        }
        let until =
            line.next_departure().map_or(LOOK, |departure| departure.saturating_sub(origin.elapsed()));
        let patience = Timespec { tv_sec: 0, tv_nsec: until.min(LOOK).as_nanos() as i64 };
        match rustix::event::poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_what_was_sent_are_read_from_the_table_of_devices() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|\
                     bytes packets errs drop fifo colls carrier compressed\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                     wire: 100 2 0 5 0 0 0 0 200 4 0 77 0 0 0 0\n";
        assert_eq!(transmit_drops(table, "wire"), Some(77));
        assert_eq!(transmit_drops(table, "lo"), Some(12));
        assert_eq!(transmit_drops(table, "wir"), None);
    }
}
