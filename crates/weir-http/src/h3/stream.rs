//! One message on a request stream: takes frames, yields field sections and content (RFC 9114 §4.1).

use std::ops::Range;

use super::error::Fault;
use super::frame::{FrameHeader, FrameHeaderReader, FrameKind};

/// Most bytes that frames of unknown types may have on one stream: enough for those of any extension, too few
/// to hide a great deal of work in frames that no message limit counts.
const UNKNOWN_FRAMES_LIMIT_BYTES: u64 = 1 << 20;

/// Parses what the peer sends on one request stream.
///
/// Stores no content, and of a field section only what arrived in earlier pieces. About 100 bytes.
#[derive(Debug)]
pub struct RequestStream {
    id: u64,
    state: FrameState,
    phase: Phase,
    /// Bytes left of the frame being read.
    left: u64,
    header: FrameHeaderReader,
    /// What arrived earlier of the field section being read.
    pub(super) section: Vec<u8>,
    head_limit_bytes: u64,
    trailer_limit_bytes: u64,
    skipped_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    Header,
    Data,
    Section,
    Skip,
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Content,
    Tunnel,
    Ended,
}

/// The next event in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// All input was consumed; more is needed.
    NeedMore,
    /// These bytes of the input are content.
    Data(Range<usize>),
    /// A field section is complete: [`Connection::read_section`](super::Connection::read_section) reads its
    /// fields, and must be called before the next `advance`, unless the message is abandoned.
    Section(Section),
    /// Nothing was consumed: a field section waits for the peer's encoder, and what follows it must wait as
    /// well.
    Blocked,
}

/// A complete field section: its position and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whether these are trailers.
    pub is_trailers: bool,
    /// Its position in the input; `None` if it arrived in pieces, which the stream has stored.
    pub(super) range: Option<Range<usize>>,
}

/// One step of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStep {
    /// How many bytes of the input were consumed. Call again with the rest, unless more is needed.
    pub consumed: usize,
    /// What was found.
    pub event: StreamEvent,
}

impl RequestStream {
    pub(super) fn new(id: u64, head_limit_bytes: usize, trailer_limit_bytes: usize) -> RequestStream {
        RequestStream {
            id,
            state: FrameState::Header,
            phase: Phase::Head,
            left: 0,
            header: FrameHeaderReader::default(),
            section: Vec::new(),
            head_limit_bytes: head_limit_bytes as u64,
            trailer_limit_bytes: trailer_limit_bytes as u64,
            skipped_bytes: 0,
        }
    }

    /// The QUIC stream's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Parses from the start of `input` up to the next event.
    ///
    /// The sections and the content are the same however the bytes are split.
    ///
    /// # Errors
    /// A frame that is not allowed at this point, or a section over its limit; [`Fault::scope`] says what
    /// ends.
    pub fn advance(&mut self, input: &[u8]) -> Result<StreamStep, Fault> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.state {
                FrameState::Header => {
                    let (taken, header) = self.header.read(rest);
                    at += taken;
                    let Some(header) = header else { return Ok(step(at, StreamEvent::NeedMore)) };
                    self.begin(header)?;
                }
                FrameState::Data if rest.is_empty() => return Ok(step(at, StreamEvent::NeedMore)),
                FrameState::Data => {
                    let taken = self.take(rest.len());
                    return Ok(step(at + taken, StreamEvent::Data(at..at + taken)));
                }
                FrameState::Section => {
                    let is_whole = self.section.is_empty() && rest.len() as u64 >= self.left;
                    let taken = self.take(rest.len());
                    if !is_whole {
                        self.section.extend_from_slice(rest.get(..taken).unwrap_or_default());
                        if self.state == FrameState::Section {
                            return Ok(step(at + taken, StreamEvent::NeedMore));
                        }
                    }
                    let range = is_whole.then_some(at..at + taken);
                    let is_trailers = self.phase == Phase::Ended;
                    return Ok(step(at + taken, StreamEvent::Section(Section { is_trailers, range })));
                }
                FrameState::Skip if rest.is_empty() => return Ok(step(at, StreamEvent::NeedMore)),
                FrameState::Skip => {
                    let taken = self.take(rest.len());
                    at += taken;
                    self.skip(taken as u64)?;
                }
                FrameState::Blocked => return Ok(step(at, StreamEvent::Blocked)),
            }
        }
    }

    /// Consumes the available part of the frame; the frame ends with its last byte.
    fn take(&mut self, available: usize) -> usize {
        let taken = self.left.min(available as u64);
        self.left -= taken;
        if self.left == 0 {
            self.state = FrameState::Header;
        }
        taken as usize
    }

    //= https://www.rfc-editor.org/rfc/rfc9114#section-4.1
    //# Receipt of an invalid sequence of frames MUST be treated as a
    //# connection error of type H3_FRAME_UNEXPECTED.
    fn begin(&mut self, header: FrameHeader) -> Result<(), Fault> {
        self.left = header.length;
        let state = match (header.kind, self.phase) {
            (FrameKind::Headers, Phase::Head | Phase::Content) => return self.begin_section(),
            (FrameKind::Headers, Phase::Tunnel) => return Err(Fault::FrameInTunnel),
            (FrameKind::Data, Phase::Content | Phase::Tunnel) => FrameState::Data,
            (FrameKind::Data, Phase::Head) => return Err(Fault::DataBeforeHeaders),
            (FrameKind::Data | FrameKind::Headers, Phase::Ended) => return Err(Fault::FrameAfterTrailers),
            (FrameKind::PushPromise, _) => return Err(Fault::PushPromiseFromClient),
            (FrameKind::OfHttp2, _) => return Err(Fault::FrameOfHttp2),
            (FrameKind::Unknown, _) => {
                self.skip(1)?;
                FrameState::Skip
            }
            (FrameKind::Settings | FrameKind::GoAway | FrameKind::CancelPush | FrameKind::MaxPushId, _) => {
                return Err(Fault::ControlFrameOnRequestStream);
            }
        };
        self.state = if header.length == 0 { FrameState::Header } else { state };
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        self.skipped_bytes += bytes;
        if self.skipped_bytes > UNKNOWN_FRAMES_LIMIT_BYTES {
            Err(Fault::UnknownFramesTooLarge)
        } else {
            Ok(())
        }
    }

    fn begin_section(&mut self) -> Result<(), Fault> {
        let is_head = self.phase == Phase::Head;
        self.phase = if is_head { Phase::Content } else { Phase::Ended };
        self.state = FrameState::Section;
        let limit = if is_head { self.head_limit_bytes } else { self.trailer_limit_bytes };
        // A field has fewer bytes here than it counts for, unless its Huffman code is longer than its text,
        // which nobody sends. So a section longer than the limit is refused before any of it is stored.
        if self.left > limit {
            self.state = FrameState::Skip;
            return Err(Fault::SectionTooLarge);
        }
        Ok(())
    }

    /// The stream is a tunnel from now on, in which only DATA may arrive (RFC 9114 §4.4, RFC 9220).
    pub fn become_tunnel(&mut self) {
        if self.phase == Phase::Content {
            self.phase = Phase::Tunnel;
        }
    }

    /// The last section was an interim response: another head follows (RFC 9114 §4.1).
    pub fn await_final_head(&mut self) {
        if self.phase == Phase::Content {
            self.phase = Phase::Head;
        }
    }

    /// Call this when the peer ended the stream and all of its bytes were passed to [`Self::advance`].
    ///
    /// # Errors
    /// The stream ended inside a frame, or before the message was complete.
    pub fn finish(&self) -> Result<(), Fault> {
        //= https://www.rfc-editor.org/rfc/rfc9114#section-7.1
        //# When a stream terminates cleanly, if the last frame on the stream was
        //# truncated, this MUST be treated as a connection error of type
        //# H3_FRAME_ERROR.
        let is_inside =
            !matches!(self.state, FrameState::Header | FrameState::Blocked) || self.header.is_partial();
        if is_inside {
            return Err(Fault::TruncatedFrame);
        }
        //= https://www.rfc-editor.org/rfc/rfc9114#section-4.1
        //# If a client-initiated stream terminates without enough of the HTTP
        //# message to provide a complete response, the server SHOULD abort its
        //# response stream with the error code H3_REQUEST_INCOMPLETE.
        if self.phase == Phase::Head { Err(Fault::RequestIncomplete) } else { Ok(()) }
    }

    /// Whether a field section is waiting for the peer's encoder.
    pub fn is_blocked(&self) -> bool {
        self.state == FrameState::Blocked
    }

    /// Whether only trailers may follow, or nothing.
    pub(super) fn is_behind_content(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Stores `section` until the peer's encoder has sent the insertions that it needs.
    pub(super) fn block(&mut self, section: Option<&[u8]>) {
        if let Some(section) = section {
            self.section.clear();
            self.section.extend_from_slice(section);
        }
        self.state = FrameState::Blocked;
    }

    pub(super) fn unblock(&mut self) {
        self.section = Vec::new();
        if self.state == FrameState::Blocked {
            self.state = FrameState::Header;
        }
    }
}

fn step(consumed: usize, event: StreamEvent) -> StreamStep {
    StreamStep { consumed, event }
}
