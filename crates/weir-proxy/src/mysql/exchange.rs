//! One command of a client on a connection to a server: its bytes there, and the answer's bytes back.
//!
//! Bytes pass as they came, but for what Weir has added to the connection on its own account: the number of a
//! prepared statement, and changes that the client did not ask to be told.

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

/// Why a connection to a server is of no use any more.
#[derive(Debug)]
pub enum ServerFailure {
    /// The server closed it.
    Closed,
    /// It broke.
    Broken(io::Error),
    /// The server did not answer in time.
    TimedOut,
    /// The server broke the protocol.
    Protocol(WireError),
    /// It refused what every server must do.
    Refused(ServerError),
    /// It was the primary and has no role any more, while another is the primary: it need not answer at all.
    Deposed,
    /// No buffer could be had within the memory budget: not the server's fault.
    NoMemory,
}

/// Why an exchange did not come to its end.
#[derive(Debug)]
pub enum ExchangeError {
    /// The client left, broke off, or took nothing for too long.
    Client,
    /// The server failed; `forwarded` says whether the client has some of the answer.
    Server { failure: ServerFailure, forwarded: bool },
    /// What the server is to know beside the command would make it one packet more; the server has not got
    /// all of it.
    Unframed,
    /// The statement's time is over, and its answer has not begun.
    Overtime,
    /// Weir or the listener goes, and the time for that is over; `forwarded` as with a server's failure.
    Drained { forwarded: bool },
}

/// What is left to be sent to the client when the server is done: the server's connection need not wait for
/// that.
pub struct Rest {
    buffer: Option<Buffer>,
    /// Bytes of the buffer that belong to the answer.
    pass: usize,
    /// What follows them.
    tail: Vec<u8>,
}

impl Rest {
    /// The bytes, in order.
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

/// How a client is told of an answer.
#[derive(Clone, Copy)]
pub struct Forwarding<'a> {
    pub buffers: &'a Rc<Buffers>,
    /// The session's own.
    pub deadline: &'a Deadline,
    /// The session's listener, which may be going.
    pub slot: &'a ListenerSlot,
    /// What the client and Weir have agreed on.
    pub capabilities: Capabilities,
    /// The session's status as the client was told it last.
    pub told_status: StatusFlags,
    /// As of [`StatementVerdict::runs_no_stored_code`](weir_mysql::StatementVerdict::runs_no_stored_code).
    pub runs_no_stored_code: bool,
    /// The number by which the client is to know the statement that it prepares.
    pub statement_id: u32,
    /// Longest time without progress while the client takes its answer.
    pub client_patience: Duration,
    /// When the statement's time to begin its answer is over; `None` for never.
    pub overtime: Option<Duration>,
    /// The server, where the statement is for a primary and somebody watches who that is.
    pub primary: Option<PrimaryAsked<'a>>,
    /// Whether the server may ask for a file of the client's; without, it gets an empty one, and the client
    /// an error.
    pub local_infile: bool,
    /// Whether the client is to get each result by itself ([`Stream::end_part`]).
    pub by_result: bool,
    /// Whether it is an execution whose rows are to stay with a cursor.
    pub asks_cursor: bool,
}

impl Forwarding<'_> {
    /// Whether the client waits for EOF packets, which no server is asked for.
    pub fn waits_for_eof(&self) -> bool {
        !self.capabilities.has(Capabilities::DEPRECATE_EOF)
    }

    /// Sends bytes to the client, at its pace.
    pub async fn send(&self, client: &mut Stream, bytes: &[u8]) -> Result<(), ExchangeError> {
        let renew =
            || self.deadline.set(super::while_it_lasts(self.slot, clock::now() + self.client_patience));
        renew();
        send_all(client, bytes, self.deadline, renew).await.map_err(|_| ExchangeError::Client)
    }

    /// Waits until the server has something to be received; ends when the client leaves meanwhile, or the
    /// server has been replaced as the primary.
    async fn server_speaks(
        &self,
        client: &mut Stream,
        server: &mut Stream,
        forwarded: bool,
        has_begun: bool,
    ) -> Result<(), ExchangeError> {
        // Once the answer has begun, it may take as long as it takes.
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

/// An answer under way.
pub struct Answering<'a> {
    pub forwarding: Forwarding<'a>,
    pub reader: AnswerReader,
    pub outcome: Outcome,
    /// Bytes that the client has of it.
    pub forwarded: u64,
    /// Bytes that the server has sent of it.
    pub received: u64,
    /// A file was asked for that the client has not offered: the sequence id of its error. Nothing of the
    /// answer goes to the client from there on.
    declined: Option<u8>,
    /// EOF packets that were put in, for a client that waits for them.
    shift: SequenceShift,
    /// Definitions are over, and the client has not been told so yet.
    owes_eof: bool,
    /// Received and not judged yet.
    held: Option<Buffer>,
    /// Buffers that were filled at once, in a row.
    full: u32,
}

/// What an answer has come to.
pub enum Answered {
    /// It is over.
    Over(Rest),
    /// The server waits for a file of the client's.
    WantsFile,
}

impl<'a> Answering<'a> {
    /// Of an answer of which nothing has been received.
    pub fn new(forwarding: Forwarding<'a>, reader: AnswerReader) -> Answering<'a> {
        Answering {
            reader: reader.telling_definitions(forwarding.waits_for_eof()),
            forwarding,
            outcome: Outcome::default(),
            forwarded: 0,
            received: 0,
            declined: None,
            shift: SequenceShift::default(),
            owes_eof: false,
            held: None,
            full: 0,
        }
    }

    /// How the sequence ids of a file that the client sends become those that the server waits for.
    pub fn shift_back(&self) -> SequenceShift {
        self.shift.back()
    }

    /// Passes the answer on as it comes.
    pub async fn run(
        &mut self,
        client: &mut Stream,
        server: &mut ServerConnection,
    ) -> Result<Answered, ExchangeError> {
        // Whether all that is held was judged, so that more must come first.
        let mut is_starved = true;
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
                    error.write(&mut tail, sequence);
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

    /// Receives once, behind what is held.
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
            // No packet that must be in one piece is as long.
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

    /// Sends an empty file where the client has offered none, so that the server comes to an end: its
    /// connection is as good as before. A client could otherwise have a server taken for broken, by a text
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

    /// Judges what is in the buffer, up to what is to be done about it.
    fn judge(&mut self, buffer: &mut Buffer, server: &mut ServerConnection) -> Result<Judged, WireError> {
        let mut pass = 0;
        // Of the EOF packet in the buffer behind the columns of the result at hand.
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

    /// What is to be done at the end of a result, where `packet`, if any, is to be in this place of the
    /// buffer. [`Judged::More`] is nothing, yet.
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

    /// Gives packets the sequence ids that they have for the client.
    fn renumber(&mut self, buffer: &mut Buffer, range: Range<usize>) {
        self.shift.apply(buffer.filled_mut().get_mut(range).unwrap_or_default());
    }

    /// Puts the EOF packet that is owed into the buffer at `at`, where the next packet begins, and gives its
    /// bytes (count): none where a cursor is open, of which the server's next packet tells.
    ///
    /// # Errors
    /// What is to be done first.
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

    /// The EOF packet behind definitions, as the next packet of the answer. What a server would say there of
    /// the session is known only where the end of the result is.
    fn eof_packet(&mut self) -> Vec<u8> {
        let sequence = self.reader.next_sequence().wrapping_add(self.shift.added());
        let status = self.outcome.status.unwrap_or(self.forwarding.told_status);
        let warnings = self.outcome.prepared.map_or(0, |prepared| prepared.warnings);
        self.owes_eof = false;
        self.shift.add();
        eof::packet(sequence, StatusFlags(status.0 & StatusFlags::LASTING.0), warnings)
    }

    /// Puts the client's number of the statement in the place of the server's.
    fn rename(&self, buffer: &mut Buffer, packet: usize) {
        let place = packet + HEADER_BYTES + STATEMENT_ID.start;
        if let Some(place) = buffer.filled_mut().get_mut(place..place + 4) {
            place.copy_from_slice(&self.forwarding.statement_id.to_le_bytes());
        }
    }
}

/// Has the EOF packet at this place, behind columns, say the session's status as the end of its result does:
/// a server knows most of that before the first row.
fn say(buffer: &mut Buffer, at: usize, status: StatusFlags, warnings: u16) {
    let status = StatusFlags(status.0 & !StatusFlags::LAST_ROW_SENT.0);
    let packet = eof::packet(sequence(buffer, at), status, warnings);
    if let Some(place) = buffer.filled_mut().get_mut(at..at + packet.len()) {
        place.copy_from_slice(&packet);
    }
}

/// What an end says of the session, status and warnings, and the statement that is prepared with it.
fn said(end: &AnswerEnd<'_>) -> (Option<(StatusFlags, u16)>, Option<PreparedStatement>) {
    match end {
        AnswerEnd::Ok(ok) => (Some((ok.status, ok.warnings)), None),
        AnswerEnd::Prepared(prepared) => (None, Some(*prepared)),
        _ => (None, None),
    }
}

/// The sequence id of the packet that begins there.
fn sequence(buffer: &Buffer, packet: usize) -> u8 {
    let header = buffer.filled().get(packet..).and_then(<[u8]>::first_chunk::<HEADER_BYTES>);
    header.map_or(0, |header| PacketHeader::parse(*header).sequence)
}

/// What is to be done about what was received.
enum Judged {
    /// Pass this on, and receive more.
    More { pass: usize },
    /// A result is over, and not the last: pass this on, and this packet, if any, in the place of its last.
    Result { pass: usize, consumed: usize, packet: Vec<u8> },
    /// Pass this on, and this EOF packet, for which the buffer has no room, before what is left in that.
    Eof { pass: usize, packet: Vec<u8> },
    /// Pass this on, and then let the client send a file.
    File { pass: usize },
    /// Pass this on, and have the server get no file; the sequence id is that of its question.
    UnaskedFile { pass: usize, consumed: usize, sequence: u8 },
    /// The answer is over: this is left to be passed on, and this behind it.
    Over { pass: usize, consumed: usize, tail: Vec<u8> },
}

fn broken(error: io::Error, forwarded: bool) -> ExchangeError {
    ExchangeError::Server { failure: ServerFailure::Broken(error), forwarded }
}
