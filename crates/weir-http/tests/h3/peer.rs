//! The other end of a connection under test, and what makes bytes readable.

use super::*;

/// Bytes of hexadecimal digits; anything else between them is ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A frame of that type.
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(&mut out, kind);
    varint::write(&mut out, payload.len() as u64);
    out.extend_from_slice(payload);
    out
}

/// SETTINGS that say nothing.
pub fn settings_frame() -> Vec<u8> {
    frame(0x04, &[])
}

/// The start of a unidirectional stream of that type.
pub fn uni(kind: u64, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(&mut out, kind);
    out.extend_from_slice(rest);
    out
}

pub type Pairs = Vec<(String, String)>;

/// Fields as text, for comparison.
pub fn fields_of(fields: &[(&str, &str)]) -> Pairs {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// A HEADERS frame with these fields.
pub fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = SectionWriter::new(&mut out);
    for (name, value) in fields {
        writer.field(name.as_bytes(), value.as_bytes());
    }
    writer.finish();
    out
}

pub const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];

/// The content of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub sections: Vec<Pairs>,
    pub content: Vec<u8>,
}

/// A server's connection, and the client's stream ids.
pub struct Peer {
    pub connection: Connection,
}

impl Peer {
    /// A client of a server with default limits that has sent its settings.
    pub fn new() -> Peer {
        let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
        assert_eq!(peer.sends(2, &uni(0x00, &settings_frame())), Ok(PeerStream::Read));
        peer
    }

    /// One that has sent nothing.
    pub fn silent(config: &h3::Config) -> Peer {
        Peer { connection: Connection::new(config, 7) }
    }

    pub fn sends(&mut self, stream_id: u64, bytes: &[u8]) -> Result<PeerStream, Fault> {
        self.connection.receive(stream_id, bytes)
    }

    /// Sends a whole request stream, in pieces of `piece_bytes`, and ends it.
    pub fn requests_in_pieces(
        &mut self,
        stream_id: u64,
        bytes: &[u8],
        piece_bytes: usize,
    ) -> Result<Message, Fault> {
        let mut stream = self.connection.admit(stream_id).expect("no GOAWAY was sent");
        let mut message = Message::default();
        for piece in bytes.chunks(piece_bytes.max(1)) {
            self.reads(&mut stream, piece, &mut message)?;
        }
        stream.finish().map(|()| message)
    }

    pub fn requests(&mut self, stream_id: u64, bytes: &[u8]) -> Result<Message, Fault> {
        self.requests_in_pieces(stream_id, bytes, usize::MAX)
    }

    /// Reads one piece of a request stream.
    pub fn reads(
        &mut self,
        stream: &mut RequestStream,
        piece: &[u8],
        message: &mut Message,
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < piece.len() {
            let input = &piece[at..];
            let step = stream.advance(input)?;
            assert!(step.consumed > 0, "no progress on {} bytes", input.len());
            match step.event {
                StreamEvent::Section(section) => {
                    let mut fields = Pairs::new();
                    let read = self.connection.read_section(stream, input, section, |name, value| {
                        fields.push(text_of(name, value));
                        Ok::<(), ()>(())
                    });
                    match read {
                        Ok(read) => assert_eq!(read, SectionRead::Complete),
                        Err(SectionError::Fault(fault)) => return Err(fault),
                        Err(SectionError::Refused(())) => unreachable!("nothing is refused here"),
                    }
                    message.sections.push(fields);
                }
                StreamEvent::Data(range) => message.content.extend_from_slice(&input[range]),
                StreamEvent::NeedMore => assert_eq!(step.consumed, input.len()),
                StreamEvent::Blocked => panic!("a section is blocked"),
            }
            at += step.consumed;
        }
        Ok(())
    }

    /// Everything that a stream of the server says now.
    pub fn receives(&mut self, stream: OwnStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let pending = self.connection.pending(stream).to_vec();
            if pending.is_empty() {
                return bytes;
            }
            self.connection.sent(stream, pending.len());
            bytes.extend(pending);
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.connection.poll_event()).collect()
    }
}

/// A field as text; bytes that are none are escaped.
pub fn text_of(name: &[u8], value: &[u8]) -> (String, String) {
    let text = |bytes: &[u8]| {
        std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_string)
    };
    (text(name), text(value))
}
