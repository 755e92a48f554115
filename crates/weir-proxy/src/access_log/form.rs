//! Lines that the config defines: a text with variables, or JSON with fields of its own.

use weir_config::{AccessFormat, LineTemplate, LogLines};
use weir_http::{encode_decimal, write_address};
use weir_template::{Outcome, Piece, Variable};

use super::captured::Captured;
use super::record::{Record, Spoken};
use super::render::{Renderer, json_text, put_seconds, put_words};
use super::{escape, render};
use crate::client::is_unix;

/// The form of a line.
#[derive(Debug)]
pub enum Form {
    /// One of the fixed formats.
    Fixed(AccessFormat),
    /// A text with variables.
    Line(Box<[Part]>),
    /// JSON with fields from the config.
    Json {
        /// Whether the standard fields come first.
        has_standard: bool,
        fields: Box<[(Box<str>, LineTemplate)]>,
    },
}

/// A part of a text with variables.
#[derive(Debug)]
pub enum Part {
    Text(Box<str>),
    Value {
        variable: Variable,
        /// The byte after the value, which ends it for readers of the line.
        ender: Option<u8>,
        /// Whether it is between quotes.
        is_quoted: bool,
    },
}

/// The data for a line.
#[derive(Clone, Copy)]
pub struct Said<'a> {
    pub record: &'a Record<'a>,
    pub captured: &'a Captured,
}

impl Form {
    pub fn of(lines: &LogLines) -> Form {
        if let Some(line) = &lines.line {
            return Form::Line(parts(line));
        }
        if lines.fields.is_empty() && lines.standard_fields {
            return Form::Fixed(lines.format);
        }
        let fields = lines.fields.iter().map(|(name, value)| (name.as_str().into(), value.clone()));
        Form::Json { has_standard: lines.standard_fields, fields: fields.collect() }
    }

    /// The variables in it that are not fixed parts of a record.
    pub fn variables(&self) -> Vec<&Variable> {
        match self {
            Form::Fixed(_) => Vec::new(),
            Form::Line(parts) => parts.iter().filter_map(Part::variable).collect(),
            Form::Json { fields, .. } => fields.iter().flat_map(|(_, value)| value.0.variables()).collect(),
        }
    }

    /// Appends a line, without the line feed.
    pub fn put(&self, renderer: &mut Renderer, out: &mut Vec<u8>, said: Said<'_>) {
        match self {
            Form::Fixed(format) => renderer.fixed(out, *format, said.record),
            Form::Line(parts) => line(renderer, out, parts, said),
            Form::Json { has_standard, fields } => json(renderer, out, *has_standard, fields, said),
        }
    }
}

impl Part {
    fn variable(&self) -> Option<&Variable> {
        match self {
            Part::Text(_) => None,
            Part::Value { variable, .. } => Some(variable),
        }
    }
}

/// Compiles the text; each value knows which bytes must not occur in it.
fn parts(line: &LineTemplate) -> Box<[Part]> {
    let pieces = line.0.pieces();
    let mut is_quoted = false;
    let part = |(number, piece): (usize, &Piece)| match piece {
        Piece::Text(text) => {
            is_quoted ^= text.matches('"').count() % 2 == 1;
            Part::Text(text.clone())
        }
        Piece::Value(variable) => Part::Value {
            variable: variable.clone(),
            ender: match pieces.get(number + 1) {
                Some(Piece::Text(text)) => text.bytes().next().filter(|byte| !byte.is_ascii_alphanumeric()),
                _ => None,
            },
            is_quoted,
        },
    };
    pieces.iter().enumerate().map(part).collect()
}

fn line(renderer: &mut Renderer, out: &mut Vec<u8>, parts: &[Part], said: Said<'_>) {
    for part in parts {
        let (variable, ender, is_quoted) = match part {
            Part::Text(text) => {
                out.extend_from_slice(text.as_bytes());
                continue;
            }
            Part::Value { variable, ender, is_quoted } => (variable, *ender, *is_quoted),
        };
        let start = out.len();
        match of_peer(variable, said) {
            // What a peer sent can't end the line, nor the quotes around it, nor its column.
            Some(bytes) => {
                let ends = |byte: u8| Some(byte) == ender || (byte == b' ' && !is_quoted);
                escape::value(out, bytes.unwrap_or_default(), ends);
            }
            None => own(renderer, variable, said, out),
        }
        if out.len() == start {
            out.push(b'-');
        }
    }
}

fn json(
    renderer: &mut Renderer,
    out: &mut Vec<u8>,
    has_standard: bool,
    fields: &[(Box<str>, LineTemplate)],
    said: Said<'_>,
) {
    let start = out.len();
    out.push(b'{');
    if has_standard {
        renderer.json_fields(out, said.record);
    }
    let mut room = std::mem::take(&mut renderer.room);
    for (name, value) in fields {
        let mark = out.len();
        room.clear();
        let mut has_value = value.0.as_constant().is_some();
        for piece in value.0.pieces() {
            match piece {
                Piece::Text(text) => room.extend_from_slice(text.as_bytes()),
                Piece::Value(variable) => {
                    let before = room.len();
                    match of_peer(variable, said) {
                        Some(bytes) => room.extend_from_slice(bytes.unwrap_or_default()),
                        None => own(renderer, variable, said, &mut room),
                    }
                    has_value |= room.len() > before;
                }
            }
        }
        if !has_value {
            continue;
        }
        match value.0.pieces() {
            [Piece::Value(Variable::Outcome(outcome))] if outcome.is_number() => {
                render::json_key(out, name);
                out.extend_from_slice(&room);
            }
            _ => json_text(out, name, Some(&room)),
        }
        if mark == start + 1 {
            // The first field has no comma before it.
            out.remove(mark);
        }
    }
    renderer.room = room;
    out.push(b'}');
}

/// The value of a variable that comes from a peer, as it was sent; `None` for a variable whose value is
/// Weir's own.
fn of_peer<'s>(variable: &Variable, said: Said<'s>) -> Option<Option<&'s [u8]>> {
    let Said { record, captured } = said;
    let of_tls = |text: Option<&'s str>| text.map(str::as_bytes);
    Some(match variable {
        Variable::Method => record.method,
        Variable::RequestId => record.request_id,
        Variable::ServerName => of_tls(record.server_name),
        Variable::ClientCertSubject => of_tls(record.tls.and_then(|tls| tls.client_subject.as_deref())),
        Variable::Outcome(Outcome::Target) => record.path,
        Variable::User => record.user,
        Variable::Outcome(Outcome::Sqli) => record.sqli.map(str::as_bytes),
        Variable::Outcome(_)
        | Variable::ClientIp
        | Variable::ClientPort
        | Variable::Scheme
        | Variable::ListenerPort
        | Variable::TlsVersion
        | Variable::Capture(_) => return None,
        Variable::Host
        | Variable::Path
        | Variable::Query
        | Variable::Header(_)
        | Variable::Cookie(_)
        | Variable::Map(_)
        | Variable::Claim(_)
        | Variable::Parameter(_)
        | Variable::ResponseHeader(_) => captured.value(variable),
    })
}

/// Appends a value that is Weir's own, and not chosen by a peer.
fn own(renderer: &mut Renderer, variable: &Variable, said: Said<'_>, out: &mut Vec<u8>) {
    let Said { record, captured } = said;
    match variable {
        Variable::ClientIp if is_unix(record.client.ip()) => out.extend_from_slice(b"unix:"),
        Variable::ClientIp => write_address(out, record.client.ip().to_canonical()),
        Variable::ClientPort if record.client.port() != 0 => {
            encode_decimal(out, u64::from(record.client.port()));
        }
        Variable::TlsVersion => {
            out.extend_from_slice(record.tls.map_or("", |tls| tls.version_word()).as_bytes());
        }
        Variable::Outcome(fact) => outcome(renderer, *fact, record, out),
        other => out.extend_from_slice(captured.value(other).unwrap_or_default()),
    }
}

fn outcome(renderer: &mut Renderer, fact: Outcome, record: &Record<'_>, out: &mut Vec<u8>) {
    let timers = &record.timers;
    let mut word = |word: Option<&str>| out.extend_from_slice(word.unwrap_or_default().as_bytes());
    match fact {
        Outcome::Listener => word(Some(record.listener)),
        Outcome::Route => word(record.route),
        Outcome::Pool => word(record.pool),
        Outcome::Backend => word(record.backend),
        Outcome::Protocol => word(Some(record.protocol.word())),
        Outcome::BackendProtocol => word(record.backend_protocol.map(Spoken::word)),
        Outcome::Cache => word(record.cache),
        Outcome::Hedge => word(record.hedge),
        Outcome::End => word(Some(record.end.word())),
        Outcome::TlsCipher => word(record.tls.map(|tls| tls.cipher_word())),
        Outcome::WouldReject => put_words(out, record.would_reject),
        Outcome::Time => renderer.calendar.rfc3339(out, record.time),
        Outcome::TimeCommon => renderer.calendar.common(out, record.time),
        Outcome::TimeUnix => render::unix_seconds(out, record.time),
        Outcome::Status => {
            record.status.into_iter().for_each(|status| encode_decimal(out, u64::from(status)))
        }
        Outcome::BytesReceived => encode_decimal(out, record.bytes_received),
        Outcome::BytesSent => encode_decimal(out, record.bytes_sent),
        Outcome::BodyBytesSent => encode_decimal(out, record.body_bytes_sent()),
        Outcome::Retries => encode_decimal(out, u64::from(record.retries)),
        Outcome::ClientHeader => put_seconds(out, timers.client_header),
        Outcome::Queue => put_seconds(out, timers.queue),
        Outcome::Connect => put_seconds(out, timers.connect),
        Outcome::BackendHeader => put_seconds(out, timers.backend_header),
        Outcome::Total => put_seconds(out, Some(timers.total)),
        // These come from a peer.
        Outcome::Target | Outcome::Sqli => {}
    }
}
