//! Address of a connection's client: those that it has proved, and those that it has not (RFC 9000 §8.2,
//! §9; row C8).

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Inner};

/// A path that is still to be proved gets no more than three times what came from it, but for a few datagrams
/// in this time: the protocol pads its challenge to 1,200 bytes, which short packets of a client behind a new
/// address translation would not allow, and any of them may be lost on the way.
const FREE_INTERVAL: Duration = Duration::from_secs(10);
/// Free datagrams in an interval to a host that the client has proved to be at, until it proves a port there
/// once more: a translation that forgets it gives it another again and again.
const FREE_TO_PROVED_HOST: u32 = 8;
/// Free datagrams of one connection in an interval to hosts where the client has proved nothing. The protocol
/// spaces those to one that does not answer: by three probe timeouts, or by 400 bytes more from there.
const FREE_TO_OTHERS: u32 = 4;
/// The same of all connections of a worker together in a second, 240 kB: whoever names addresses of others
/// has no use of it, however many connections he has.
const FREE_PER_WORKER: u32 = 200;
const WORKER_INTERVAL: Duration = Duration::from_secs(1);
/// Hosts that a client has proved to be at, and that are remembered: who goes back and forth between two
/// networks is challenged at once.
const PROVED_HOSTS: usize = 4;

/// Datagrams that were sent for nothing in return.
#[derive(Clone, Copy, Default)]
pub(crate) struct FreeDatagrams {
    since: Option<Instant>,
    count: u32,
}

/// An address that packets come from and nobody has answered from yet.
struct UnprovedPath {
    address: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
}

/// A host at which the client has answered.
struct ProvedHost {
    host: IpAddr,
    /// Sent to ports of it that are not proved, since it answered last.
    free: FreeDatagrams,
}

/// Where a connection's client has been, or is said to be.
#[derive(Default)]
pub(crate) struct ClientPaths {
    unproved: Option<UnprovedPath>,
    /// The last one is at the end. Empty for a client that never moved.
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
    /// A datagram came from an address that is not the client's.
    fn note_received(&mut self, remote: SocketAddr, bytes: usize) {
        match &mut self.unproved {
            Some(path) if path.address == remote => path.received_bytes += bytes as u64,
            path => {
                *path = Some(UnprovedPath { address: remote, received_bytes: bytes as u64, sent_bytes: 0 })
            }
        }
    }

    /// Whether an address gets `bytes` that is not `client`'s, which counts them. `None` where it is none
    /// that something came from last: the one before, which was proved, or one that sent nothing that
    /// counted.
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

    /// Takes leave for a datagram beyond what came from there; false where there is none left.
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

    /// A client that was at `before` has answered at `host`.
    fn note_proved(&mut self, before: IpAddr, host: IpAddr) {
        self.remember(before);
        self.remember(host).free = FreeDatagrams::default();
    }

    /// Makes sure that a host is the last one of those that are proved.
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
    /// A datagram came from `remote`.
    pub(crate) fn note_received(&self, remote: SocketAddr, bytes: usize, now: Instant) {
        self.heard_at.set(now);
        if remote != self.client.get() {
            self.paths.borrow_mut().note_received(remote, bytes);
        }
    }

    /// Whether `bytes` may go to `destination`, which counts them. What may not is as good as lost on the
    /// way.
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

    /// Counts that would have to change for a packet to prove nothing about the path: challenges and probes
    /// sent so far. `None` when the path is the one that is proved already.
    pub(crate) fn unproved(&self, inner: &Inner) -> Option<(u64, u64)> {
        if inner.quic.remote_address() == self.client.get() {
            return None;
        }
        let stats = inner.quic.stats();
        Some((stats.frame_tx.path_challenge, stats.path.sent_plpmtud_probes))
    }

    /// A packet was sent to `destination` while the path was not proved, with `before` from just before it.
    /// Every packet on a path that is still to be proved carries a challenge; one without tells that the
    /// client has answered.
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
