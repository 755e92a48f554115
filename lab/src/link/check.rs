//! Measures what a line does to packets: numbered datagrams show its loss and delay, and a TCP stream its
//! throughput.
//!
//! Both ends run in this process, so one clock serves both and a one-way delay needs no guess.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::LinkCounters;
use super::impairment::Impairment;
use crate::addresses::Family;
use crate::namespace;
use crate::process::Placement;
use crate::statistics::latency_percentile;
use crate::wiring::{Impairer, Impairments, Wiring};

/// The results of datagrams in one direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that came, each counted once.
    pub received: u64,
    /// Datagrams that came after one that was sent later.
    pub reordered: u64,
    /// Share lost (percent).
    pub loss_percent: f64,
    /// Least, median and 99th percentile of the one-way delay (microseconds).
    pub delay_us: [u32; 3],
}

/// The results for a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finding {
    /// What impaired the line: `netem` or `emulator`.
    pub by: String,
    /// Delay asked for towards the client (milliseconds).
    pub asked_delay_ms: f64,
    /// Loss asked for towards the client (percent).
    pub asked_loss_percent: f64,
    /// Towards the client, the impaired direction.
    pub to_client: Datagrams,
    /// Towards the load balancer, where nothing was asked for.
    pub to_balancer: Datagrams,
    /// Throughput of one TCP stream towards the client (megabits per second), all of whose bytes were
    /// correct.
    pub stream_mbit_per_second: f64,
    /// The emulator's counters; `None` for netem, which has none.
    pub counters: Option<LinkCounters>,
}

/// How much a line is checked.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Datagrams in each direction.
    pub datagrams: u64,
    /// Datagrams a second.
    pub rate: u32,
    /// How long the stream runs.
    pub stream: Duration,
}

/// Makes a line with `impairer` and `asked` towards the client, and measures it. Needs root.
pub fn run(impairer: Impairer, asked: Impairment, effort: Effort, directory: &Path) -> io::Result<Finding> {
    let impairments = Impairments { to_client: asked, to_balancer: Impairment::NONE, seed: 1 };
    let placement = Placement { core: None, nice: -10, realtime: false };
    let wiring = Wiring::build(Family::Ipv4, 0, Some((impairer, impairments)), placement, directory)?;
    let [client, balancer] = [wiring.client.path(), wiring.balancer.path()];
    let to_client = datagrams(&balancer, (&client, Family::Ipv4.client()), effort)?;
    let to_balancer = datagrams(&client, (&balancer, Family::Ipv4.virtual_address(0)), effort)?;
    let stream_mbit_per_second =
        stream((&balancer, Family::Ipv4.virtual_address(0)), &client, effort.stream)?;
    Ok(Finding {
        by: format!("{impairer:?}").to_lowercase(),
        asked_delay_ms: asked.delay.as_secs_f64() * 1e3,
        asked_loss_percent: asked.loss * 100.0,
        to_client,
        to_balancer,
        stream_mbit_per_second,
        counters: wiring.finish()?,
    })
}

/// Sends datagrams from one namespace to `address` in another.
fn datagrams(from: &str, (to, address): (&str, IpAddr), effort: Effort) -> io::Result<Datagrams> {
    /// Longest time that a datagram may be on its way.
    const PATIENCE: Duration = Duration::from_millis(500);
    let origin = Instant::now();
    let (announce, announced) = mpsc::channel();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || -> io::Result<Vec<(u64, u32)>> {
            namespace::enter(to)?;
            let socket = UdpSocket::bind((address, 0))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            // Room for everything that can arrive while this thread has no processor, or its losses would
            // count as the line's.
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20)?;
            let _ = announce.send(socket.local_addr()?.port());
            let (mut arrivals, mut datagram) = (Vec::new(), [0; 64]);
            // The first datagram has no deadline but the sender's.
            while let Ok(length) = socket.recv(&mut datagram) {
                let now = origin.elapsed().as_nanos() as u64;
                let fields = datagram[..length].split_first_chunk().and_then(|(number, rest)| {
                    Some((u64::from_be_bytes(*number), u64::from_be_bytes(*rest.first_chunk()?)))
                });
                let Some((number, sent)) = fields else { continue };
                arrivals.push((number, u32::try_from((now - sent) / 1000).unwrap_or(u32::MAX)));
            }
            Ok(arrivals)
        });
        let sender = scope.spawn(move || -> io::Result<()> {
            namespace::enter(from)?;
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            let port = announced.recv().map_err(|_| io::Error::other("the receiver did not start"))?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((address, port))?;
            let begin = Instant::now();
            for number in 0..effort.datagrams {
                let due = begin + Duration::from_secs(number) / effort.rate;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let sent = origin.elapsed().as_nanos() as u64;
                let mut datagram = [0; 64];
                datagram[..8].copy_from_slice(&number.to_be_bytes());
                datagram[8..16].copy_from_slice(&sent.to_be_bytes());
                socket.send(&datagram)?;
            }
            Ok(())
        });
        sender.join().map_err(|_| io::Error::other("the sender of datagrams panicked"))??;
        let arrivals =
            receiver.join().map_err(|_| io::Error::other("the receiver of datagrams panicked"))??;
        Ok(summed_up(effort.datagrams, &arrivals))
    })
}

/// Sums up `arrivals` (number and delay in microseconds, in the order of arrival) of `sent` datagrams.
fn summed_up(sent: u64, arrivals: &[(u64, u32)]) -> Datagrams {
    let mut delays: Vec<u32> = arrivals.iter().map(|(_, delay)| *delay).collect();
    let mut newest = None;
    let mut reordered = 0;
    for (number, _) in arrivals {
        if newest > Some(*number) {
            reordered += 1;
        }
        newest = newest.max(Some(*number));
    }
    let received = arrivals.len() as u64;
    let delay_us = [0.0, 0.5, 0.99].map(|share| latency_percentile(&mut delays, share).unwrap_or_default());
    let loss_percent = (sent - received) as f64 * 100.0 / sent as f64;
    Datagrams { sent, received, reordered, loss_percent, delay_us }
}

/// Sends a TCP stream from a listener in one namespace to a reader in another, for `length`; gives the rate
/// (Mbit/s). Err when a byte is not the one that was sent.
fn stream((from, address): (&str, IpAddr), to: &str, length: Duration) -> io::Result<f64> {
    const PIECE: usize = 251 * 512;
    let (announce, announced) = mpsc::channel();
    // 251 is prime, so a piece that is lost, doubled or moved is noticed.
    let pattern: Vec<u8> = (0..PIECE).map(|index| (index % 251) as u8).collect();
    let pattern = &pattern;
    thread::scope(|scope| {
        scope.spawn(move || -> io::Result<()> {
            namespace::enter(from)?;
            let listener = TcpListener::bind((address, 0))?;
            let _ = announce.send(listener.local_addr()?.port());
            let (mut reader, _) = listener.accept()?;
            // Ends when the reader has seen enough and closes.
            while reader.write_all(pattern).is_ok() {}
            Ok(())
        });
        let reader = scope.spawn(move || -> io::Result<f64> {
            namespace::enter(to)?;
            let port =
                announced.recv().map_err(|_| io::Error::other("the sender of the stream did not start"))?;
            let mut stream = TcpStream::connect(SocketAddr::new(address, port))?;
            let (mut received, mut buffer) = (0_usize, vec![0; PIECE]);
            let begin = Instant::now();
            while begin.elapsed() < length {
                let count = stream.read(&mut buffer)?;
                let place = received % 251;
                let expected = pattern[place..].iter().chain(pattern.iter()).take(count);
                if count == 0 || !buffer[..count].iter().eq(expected) {
                    return Err(io::Error::other(format!(
                        "the stream is not what was sent after {received} bytes"
                    )));
                }
                received += count;
            }
            Ok(received as f64 * 8.0 / 1e6 / begin.elapsed().as_secs_f64())
        });
        reader.join().map_err(|_| io::Error::other("the reader of the stream panicked"))?
    })
}

/// Findings as a table for people.
pub fn table(findings: &[Finding]) -> String {
    let mut text = "| made by | asked | loss % | least delay ms | median | p99 | other way loss % | median ms | reordered | stream Mbit/s |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for finding in findings {
        let ms = |us: u32| format!("{:.3}", f64::from(us) / 1e3);
        let there = &finding.to_client;
        let cells = [
            finding.by.clone(),
            format!("{} ms, {} %", finding.asked_delay_ms, finding.asked_loss_percent),
            format!("{:.2}", there.loss_percent),
            ms(there.delay_us[0]),
            ms(there.delay_us[1]),
            ms(there.delay_us[2]),
            format!("{:.2}", finding.to_balancer.loss_percent),
            ms(finding.to_balancer.delay_us[1]),
            (there.reordered + finding.to_balancer.reordered).to_string(),
            format!("{:.0}", finding.stream_mbit_per_second),
        ];
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_tell_loss_order_and_delay() {
        let arrivals = [(0, 100), (2, 300), (1, 200), (4, 400)];
        let expected =
            Datagrams { sent: 5, received: 4, reordered: 1, loss_percent: 20.0, delay_us: [100, 200, 400] };
        assert_eq!(summed_up(5, &arrivals), expected);
        assert_eq!(summed_up(5, &[]).loss_percent, 100.0);
    }
}
