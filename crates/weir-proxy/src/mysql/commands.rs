//! How a session handles each command of its client.

use std::cell::RefCell;
use std::future::poll_fn;
use std::time::Duration;

use weir_io::clock;
use weir_io::stream::Stream;
use weir_mysql::capability::Capabilities;
use weir_mysql::command::ClientCommand;
use weir_mysql::hidden::names_any;
use weir_mysql::hint;
use weir_mysql::packet::HEADER_BYTES;
use weir_mysql::parameters::QueryParts;
use weir_mysql::{
    BeyondReadOnly, LeftBehind, NamesCollation, ReadsBack, Resend, RoleWanted, RouteReason, SessionFacts,
    StatementKind, StatementVerdict, TableUse, TransactionStep, classify_head, collation_of_set_names,
};
use weir_state::hidden;
use weir_stats::table::End;

use super::acquire::{Attached, Whose};
use super::at_once::{AtOnce, Otherwise};
use super::confirm::Confirming;
use super::deposed::PrimaryAsked;
use super::exchange::ServerFailure;
use super::failure::{self, Refusal};
use super::fitting::CollationTold;
use super::kill::KillGoes;
use super::login::{self, Candidate, LoginTerms};
use super::own::{self, Own, Waiting};
use super::server::ConnectionKind;
use super::session::{EXECUTE, Incoming, Session, wanted_role};
use super::statement::{Attempted, Losses, Running};
use super::upload::Beginning;
use super::written::Written;
use crate::tcp::relay::{self, FirstBytes, Heard, Paces, Pair, Terms};

/// How to handle the next statement after a transaction was lost.
pub enum BehindLoss {
    /// It succeeds: the transaction is already rolled back.
    Done,
    /// It runs: a server begins the next transaction or closes the connection, and there is nothing to roll
    /// back.
    Anew,
    /// The client gets error 1213.
    Told,
}

impl Session {
    /// Serves commands until the session ends.
    pub async fn run(&mut self) -> End {
        loop {
            let mut at_once = AtOnce::default();
            let otherwise = poll_fn(|context| self.poll_at_once(context, &mut at_once)).await;
            let served = match *otherwise {
                Otherwise::Waited(wait) => self.end_wait(wait).await,
                Otherwise::Received => self.serve_next().await,
                Otherwise::Query(running) => self.run_query(running).await,
                Otherwise::Execution(incoming, execution) => self.run_execution(incoming, execution).await,
                Otherwise::Unsent(rest) => self.send_behind(self.now, rest.filled()).await,
                Otherwise::Over(end) => Err(end),
            };
            if let Err(end) = served {
                return self.tell_what_broke(end).await;
            }
        }
    }

    /// Serves the command whose beginning was received.
    async fn serve_next(&mut self) -> Result<(), End> {
        let incoming = self.next_command().await?;
        if incoming.header.sequence != 0 {
            // A server would end the connection that it came on, which others share.
            return self.refuse(0, Refusal::out_of_order()).await;
        }
        match incoming.command {
            Some(EXECUTE) => self.execute(incoming).await,
            _ => self.serve(incoming).await,
        }
    }

    /// Runs a COM_QUERY.
    ///
    /// # Errors
    /// How the session ends.
    pub async fn run_query(&mut self, running: Running<'_>) -> Result<(), End> {
        match running.verdict.kill.filter(|_| running.incoming.is_whole) {
            Some(target) => Box::pin(self.run_kill(running, target.id)).await,
            None => self.run_statement(running).await,
        }
    }

    /// Classifies a COM_QUERY.
    #[inline]
    pub fn query_of(&self, incoming: Incoming) -> Running<'static> {
        let (command, verdict) = (ClientCommand::Query, self.judge_query(&incoming));
        Running { incoming, command, verdict, prepares: None, executes: None, asks_cursor: false }
    }

    /// Serves one command, other than COM_STMT_EXECUTE ([`Self::execute`]).
    ///
    /// # Errors
    /// How the session ends.
    pub async fn serve(&mut self, incoming: Incoming) -> Result<(), End> {
        let command = incoming.command.and_then(ClientCommand::of);
        let Some(command) = command else {
            return self.refuse_command(&incoming, Refusal::unknown_command()).await;
        };
        // An execution gets this error once its types are known.
        if self.has_lost_transaction && command == ClientCommand::Query {
            self.has_lost_transaction = false;
            let step = match incoming.is_whole {
                true => self.judge_query(&incoming).transaction,
                false => TransactionStep::None,
            };
            match self.behind_loss(step) {
                BehindLoss::Done => {
                    self.consume(incoming.packet_bytes());
                    return self.answer_ok(incoming.header.sequence.wrapping_add(1)).await;
                }
                BehindLoss::Anew => {}
                BehindLoss::Told => {
                    let refusal = Refusal::of_server(failure::rolled_back());
                    return self.refuse_command(&incoming, refusal).await;
                }
            }
        }
        if !incoming.is_whole && !may_be_long(command) {
            return self.refuse_command(&incoming, Refusal::unknown_command()).await;
        }
        match command {
            ClientCommand::Quit => Err(End::Done),
            ClientCommand::Query => self.run_query(self.query_of(incoming)).await,
            ClientCommand::StmtPrepare => Box::pin(self.prepare(incoming)).await,
            ClientCommand::StmtSendLongData => Box::pin(self.send_long_data(incoming)).await,
            ClientCommand::StmtClose => self.close_statement(incoming).await,
            ClientCommand::StmtReset | ClientCommand::StmtFetch => {
                Box::pin(self.continue_statement(incoming, command)).await
            }
            ClientCommand::Ping if self.attached.is_none() => {
                self.forget_row_count();
                self.consume(incoming.packet_bytes());
                self.send_ok(incoming.header.sequence.wrapping_add(1)).await
            }
            ClientCommand::ProcessKill => {
                let id = Session::named_in_process_kill(self.payload(&incoming));
                let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::NONE);
                let running = Running {
                    incoming,
                    command,
                    verdict,
                    prepares: None,
                    executes: None,
                    asks_cursor: false,
                };
                Box::pin(self.run_kill(running, id)).await
            }
            ClientCommand::ResetConnection => Box::pin(self.reset(incoming)).await,
            other => Box::pin(self.run_other(incoming, other)).await,
        }
    }

    /// Runs a KILL that names this connection id, as far as that is known here.
    async fn run_kill(&mut self, running: Running<'_>, id: Option<u64>) -> Result<(), End> {
        match self.aim_of(&running.verdict, id) {
            KillGoes::Here(id, query_only) => self.kill(running.incoming, id, query_only).await,
            KillGoes::ToServer => self.run_statement(running).await,
            KillGoes::Nowhere(refusal) => self.refuse_command(&running.incoming, refusal).await,
        }
    }

    /// How to handle a statement with this transaction step, if its transaction was lost with the connection.
    pub fn behind_loss(&self, step: TransactionStep) -> BehindLoss {
        match step {
            TransactionStep::Rollback { chain, release }
                if !chain.holds(self.state.chains()) && !release.holds(self.state.releases()) =>
            {
                BehindLoss::Done
            }
            TransactionStep::Rollback { .. } => BehindLoss::Anew,
            _ => BehindLoss::Told,
        }
    }

    /// The payload of a command, as far as it is in the buffer.
    pub fn payload(&self, incoming: &Incoming) -> &[u8] {
        let received = self.received();
        received.get(HEADER_BYTES..incoming.packet_bytes().min(received.len())).unwrap_or_default()
    }

    fn judge_query(&self, incoming: &Incoming) -> StatementVerdict {
        let payload = self.payload(incoming);
        let parts = QueryParts::parse(payload, self.kind.capabilities);
        match parts {
            Ok(parts) => {
                let text = payload.get(parts.text_start..).unwrap_or_default();
                let verdict = self.judge(text, incoming, &self.facts);
                let mut attributes = parts.attributes.iter();
                let hint = attributes.find_map(|it| hint::of_attribute(it.name, it.value?));
                if hint.is_none() { verdict } else { verdict.hinted(hint).under(&self.facts) }
            }
            Err(_) => classify_head(b"", &self.facts),
        }
    }

    /// How a running statement determines the connection's collation: see [`collation_of_set_names`].
    pub fn named_collation(&self, running: &Running<'_>) -> CollationTold {
        let payload = self.payload(&running.incoming);
        let parts = QueryParts::parse(payload, self.kind.capabilities).ok();
        let text = match running.executes.and_then(|id| self.statements.get(id)) {
            Some(statement) => Some(statement.text.text()),
            None => parts.and_then(|parts| payload.get(parts.text_start..)),
        };
        let named = text.filter(|_| running.incoming.is_whole);
        match named.and_then(|text| collation_of_set_names(text, self.facts.dialect)) {
            Some(NamesCollation::OfSet) => CollationTold::ByNames(None),
            Some(NamesCollation::Named(name)) => CollationTold::ByNames(Some(name.into())),
            Some(NamesCollation::OfServer) => CollationTold::ByServer { of_results: true },
            None => CollationTold::ByServer { of_results: false },
        }
    }

    pub fn judge(&self, text: &[u8], incoming: &Incoming, facts: &SessionFacts) -> StatementVerdict {
        let verdict = match incoming.is_whole {
            true => self.worker.mysql_verdicts.classify(text, facts),
            false => classify_head(text, facts),
        };
        match hidden::is_any() && self.names_hidden_code(text) {
            true => verdict.with_hidden_code(facts),
            false => verdict,
        }
    }

    #[cold]
    pub fn names_hidden_code(&self, text: &[u8]) -> bool {
        let Some(pool) = self.pool() else { return false };
        names_any(text, self.facts.dialect, |name| pool.shared.has_code_behind(name))
    }

    /// The verdict on a command that is not SQL text, given where it must run and what it leaves behind.
    pub fn verdict_of(&self, wants: RoleWanted, leaves: LeftBehind) -> StatementVerdict {
        let own_reason = match wants {
            RoleWanted::Primary => RouteReason::Administration,
            RoleWanted::AnyMember => RouteReason::Metadata,
        };
        let verdict = StatementVerdict {
            wants,
            reason: own_reason,
            own_reason,
            kind: StatementKind::Administration,
            statements: 1,
            leaves,
            reads_back: ReadsBack::NONE,
            transaction: TransactionStep::None,
            local_infile: false,
            kill: None,
            resend: if wants == RoleWanted::AnyMember { Resend::Anywhere } else { Resend::Never },
            changes: false,
            beyond_read_only: BeyondReadOnly::Nothing,
            ends_as_set: false,
            tables: TableUse::Unused,
        };
        verdict.under(&self.facts)
    }

    /// Serves the commands that are sent unchanged.
    async fn run_other(&mut self, incoming: Incoming, command: ClientCommand) -> Result<(), End> {
        let verdict = match command {
            // A schema change that fails adds its error to the diagnostics of the previous statement.
            ClientCommand::InitDb if self.is_without_warnings => StatementVerdict {
                reads_back: ReadsBack::WARNINGS,
                ..self.verdict_of(RoleWanted::AnyMember, LeftBehind::NONE)
            },
            ClientCommand::FieldList => StatementVerdict {
                tables: TableUse::Used,
                ..self.verdict_of(RoleWanted::AnyMember, LeftBehind::NONE)
            },
            ClientCommand::InitDb | ClientCommand::Statistics | ClientCommand::Ping => {
                self.verdict_of(RoleWanted::AnyMember, LeftBehind::NONE)
            }
            ClientCommand::SetOption => self.verdict_of(RoleWanted::Primary, LeftBehind::OPTION),
            ClientCommand::BinlogDump
            | ClientCommand::BinlogDumpGtid
            | ClientCommand::TableDump
            | ClientCommand::Clone
            | ClientCommand::SubscribeGroupReplicationStream => return self.dedicate(incoming).await,
            ClientCommand::ChangeUser => return self.change_user(incoming).await,
            // The server lists the connection as a replica until it closes, even after a reset.
            ClientCommand::RegisterSlave => {
                self.verdict_of(RoleWanted::Primary, LeftBehind::ANYTHING.and(LeftBehind::OPTION))
            }
            ClientCommand::ProcessInfo => self.verdict_of(RoleWanted::Primary, LeftBehind::NONE),
            _ => {
                let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::NONE);
                StatementVerdict { changes: true, ..verdict }
            }
        };
        let running =
            Running { incoming, command, verdict, prepares: None, executes: None, asks_cursor: false };
        let passes_over =
            matches!(command, ClientCommand::Ping | ClientCommand::InitDb | ClientCommand::Statistics);
        // The schema change would hide what a statement that failed there has left.
        let hides = command == ClientCommand::InitDb && self.is_only_holding();
        let is_told = self.attached.as_ref().is_some_and(|attached| !hides || !attached.server.is_untold);
        // These commands keep what the previous statement left, so they run where that is.
        if passes_over
            && is_told
            && let Attempted::Answered(_) =
                self.attempt(&running, Beginning::default(), &mut Losses::default()).await?
        {
            return Ok(());
        }
        self.run_statement(running).await
    }

    /// COM_RESET_CONNECTION: starts a new session of the same account. It removes the session's state from
    /// its connection, except for what a server itself keeps.
    async fn reset(&mut self, incoming: Incoming) -> Result<(), End> {
        let sequence = incoming.header.sequence.wrapping_add(1);
        self.consume(incoming.packet_bytes());
        if self.attached.is_none()
            && let Err(refusal) = self.attach(wanted_role(RoleWanted::AnyMember), Whose::Shared, None).await
        {
            return self.refuse(sequence, refusal).await;
        }
        let Session { attached, stream, slot, worker, deadline, .. } = &mut *self;
        let Some(Attached { server, chosen, .. }) = attached else { return Err(End::Internal) };
        // The server may have much to roll back.
        deadline.set(Duration::MAX);
        let waiting = Waiting {
            client: stream,
            slot,
            deadlines: &worker.deadlines,
            deadline,
            primary: PrimaryAsked::of(chosen, RoleWanted::AnyMember, clock::now()),
        };
        let settling = own::settle(server, &worker.buffers, deadline, Some(Own::Reset));
        let settled = own::for_client(waiting, settling).await;
        let state = server.state.clone();
        self.now = clock::now();
        let settled = match settled {
            Ok(settled) => settled,
            Err(ServerFailure::Unwanted) => {
                self.attached.take().into_iter().for_each(|attached| self.abandon(attached));
                return Err(End::ClientClosed);
            }
            Err(_) => {
                self.attached = None;
                return Err(End::BackendClosed);
            }
        };
        let roles = if settled.has_own_roles { LeftBehind::NONE } else { LeftBehind::ROLE };
        // The effects of `init_connect` are gone, which other sessions rely on.
        let beyond = if settled.has_init_connect { LeftBehind::ANYTHING } else { LeftBehind::NONE };
        let pins = self.pins.behind_reset().and(roles).and(beyond);
        self.begin(&state);
        self.pins = pins;
        if pins.is_empty() {
            self.leave();
        }
        self.send_ok(sequence).await
    }

    /// COM_CHANGE_USER: authenticates another account; nothing of the previous session is kept.
    async fn change_user(&mut self, incoming: Incoming) -> Result<(), End> {
        if !incoming.is_whole {
            return self.refuse_command(&incoming, Refusal::unknown_command()).await;
        }
        let payload = zeroize::Zeroizing::new(self.payload(&incoming).to_vec());
        self.consume(incoming.packet_bytes());
        self.detach();
        let (listener, pool) = (self.listener(), self.pool().ok_or(End::NoBackend)?);
        let report = RefCell::new(std::mem::take(&mut self.report));
        let terms = LoginTerms {
            worker: &self.worker,
            listener: &listener,
            pool: &pool,
            deadline: &self.deadline,
            client: self.client.address.ip(),
            offers: Capabilities::NONE,
            report: &report,
        };
        let confirming = Confirming::of(&terms, self.client);
        let confirm =
            async |candidate: &Candidate, client: &mut Stream| confirming.run(candidate, client).await;
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let changed = login::change_user(&terms, stream, buffer, &payload, &self.candidate, confirm).await;
        self.report = report.into_inner();
        let (mut candidate, state, sequence) = changed?;
        if candidate.account.user == self.candidate.account.user {
            candidate.session = self.candidate.session.take();
        }
        self.kind = ConnectionKind::of(&candidate);
        self.candidate = candidate;
        (self.written, self.has_untold_writes) = (Written::default(), false);
        self.killable.rename(&self.kind.account.user);
        self.begin(&state);
        self.send_ok(sequence).await
    }

    /// Serves a command that takes over its connection: from here on, bytes are only relayed.
    async fn dedicate(&mut self, incoming: Incoming) -> Result<(), End> {
        let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::ANYTHING);
        if let Err(refusal) = self.attach_for(&verdict, None).await {
            return self.refuse_command(&incoming, refusal).await;
        }
        let Some(mut attached) = self.attached.take() else { return Err(End::Internal) };
        attached.server.is_at_rest = false;
        let listener = self.slot.current();
        let terms = Terms {
            buffers: &self.worker.buffers,
            deadline: &self.deadline,
            idle: listener.shared.config.timeout.client_idle,
            idle_end: End::ClientIdle,
            // Servers close TLS without close_notify.
            ends_unsaid: true,
            paces: Paces::default(),
            ender: attached.server.connection.ender(),
            heard: Heard::default(),
        };
        // The command itself, and whatever followed it.
        let known = self.buffer.as_ref().map_or(0, |received| received.filled().len() as u64);
        let first = FirstBytes { from_client: self.buffer.take(), from_backend: None };
        let pair = Pair { client: &mut self.stream, backend: &mut *attached.server.connection };
        let client_cells = listener.shared.cells.of(self.worker.number);
        let cells = attached.chosen.backend().cells();
        let relayed = relay::run(
            pair,
            first,
            terms,
            || self.slot.draining_until(),
            relay::counting(client_cells, cells, known),
        );
        let relayed = relayed.await;
        self.report.from_client += relayed.from_client.saturating_sub(known);
        self.report.to_client += relayed.from_backend;
        Err(relayed.end)
    }
}

/// Whether a command may be longer than what is buffered of it.
fn may_be_long(command: ClientCommand) -> bool {
    matches!(command, ClientCommand::Query | ClientCommand::StmtPrepare | ClientCommand::StmtSendLongData)
}
