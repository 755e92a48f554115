//! Signatures of messages to name servers, and of their answers, with a shared key (TSIG, RFC 8945) and
//! HMAC-SHA256. No I/O: the time is an argument.

use aws_lc_rs::hmac;
use hickory_proto::op::{Header, Message};
use hickory_proto::rr::rdata::TSIG;
use hickory_proto::rr::rdata::tsig::{TsigAlgorithm, message_tbs};
use hickory_proto::rr::{DNSClass, Name, RData, Record};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder, BinEncoder};

/// How far apart two clocks may be, in seconds (RFC 8945 section 10).
const FUDGE: u16 = 300;

/// A key with its name.
pub struct Key {
    name: Name,
    secret: hmac::Key,
}

/// A signed message, and its signature, which the answer's signature also covers.
pub struct Signed {
    pub bytes: Vec<u8>,
    pub mac: Vec<u8>,
}

impl Key {
    pub fn new(name: Name, secret: &[u8]) -> Key {
        Key { name: name.to_lowercase(), secret: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// Signs a message, as of `now` (seconds since 1970).
    pub fn sign(&self, message: &Message, now: u64) -> Result<Signed, String> {
        let number = message.metadata.id;
        let unsigned = TSIG::new(TsigAlgorithm::HmacSha256, now, FUDGE, Vec::new(), number, None, Vec::new());
        let covered = message_tbs(message, &unsigned, &self.name).map_err(|error| error.to_string())?;
        let mac = hmac::sign(&self.secret, &covered).as_ref().to_vec();
        let mut signed = message.clone();
        signed.add_additional(record(&self.name, unsigned.set_mac(mac.clone())));
        Ok(Signed { bytes: signed.to_vec().map_err(|error| error.to_string())?, mac })
    }

    /// Checks that the answer to the message with the signature `request` is signed with the same key.
    ///
    /// # Errors
    /// The reason why it is not, or can't be checked.
    pub fn verify(&self, answer: &[u8], request: &[u8], now: u64) -> Result<(), String> {
        let Some((end, record)) = last_record(answer) else {
            return Err("its answer is not signed".to_owned());
        };
        let RData::TSIG(tsig) = &record.data else { return Err("its answer is not signed".to_owned()) };
        if let Some(error) = &tsig.error {
            return Err(refusal(u16::from(*error), &self.name));
        }
        if record.dns_class != DNSClass::ANY || record.ttl != 0 {
            return Err("its signature is malformed".to_owned());
        }
        if record.name.to_lowercase() != self.name || tsig.algorithm != TsigAlgorithm::HmacSha256 {
            return Err("its answer is signed with another key".to_owned());
        }
        let mut covered = Vec::with_capacity(answer.len() + request.len() + 64);
        // The signature is as long as a digest, so its length fits.
        covered.extend_from_slice(&(request.len() as u16).to_be_bytes());
        covered.extend_from_slice(request);
        covered.extend_from_slice(&tsig.oid.to_be_bytes());
        covered.extend_from_slice(&answer[2..10]);
        let additional = u16::from_be_bytes([answer[10], answer[11]]).saturating_sub(1);
        covered.extend_from_slice(&additional.to_be_bytes());
        covered.extend_from_slice(&answer[12..end]);
        let mut variables = Vec::new();
        tsig.emit_tsig_for_mac(&mut BinEncoder::new(&mut variables), &record.name)
            .map_err(|error| error.to_string())?;
        covered.extend_from_slice(&variables);
        // Compares in constant time, and accepts no truncated digest.
        hmac::verify(&self.secret, &covered, &tsig.mac)
            .map_err(|_| "its answer has a false signature".to_owned())?;
        if tsig.time.abs_diff(now) > u64::from(FUDGE) {
            return Err(format!("its clock is {} s apart from ours", tsig.time.abs_diff(now)));
        }
        Ok(())
    }
}

/// The record for a signature (RFC 8945 section 4.2).
fn record(name: &Name, tsig: TSIG) -> Record {
    let mut record = Record::from_rdata(name.clone(), 0, RData::TSIG(tsig));
    record.dns_class = DNSClass::ANY;
    record
}

/// The last of the additional records and the position where it begins; `None` if there is none.
fn last_record(message: &[u8]) -> Option<(usize, Record)> {
    let mut decoder = BinDecoder::new(message);
    let Header { metadata, counts } = Header::read(&mut decoder).ok()?;
    Message::read_queries(&mut decoder, usize::from(counts.queries)).ok()?;
    let before = usize::from(counts.answers) + usize::from(counts.authorities);
    Message::read_records(&mut decoder, before, false, metadata.op_code).ok()?;
    let others = usize::from(counts.additionals.checked_sub(1)?);
    Message::read_records(&mut decoder, others, true, metadata.op_code).ok()?;
    let end = decoder.index();
    Some((end, Record::read(&mut decoder).ok()?))
}

/// The meaning of a TSIG error (RFC 8945 section 5.2).
fn refusal(code: u16, key: &Name) -> String {
    match code {
        16 => format!("it has another key under the name {key} (BADSIG)"),
        17 => format!("it knows no key of the name {key} with HMAC-SHA256 (BADKEY)"),
        18 => "its clock and ours are too far apart (BADTIME)".to_owned(),
        code => format!("it refused the signature (TSIG error {code})"),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{MessageType, OpCode, Query};
    use hickory_proto::rr::RecordType;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key(secret: &[u8]) -> Key {
        Key::new(Name::from_ascii("weir.").unwrap(), secret)
    }

    fn message(kind: MessageType) -> Message {
        let mut message = Message::new(7, kind, OpCode::Update);
        message.add_query(Query::query(Name::from_ascii("shop.example.").unwrap(), RecordType::SOA));
        message
    }

    /// An answer, signed as a name server does: with the request's signature in front.
    fn answered(key: &Key, request: &[u8]) -> Vec<u8> {
        let answer = message(MessageType::Response);
        let unsigned = TSIG::new(TsigAlgorithm::HmacSha256, NOW, FUDGE, Vec::new(), 7, None, Vec::new());
        let mut covered = (request.len() as u16).to_be_bytes().to_vec();
        covered.extend_from_slice(request);
        covered.extend(message_tbs(&answer, &unsigned, &key.name).unwrap());
        let mac = hmac::sign(&key.secret, &covered).as_ref().to_vec();
        let mut signed = answer;
        signed.add_additional(record(&key.name, unsigned.set_mac(mac)));
        signed.to_vec().unwrap()
    }

    #[test]
    fn an_answer_is_believed_when_it_is_signed_for_this_request_with_this_key() {
        let key = key(b"sixteen octets..");
        let sent = key.sign(&message(MessageType::Query), NOW).unwrap();
        let answer = answered(&key, &sent.mac);
        assert_eq!(key.verify(&answer, &sent.mac, NOW + 10), Ok(()));
        assert!(key.verify(&answer, &sent.mac, NOW + 301).unwrap_err().contains("clock"));
        assert!(key.verify(&answer, &[0; 32], NOW).unwrap_err().contains("false signature"));
        let other = super::tests::key(b"other octets....");
        assert!(other.verify(&answer, &sent.mac, NOW).unwrap_err().contains("false signature"));
    }

    #[test]
    fn no_byte_of_a_signed_answer_can_be_changed_or_left_out() {
        let key = key(b"sixteen octets..");
        let answer = answered(&key, b"request");
        for at in 0..answer.len() {
            assert!(key.verify(&answer[..at], b"request", NOW).is_err(), "cut at {at}");
            // The number is the one that the signature names, and who asks compares it.
            if at >= 2 {
                let mut changed = answer.clone();
                changed[at] ^= 0x21;
                assert!(key.verify(&changed, b"request", NOW).is_err(), "byte {at}");
            }
        }
        assert!(key.verify(&message(MessageType::Response).to_vec().unwrap(), b"request", NOW).is_err());
    }
}
