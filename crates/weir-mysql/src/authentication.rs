//! The packets between a login and its result: authentication switch, more data, further factors.
//!
//! Source: MySQL internals, "Connection Phase: Authentication Method Switch Request Packet", "Authentication
//! More Data", "Authentication Next Factor", and "Caching_sha2_password information".

use crate::capability::Capabilities;
use crate::outcome::{EOF, ERR, ErrPacket, OK, OkPacket};
use crate::value::{PayloadCursor, write_string_to_nul};
use crate::wire_error::WireError;

/// First byte of an AuthMoreData packet.
pub const MORE_DATA: u8 = 0x01;
/// First byte of an AuthNextFactor packet.
pub const NEXT_FACTOR: u8 = 0x02;

/// `caching_sha2_password`: the client asks for the server's RSA key.
pub const REQUEST_PUBLIC_KEY: u8 = 0x02;
/// `sha256_password`: the client asks for the server's RSA key.
pub const SHA256_REQUEST_PUBLIC_KEY: u8 = 0x01;
/// `caching_sha2_password`, in AuthMoreData: the fast proof was correct.
pub const FAST_AUTH_SUCCESS: u8 = 0x03;
/// `caching_sha2_password`, in AuthMoreData: the server needs the password itself.
pub const PERFORM_FULL_AUTHENTICATION: u8 = 0x04;

/// A server's request for another plugin, or for a further factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSwitch<'a> {
    /// The plugin's name.
    pub plugin: &'a [u8],
    /// The data for the plugin, without the NUL at its end: a nonce, for plugins that prove a password.
    pub data: &'a [u8],
}

/// A server's packet during a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAnswer<'a> {
    /// Logged in.
    Ok(OkPacket<'a>),
    /// The login is refused.
    Err(ErrPacket<'a>),
    /// Continue with another plugin or another nonce. The client answers with a packet of that plugin's data.
    Switch(AuthSwitch<'a>),
    /// Data for the plugin: [`FAST_AUTH_SUCCESS`], [`PERFORM_FULL_AUTHENTICATION`], a public key as PEM …
    MoreData(&'a [u8]),
    /// One factor is proved, and another one is required.
    NextFactor(AuthSwitch<'a>),
}

impl<'a> LoginAnswer<'a> {
    /// Parses the payload of a server's packet. `capabilities` are those of the login.
    pub fn parse(payload: &'a [u8], capabilities: Capabilities) -> Result<LoginAnswer<'a>, WireError> {
        match payload.first() {
            Some(&OK) => OkPacket::parse(payload, capabilities).map(LoginAnswer::Ok),
            Some(&ERR) => ErrPacket::parse(payload).map(LoginAnswer::Err),
            Some(&EOF) => AuthSwitch::parse(payload).map(LoginAnswer::Switch),
            Some(&NEXT_FACTOR) => AuthSwitch::parse(payload).map(LoginAnswer::NextFactor),
            Some(&MORE_DATA) => Ok(LoginAnswer::MoreData(payload.get(1..).unwrap_or_default())),
            Some(_) => Err(WireError::UnexpectedPacket),
            None => Err(WireError::Truncated),
        }
    }
}

impl<'a> AuthSwitch<'a> {
    fn parse(payload: &'a [u8]) -> Result<AuthSwitch<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        cursor.u8()?;
        if cursor.is_at_end() {
            // A single byte asks for the password hash of servers before 4.1.
            return Err(WireError::OldProtocol);
        }
        let plugin = cursor.string_to_nul()?;
        let data = cursor.rest();
        Ok(AuthSwitch { plugin, data: data.strip_suffix(b"\0").unwrap_or(data) })
    }

    /// Appends the payload of an AuthSwitchRequest.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_after(out, EOF);
    }

    /// Appends the payload of an AuthNextFactor.
    pub fn write_next_factor(&self, out: &mut Vec<u8>) {
        self.write_after(out, NEXT_FACTOR);
    }

    fn write_after(&self, out: &mut Vec<u8>, first: u8) {
        out.push(first);
        write_string_to_nul(out, self.plugin);
        out.extend_from_slice(self.data);
        out.push(0);
    }
}

/// Appends the payload of an AuthMoreData packet.
pub fn write_more_data(out: &mut Vec<u8>, data: &[u8]) {
    out.push(MORE_DATA);
    out.extend_from_slice(data);
}

/// The password that a client sends in clear text within TLS, without the NUL that ends it.
pub fn cleartext_password(payload: &[u8]) -> &[u8] {
    payload.strip_suffix(b"\0").unwrap_or(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::StatusFlags;
    use crate::greeting::{CACHING_SHA2_PASSWORD, MYSQL_NATIVE_PASSWORD};

    fn parse(payload: &[u8]) -> Result<LoginAnswer<'_>, WireError> {
        LoginAnswer::parse(payload, Capabilities::SPOKEN)
    }

    #[test]
    fn a_switch_is_read_as_it_was_written() {
        let switch = AuthSwitch { plugin: MYSQL_NATIVE_PASSWORD, data: b"abcdefghijklmnopqrst" };
        let mut out = Vec::new();
        switch.write(&mut out);
        assert_eq!(out, b"\xfemysql_native_password\0abcdefghijklmnopqrst\0");
        assert_eq!(parse(&out), Ok(LoginAnswer::Switch(switch)));
        out.clear();
        let factor = AuthSwitch { plugin: CACHING_SHA2_PASSWORD, data: b"" };
        factor.write_next_factor(&mut out);
        assert_eq!(parse(&out), Ok(LoginAnswer::NextFactor(factor)));
    }

    #[test]
    fn every_other_answer_is_told_by_its_first_byte() {
        assert_eq!(parse(b"\x01\x03"), Ok(LoginAnswer::MoreData(&[FAST_AUTH_SUCCESS])));
        assert_eq!(parse(b"\0\0\0\x02\0\0\0"), Ok(LoginAnswer::Ok(OkPacket::of(StatusFlags::AUTOCOMMIT))));
        let Ok(LoginAnswer::Err(denied)) = parse(b"\xff\x15\x04#28000Access denied") else {
            panic!("an ERR packet is expected");
        };
        assert_eq!(denied.code, 1045);
        assert_eq!(parse(b"\xfe"), Err(WireError::OldProtocol));
        assert_eq!(parse(b"\x0a"), Err(WireError::UnexpectedPacket));
        assert_eq!(parse(b""), Err(WireError::Truncated));
    }

    #[test]
    fn an_empty_password_is_a_nul_alone() {
        assert_eq!(cleartext_password(b"secret\0"), b"secret");
        assert_eq!(cleartext_password(b"\0"), b"");
        assert_eq!(cleartext_password(b""), b"");
    }
}
