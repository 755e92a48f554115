//! Connections to MySQL servers that are logged in, and those of them that are idle between two owners.

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

/// How long a connection is idle until what is prepared on it is closed: those in use are taken in the order
/// in which they were used last, so it is one more than there is work for.
const STATEMENTS_IDLE: Duration = Duration::from_secs(15);

/// What two sessions must have in common to use the same connections.
#[derive(Clone)]
pub struct ConnectionKind {
    /// As whom it is logged in.
    pub account: Rc<Account>,
    /// What the client and Weir have agreed on, and [`OF_WEIR`]: it says how its server frames answers.
    pub capabilities: Capabilities,
    /// The collation of the login, by number.
    pub collation: u16,
}

impl ConnectionKind {
    /// What a client that has logged in uses.
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

/// A connection to a server that is logged in.
pub struct ServerConnection {
    /// Its bytes, and the count of those that are open.
    pub connection: Connection,
    /// For whom it may be used.
    pub kind: ConnectionKind,
    /// What is agreed with the server: the client's, and [`OF_WEIR`].
    pub capabilities: Capabilities,
    /// What the server calls it, for KILL.
    pub thread_id: u32,
    /// What its server has told of its state.
    pub state: Rc<TrackedState>,
    /// The statements that are prepared on it.
    pub statements: ServerStatements,
    /// Another one each time that it is given back: who used it before knows by it whether it is as it was
    /// left. 0 before.
    pub stamp: u64,
    /// LAST_INSERT_ID() may be another than 0.
    pub has_insert_id: bool,
    /// Tables may be locked against definitions until a transaction ends that no status flag tells of.
    pub may_hold_tables: bool,
    /// A statement has failed on it that may have run stored code. What that has changed, its error did not
    /// tell: the next OK packet does.
    pub is_untold: bool,
    /// An answer to Weir itself has told of something that nobody knows what it is; it is the session's that
    /// uses the connection.
    pub is_unknown: bool,
    /// Transactions that an answer to Weir itself has told of.
    pub gtids: Option<GtidSet>,
    /// Nothing was sent on it that was not answered.
    pub is_at_rest: bool,
}

impl ServerConnection {
    /// Of a login that a server has just let in; its state is not known yet.
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

    /// Takes note of a statement that was carried out or has failed: with autocommit off, what it looked at
    /// stays locked until the next COMMIT, also where no engine with transactions knows of it (MyISAM, SHOW).
    pub fn note_tables(&mut self, verdict: &StatementVerdict, status: StatusFlags, is_failed: bool) {
        let holds = match verdict.tables {
            TableUse::Unused => self.may_hold_tables,
            TableUse::Used => true,
            TableUse::Freed => is_failed,
        };
        self.may_hold_tables = holds && !status.has(StatusFlags::AUTOCOMMIT);
    }

    /// Closes the statements that are prepared on it, while nobody has it; gives how many. What the kernel
    /// does not take at once is not waited for: the connection is not at rest then.
    fn close_statements(&mut self) -> usize {
        let ids = self.statements.take_all();
        if !ids.is_empty() {
            let out = own::closing(&ids);
            let sent = self.connection.poll_send(&mut Context::from_waker(Waker::noop()), &out);
            self.is_at_rest &= matches!(sent, Poll::Ready(Ok(count)) if count == out.len());
            // Who has used it last finds it changed.
            self.stamp = 0;
        }
        ids.len()
    }

    /// It is a new session of its account, which has nothing of those before.
    pub fn note_renewed(&mut self) {
        self.statements.clear();
        self.gtids = None;
        (self.has_insert_id, self.may_hold_tables) = (false, false);
        (self.is_untold, self.is_unknown) = (false, false);
    }

    /// Takes what an OK packet has told of changes; gives it, but for transactions, which stay here.
    ///
    /// # Errors
    /// It can not be read.
    pub fn apply<'t>(&mut self, told: &'t [u8]) -> Result<ToldChanges<'t>, WireError> {
        let changes = Rc::make_mut(&mut self.state).apply(told)?;
        if let Some(gtids) = changes.gtids.and_then(|text| std::str::from_utf8(text).ok()) {
            self.gtids = GtidSet::parse(gtids).or_else(|| self.gtids.take());
        }
        Ok(changes)
    }

    /// Whether the server has said nothing since its last answer: what it says unasked is that it closes.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.connection.is_quiet()
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if self.is_at_rest {
            // What the kernel does not take at once is not waited for.
            let mut context = Context::from_waker(Waker::noop());
            let _ = self.connection.poll_send(&mut context, &QUIT);
        }
    }
}

/// The idle connections to one backend, on one worker.
#[derive(Default)]
pub struct IdleServers {
    idle: RefCell<Vec<IdleServer>>,
    /// Transactions that the server is known to have executed, and its resets when that was learnt.
    executed: RefCell<(u32, GtidSet)>,
    /// The server runs something for new sessions, which no connection that is there already would get.
    has_init_connect: Cell<bool>,
}

struct IdleServer {
    server: Box<ServerConnection>,
    since: Duration,
}

impl IdleServers {
    /// An idle connection of this kind, by preference in this very state; else one that can be brought there
    /// by a SET, and last one that needs another schema, or other roles. Linear in the number of idle ones.
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
            // The last are those used last: the server is the least likely to be closing them.
            for (index, candidate) in idle.iter().enumerate().rev() {
                if now.saturating_sub(candidate.since) >= longest {
                    break;
                }
                if candidate.server.kind != *kind || !state.is_reachable_from(&candidate.server.state) {
                    continue;
                }
                let rank = rank(state, &candidate.server.state);
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

    /// An idle connection of this kind in whatever state, to be logged in anew. The oldest: the youngest are
    /// those that are in use.
    pub fn take_any(&self, backend: &WorkerBackend, kind: &ConnectionKind) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| server.kind == *kind)
    }

    /// The connection with this mark; `None` when somebody has used it since, or the server has closed it.
    pub fn take_stamped(&self, backend: &WorkerBackend, stamp: u64) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| server.stamp == stamp)
    }

    /// One with statements prepared on it, of whatever kind; the oldest.
    pub fn take_with_statements(&self, backend: &WorkerBackend) -> Option<Box<ServerConnection>> {
        self.take_first(backend, |server| !server.statements.is_empty())
    }

    /// Closes the statements of idle connections, those idle longest first, while there is `need`; gives how
    /// many.
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

    /// Keeps a connection that is at rest and in a state that is known.
    pub fn keep(&self, backend: &WorkerBackend, mut server: Box<ServerConnection>, now: Duration, most: u32) {
        server.gtids = None;
        let mut idle = self.idle.borrow_mut();
        let is_known = server.is_at_rest && !server.is_untold && !server.is_unknown;
        let is_kept = is_known && server.connection.moves() == backend.shared.resolved.moves();
        if is_kept && !backend.shared.balance.has_left() && idle.len() < most as usize {
            idle.push(IdleServer { server, since: now });
        }
    }

    /// Whether the server is known to have executed these transactions.
    pub fn has_executed(&self, backend: &WorkerBackend, gtids: &GtidSet) -> bool {
        let (resets, executed) = &*self.executed.borrow();
        *resets == backend.shared.gtid_resets.load(Ordering::Acquire) && executed.contains(gtids)
    }

    /// Notes that the server has executed these transactions. `resets` is how often it was reset before it
    /// said so.
    pub fn note_executed(&self, gtids: &GtidSet, resets: u32) {
        let mut known = self.executed.borrow_mut();
        if known.0 != resets {
            *known = (resets, GtidSet::default());
        }
        known.1.add(gtids);
    }

    /// Forgets what the server is known to have executed: a new connection to it was made, and it may be
    /// another server than before, or the same with less.
    pub fn forget_executed(&self) {
        self.executed.borrow_mut().1 = GtidSet::default();
    }

    /// Whether the server was last seen to run something for new sessions (`init_connect`).
    pub fn has_init_connect(&self) -> bool {
        self.has_init_connect.get()
    }

    /// Notes whether it does.
    pub fn note_init_connect(&self, has_init_connect: bool) {
        self.has_init_connect.set(has_init_connect);
    }

    /// Drops the connections of an account that a server has refused.
    pub fn forget(&self, account: &Account) {
        self.idle.borrow_mut().retain(|idle| *idle.server.kind.account != *account);
    }
}

/// How far a connection's state is from the one wanted: 0 is there.
#[inline]
fn rank(wanted: &Rc<TrackedState>, found: &Rc<TrackedState>) -> u8 {
    if Rc::ptr_eq(wanted, found) || wanted == found {
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
