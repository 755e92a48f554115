//! One command of a client on a server connection: it sends the command and forwards the answer.
//!
//! Bytes are forwarded unchanged, except for what depends on Weir's own use of the connection: the ids of
//! prepared statements, and state changes that the client did not ask to have reported.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_io::buffers::{Buffer, Buffers, LARGE, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Sight, Stream};
use weir_io::wait::{receive_ready, send_all};
use weir_mysql::WireError;
use weir_mysql::answer::{AnswerEvent, AnswerReader};
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::command::STATEMENT_ID;
use weir_mysql::eof::{self, SequenceShift};
use weir_mysql::outcome::OK;
use weir_mysql::packet::{HEADER_BYTES, PacketHeader, write_packet_with};
use weir_mysql::response::{AnswerEnd, AnswerPart, PreparedStatement};

use super::attach::ServerError;
use super::deposed::{LOOK, PrimaryAsked};
use super::outcome::Outcome;
use super::own;
use super::server::ServerConnection;
use crate::worker::ListenerSlot;

/// Why a server connection cannot be used any more.
#[derive(Debug)]
pub enum ServerFailure {
    /// The server closed it.
    Closed,
    /// The connection broke.
    Broken(io::Error),
    /// The server did not answer in time.
    TimedOut,
    /// The client has left, so nobody waits for the answer.
    Unwanted,
    /// The server broke the protocol.
    Protocol(WireError),
    /// The server refused something that every server must do.
    Refused(ServerError),
    /// The server was the primary, has no role now, and another server is the primary. It may never answer.
    Deposed,
    /// No buffer was available within the memory budget. The server is not to blame.
    NoMemory,
}

/// Why an exchange did not finish.
#[derive(Debug)]
pub enum ExchangeError {
    /// The client disconnected, or made no progress for too long.
    Client,
    /// The server failed; `forwarded` is whether the client has received part of the answer.
    Server { failure: ServerFailure, forwarded: bool },
    /// The data that Weir must add to the command would make it one packet longer. The server has not
    /// received all of the command.
    Unframed,
    /// No buffer was available for the rest of what the client sends. The server has not received all of it.
    NoRoom,
    /// The statement exceeded its time limit before its answer began.
    Overtime,
    /// The drain deadline of Weir or of the listener has passed; `forwarded` as in `Server`.
    Drained { forwarded: bool },
}

/// The end of an answer that still has to be sent to the client. The server connection is already free.
pub struct Rest {
    buffer: Option<Buffer>,
    /// How many bytes of the buffer belong to the answer.
    pass: usize,
    /// The bytes after those.
    tail: Vec<u8>,
}

impl Rest {
    /// The remaining bytes, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let buffer = self.buffer.as_ref().and_then(|buffer| buffer.filled().get(..self.pass));
        [buffer.unwrap_or_default(), &self.tail].into_iter().filter(|piece| !piece.is_empty())
    }
}

impl std::fmt::Display for ServerFailure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerFailure::Closed => write!(out, "the server closed the connection"),
            ServerFailure::Broken(error) => write!(out, "the connection broke: {error}"),
            ServerFailure::Unwanted => write!(out, "the client has left"),
            ServerFailure::TimedOut => write!(out, "the server did not answer in time"),
            ServerFailure::Protocol(error) => write!(out, "answered against MySQL's protocol: {error}"),
            ServerFailure::Refused(error) => {
                write!(out, "the server refuses: {}", error.packet())
            }
            ServerFailure::Deposed => write!(out, "another server is the primary now"),
            ServerFailure::NoMemory => write!(out, "no buffer is left within the memory budget"),
        }
    }
}

/// How an answer is forwarded to a client.
#[derive(Clone, Copy)]
pub struct Forwarding<'a> {
    pub buffers: &'a Rc<Buffers>,
    /// The session's own deadline.
    pub deadline: &'a Deadline,
    /// The session's listener, which may be draining.
    pub slot: &'a ListenerSlot,
    /// The capabilities negotiated with the client.
    pub capabilities: Capabilities,
    /// The session's status as last reported to the client.
    pub told_status: StatusFlags,
    /// See [`StatementVerdict::runs_no_stored_code`](weir_mysql::StatementVerdict::runs_no_stored_code).
    pub runs_no_stored_code: bool,
    /// The id that the client gets for a statement that it prepares.
    pub statement_id: u32,
    /// Longest time without progress while the client takes its answer.
    pub client_patience: Duration,
    /// The time by which the answer must have begun; `None` for no limit.
    pub overtime: Option<Duration>,
    /// The server, if the statement was sent to it as the primary; see [`PrimaryAsked::of`].
    pub primary: Option<PrimaryAsked<'a>>,
    /// Whether the server may ask for a file of the client. If not, the server gets an empty file, and the
    /// client an error.
    pub local_infile: bool,
    /// Whether each result must be sent to the client separately ([`Stream::end_part`]).
    pub by_result: bool,
    /// Whether it is an execution that asks for a cursor.
    pub asks_cursor: bool,
}

impl Forwarding<'_> {
    /// Whether the client expects EOF packets, which servers never send to Weir.
    pub fn waits_for_eof(&self) -> bool {
        !self.capabilities.has(Capabilities::DEPRECATE_EOF)
    }

    /// Sends bytes to the client, as fast as it takes them.
    pub async fn send(&self, client: &mut Stream, bytes: &[u8]) -> Result<(), ExchangeError> {
        let renew =
            || self.deadline.set(super::while_it_lasts(self.slot, clock::now() + self.client_patience));
        renew();
        send_all(client, bytes, self.deadline, renew).await.map_err(|_| ExchangeError::Client)
    }

    /// Waits until the server has sent something. Ends early if the client disconnects, or if the server is
    /// no longer the primary.
    async fn server_speaks(
        &self,
        client: &mut Stream,
        server: &mut Stream,
        forwarded: bool,
        has_begun: bool,
    ) -> Result<(), ExchangeError> {
        // The time limit applies only until the answer begins.
        let overtime = self.overtime.filter(|_| !has_begun);
        let mut look = self.primary.filter(|_| !has_begun).map(|it| it.since + LOOK);
        let due = |look: Option<Duration>| overtime.into_iter().chain(look).min().unwrap_or(Duration::MAX);
        self.deadline.set(due(look));
        poll_fn(|context| {
            if let Poll::Ready(ready) = server.poll_readable(context) {
                return Poll::Ready(ready.map_err(|error| broken(error, forwarded)));
            }
            if matches!(client.poll_present(context), Ok(Sight::Ended) | Err(_)) {
                return Poll::Ready(Err(ExchangeError::Client));
            }
            if look.or(overtime).is_some() && self.deadline.has_passed() {
                let now = clock::now();
                if overtime.is_some_and(|overtime| overtime <= now) {
                    return Poll::Ready(Err(ExchangeError::Overtime));
                }
                if self.primary.is_some_and(|it| it.is_deposed()) {
                    let failure = ServerFailure::Deposed;
                    return Poll::Ready(Err(ExchangeError::Server { failure, forwarded }));
                }
                look = look.map(|_| now + LOOK);
                self.deadline.set(due(look));
            }
            if let Some(until) = self.slot.draining_until() {
                if until <= clock::now() {
                    return Poll::Ready(Err(ExchangeError::Drained { forwarded }));
                }
                self.deadline.no_later_than(until);
            }
            Poll::Pending
        })
        .await
    }
}

/// An answer that is being forwarded.
pub struct Answering<'a> {
    pub forwarding: Forwarding<'a>,
    pub reader: AnswerReader,
    pub outcome: Outcome,
    /// Bytes of the answer that were sent to the client.
    pub forwarded: u64,
    /// Bytes of the answer that were received from the server.
    pub received: u64,
    /// Set if the server asked for a file that the client did not offer: the sequence id of the client's
    /// error. From then on, nothing of the answer is forwarded.
    declined: Option<u8>,
    /// Counts EOF packets that were inserted for the client.
    shift: SequenceShift,
    /// Whether the definitions have ended and the client has yet to get its EOF packet.
    owes_eof: bool,
    /// Received bytes of packets that are not whole, or that were not yet examined.
    held: Option<Buffer>,
    /// Whether no byte of `held` was examined.
    is_unread: bool,
    /// How many receives in a row have filled a buffer.
    full: u32,
}

/// The result of forwarding.
pub enum Answered {
    /// The answer has ended.
    Over(Rest),
    /// The server waits for a file from the client.
    WantsFile,
}

impl<'a> Answering<'a> {
    /// For an answer of which nothing but `held` has been received yet.
    pub fn new(forwarding: Forwarding<'a>, reader: AnswerReader, held: Option<Buffer>) -> Answering<'a> {
        Answering {
            reader: reader.telling_definitions(forwarding.waits_for_eof()),
            forwarding,
            outcome: Outcome::default(),
            forwarded: 0,
            received: held.as_ref().map_or(0, |held| held.filled().len() as u64),
            declined: None,
            shift: SequenceShift::default(),
            owes_eof: false,
            is_unread: held.is_some(),
            held,
            full: 0,
        }
    }

    /// The shift from the sequence ids of the client's file to those that the server expects.
    pub fn shift_back(&self) -> SequenceShift {
        self.shift.back()
    }

    /// Forwards the answer as it arrives.
    pub async fn run(
        &mut self,
        client: &mut Stream,
        server: &mut ServerConnection,
    ) -> Result<Answered, ExchangeError> {
        // Whether all held bytes were examined, so that more must be received.
        let mut is_starved = !std::mem::take(&mut self.is_unread);
        loop {
            let mut buffer = match self.held.take() {
                Some(held) if !is_starved => held,
                held => self.receive(held, client, server).await?,
            };
            let judged = self.judge(&mut buffer, server).map_err(|error| self.failed(error.into()))?;
            is_starved = match judged {
                Judged::More { pass } => {
                    self.pass_on(client, &mut buffer, pass).await?;
                    true
                }
                Judged::Result { pass, consumed, packet } => {
                    self.pass_on(client, &mut buffer, pass).await?;
                    buffer.consume(consumed - pass);
                    if self.declined.is_none() {
                        self.forwarding.send(client, &packet).await?;
                        self.forwarded += packet.len() as u64;
                    }
                    client.end_part();
                    buffer.is_empty()
                }
                Judged::Eof { pass, packet } => {
                    self.pass_on(client, &mut buffer, pass).await?;
                    if self.declined.is_none() {
                        self.forwarding.send(client, &packet).await?;
                        self.forwarded += packet.len() as u64;
                    }
                    false
                }
                Judged::UnaskedFile { pass, consumed, sequence } => {
                    self.pass_on(client, &mut buffer, pass).await?;
                    buffer.consume(consumed - pass);
                    self.decline_file(server, sequence).await?;
                    buffer.is_empty()
                }
                Judged::File { pass } => {
                    self.pass_on(client, &mut buffer, pass).await?;
                    return Ok(Answered::WantsFile);
                }
                Judged::Over { pass, consumed, tail } => {
                    if buffer.filled().len() > consumed {
                        return Err(self.failed(ServerFailure::Protocol(WireError::UnexpectedPacket)));
                    }
                    let Some(sequence) = self.declined else {
                        return Ok(Answered::Over(Rest { buffer: Some(buffer), pass, tail }));
                    };
                    let (error, mut tail) = (ServerError::unasked_file(), Vec::new());
                    let results = server.state.variable("character_set_results");
                    error.in_charset(results).write(&mut tail, sequence);
                    self.outcome.error = Some(error);
                    return Ok(Answered::Over(Rest { buffer: None, pass: 0, tail }));
                }
            };
            self.held = (!buffer.is_empty()).then_some(buffer);
        }
    }

    fn failed(&self, failure: ServerFailure) -> ExchangeError {
        ExchangeError::Server { failure, forwarded: self.forwarded > 0 }
    }

    /// Receives once and appends to the held bytes.
    async fn receive(
        &mut self,
        held: Option<Buffer>,
        client: &mut Stream,
        server: &mut ServerConnection,
    ) -> Result<Buffer, ExchangeError> {
        let (forwarded, has_begun) = (self.forwarded > 0, self.received > 0);
        self.forwarding.server_speaks(client, &mut server.connection, forwarded, has_begun).await?;
        let mut buffer = match held {
            Some(mut held) => {
                held.compact();
                held
            }
            // A result that keeps filling its buffer gets a larger one.
            None => {
                let buffers = self.forwarding.buffers;
                let buffer = buffers.borrow(if self.full > 1 { LARGE } else { SMALL });
                buffer
                    .or_else(|| buffers.borrow(SMALL))
                    .ok_or_else(|| self.failed(ServerFailure::NoMemory))?
            }
        };
        if buffer.is_full() {
            // No packet that must be in one piece is this long.
            return Err(self.failed(ServerFailure::Protocol(WireError::UnexpectedPacket)));
        }
        match receive_ready(&mut *server.connection, &mut buffer).await {
            Err(error) => return Err(self.failed(ServerFailure::Broken(error))),
            Ok(0) => return Err(self.failed(ServerFailure::Closed)),
            Ok(count) => self.received += count as u64,
        }
        self.full = if buffer.is_full() { self.full + 1 } else { 0 };
        Ok(buffer)
    }

    async fn pass_on(
        &mut self,
        client: &mut Stream,
        buffer: &mut Buffer,
        pass: usize,
    ) -> Result<(), ExchangeError> {
        if pass > 0 {
            if self.declined.is_none() {
                self.forwarding.send(client, buffer.filled().get(..pass).unwrap_or_default()).await?;
                self.forwarded += pass as u64;
            }
            buffer.consume(pass);
        }
        Ok(())
    }

    /// Sends an empty file because the client has offered none, so that the server finishes and its
    /// connection stays usable. Otherwise a client could make a healthy server count as broken, with a text
    /// that the server reads as LOAD DATA LOCAL and Weir does not.
    async fn decline_file(
        &mut self,
        server: &mut ServerConnection,
        sequence: u8,
    ) -> Result<(), ExchangeError> {
        let sent = sequence.wrapping_sub(self.shift.added()).wrapping_add(1);
        self.forwarding.deadline.set(own::until());
        let empty = [0, 0, 0, sent];
        let sending = send_all(&mut *server.connection, &empty, self.forwarding.deadline, || {});
        sending.await.map_err(|error| self.failed(error.into()))?;
        self.reader.infile_sent(sent);
        self.declined = self.declined.or(Some(sequence));
        Ok(())
    }

    /// Examines the buffer up to the next point where something must be done.
    fn judge(&mut self, buffer: &mut Buffer, server: &mut ServerConnection) -> Result<Judged, WireError> {
        let mut pass = 0;
        // The position of the EOF packet that was inserted in the buffer after the columns of the current
        // result.
        let mut eof = None;
        loop {
            let input = buffer.filled().get(pass..).unwrap_or_default();
            if input.is_empty() {
                return Ok(Judged::More { pass });
            }
            if self.owes_eof {
                match self.pay_eof(buffer, pass) {
                    Ok(0) => {}
                    Ok(bytes) => (eof, pass) = (Some(pass), pass + bytes),
                    Err(judged) => return Ok(judged),
                }
                continue;
            }
            let step = self.reader.advance(input)?;
            let (before, consumed) = (pass + step.before, pass + step.consumed);
            let end = match step.event {
                AnswerEvent::More { .. } => {
                    self.renumber(buffer, pass..consumed);
                    return Ok(Judged::More { pass: consumed });
                }
                AnswerEvent::Part(AnswerPart::Middle) => {
                    self.renumber(buffer, pass..consumed);
                    pass = consumed;
                    continue;
                }
                AnswerEvent::Part(AnswerPart::DefinitionsOver) => {
                    self.renumber(buffer, pass..consumed);
                    (self.owes_eof, pass) = (true, consumed);
                    continue;
                }
                AnswerEvent::Part(AnswerPart::Prepared(prepared)) => {
                    self.outcome.prepared = Some(prepared);
                    self.rename(buffer, before);
                    pass = consumed;
                    continue;
                }
                AnswerEvent::Part(AnswerPart::LocalInfile { .. }) => {
                    self.renumber(buffer, pass..consumed);
                    return Ok(match self.forwarding.local_infile {
                        true => Judged::File { pass: consumed },
                        false => {
                            Judged::UnaskedFile { pass: before, consumed, sequence: sequence(buffer, before) }
                        }
                    });
                }
                AnswerEvent::Part(AnswerPart::ResultOver(end) | AnswerPart::Over(end)) => end,
            };
            let first = input.get(step.before + HEADER_BYTES).copied().unwrap_or(OK);
            let packet = self.outcome.note(&end, first, server, &self.forwarding);
            let (said, prepared) = said(&end);
            self.renumber(buffer, pass..consumed);
            if let (Some(at), Some((status, warnings))) = (eof.take(), said) {
                say(buffer, at, status, warnings);
            }
            let mut place = before..consumed;
            let mut packet = packet.map(|replaced| {
                let mut packet = Vec::with_capacity(HEADER_BYTES + replaced.len());
                let sequence = sequence(buffer, before);
                write_packet_with(&mut packet, sequence, |out| out.extend_from_slice(&replaced));
                packet
            });
            if let Some(prepared) = prepared {
                if self.outcome.prepared.is_none() {
                    self.outcome.prepared = Some(prepared);
                    self.rename(buffer, before);
                } else if self.forwarding.waits_for_eof() {
                    (place, packet) = (consumed..consumed, Some(self.eof_packet()));
                }
            }
            match self.ended(buffer, place, packet) {
                Judged::More { pass: all } => pass = all,
                judged => return Ok(judged),
            }
        }
    }

    /// What to do at the end of a result. `packet`, if any, must replace this range of the buffer.
    /// [`Judged::More`] means that there is nothing to do yet.
    fn ended(&self, buffer: &mut Buffer, place: Range<usize>, packet: Option<Vec<u8>>) -> Judged {
        let is_over = self.reader.is_over();
        let (pass, consumed, packet) = match packet {
            None => (place.end, place.end, vec![]),
            Some(packet) if buffer.replace(place.clone(), &packet) => {
                let end = place.start + packet.len();
                (end, end, vec![])
            }
            Some(packet) => (place.start, place.end, packet),
        };
        match is_over {
            true => Judged::Over { pass, consumed, tail: packet },
            false if self.forwarding.by_result || !packet.is_empty() => {
                Judged::Result { pass, consumed, packet }
            }
            false => Judged::More { pass },
        }
    }

    /// Changes the sequence ids of packets to those that the client expects.
    fn renumber(&mut self, buffer: &mut Buffer, range: Range<usize>) {
        self.shift.apply(buffer.filled_mut().get_mut(range).unwrap_or_default());
    }

    /// Inserts the owed EOF packet into the buffer at `at`, where the next packet begins, and returns its
    /// length in bytes. The length is 0 if a cursor is open, which the server's next packet shows.
    ///
    /// # Errors
    /// What must be done first.
    fn pay_eof(&mut self, buffer: &mut Buffer, at: usize) -> Result<usize, Judged> {
        let input = buffer.filled().get(at..).unwrap_or_default();
        match eof::opens_cursor(input, self.forwarding.asks_cursor) {
            None => return Err(Judged::More { pass: at }),
            Some(true) => {
                self.owes_eof = false;
                return Ok(0);
            }
            Some(false) => {}
        }
        let packet = self.eof_packet();
        match buffer.replace(at..at, &packet) {
            true => Ok(packet.len()),
            false => Err(Judged::Eof { pass: at, packet }),
        }
    }

    /// The EOF packet after definitions, as the next packet of the answer. The status that a server would
    /// report there is known only at the end of the result.
    fn eof_packet(&mut self) -> Vec<u8> {
        let sequence = self.reader.next_sequence().wrapping_add(self.shift.added());
        let status = self.outcome.status.unwrap_or(self.forwarding.told_status);
        let warnings = self.outcome.prepared.map_or(0, |prepared| prepared.warnings);
        self.owes_eof = false;
        self.shift.add();
        eof::packet(sequence, StatusFlags(status.0 & StatusFlags::LASTING.0), warnings)
    }

    /// Replaces the server's statement id by the client's.
    fn rename(&self, buffer: &mut Buffer, packet: usize) {
        let place = packet + HEADER_BYTES + STATEMENT_ID.start;
        if let Some(place) = buffer.filled_mut().get_mut(place..place + 4) {
            place.copy_from_slice(&self.forwarding.statement_id.to_le_bytes());
        }
    }
}

/// Updates the EOF packet at this position, after the columns, with the status at the end of its result. A
/// server knows most of that status before the first row.
fn say(buffer: &mut Buffer, at: usize, status: StatusFlags, warnings: u16) {
    let status = StatusFlags(status.0 & !StatusFlags::LAST_ROW_SENT.0);
    let packet = eof::packet(sequence(buffer, at), status, warnings);
    if let Some(place) = buffer.filled_mut().get_mut(at..at + packet.len()) {
        place.copy_from_slice(&packet);
    }
}

/// The status and warnings in the end of an answer, and the prepared statement that ends with it.
fn said(end: &AnswerEnd<'_>) -> (Option<(StatusFlags, u16)>, Option<PreparedStatement>) {
    match end {
        AnswerEnd::Ok(ok) => (Some((ok.status, ok.warnings)), None),
        AnswerEnd::Prepared(prepared) => (None, Some(*prepared)),
        _ => (None, None),
    }
}

/// The sequence id of the packet at this position.
fn sequence(buffer: &Buffer, packet: usize) -> u8 {
    let header = buffer.filled().get(packet..).and_then(<[u8]>::first_chunk::<HEADER_BYTES>);
    header.map_or(0, |header| PacketHeader::parse(*header).sequence)
}

/// What to do with the bytes that were received.
enum Judged {
    /// Forward these bytes, and receive more.
    More { pass: usize },
    /// A result has ended, but not the answer: forward these bytes, and then `packet`, if any, in place of
    /// the last one.
    Result { pass: usize, consumed: usize, packet: Vec<u8> },
    /// Forward these bytes, then this EOF packet, which does not fit into the buffer, before the rest of the
    /// buffer.
    Eof { pass: usize, packet: Vec<u8> },
    /// Forward these bytes, then let the client send a file.
    File { pass: usize },
    /// Forward these bytes, and send the server an empty file. `sequence` is the id of its request.
    UnaskedFile { pass: usize, consumed: usize, sequence: u8 },
    /// The answer has ended: `pass` bytes are left to be forwarded, followed by `tail`.
    Over { pass: usize, consumed: usize, tail: Vec<u8> },
}

fn broken(error: io::Error, forwarded: bool) -> ExchangeError {
    ExchangeError::Server { failure: ServerFailure::Broken(error), forwarded }
}
