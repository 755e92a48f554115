//! Whether an OCSP response is one to staple: that it is an answer, for this certificate, and says that it is
//! good (RFC 6960 section 4.2.1). Who signed it is for clients to find out.

use aws_lc_rs::digest;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use crate::x509;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const EXPLICIT_0: u8 = 0xa0;
/// `certStatus`: `good` and `revoked`.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;

/// Until when a response may be stapled for `certificate` (DER both), in seconds since 1970; `None` where it
/// does not say.
///
/// # Errors
/// It may not be at all; says why.
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

/// What a response says of one certificate.
struct Single<'a> {
    /// Digest of the issuer's name, and the serial number.
    certificate: (&'a [u8], &'a [u8]),
    /// The tag of its status.
    status: u8,
    next_update: Option<i64>,
}

/// What stands behind the status of a response.
fn singles<'a>(outer: &mut Der<'a>) -> Option<Vec<Single<'a>>> {
    let mut bytes = Der(Der(outer.take(EXPLICIT_0)?).take(SEQUENCE)?);
    // Its type: there is one only.
    bytes.any()?;
    let basic = bytes.take(OCTETS)?;
    let mut data = Der(Der(Der(basic).take(SEQUENCE)?).take(SEQUENCE)?);
    // Version, who answers, and when: whatever comes before the answers, which are the first SEQUENCE.
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

/// What is left of some DER.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of what comes next.
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

    /// The content of what comes next, if that has this tag; else nothing is taken.
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
