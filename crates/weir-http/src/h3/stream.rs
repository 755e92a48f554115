//! One message of a request stream: frames in, field sections and content out (RFC 9114 §4.1).

use std::ops::Range;

use super::error::Fault;
use super::frame::{FrameHeader, FrameHeaderReader, FrameKind};

/// Most bytes that frames of unknown types may have on one stream: enough for any extension's, too few to
/// hide a connection's worth of work in what no limit of messages counts.
const UNKNOWN_FRAMES_LIMIT_BYTES: u64 = 1 << 20;

/// Reads what the peer sends on one request stream.
///
/// Keeps nothing of content, and of a field section only what came in earlier pieces. About 100 bytes.
#[derive(Debug)]
pub struct RequestStream {
    id: u64,
    state: FrameState,
    phase: Phase,
    /// Bytes left of the frame being read.
    left: u64,
    header: FrameHeaderReader,
    /// The field section being read, as far as it came in other pieces.
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
    /// Everything was taken; more input is needed.
    NeedMore,
    /// These bytes of the input are content.
    Data(Range<usize>),
    /// A field section is complete: [`Connection::read_section`](super::Connection::read_section) gives its
    /// fields, and must be called before the next `advance`, unless the message is given up.
    Section(Section),
    /// Nothing was taken: a field section waits for the peer's encoder, and what follows it has to wait too.
    Blocked,
}

/// A complete field section: where its bytes are, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whether these are trailers.
    pub is_trailers: bool,
    /// Where it lies in the input; `None` where it came in pieces and the stream has it.
    pub(super) range: Option<Range<usize>>,
}

/// One step of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStep {
    /// How many bytes of the input were taken. Call again with the rest, unless more is needed.
    pub consumed: usize,
    /// The kind of frame that they were, of the last of them at least.
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

    /// Reads from the start of `input` up to the next thing to act on.
    ///
    /// Any split of the bytes into inputs gives the same sections and the same content.
    ///
    /// # Errors
    /// A frame that must not stand there, or a section over its limit; [`Fault::scope`] says what ends.
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

    /// Takes what there is of the frame; the frame ends with its last byte.
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
        // A field takes fewer bytes here than it counts for, unless its Huffman code is longer than its text,
        // which no one writes: a section that is longer than the limit is refused before any of it is kept.
        if self.left > limit {
            self.state = FrameState::Skip;
            return Err(Fault::SectionTooLarge);
        }
        Ok(())
    }

    /// From here on the stream is a tunnel, in which only DATA may come (RFC 9114 §4.4, RFC 9220).
    pub fn become_tunnel(&mut self) {
        if self.phase == Phase::Content {
            self.phase = Phase::Tunnel;
        }
    }

    /// The section read last was an interim response: another head follows (RFC 9114 §4.1).
    pub fn await_final_head(&mut self) {
        if self.phase == Phase::Content {
            self.phase = Phase::Head;
        }
    }

    /// The peer ended the stream, and all of its bytes were given to [`Self::advance`].
    ///
    /// # Errors
    /// The end came inside a frame, or before the message did.
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

    /// Whether a field section waits for the peer's encoder.
    pub fn is_blocked(&self) -> bool {
        self.state == FrameState::Blocked
    }

    /// Whether what comes now are trailers, or nothing.
    pub(super) fn is_behind_content(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Keeps `section` until the peer's encoder has sent what it needs.
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
