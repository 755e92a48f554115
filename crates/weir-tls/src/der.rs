//! Just enough of DER (X.690) to find when a certificate is good, and by what its authority knows it (RFC
//! 5280 section 4.1).

/// One element: its tag and content, and what stands behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let count = usize::from(first & 0x7f);
        if count == 0 || count > 4 || rest.len() < count {
            return None;
        }
        let (said, behind) = rest.split_at(count);
        length = said.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = behind;
    }
    (rest.len() >= length).then(|| {
        let (content, behind) = rest.split_at(length);
        (tag, content, behind)
    })
}

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const EXPLICIT_VERSION: u8 = 0xa0;
const EXPLICIT_EXTENSIONS: u8 = 0xa3;
const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
/// `[0] IMPLICIT KeyIdentifier` (RFC 5280 section 4.2.1.1).
const KEY_IDENTIFIER: u8 = 0x80;
/// The object identifier 2.5.29.35, authorityKeyIdentifier, with tag and length.
const AUTHORITY_KEY: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x23];

/// The content of the sequence that `bytes` begin with, and what stands behind it.
fn sequence(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, content, behind) = element(bytes).filter(|(tag, ..)| *tag == SEQUENCE)?;
    Some((content, behind))
}

/// What is signed of a certificate, from the serial number on.
fn from_serial_number(certificate: &[u8]) -> Option<&[u8]> {
    let (body, _) = sequence(sequence(certificate)?.0)?;
    match element(body) {
        Some((EXPLICIT_VERSION, _, behind)) => Some(behind),
        _ => Some(body),
    }
}

/// By what an authority knows a certificate: the identifier of the key that signed it, and its serial number,
/// each without tag and length (RFC 9773 section 4.1). `None` when the certificate does not say both.
pub(crate) fn identity(certificate: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (_, serial, mut rest) = element(from_serial_number(certificate)?)?;
    let extensions = loop {
        let (tag, content, behind) = element(rest)?;
        if tag == EXPLICIT_EXTENSIONS {
            break content;
        }
        rest = behind;
    };
    let (mut extensions, _) = sequence(extensions)?;
    loop {
        let (extension, behind) = sequence(extensions)?;
        extensions = behind;
        let Some(mut value) = extension.strip_prefix(AUTHORITY_KEY) else { continue };
        if let Some((BOOLEAN, _, behind)) = element(value) {
            value = behind;
        }
        let (_, value, _) = element(value).filter(|(tag, ..)| *tag == OCTET_STRING)?;
        let (_, key, _) = element(sequence(value)?.0).filter(|(tag, ..)| *tag == KEY_IDENTIFIER)?;
        return Some((key.to_vec(), serial.to_vec()));
    }
}

/// From when to when a certificate is good, in seconds since 1970; `None` when it can't be found out.
pub(crate) fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    let mut body = from_serial_number(certificate)?;
    // Serial number, signature algorithm and issuer.
    for _ in 0..3 {
        body = element(body)?.2;
    }
    let (validity, _) = sequence(body)?;
    let (tag, not_before, rest) = element(validity)?;
    let not_before = time(tag, not_before)?;
    let (tag, not_after, _) = element(rest)?;
    Some((not_before, time(tag, not_after)?))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` (RFC 5280 section 4.1.2.5).
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let part = |index: usize| number(&rest[2 * index..2 * index + 2]);
    Some(days_since_1970(year, part(0), part(1)) * 86_400 + part(2) * 3600 + part(3) * 60 + part(4))
}

/// Days of the Gregorian calendar, counted in years that begin in March, so that the day that leaps is the
/// last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let century = year.div_euclid(400);
    let year_of_era = year - century * 400;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    century * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(time(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(time(UTC_TIME, b"000229120000Z"), Some(951_825_600));
        assert_eq!(time(GENERALIZED_TIME, b"20500101000000Z"), Some(2_524_608_000));
        assert_eq!(time(UTC_TIME, b"7001010000Z"), None);
        assert_eq!(time(UTC_TIME, b"70010100000aZ"), None);
    }

    #[test]
    fn what_is_cut_off_or_lies_about_its_length_gives_nothing() {
        for bytes in
            [&b""[..], b"\x30", b"\x30\x82\x01", b"\x30\x84\xff\xff\xff\xff", b"\x30\x05\x30\x80\x00\x00\x00"]
        {
            assert_eq!(validity(bytes), None, "{bytes:?}");
        }
    }
}
