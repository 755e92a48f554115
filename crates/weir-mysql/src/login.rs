//! What a client sends to log in, after the greeting or in COM_CHANGE_USER: user, schema and proof.
//!
//! Source: MySQL internals, "Connection Phase: Protocol::HandshakeResponse41", "Protocol::SSLRequest" and
//! "COM_CHANGE_USER".

use crate::capability::Capabilities;
use crate::value::{PayloadCursor, write_string, write_string_to_nul};
use crate::wire_error::WireError;

/// The client's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFirst<'a> {
    /// A request for TLS; the login follows within TLS.
    Ssl(SslRequest),
    /// The login.
    Login(ClientLogin<'a>),
}

/// A client's request for TLS (`Protocol::SSLRequest`). Everything after it is TLS, even in the same segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SslRequest {
    /// The client's capabilities. It repeats them within TLS, and only those count.
    pub capabilities: Capabilities,
    /// The longest packet that the client wants (bytes).
    pub max_packet_bytes: u32,
    /// The collation id.
    pub collation: u8,
}

/// A login (`Protocol::HandshakeResponse41`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLogin<'a> {
    /// The client's capabilities.
    pub capabilities: Capabilities,
    /// The longest packet that the client wants (bytes).
    pub max_packet_bytes: u32,
    /// The collation id of the connection; of larger ids the lower byte.
    pub collation: u8,
    /// The user's name.
    pub user: &'a [u8],
    /// The proof of the password for the plugin. Empty means an empty password, or no proof yet.
    pub auth_response: &'a [u8],
    /// The default schema; `None` if none is named.
    pub database: Option<&'a [u8]>,
    /// The plugin that `auth_response` is made for; empty without [`Capabilities::PLUGIN_AUTH`].
    pub plugin: &'a [u8],
    /// The connection attributes as sent, for [`ConnectAttributes`].
    pub attributes: &'a [u8],
    /// The zstd compression level, 1 to 22, with [`Capabilities::ZSTD_COMPRESSION_ALGORITHM`].
    pub zstd_level: Option<u8>,
}

/// Bytes of the payload of an SSLRequest. Every login begins with the same fields.
pub const SSL_REQUEST_BYTES: usize = 32;

impl SslRequest {
    fn parse(cursor: &mut PayloadCursor<'_>) -> Result<SslRequest, WireError> {
        let lower = Capabilities::of(cursor.u32()?, 0);
        if !lower.has(Capabilities::PROTOCOL_41) {
            return Err(WireError::OldProtocol);
        }
        let (max_packet_bytes, collation) = (cursor.u32()?, cursor.u8()?);
        cursor.bytes(19)?;
        let extended = cursor.u32()?;
        let capabilities = match lower.has(Capabilities::LONG_PASSWORD) {
            true => lower,
            false => lower | Capabilities::of(0, extended),
        };
        Ok(SslRequest { capabilities, max_packet_bytes, collation })
    }

    /// Appends the payload.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.capabilities.lower().to_le_bytes());
        out.extend_from_slice(&self.max_packet_bytes.to_le_bytes());
        out.push(self.collation);
        out.extend_from_slice(&[0; 19]);
        out.extend_from_slice(&self.capabilities.extended().to_le_bytes());
    }
}

impl<'a> ClientFirst<'a> {
    /// Reads the payload of the first packet after the greeting.
    pub fn parse(payload: &'a [u8]) -> Result<ClientFirst<'a>, WireError> {
        let request = SslRequest::parse(&mut PayloadCursor::new(payload))?;
        if payload.len() == SSL_REQUEST_BYTES && request.capabilities.has(Capabilities::SSL) {
            return Ok(ClientFirst::Ssl(request));
        }
        ClientLogin::parse(payload).map(ClientFirst::Login)
    }
}

impl<'a> ClientLogin<'a> {
    /// Parses a login. Like servers, it ignores anything after the fields of its capabilities.
    pub fn parse(payload: &'a [u8]) -> Result<ClientLogin<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        let SslRequest { capabilities, max_packet_bytes, collation } = SslRequest::parse(&mut cursor)?;
        let user = cursor.string_to_nul()?;
        let auth_response = if capabilities.has(Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA) {
            cursor.string()?
        } else if capabilities.has(Capabilities::SECURE_CONNECTION) {
            let length = cursor.u8()?;
            cursor.bytes(usize::from(length))?
        } else {
            cursor.string_to_nul()?
        };
        let database = capabilities.has(Capabilities::CONNECT_WITH_DB).then(|| cursor.string_to_nul_or_end());
        let database = database.filter(|name| !name.is_empty());
        let plugin = match capabilities.has(Capabilities::PLUGIN_AUTH) {
            true => cursor.string_to_nul_or_end(),
            false => b"",
        };
        let attributes = attributes(&mut cursor, capabilities)?;
        let zstd_level = match capabilities.has(Capabilities::ZSTD_COMPRESSION_ALGORITHM) {
            true if !cursor.is_at_end() => Some(cursor.u8()?),
            _ => None,
        };
        Ok(ClientLogin {
            capabilities,
            max_packet_bytes,
            collation,
            user,
            auth_response,
            database,
            plugin,
            attributes,
            zstd_level,
        })
    }

    /// Appends the payload: the fields that `capabilities` announces, and no others. Without
    /// [`Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA`], a proof longer than 255 bytes is cut.
    pub fn write(&self, out: &mut Vec<u8>) {
        let ClientLogin { capabilities, max_packet_bytes, collation, .. } = *self;
        SslRequest { capabilities, max_packet_bytes, collation }.write(out);
        write_string_to_nul(out, self.user);
        if capabilities.has(Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA) {
            write_string(out, self.auth_response);
        } else if capabilities.has(Capabilities::SECURE_CONNECTION) {
            write_short(out, self.auth_response);
        } else {
            write_string_to_nul(out, self.auth_response);
        }
        if capabilities.has(Capabilities::CONNECT_WITH_DB) {
            write_string_to_nul(out, self.database.unwrap_or_default());
        }
        if capabilities.has(Capabilities::PLUGIN_AUTH) {
            write_string_to_nul(out, self.plugin);
        }
        if capabilities.has(Capabilities::CONNECT_ATTRS) {
            write_string(out, self.attributes);
        }
        if capabilities.has(Capabilities::ZSTD_COMPRESSION_ALGORITHM) {
            out.push(self.zstd_level.unwrap_or(3));
        }
    }
}

/// A change of account on an open connection (COM_CHANGE_USER).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeUser<'a> {
    /// The user's name.
    pub user: &'a [u8],
    /// The proof of the password for the plugin; a server sends a new nonce in any case.
    pub auth_response: &'a [u8],
    /// The default schema; `None` for none.
    pub database: Option<&'a [u8]>,
    /// The collation id; `None` if the packet ends before it.
    pub collation: Option<u16>,
    /// The plugin that `auth_response` is made for; empty if none is named.
    pub plugin: &'a [u8],
    /// The connection attributes as sent, for [`ConnectAttributes`].
    pub attributes: &'a [u8],
}

/// The command byte of COM_CHANGE_USER.
const CHANGE_USER: u8 = 0x11;

impl<'a> ChangeUser<'a> {
    /// Parses the payload of a COM_CHANGE_USER, including its first byte. `capabilities` are the
    /// connection's.
    pub fn parse(payload: &'a [u8], capabilities: Capabilities) -> Result<ChangeUser<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        if cursor.u8()? != CHANGE_USER {
            return Err(WireError::UnexpectedPacket);
        }
        let user = cursor.string_to_nul()?;
        let auth_response = match capabilities.has(Capabilities::SECURE_CONNECTION) {
            true => {
                let length = cursor.u8()?;
                cursor.bytes(usize::from(length))?
            }
            false => cursor.string_to_nul()?,
        };
        let database = Some(cursor.string_to_nul()?).filter(|name| !name.is_empty());
        let mut change =
            ChangeUser { user, auth_response, database, collation: None, plugin: b"", attributes: b"" };
        if cursor.is_at_end() {
            return Ok(change);
        }
        change.collation = Some(cursor.u16()?);
        if capabilities.has(Capabilities::PLUGIN_AUTH) {
            change.plugin = cursor.string_to_nul_or_end();
        }
        change.attributes = attributes(&mut cursor, capabilities)?;
        Ok(change)
    }

    /// Appends the payload, including its first byte. A proof longer than 255 bytes is cut.
    pub fn write(&self, out: &mut Vec<u8>, capabilities: Capabilities) {
        out.push(CHANGE_USER);
        write_string_to_nul(out, self.user);
        match capabilities.has(Capabilities::SECURE_CONNECTION) {
            true => write_short(out, self.auth_response),
            false => write_string_to_nul(out, self.auth_response),
        }
        write_string_to_nul(out, self.database.unwrap_or_default());
        let Some(collation) = self.collation else { return };
        out.extend_from_slice(&collation.to_le_bytes());
        if capabilities.has(Capabilities::PLUGIN_AUTH) {
            write_string_to_nul(out, self.plugin);
        }
        if capabilities.has(Capabilities::CONNECT_ATTRS) {
            write_string(out, self.attributes);
        }
    }
}

/// Iterates over the connection attributes of a login (name and value); ends after the first error.
#[derive(Clone, Debug)]
pub struct ConnectAttributes<'a>(PayloadCursor<'a>);

impl<'a> ConnectAttributes<'a> {
    /// Reads the `attributes` field of a login.
    pub fn new(attributes: &'a [u8]) -> ConnectAttributes<'a> {
        ConnectAttributes(PayloadCursor::new(attributes))
    }
}

impl<'a> Iterator for ConnectAttributes<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_at_end() {
            return None;
        }
        let pair = self.0.string().and_then(|name| Ok((name, self.0.string()?)));
        if pair.is_err() {
            self.0.rest();
        }
        Some(pair)
    }
}

/// Appends one attribute to the `attributes` field of a login.
pub fn write_attribute(attributes: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    write_string(attributes, name);
    write_string(attributes, value);
}

fn attributes<'a>(cursor: &mut PayloadCursor<'a>, capabilities: Capabilities) -> Result<&'a [u8], WireError> {
    match capabilities.has(Capabilities::CONNECT_ATTRS) {
        true if !cursor.is_at_end() => cursor.string(),
        _ => Ok(b""),
    }
}

/// Appends a string after its length in one byte.
fn write_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.get(..255).unwrap_or(bytes);
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::greeting::CACHING_SHA2_PASSWORD;

    fn login(capabilities: Capabilities) -> ClientLogin<'static> {
        ClientLogin {
            capabilities,
            max_packet_bytes: 1 << 24,
            collation: 45,
            user: b"app",
            auth_response: b"\x01\x02\0\x04",
            database: Some(b"shop"),
            plugin: CACHING_SHA2_PASSWORD,
            attributes: b"\x03_os\x05Linux",
            zstd_level: None,
        }
    }

    #[test]
    fn a_login_is_read_as_it_was_written() {
        let all = Capabilities::SPOKEN;
        let zstd =
            ClientLogin { zstd_level: Some(7), ..login(all | Capabilities::ZSTD_COMPRESSION_ALGORITHM) };
        let long = ClientLogin { auth_response: &[7; 700], ..login(all) };
        let short = login(all.without(Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA));
        let bare = ClientLogin {
            database: None,
            plugin: b"",
            attributes: b"",
            ..login(Capabilities::PROTOCOL_41 | Capabilities::SECURE_CONNECTION | Capabilities::LONG_PASSWORD)
        };
        for login in [login(all), zstd, long, short, bare] {
            let mut out = Vec::new();
            login.write(&mut out);
            assert_eq!(ClientFirst::parse(&out), Ok(ClientFirst::Login(login)));
        }
    }

    #[test]
    fn a_request_for_tls_is_the_beginning_of_a_login() {
        let capabilities = Capabilities::SPOKEN | Capabilities::SSL;
        let request = SslRequest { capabilities, max_packet_bytes: 1 << 30, collation: 255 };
        let mut out = Vec::new();
        request.write(&mut out);
        assert_eq!(out.len(), SSL_REQUEST_BYTES);
        assert_eq!(ClientFirst::parse(&out), Ok(ClientFirst::Ssl(request)));
        let mut whole = Vec::new();
        login(capabilities).write(&mut whole);
        assert!(matches!(ClientFirst::parse(&whole), Ok(ClientFirst::Login(_))), "a login within TLS");
    }

    #[test]
    fn a_login_cut_within_its_fields_is_refused() {
        let mut out = Vec::new();
        let capabilities = Capabilities::SPOKEN.without(Capabilities::CONNECT_ATTRS);
        login(capabilities).write(&mut out);
        let fixed = SSL_REQUEST_BYTES + 4 + 5;
        for cut in 0..fixed {
            assert!(ClientFirst::parse(&out[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(ClientFirst::parse(&[0; 32]), Err(WireError::OldProtocol));
    }

    #[test]
    fn a_last_string_without_nul_ends_with_the_packet() {
        let capabilities = Capabilities::SPOKEN.without(Capabilities::CONNECT_ATTRS);
        let mut out = Vec::new();
        login(capabilities).write(&mut out);
        out.pop();
        let read = ClientLogin::parse(&out).expect("older connectors send it so");
        assert_eq!(read.plugin, CACHING_SHA2_PASSWORD);
    }

    #[test]
    fn a_change_of_user_is_read_as_it_was_written() {
        let change = ChangeUser {
            user: b"app",
            auth_response: b"\0\x01",
            database: None,
            collation: Some(255),
            plugin: CACHING_SHA2_PASSWORD,
            attributes: b"\x01a\x01b",
        };
        let mut out = Vec::new();
        change.write(&mut out, Capabilities::SPOKEN);
        assert_eq!(ChangeUser::parse(&out, Capabilities::SPOKEN), Ok(change));
        let short = ChangeUser::parse(b"\x11app\0\0shop\0", Capabilities::SPOKEN).expect("it may end there");
        assert_eq!((short.database, short.collation), (Some(&b"shop"[..]), None));
        for cut in 0..11 {
            assert!(ChangeUser::parse(&b"\x11app\0\0shop\0"[..cut], Capabilities::SPOKEN).is_err(), "{cut}");
        }
    }

    #[test]
    fn attributes_end_after_the_first_that_can_not_be_read() {
        let mut attributes = Vec::new();
        write_attribute(&mut attributes, b"program_name", b"mysql");
        attributes.extend_from_slice(b"\x05ab");
        let read: Vec<_> = ConnectAttributes::new(&attributes).collect();
        assert_eq!(read, [Ok((&b"program_name"[..], &b"mysql"[..])), Err(WireError::Truncated)]);
    }
}
