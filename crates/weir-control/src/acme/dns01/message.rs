//! Messages to name servers over TCP (RFC 7766), so that an attacker who does not see the question can't
//! forge an answer.

use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::rand;
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longest time for one answer of one name server, from connecting to the last byte.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Parses a fully qualified name. `Err` is the reason why it is invalid.
pub fn name(text: &str) -> Result<Name, String> {
    let mut name = Name::from_ascii(text).map_err(|error| format!("{text:?} is no name: {error}"))?;
    name.set_fqdn(true);
    Ok(name)
}

/// A message with a random id.
pub fn new(code: OpCode) -> Result<Message, String> {
    let mut number = [0; 2];
    rand::fill(&mut number).map_err(|_| "there are no random bytes".to_owned())?;
    Ok(Message::new(u16::from_ne_bytes(number), MessageType::Query, code))
}

/// Asks a name server for records of one type.
///
/// # Errors
/// The reason: the server did not answer, or its answer does not match the question.
pub async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> Result<Message, String> {
    let mut question = new(OpCode::Query)?;
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name.clone(), kind));
    let bytes = question.to_vec().map_err(|error| error.to_string())?;
    let bytes = exchange(server, &bytes).await?;
    let answer = answer_to(&question, &bytes).map_err(|reason| format!("name server {server}: {reason}"))?;
    let repeats = |query: &Query| query.query_type == kind && query.name == *name;
    match &answer.queries[..] {
        [query] if repeats(query) => Ok(answer),
        _ => Err(format!("name server {server} answered another question")),
    }
}

/// Parses `bytes` as an answer to `question`.
pub fn answer_to(question: &Message, bytes: &[u8]) -> Result<Message, String> {
    let answer = Message::from_vec(bytes).map_err(|error| format!("it sent no message ({error})"))?;
    let is_ours = answer.metadata.id == question.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.metadata.op_code == question.metadata.op_code;
    if is_ours { Ok(answer) } else { Err("it sent an answer to something else".to_owned()) }
}

/// Sends one message and returns the reply.
pub async fn exchange(server: SocketAddr, message: &[u8]) -> Result<Vec<u8>, String> {
    let length = u16::try_from(message.len()).map_err(|_| "the message is too long".to_owned())?;
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("name server {server}: {}", crate::health::probe::plain(&error))),
        Err(_) => Err(format!("name server {server} did not answer within {PATIENCE:?}")),
    }
}
