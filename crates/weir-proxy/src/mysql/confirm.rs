//! Confirms logins with a server: Weir admits no client on its own authority.
//!
//! If there is an idle connection of the same account, it is logged in again, which costs a server an eighth
//! of a new connection. Otherwise a new connection is opened, which the session's statements will then use.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Context;

use weir_balance::{Role, WantedRole};
use weir_config::MysqlAccess;
use weir_io::buffers::Buffers;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_mysql::state::TrackedState;

use super::acquire::{Attached, give_back, wish};
use super::attach::{self, AttachError, ServerLogin};
use super::exchange::ServerFailure;
use super::failure::Refusal;
use super::login::{Candidate, Denied, LoginTerms};
use super::own::{self, Own, Settled};
use super::prepared::ServerStatements;
use super::report::Report;
use super::server::{ConnectionKind, IdleServers, ServerConnection};
use super::unfit::Unfit;
use crate::backends::{Chosen, ProxyHeader, WorkerPool};
use crate::client::Client;
use crate::reach::{Attempt, Reach, RetryVerdict};
use crate::worker::{Worker, WorkerListener};

/// The context in which a server confirms a login.
pub struct Confirming<'a> {
    worker: &'a Rc<Worker>,
    listener: &'a Rc<WorkerListener>,
    pool: &'a Rc<WorkerPool>,
    /// The session's own deadline.
    deadline: &'a Deadline,
    client: Client,
    /// The data for the log line.
    report: &'a RefCell<Report>,
}

impl<'a> Confirming<'a> {
    /// For a login on these terms, by this client.
    pub fn of(terms: &LoginTerms<'a>, client: Client) -> Confirming<'a> {
        let LoginTerms { worker, listener, pool, deadline, report, .. } = *terms;
        Confirming { worker, listener, pool, deadline, client, report }
    }

    /// Lets a server decide; returns the initial state of a session of the candidate. Gives up its place in
    /// the queue when the client disconnects.
    pub async fn run(&self, candidate: &Candidate, client: &mut Stream) -> Result<Rc<TrackedState>, Denied> {
        let name = &self.pool.shared.config.name;
        let header = ProxyHeader::of(self.pool, &self.client, || client.local_addr());
        let now = clock::now();
        let mut reach = Reach::begin(self.pool, wish(self.pool, WantedRole::Read), now);
        let retries_before = self.report.borrow().retries;
        let mut primary = self.choose_primary();
        loop {
            let chosen = match primary.take() {
                Some(chosen) => {
                    reach.note(self.pool, &chosen);
                    chosen
                }
                None => {
                    let left = |context: &mut Context<'_>| client.poll_left(context);
                    let got = reach.choose(self.worker, self.pool, self.deadline, clock::now(), left).await;
                    got.map_err(|why| denied(Refusal::unavailable(why, name), why.end()))?.chosen
                }
            };
            let unfit = match self.ask(&chosen, candidate, &header).await {
                Ok(server) => return Ok(state_of(chosen, server)),
                Err(unfit) => unfit,
            };
            if let Some(denied) = settled(&unfit) {
                let word = match &denied {
                    Denied::Refused(error) if error.may_be_behind() && is_secondary(&chosen) => {
                        self.ask_primary_too(candidate, &header, denied).await
                    }
                    _ => Err(denied),
                };
                if word.as_ref().is_err_and(Denied::refuses_account) {
                    for backend in &self.pool.backends {
                        backend.kept::<IdleServers>().forget(&candidate.account);
                    }
                }
                return word;
            }
            unfit.note(&chosen, self.worker);
            let attempt = Attempt::unsent(unfit.retried_as());
            let cells = self.listener.shared.cells.of(self.worker.number);
            let verdict = reach.after(self.pool, &chosen, &attempt, cells);
            self.report.borrow_mut().retries = retries_before + reach.retries();
            if verdict == RetryVerdict::Leave {
                return Err(denied(unfit.refusal(name), weir_stats::table::End::ConnectFailed));
            }
        }
    }

    /// Asks the primary about a login that a secondary refused, because the account or schema may have been
    /// created just now. If there is no primary, the secondary's refusal stands.
    async fn ask_primary_too(
        &self,
        candidate: &Candidate,
        header: &ProxyHeader,
        denied: Denied,
    ) -> Result<Rc<TrackedState>, Denied> {
        let Some(chosen) = self.primary() else { return Err(denied) };
        match self.ask(&chosen, candidate, header).await {
            Ok(server) => Ok(state_of(chosen, server)),
            Err(unfit) => Err(settled(&unfit).unwrap_or(denied)),
        }
    }

    /// The primary, if all statements of the listener go there and it is available now: the new connection is
    /// then useful.
    fn choose_primary(&self) -> Option<Chosen> {
        let access = self.listener.shared.config.mysql().map(|mysql| mysql.access);
        if access == Some(MysqlAccess::ReadWrite) { self.primary() } else { None }
    }

    fn primary(&self) -> Option<Chosen> {
        if self.pool.shared.queue.depth() > 0 {
            return None;
        }
        let wish = wish(self.pool, WantedRole::Primary);
        let now = clock::now();
        let mut reach = Reach::begin_paying(self.pool, wish, now, false);
        let chosen = reach.choose_now(self.worker, self.pool, now);
        // A server that was just lost is left to the usual retries.
        chosen.ok().filter(|chosen| chosen.backend().shared.balance.is_up())
    }

    /// Lets a server decide, over an idle connection that is switched to the candidate, or over a new one.
    async fn ask(
        &self,
        chosen: &Chosen,
        candidate: &Candidate,
        header: &ProxyHeader,
    ) -> Result<Box<ServerConnection>, Unfit> {
        let kept = chosen.backend().kept::<IdleServers>();
        let kind = ConnectionKind::of(candidate);
        let idle = (!kept.has_init_connect()).then(|| kept.take_any(chosen.backend(), &kind)).flatten();
        if let Some(server) = idle {
            let (server, settled) = self.change_user(chosen, candidate, server).await?;
            kept.note_init_connect(settled.has_init_connect);
            if !settled.has_init_connect {
                return Ok(server);
            }
        }
        let (server, settled) = self.log_in(chosen, candidate, header).await?;
        kept.note_init_connect(settled.has_init_connect);
        Ok(server)
    }

    /// Logs in again over an idle connection, and changes to the schema only after that. If the login named a
    /// schema that the server refuses, the server would close the connection; a client that repeats this
    /// would use up the account's idle connections.
    async fn change_user(
        &self,
        chosen: &Chosen,
        candidate: &Candidate,
        mut server: Box<ServerConnection>,
    ) -> Result<(Box<ServerConnection>, Settled), Unfit> {
        chosen.backend().cells().reused.increment();
        self.deadline.set(own::until());
        server.is_at_rest = false;
        let (connection, capabilities) = (&mut server.connection, server.capabilities);
        let login = candidate.at_server();
        let schema = login.database.filter(|name| !name.is_empty()).map(Own::Schema);
        let login = ServerLogin { database: None, ..login };
        attach::change_user(self.worker, chosen, connection, capabilities, self.deadline, &login)
            .await
            .map_err(Unfit::Attach)?;
        server.note_renewed();
        match settle(&mut server, &self.worker.buffers, self.deadline, schema).await {
            Ok(settled) => Ok((server, settled)),
            Err(unfit) => {
                if unfit.lacks_schema() {
                    give_back(chosen, server, clock::now());
                }
                Err(unfit)
            }
        }
    }

    async fn log_in(
        &self,
        chosen: &Chosen,
        candidate: &Candidate,
        header: &ProxyHeader,
    ) -> Result<(Box<ServerConnection>, Settled), Unfit> {
        self.deadline.set(clock::now() + self.listener.shared.config.timeout.connect);
        let begun = clock::now();
        let login = candidate.at_server();
        let logged_in = attach::log_in(self.worker, chosen, self.deadline, header, &login).await;
        let logged_in = logged_in.map_err(Unfit::Attach)?;
        chosen.backend().kept::<IdleServers>().forget_executed();
        chosen.observe_success(clock::now(), clock::now().saturating_sub(begun));
        let mut server = ServerConnection::of_login(logged_in, ConnectionKind::of(candidate));
        server.statements = ServerStatements::counted_in(chosen.backend().shared.prepared.clone());
        let settled = settle(&mut server, &self.worker.buffers, self.deadline, None).await?;
        Ok((server, settled))
    }
}

/// The server's final decision, if it has made one.
fn settled(unfit: &Unfit) -> Option<Denied> {
    match unfit {
        Unfit::Attach(AttachError::Refused(error)) if !error.is_about_server() => {
            Some(Denied::Refused(error.clone()))
        }
        Unfit::Attach(AttachError::Plugin(plugin)) => Some(Denied::Plugin(plugin.clone())),
        _ => None,
    }
}

fn is_secondary(chosen: &Chosen) -> bool {
    chosen.backend().shared.balance.role() == Some(Role::Secondary)
}

/// The initial state of a session on this connection, which is then made available.
fn state_of(chosen: Chosen, server: Box<ServerConnection>) -> Rc<TrackedState> {
    let state = server.state.clone();
    Attached::new(chosen, server).give_back(clock::now());
    state
}

/// Reads the initial state of a connection that was just logged in; `first` as for [`own::settle`].
pub async fn settle(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    first: Option<Own<'_>>,
) -> Result<Settled, Unfit> {
    deadline.set(own::until());
    own::settle(server, buffers, deadline, first).await.map_err(|failure| match failure {
        // Directly after a login, this error belongs to the login: an expired password, or an exhausted
        // account limit.
        ServerFailure::Refused(error) => Unfit::Attach(AttachError::Refused(error)),
        failure => Unfit::Server(failure),
    })
}

fn denied(refusal: Refusal, end: weir_stats::table::End) -> Denied {
    Denied::Unavailable(refusal.error, end)
}
