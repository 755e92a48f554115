//! KILL across servers. Clients know their connections by Weir's own ids, and a KILL must reach the server
//! where the session's statement runs. Statements that no client waits for any more are killed as well.
//!
//! A KILL is sent with the account that requests it, so that the server decides whether that account may do
//! this.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use weir_balance::Role;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_mysql::command::killed_connection;
use weir_mysql::{ReadsBack, SplitAccess, StatementVerdict};
use weir_stats::table::End;

use super::acquire::Attached;
use super::attach::{self, AttachError, ServerError, ServerLogin};
use super::confirm::settle;
use super::failure::Refusal;
use super::own::{self, Own, OwnAnswer};
use super::prepared::ServerStatements;
use super::server::{ConnectionKind, IdleServers, ServerConnection};
use super::session::{Incoming, Session};
use super::unfit::Unfit;
use crate::backends::{Chosen, ConnectError, ProxyHeader, WorkerBackend, WorkerPool};
use crate::worker::Worker;

/// The top bit marks connection ids of Weir's own. Servers' ids do not get that high, so an id from SHOW
/// PROCESSLIST and an id from Weir are never confused.
const OWN_ID: u32 = 0x8000_0000;
/// Most abandoned statements that one worker kills at once. Further ones are left to their servers, which
/// notice the closed connection when they answer.
const MOST_ABANDONED: u32 = 32;
/// Most connections that one worker opens at once beyond a backend's configured `max_connections`, to kill
/// something.
const MOST_BEYOND: u32 = 4;

/// The sessions of this process by connection id. A KILL may arrive on any worker.
static SESSIONS: LazyLock<Mutex<HashMap<u32, Arc<KillEntry>>>> = LazyLock::new(Mutex::default);

/// A session as seen by KILL.
pub struct KillEntry {
    /// The session's user; it changes with COM_CHANGE_USER.
    user: Mutex<Box<[u8]>>,
    /// The pool of the session's listener. The same user name in another pool may be a different account.
    pool: Box<str>,
    waker: Waker,
    /// Set while a KILL of the session is being sent to its server, which decides whether it is allowed.
    is_doomed: AtomicBool,
    is_killed: AtomicBool,
    /// Set by a KILL QUERY while the session is not attached: a statement that waits for a server is not to
    /// run any more.
    is_interrupted: AtomicBool,
    /// KILLs of the session that are being sent (count). Meanwhile no other session may get its connection.
    aimed_at: AtomicU32,
    /// The attached connection as a [`ConnectionPlace`]; 0 while the session is not attached. One value,
    /// because a KILL that saw the server of one connection with the number of the next would hit a stranger.
    place: AtomicU64,
    /// Whether the client was told the server's id of that connection (`CONNECTION_ID()`).
    is_told: AtomicBool,
}

/// A connection: its server, and the server's id of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ConnectionPlace {
    /// See [`short_id`].
    server: u32,
    thread_id: u32,
}

impl ConnectionPlace {
    fn of(bits: u64) -> Option<ConnectionPlace> {
        let place = ConnectionPlace { server: (bits >> 32) as u32, thread_id: bits as u32 };
        (bits != 0).then_some(place)
    }

    fn bits(self) -> u64 {
        u64::from(self.server) << 32 | u64::from(self.thread_id)
    }
}

/// A server within its pool: 32 bits of [`weir_balance::Backend::id`], and how often its address had moved
/// ([`weir_state::Resolved::moves`]), because another server may be at the next one. Where two servers of a
/// pool have the same ones, nothing is killed by them.
fn short_id(backend: &WorkerBackend, moves: u32) -> u32 {
    let id = backend.shared.balance.id();
    ((id ^ id >> 32) as u32).wrapping_add(moves.wrapping_mul(0x9E37_79B9))
}

/// The same for a connection to it that is opened now.
fn short_id_now(backend: &WorkerBackend) -> u32 {
    short_id(backend, backend.shared.resolved.moves())
}

/// Where a KILL goes.
pub enum KillGoes {
    /// To the session with this id of Weir's, or only its statement.
    Here(u32, bool),
    /// To a server, as it is: it names a connection by the server's own id.
    ToServer,
    /// Nowhere: the client gets this error.
    Nowhere(Refusal),
}

/// An abandoned statement that is being killed, counted until dropped. It also counts as a session, so that a
/// process that exits waits for it.
struct Abandoning(Rc<Worker>);

thread_local! {
    static ABANDONING: Cell<u32> = const { Cell::new(0) };
    static OPEN_BEYOND: Cell<u32> = const { Cell::new(0) };
}

/// A KILL that is being sent to a session's connection, counted until dropped.
struct Aim(Arc<KillEntry>);

impl Aim {
    fn at(entry: &Arc<KillEntry>) -> Aim {
        entry.aimed_at.fetch_add(1, Ordering::SeqCst);
        Aim(entry.clone())
    }
}

impl Drop for Aim {
    fn drop(&mut self) {
        self.0.aimed_at.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection beyond a backend's configured `max_connections`, counted until dropped.
struct Beyond;

impl Beyond {
    fn begin() -> Option<Beyond> {
        let count = OPEN_BEYOND.get();
        (count < MOST_BEYOND).then(|| {
            OPEN_BEYOND.set(count + 1);
            Beyond
        })
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        OPEN_BEYOND.set(OPEN_BEYOND.get() - 1);
    }
}

impl Abandoning {
    fn begin(worker: &Rc<Worker>) -> Option<Abandoning> {
        let count = ABANDONING.get();
        if count >= MOST_ABANDONED {
            return None;
        }
        ABANDONING.set(count + 1);
        worker.totals.sessions.fetch_add(1, Ordering::Relaxed);
        Some(Abandoning(worker.clone()))
    }
}

impl Drop for Abandoning {
    fn drop(&mut self) {
        ABANDONING.set(ABANDONING.get() - 1);
        self.0.totals.sessions.fetch_sub(1, Ordering::Release);
    }
}

/// The session's entry for KILL, removed when dropped.
pub struct Killable {
    pub id: u32,
    entry: Arc<KillEntry>,
}

/// An id for a new client connection. Each process starts at a random id, so that after an upgrade an id from
/// the old process does not name another session in the new one.
pub fn next_connection_id() -> u32 {
    static LAST: LazyLock<AtomicU32> = LazyLock::new(|| {
        let mut bytes = std::process::id().to_ne_bytes();
        // If this fails, the process id at least differs from that of the previous process.
        let _ = aws_lc_rs::rand::fill(&mut bytes);
        AtomicU32::new(u32::from_ne_bytes(bytes))
    });
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) | OWN_ID
}

fn sessions() -> MutexGuard<'static, HashMap<u32, Arc<KillEntry>>> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KillEntry {
    fn user(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Killable {
    /// Records that the session now has another account.
    pub fn rename(&self, user: &[u8]) {
        *self.entry.user() = user.into();
    }

    /// Registers a session of `user` at the pool of this name; `waker` is that of its task.
    pub fn new(id: u32, user: &[u8], pool: &str, waker: Waker) -> Killable {
        let entry = Arc::new(KillEntry {
            user: Mutex::new(user.into()),
            pool: pool.into(),
            waker,
            is_doomed: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            is_interrupted: AtomicBool::new(false),
            aimed_at: AtomicU32::new(0),
            place: AtomicU64::new(0),
            is_told: AtomicBool::new(false),
        });
        sessions().insert(id, entry.clone());
        Killable { id, entry }
    }

    /// Whether a KILL has ended the session.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.entry.is_killed.load(Ordering::Acquire)
    }

    /// Whether the loss of the session's connection was caused by a KILL of the session.
    pub fn is_doomed(&self) -> bool {
        self.entry.is_doomed.load(Ordering::Acquire)
    }

    /// Records where the session's statements run from now on; `None` for nowhere.
    ///
    /// It is sequentially consistent with a KILL that counts itself in `aimed_at` and then reads this. Either
    /// the KILL finds nothing to kill, or [`Self::is_aimed_at`] returns true after this call.
    #[inline]
    pub fn note(&self, attached: Option<&Attached>) {
        let place = attached.map_or(0, |attached| {
            let server = short_id(attached.chosen.backend(), attached.server.connection.moves());
            ConnectionPlace { server, thread_id: attached.server.thread_id }.bits()
        });
        self.entry.is_told.store(false, Ordering::Relaxed);
        self.entry.place.store(place, Ordering::SeqCst);
    }

    /// Records that the client was told the server's id of the attached connection.
    pub fn note_told(&self) {
        self.entry.is_told.store(true, Ordering::Release);
    }

    /// Records that a statement begins to look for a server.
    #[inline]
    pub fn begin_wait(&self) {
        self.entry.is_interrupted.store(false, Ordering::Release);
    }

    /// The error for a statement that waits for a server, if a KILL has ended it or its session meanwhile.
    pub fn refusal(&self) -> Option<Refusal> {
        let is_killed = self.is_killed();
        let end = is_killed.then_some(End::Killed);
        (is_killed || self.entry.is_interrupted.load(Ordering::Acquire))
            .then(|| Refusal { error: ServerError::interrupted(), end })
    }

    /// Whether a KILL is being sent to the connection that the session has, or had. Another session must not
    /// get it.
    #[inline]
    pub fn is_aimed_at(&self) -> bool {
        self.entry.aimed_at.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        sessions().remove(&self.id);
    }
}

impl Session {
    /// Where a KILL goes. `id` is the connection id that it names, as far as that is known here.
    pub fn aim_of(&self, verdict: &StatementVerdict, id: Option<u64>) -> KillGoes {
        let id = id.and_then(|id| u32::try_from(id).ok());
        if let Some(id) = id.filter(|id| id & OWN_ID != 0) {
            return match verdict.statements {
                ..=1 => KillGoes::Here(id, verdict.kill.is_some_and(|target| target.query_only)),
                _ => KillGoes::Nowhere(Refusal::kill_among_others(id)),
            };
        }
        let names_itself = verdict.reads_back.has(ReadsBack::CONNECTION_ID);
        let pool = self.pool();
        let is_alone = pool.as_ref().is_some_and(|pool| pool.backends.len() == 1);
        if names_itself || is_alone {
            return KillGoes::ToServer;
        }
        let is_anywhere = self.facts.access == SplitAccess::ReadOnly;
        if is_anywhere && !self.keeps_connection() {
            return KillGoes::Nowhere(Refusal::kill_at_which_server());
        }
        let here = match &self.attached {
            Some(attached) if self.keeps_connection() => {
                Some(short_id(attached.chosen.backend(), attached.server.connection.moves()))
            }
            _ => pool.and_then(|pool| {
                let mut servers = pool.backends.iter();
                let primary = servers.find(|it| it.shared.balance.role() == Some(Role::Primary))?;
                Some(short_id_now(primary))
            }),
        };
        match id {
            Some(id) if self.is_told_of_elsewhere(id, here) => {
                KillGoes::Nowhere(Refusal::kill_at_which_server())
            }
            _ => KillGoes::ToServer,
        }
    }

    /// Whether a client of this pool was told this id (`CONNECTION_ID()`) of its connection to another server
    /// than `here`: the same number there is another connection.
    fn is_told_of_elsewhere(&self, id: u32, here: Option<u32>) -> bool {
        let Some(pool) = self.pool() else { return false };
        sessions().values().any(|entry| {
            let place = ConnectionPlace::of(entry.place.load(Ordering::SeqCst));
            let is_elsewhere = place.is_some_and(|place| place.thread_id == id && Some(place.server) != here);
            is_elsewhere && entry.is_told.load(Ordering::Acquire) && *entry.pool == *pool.shared.config.name
        })
    }

    /// Runs an execution of a prepared KILL; `None` if it goes to a server as any other.
    pub async fn kill_by_execution(
        &mut self,
        incoming: Incoming,
        statement: u32,
        verdict: &StatementVerdict,
    ) -> Option<Result<(), End>> {
        // A number: servers take no parameter here.
        let goes = self.aim_of(verdict, verdict.kill.and_then(|target| target.id));
        if !matches!(goes, KillGoes::ToServer) {
            self.statements.keep_types(statement, true);
        }
        match goes {
            KillGoes::Here(id, query_only) => Some(self.kill(incoming, id, query_only).await),
            KillGoes::ToServer => None,
            KillGoes::Nowhere(refusal) => Some(self.refuse_command(&incoming, refusal).await),
        }
    }

    /// The connection id in a COM_PROCESS_KILL.
    pub fn named_in_process_kill(payload: &[u8]) -> Option<u64> {
        killed_connection(payload).ok().map(u64::from)
    }

    /// Kills another session, or its statement, and answers the client.
    pub async fn kill(&mut self, incoming: Incoming, id: u32, query_only: bool) -> Result<(), End> {
        let sequence = incoming.header.sequence.wrapping_add(1);
        self.consume(incoming.packet_bytes());
        if id == self.killable.id {
            let refusal = Refusal::of_server(ServerError::interrupted());
            self.refuse(sequence, refusal).await?;
            return if query_only { Ok(()) } else { Err(End::Killed) };
        }
        let entry = sessions().get(&id).cloned();
        let Some(entry) = entry else {
            return self.refuse(sequence, Refusal::of_server(ServerError::unknown_thread(id))).await;
        };
        let aim = Aim::at(&entry);
        if let Some(place) = ConnectionPlace::of(entry.place.load(Ordering::SeqCst))
            && let Some(pool) = self.pool()
        {
            let worker = self.worker.clone();
            let connect = self.listener().shared.config.timeout.connect;
            let header = ProxyHeader::of(&pool, &self.client, || self.stream.local_addr());
            let (kind, deadline) = (&self.kind, &self.deadline);
            let sender = Sender { worker: &worker, kind, deadline, connect, header };
            // Set before the server closes the connection, so that this does not count as a lost server.
            entry.is_doomed.store(!query_only, Ordering::Release);
            if let Err(refusal) = sender.send(&pool, place, query_only).await {
                entry.is_doomed.store(false, Ordering::Release);
                return self.refuse(sequence, refusal).await;
            }
        } else if *entry.user() != self.kind.account.user
            || self.pool().is_none_or(|pool| *pool.shared.config.name != *entry.pool)
        {
            // The target has no server connection, so there is no server to check the privilege.
            return self.refuse(sequence, Refusal::of_server(ServerError::not_owner(id))).await;
        }
        drop(aim);
        match query_only {
            true => entry.is_interrupted.store(true, Ordering::Release),
            false => entry.is_killed.store(true, Ordering::Release),
        }
        entry.waker.wake_by_ref();
        self.answer_ok(sequence).await
    }

    /// Handles a connection whose statement no client waits for: kills the connection, which ends the
    /// statement, its transaction and its locks.
    pub fn abandon(&mut self, attached: Attached) {
        let Some(under_way) = Abandoning::begin(&self.worker) else { return };
        let worker = self.worker.clone();
        let connect = self.listener().shared.config.timeout.connect;
        let header = ProxyHeader::of(&attached.chosen.pool, &self.client, || self.stream.local_addr());
        tokio::task::spawn_local(async move {
            let waker = std::future::poll_fn(|context| std::task::Poll::Ready(context.waker().clone())).await;
            let deadline = worker.deadlines.register(waker);
            let Attached { chosen, server, .. } = attached;
            if server.connection.moves() != chosen.backend().shared.resolved.moves() {
                // At the address of now, the id would be that of a stranger's connection.
                return;
            }
            let address = chosen.backend().shared.address.clone();
            let (kind, deadline) = (&server.kind, &deadline);
            let sender = Sender { worker: &worker, kind, deadline, connect, header };
            // The KILL goes to the server that runs the statement, even if it would not be picked now.
            if let Err(refusal) = sender.send_to(chosen, server.thread_id, false).await {
                let error = refusal.error.packet();
                tracing::debug!(backend = address, %error, "an abandoned statement goes on");
            }
            drop(server);
            drop(under_way);
        });
    }
}

/// The account and means with which a KILL is sent.
struct Sender<'a> {
    worker: &'a Rc<Worker>,
    kind: &'a ConnectionKind,
    deadline: &'a Deadline,
    connect: Duration,
    /// The PROXY header for a new connection.
    header: ProxyHeader,
}

impl Sender<'_> {
    async fn send(
        &self,
        pool: &Rc<WorkerPool>,
        place: ConnectionPlace,
        query_only: bool,
    ) -> Result<(), Refusal> {
        // The KILL goes to the server of the connection, even if it is full or would not be picked now.
        let servers = pool.backends.iter().enumerate();
        let mut fitting = servers.filter(|(_, it)| short_id_now(it) == place.server);
        let (Some((index, _)), None) = (fitting.next(), fitting.next()) else {
            return Err(Refusal::failed("the server of the connection is away", &pool.shared.config.name));
        };
        self.send_to(pool.choose_at(index), place.thread_id, query_only).await
    }

    async fn send_to(&self, chosen: Chosen, thread_id: u32, query_only: bool) -> Result<(), Refusal> {
        let pool = chosen.pool.clone();
        let connected = self.connection(&chosen).await;
        let (mut server, beyond) = connected.map_err(|unfit| unfit.refusal(&pool.shared.config.name))?;
        let sql = format!("KILL {}{thread_id}", if query_only { "QUERY " } else { "" });
        self.deadline.set(own::until());
        let asked = Own::Query(sql.as_bytes());
        match own::ask(&mut server, &self.worker.buffers, self.deadline, asked).await {
            Ok(answer) => {
                // A connection beyond the limit is closed.
                if beyond.is_none() {
                    Attached::new(chosen, server).give_back(clock::now());
                }
                match answer {
                    OwnAnswer::Refused(error) => Err(Refusal::of_server(error)),
                    _ => Ok(()),
                }
            }
            Err(failure) => Err(Refusal::failed(&failure.to_string(), &pool.shared.config.name)),
        }
    }

    /// An idle connection, or a new one. The new one may exceed the backend's configured `max_connections`,
    /// because that is just when something needs to be killed.
    async fn connection(&self, chosen: &Chosen) -> Result<(Box<ServerConnection>, Option<Beyond>), Unfit> {
        let backend = chosen.backend();
        if let Some(server) = backend.kept::<IdleServers>().take_any(backend, self.kind) {
            return Ok((server, None));
        }
        self.deadline.set(clock::now() + self.connect);
        let login = ServerLogin {
            account: &self.kind.account,
            capabilities: self.kind.capabilities,
            max_packet_bytes: 1 << 24,
            collation: self.kind.collation,
            database: None,
            attributes: b"",
            compression: None,
        };
        let mut beyond = None;
        let mut logged_in = attach::log_in(self.worker, chosen, self.deadline, &self.header, &login).await;
        if let Err(AttachError::Connect(ConnectError::Full { .. })) = &logged_in
            && let Some(counted) = Beyond::begin()
        {
            beyond = Some(counted);
            self.deadline.set(clock::now() + self.connect);
            logged_in = attach::log_in_beyond(self.worker, chosen, self.deadline, &self.header, &login).await;
        }
        let mut server = ServerConnection::of_login(logged_in.map_err(Unfit::Attach)?, self.kind.clone());
        server.statements = ServerStatements::counted_in(chosen.backend().shared.prepared.clone());
        settle(&mut server, &self.worker.buffers, self.deadline, None).await?;
        Ok((server, beyond))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::serving;

    #[tokio::test(flavor = "local")]
    async fn a_place_is_that_of_one_server_at_one_address() {
        let (worker, _) = serving(
            "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:3306'\npool = 'db'\n[pool.db]\n\
             backends = ['10.0.0.1:3306', '10.0.0.2:3306']\n[pool.db.mysql]\ntopology = 'static'\n",
        );
        let pool = worker.pool("db").expect("the pool of the config");
        let [one, other] = [0, 1].map(|index| &*pool.backends[index]);
        assert_ne!(short_id(one, 0), short_id(other, 0));
        assert_ne!(short_id(one, 0), short_id(one, 1), "its name has another address since");
        assert_eq!(short_id(one, 0), short_id_now(one));
        let place = ConnectionPlace { server: short_id(one, 0), thread_id: 0x8000_0001 };
        assert!(ConnectionPlace::of(place.bits()) == Some(place) && ConnectionPlace::of(0).is_none());
    }
}
