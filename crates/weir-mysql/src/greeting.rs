//! The first packet of a connection: the server's greeting, or an error.
//!
//! Source: MySQL internals, "Connection Phase: Protocol::HandshakeV10"; MariaDB's documentation, "Connecting:
//! Initial Handshake Packet", for the extended capabilities.

use crate::capability::{Capabilities, StatusFlags};
use crate::outcome::{ERR, ErrPacket};
use crate::value::{PayloadCursor, write_string_to_nul};
use crate::wire_error::WireError;

/// The default plugin of MySQL servers since 8.0.
pub const CACHING_SHA2_PASSWORD: &[u8] = b"caching_sha2_password";
/// The plugin of servers before 8.0, and of MariaDB.
pub const MYSQL_NATIVE_PASSWORD: &[u8] = b"mysql_native_password";
/// The slower predecessor of `caching_sha2_password`.
pub const SHA256_PASSWORD: &[u8] = b"sha256_password";
/// The plugin with which a client sends its password in clear text.
pub const MYSQL_CLEAR_PASSWORD: &[u8] = b"mysql_clear_password";
/// The plugin of MariaDB accounts with Ed25519 keys: the client signs a nonce.
pub const CLIENT_ED25519: &[u8] = b"client_ed25519";

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 20;

/// The challenge for the password proof of a login. None of its bytes is 0, because some clients treat it as
/// a C string.
pub type Nonce = [u8; NONCE_BYTES];

const VERSION: u8 = 10;
/// Bytes of the nonce's first part, which stands apart from the rest since the first servers.
const NONCE_FIRST_BYTES: usize = 8;

/// Whether this is the version of a MariaDB server, such as `5.5.5-10.11.6-MariaDB`. MariaDB speaks the same
/// protocol, but reports session state and transactions differently.
pub fn is_mariadb(server_version: &[u8]) -> bool {
    server_version.windows(MARIADB.len()).any(|text| text.eq_ignore_ascii_case(MARIADB))
}

const MARIADB: &[u8] = b"MariaDB";

/// A server's greeting (`Protocol::HandshakeV10`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerGreeting<'a> {
    /// Such as `8.4.3` or `5.5.5-10.11.6-MariaDB`.
    pub server_version: &'a [u8],
    /// The connection id in SHOW PROCESSLIST and KILL; larger ids of a server are cut to 32 bits.
    pub connection_id: u32,
    /// The server's capabilities.
    pub capabilities: Capabilities,
    /// The server's collation id; of larger ids the lower byte.
    pub collation: u8,
    /// The status of a new session.
    pub status: StatusFlags,
    /// The data for the plugin, without the NUL at its end: a [`Nonce`] for all plugins known here.
    pub auth_data: Vec<u8>,
    /// The server's default plugin; empty without [`Capabilities::PLUGIN_AUTH`].
    pub plugin: &'a [u8],
}

/// The server's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstWord<'a> {
    /// A greeting: the client may log in.
    Greeting(ServerGreeting<'a>),
    /// An error: too many connections (1040), host not allowed (1130) or blocked (1129), or shutdown in
    /// progress (1053).
    Refused(ErrPacket<'a>),
}

impl<'a> FirstWord<'a> {
    /// Reads the payload of a server's first packet.
    pub fn parse(payload: &'a [u8]) -> Result<FirstWord<'a>, WireError> {
        match payload.first() {
            Some(&ERR) => ErrPacket::parse(payload).map(FirstWord::Refused),
            _ => ServerGreeting::parse(payload).map(FirstWord::Greeting),
        }
    }
}

impl<'a> ServerGreeting<'a> {
    /// The plugin data as a nonce, if it has the length of one.
    pub fn nonce(&self) -> Option<Nonce> {
        self.auth_data.as_slice().try_into().ok()
    }

    /// Parses a greeting. Err unless it is protocol 10 with [`Capabilities::PROTOCOL_41`].
    pub fn parse(payload: &'a [u8]) -> Result<ServerGreeting<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        if cursor.u8()? != VERSION {
            return Err(WireError::ProtocolVersion);
        }
        let server_version = cursor.string_to_nul()?;
        let connection_id = cursor.u32()?;
        let mut auth_data = cursor.bytes(NONCE_FIRST_BYTES)?.to_vec();
        cursor.u8()?;
        let lower = cursor.u16()?;
        let collation = cursor.u8()?;
        let status = StatusFlags(cursor.u16()?);
        let upper = cursor.u16()?;
        let auth_data_bytes = usize::from(cursor.u8()?);
        cursor.bytes(6)?;
        let extended = cursor.u32()?;
        let lower = Capabilities::of(u32::from(lower) | u32::from(upper) << 16, 0);
        let capabilities = match lower.has(Capabilities::LONG_PASSWORD) {
            // MySQL reserves these bytes of its greeting.
            true => lower,
            false => lower | Capabilities::of(0, extended),
        };
        if !capabilities.has(Capabilities::PROTOCOL_41) {
            return Err(WireError::OldProtocol);
        }
        let mut plugin: &[u8] = b"";
        if capabilities.has(Capabilities::SECURE_CONNECTION) {
            // "max(13, length - 8)"; the last byte is a NUL.
            let second = cursor.bytes(auth_data_bytes.saturating_sub(NONCE_FIRST_BYTES).max(13))?;
            auth_data.extend_from_slice(second.strip_suffix(b"\0").unwrap_or(second));
        }
        if capabilities.has(Capabilities::PLUGIN_AUTH) {
            plugin = cursor.string_to_nul_or_end();
        }
        Ok(ServerGreeting {
            server_version,
            connection_id,
            capabilities,
            collation,
            status,
            auth_data,
            plugin,
        })
    }

    /// Appends the payload. `auth_data` should have [`NONCE_BYTES`] bytes: fewer are padded with NULs, and
    /// bytes beyond 246 are dropped.
    pub fn write(&self, out: &mut Vec<u8>) {
        let padded = |at: usize| self.auth_data.get(at).copied().unwrap_or(0);
        let length = self.auth_data.len().clamp(NONCE_BYTES, 246);
        let [a, b, c, d] = self.capabilities.lower().to_le_bytes();
        out.push(VERSION);
        write_string_to_nul(out, self.server_version);
        out.extend_from_slice(&self.connection_id.to_le_bytes());
        out.extend((0..NONCE_FIRST_BYTES).map(padded));
        out.extend_from_slice(&[0, a, b, self.collation]);
        out.extend_from_slice(&self.status.0.to_le_bytes());
        out.extend_from_slice(&[c, d]);
        // The length includes the NUL at the end.
        out.push((length + 1) as u8);
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&self.capabilities.extended().to_le_bytes());
        out.extend((NONCE_FIRST_BYTES..length).map(padded));
        out.push(0);
        write_string_to_nul(out, self.plugin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> ServerGreeting<'static> {
        ServerGreeting {
            server_version: b"8.4.3",
            connection_id: 0x8000_0001,
            capabilities: Capabilities::SPOKEN | Capabilities::SSL,
            collation: 255,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: b"abcdefghijklmnopqrst".to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        }
    }

    #[test]
    fn a_greeting_is_read_as_it_was_written() {
        let mut out = Vec::new();
        greeting().write(&mut out);
        assert_eq!(FirstWord::parse(&out), Ok(FirstWord::Greeting(greeting())));
        assert_eq!(greeting().nonce(), Some(*b"abcdefghijklmnopqrst"));
        let fixed = 1 + 6 + 4 + 8 + 1 + 2 + 1 + 2 + 2 + 1 + 10 + 13;
        for cut in 0..fixed {
            assert!(ServerGreeting::parse(&out[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn extended_capabilities_are_read_from_servers_that_say_they_are_not_mysql() {
        let mut out = Vec::new();
        let mariadb = ServerGreeting {
            capabilities: greeting().capabilities.without(Capabilities::LONG_PASSWORD)
                | Capabilities::MARIADB_CACHE_METADATA,
            ..greeting()
        };
        mariadb.write(&mut out);
        let read = ServerGreeting::parse(&out).expect("it is a greeting");
        assert!(read.capabilities.has(Capabilities::MARIADB_CACHE_METADATA));
        assert!(!(read.capabilities & Capabilities::SPOKEN).has(Capabilities::MARIADB_CACHE_METADATA));
        out.clear();
        let mysql =
            ServerGreeting { capabilities: mariadb.capabilities | Capabilities::LONG_PASSWORD, ..greeting() };
        mysql.write(&mut out);
        let read = ServerGreeting::parse(&out).expect("it is a greeting");
        assert_eq!(read.capabilities.extended(), 0, "for MySQL the bytes are reserved");
    }

    #[test]
    fn a_server_that_does_not_serve_says_why_in_place_of_a_greeting() {
        let Ok(FirstWord::Refused(refused)) = FirstWord::parse(b"\xff\x69\x04Host is blocked") else {
            panic!("an ERR packet is expected");
        };
        assert_eq!(refused.code, 1129);
    }

    #[test]
    fn a_greeting_of_another_protocol_is_refused() {
        assert_eq!(FirstWord::parse(b"\x09..."), Err(WireError::ProtocolVersion));
        assert_eq!(FirstWord::parse(b""), Err(WireError::Truncated));
        let mut out = Vec::new();
        let capabilities = Capabilities::SPOKEN.without(Capabilities::PROTOCOL_41);
        ServerGreeting { capabilities, ..greeting() }.write(&mut out);
        assert_eq!(ServerGreeting::parse(&out), Err(WireError::OldProtocol));
    }
}
