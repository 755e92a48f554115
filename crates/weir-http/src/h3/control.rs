//! The peer's control stream (RFC 9114 §6.2.1, §7.2).

use super::error::Fault;
use super::frame::{FrameHeader, FrameHeaderReader, FrameKind};
use super::settings::{self, Settings};
use super::varint;

/// The content of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlEvent {
    Settings(Settings),
    GoAway(u64),
}

/// Parses the control stream.
#[derive(Debug, Default)]
pub(super) struct ControlReader {
    header: FrameHeaderReader,
    /// The frame being read.
    frame: Option<FrameHeader>,
    /// Its payload so far: at most [`settings::LONGEST_PAYLOAD_BYTES`].
    payload: Vec<u8>,
    has_settings: bool,
    goaway: Option<u64>,
    max_push_id: Option<u64>,
    /// Bytes in frames of unknown types so far.
    skipped_bytes: u64,
}

/// Longest payload of a frame that consists of one integer.
const LONGEST_INTEGER_BYTES: u64 = 8;

impl ControlReader {
    /// Bytes in frames of unknown types so far, plus one for each frame.
    pub(super) fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }

    /// Parses from the start of `input` up to the next event, if there is one; returns how many bytes it
    /// took.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<(usize, Option<ControlEvent>), Fault> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            let Some(frame) = &mut self.frame else {
                let (taken, header) = self.header.read(rest);
                at += taken;
                let Some(header) = header else { return Ok((at, None)) };
                self.check(header)?;
                self.frame = Some(header);
                continue;
            };
            let taken = frame.length.min(rest.len() as u64);
            frame.length -= taken;
            let (kind, left) = (frame.kind, frame.length);
            at += taken as usize;
            if kind == FrameKind::Unknown {
                self.skipped_bytes += taken;
            } else {
                self.payload.extend_from_slice(rest.get(..taken as usize).unwrap_or_default());
            }
            if left > 0 {
                return Ok((at, None));
            }
            self.frame = None;
            let payload = std::mem::take(&mut self.payload);
            let event = self.carry_out(kind, &payload)?;
            if event.is_some() {
                return Ok((at, event));
            }
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9114#section-6.2.1
    //# If the first frame of the control stream is any other
    //# frame type, this MUST be treated as a connection error of type
    //# H3_MISSING_SETTINGS.
    fn check(&mut self, header: FrameHeader) -> Result<(), Fault> {
        if !self.has_settings && header.kind != FrameKind::Settings {
            return Err(Fault::FrameBeforeSettings);
        }
        match header.kind {
            FrameKind::Settings if self.has_settings => Err(Fault::SettingsRepeated),
            FrameKind::Settings if header.length > settings::LONGEST_PAYLOAD_BYTES => {
                Err(Fault::SettingsTooLarge)
            }
            FrameKind::GoAway | FrameKind::CancelPush | FrameKind::MaxPushId
                if header.length > LONGEST_INTEGER_BYTES =>
            {
                Err(Fault::ControlFramePayload)
            }
            FrameKind::Data | FrameKind::Headers | FrameKind::PushPromise => {
                Err(Fault::MessageFrameOnControlStream)
            }
            FrameKind::OfHttp2 => Err(Fault::FrameOfHttp2),
            FrameKind::Unknown => {
                self.skipped_bytes += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn carry_out(&mut self, kind: FrameKind, payload: &[u8]) -> Result<Option<ControlEvent>, Fault> {
        match kind {
            FrameKind::Settings => {
                self.has_settings = true;
                Settings::read(payload).map(|settings| Some(ControlEvent::Settings(settings)))
            }
            FrameKind::GoAway => {
                let id = only_integer(payload)?;
                //= https://www.rfc-editor.org/rfc/rfc9114#section-5.2
                //# Receiving a GOAWAY containing a larger identifier than previously
                //# received MUST be treated as a connection error of type H3_ID_ERROR.
                if self.goaway.is_some_and(|before| id > before) {
                    return Err(Fault::GoAwayId);
                }
                self.goaway = Some(id);
                Ok(Some(ControlEvent::GoAway(id)))
            }
            FrameKind::MaxPushId => {
                let id = only_integer(payload)?;
                if self.max_push_id.is_some_and(|before| id < before) {
                    return Err(Fault::PushIdReduced);
                }
                self.max_push_id = Some(id);
                Ok(None)
            }
            // Weir neither promises nor allows pushes, so no push id is valid.
            FrameKind::CancelPush => {
                only_integer(payload)?;
                Err(Fault::PushIdUnknown)
            }
            _ => Ok(None),
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc9114#section-7.1
//# A frame payload that contains additional bytes
//# after the identified fields or a frame payload that terminates before
//# the end of the identified fields MUST be treated as a connection
//# error of type H3_FRAME_ERROR.
fn only_integer(payload: &[u8]) -> Result<u64, Fault> {
    match varint::read(payload) {
        Some((value, length)) if length == payload.len() => Ok(value),
        _ => Err(Fault::ControlFramePayload),
    }
}
