//! Listeners that move from one plane to the other, and what the plane that they leave still does for them.
//!
//! A listener that leaves the kernel plane takes only packets of its existing flows; its number, its backends
//! and the interfaces stay until the last flow has ended. The maps record which flows these are, so that
//! another process can continue. The same holds for backends that are no longer used because a listener
//! changed its pool, or that were removed from a pool. A listener that comes from the proxy plane has
//! connections in sockets of this host; the packet program looks them up until there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_config::{Bind, Listener, Speaks};
use weir_l4::flows::Swept;
use weir_l4::kernel::Kernel;
use weir_l4::layout::Endpoint;
use weir_l4::numbers::{name_of, name_of_backend};
use weir_l4::sockets::{Which, has_connections};
use weir_l4::wanted::{Leaving as Kept, Wanted};
use weir_state::plane::Placements;
use weir_state::{Origin, Snapshot};

/// Idle time for flows of a listener that only an earlier process knew: the default of the kernel plane.
pub(super) const IDLE_OF_OTHERS: Duration = Duration::from_secs(900);
/// After this time, connections that were being opened when a listener moved are in a socket.
const SETTLED: Duration = Duration::from_secs(2);
/// Pause between two looks at the sockets of this host. For each address of a listener the kernel walks
/// through all its sockets until it finds one: with 10,000 other connections that takes 4 to 7 ms, on a busy
/// machine 21 ms and more (`sockets_cost` of weir-l4). Failover of backends does not wait for it, since a
/// look has its own thread.
const LOOKS: Duration = Duration::from_secs(5);

/// A listener that leaves the kernel plane.
#[derive(Debug)]
struct Departure {
    /// Its key in the kernel.
    name: u64,
    since: Instant,
    idle: Duration,
}

/// Backends, by number, of pools that listeners used before they got other pools.
#[derive(Debug)]
struct Replaced {
    since: Instant,
    backends: BTreeSet<u32>,
}

/// Listeners that are moving between planes.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Oldest first.
    replaced: Vec<Replaced>,
    /// Backends that operators or reloads have removed from pools that still exist. Oldest first.
    removed: Vec<Replaced>,
    /// Listeners that leave the kernel, by number.
    leaving: BTreeMap<u32, Departure>,
    /// Names of listeners that moved to the kernel, and when.
    came: BTreeMap<String, Instant>,
    look: Option<Look>,
}

/// A look at the sockets of this host, on a thread that ends with it.
#[derive(Debug)]
struct Look {
    begun: Instant,
    /// Names of listeners all of whose connections are in the kernel, and when they moved there; `None` once
    /// the result was taken.
    thread: Option<JoinHandle<Vec<(String, Instant)>>>,
}

impl Look {
    /// Starts to look for connections at the addresses of listeners.
    fn begin(listeners: Vec<(String, Instant, Vec<SocketAddr>)>) -> std::io::Result<Look> {
        // If the kernel does not answer, we assume that there are some.
        let has_any = |end: &SocketAddr| has_connections(*end, Which::All).unwrap_or(true);
        let look = move || {
            let without = listeners.into_iter().filter(|(.., ends)| !ends.iter().any(has_any));
            without.map(|(name, since, _)| (name, since)).collect()
        };
        let thread = std::thread::Builder::new().name("weir-sockets".to_owned()).spawn(look)?;
        Ok(Look { begun: Instant::now(), thread: Some(thread) })
    }
}

impl Moves {
    /// Records which listeners leave and come with a snapshot, and which pools are replaced. `before` is what
    /// this process served until now, if anything; `kernel` is what is in force.
    pub(super) fn note(
        &mut self,
        before: Option<&(std::sync::Arc<Snapshot>, Placements)>,
        (snapshot, placements): (&Snapshot, &Placements),
        kernel: &Kernel,
    ) {
        let (now, numbers) = (Instant::now(), &kernel.numbers().listeners);
        let stays: BTreeSet<u64> = in_kernel(snapshot, placements).map(|one| name_of(&one.name)).collect();
        self.leaving.retain(|_, departure| !stays.contains(&departure.name));
        for (name, number) in numbers.iter().filter(|(name, _)| !stays.contains(name)) {
            let known = before.and_then(|(snapshot, placements)| {
                in_kernel(snapshot, placements).find(|one| name_of(&one.name) == name)
            });
            let idle = known.map_or(IDLE_OF_OTHERS, |listener| listener.timeout.client_idle);
            self.leaving.entry(number).or_insert(Departure { name, since: now, idle });
        }
        let was_there = |name: &str| before.is_some_and(|(_, placements)| placements.is_in_kernel(name));
        self.came.retain(|name, _| placements.is_in_kernel(name));
        for listener in in_kernel(snapshot, placements).filter(|one| one.speaks == Speaks::Tcp) {
            if !was_there(&listener.name) {
                self.came.insert(listener.name.clone(), now);
            }
        }
        self.note_replaced(before.is_none(), (snapshot, placements), kernel);
    }

    /// Records backends whose flows continue although no listener uses their pool any more. An earlier
    /// process may have recorded some, which can only be found in the kernel.
    fn note_replaced(
        &mut self,
        is_first: bool,
        (snapshot, placements): (&Snapshot, &Placements),
        kernel: &Kernel,
    ) {
        let (numbers, pools_before) = (kernel.numbers(), kernel.pools_of_listeners());
        let is_replaced = |listener: &Listener| {
            let before = numbers.listeners.of(name_of(&listener.name)).and_then(|one| pools_before.get(&one));
            let now = listener.pool.as_deref().and_then(|pool| numbers.pools.of(name_of(pool)));
            before.is_some_and(|before| Some(*before) != now)
        };
        if !is_first && !in_kernel(snapshot, placements).any(is_replaced) {
            return;
        }
        let used: BTreeSet<&str> =
            in_kernel(snapshot, placements).filter_map(|one| one.pool.as_deref()).collect();
        // Backends of a listener that leaves are kept with that listener.
        let of_leaving = self.leaving.keys().filter_map(|number| pools_before.get(number));
        let of_leaving: BTreeSet<u32> = of_leaving.flat_map(|pool| kernel.backends_of(*pool)).collect();
        let is_out_of_use = |(number, name, at): &(u32, u64, Endpoint)| {
            !used.iter().any(|pool| name_of_backend(pool, at) == *name) && !of_leaving.contains(number)
        };
        let backends: BTreeSet<u32> =
            kernel.live_backends().filter(is_out_of_use).map(|(number, ..)| number).collect();
        if !backends.is_empty() {
            self.replaced.push(Replaced { since: Instant::now(), backends });
        }
    }

    /// Records backends that an operator has removed from their pools since `before`: their flows continue.
    pub(super) fn note_removed(&mut self, before: &Snapshot, now: &Snapshot, kernel: &Kernel) {
        let mut gone = BTreeSet::new();
        for pool in &before.pools {
            let name = pool.config.name.as_str();
            let Some(next) = now.pool(name) else { continue };
            let is_removed = |one: &&std::sync::Arc<weir_state::Backend>| {
                // Backends that a name or a group no longer has were drained before they were removed.
                matches!(one.origin, Origin::Config | Origin::Api)
                    && !next.backends.iter().any(|other| other.address == one.address)
            };
            let addresses = pool.backends.iter().filter(is_removed).filter_map(|one| one.resolved.address());
            gone.extend(addresses.map(|at| name_of_backend(name, &Endpoint::new(at, 0))));
        }
        let removed = kernel.live_backends().filter(|(_, name, _)| gone.contains(name));
        self.keep_removed(removed.map(|(number, ..)| number).collect());
    }

    /// Notes backends that the config no longer lists although it still has their pool, whether this process
    /// or another one installed them. Their flows continue. Backends that the config lists again are no
    /// longer noted.
    pub(super) fn note_left_out(&mut self, now: &Snapshot, kernel: &Kernel) {
        let of = |pool: &std::sync::Arc<weir_state::Pool>| -> Vec<u64> {
            let addresses = pool.backends.iter().filter_map(|one| one.resolved.address());
            addresses.map(|at| name_of_backend(&pool.config.name, &Endpoint::new(at, 0))).collect()
        };
        let named: BTreeSet<u64> = now.pools.iter().flat_map(of).collect();
        let (there, others): (Vec<_>, Vec<_>) =
            kernel.live_backends().partition(|(_, name, _)| named.contains(name));
        let there: BTreeSet<u32> = there.into_iter().map(|(number, ..)| number).collect();
        self.removed.iter_mut().for_each(|one| one.backends.retain(|number| !there.contains(number)));
        let is_noted = |number| self.removed.iter().any(|one| one.backends.contains(&number));
        let is_removed = |(number, of, at): &(u32, u64, Endpoint)| {
            !is_noted(*number) && now.pools.iter().any(|pool| name_of_backend(&pool.config.name, at) == *of)
        };
        let removed = others.into_iter().filter(is_removed).map(|(number, ..)| number).collect();
        self.keep_removed(removed);
    }

    fn keep_removed(&mut self, backends: BTreeSet<u32>) {
        if !backends.is_empty() {
            self.removed.push(Replaced { since: Instant::now(), backends });
        }
    }

    /// Whether there are flows that belong to no listener of the kernel plane any more.
    pub(super) fn any_goes_on(&self) -> bool {
        self.any_leave() || !self.replaced.is_empty() || !self.removed.is_empty()
    }

    /// Whether any listener is leaving the kernel.
    pub(super) fn any_leave(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether the listener with this name is leaving the kernel.
    pub(super) fn leaves(&self, name: &str) -> bool {
        let name = name_of(name);
        self.leaving.values().any(|departure| departure.name == name)
    }

    /// Whether sockets of this host may have connections of a listener that is in the kernel.
    pub(super) fn asks_host(&self, name: &str) -> bool {
        self.came.contains_key(name)
    }

    /// Idle times of the remaining flows, by number of their listener.
    pub(super) fn idle_times(&self) -> impl Iterator<Item = (u32, Duration)> + '_ {
        self.leaving.iter().map(|(number, departure)| (*number, departure.idle))
    }

    /// What to keep for remaining flows, in addition to what is `wanted`. `live` are backends with such
    /// flows: number, name and endpoint of each.
    pub(super) fn kept(
        &self,
        snapshot: &Snapshot,
        wanted: &Wanted,
        live: impl Iterator<Item = (u32, u64, Endpoint)>,
    ) -> Kept {
        if !self.any_goes_on() {
            return Kept::default();
        }
        let is_in = |list: &[Replaced], number| list.iter().any(|one| one.backends.contains(&number));
        // A backend that was removed from a pool that still exists has its own deadline.
        let was_removed = |name, at| {
            let is_wanted = |pool: &str| wanted.pools.iter().any(|one| one.name == pool);
            let pools = snapshot.pools.iter().map(|pool| pool.config.name.as_str());
            pools.filter(|pool| is_wanted(pool)).any(|pool| name_of_backend(pool, &at) == name)
        };
        let is_kept = |(number, name, at): &(u32, u64, Endpoint)| {
            let may_stay = self.any_leave() || is_in(&self.replaced, *number);
            is_in(&self.removed, *number) || (may_stay && !was_removed(*name, *at))
        };
        let backends = live.filter(is_kept).map(|(number, ..)| number);
        Kept { listeners: self.leaving.keys().copied().collect(), backends: backends.collect() }
    }

    /// Drops what has no flows left, according to a sweep that began at `begun`; returns whether anything was
    /// dropped. Flows of a listener that is no longer in the config may last as long as sessions of a removed
    /// listener; those of a listener that still exists continue, whatever happened to their pool.
    pub(super) fn swept(&mut self, swept: &Swept, begun: Instant, snapshot: &Snapshot) -> bool {
        let before = (self.leaving.len(), self.replaced.len(), self.removed.len());
        let drain = snapshot.config.runtime.drain;
        self.leaving.retain(|number, departure| {
            let is_listed = snapshot.listeners.iter().any(|one| name_of(&one.config.name) == departure.name);
            let has_time = is_listed || departure.since.elapsed() < drain;
            let has_flows = swept.by_listener.contains_key(number) || begun <= departure.since;
            has_time && has_flows
        });
        self.replaced.retain(|one| {
            let has_flows = |number| swept.by_backend.contains_key(number);
            begun <= one.since || one.backends.iter().any(has_flows)
        });
        self.removed.retain(|one| {
            let has_flows = |number| swept.by_backend.contains_key(number);
            one.since.elapsed() < drain && (begun <= one.since || one.backends.iter().any(has_flows))
        });
        before != (self.leaving.len(), self.replaced.len(), self.removed.len())
    }

    /// Checks whether listeners that moved to the kernel still have connections in sockets of this host;
    /// those without are not looked for any more. The result of a look is used in a later call.
    pub(super) fn look_at_sockets(&mut self, snapshot: &Snapshot) {
        if let Some(look) = &mut self.look {
            let is_under_way = look.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            if is_under_way {
                return;
            }
            let without = look.thread.take().map(|thread| thread.join().unwrap_or_default());
            let begun = look.begun;
            self.came.retain(|name, since| {
                // If it has moved again meanwhile, the result does not apply.
                !without.iter().flatten().any(|(other, then)| (other, then) == (name, &*since))
            });
            if begun.elapsed() < LOOKS {
                return;
            }
        }
        let due = self.came.iter().filter(|(_, since)| since.elapsed() >= SETTLED).map(|(name, since)| {
            let listener = snapshot.listeners.iter().find(|one| one.config.name == *name);
            let ends = listener.into_iter().flat_map(|listener| ends(&listener.config)).collect();
            (name.clone(), *since, ends)
        });
        let due: Vec<_> = due.collect();
        if due.is_empty() {
            return;
        }
        match Look::begin(due) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::error!(%error, "connections of this host's sockets are not looked for"),
        }
    }
}

/// The addresses at which a listener may have had sockets. Port ranges are excluded, as only the kernel plane
/// supports them.
fn ends(listener: &Listener) -> impl Iterator<Item = SocketAddr> {
    listener.bind.iter().filter_map(Bind::inet).filter(|bind| !bind.is_range()).map(|bind| bind.first)
}

fn in_kernel<'s>(snapshot: &'s Snapshot, placements: &'s Placements) -> impl Iterator<Item = &'s Listener> {
    let listeners = snapshot.listeners.iter().map(|one| &*one.config);
    listeners.filter(|listener| placements.is_in_kernel(&listener.name))
}

/// Longest wait for handshakes that the proxy plane has begun.
const HANDSHAKES: Duration = Duration::from_secs(1);
/// Pause between two looks.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(5);

/// Waits for the end of handshakes that the sockets of listeners have begun which come from the proxy plane:
/// those sockets are closed next, and would reset handshakes in progress.
pub(super) async fn handshakes_end(snapshot: &Snapshot, before: &Placements, now: &Placements) {
    let came = in_kernel(snapshot, now).filter(|listener| !before.is_in_kernel(&listener.name));
    let ends: Vec<_> = came.filter(|one| one.speaks == Speaks::Tcp).flat_map(ends).collect();
    let begun = Instant::now();
    // If the kernel does not answer, we assume that there are some, as above.
    let is_under_way = |end: &SocketAddr| has_connections(*end, Which::Opening).unwrap_or(true);
    while begun.elapsed() < HANDSHAKES && ends.iter().any(is_under_way) {
        tokio::time::sleep(HANDSHAKE_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;

    fn snapshot(at: SocketAddr) -> Snapshot {
        let text = format!(
            "[listener.vip]\nprotocol = 'tcp'\nbind = '{at}'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1)
    }

    /// Waits for the look that is under way.
    fn seen(moves: &mut Moves, snapshot: &Snapshot) {
        moves.look_at_sockets(snapshot);
        let look = moves.look.as_ref().expect("a look has begun");
        while look.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::yield_now();
        }
        moves.look_at_sockets(snapshot);
    }

    #[test]
    fn the_host_is_asked_as_long_as_a_socket_has_a_connection_of_a_listener_that_came() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let snapshot = snapshot(at);
        let client = TcpStream::connect(at).unwrap();
        let (accepted, _) = socket.accept().unwrap();
        let long_ago = Instant::now().checked_sub(LOOKS).unwrap();
        let came = BTreeMap::from([("vip".to_owned(), long_ago)]);
        let mut moves = Moves { came, ..Moves::default() };
        seen(&mut moves, &snapshot);
        assert!(moves.asks_host("vip"));
        // The end that closes first keeps the connection for a while: the client's.
        drop(client);
        drop(accepted);
        moves.look = None;
        seen(&mut moves, &snapshot);
        assert!(!moves.asks_host("vip"));
    }

    #[test]
    fn backends_of_a_replaced_pool_are_kept_until_a_sweep_finds_no_flow_of_theirs() {
        let snapshot = snapshot("127.0.0.1:1".parse().unwrap());
        let since = Instant::now();
        let later = since + Duration::from_secs(1);
        let replaced = vec![Replaced { since, backends: BTreeSet::from([3, 4]) }];
        let mut moves = Moves { replaced, ..Moves::default() };
        let at = Endpoint::new("10.0.0.9:80".parse().unwrap(), 0);
        let kept = |moves: &Moves| {
            let live = [(3, 30, at), (4, 40, at), (5, 50, at)].into_iter();
            moves.kept(&snapshot, &Wanted::default(), live).backends
        };
        assert_eq!(kept(&moves), BTreeSet::from([3, 4]));
        let flows = |number| Swept { by_backend: BTreeMap::from([(number, 1)]), ..Swept::default() };
        // A sweep that began before may have missed their flows.
        assert!(!moves.swept(&Swept::default(), since, &snapshot));
        assert!(!moves.swept(&flows(4), later, &snapshot) && moves.any_goes_on());
        assert!(moves.swept(&flows(5), later, &snapshot) && !moves.any_goes_on());
        assert!(kept(&moves).is_empty());
    }

    #[test]
    fn a_listener_that_comes_anew_during_a_look_is_asked_for() {
        let snapshot = snapshot("127.0.0.1:1".parse().unwrap());
        let now = Instant::now();
        let long_ago = now.checked_sub(LOOKS).unwrap();
        let came = BTreeMap::from([("vip".to_owned(), now)]);
        let look = Look::begin(vec![("vip".to_owned(), long_ago, Vec::new())]).unwrap();
        let mut moves = Moves { came, look: Some(look), ..Moves::default() };
        seen(&mut moves, &snapshot);
        assert!(moves.asks_host("vip"));
    }
}
