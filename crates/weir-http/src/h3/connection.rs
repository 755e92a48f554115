//! State that the streams of one connection share: control streams, QPACK, and which requests are admitted
//! (RFC 9114 §5, §6).

use std::collections::VecDeque;

use super::control::{ControlEvent, ControlReader};
use super::error::{Code, Fault, SectionError};
use super::frame::reserved;
use super::qpack::{Acknowledgements, Decoder, SectionLimits, SectionRead};
use super::settings::Settings;
use super::stream::{RequestStream, Section};
use super::varint;
use crate::limits::Limits;

/// Limits that a connection announces and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest dynamic table that the peer's encoder may fill, in bytes; reduced to at most 4096 (threat C4).
    /// 0 for none.
    ///
    /// For early data a client may use what an earlier connection announced: keep it the same as long as
    /// tickets are valid (RFC 9204 §3.2.3).
    pub qpack_table_capacity: usize,
    /// Most streams that may wait for insertions; reduced to at most 16 (threat C4).
    pub qpack_blocked_streams: usize,
    /// Limits of a head.
    pub head: SectionLimits,
    /// Limits of trailers.
    pub trailers: SectionLimits,
    /// Whether extended CONNECT is announced (RFC 9220).
    pub connect_protocol: bool,
    /// Whether the peer is a server, to which requests are sent.
    pub of_server: bool,
}

/// Upper limits of a connection, whatever is configured.
const LARGEST_TABLE_BYTES: usize = 4096;
const MOST_BLOCKED_STREAMS: usize = 16;
/// Most cookie crumbs, each of which is a field of its own: twice as many cookies as a browser keeps for a
/// host.
const CRUMB_COUNT: usize = 400;

impl Config {
    /// The configuration for these limits, with the largest dynamic table and extended CONNECT.
    pub fn new(limits: &Limits) -> Config {
        Config {
            qpack_table_capacity: LARGEST_TABLE_BYTES,
            qpack_blocked_streams: MOST_BLOCKED_STREAMS,
            head: SectionLimits {
                bytes: limits.section_bytes(),
                field_count: limits.field_count.saturating_add(CRUMB_COUNT),
            },
            trailers: SectionLimits { bytes: limits.trailer_bytes, field_count: limits.trailer_count },
            connect_protocol: true,
            of_server: false,
        }
    }

    /// The same for a connection to a backend, which is not asked to open tunnels. The size of its trailers
    /// is limited by [`TrailerBuilder`](crate::TrailerBuilder), just as that of its heads.
    pub fn of_backend(limits: &Limits) -> Config {
        let config = Config::new(limits);
        Config { trailers: config.head, connect_protocol: false, of_server: true, ..config }
    }
}

/// One HTTP/3 connection, without its request streams, which the caller holds.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    decoder: Decoder,
    control: ControlReader,
    control_stream: Option<u64>,
    encoder_stream: Option<u64>,
    decoder_stream: Option<u64>,
    acknowledgements: Acknowledgements,
    /// Streams whose type is incomplete.
    untyped: Vec<Untyped>,
    ignored_count: usize,
    control_output: Vec<u8>,
    has_decoder_stream: bool,
    events: VecDeque<Event>,
    /// The stream id in our last GOAWAY.
    refused_from: Option<u64>,
    /// One step of 4 above the largest request stream that was admitted.
    next_request: u64,
    admitted_count: u64,
}

#[derive(Debug)]
struct Untyped {
    stream_id: u64,
    bytes: [u8; 8],
    length: usize,
}

/// Most unidirectional streams whose type has not arrived.
const UNTYPED_LIMIT: usize = 16;
/// Most unidirectional streams of unknown types in the life of a connection.
const IGNORED_LIMIT: usize = 64;
/// Most bytes in unknown frames on the control stream, and how many more each request allows (PRIORITY_UPDATE
/// is sent there).
const SKIPPED_LIMIT_BYTES: u64 = 1 << 16;
const SKIPPED_PER_REQUEST_BYTES: u64 = 1 << 10;
/// The largest possible request stream id: a GOAWAY with it only announces another GOAWAY (RFC 9114 §5.2).
const LAST_REQUEST: u64 = varint::MAX - 3;

/// An event of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's settings have arrived; once.
    Settings(Settings),
    /// The peer accepts no pushes or requests from this id on.
    GoAway(u64),
    /// The blocked field section of this stream can now be read: call [`Connection::retry_section`].
    Unblocked(u64),
}

/// A unidirectional stream of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnStream {
    /// Our control stream: must be opened at once, and has bytes to send from the start.
    Control,
    /// Acknowledgements of our QPACK decoder: open the stream when it first has bytes. It never has any if no
    /// table is announced.
    QpackDecoder,
}

impl OwnStream {
    /// Both, the more urgent one first.
    pub const ALL: [OwnStream; 2] = [OwnStream::Control, OwnStream::QpackDecoder];
}

/// How to treat one of the peer's unidirectional streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStream {
    /// Continue reading.
    Read,
    /// Its type is unknown: send STOP_SENDING with [`Code::StreamCreationError`], and pass no more of its
    /// bytes.
    Ignore,
}

impl Connection {
    /// A connection whose handshake is complete, or whose early data is read. `draw` is any number, from
    /// which reserved settings and frames are made.
    pub fn new(config: &Config, draw: u32) -> Connection {
        let config = Config {
            qpack_table_capacity: config.qpack_table_capacity.min(LARGEST_TABLE_BYTES),
            qpack_blocked_streams: config.qpack_blocked_streams.min(MOST_BLOCKED_STREAMS),
            ..*config
        };
        let settings = Settings {
            qpack_table_capacity: config.qpack_table_capacity as u64,
            qpack_blocked_streams: config.qpack_blocked_streams as u64,
            section_bytes: Some(config.head.bytes as u64),
            connect_protocol: config.connect_protocol,
            datagram: false,
        };
        let mut control_output = vec![STREAM_CONTROL];
        settings.write(draw, &mut control_output);
        // An empty frame of a reserved type: a peer that can't cope with it could not cope with any
        // extension.
        varint::write(&mut control_output, reserved(draw >> 4));
        control_output.push(0);
        Connection {
            decoder: Decoder::new(config.qpack_table_capacity, config.qpack_blocked_streams),
            config,
            control: ControlReader::default(),
            control_stream: None,
            encoder_stream: None,
            decoder_stream: None,
            acknowledgements: Acknowledgements::default(),
            untyped: Vec::new(),
            ignored_count: 0,
            control_output,
            has_decoder_stream: false,
            events: VecDeque::new(),
            refused_from: None,
            next_request: 0,
            admitted_count: 0,
        }
    }

    /// Admits a new request stream of the peer. `None` when it must be refused with
    /// [`Code::RequestRejected`], because we sent a GOAWAY for it: the client may send the request again
    /// elsewhere.
    pub fn admit(&mut self, stream_id: u64) -> Option<RequestStream> {
        if self.refused_from.is_some_and(|from| stream_id >= from) {
            return None;
        }
        self.next_request = self.next_request.max(stream_id.saturating_add(4));
        self.admitted_count += 1;
        Some(RequestStream::new(stream_id, self.config.head.bytes, self.config.trailers.bytes))
    }

    /// Passes the fields of a section that [`RequestStream::advance`] found in `input` to `visit`, in order.
    ///
    /// If it is blocked the stream keeps it, and [`Event::Unblocked`] tells when to call
    /// [`Self::retry_section`]; the caller decides how long to wait (threat C4). Allocates nothing once its
    /// buffers have grown.
    ///
    /// # Errors
    /// The section is malformed, over a limit, or `visit` refused a field. Unless the fault ends the
    /// connection, the section counts as read.
    pub fn read_section<E>(
        &mut self,
        stream: &mut RequestStream,
        input: &[u8],
        section: Section,
        visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<SectionRead, SectionError<E>> {
        let limits = if section.is_trailers { self.config.trailers } else { self.config.head };
        let in_input = section.range.map(|range| input.get(range).unwrap_or_default());
        let bytes = in_input.unwrap_or(&stream.section);
        match self.decoder.read_section(stream.id(), bytes, limits, visit) {
            Ok(SectionRead::Blocked) => {
                stream.block(in_input);
                Ok(SectionRead::Blocked)
            }
            read => {
                stream.unblock();
                read
            }
        }
    }

    /// Reads a section that was blocked. Whether it is a trailer section was in the first event.
    ///
    /// # Errors
    /// As [`Self::read_section`].
    pub fn retry_section<E>(
        &mut self,
        stream: &mut RequestStream,
        visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<SectionRead, SectionError<E>> {
        let section = Section { is_trailers: stream.is_behind_content(), range: None };
        self.read_section(stream, &[], section, visit)
    }

    /// Call this when a request stream ended before all of it was read, because it was reset or is no longer
    /// read. Not needed for a stream that was read to its end.
    ///
    /// # Errors
    /// The peer does not accept bytes of our QPACK decoder stream.
    pub fn abandon(&mut self, stream_id: u64) -> Result<(), Fault> {
        if self.config.of_server {
            // The server inserted entries for this response's section although nobody will read it now.
            self.decoder.excuse_section();
        }
        self.decoder.cancel(stream_id)
    }

    /// Takes bytes of one of the peer's unidirectional streams, split in any way.
    ///
    /// # Errors
    /// A fault that ends the connection.
    pub fn receive(&mut self, stream_id: u64, input: &[u8]) -> Result<PeerStream, Fault> {
        let is = |stream: Option<u64>| stream == Some(stream_id);
        if is(self.encoder_stream) {
            self.receive_instructions(input)?;
        } else if is(self.control_stream) {
            self.receive_control(input)?;
        } else if is(self.decoder_stream) {
            self.acknowledgements.receive(input)?;
        } else {
            return self.receive_untyped(stream_id, input);
        }
        Ok(PeerStream::Read)
    }

    /// Call this when the peer ended or reset one of its unidirectional streams. If it stopped one of ours,
    /// the connection also ends with [`Fault::CriticalStreamClosed`].
    ///
    /// # Errors
    /// The connection can't continue without that stream.
    pub fn closed(&mut self, stream_id: u64) -> Result<(), Fault> {
        self.untyped.retain(|untyped| untyped.stream_id != stream_id);
        //= https://www.rfc-editor.org/rfc/rfc9114#section-6.2.1
        //# If either control
        //# stream is closed at any point, this MUST be treated as a connection
        //# error of type H3_CLOSED_CRITICAL_STREAM.
        //= https://www.rfc-editor.org/rfc/rfc9204#section-4.2
        //# Closure of either unidirectional stream type MUST be
        //# treated as a connection error of type H3_CLOSED_CRITICAL_STREAM.
        let critical = [self.control_stream, self.encoder_stream, self.decoder_stream];
        if critical.contains(&Some(stream_id)) { Err(Fault::CriticalStreamClosed) } else { Ok(()) }
    }

    #[cold]
    fn receive_untyped(&mut self, stream_id: u64, input: &[u8]) -> Result<PeerStream, Fault> {
        let place = self.untyped.iter().position(|untyped| untyped.stream_id == stream_id);
        let mut untyped = match place {
            Some(place) => self.untyped.swap_remove(place),
            None => Untyped { stream_id, bytes: [0; 8], length: 0 },
        };
        for (index, &byte) in input.iter().enumerate() {
            if let Some(room) = untyped.bytes.get_mut(untyped.length) {
                *room = byte;
                untyped.length += 1;
            }
            let begun = untyped.bytes.get(..untyped.length).unwrap_or_default();
            if let Some((kind, _)) = varint::read(begun) {
                return self.open(stream_id, kind, input.get(index + 1..).unwrap_or_default());
            }
        }
        if self.untyped.len() >= UNTYPED_LIMIT {
            return Err(Fault::TooManyStreams);
        }
        self.untyped.push(untyped);
        Ok(PeerStream::Read)
    }

    /// Handles a stream whose type is now known; `rest` are the bytes after the type.
    fn open(&mut self, stream_id: u64, kind: u64, rest: &[u8]) -> Result<PeerStream, Fault> {
        let (place, repeated) = match kind {
            0x00 => (&mut self.control_stream, Fault::ControlStreamRepeated),
            0x02 => (&mut self.encoder_stream, Fault::QpackStreamRepeated),
            0x03 => (&mut self.decoder_stream, Fault::QpackStreamRepeated),
            0x01 => return Err(Fault::PushStreamFromClient),
            _ => {
                self.ignored_count += 1;
                let is_flood = self.ignored_count > IGNORED_LIMIT;
                return if is_flood { Err(Fault::TooManyStreams) } else { Ok(PeerStream::Ignore) };
            }
        };
        if place.replace(stream_id).is_some() {
            return Err(repeated);
        }
        if rest.is_empty() { Ok(PeerStream::Read) } else { self.receive(stream_id, rest) }
    }

    fn receive_control(&mut self, mut input: &[u8]) -> Result<(), Fault> {
        while !input.is_empty() {
            let (taken, event) = self.control.advance(input)?;
            input = input.get(taken..).unwrap_or_default();
            match event {
                Some(ControlEvent::Settings(settings)) => self.events.push_back(Event::Settings(settings)),
                //= https://www.rfc-editor.org/rfc/rfc9114#section-7.2.6
                //# A client that receives a
                //# GOAWAY frame containing a stream ID of any other type MUST treat this
                //# as a connection error of type H3_ID_ERROR.
                Some(ControlEvent::GoAway(id)) if self.config.of_server && !id.is_multiple_of(4) => {
                    return Err(Fault::GoAwayStream);
                }
                Some(ControlEvent::GoAway(id)) => {
                    // Only the last of them matters.
                    self.events.retain(|event| !matches!(event, Event::GoAway(_)));
                    self.events.push_back(Event::GoAway(id));
                }
                None => {}
            }
        }
        let allowed = SKIPPED_LIMIT_BYTES + self.admitted_count * SKIPPED_PER_REQUEST_BYTES;
        if self.control.skipped_bytes() > allowed { Err(Fault::UnknownFramesTooLarge) } else { Ok(()) }
    }

    fn receive_instructions(&mut self, input: &[u8]) -> Result<(), Fault> {
        self.decoder.receive_instructions(input)?;
        while let Some(stream_id) = self.decoder.poll_unblocked() {
            self.events.push_back(Event::Unblocked(stream_id));
        }
        Ok(())
    }

    /// The next event; `None` until more is received.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next bytes to send on one of our streams, including its type. Send as many as flow control allows
    /// and report them with [`Self::sent`]. Call it after a batch of input rather than after each piece:
    /// acknowledgements then take fewer bytes.
    #[inline]
    pub fn pending(&mut self, stream: OwnStream) -> &[u8] {
        match stream {
            OwnStream::Control => &self.control_output,
            OwnStream::QpackDecoder if self.has_decoder_stream => self.decoder.output(),
            OwnStream::QpackDecoder if self.decoder.output().is_empty() => &[],
            OwnStream::QpackDecoder => &[STREAM_DECODER],
        }
    }

    /// Reports that the first `count` bytes of [`Self::pending`] were sent.
    pub fn sent(&mut self, stream: OwnStream, count: usize) {
        match stream {
            OwnStream::Control => {
                self.control_output.drain(..count.min(self.control_output.len()));
            }
            OwnStream::QpackDecoder if self.has_decoder_stream => self.decoder.sent(count),
            OwnStream::QpackDecoder => self.has_decoder_stream = count > 0,
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9114#section-5.2
    //# An endpoint that is attempting to gracefully shut down a connection
    //# can send a GOAWAY frame with a value set to the maximum possible value
    //# (2^62-4 for servers, 2^62-1 for clients).
    /// Announces that the connection will end. Requests still arrive, and are admitted, until
    /// [`Self::refuse_requests`] is called, which should be at least a round trip later.
    pub fn announce_end(&mut self) {
        if self.refused_from.is_none() {
            self.go_away(LAST_REQUEST);
        }
    }

    /// Admits no further requests, and tells the peer. The connection can be closed with [`Code::NoError`]
    /// once the admitted ones are done.
    pub fn refuse_requests(&mut self) {
        if self.refused_from != Some(self.next_request) {
            self.go_away(self.next_request);
        }
    }

    fn go_away(&mut self, id: u64) {
        self.refused_from = Some(id);
        self.control_output.push(0x07);
        varint::write(&mut self.control_output, varint::length(id) as u64);
        varint::write(&mut self.control_output, id);
    }

    /// How many streams are waiting for the peer's encoder.
    pub fn blocked_count(&self) -> usize {
        self.decoder.blocked_count()
    }

    /// The code to refuse a request with if [`Self::admit`] did not admit it.
    pub const REFUSED: Code = Code::RequestRejected;
}

const STREAM_CONTROL: u8 = 0x00;
const STREAM_DECODER: u8 = 0x03;
