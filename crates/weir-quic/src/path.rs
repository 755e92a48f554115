//! Addresses of a connection's client: those it has proved and those it has not (RFC 9000 §8.2, §9; row C8).

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Inner};

/// On an unproved path we send at most three times what was received from it, plus a few free datagrams in
/// each such interval. The protocol pads its path challenge to 1,200 bytes, for which short packets from a
/// client behind a new NAT mapping would not suffice, and any of them may be lost.
const FREE_INTERVAL: Duration = Duration::from_secs(10);
/// Free datagrams per interval to a host that the client has proved, until it proves a port there again: a
/// NAT that keeps forgetting the mapping assigns new ports again and again.
const FREE_TO_PROVED_HOST: u32 = 8;
/// Free datagrams per interval, for one connection, to hosts where the client has proved nothing. The
/// protocol spaces those to a host that does not answer by three probe timeouts, or by 400 more bytes
/// received from there.
const FREE_TO_OTHERS: u32 = 4;
/// The same for all connections of a worker together, per second; 240 kB. It makes naming other hosts'
/// addresses useless to an attacker, however many connections it has.
const FREE_PER_WORKER: u32 = 200;
const WORKER_INTERVAL: Duration = Duration::from_secs(1);
/// Proved hosts to remember per client: a client that switches between two networks is challenged at once.
const PROVED_HOSTS: usize = 4;

/// Datagrams sent beyond what was received from an address.
#[derive(Clone, Copy, Default)]
pub(crate) struct FreeDatagrams {
    since: Option<Instant>,
    count: u32,
}

/// An address that packets came from, but from which no challenge has been answered.
struct UnprovedPath {
    address: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
}

/// A host from which the client has answered a challenge.
struct ProvedHost {
    host: IpAddr,
    /// Sent to unproved ports of the host since the last answer from there.
    free: FreeDatagrams,
}

/// Where a connection's client has been, or claims to be.
#[derive(Default)]
pub(crate) struct ClientPaths {
    unproved: Option<UnprovedPath>,
    /// The most recent one is last. Empty for a client that never moved.
    proved: Vec<ProvedHost>,
    free_to_others: FreeDatagrams,
}

impl FreeDatagrams {
    fn sent(self, interval: Duration, now: Instant) -> u32 {
        self.since.filter(|since| now < *since + interval).map_or(0, |_| self.count)
    }

    fn add(&mut self, interval: Duration, now: Instant) {
        let sent = self.sent(interval, now);
        *self = FreeDatagrams { since: self.since.filter(|_| sent > 0).or(Some(now)), count: sent + 1 };
    }
}

impl ClientPaths {
    /// Counts a datagram that came from an address other than the client's.
    fn note_received(&mut self, remote: SocketAddr, bytes: usize) {
        match &mut self.unproved {
            Some(path) if path.address == remote => path.received_bytes += bytes as u64,
            path => {
                *path = Some(UnprovedPath { address: remote, received_bytes: bytes as u64, sent_bytes: 0 })
            }
        }
    }

    /// Whether `bytes` may be sent to an address other than `client`; if so they are counted. `None` if it is
    /// not the address that something last came from: it may be the previous, proved one, or one from which
    /// no valid packet came.
    fn may_send(
        &mut self,
        client: IpAddr,
        destination: SocketAddr,
        bytes: usize,
        now: Instant,
        of_worker: &Cell<FreeDatagrams>,
    ) -> Option<bool> {
        let path = self.unproved.as_ref().filter(|path| path.address == destination)?;
        let wanted = path.sent_bytes + bytes as u64;
        let may =
            wanted <= 3 * path.received_bytes || self.take_free(client, destination.ip(), now, of_worker);
        if let Some(path) = self.unproved.as_mut().filter(|_| may) {
            path.sent_bytes = wanted;
        }
        Some(may)
    }

    /// Uses one of the free datagrams; false if none is left.
    fn take_free(
        &mut self,
        client: IpAddr,
        host: IpAddr,
        now: Instant,
        of_worker: &Cell<FreeDatagrams>,
    ) -> bool {
        if host == client {
            self.remember(client);
        }
        if let Some(proved) = self.proved.iter_mut().find(|proved| proved.host == host) {
            let may = proved.free.sent(FREE_INTERVAL, now) < FREE_TO_PROVED_HOST;
            if may {
                proved.free.add(FREE_INTERVAL, now);
            }
            return may;
        }
        let mut of_all = of_worker.get();
        let may = self.free_to_others.sent(FREE_INTERVAL, now) < FREE_TO_OTHERS
            && of_all.sent(WORKER_INTERVAL, now) < FREE_PER_WORKER;
        if may {
            self.free_to_others.add(FREE_INTERVAL, now);
            of_all.add(WORKER_INTERVAL, now);
            of_worker.set(of_all);
        }
        may
    }

    /// A client that was at `before` has answered a challenge from `host`.
    fn note_proved(&mut self, before: IpAddr, host: IpAddr) {
        self.remember(before);
        self.remember(host).free = FreeDatagrams::default();
    }

    /// Makes a host the last of the proved ones.
    fn remember(&mut self, host: IpAddr) -> &mut ProvedHost {
        let known = self.proved.iter().position(|proved| proved.host == host);
        let proved = match known {
            Some(place) => self.proved.remove(place),
            None => ProvedHost { host, free: FreeDatagrams::default() },
        };
        if self.proved.len() == PROVED_HOSTS {
            self.proved.remove(0);
        }
        self.proved.push(proved);
        let last = self.proved.len() - 1;
        &mut self.proved[last]
    }
}

impl Connection {
    /// Counts a datagram from `remote`.
    pub(crate) fn note_received(&self, remote: SocketAddr, bytes: usize, now: Instant) {
        self.heard_at.set(now);
        if remote != self.client.get() {
            self.paths.borrow_mut().note_received(remote, bytes);
        }
    }

    /// Whether `bytes` may be sent to `destination`; if so they are counted. A datagram that may not be sent
    /// is treated as lost.
    pub(crate) fn may_send(&self, destination: SocketAddr, bytes: usize, now: Instant) -> bool {
        let client = self.client.get();
        if destination == client {
            return true;
        }
        let of_worker = &self.driver.free_datagrams;
        let may = self.paths.borrow_mut().may_send(client.ip(), destination, bytes, now, of_worker);
        if may == Some(false) {
            self.driver.counts().withheld();
        }
        may.unwrap_or(false)
    }

    /// The numbers of challenges and probes sent so far: if neither changes with the next packet, the path is
    /// proved. `None` when the path was already proved.
    pub(crate) fn unproved(&self, inner: &Inner) -> Option<(u64, u64)> {
        if inner.quic.remote_address() == self.client.get() {
            return None;
        }
        let stats = inner.quic.stats();
        Some((stats.frame_tx.path_challenge, stats.path.sent_plpmtud_probes))
    }

    /// A packet was sent to `destination` while the path was unproved; `before` is from just before it. Every
    /// packet on an unproved path carries a challenge, so one without means that the client has answered.
    pub(crate) fn note_path(&self, inner: &Inner, destination: SocketAddr, before: (u64, u64)) {
        let path = inner.quic.remote_address();
        if destination == path && !inner.quic.is_closed() && self.unproved(inner) == Some(before) {
            tracing::debug!(from = %self.client.get(), to = %path, "quic client moved");
            self.paths.borrow_mut().note_proved(self.client.get().ip(), path.ip());
            self.client.set(path);
            self.driver.counts().migrated();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: &str = "198.51.100.1:1000";
    const AWAY: &str = "203.0.113.1:1000";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A client of a worker of its own.
    #[derive(Default)]
    struct Mover {
        paths: ClientPaths,
        of_worker: Cell<FreeDatagrams>,
    }

    impl Mover {
        /// Whether a short packet from `from` may be answered by a challenge.
        fn is_challenged(&mut self, from: &str, now: Instant) -> bool {
            self.paths.note_received(address(from), 40);
            self.may_get(from, 1_200, now).unwrap()
        }

        fn may_get(&mut self, to: &str, bytes: usize, now: Instant) -> Option<bool> {
            self.paths.may_send(address(HOME).ip(), address(to), bytes, now, &self.of_worker)
        }

        /// How many of as many as that are in a row.
        fn challenges(&mut self, from: &str, now: Instant) -> usize {
            (0..100).take_while(|_| self.is_challenged(from, now)).count()
        }
    }

    #[test]
    fn another_host_gets_a_few_free_challenges_however_often_it_is_named() {
        let (mut client, start) = (Mover::default(), Instant::now());
        assert_eq!(client.challenges(AWAY, start), 4);
        assert_eq!(client.challenges("203.0.113.2:1000", start), 0, "nor does the next host");
        assert!(!client.is_challenged(AWAY, start + Duration::from_secs(9)));
        assert_eq!(client.challenges(AWAY, start + Duration::from_secs(10)), 4);
    }

    #[test]
    fn whoever_sends_enough_needs_nothing_for_free() {
        let (mut client, start) = (Mover::default(), Instant::now());
        assert_eq!(client.challenges(AWAY, start), 4);
        client.paths.note_received(address(AWAY), 1_600);
        assert_eq!(client.may_get(AWAY, 300, start), Some(true));
        assert_eq!(client.may_get(AWAY, 1_200, start), Some(false));
        assert_eq!(client.may_get("203.0.113.2:1000", 1, start), None, "nothing came from there");
    }

    #[test]
    fn all_connections_of_a_worker_together_send_other_hosts_no_more_than_its_rate() {
        let (mut client, start) = (Mover::default(), Instant::now());
        let mut sent = 0;
        for _ in 0..100 {
            sent += client.challenges(AWAY, start);
            client.paths = ClientPaths::default();
        }
        assert_eq!(sent, 200);
        assert_eq!(client.challenges("198.51.100.1:2000", start), 8, "hosts that are proved are no others");
        assert_eq!(client.challenges(AWAY, start + Duration::from_secs(1)), 4);
    }

    #[test]
    fn a_host_that_is_proved_gets_more_and_all_of_it_anew_when_it_answers() {
        let (mut client, start) = (Mover::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(client.challenges("198.51.100.1:2000", start), 8);
            client.paths.note_proved(address(HOME).ip(), address(HOME).ip());
        }
        client.paths.note_proved(address(HOME).ip(), address(AWAY).ip());
        assert_eq!(client.challenges(AWAY, start), 8);
        assert_eq!(client.challenges(HOME, start), 8, "also the one before");
        client.paths.note_proved(address(AWAY).ip(), address(AWAY).ip());
        assert_eq!(client.challenges("203.0.113.1:7", start), 8);
        assert_eq!(client.challenges("198.51.100.1:3000", start), 0, "what one answers is not the other's");
    }

    #[test]
    fn no_more_than_a_few_hosts_are_remembered() {
        let (mut client, start) = (Mover::default(), Instant::now());
        for number in 0..50 {
            let [before, host] = [number, number + 1].map(|last| IpAddr::from([203, 0, 113, last]));
            client.paths.note_proved(before, host);
        }
        assert_eq!(client.paths.proved.len(), 4);
        assert_eq!(client.challenges("203.0.113.47:1", start), 8);
        assert_eq!(client.challenges("203.0.113.46:1", start), 4, "an other by now");
    }
}
