//! MySQL's packets, as far as the lab's canned server and its load need them.
//!
//! Source: MySQL Source Code Documentation, "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server),
//! its pages "MySQL Packets", "Protocol::HandshakeV10", "Protocol::HandshakeResponse41" and "OK_Packet".

use sha2::{Digest, Sha256};

/// Capabilities that both sides may agree on, as bits of one number.
pub mod capability {
    /// The client names a database when it logs in.
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    /// The protocol since 4.1, the only one supported here.
    pub const PROTOCOL_41: u32 = 1 << 9;
    /// TLS after an SSLRequest.
    pub const SSL: u32 = 1 << 11;
    /// Status flags include transactions.
    pub const TRANSACTIONS: u32 = 1 << 13;
    /// The response to the nonce is not that of the protocol before 4.1.
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    /// Several statements in one query, and their results.
    pub const MULTI_STATEMENTS: u32 = 1 << 16;
    /// Several results of one query.
    pub const MULTI_RESULTS: u32 = 1 << 17;
    /// Several results of one prepared statement.
    pub const PS_MULTI_RESULTS: u32 = 1 << 18;
    /// The client names the plugin of its response to the nonce.
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    /// The client describes itself.
    pub const CONNECT_ATTRIBUTES: u32 = 1 << 20;
    /// The answer to the nonce begins with its length as a length-encoded number.
    pub const PLUGIN_AUTH_LENENC: u32 = 1 << 21;
    /// OK packets tell what has changed in the session.
    pub const SESSION_TRACK: u32 = 1 << 23;
    /// No EOF packet after the columns, and an OK packet after the rows.
    pub const DEPRECATE_EOF: u32 = 1 << 24;
    /// The capabilities of every server and client here: LONG_PASSWORD, LONG_FLAG and those above that cost
    /// nothing.
    pub const USUAL: u32 = 1
        | 1 << 2
        | CONNECT_WITH_DB
        | PROTOCOL_41
        | TRANSACTIONS
        | SECURE_CONNECTION
        | MULTI_STATEMENTS
        | MULTI_RESULTS
        | PS_MULTI_RESULTS
        | PLUGIN_AUTH
        | DEPRECATE_EOF;
}

/// First bytes of commands.
pub mod command {
    /// Ends the connection.
    pub const QUIT: u8 = 0x01;
    /// Changes the database.
    pub const INIT_DB: u8 = 0x02;
    /// Runs a statement given as text.
    pub const QUERY: u8 = 0x03;
    /// Asks for a line about the server.
    pub const STATISTICS: u8 = 0x09;
    /// Does nothing but get an answer.
    pub const PING: u8 = 0x0e;
    /// Changes the account of the connection.
    pub const CHANGE_USER: u8 = 0x11;
    /// Prepares a statement.
    pub const PREPARE: u8 = 0x16;
    /// Runs a prepared statement.
    pub const EXECUTE: u8 = 0x17;
    /// A piece of a parameter; not answered.
    pub const SEND_LONG_DATA: u8 = 0x18;
    /// Forgets a prepared statement; not answered.
    pub const CLOSE: u8 = 0x19;
    /// Discards a prepared statement's long data and cursor.
    pub const RESET: u8 = 0x1a;
    /// Switches multi-statements on or off.
    pub const SET_OPTION: u8 = 0x1b;
    /// Resets the session to its state after login.
    pub const RESET_CONNECTION: u8 = 0x1f;
}

/// The only authentication plugin that is supported here.
pub const PLUGIN: &str = "caching_sha2_password";
/// Second byte of an AuthMoreData packet of `caching_sha2_password` (after 0x01): the fast authentication
/// succeeded.
pub const FAST: u8 = 3;
/// The same: the server needs the password itself.
pub const FULL: u8 = 4;
/// Length of a nonce (bytes).
pub const NONCE_BYTES: usize = 20;
/// Length of a packet's header (bytes).
pub const HEAD_BYTES: usize = 4;
/// `utf8mb4_0900_ai_ci`.
pub const UTF8MB4: u8 = 255;

/// A packet at the beginning of `input`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its number in the exchange.
    pub sequence: u8,
    /// Its content.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The first packet of `input`; `None` until it is whole.
    pub fn first(input: &'a [u8]) -> Option<Self> {
        let [a, b, c, sequence] = *input.first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
        let payload = input.get(HEAD_BYTES..HEAD_BYTES + length)?;
        Some(Self { sequence, payload })
    }

    /// Bytes it takes, head included.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }
}

/// Appends a packet; `payload` is far below the 16 MiB at which one would have to be split.
pub fn append(output: &mut Vec<u8>, sequence: u8, payload: &[u8]) {
    let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
    output.extend_from_slice(&[a, b, c, sequence]);
    output.extend_from_slice(payload);
}

/// Appends a length-encoded string below 64 KiB.
pub fn append_string(output: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()) {
        Ok(length) if length < 0xfb => output.push(length),
        _ => {
            output.push(0xfc);
            output.extend_from_slice(&(text.len() as u16).to_le_bytes());
        }
    }
    output.extend_from_slice(text);
}

/// Appends `text` and a zero.
pub fn append_ended(output: &mut Vec<u8>, text: &[u8]) {
    output.extend_from_slice(text);
    output.push(0);
}

/// Takes bytes up to a zero off `rest`; `None` when there is no zero.
pub fn take_ended<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == 0)?;
    let text = &rest[..end];
    *rest = &rest[end + 1..];
    Some(text)
}

/// Takes `count` bytes off `rest`; `None` when there are fewer.
pub fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (text, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(text)
}

/// What a client that knows `password` answers to `nonce`:
/// SHA256(password) XOR SHA256(SHA256(SHA256(password)) || nonce). Nothing for an empty password.
///
/// Source: the same documentation, page "Caching_sha2_password information".
pub fn scramble(password: &str, nonce: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha256::digest(password);
    let twice = Sha256::digest(once);
    let mask = Sha256::new().chain_update(twice).chain_update(nonce).finalize();
    once.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect()
}

/// Error number and text of an ERR packet; `None` when `payload` is another packet.
pub fn refusal(payload: &[u8]) -> Option<String> {
    let (&0xff, rest) = payload.split_first()? else { return None };
    let (number, text) = rest.split_first_chunk::<2>()?;
    let text = text.strip_prefix(b"#").and_then(|text| text.get(5..)).unwrap_or(text);
    Some(format!("error {}: {}", u16::from_le_bytes(*number), String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_there_when_it_is_whole() {
        let mut bytes = Vec::new();
        append(&mut bytes, 3, b"abc");
        assert_eq!(bytes, b"\x03\x00\x00\x03abc");
        assert_eq!(Packet::first(&bytes[..6]), None);
        bytes.push(b'x');
        let packet = Packet::first(&bytes).unwrap();
        assert_eq!((packet.sequence, packet.payload, packet.bytes()), (3, &b"abc"[..], 7));
    }

    #[test]
    fn strings_say_how_long_they_are() {
        let mut bytes = Vec::new();
        append_string(&mut bytes, &[b'a'; 250]);
        append_string(&mut bytes, &[b'b'; 251]);
        assert_eq!((bytes[0], &bytes[251..254]), (250, &[0xfc, 251, 0][..]));
        let mut rest = &b"lab\0more"[..];
        assert_eq!(
            (take_ended(&mut rest), take_ended(&mut rest), rest),
            (Some(&b"lab"[..]), None, &b"more"[..])
        );
        assert_eq!((take(&mut rest, 2), take(&mut rest, 3)), (Some(&b"mo"[..]), None));
    }

    #[test]
    fn an_error_is_told_with_its_number() {
        let told = refusal(b"\xff\x15\x04#28000Access denied");
        assert_eq!(told.as_deref(), Some("error 1045: Access denied"));
        assert_eq!((refusal(b"\x00"), refusal(b""), refusal(b"\xff")), (None, None, None));
    }
}
