//! One question to a name server, and the evaluation of its answer (RFC 1035; SRV: RFC 2782).
//!
//! An answer is accepted only if it repeats the question and its id, and only records that the name leads to
//! count: anything else that a server adds is ignored.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Longest datagram in bytes that is not fragmented on its way (the DNS flag day of 2020).
pub(super) const DATAGRAM_BYTES: u16 = 1232;
/// Longest chain of CNAMEs that is followed (count).
const MOST_ALIASES: usize = 16;

/// The record type asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// The hosts that provide a service.
    Srv,
}

impl Kind {
    fn record_type(self) -> RecordType {
        match self {
            Kind::A => RecordType::A,
            Kind::Aaaa => RecordType::AAAA,
            Kind::Srv => RecordType::SRV,
        }
    }
}

/// A question with its id.
#[derive(Debug)]
pub(super) struct Question {
    number: u16,
    name: Name,
    kind: Kind,
    /// Whether it announces that longer datagrams are accepted (EDNS, RFC 6891).
    is_extended: bool,
}

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// Lower values are to be used first.
    pub priority: u16,
    /// Share within its priority.
    pub weight: u16,
    /// The port of the service.
    pub port: u16,
    /// The host, without the trailing dot.
    pub host: String,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// These addresses, valid for this long; empty if the name has none of that type.
    Addresses(Vec<IpAddr>, Option<Duration>),
    /// These services, valid for this long; empty if there are none.
    Services(Vec<Service>, Option<Duration>),
    /// The name does not exist.
    NoSuchName,
    /// The answer does not fit into a datagram.
    Cut,
    /// The server does not support EDNS, which the question uses (RFC 6891 section 7).
    NotExtended,
    /// The server can't or won't answer; the reason.
    Failed(String),
}

impl Question {
    /// `Err` is the reason why the name is invalid.
    pub fn new(number: u16, name: &str, kind: Kind) -> Result<Question, String> {
        let mut name = Name::from_ascii(name).map_err(|error| format!("{name:?} is no name: {error}"))?;
        name.set_fqdn(true);
        Ok(Question { number, name, kind, is_extended: true })
    }

    /// The same question for a server that does not support EDNS.
    pub fn plain(&self, number: u16) -> Question {
        Question { number, name: self.name.clone(), kind: self.kind, is_extended: false }
    }

    /// The encoded message.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut message = Message::new(self.number, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind.record_type()));
        if self.is_extended {
            let mut edns = Edns::new();
            edns.set_max_payload(DATAGRAM_BYTES);
            message.set_edns(edns);
        }
        message.to_vec().map_err(|error| format!("the question can't be written: {error}"))
    }

    /// Parses an answer. `None` if the bytes are not an answer to this question, whoever sent them.
    pub fn answer_in(&self, bytes: &[u8]) -> Option<Said> {
        // The id is checked first: most other messages are not worth parsing.
        if !self.has_number_of(bytes) {
            return None;
        }
        let message = Message::from_vec(bytes).ok()?;
        let code = message.metadata.response_code;
        let is_not_understood = matches!(code, ResponseCode::FormErr | ResponseCode::NotImp);
        let is_ours = match &message.queries[..] {
            [query] => {
                query.query_type == self.kind.record_type()
                    && query.query_class == DNSClass::IN
                    && query.name == self.name
            }
            // A server that does not understand a question can't repeat it.
            [] => is_not_understood,
            _ => false,
        };
        let is_answer = message.metadata.message_type == MessageType::Response
            && message.metadata.op_code == OpCode::Query;
        if !(is_ours && is_answer) {
            return None;
        }
        if is_not_understood && self.is_extended {
            return Some(Said::NotExtended);
        }
        if message.metadata.truncation {
            return Some(Said::Cut);
        }
        Some(match code {
            ResponseCode::NoError => self.records(&message.answers),
            ResponseCode::NXDomain => Said::NoSuchName,
            code => Said::Failed(format!("the name server answered {code}")),
        })
    }

    /// Whether a message has the id of this question.
    pub fn has_number_of(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&self.number.to_be_bytes())
    }

    /// The records for the name, following CNAMEs.
    fn records(&self, answers: &[Record]) -> Said {
        let of_class = |record: &&Record| record.dns_class == DNSClass::IN;
        let mut name = &self.name;
        let mut ttl: Option<u32> = None;
        let mut lasts = |seconds: u32| ttl = Some(ttl.map_or(seconds, |ttl| ttl.min(seconds)));
        for _ in 0..MOST_ALIASES {
            let alias = answers.iter().filter(of_class).find_map(|record| match &record.data {
                RData::CNAME(alias) if record.name == *name => Some((&alias.0, record.ttl)),
                _ => None,
            });
            let Some((alias, seconds)) = alias else { break };
            lasts(seconds);
            name = alias;
        }
        let (mut addresses, mut services) = (Vec::new(), Vec::new());
        for record in answers.iter().filter(of_class).filter(|record| record.name == *name) {
            match (&record.data, self.kind) {
                (RData::A(address), Kind::A) => addresses.push(IpAddr::from(address.0)),
                (RData::AAAA(address), Kind::Aaaa) => addresses.push(IpAddr::from(address.0)),
                (RData::SRV(service), Kind::Srv) => {
                    let host = service.target.to_ascii();
                    let host = host.trim_end_matches('.').to_owned();
                    // A single dot means that the service is not available.
                    if !host.is_empty() && service.port != 0 {
                        let (priority, weight, port) = (service.priority, service.weight, service.port);
                        services.push(Service { priority, weight, port, host });
                    }
                }
                _ => continue,
            }
            lasts(record.ttl);
        }
        let ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
        match self.kind {
            Kind::A | Kind::Aaaa => Said::Addresses(addresses, ttl),
            Kind::Srv => Said::Services(services, ttl),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::{A, CNAME, SRV};

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn question(kind: Kind) -> Question {
        Question::new(7, "app.example", kind).unwrap()
    }

    /// An answer to the question with these records.
    fn answer(question: &Question, records: Vec<(&str, u32, RData)>) -> Message {
        let mut message = Message::new(question.number, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(question.name.clone(), question.kind.record_type()));
        for (owner, ttl, data) in records {
            message.add_answer(Record::from_rdata(name(owner), ttl, data));
        }
        message
    }

    fn a(last: u8) -> RData {
        RData::A(A::new(10, 0, 0, last))
    }

    fn said(question: &Question, message: &Message) -> Option<Said> {
        question.answer_in(&message.to_vec().unwrap())
    }

    #[test]
    fn addresses_are_read_by_way_of_aliases_and_last_as_long_as_the_shortest() {
        let question = question(Kind::A);
        let alias = |to: &str| RData::CNAME(CNAME(name(to)));
        let message = answer(
            &question,
            vec![
                ("app.example.", 30, alias("edge.example.")),
                ("edge.example.", 300, a(1)),
                ("EDGE.example.", 60, a(2)),
            ],
        );
        let expected = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let ttl = Some(Duration::from_secs(30));
        assert_eq!(said(&question, &message), Some(Said::Addresses(expected, ttl)));
    }

    #[test]
    fn records_of_other_names_are_nobodys_answer() {
        let question = question(Kind::A);
        let message = answer(&question, vec![("evil.example.", 30, a(66))]);
        assert_eq!(said(&question, &message), Some(Said::Addresses(Vec::new(), None)));
    }

    #[test]
    fn aliases_in_a_circle_end() {
        let question = question(Kind::A);
        let alias = |to: &str| RData::CNAME(CNAME(name(to)));
        let message = answer(
            &question,
            vec![("app.example.", 5, alias("b.example.")), ("b.example.", 5, alias("app.example."))],
        );
        assert!(matches!(said(&question, &message), Some(Said::Addresses(none, _)) if none.is_empty()));
    }

    #[test]
    fn an_answer_under_another_number_or_to_another_question_is_none() {
        let question = question(Kind::A);
        let good = answer(&question, vec![("app.example.", 30, a(1))]);
        let with = |change: &dyn Fn(&mut Message)| {
            let mut message = good.clone();
            change(&mut message);
            said(&question, &message)
        };
        assert!(with(&|_| {}).is_some());
        assert_eq!(with(&|message| message.metadata.id = 8), None);
        assert_eq!(with(&|message| message.metadata.message_type = MessageType::Query), None);
        assert_eq!(with(&|message| message.queries.clear()), None);
        assert_eq!(with(&|message| message.queries[0].name = name("other.example.")), None);
        assert_eq!(with(&|message| message.queries[0].query_type = RecordType::AAAA), None);
    }

    #[test]
    fn failures_and_cut_answers_are_told_apart() {
        let question = question(Kind::A);
        let with = |code: ResponseCode, is_cut: bool| {
            let mut message = answer(&question, Vec::new());
            message.metadata.response_code = code;
            message.metadata.truncation = is_cut;
            said(&question, &message).unwrap()
        };
        assert_eq!(with(ResponseCode::NXDomain, false), Said::NoSuchName);
        assert!(matches!(with(ResponseCode::ServFail, false), Said::Failed(_)));
        assert_eq!(with(ResponseCode::NoError, true), Said::Cut);
    }

    #[test]
    fn who_does_not_understand_a_question_may_leave_it_out_and_is_asked_without_extensions() {
        let extended = question(Kind::A);
        let plain = extended.plain(7);
        for code in [ResponseCode::FormErr, ResponseCode::NotImp] {
            for repeats in [true, false] {
                let mut message = answer(&extended, Vec::new());
                message.metadata.response_code = code;
                if !repeats {
                    message.queries.clear();
                }
                assert_eq!(said(&extended, &message), Some(Said::NotExtended), "{code} {repeats}");
                assert!(matches!(said(&plain, &message), Some(Said::Failed(_))), "{code} {repeats}");
            }
        }
        // Any other failure repeats the question.
        let mut message = answer(&extended, Vec::new());
        message.metadata.response_code = ResponseCode::ServFail;
        message.queries.clear();
        assert_eq!(said(&extended, &message), None);
        assert!(Message::from_vec(&plain.bytes().unwrap()).unwrap().edns.is_none());
    }

    #[test]
    fn services_are_read_and_one_that_is_not_offered_is_none() {
        let question = Question::new(1, "_http._tcp.app.example", Kind::Srv).unwrap();
        let srv = |port: u16, target: &str| RData::SRV(SRV::new(10, 5, port, name(target)));
        let owner = "_http._tcp.app.example.";
        let message =
            answer(&question, vec![(owner, 9, srv(8080, "one.app.example.")), (owner, 9, srv(1, "."))]);
        let one = Service { priority: 10, weight: 5, port: 8080, host: "one.app.example".to_owned() };
        let ttl = Some(Duration::from_secs(9));
        assert_eq!(said(&question, &message), Some(Said::Services(vec![one], ttl)));
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let question = question(Kind::A);
        let good = answer(&question, vec![("app.example.", 30, a(1))]).to_vec().unwrap();
        for end in 0..good.len() {
            let _ = question.answer_in(&good[..end]);
        }
        for at in 2..good.len() {
            for byte in [0, 1, 0x3f, 0xc0, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                let _ = question.answer_in(&bytes);
            }
        }
    }

    #[test]
    fn a_question_asks_for_recursion_and_names_itself() {
        let bytes = question(Kind::Aaaa).bytes().unwrap();
        let message = Message::from_vec(&bytes).unwrap();
        assert!(message.metadata.recursion_desired && message.metadata.id == 7);
        assert_eq!(message.queries[0].name, name("app.example."));
        assert_eq!(message.edns.map(|edns| edns.max_payload()), Some(DATAGRAM_BYTES));
        assert!(Question::new(1, &"a".repeat(64), Kind::A).is_err());
    }
}
