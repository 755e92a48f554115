//! Logged-in connections to MySQL servers, and the pool of those that are idle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_io::stream::Duplex as _;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::gtid::GtidSet;
use weir_mysql::state::{ToldChanges, TrackedState};
use weir_mysql::{StatementVerdict, TableUse, WireError};

use super::account::Account;
use super::attach::{LoggedIn, OF_WEIR};
use super::login::Candidate;
use super::own;
use super::prepared::ServerStatements;
use crate::backends::{Connection, Keep, WorkerBackend};

/// COM_QUIT, so that the server does not count an aborted client.
const QUIT: [u8; 5] = [1, 0, 0, 0, 1];

/// How long a connection is idle before its prepared statements are closed. The most recently used
/// connections are taken first, so one that is idle for this long is in excess of the current load.
const STATEMENTS_IDLE: Duration = Duration::from_secs(15);

/// What two sessions must have in common to share connections.
#[derive(Clone)]
pub struct ConnectionKind {
    /// The account that it is logged in with.
    pub account: Rc<Account>,
    /// The capabilities negotiated with the client, and [`OF_WEIR`]; they determine how the server frames
    /// answers.
    pub capabilities: Capabilities,
    /// The collation id of the login.
    pub collation: u16,
}

impl ConnectionKind {
    /// The kind of connections for a client that has logged in.
    pub fn of(candidate: &Candidate) -> ConnectionKind {
        ConnectionKind {
            account: candidate.account.clone(),
            capabilities: candidate.capabilities | OF_WEIR,
            collation: candidate.collation,
        }
    }
}

impl PartialEq for ConnectionKind {
    #[inline]
    fn eq(&self, other: &ConnectionKind) -> bool {
        self.capabilities == other.capabilities
            && self.collation == other.collation
            && (Rc::ptr_eq(&self.account, &other.account) || self.account == other.account)
    }
}

/// A logged-in connection to a server.
pub struct ServerConnection {
    /// The connection itself, which counts as open until dropped.
    pub connection: Connection,
    /// The sessions that may use it.
    pub kind: ConnectionKind,
    /// The capabilities in use with the server: the client's, and [`OF_WEIR`].
    pub capabilities: Capabilities,
    /// The server's id of the connection, for KILL.
    pub thread_id: u32,
    /// The state that its server has reported.
    pub state: Rc<TrackedState>,
    /// The statements prepared on it.
    pub statements: ServerStatements,
    /// Changes whenever the connection is given back. By this, its last user can tell whether it is unchanged
    /// since then. 0 before the first time.
    pub stamp: u64,
    /// Whether LAST_INSERT_ID() may differ from 0.
    pub has_insert_id: bool,
    /// Whether it may hold metadata locks until the end of a transaction that no status flag shows.
    pub may_hold_tables: bool,
    /// Whether a failed statement may have run stored code on it. Its error packet did not report any
    /// changes; the next OK packet will.
    pub is_untold: bool,
    /// Whether an answer to one of Weir's own statements reported an unknown change, which then belongs to
    /// the session that uses the connection.
    pub is_unknown: bool,
    /// GTIDs that an answer to one of Weir's own statements reported.
    pub gtids: Option<GtidSet>,
    /// Whether everything that was sent on it has been answered.
    pub is_at_rest: bool,
}

impl ServerConnection {
    /// For a login that a server has just accepted; its state is not known yet.
    pub fn of_login(login: LoggedIn, kind: ConnectionKind) -> Box<ServerConnection> {
        let LoggedIn { connection, capabilities, thread_id } = login;
        Box::new(ServerConnection {
            connection,
            kind,
            capabilities,
            thread_id,
            state: Rc::new(TrackedState::default()),
            statements: ServerStatements::default(),
            stamp: 0,
            has_insert_id: false,
            may_hold_tables: false,
            is_untold: false,
            is_unknown: false,
            gtids: None,
            is_at_rest: true,
        })
    }

    /// Updates `may_hold_tables` after a statement. With autocommit off, the tables that it used stay locked
    /// until the next COMMIT, even if no transactional engine is involved (MyISAM, SHOW).
    pub fn note_tables(&mut self, verdict: &StatementVerdict, status: StatusFlags, is_failed: bool) {
        let holds = match verdict.tables {
            TableUse::Unused => self.may_hold_tables,
            TableUse::Used => true,
            TableUse::Freed => is_failed,
        };
        self.may_hold_tables = holds && !status.has(StatusFlags::AUTOCOMMIT);
    }

    /// Closes its prepared statements while it is idle, and returns their count. If the kernel does not
    /// accept all bytes at once, the rest is not sent and the connection no longer counts as at rest.
    fn close_statements(&mut self) -> usize {
        let ids = self.statements.take_all();
        if !ids.is_empty() {
            let out = own::closing(&ids);
            let sent = self.connection.poll_send(&mut Context::from_waker(Waker::noop()), &out);
            self.is_at_rest &= matches!(sent, Poll::Ready(Ok(count)) if count == out.len());
            // Its last user must see that it has changed.
            self.stamp = 0;
        }
        ids.len()
    }

    /// Records that it is a fresh session of its account, without any previous state.
    pub fn note_renewed(&mut self) {
        self.statements.clear();
        self.gtids = None;
        (self.has_insert_id, self.may_hold_tables) = (false, false);
        (self.is_untold, self.is_unknown) = (false, false);
    }

    /// Applies the state changes in an OK packet and returns them. GTIDs are also kept in [`Self::gtids`].
    ///
    /// # Errors
    /// The changes cannot be parsed.
    pub fn apply<'t>(&mut self, told: &'t [u8]) -> Result<ToldChanges<'t>, WireError> {
        let changes = Rc::make_mut(&mut self.state).apply(told)?;
        if let Some(gtids) = changes.gtids.and_then(|text| std::str::from_utf8(text).ok()) {
            self.gtids = GtidSet::parse(gtids).or_else(|| self.gtids.take());
        }
        Ok(changes)
    }

    /// Whether the server has sent nothing since its last answer. Unsolicited bytes mean that it is closing.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.connection.is_quiet()
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if self.is_at_rest {
            // If the kernel does not accept it at once, it is not sent.
            let mut context = Context::from_waker(Waker::noop());
            let _ = self.connection.poll_send(&mut context, &QUIT);
        }
    }
}

/// The idle connections to one backend, on one worker.
#[derive(Default)]
pub struct IdleServers {
    idle: RefCell<Vec<IdleServer>>,
    /// GTIDs that the server is known to have executed, and its reset count at that time.
    executed: RefCell<(u32, GtidSet)>,
    /// Whether the server has an `init_connect`, which existing connections would not run.
    has_init_connect: Cell<bool>,
}

struct IdleServer {
    server: Box<ServerConnection>,
    since: Duration,
}

impl IdleServers {
    /// An idle connection of this kind. It prefers one that is already in this state, then one that needs
    /// only a SET, then one that needs another schema or other roles. Linear in the number of idle
    /// connections.
    pub fn take(
        &self,
        backend: &WorkerBackend,
        kind: &ConnectionKind,
        state: &Rc<TrackedState>,
        now: Duration,
        longest: Duration,
    ) -> Option<Box<ServerConnection>> {
        let moves = backend.shared.resolved.moves();
        let mut idle = self.idle.borrow_mut();
        loop {
            let (mut best, mut best_rank) = (None, u8::MAX);
            // The last ones were used most recently, so the server is least likely to be closing them.
            for (index, candidate) in idle.iter().enumerate().rev() {
                if now.saturating_sub(candidate.since) >= longest {
                    break;
                }
                if candidate.server.kind != *kind {
                    continue;
                }
                let rank = match Rc::ptr_eq(state, &candidate.server.state) {
                    true => 0,
                    false if !state.is_reachable_from(&candidate.server.state) => continue,
                    false => rank(state, &candidate.server.state),
                };
                if rank < best_rank {
                    (best, best_rank) = (Some(index), rank);
                }
                if rank == 0 {
                    break;
                }
            }
            let server = idle.remove(best?).server;
            if server.connection.moves() == moves && server.is_quiet() {
                return Some(server);
            }
        }
    }

    /// An idle connection of this kind in any state, to be logged in again. It takes the oldest one, because
    /// the youngest are in use.
    pub fn take_any(&self, backend: &WorkerBackend, kind: &ConnectionKind) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| server.kind == *kind)
    }

    /// The connection with this stamp; `None` if another session has used it since, or the server has closed
    /// it.
    pub fn take_stamped(&self, backend: &WorkerBackend, stamp: u64) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| server.stamp == stamp)
    }

    /// The oldest connection, of any kind, that has prepared statements.
    pub fn take_with_statements(&self, backend: &WorkerBackend) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| !server.statements.is_empty())
    }

    /// Closes the prepared statements of idle connections, longest idle first, as long as `need` returns
    /// true; returns their count.
    pub fn close_statements(&self, need: impl Fn() -> bool) -> usize {
        let mut count = 0;
        self.idle.borrow_mut().retain_mut(|idle| {
            if !idle.server.statements.is_empty() && need() {
                count += idle.server.close_statements();
            }
            idle.server.is_at_rest
        });
        count
    }

    fn take_first(
        &self,
        backend: &WorkerBackend,
        is_wanted: impl Fn(&ServerConnection) -> bool,
    ) -> Option<Box<ServerConnection>> {
        let moves = backend.shared.resolved.moves();
        let mut idle = self.idle.borrow_mut();
        loop {
            let index = idle.iter().position(|idle| is_wanted(&idle.server))?;
            let server = idle.remove(index).server;
            if server.connection.moves() == moves && server.is_quiet() {
                return Some(server);
            }
        }
    }

    /// Keeps a connection, if it is at rest and its state is known. Returns its new stamp.
    pub fn keep(
        &self,
        backend: &WorkerBackend,
        mut server: Box<ServerConnection>,
        now: Duration,
        most: u32,
    ) -> u64 {
        let stamp = next_stamp();
        (server.stamp, server.gtids) = (stamp, None);
        let mut idle = self.idle.borrow_mut();
        let is_known = server.is_at_rest && !server.is_untold && !server.is_unknown;
        let is_kept = is_known && server.connection.moves() == backend.shared.resolved.moves();
        if is_kept && !backend.shared.balance.has_left() && idle.len() < most as usize {
            idle.push(IdleServer { server, since: now });
        }
        stamp
    }

    /// Whether the server is known to have executed these GTIDs.
    pub fn has_executed(&self, backend: &WorkerBackend, gtids: &GtidSet) -> bool {
        let (resets, executed) = &*self.executed.borrow();
        *resets == backend.shared.gtid_resets.load(Ordering::Acquire) && executed.contains(gtids)
    }

    /// Records that the server has executed these GTIDs. `resets` is its reset count before it was asked.
    pub fn note_executed(&self, gtids: &GtidSet, resets: u32) {
        let mut known = self.executed.borrow_mut();
        if known.0 != resets {
            *known = (resets, GtidSet::default());
        }
        known.1.add(gtids);
    }

    /// Forgets which GTIDs the server has executed. A new connection to it was opened, and it may now be a
    /// different server, or the same one with fewer transactions.
    pub fn forget_executed(&self) {
        self.executed.borrow_mut().1 = GtidSet::default();
    }

    /// Whether the server had an `init_connect` when last checked.
    pub fn has_init_connect(&self) -> bool {
        self.has_init_connect.get()
    }

    /// Records whether it has one.
    pub fn note_init_connect(&self, has_init_connect: bool) {
        self.has_init_connect.set(has_init_connect);
    }

    /// Drops the connections of an account that a server has refused.
    pub fn forget(&self, account: &Account) {
        self.idle.borrow_mut().retain(|idle| *idle.server.kind.account != *account);
    }
}

/// A stamp that no connection of this thread has had. Other threads never get its connections.
fn next_stamp() -> u64 {
    thread_local! {
        static LAST: Cell<u64> = const { Cell::new(0) };
    }
    let stamp = LAST.get() + 1;
    LAST.set(stamp);
    stamp
}

/// How far a connection's state is from the wanted one; 0 means that they are equal.
#[inline]
fn rank(wanted: &Rc<TrackedState>, found: &Rc<TrackedState>) -> u8 {
    if wanted == found {
        0
    } else if wanted.schema() == found.schema() && wanted.roles() == found.roles() {
        1
    } else {
        2
    }
}

impl Keep for IdleServers {
    fn hand_over(&self) -> Rc<dyn Keep> {
        Rc::new(IdleServers {
            idle: RefCell::new(self.idle.take()),
            executed: RefCell::new(self.executed.take()),
            has_init_connect: self.has_init_connect.clone(),
        })
    }

    fn close_idle(&self, most: usize) -> usize {
        let mut idle = self.idle.borrow_mut();
        let count = idle.len().min(most);
        idle.drain(..count);
        count
    }

    fn close_statements(&self) -> usize {
        IdleServers::close_statements(self, || true)
    }

    fn retire(&self, now: Duration, longest: Duration, moves: u32) {
        self.idle.borrow_mut().retain_mut(|idle| {
            let idle_for = now.saturating_sub(idle.since);
            if idle_for >= STATEMENTS_IDLE && !idle.server.statements.is_empty() {
                idle.server.close_statements();
            }
            idle_for < longest
                && idle.server.is_at_rest
                && idle.server.connection.moves() == moves
                && idle.server.is_quiet()
        });
    }
}
