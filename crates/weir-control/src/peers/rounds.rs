//! Who is there, and who is told what.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use weir_io::clock;
use weir_proxy::compiled::{CompiledSnapshot, LimitLook, SharedLimit};

use super::outbox::frames_of;
use super::tell::Peer;
use super::wire::Frame;
use super::{Common, hear, tell, wire};
use crate::{lock, tasks};

/// How often others are told.
const ROUND: Duration = Duration::from_millis(100);
/// Looks for debts of one round and one peer (count); then others get their turn.
const LOOKS: usize = 64;
/// How long to wait before trying again to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Follows the config and tells the others, until the process ends.
pub(super) async fn keep(common: Arc<Common>) {
    let mut telling = PeerRounds::default();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !common.ends.load(Relaxed) {
        tokio::select! {
            _ = rounds.tick() => {}
            () = common.changed.notified() => {}
        }
        telling.follow(&common);
        telling.listen(&common);
        let is_more = telling.round(&common);
        common.rounds.fetch_add(1, Relaxed);
        if is_more {
            common.changed.notify_one();
            // Those who send and receive get their turn.
            tokio::task::yield_now().await;
        }
    }
}

#[derive(Default)]
struct PeerRounds {
    compiled: Option<Arc<CompiledSnapshot>>,
    is_succeeded: bool,
    /// The seed of the limits, and whose certificates are believed.
    known: Option<([u64; 2], [u8; 32])>,
    limits: Vec<SharedLimit>,
    tellers: Vec<Teller>,
    listener: Option<(SocketAddr, JoinHandle<()>)>,
    /// When to try again to listen.
    again_at: Duration,
}

/// The connection to another Weir. Ends with this.
struct Teller {
    peer: Arc<Peer>,
    task: JoinHandle<()>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.task.abort();
        self.peer.outbox.close();
    }
}

impl Drop for PeerRounds {
    fn drop(&mut self) {
        self.stop_listening();
    }
}

impl PeerRounds {
    /// Takes up another config, if there is one.
    fn follow(&mut self, common: &Arc<Common>) {
        let is_succeeded = common.is_succeeded.load(Relaxed);
        let Some(compiled) = (common.compiled)() else { return };
        let is_same = self.compiled.as_ref().is_some_and(|before| Arc::ptr_eq(before, &compiled));
        if is_same && is_succeeded == self.is_succeeded {
            return;
        }
        self.is_succeeded = is_succeeded;
        let keys = compiled.snapshot.peer_keys.clone();
        let known = keys.as_ref().map(|keys| (keys.seed, keys.trust));
        if known != self.known {
            // With the old secret nobody is known any more, and who had a certificate may have it no more.
            self.tellers.clear();
            self.stop_listening();
            self.known = known;
        }
        *lock(&common.keys) = keys;
        self.take_limits(common, limits_of(&compiled));
        self.compiled = Some(compiled);
        self.take_peers(common);
    }

    fn take_limits(&mut self, common: &Common, limits: Vec<SharedLimit>) {
        let mut pairs = self.limits.iter().zip(&limits);
        if self.limits.len() == limits.len() && pairs.all(|(one, other)| one.is_same(other)) {
            return;
        }
        let by_id: HashMap<_, _> = limits.iter().map(|limit| (limit.id, limit.clone())).collect();
        *lock(&common.limits) = Arc::new(by_id);
        self.limits = limits;
        self.tellers.iter().for_each(|teller| teller.peer.outbox.tell_again());
        common.limits_generation.send_modify(|generation| *generation += 1);
    }

    fn take_peers(&mut self, common: &Arc<Common>) {
        let config = self.compiled.as_ref().and_then(|compiled| compiled.snapshot.config.peers.as_ref());
        let mut addresses: Vec<String> = config.map_or_else(Vec::new, |config| config.addresses.clone());
        if let (true, Some(config)) = (self.is_succeeded, config) {
            // What was this process is the one that has taken over, which comes last.
            let own = own_address(config.bind).to_string();
            let of_own = self.tellers.iter().filter(|teller| teller.peer.is_own());
            let owns: Vec<String> = of_own.map(|teller| teller.peer.address.clone()).collect();
            addresses.retain(|address| *address != own && !owns.contains(address));
            self.tellers.retain(|teller| addresses.contains(&teller.peer.address));
            addresses.push(own);
        }
        self.tellers.retain(|teller| addresses.contains(&teller.peer.address));
        for address in addresses {
            if self.tellers.iter().any(|teller| teller.peer.address == address) {
                continue;
            }
            let peer = Arc::new(Peer::new(address));
            let (of, told) = (common.clone(), peer.clone());
            let task = format!("peer {}", peer.address);
            let task = tokio::spawn(tasks::keep_on(task, move || tell::keep(of.clone(), told.clone())));
            self.tellers.push(Teller { peer, task });
        }
        *lock(&common.peers) = self.tellers.iter().map(|teller| teller.peer.clone()).collect();
    }

    fn stop_listening(&mut self) {
        if let Some((_, task)) = self.listener.take() {
            task.abort();
        }
    }

    /// Listens where the config says. What prevents that may be over later.
    fn listen(&mut self, common: &Arc<Common>) {
        let config = self.compiled.as_ref().and_then(|compiled| compiled.snapshot.config.peers.as_ref());
        let wanted = config.filter(|_| !self.is_succeeded).map(|config| config.bind);
        let is_there = self.listener.as_ref().map(|(bind, task)| (Some(*bind), task.is_finished()));
        if is_there == Some((wanted, false)) || (is_there.is_none() && wanted.is_none()) {
            return;
        }
        self.stop_listening();
        let mut listening = lock(&common.listening);
        if listening.as_ref().map(|(bind, _)| *bind) != wanted {
            *listening = None;
        }
        let Some(bind) = wanted.filter(|_| clock::now() >= self.again_at) else { return };
        let inherited = lock(&common.inherited).take().filter(|(at, _)| *at == bind);
        let opened = match (listening.take(), inherited) {
            (Some((_, socket)), _) => Ok(socket),
            (None, Some((_, socket))) => Ok(TcpListener::from(socket)),
            (None, None) => TcpListener::bind(bind),
        };
        let opened = opened.and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok((tokio::net::TcpListener::from_std(socket.try_clone()?)?, socket))
        });
        let before = lock(&common.cannot_listen).take();
        match opened {
            Ok((listener, socket)) => {
                tracing::info!(%bind, "peers: listening");
                *listening = Some((bind, socket));
                self.listener = Some((bind, tokio::spawn(hear::accept(common.clone(), listener))));
            }
            Err(error) => {
                self.again_at = clock::now() + LISTEN_AGAIN;
                let error = error.to_string();
                if before.as_ref() != Some(&error) {
                    tracing::error!(%bind, error, "peers: can't listen, so nothing that others count is known here");
                }
                *lock(&common.cannot_listen) = Some(error);
            }
        }
    }

    /// Tells everybody what was counted since the last round, and those that have come what is owed. `true`
    /// if there is more to tell now.
    fn round(&mut self, common: &Common) -> bool {
        let mut look = LimitLook::default();
        for (at, limit) in self.limits.iter().enumerate() {
            if !limit.is_touched() {
                continue;
            }
            for part in 0..limit.parts() {
                self.look((at, limit), part, 0..0, &mut look);
            }
            for key in limit.cleared() {
                let mut frame = Vec::new();
                wire::put(&mut frame, &Frame::Cleared { limit: limit.id, key });
                self.tellers.iter().for_each(|teller| teller.peer.put(&frame, 0));
            }
        }
        let mut is_more = false;
        for teller in &self.tellers {
            let peer = &teller.peer;
            for number in 0.. {
                let Some((at, part, cells)) = peer.outbox.next(&self.limits) else { break };
                if number == LOOKS {
                    is_more = true;
                    break;
                }
                let Some(limit) = self.limits.get(at) else { break };
                let end = cells.end;
                self.look((at, limit), part, cells, &mut look);
                peer.note(look.debts.len(), peer.outbox.scanned((at, part, end), limit.id, &look.debts));
            }
        }
        is_more && !common.ends.load(Relaxed)
    }

    /// Looks at a part of a limit, and tells everybody what was counted there, as far as it is not part of
    /// debts.
    fn look(
        &self,
        (at, limit): (usize, &SharedLimit),
        part: usize,
        cells: Range<usize>,
        look: &mut LimitLook,
    ) {
        look.counts.clear();
        look.debts.clear();
        let now = clock::now();
        limit.look(part, cells, now, look);
        if look.counts.is_empty() {
            return;
        }
        let sent_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut whole = None;
        for teller in &self.tellers {
            let share = teller.peer.outbox.share(at, part);
            let frames = frames_of(share, (limit.id, sent_ms), &look.counts, &mut whole);
            teller.peer.put(&frames, look.counts.len());
        }
    }
}

/// The limits that are shared. Routes with the same name may have the same limits: the n-th is the n-th
/// everywhere.
fn limits_of(compiled: &CompiledSnapshot) -> Vec<SharedLimit> {
    let mut alike: HashMap<_, u64> = HashMap::new();
    let listeners = compiled.listeners();
    let limits = listeners.flat_map(|(listener, compiled)| compiled.shared_limits(&listener.config.name));
    let numbered = limits.map(|mut limit| {
        let number = alike.entry(limit.id).or_default();
        limit.id[1] = limit.id[1].wrapping_add(*number);
        *number += 1;
        limit
    });
    numbered.collect()
}

/// Where a process of this host finds the one that listens at `bind`.
fn own_address(bind: SocketAddr) -> SocketAddr {
    let address = match bind.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, bind.port())
}
