//! Dynamic updates (RFC 2136), and look-ups for them: the zone of a name, and its name servers.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use weir_config::DnsUpdate;

use super::message;
use super::tsig::Key;
use super::wait::Server;
use crate::blocking;

/// How long resolvers may cache the record, in seconds.
const TTL_SECONDS: u32 = 60;
/// Most name servers of a zone to wait for (count): no zone has more, but an answer could list any number.
const MOST_SERVERS: usize = 16;
/// The port of name servers.
const PORT: u16 = 53;

/// Adds a TXT record to a zone, or removes the one with this value: others with the same name belong to other
/// orders.
///
/// # Errors
/// The reason: the name server refused it, or its answer is wrong.
pub async fn send(
    update: &DnsUpdate,
    zone: &str,
    name: &str,
    value: &str,
    is_there: bool,
) -> Result<(), String> {
    let message = compose(&message::name(zone)?, message::name(name)?, value, is_there)?;
    let key = Key::new(message::name(&update.key_name)?, &update.key_bytes());
    let signed = key.sign(&message, seconds())?;
    let answer = message::exchange(update.server, &signed.bytes).await?;
    let told = |reason: String| format!("name server {} did not update {zone}: {reason}", update.server);
    let verified = key.verify(&answer, &signed.mac, seconds());
    let code = message::answer_to(&message, &answer).map_err(told)?.metadata.response_code;
    match (code, verified) {
        (ResponseCode::NoError, Ok(())) => Ok(()),
        (ResponseCode::NoError, Err(reason)) => Err(told(reason)),
        // Why it rejects our signature is more informative than that it does.
        (ResponseCode::NotAuth, Err(reason)) => Err(told(reason)),
        (code, _) => Err(told(meaning(code))),
    }
}

/// The meaning of a response code (RFC 2136 section 2.2).
fn meaning(code: ResponseCode) -> String {
    let more = match code {
        ResponseCode::Refused => "this key may not do that",
        ResponseCode::NotAuth => "it is not the one that has the zone",
        ResponseCode::NotZone => "the name is not in this zone",
        ResponseCode::NotImp => "it takes no updates",
        _ => return format!("it answered {code}"),
    };
    format!("it answered {code}: {more}")
}

fn compose(zone: &Name, name: Name, value: &str, is_there: bool) -> Result<Message, String> {
    let mut message = message::new(OpCode::Update)?;
    message.add_query(Query::query(zone.clone(), RecordType::SOA));
    let mut record = Record::from_rdata(name, TTL_SECONDS, RData::TXT(TXT::new(vec![value.to_owned()])));
    if !is_there {
        // Removes a single record (RFC 2136 section 2.5.4).
        (record.dns_class, record.ttl) = (DNSClass::NONE, 0);
    }
    message.add_authority(record);
    Ok(message)
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The zone that contains a name, according to `server` (RFC 1034 section 4.3.4, RFC 2308 section 2).
pub async fn zone_of(server: SocketAddr, name: &str) -> Result<String, String> {
    let name = message::name(name)?;
    let answer = message::ask(server, &name, RecordType::SOA).await?;
    let records = answer.answers.iter().chain(&answer.authorities);
    let mut zones =
        records.filter(|record| matches!(record.data, RData::SOA(_)) && record.name.zone_of(&name));
    match zones.next() {
        Some(zone) => Ok(zone.name.to_ascii()),
        None => Err(format!(
            "name server {server} does not say in which zone {name} lies (it answered {}); expected `zone` in `dns_update`",
            answer.metadata.response_code
        )),
    }
}

/// The name servers of a zone, according to `server`, each with its addresses.
pub async fn servers_of(server: SocketAddr, zone: &str) -> Result<Vec<Server>, String> {
    let answer = message::ask(server, &message::name(zone)?, RecordType::NS).await?;
    let names = answer.answers.iter().filter_map(|record| match &record.data {
        RData::NS(name) => Some(&name.0),
        _ => None,
    });
    let mut servers = Vec::new();
    for name in names.take(MOST_SERVERS) {
        let mut addresses: Vec<IpAddr> =
            answer.additionals.iter().filter(|record| record.name == *name).filter_map(address).collect();
        if addresses.is_empty() {
            let host = name.to_ascii().trim_end_matches('.').to_owned();
            let found = blocking::addresses((host, PORT)).await;
            let found = found.map_err(|error| format!("name server {name} of {zone}: {error}"))?;
            addresses = found.iter().map(SocketAddr::ip).collect();
        }
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, PORT)).collect();
        servers.push(Server { addresses });
    }
    if servers.is_empty() {
        return Err(format!("name server {server} names no name server of {zone}; expected `wait_for`"));
    }
    Ok(servers)
}

fn address(record: &Record) -> Option<IpAddr> {
    match &record.data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name server that answers one question with these records, under another number if it is told to.
    async fn server(answers: Vec<Record>, additionals: Vec<Record>, is_forged: bool) -> SocketAddr {
        use hickory_proto::op::MessageType;
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut question).await.unwrap();
            let mut answer = Message::from_vec(&question).unwrap();
            answer.metadata.message_type = MessageType::Response;
            answer.metadata.id ^= u16::from(is_forged);
            (answer.answers, answer.additionals) = (answers, additionals);
            let bytes = answer.to_vec().unwrap();
            stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn only_an_answer_to_this_question_is_one_and_says_which_servers_there_are() {
        use hickory_proto::rr::rdata::{A, NS};

        let name = |text: &str| message::name(text).unwrap();
        let ns = |host: &str| Record::from_rdata(name("shop.example"), 60, RData::NS(NS(name(host))));
        let glue = |host: &str, last| {
            Record::from_rdata(name(host), 60, RData::A(A(std::net::Ipv4Addr::new(192, 0, 2, last))))
        };
        let (all, near) = (
            vec![ns("a.shop.example"), ns("b.shop.example")],
            vec![glue("b.shop.example", 2), glue("a.shop.example", 1), glue("c.shop.example", 3)],
        );
        let found = servers_of(server(all.clone(), near.clone(), false).await, "shop.example").await.unwrap();
        let found: Vec<String> = found.iter().map(|each| each.addresses[0].to_string()).collect();
        assert_eq!(found, ["192.0.2.1:53", "192.0.2.2:53"]);
        let forged = servers_of(server(all, near, true).await, "shop.example").await;
        assert!(forged.err().unwrap().contains("an answer to something else"));
        let none = servers_of(server(Vec::new(), Vec::new(), false).await, "shop.example").await;
        assert!(none.err().unwrap().contains("expected `wait_for`"));
        let unknown = zone_of(server(Vec::new(), Vec::new(), false).await, "shop.example").await;
        assert!(unknown.unwrap_err().contains("expected `zone` in `dns_update`"));
    }

    #[test]
    fn a_record_is_taken_out_by_its_value_and_others_of_the_name_stay() {
        let (zone, name) = (message::name("shop.example").unwrap(), message::name("a.shop.example").unwrap());
        let put = compose(&zone, name.clone(), "value", true).unwrap();
        let taken = compose(&zone, name, "value", false).unwrap();
        let [record] = &taken.authorities[..] else { panic!("one record") };
        assert_eq!(
            (record.dns_class, record.ttl, &record.data),
            (DNSClass::NONE, 0, &put.authorities[0].data)
        );
        assert_eq!((put.authorities[0].dns_class, put.authorities[0].ttl), (DNSClass::IN, TTL_SECONDS));
        assert_eq!(put.queries[0].query_type, RecordType::SOA);
    }
}
