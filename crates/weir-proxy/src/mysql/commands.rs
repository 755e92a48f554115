//! What a session does about each command of its client.

use weir_io::clock;
use weir_io::stream::Stream;
use weir_io::wait::send_all;
use weir_mysql::capability::Capabilities;
use weir_mysql::command::{ClientCommand, STATEMENT_ID, set_statement_id, statement_id};
use weir_mysql::hidden::names_any;
use weir_mysql::hint;
use weir_mysql::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES, PacketHeader};
use weir_mysql::parameters::{ANY_CURSOR, ExecuteParts, QueryParts};
use weir_mysql::{
    BeyondReadOnly, LeftBehind, NamesCollation, ReadsBack, Resend, RoleWanted, RouteReason, SessionFacts,
    StatementKind, StatementVerdict, TableUse, TransactionStep, classify_head, collation_of_set_names,
};
use weir_state::hidden;
use weir_stats::table::End;

use super::acquire::{Attached, Whose};
use super::attach::ServerError;
use super::confirm::Confirming;
use super::failure::{self, Refusal};
use super::fitting::CollationTold;
use super::login::{self, Candidate, LoginTerms};
use super::own;
use super::prepared::{Bound, ClientStatement, MOST_OF_SESSION, StatementText};
use super::server::ConnectionKind;
use super::session::{Incoming, Session, wanted_role};
use super::statement::{Attempted, Losses, Running};
use super::upload::{Beginning, Source};
use crate::tcp::relay::{self, FirstBytes, Heard, Paces, Pair, Terms};

impl Session {
    /// Serves one command.
    ///
    /// # Errors
    /// How the session ends.
    pub async fn serve(&mut self, incoming: Incoming) -> Result<(), End> {
        let command = incoming.command.and_then(ClientCommand::of);
        let Some(command) = command else {
            return self.refuse_command(&incoming, Refusal::unknown_command()).await;
        };
        if self.has_lost_transaction && matches!(command, ClientCommand::Query | ClientCommand::StmtExecute) {
            self.has_lost_transaction = false;
            let step = match command {
                ClientCommand::Query if incoming.is_whole => self.judge_query(&incoming).transaction,
                _ => TransactionStep::None,
            };
            match step {
                TransactionStep::Rollback { chain: false, release: false } if self.completes_plainly() => {
                    self.consume(incoming.packet_bytes());
                    return self.send_ok(incoming.header.sequence.wrapping_add(1)).await;
                }
                // A server begins the next transaction, or closes: there is nothing to roll back.
                TransactionStep::Rollback { .. } => {}
                _ => {
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
            ClientCommand::Query => {
                let verdict = self.judge_query(&incoming);
                if let Some((id, query_only)) =
                    Session::own_target(verdict.kill).filter(|_| incoming.is_whole)
                {
                    return Box::pin(self.kill(incoming, id, query_only)).await;
                }
                self.run_statement(Running { incoming, command, verdict, prepares: None, executes: None })
                    .await
            }
            ClientCommand::StmtPrepare => Box::pin(self.prepare(incoming)).await,
            ClientCommand::StmtExecute => self.execute(incoming).await,
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
            ClientCommand::ProcessKill if Session::own_target_of(self.payload(&incoming)).is_some() => {
                let (id, query_only) = Session::own_target_of(self.payload(&incoming)).unwrap_or_default();
                Box::pin(self.kill(incoming, id, query_only)).await
            }
            ClientCommand::ResetConnection => Box::pin(self.reset(incoming)).await,
            other => Box::pin(self.run_other(incoming, other)).await,
        }
    }

    /// Whether the end of a transaction is nothing else, where its statement does not say so
    /// (`completion_type`).
    fn completes_plainly(&self) -> bool {
        matches!(self.state.variable("completion_type"), None | Some(b"NO_CHAIN" | b"0"))
    }

    /// The payload of a command, as much of it as is in the buffer.
    fn payload(&self, incoming: &Incoming) -> &[u8] {
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

    /// What the text of a statement that runs says of the connection's collation: see
    /// [`collation_of_set_names`].
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

    fn judge(&self, text: &[u8], incoming: &Incoming, facts: &SessionFacts) -> StatementVerdict {
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
    fn names_hidden_code(&self, text: &[u8]) -> bool {
        let Some(pool) = self.pool() else { return false };
        names_any(text, self.facts.dialect, |name| pool.shared.has_code_behind(name))
    }

    /// What is to be thought of a command that is no text: `wants`, and nothing left behind.
    fn verdict_of(&self, wants: RoleWanted, leaves: LeftBehind) -> StatementVerdict {
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
            tables: TableUse::Unused,
        };
        verdict.under(&self.facts)
    }

    /// Commands that are sent as they came.
    async fn run_other(&mut self, incoming: Incoming, command: ClientCommand) -> Result<(), End> {
        let verdict = match command {
            // A schema that is refused adds its error to what the statement before has left.
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
            | ClientCommand::RegisterSlave
            | ClientCommand::Clone
            | ClientCommand::SubscribeGroupReplicationStream => return self.dedicate(incoming).await,
            ClientCommand::ChangeUser => return self.change_user(incoming).await,
            ClientCommand::ProcessInfo | ClientCommand::ProcessKill => {
                self.verdict_of(RoleWanted::Primary, LeftBehind::NONE)
            }
            _ => {
                let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::NONE);
                StatementVerdict { changes: true, ..verdict }
            }
        };
        let running = Running { incoming, command, verdict, prepares: None, executes: None };
        let passes_over =
            matches!(command, ClientCommand::Ping | ClientCommand::InitDb | ClientCommand::Statistics);
        // These leave what the statement before has left, so they go where that is.
        if passes_over
            && self.attached.is_some()
            && let Attempted::Answered(_) =
                self.attempt(&running, Beginning::default(), &mut Losses::default()).await?
        {
            return Ok(());
        }
        self.run_statement(running).await
    }

    /// A new session of the same account: what was the client's is off its connection, or was never on one,
    /// but for what a server itself keeps.
    async fn reset(&mut self, incoming: Incoming) -> Result<(), End> {
        let sequence = incoming.header.sequence.wrapping_add(1);
        self.consume(incoming.packet_bytes());
        if self.attached.is_none()
            && let Err(refusal) = self.attach(wanted_role(RoleWanted::AnyMember), Whose::Shared, None).await
        {
            return self.refuse(sequence, refusal).await;
        }
        let Some(attached) = &mut self.attached else { return Err(End::Internal) };
        self.deadline.set(own::until());
        let settled = own::settle(&mut attached.server, &self.worker.buffers, &self.deadline, true).await;
        self.now = clock::now();
        if settled.is_err() {
            self.attached = None;
            return Err(End::BackendClosed);
        }
        let state = attached.server.state.clone();
        let pins = self.pins.behind_reset();
        self.begin(&state);
        self.pins = pins;
        if pins.is_empty() {
            self.leave();
        }
        self.send_ok(sequence).await
    }

    /// Another account, which proves itself anew; nothing of the one before is left.
    async fn change_user(&mut self, incoming: Incoming) -> Result<(), End> {
        if !incoming.is_whole {
            return self.refuse_command(&incoming, Refusal::unknown_command()).await;
        }
        let payload = zeroize::Zeroizing::new(self.payload(&incoming).to_vec());
        self.consume(incoming.packet_bytes());
        self.detach();
        let (listener, pool) = (self.listener(), self.pool().ok_or(End::NoBackend)?);
        let terms = LoginTerms {
            worker: &self.worker,
            listener: &listener,
            pool: &pool,
            deadline: &self.deadline,
            client: self.client.address.ip(),
            offers: Capabilities::NONE,
        };
        let confirming = Confirming {
            worker: &self.worker,
            listener: &listener,
            pool: &pool,
            deadline: &self.deadline,
            client: self.client,
        };
        let confirm =
            async |candidate: &Candidate, client: &mut Stream| confirming.run(candidate, client).await;
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let changed = login::change_user(&terms, stream, buffer, &payload, &self.candidate, confirm).await;
        let (mut candidate, state, sequence) = changed?;
        if candidate.account.user == self.candidate.account.user {
            candidate.session = self.candidate.session.take();
        }
        self.kind = ConnectionKind::of(&candidate);
        self.candidate = candidate;
        (self.written, self.has_untold_writes) = (None, false);
        self.killable.rename(&self.kind.account.user);
        self.begin(&state);
        self.send_ok(sequence).await
    }

    async fn prepare(&mut self, incoming: Incoming) -> Result<(), End> {
        if self.statements.is_full() {
            return self.refuse_command(&incoming, Refusal::too_many_statements(MOST_OF_SESSION)).await;
        }
        let text = self.payload(&incoming).get(1..).unwrap_or_default();
        // Outside of transactions: what the session is in counts when it is executed.
        let SessionFacts { dialect, is_in_own_schema, .. } = self.facts;
        let neutral = SessionFacts { dialect, is_in_own_schema, ..SessionFacts::default() };
        let verdict = self.judge(text, &incoming, &neutral);
        let text = match incoming.is_whole {
            true => StatementText::new(text, self.state.clone()),
            false => StatementText::not_kept(self.state.clone()),
        };
        let id = self.statements.next_id();
        // Preparing leaves nothing of what executing does.
        let prepares = StatementVerdict {
            leaves: if incoming.is_whole { LeftBehind::NONE } else { LeftBehind::ANYTHING },
            reads_back: ReadsBack::NONE,
            transaction: TransactionStep::None,
            resend: Resend::Anywhere,
            changes: false,
            beyond_read_only: BeyondReadOnly::Nothing,
            tables: TableUse::Unused,
            ..verdict.under(&self.facts)
        };
        let running = Running {
            incoming,
            command: ClientCommand::StmtPrepare,
            verdict: prepares,
            prepares: Some((&text, id)),
            executes: None,
        };
        let mut losses = Losses::default();
        let prepared = loop {
            if let Err(refusal) = self.attach_for(&running.verdict, losses.last()).await {
                return self.refuse_command(&running.incoming, refusal).await;
            }
            match self.attempt(&running, Beginning::default(), &mut losses).await? {
                Attempted::Answered(prepared) => break prepared,
                Attempted::Again => {}
            }
        };
        if let Some(prepared) = prepared {
            let statement = ClientStatement {
                text,
                parameter_count: prepared.parameter_count,
                verdict,
                types: Box::default(),
                new_types: None,
                bound: Bound::NONE,
            };
            self.statements.insert(id, statement);
        }
        Ok(())
    }

    async fn execute(&mut self, incoming: Incoming) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        self.statements.keep_apart(id);
        let capabilities = self.kind.capabilities;
        let Some(statement) = self.statements.get_mut(id) else {
            let refusal = Refusal::unknown_statement(id);
            return self.refuse_command(&incoming, refusal).await;
        };
        let parameter_count = statement.parameter_count;
        let received = self.buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
        let payload =
            received.get(HEADER_BYTES..incoming.packet_bytes().min(received.len())).unwrap_or_default();
        let Ok(parts) = ExecuteParts::parse(payload, parameter_count, capabilities) else {
            let error = ServerError::new(1835, *b"HY000", "Malformed communication packet");
            return self.refuse_command(&incoming, Refusal::of_server(error)).await;
        };
        if parts.types_follow.is_some_and(|(_, follow)| !follow) && statement.types.is_empty() {
            // Others have said some to the server's statement of this text, if there is one.
            statement.keep_apart();
        }
        let (text, verdict) = (statement.text.clone(), statement.verdict_under(&self.facts));
        let verdict = match parts.flags & ANY_CURSOR {
            0 => verdict,
            _ => bound_to_its_connection(verdict, &self.facts),
        };
        // What is sent in the place of the front of the packet: with the server's number, and with types.
        let mut front = Vec::with_capacity(64);
        let replaced = match parts.types_follow {
            Some((_, true)) => {
                let types = payload.get(parts.types.clone()).unwrap_or_default();
                statement.new_types = (*statement.types != *types).then(|| types.into());
                front.extend_from_slice(received.get(..HEADER_BYTES + STATEMENT_ID.end).unwrap_or_default());
                front.len()
            }
            Some((flag_at, false)) if !statement.types.is_empty() => {
                let here = received.get(..HEADER_BYTES + flag_at).unwrap_or_default();
                front.extend_from_slice(here);
                front.push(1);
                front.extend_from_slice(&statement.types);
                let grown = incoming.header.payload_bytes as usize + statement.types.len();
                if grown >= MAX_PAYLOAD_BYTES {
                    // It would take another packet, and answers are counted behind the client's.
                    return self.refuse_command(&incoming, Refusal::types_not_named()).await;
                }
                let header = PacketHeader { payload_bytes: grown as u32, sequence: incoming.header.sequence };
                if let Some(place) = front.first_chunk_mut::<HEADER_BYTES>() {
                    *place = header.to_bytes();
                }
                HEADER_BYTES + flag_at + 1
            }
            // Types that were never said are the server's to miss.
            Some((_, false)) | None => {
                front.extend_from_slice(received.get(..HEADER_BYTES + STATEMENT_ID.end).unwrap_or_default());
                front.len()
            }
        };
        let running = Running {
            incoming,
            command: ClientCommand::StmtExecute,
            verdict,
            prepares: None,
            executes: Some(id),
        };
        let mut losses = Losses::default();
        loop {
            if let Err(refusal) = self.attach_for(&running.verdict, losses.last()).await {
                return self.refuse_command(&incoming, refusal).await;
            }
            let on_server = match self.prepared_on_attached(&text).await {
                Ok(Ok(on_server)) => on_server,
                Ok(Err(refusal)) => return self.refuse_command(&incoming, refusal).await,
                Err(()) if !self.keeps_connection() && losses.add() => continue,
                Err(()) => return Err(End::BackendClosed),
            };
            if let Some(payload) = front.get_mut(HEADER_BYTES..) {
                set_statement_id(payload, on_server).ok();
            }
            let beginning = Beginning { replaced, by: &front };
            if let Attempted::Answered(_) = self.attempt(&running, beginning, &mut losses).await? {
                return Ok(());
            }
        }
    }

    /// A piece of a parameter: there is no answer, and the pieces must be where the statement is executed.
    async fn send_long_data(&mut self, incoming: Incoming) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        self.statements.keep_apart(id);
        let Some(statement) = self.statements.get_mut(id) else {
            // A server passes over what belongs to no statement.
            return if incoming.is_whole { self.drop_command(&incoming) } else { Err(End::BadRequest) };
        };
        if statement.types.is_empty() {
            statement.keep_apart();
        }
        let (text, verdict) = (statement.text.clone(), statement.verdict_under(&self.facts));
        let verdict = bound_to_its_connection(verdict, &self.facts);
        // What a piece is for is asked when all are there.
        let verdict = StatementVerdict {
            changes: false,
            leaves: LeftBehind::NONE,
            beyond_read_only: BeyondReadOnly::Nothing,
            ..verdict
        };
        if self.attach_for(&verdict, None).await.is_err() {
            // What the statement asks about may be known no more, which its execution is told.
            let reads_back = verdict.reads_back.without(ReadsBack::ABOUT_THE_LAST.and(ReadsBack::INSERT_ID));
            let asks_nothing = StatementVerdict { reads_back, ..verdict };
            if self.attach_for(&asks_nothing, None).await.is_err() {
                return Err(End::NoBackend);
            }
        }
        // Behind that: what is bound keeps its connection, wherever it is.
        self.set_bound(id, |bound| bound.has_pieces = true);
        let Ok(Ok(on_server)) = self.prepared_on_attached(&text).await else {
            return Err(End::BackendClosed);
        };
        self.set_bound(id, |bound| bound.has_pieces = true);
        let front = self.renamed(on_server);
        let Session { worker, stream, buffer, deadline, attached, now, .. } = &mut *self;
        let Some(attached) = attached else { return Err(End::Internal) };
        let buffers = &worker.buffers;
        let mut source = Source { client: stream, buffer, buffers, deadline, received: 0 };
        let beginning = Beginning { replaced: front.len(), by: &front };
        if source.send_command(&mut attached.server, &incoming, beginning, *now).await.is_err() {
            attached.server.is_at_rest = false;
            return Err(End::BackendClosed);
        }
        if incoming.is_whole { self.drop_command(&incoming) } else { Ok(()) }
    }

    fn drop_command(&mut self, incoming: &Incoming) -> Result<(), End> {
        self.consume(incoming.packet_bytes());
        Ok(())
    }

    /// The front of a command that is about a statement, with the number that the server knows it by.
    fn renamed(&self, on_server: u32) -> Vec<u8> {
        let mut front = self.received().get(..HEADER_BYTES + STATEMENT_ID.end).unwrap_or_default().to_vec();
        if let Some(payload) = front.get_mut(HEADER_BYTES..) {
            set_statement_id(payload, on_server).ok();
        }
        front
    }

    /// The client forgets a statement. On connections to servers it stays, for whoever prepares the same; but
    /// not where something of the client's is left with it.
    async fn close_statement(&mut self, incoming: Incoming) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        let front = self.received().get(..incoming.packet_bytes()).unwrap_or_default().to_vec();
        self.consume(incoming.packet_bytes());
        let is_own = |statement: &ClientStatement| statement.bound.is_any() || !statement.text.is_whole();
        let Some(statement) = self.statements.remove(id).filter(is_own) else { return Ok(()) };
        let Some(attached) = &mut self.attached else { return Ok(()) };
        if let Some(on_server) = attached.server.statements.remove(&statement.text) {
            let mut front = front;
            if let Some(payload) = front.get_mut(HEADER_BYTES..) {
                set_statement_id(payload, on_server).ok();
            }
            self.deadline.set(own::until());
            let sent = send_all(&mut *attached.server.connection, &front, &self.deadline, || {}).await;
            if sent.is_err() {
                attached.server.is_at_rest = false;
                return Err(End::BackendClosed);
            }
        }
        if !self.keeps_connection() && self.held.is_empty() {
            self.leave();
        }
        Ok(())
    }

    /// Rows of a statement's cursor, or the end of it.
    async fn continue_statement(&mut self, incoming: Incoming, command: ClientCommand) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        let Some(statement) = self.statements.get_mut(id) else {
            let refusal = Refusal::unknown_statement(id);
            return self.refuse_command(&incoming, refusal).await;
        };
        let is_fetch = command == ClientCommand::StmtFetch;
        let is_bound = if is_fetch { statement.bound.has_cursor } else { statement.bound.is_any() };
        let text = statement.text.clone();
        // There is nothing to reset, but whether a transaction is open the server knows best: no error says.
        let is_at_hand = |attached: &mut Attached| attached.server.statements.find(&text).is_some();
        let is_there = self.attached.as_mut().is_some_and(|it| is_bound || (!is_fetch && is_at_hand(it)));
        if !is_there {
            if is_fetch {
                return self.refuse_command(&incoming, Refusal::no_cursor(id)).await;
            }
            self.consume(incoming.packet_bytes());
            return self.send_ok(incoming.header.sequence.wrapping_add(1)).await;
        }
        let Ok(Ok(on_server)) = self.prepared_on_attached(&text).await else {
            return Err(End::BackendClosed);
        };
        let front = self.renamed(on_server);
        let beginning = Beginning { replaced: front.len(), by: &front };
        let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::NONE);
        let running = Running { incoming, command, verdict, prepares: None, executes: Some(id) };
        self.attempt(&running, beginning, &mut Losses::default()).await?;
        Ok(())
    }

    /// A command after which a connection serves nothing else: from here on its bytes are relayed.
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
            // Servers close TLS without a word.
            ends_unsaid: true,
            paces: Paces::default(),
            ender: attached.server.connection.ender(),
            heard: Heard::default(),
        };
        let first = FirstBytes { from_client: self.buffer.take(), from_backend: None };
        let pair = Pair { client: &mut self.stream, backend: &mut *attached.server.connection };
        let client_cells = listener.shared.cells.of(self.worker.number);
        let cells = attached.chosen.backend().cells();
        let relayed = relay::run(
            pair,
            first,
            terms,
            || self.slot.draining_until(),
            |up, down| {
                client_cells.bytes_received.add(up);
                client_cells.bytes_sent.add(down);
                cells.bytes_sent.add(up);
                cells.bytes_received.add(down);
            },
        );
        let relayed = relayed.await;
        self.report.to_client += relayed.from_backend;
        Err(relayed.end)
    }
}

/// Whether a command may be longer than what is kept of it in one piece.
fn may_be_long(command: ClientCommand) -> bool {
    matches!(
        command,
        ClientCommand::Query
            | ClientCommand::StmtPrepare
            | ClientCommand::StmtExecute
            | ClientCommand::StmtSendLongData
    )
}

/// A read that ties the session to its connection for a while: to the primary, for what comes meanwhile may
/// be a write.
fn bound_to_its_connection(verdict: StatementVerdict, facts: &SessionFacts) -> StatementVerdict {
    let own_reason = match verdict.own_reason.wants() {
        RoleWanted::AnyMember => RouteReason::Cursor,
        RoleWanted::Primary => verdict.own_reason,
    };
    StatementVerdict { own_reason, ..verdict }.under(facts)
}
