//! Whether an OCSP response may be stapled: it must be a response, for this certificate, with status good
//! (RFC 6960 section 4.2.1). Clients check the signature.

use aws_lc_rs::digest;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use crate::x509;

/// DER tags.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const EXPLICIT_0: u8 = 0xa0;
/// `certStatus`: `good` and `revoked`.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;

/// Until when a response may be stapled for `certificate` (both DER), in seconds since 1970; `None` if it
/// does not say.
///
/// # Errors
/// The reason why it may not be stapled.
pub(crate) fn good_until(response: &[u8], certificate: &[u8]) -> Result<Option<i64>, String> {
    let broken = || "is no OCSP response; expected DER".to_owned();
    let mut outer = Der(Der(response).take(SEQUENCE).ok_or_else(broken)?);
    match outer.take(ENUMERATED).ok_or_else(broken)? {
        [0] => {}
        status => {
            let word = match status {
                [1] => "malformedRequest",
                [2] => "internalError",
                [3] => "tryLater",
                [5] => "sigRequired",
                [6] => "unauthorized",
                _ => "an error",
            };
            return Err(format!("is a refusal ({word}) of who was asked; expected an answer"));
        }
    }
    let (issuer, serial) =
        x509::issuer_and_serial(certificate).ok_or("is for no certificate that is known")?;
    for single in singles(&mut outer).ok_or_else(broken)? {
        let (name_hash, of) = single.certificate;
        if of == serial && is_hash_of(name_hash, &issuer) {
            return match single.status {
                GOOD => Ok(single.next_update),
                REVOKED => Err("says that the certificate is revoked".to_owned()),
                _ => Err("says that nobody knows the certificate".to_owned()),
            };
        }
    }
    Err("is for another certificate".to_owned())
}

/// The status of one certificate in a response.
struct Single<'a> {
    /// Digest of the issuer's name, and the serial number.
    certificate: (&'a [u8], &'a [u8]),
    /// The tag of its status.
    status: u8,
    next_update: Option<i64>,
}

/// The statuses in a response.
fn singles<'a>(outer: &mut Der<'a>) -> Option<Vec<Single<'a>>> {
    let mut bytes = Der(Der(outer.take(EXPLICIT_0)?).take(SEQUENCE)?);
    // The response type: there is only one.
    bytes.any()?;
    let basic = bytes.take(OCTETS)?;
    let mut data = Der(Der(Der(basic).take(SEQUENCE)?).take(SEQUENCE)?);
    // Skips version, responder and time: everything before the statuses, which are the first SEQUENCE.
    let answers = loop {
        if let (SEQUENCE, answers) = data.any()? {
            break answers;
        }
    };
    let mut answers = Der(answers);
    let mut all = Vec::new();
    while !answers.0.is_empty() {
        all.push(single(answers.take(SEQUENCE)?)?);
    }
    Some(all)
}

fn single(bytes: &[u8]) -> Option<Single<'_>> {
    let mut of = Der(bytes);
    let mut id = Der(of.take(SEQUENCE)?);
    id.take(SEQUENCE)?;
    let name_hash = id.take(OCTETS)?;
    id.take(OCTETS)?;
    let serial = id.take(INTEGER)?;
    let (status, _) = of.any()?;
    // thisUpdate
    of.any()?;
    let next_update = of.take(EXPLICIT_0).and_then(|time| ASN1Time::from_der(time).ok());
    let next_update = next_update.map(|(_, time)| time.timestamp());
    Some(Single { certificate: (name_hash, serial), status, next_update })
}

fn is_hash_of(hash: &[u8], name: &[u8]) -> bool {
    let algorithms = [&digest::SHA1_FOR_LEGACY_USE_ONLY, &digest::SHA256, &digest::SHA384, &digest::SHA512];
    algorithms.iter().any(|algorithm| digest::digest(algorithm, name).as_ref() == hash)
}

/// The rest of some DER.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and content of the next element.
    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element if it has this tag; otherwise nothing is consumed.
    fn take(&mut self, expected: u8) -> Option<&'a [u8]> {
        let before = self.0;
        match self.any()? {
            (tag, content) if tag == expected => Some(content),
            _ => {
                self.0 = before;
                None
            }
        }
    }
}
