//! Finds a connection for a session's statement: it picks a server in the role that the statement needs,
//! takes an idle connection of the session's account or opens one, and brings it to the session's state.

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use weir_balance::{PickInput, Role, WantedRole};
use weir_config::PoolMysql;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_mysql::ReadsBack;
use weir_mysql::error_number::ER_DBACCESS_DENIED_ERROR;

use super::attach::{self, AttachError, ServerError, ServerLogin};
use super::confirm::settle;
use super::exchange::ServerFailure;
use super::failure::Refusal;
use super::own::{self, NOTHING, Own};
use super::prepared::ServerStatements;
use super::server::{IdleServers, ServerConnection};
use super::session::{LeftAt, Session};
use super::unfinished::Begun;
use super::unfit::Unfit;
use crate::backends::{Chosen, ProxyHeader, WorkerPool, elapsed};
use crate::reach::{Attempt, Got, Park, Reach, RetryVerdict, Unavailable, Wish, choose_first};
use crate::worker::Worker;

/// The server that a session uses, and the connection to it.
pub struct Attached {
    pub chosen: Chosen,
    pub server: Box<ServerConnection>,
    /// Where the connection goes when it is given back.
    idle: Rc<IdleServers>,
    /// Whether the server was the primary when its role was last known.
    is_primary: bool,
    /// Whether it has been the primary at any time since the session attached.
    pub was_primary: bool,
}

impl Attached {
    pub fn new(chosen: Chosen, server: Box<ServerConnection>) -> Attached {
        let idle = chosen.backend().kept();
        let mut attached = Attached { chosen, server, idle, is_primary: false, was_primary: false };
        attached.is_at_primary();
        attached
    }

    /// For a server that was just chosen in this role: it is the primary if that was wanted.
    #[inline]
    fn chosen_as(
        role: WantedRole,
        idle: Rc<IdleServers>,
        chosen: Chosen,
        server: Box<ServerConnection>,
    ) -> Attached {
        let is_primary = role == WantedRole::Primary;
        let mut attached = Attached { chosen, server, idle, is_primary, was_primary: is_primary };
        if !is_primary {
            attached.is_at_primary();
        }
        attached
    }

    /// Whether the server is the primary. A server without a role keeps its last one while no other server is
    /// the primary: a check may just have missed it, and it will itself refuse writes if it must.
    pub fn is_at_primary(&mut self) -> bool {
        match self.role() {
            Some(role) => self.is_primary = role == Role::Primary,
            None => self.is_primary &= !self.chosen.pool.shared.has_primary(),
        }
        self.was_primary |= self.is_primary;
        self.is_primary
    }

    /// The server's current role.
    pub fn role(&self) -> Option<Role> {
        self.chosen.backend().shared.balance.role()
    }

    /// Whether the pool's primary is monitored.
    pub fn is_watched(&self) -> bool {
        let mysql = self.chosen.pool.shared.config.mysql.as_ref();
        mysql.is_some_and(PoolMysql::is_watched)
    }

    /// The server's address, which names it.
    pub fn address(&self) -> &str {
        &self.chosen.backend().shared.address
    }

    /// Makes the connection available to all sessions; returns its stamp, which stays valid until another
    /// session uses the connection.
    pub fn give_back(self, now: Duration) -> u64 {
        keep(&self.idle, &self.chosen, self.server, now)
    }
}

/// Makes a connection to the chosen server available to all sessions, as [`Attached::give_back`] does.
pub fn give_back(chosen: &Chosen, server: Box<ServerConnection>, now: Duration) -> u64 {
    keep(&chosen.backend().kept(), chosen, server, now)
}

fn keep(idle: &IdleServers, chosen: &Chosen, server: Box<ServerConnection>, now: Duration) -> u64 {
    idle.keep(chosen.backend(), server, now, chosen.pool.shared.config.keep_alive.max)
}

/// The kind of connection that a statement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Any connection of the session's account, brought to the session's state.
    Shared,
    /// A new connection: the statement asks about the identity of its connection, and the session keeps it
    /// from then on.
    Own,
}

impl Begun {
    /// Nothing is chosen yet; `but` is the name of a server that was just lost.
    fn anew(pool: &WorkerPool, role: WantedRole, but: Option<&str>, now: Duration) -> Begun {
        let except = but.and_then(|but| pool.backends.iter().position(|it| it.shared.address == but));
        let reach = Reach::begin(pool, wish(pool, role), now).elsewhere(except);
        Begun { reach, chosen: None, found: None }
    }

    /// [`choose_first`] has chosen a server, or none.
    #[cold]
    fn behind_first(
        pool: &WorkerPool,
        role: WantedRole,
        chosen: Option<Chosen>,
        found: Option<Box<ServerConnection>>,
    ) -> Box<Begun> {
        let reach = Reach::behind_first(pool, wish(pool, role), chosen.as_ref());
        Box::new(Begun { reach, chosen, found })
    }
}

impl Session {
    /// Attaches the session to a server in this role; `but` is the name of a server that was just lost.
    ///
    /// # Errors
    /// The error for the client. Nothing of the statement was sent.
    pub async fn attach(&mut self, role: WantedRole, whose: Whose, but: Option<&str>) -> Result<(), Refusal> {
        let mut begun = self.unfinished.attach.take();
        self.killable.begin_wait();
        if role == WantedRole::Read && self.has_untold_writes {
            Box::pin(self.learn_writes()).await;
        }
        // If they could not be learnt, read from the primary, which has all writes.
        let is_known = !self.has_untold_writes || self.pool().is_none_or(|pool| !pool.shared.has_primary());
        let role = if is_known { role } else { WantedRole::Primary };
        if whose == Whose::Shared && but.is_none() && begun.is_none() {
            match self.attach_at_once(role) {
                Ok(()) => return Ok(()),
                Err(unfinished) => begun = unfinished,
            }
        }
        // The part that waits is a separate future, so that statements that need no wait do not carry its
        // state.
        Box::pin(self.attach_waiting(role, whose, but, begun)).await
    }

    async fn attach_waiting(
        &mut self,
        mut role: WantedRole,
        whose: Whose,
        but: Option<&str>,
        mut begun: Option<Box<Begun>>,
    ) -> Result<(), Refusal> {
        let mut is_behind = false;
        loop {
            match self.attach_in(role, whose, but, begun.take()).await? {
                Some(mut attached) => {
                    if is_behind {
                        self.forget_lost_writes(&mut attached).await;
                    }
                    self.take_attached(attached);
                    // Whoever killed it was told that it does not run.
                    return self.killable.refusal().map_or(Ok(()), Err);
                }
                // The primary has all writes.
                None => (role, is_behind) = (WantedRole::Primary, true),
            }
        }
    }

    /// A connection to the primary in addition to the session's own; `None` if none is available.
    pub async fn primary_aside(&mut self) -> Option<Attached> {
        self.attach_in(WantedRole::Primary, Whose::Shared, None, None).await.ok().flatten()
    }

    fn take_attached(&mut self, attached: Attached) {
        self.killable.note(Some(&attached));
        if self.insert_id.is_none() {
            // Only a connection that has been closed knew it.
            self.insert_id_before = None;
        }
        // Not even a LAST_INSERT_ID() of 0, with which a connection begins: a view may have set another for
        // the session before, and no answer says so.
        self.here = ReadsBack::NONE;
        self.attached = Some(attached);
    }

    /// Attaches the session if that needs no wait: a server is available now, and an idle connection to it is
    /// already in the session's state, as for most statements. Err has what was begun, to continue with.
    pub fn attach_at_once(&mut self, role: WantedRole) -> Result<(), Option<Box<Begun>>> {
        let pool = self.pool().ok_or(None)?;
        if pool.shared.queue.depth_of(Some(role)) > 0 {
            return Err(None);
        }
        let in_role = Wish { role: Some(role), ..Wish::default() };
        let Ok(chosen) = choose_first(&self.worker, &pool, in_role, self.now) else {
            return Err(Some(Begun::behind_first(&pool, role, None, None)));
        };
        self.suit_state_to(&chosen);
        let backend = chosen.backend();
        let longest = pool.shared.config.keep_alive.idle;
        let idle = backend.kept::<IdleServers>();
        let may_be_behind = role == WantedRole::Read && !self.is_caught_up(&idle, &chosen);
        let found = idle.take(backend, &self.kind, &self.state, self.now, longest);
        match found {
            Some(server)
                if !may_be_behind && !server.has_insert_id && Rc::ptr_eq(&server.state, &self.state) =>
            {
                backend.cells().reused.increment();
                self.report.backend = Some(chosen.index);
                self.report.pool = Some(pool);
                self.take_attached(Attached::chosen_as(role, idle, chosen, server));
                Ok(())
            }
            found => Err(Some(Begun::behind_first(&pool, role, Some(chosen), found))),
        }
    }

    /// `None` if the chosen server lacks writes of the session.
    async fn attach_in(
        &mut self,
        role: WantedRole,
        whose: Whose,
        but: Option<&str>,
        begun: Option<Box<Begun>>,
    ) -> Result<Option<Attached>, Refusal> {
        let Some(pool) = self.pool() else { return Err(Refusal::draining()) };
        let name = &pool.shared.config.name;
        let mut now = self.now;
        let begun = begun.map_or_else(|| Begun::anew(&pool, role, but, now), |begun| *begun);
        let Begun { mut reach, chosen: mut before, mut found } = begun;
        let retries_before = self.report.retries;
        loop {
            let Session { worker, stream, slot, deadline, killable, .. } = &mut *self;
            let client_gone = |context: &mut Context<'_>| {
                let until = slot.draining_until();
                until.iter().for_each(|until| deadline.no_later_than(*until));
                let is_draining = until.is_some_and(|until| until <= clock::now());
                is_draining || killable.refusal().is_some() || stream.poll_left(context)
            };
            let got = match before.take() {
                Some(chosen) => Ok(Got { chosen, queued: None }),
                None => reach.choose(worker, &pool, deadline, now, client_gone).await,
            };
            if let Some(queued) = got.as_ref().map_or_else(|why| why.queued(), |got| got.queued) {
                self.report.queue = Some(self.report.queue.unwrap_or_default() + queued);
                self.now = clock::now();
            }
            let Got { chosen, .. } = got.map_err(|why| {
                if is_want_of_a_server(why) {
                    pool.cells().failed.increment();
                }
                self.killable.refusal().unwrap_or_else(|| Refusal::unavailable(why, name))
            })?;
            self.report.backend = Some(chosen.index);
            let unfit = match self.ready(&chosen, role, whose, found.take()).await {
                Ok(server) => {
                    let mut attached = Attached::new(chosen, server);
                    if role == WantedRole::Primary && attached.role() == Some(Role::Secondary) {
                        // It was the primary when it was chosen, but preparing the connection took time.
                        attached.give_back(self.now);
                        now = clock::now();
                        continue;
                    }
                    if role == WantedRole::Primary {
                        (attached.is_primary, attached.was_primary) = (true, true);
                    }
                    self.report.pool = Some(pool);
                    return Ok(Some(attached));
                }
                Err(unfit) => unfit,
            };
            if role == WantedRole::Read && unfit.may_be_behind() && self.is_behind_primary(&pool, &chosen) {
                return Ok(None);
            }
            if unfit.lacks_schema() && self.leave_schema() {
                before = Some(chosen);
                continue;
            }
            match unfit {
                Unfit::Behind => return Ok(None),
                Unfit::Refused(refusal) => return Err(refusal),
                Unfit::Server(ServerFailure::NoMemory) => return Err(Refusal::overload()),
                Unfit::Attach(AttachError::Refused(error)) if !error.is_about_server() => {
                    self.forget_refused(&chosen, &error);
                    return Err(Refusal::of_server(error));
                }
                Unfit::Attach(_) | Unfit::Server(_) => {}
            }
            unfit.note(&chosen, &self.worker);
            if role == WantedRole::Primary && unfit.blames_server() {
                take_role_off(&chosen);
            }
            let attempt = Attempt::unsent(unfit.retried_as());
            let listener = self.listener();
            let cells = listener.shared.cells.of(self.worker.number);
            let verdict = reach.after(&pool, &chosen, &attempt, cells);
            self.report.retries = retries_before + reach.retries();
            if verdict == RetryVerdict::Leave {
                return Err(unfit.refusal(name));
            }
            now = clock::now();
        }
    }

    /// Drops idle connections of the session's account to this server, if the server refuses the account.
    fn forget_refused(&self, chosen: &Chosen, error: &ServerError) {
        if error.refuses_account() {
            chosen.backend().kept::<IdleServers>().forget(&self.kind.account);
        }
    }

    /// Continues without the default schema, which no longer exists, as a server would. Statements that need
    /// none still run. A connection cannot leave its schema, so another connection is used. `false` if the
    /// session had no schema.
    fn leave_schema(&mut self) -> bool {
        let was_in_one = self.state.schema().is_some();
        if was_in_one {
            let state = Rc::new(self.state.without_schema());
            self.take_state(&state);
        }
        was_in_one
    }

    /// Whether the chosen server replicates from the primary, and there is a primary.
    fn is_behind_primary(&self, pool: &WorkerPool, chosen: &Chosen) -> bool {
        chosen.backend().shared.balance.role() != Some(Role::Primary) && pool.shared.has_primary()
    }

    /// A connection to the chosen server, ready for the session's next statement.
    async fn ready(
        &mut self,
        chosen: &Chosen,
        role: WantedRole,
        whose: Whose,
        found: Option<Box<ServerConnection>>,
    ) -> Result<Box<ServerConnection>, Unfit> {
        self.suit_state_to(chosen);
        let backend = chosen.backend();
        let idle = backend.kept::<IdleServers>();
        let longest = chosen.pool.shared.config.keep_alive.idle;
        let found = match whose {
            Whose::Shared => found.or_else(|| idle.take(backend, &self.kind, &self.state, self.now, longest)),
            Whose::Own => None,
        };
        let mut server = match found {
            Some(server) => {
                backend.cells().reused.increment();
                server
            }
            None => {
                let logged_in = self.log_in(chosen).await;
                self.now = clock::now();
                logged_in?
            }
        };
        if server.has_insert_id {
            self.deadline.set(own::until());
            let asked = Own::Query(b"DO LAST_INSERT_ID(0)");
            let answer = own::ask(&mut server, &self.worker.buffers, &self.deadline, asked).await;
            self.now = clock::now();
            answer.map_err(Unfit::Server)?;
            server.has_insert_id = false;
        }
        if !Rc::ptr_eq(&server.state, &self.state) {
            self.deadline.set(own::until());
            let state = self.state.clone();
            let done = own::synchronise(&mut server, &self.worker.buffers, &self.deadline, &state).await;
            self.now = clock::now();
            done.map_err(Unfit::Server)?.map_err(|error| Unfit::Refused(Refusal::of_state(error)))?;
        }
        if role == WantedRole::Read && backend.shared.balance.role() != Some(Role::Primary) {
            self.catch_up(&mut server, &idle, chosen).await?;
        }
        Ok(server)
    }

    /// Opens a connection to the chosen server, in the session's schema if a login packet can name it.
    async fn log_in(&mut self, chosen: &Chosen) -> Result<Box<ServerConnection>, Unfit> {
        let begun = clock::now();
        self.deadline.set(begun + self.listener().shared.config.timeout.connect);
        let header = ProxyHeader::of(&chosen.pool, &self.client, || self.stream.local_addr());
        let mut login = ServerLogin { database: self.state.schema_for_login(), ..self.candidate.at_server() };
        let mut logged_in = attach::log_in(&self.worker, chosen, &self.deadline, &header, &login).await;
        // The account may have access to its schema only through the session's roles, and a new login may
        // have other roles.
        if let Err(AttachError::Refused(error)) = &logged_in
            && error.code == ER_DBACCESS_DENIED_ERROR
            && login.database.take().is_some()
        {
            logged_in = attach::log_in(&self.worker, chosen, &self.deadline, &header, &login).await;
        }
        let logged_in = logged_in.map_err(Unfit::Attach)?;
        chosen.backend().kept::<IdleServers>().forget_executed();
        let latency = elapsed(begun);
        chosen.observe_success(clock::now(), latency);
        self.report.connect = Some(self.report.connect.unwrap_or_default() + latency);
        let mut server = ServerConnection::of_login(logged_in, self.kind.clone());
        server.statements = ServerStatements::counted_in(chosen.backend().shared.prepared.clone());
        settle(&mut server, &self.worker.buffers, &self.deadline, None).await?;
        Ok(server)
    }

    /// Attaches the session to the connection that it used last, if no other session has used it since and
    /// its server has a suitable role.
    pub fn recall(&mut self, is_fit: impl Fn(Option<Role>) -> bool) -> bool {
        let (Some(left_at), Some(pool)) = (self.left_at, self.pool()) else { return false };
        for (index, backend) in pool.backends.iter().enumerate() {
            if !is_fit(backend.shared.balance.role()) {
                continue;
            }
            if let Some(server) = backend.kept::<IdleServers>().take_stamped(backend, left_at.stamp) {
                let sticky = Some(backend.shared.balance.id());
                let input = PickInput { now: clock::now(), sticky, ..PickInput::default() };
                let chosen = pool.choose(&input).ok().filter(|chosen| chosen.index == index);
                let Some(chosen) = chosen else { return false };
                let attached = Attached::new(chosen, server);
                self.killable.note(Some(&attached));
                (self.attached, self.here) = (Some(attached), left_at.here);
                return true;
            }
        }
        false
    }

    /// Gives back a connection that is held only for a possible question of the next statement. Asks for the
    /// answers first, as far as they can be kept.
    pub async fn release_held(&mut self) {
        let Some(attached) = &self.attached else { return };
        if self.insert_id.is_some() && !attached.server.is_untold {
            return self.leave();
        }
        let asks_for_id = self.insert_id.is_none();
        // The query replaces what the statement had left, so the connection is again as others expect it.
        let learnt = match asks_for_id {
            true => self.learn_insert_id(b"SELECT LAST_INSERT_ID(), LAST_INSERT_ID(0)").await,
            false => self.ask_attached(NOTHING).await.map(|_| ()),
        };
        if asks_for_id {
            self.here = self.here.without(ReadsBack::INSERT_ID);
        }
        let is_known = learnt.is_ok();
        if is_known && let Some(attached) = &mut self.attached {
            attached.server.has_insert_id &= !asks_for_id;
            if self.keeps_connection() {
                // The failed statement had left something after all.
                return;
            }
        }
        self.killable.note(None);
        if is_known
            && !self.killable.is_aimed_at()
            && let Some(attached) = self.attached.take()
        {
            attached.give_back(self.now);
        }
        (self.attached, self.left_at) = (None, None);
    }

    /// Gives the connection back. The session returns to it if nobody else has used it by the time it asks
    /// about what it left there.
    pub fn leave(&mut self) {
        self.killable.note(None);
        let (here, now, is_aimed_at) = (self.here, self.now, self.killable.is_aimed_at());
        let attached = self.attached.take().filter(|_| !is_aimed_at);
        self.left_at = attached.and_then(|attached| {
            let stamp = self.give_back_told(attached, now)?;
            Some(LeftAt { stamp, here })
        });
    }

    /// As [`Attached::give_back`], once the server has reported what a failed statement left. `None` if that
    /// must be asked for first.
    fn give_back_told(&self, attached: Attached, now: Duration) -> Option<u64> {
        if attached.server.is_untold || attached.server.is_unknown {
            let worker = self.worker.clone();
            tokio::task::spawn_local(async move { ask_and_give_back(worker, attached).await });
            return None;
        }
        Some(attached.give_back(now))
    }

    /// Handles the session's connection at the end of the session. State that others must not find on it is
    /// removed at once, because it may include locks.
    pub fn detach(&mut self) {
        self.killable.note(None);
        let Some(attached) = self.attached.take() else { return };
        let is_others = attached.server.is_at_rest && self.pins.behind_reset().is_empty();
        if !is_others || self.killable.is_aimed_at() {
            return;
        }
        if !self.keeps_connection() {
            self.give_back_told(attached, clock::now());
            return;
        }
        let worker = self.worker.clone();
        tokio::task::spawn_local(async move { reset(&worker, attached, &own_deadline(&worker).await).await });
    }
}

/// Takes the role from a server that was believed to be the primary but cannot be reached or refuses writes,
/// until the pool's monitor has checked it again. Statements for the primary wait meanwhile. If the pool is
/// not monitored, the server keeps its role.
pub fn take_role_off(chosen: &Chosen) {
    let pool = &chosen.pool.shared;
    let is_watched = pool.config.mysql.as_ref().is_some_and(PoolMysql::is_watched);
    if is_watched && chosen.backend().shared.balance.role() == Some(Role::Primary) {
        pool.set_roles([(chosen.index, None)], clock::now());
        pool.nudge.ask();
    }
}

/// The requirements of a statement on its pool.
pub fn wish(pool: &WorkerPool, role: WantedRole) -> Wish {
    let mysql = pool.shared.config.mysql.as_ref().filter(|mysql| !mysql.park.is_zero());
    let park = mysql.map(|mysql| Park { longest: mysql.park, most: mysql.park_max });
    Wish { role: Some(role), park, ..Wish::default() }
}

/// A deadline for the current task, for Weir's own statements.
async fn own_deadline(worker: &Rc<Worker>) -> Deadline {
    let waker = std::future::poll_fn(|context| std::task::Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    deadline.set(own::until());
    deadline
}

/// Finds out what a failed statement has left on a connection that its session has given up, removes it, and
/// makes the connection available.
async fn ask_and_give_back(worker: Rc<Worker>, mut attached: Attached) {
    let deadline = own_deadline(&worker).await;
    match own::ask(&mut attached.server, &worker.buffers, &deadline, NOTHING).await {
        Ok(_) if attached.server.is_unknown => reset(&worker, attached, &deadline).await,
        Ok(_) => {
            attached.give_back(clock::now());
        }
        Err(failure) => {
            tracing::debug!(backend = attached.address(), ?failure, "a connection says nothing of its state");
        }
    }
}

/// Removes a former session's state from a connection and makes it available.
async fn reset(worker: &Rc<Worker>, mut attached: Attached, deadline: &Deadline) {
    let settled = own::settle(&mut attached.server, &worker.buffers, deadline, Some(Own::Reset)).await;
    match settled {
        // With other roles, or without the effects of `init_connect`, no session can use it.
        Ok(settled) if settled.has_own_roles && !settled.has_init_connect => {
            attached.give_back(clock::now());
        }
        Ok(_) => {}
        Err(failure) => {
            tracing::debug!(backend = attached.address(), ?failure, "a connection could not be reset");
        }
    }
}

/// Whether a statement failed because no server had the role that it needs.
fn is_want_of_a_server(why: Unavailable) -> bool {
    match why {
        Unavailable::NoneUp
        | Unavailable::NoneInRole
        | Unavailable::ParkFull
        | Unavailable::ParkTimeout { .. } => true,
        Unavailable::QueueFull | Unavailable::QueueTimeout { .. } | Unavailable::ClientGone { .. } => false,
    }
}

/// The number in the first column of the first row.
pub fn number(rows: &[Vec<Option<Box<[u8]>>>]) -> Option<u64> {
    let value = rows.first()?.first()?.as_deref()?;
    std::str::from_utf8(value).ok()?.parse().ok()
}
