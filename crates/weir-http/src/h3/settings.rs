//! SETTINGS: the limits and capabilities of a peer (RFC 9114 §7.2.4, RFC 9204 §5, RFC 9220 §3, RFC 9297
//! §2.1.1).

use super::error::Fault;
use super::frame::reserved;
use super::varint;

/// Longest SETTINGS payload that is accepted, in bytes: some 60 settings. Clients send three to six.
pub(super) const LONGEST_PAYLOAD_BYTES: u64 = 512;

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
const H3_DATAGRAM: u64 = 0x33;

/// The settings of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest QPACK dynamic table that the other side's encoder may use, in bytes; 0 by default.
    pub qpack_table_capacity: u64,
    /// Most streams that may wait for insertions; 0 by default.
    pub qpack_blocked_streams: u64,
    /// Largest field section, in bytes of names, values and 32 for each field; `None` means no limit.
    pub section_bytes: Option<u64>,
    /// Whether extended CONNECT is supported.
    pub connect_protocol: bool,
    /// Whether HTTP datagrams are supported.
    pub datagram: bool,
}

impl Default for Settings {
    /// The defaults apply before SETTINGS arrive, and to settings that they leave out.
    fn default() -> Settings {
        Settings {
            qpack_table_capacity: 0,
            qpack_blocked_streams: 0,
            section_bytes: None,
            connect_protocol: false,
            datagram: false,
        }
    }
}

impl Settings {
    /// Parses the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// A setting is incomplete, repeated, reserved for HTTP/2, or has an invalid value.
    pub fn read(mut payload: &[u8]) -> Result<Settings, Fault> {
        let mut settings = Settings::default();
        let mut seen: Vec<u64> = Vec::new();
        while !payload.is_empty() {
            let (identifier, value);
            (identifier, payload) = take(payload)?;
            (value, payload) = take(payload)?;
            //= https://www.rfc-editor.org/rfc/rfc9114#section-7.2.4
            //# The same setting identifier MUST NOT occur more than once in the
            //# SETTINGS frame.  A receiver MAY treat the presence of duplicate
            //# setting identifiers as a connection error of type H3_SETTINGS_ERROR.
            if seen.contains(&identifier) {
                return Err(Fault::SettingRepeated);
            }
            seen.push(identifier);
            settings.set(identifier, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, identifier: u64, value: u64) -> Result<(), Fault> {
        match identifier {
            QPACK_MAX_TABLE_CAPACITY => self.qpack_table_capacity = value,
            QPACK_BLOCKED_STREAMS => self.qpack_blocked_streams = value,
            MAX_FIELD_SECTION_SIZE => self.section_bytes = Some(value),
            ENABLE_CONNECT_PROTOCOL => self.connect_protocol = switch(value)?,
            H3_DATAGRAM => self.datagram = switch(value)?,
            //= https://www.rfc-editor.org/rfc/rfc9114#section-7.2.4.1
            //# Setting identifiers that were defined in [HTTP/2] where there is no
            //# corresponding HTTP/3 setting have also been reserved
            //# (Section 11.2.2).  These reserved settings MUST NOT be sent, and
            //# their receipt MUST be treated as a connection error of type
            //# H3_SETTINGS_ERROR.
            0x0 | 0x2..=0x5 => return Err(Fault::SettingOfHttp2),
            _ => {}
        }
        Ok(())
    }

    /// Appends a SETTINGS frame with these settings and one reserved setting made from `draw`, so that peers
    /// which do not ignore unknown settings are noticed early (RFC 9114 §7.2.4.1).
    pub fn write(&self, draw: u32, out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(40);
        let mut put = |identifier, value| {
            varint::write(&mut payload, identifier);
            varint::write(&mut payload, value);
        };
        if self.qpack_table_capacity > 0 {
            put(QPACK_MAX_TABLE_CAPACITY, self.qpack_table_capacity);
        }
        if self.qpack_blocked_streams > 0 {
            put(QPACK_BLOCKED_STREAMS, self.qpack_blocked_streams);
        }
        if let Some(bytes) = self.section_bytes {
            put(MAX_FIELD_SECTION_SIZE, bytes);
        }
        if self.connect_protocol {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        if self.datagram {
            put(H3_DATAGRAM, 1);
        }
        put(reserved(draw), u64::from(draw >> 8));
        out.push(0x4);
        varint::write(out, payload.len() as u64);
        out.extend_from_slice(&payload);
    }
}

fn take(payload: &[u8]) -> Result<(u64, &[u8]), Fault> {
    let (value, length) = varint::read(payload).ok_or(Fault::ControlFramePayload)?;
    Ok((value, payload.get(length..).unwrap_or_default()))
}

fn switch(value: u64) -> Result<bool, Fault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::SettingValue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let settings = Settings {
            qpack_table_capacity: 4096,
            qpack_blocked_streams: 16,
            section_bytes: Some(73984),
            connect_protocol: true,
            datagram: true,
        };
        for draw in [0, 1, 0x1234_5678, u32::MAX] {
            let mut out = Vec::new();
            settings.write(draw, &mut out);
            assert_eq!((out[0], usize::from(out[1])), (4, out.len() - 2));
            assert_eq!(Settings::read(&out[2..]), Ok(settings));
        }
    }

    #[test]
    fn settings_that_http_2_has_are_refused_and_unknown_ones_are_not() {
        for identifier in [0, 2, 3, 4, 5] {
            assert_eq!(Settings::read(&[identifier, 1]), Err(Fault::SettingOfHttp2));
        }
        assert_eq!(Settings::read(&[0x21, 1, 0x2b, 0x09]), Ok(Settings::default()));
        assert_eq!(Settings::read(&[0x21, 1, 0x21, 1]), Err(Fault::SettingRepeated));
        assert_eq!(Settings::read(&[0x06, 1, 0x01, 0, 0x06, 1]), Err(Fault::SettingRepeated));
        assert_eq!(Settings::read(&[0x08, 2]), Err(Fault::SettingValue));
        assert_eq!(Settings::read(&[0x33, 2]), Err(Fault::SettingValue));
        assert_eq!(Settings::read(&[0x06]), Err(Fault::ControlFramePayload));
        assert_eq!(Settings::read(&[0x06, 0x40]), Err(Fault::ControlFramePayload));
    }
}
