//! How a session handles the commands for prepared statements.

use std::rc::Rc;

use weir_io::buffers::Charge;
use weir_io::wait::send_all;
use weir_mysql::command::{ClientCommand, STATEMENT_ID, set_statement_id, statement_id};
use weir_mysql::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES, PacketHeader};
use weir_mysql::parameters::{ANY_CURSOR, ExecuteParts, WithoutTypes};
use weir_mysql::{
    BeyondReadOnly, LeftBehind, ReadsBack, Resend, RoleWanted, RouteReason, SessionFacts, StatementVerdict,
    TableUse, TransactionStep,
};
use weir_state::hidden;
use weir_stats::table::End;

use super::acquire::Attached;
use super::failure::{self, Refusal};
use super::own;
use super::prepared::{Bound, ClientStatement, KeptTypes, MOST_OF_SESSION, StatementText};
use super::session::{Incoming, Session};
use super::statement::{Attempted, Losses, Running};
use super::upload::{Beginning, Source};

impl Session {
    /// Prepares a statement, on the connection where it will run first.
    pub async fn prepare(&mut self, incoming: Incoming) -> Result<(), End> {
        if self.statements.is_full() {
            return self.refuse_command(&incoming, Refusal::too_many_statements(MOST_OF_SESSION)).await;
        }
        let text = self.payload(&incoming).get(1..).unwrap_or_default();
        // Classified without a transaction: the session's situation counts at the time of execution.
        let SessionFacts { dialect, is_in_own_schema, .. } = self.facts;
        let neutral = SessionFacts { dialect, is_in_own_schema, ..SessionFacts::default() };
        let verdict = self.judge(text, &incoming, &neutral);
        let state_bytes = self.statements.state_bytes(&self.state);
        let text = match incoming.is_whole {
            true => match self.charge_to_prepare(text.len() + state_bytes) {
                Ok(charge) => StatementText::new(text, self.state.clone(), Some(charge)),
                Err(refusal) => return self.refuse_command(&incoming, refusal).await,
            },
            false => StatementText::not_kept(self.state.clone()),
        };
        let id = self.statements.next_id();
        // Preparing leaves none of the state that executing would leave.
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
            asks_cursor: false,
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
                types: KeptTypes::default(),
                new_types: None,
                state_bytes,
                bound: Bound::NONE,
                has_lost_piece: false,
            };
            self.statements.insert(id, statement);
        }
        Ok(())
    }

    /// The memory for another statement with `held_bytes` of text and state, if the session may have so much.
    fn charge_to_prepare(&self, held_bytes: usize) -> Result<Charge, Refusal> {
        self.charge_for(held_bytes, size_of::<StatementText>() + size_of::<ClientStatement>())
    }

    /// The memory for `held_bytes`, which the session may have so many of, and for `more_bytes`.
    fn charge_for(&self, held_bytes: usize, more_bytes: usize) -> Result<Charge, Refusal> {
        self.has_room_to_prepare(held_bytes)?;
        self.worker.buffers.charge((held_bytes + more_bytes) as u64).ok_or_else(|| {
            self.slot.look().shared.cells.of(self.worker.number).prepared_no_memory.increment();
            Refusal::no_memory_to_prepare()
        })
    }

    /// Refuses what would hold more for the session's prepared statements than the pool's `prepared_text`.
    fn has_room_to_prepare(&self, more_bytes: usize) -> Result<(), Refusal> {
        let pool = self.pool();
        let mysql = pool.as_ref().and_then(|pool| pool.shared.config.mysql.as_ref());
        let most = mysql.map_or(u64::MAX, |mysql| mysql.prepared_text);
        if (self.statements.held_bytes() + more_bytes) as u64 <= most {
            return Ok(());
        }
        self.slot.look().shared.cells.of(self.worker.number).prepared_too_much.increment();
        Err(Refusal::prepared_too_much(most))
    }

    /// Executes a prepared statement.
    pub async fn execute(&mut self, incoming: Incoming) -> Result<(), End> {
        let execution = self.execution_of(&incoming);
        self.run_execution(incoming, execution).await
    }

    /// Reads and classifies a COM_STMT_EXECUTE.
    pub fn execution_of(
        &mut self,
        incoming: &Incoming,
    ) -> Result<(Running<'static>, Box<Execution>), NotExecuted> {
        let id = statement_id(self.payload(incoming)).unwrap_or_default();
        self.statements.keep_apart(id);
        let (capabilities, is_hidden) = (self.kind.capabilities, self.has_hidden_code(id));
        let Some(statement) = self.statements.get_mut(id) else {
            return Err(NotExecuted::unread(Refusal::unknown_statement(id)));
        };
        let parameter_count = statement.parameter_count;
        let received = self.buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
        let payload =
            received.get(HEADER_BYTES..incoming.packet_bytes().min(received.len())).unwrap_or_default();
        let Ok(parts) = ExecuteParts::parse(payload, parameter_count, capabilities) else {
            return Err(NotExecuted::unread(Refusal::malformed()));
        };
        if std::mem::take(&mut statement.has_lost_piece) {
            let refusal = Refusal::not_known_any_more("a piece of a value");
            return Err(NotExecuted { id: Some(id), refusal });
        }
        let lacks_types =
            parts.types_follow.is_some_and(|(_, follow)| !follow) && statement.types.bytes.is_empty();
        let without_types = if lacks_types { parts.without_types(payload) } else { None };
        if lacks_types {
            // Other sessions may have sent types for the server's shared statement of this text.
            statement.keep_apart();
        }
        let (text, verdict) = (statement.text.clone(), statement.verdict_under(&self.facts, is_hidden));
        let verdict = match parts.flags & ANY_CURSOR {
            0 if self.state.schema() == text.state.schema() || verdict.runs_no_stored_code() => verdict,
            // It goes to the primary, because the state that it leaves may bind the session to its
            // connection.
            0 => away_from_replicas(verdict, RouteReason::OtherSchema).under(&self.facts),
            _ => bound_to_its_connection(verdict, &self.facts),
        };
        let Some(front) = front_of(incoming, received, &parts, statement) else {
            return Err(NotExecuted::unread(Refusal::types_not_named()));
        };
        if let Some(more_bytes) = statement.new_types.as_ref().map(|types| types.bytes.len()) {
            let charged = self.charge_for(more_bytes, 0);
            let types = self.statements.get_mut(id).map(|statement| &mut statement.new_types);
            match (charged, types) {
                (Ok(charge), Some(Some(types))) => types.charge = Some(charge),
                (Ok(_), _) => {}
                (Err(refusal), types) => {
                    types.into_iter().for_each(|types| *types = None);
                    return Err(NotExecuted::unread(refusal));
                }
            }
        }
        if std::mem::take(&mut self.has_lost_transaction) {
            let refusal = Refusal::of_server(failure::rolled_back());
            return Err(NotExecuted { id: Some(id), refusal });
        }
        let running = Running {
            incoming: *incoming,
            command: ClientCommand::StmtExecute,
            verdict,
            prepares: None,
            executes: Some(id),
            asks_cursor: parts.flags & ANY_CURSOR != 0,
        };
        Ok((running, Box::new(Execution { id, text, front, without_types })))
    }

    /// Whether a statement names a table or view with hidden code, which may have been found since it was
    /// prepared.
    #[inline]
    fn has_hidden_code(&self, id: u32) -> bool {
        hidden::is_any() && self.statements.get(id).is_some_and(|it| self.names_hidden_code(it.text.text()))
    }

    /// Runs an execution as it was read, or refuses it.
    pub async fn run_execution(
        &mut self,
        incoming: Incoming,
        execution: Result<(Running<'static>, Box<Execution>), NotExecuted>,
    ) -> Result<(), End> {
        let (running, execution) = match execution {
            Ok(execution) => execution,
            Err(NotExecuted { id: Some(id), refusal }) => {
                return self.refuse_execution(&incoming, id, refusal).await;
            }
            Err(NotExecuted { id: None, refusal }) => return self.refuse_command(&incoming, refusal).await,
        };
        let Execution { id, text, mut front, without_types } = *execution;
        if running.verdict.kill.is_some()
            && let Some(done) = Box::pin(self.kill_by_execution(incoming, id, &running.verdict)).await
        {
            return done;
        }
        let (running, incoming) = (&running, &incoming);
        let mut losses = Losses::default();
        if self.unfinished.sent.is_some()
            && let Attempted::Answered(_) = self.attempt(running, Beginning::default(), &mut losses).await?
        {
            return Ok(());
        }
        loop {
            if !std::mem::take(&mut self.unfinished.is_attached)
                && let Err(refusal) = self.attach_for(&running.verdict, losses.last()).await
            {
                return self.refuse_execution(incoming, id, refusal).await;
            }
            let on_server = match self.prepared_on_attached(&text).await {
                Ok(Ok(on_server)) => on_server,
                // A server reports missing types before it checks the statement again.
                Ok(Err(refusal)) => {
                    let refusal = without_types.map_or(refusal, Refusal::types_never_named);
                    return self.refuse_execution(incoming, id, refusal).await;
                }
                Err(Some(refusal)) => {
                    return self.refuse_execution(incoming, id, refusal).await;
                }
                Err(None) if losses.add() => continue,
                Err(None) => return Err(End::BackendClosed),
            };
            front.complete(on_server, b"");
            let beginning =
                Beginning { replaced: front.replaced, by: &front.bytes, is_reframed: front.is_reframed };
            if let Attempted::Answered(_) = self.attempt(running, beginning, &mut losses).await? {
                return Ok(());
            }
        }
    }

    /// Refuses an execution that was not sent to any server. The client has sent the types of the values and
    /// will omit them from now on.
    async fn refuse_execution(&mut self, incoming: &Incoming, id: u32, refusal: Refusal) -> Result<(), End> {
        self.statements.keep_types(id, true);
        self.refuse_command(incoming, refusal).await
    }

    /// COM_STMT_SEND_LONG_DATA. It has no answer, and the pieces must be on the connection where the
    /// statement is executed.
    pub async fn send_long_data(&mut self, incoming: Incoming) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        self.statements.keep_apart(id);
        let is_hidden = self.has_hidden_code(id);
        let Some(statement) = self.statements.get_mut(id) else {
            // A server ignores pieces for an unknown statement.
            return if incoming.is_whole { self.drop_command(&incoming) } else { Err(End::BadRequest) };
        };
        if statement.has_lost_piece && incoming.is_whole {
            return self.drop_command(&incoming);
        }
        // What is bound to it would be left behind.
        if statement.types.bytes.is_empty() && !statement.bound.is_any() {
            statement.keep_apart();
        }
        let (text, verdict) = (statement.text.clone(), statement.verdict_under(&self.facts, is_hidden));
        let verdict = bound_to_its_connection(verdict, &self.facts);
        // The effects of the statement count when it is executed, after all pieces.
        let verdict = StatementVerdict {
            changes: false,
            leaves: LeftBehind::NONE,
            beyond_read_only: BeyondReadOnly::Nothing,
            ..verdict
        };
        if self.attach_for(&verdict, None).await.is_err() {
            // What the statement asks about may be lost; the execution then gets the error.
            let reads_back = verdict.reads_back.without(ReadsBack::ABOUT_THE_LAST.and(ReadsBack::INSERT_ID));
            let asks_nothing = StatementVerdict { reads_back, ..verdict };
            if self.attach_for(&asks_nothing, None).await.is_err() {
                return Err(End::NoBackend);
            }
        }
        // Only after attaching: a bound statement keeps the connection, wherever it is.
        self.set_bound(id, |bound| bound.has_pieces = true);
        let on_server = match self.prepared_on_attached(&text).await {
            Ok(Ok(on_server)) => on_server,
            Ok(Err(_)) if incoming.is_whole => return self.lose_piece(id, &incoming),
            Ok(Err(_)) | Err(_) => return Err(End::BackendClosed),
        };
        self.set_bound(id, |bound| bound.has_pieces = true);
        let front = self.renamed(on_server);
        let Session { worker, slot, stream, buffer, deadline, attached, now, .. } = &mut *self;
        let Some(attached) = attached else { return Err(End::Internal) };
        let buffers = &worker.buffers;
        let mut source = Source::new(stream, slot, buffer, buffers, deadline);
        let beginning = Beginning { replaced: front.len(), by: &front, ..Beginning::default() };
        if source.send_command(&mut attached.server, &incoming, beginning, *now).await.is_err() {
            attached.server.is_at_rest = false;
            return Err(End::BackendClosed);
        }
        if incoming.is_whole { self.drop_command(&incoming) } else { Ok(()) }
    }

    /// Drops a piece because the server does not prepare its statement, for example while the next
    /// transaction is to be READ ONLY. Pieces have no answer, so the execution gets the error.
    fn lose_piece(&mut self, id: u32, incoming: &Incoming) -> Result<(), End> {
        self.set_bound(id, |bound| *bound = Bound::NONE);
        if let Some(statement) = self.statements.get_mut(id) {
            statement.has_lost_piece = true;
        }
        if !self.keeps_connection() && self.held.is_empty() {
            self.leave();
        }
        self.drop_command(incoming)
    }

    fn drop_command(&mut self, incoming: &Incoming) -> Result<(), End> {
        self.consume(incoming.packet_bytes());
        Ok(())
    }

    /// The beginning of a command for a prepared statement, with the server's statement id.
    fn renamed(&self, on_server: u32) -> Vec<u8> {
        let mut front = self.received().get(..HEADER_BYTES + STATEMENT_ID.end).unwrap_or_default().to_vec();
        if let Some(payload) = front.get_mut(HEADER_BYTES..) {
            set_statement_id(payload, on_server).ok();
        }
        front
    }

    /// COM_STMT_CLOSE. On server connections the statement stays, for sessions that prepare the same text,
    /// unless something of this client is bound to it.
    pub async fn close_statement(&mut self, incoming: Incoming) -> Result<(), End> {
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

    /// COM_STMT_FETCH and COM_STMT_RESET.
    pub async fn continue_statement(
        &mut self,
        incoming: Incoming,
        command: ClientCommand,
    ) -> Result<(), End> {
        let id = statement_id(self.payload(&incoming)).unwrap_or_default();
        self.statements.keep_apart(id);
        let Some(statement) = self.statements.get_mut(id) else {
            let refusal = Refusal::unknown_statement(id);
            return self.refuse_command(&incoming, refusal).await;
        };
        let is_fetch = command == ClientCommand::StmtFetch;
        statement.has_lost_piece &= is_fetch;
        let is_bound = if is_fetch { statement.bound.has_cursor } else { statement.bound.is_any() };
        let text = statement.text.clone();
        // There is nothing to reset. But the answer has the transaction status, which the server knows best,
        // because error packets do not report it.
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
        let beginning = Beginning { replaced: front.len(), by: &front, ..Beginning::default() };
        let verdict = self.verdict_of(RoleWanted::Primary, LeftBehind::NONE);
        let running =
            Running { incoming, command, verdict, prepares: None, executes: Some(id), asks_cursor: false };
        self.attempt(&running, beginning, &mut Losses::default()).await?;
        Ok(())
    }
}

/// An execution of a prepared statement.
pub struct Execution {
    /// The client's id of the statement.
    id: u32,
    pub text: Rc<StatementText>,
    pub front: Front,
    /// What a server says if neither this execution nor one before has named the types of its values.
    without_types: Option<WithoutTypes>,
}

/// Why an execution is refused before any server is asked.
pub struct NotExecuted {
    /// The client's id of the statement, if the types of its values were read.
    id: Option<u32>,
    refusal: Refusal,
}

impl NotExecuted {
    fn unread(refusal: Refusal) -> NotExecuted {
        NotExecuted { id: None, refusal }
    }
}

/// The length (bytes) that few executions exceed, with the types of their values.
const USUAL_EXECUTION_BYTES: usize = 128;

/// The bytes that replace the beginning of an execution.
pub struct Front {
    pub bytes: Vec<u8>,
    /// As in [`Beginning`].
    pub replaced: usize,
    pub is_reframed: bool,
    /// Bytes, without those of [`Self::complete`].
    front_bytes: usize,
}

impl Front {
    fn new(bytes: Vec<u8>, replaced: usize, is_reframed: bool) -> Front {
        let front_bytes = bytes.len();
        Front { bytes, replaced, is_reframed, front_bytes }
    }

    /// Fills in the server's id of the statement, and appends what is `behind` in the command. False if there
    /// is no place for the id.
    pub fn complete(&mut self, on_server: u32, behind: &[u8]) -> bool {
        let payload = self.bytes.get_mut(HEADER_BYTES..);
        let is_set = payload.is_some_and(|payload| set_statement_id(payload, on_server).is_ok());
        self.bytes.extend_from_slice(behind);
        is_set
    }

    /// Removes what [`Self::complete`] appended.
    pub fn uncomplete(&mut self) {
        self.bytes.truncate(self.front_bytes);
    }
}

/// The bytes that replace the beginning of an execution, up to the statement id, which is filled in later
/// with the server's id. They include the types of its values. If the execution has types of its own, those
/// are stored. `None` if the command would need one more packet, because the sequence ids of the answer would
/// then not fit the client's.
fn front_of(
    incoming: &Incoming,
    received: &[u8],
    parts: &ExecuteParts,
    statement: &mut ClientStatement,
) -> Option<Front> {
    let mut front = Vec::with_capacity(USUAL_EXECUTION_BYTES);
    match parts.types_follow {
        Some((flag_at, false)) if !statement.types.bytes.is_empty() => {
            front.extend_from_slice(received.get(..HEADER_BYTES + flag_at).unwrap_or_default());
            front.push(1);
            front.extend_from_slice(&statement.types.bytes);
            let own = incoming.header.payload_bytes as usize;
            let is_reframed = own == MAX_PAYLOAD_BYTES;
            let grown = if is_reframed { own } else { own + statement.types.bytes.len() };
            if grown >= MAX_PAYLOAD_BYTES && !is_reframed {
                return None;
            }
            let header = PacketHeader { payload_bytes: grown as u32, sequence: incoming.header.sequence };
            if let Some(place) = front.first_chunk_mut::<HEADER_BYTES>() {
                *place = header.to_bytes();
            }
            return Some(Front::new(front, HEADER_BYTES + flag_at + 1, is_reframed));
        }
        Some((_, true)) => {
            let payload = received.get(HEADER_BYTES..).unwrap_or_default();
            let types = payload.get(parts.types.clone()).unwrap_or_default();
            statement.new_types =
                (*statement.types.bytes != *types).then(|| KeptTypes { bytes: types.into(), charge: None });
        }
        // If there never were any types, the server reports that.
        Some((_, false)) | None => {}
    }
    front.extend_from_slice(received.get(..HEADER_BYTES + STATEMENT_ID.end).unwrap_or_default());
    let replaced = front.len();
    Some(Front::new(front, replaced, false))
}

/// A read that binds the session to its connection for a while. It goes to the primary, because writes may
/// follow. This includes a statement that asks about the previous one, although a replica may know the
/// answer.
fn bound_to_its_connection(verdict: StatementVerdict, facts: &SessionFacts) -> StatementVerdict {
    let verdict = match verdict.own_reason {
        RouteReason::LastResult => StatementVerdict { own_reason: RouteReason::Cursor, ..verdict },
        _ => away_from_replicas(verdict, RouteReason::Cursor),
    };
    verdict.under(facts)
}

/// The verdict with `why` as its reason, which sends it to the primary, if any member could have run it.
fn away_from_replicas(verdict: StatementVerdict, why: RouteReason) -> StatementVerdict {
    match verdict.own_reason.wants() {
        RoleWanted::AnyMember => StatementVerdict { own_reason: why, ..verdict },
        RoleWanted::Primary => verdict,
    }
}
