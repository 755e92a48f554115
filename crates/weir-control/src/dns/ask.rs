//! Queries name servers: over UDP, each question with an id from the kernel's random numbers and from a port
//! of its own; over TCP for answers that do not fit into a datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use weir_io::system::interface_named;

use super::message::{DATAGRAM_BYTES, Kind, Question, Said, Service};
use crate::blocking;

/// How many times each server is asked before a look-up fails (count).
const ROUNDS: usize = 2;
/// How many datagrams that do not answer the question are accepted (count): they must be forged, and the more
/// there are, the likelier it is that one fits.
const MOST_FORGED: usize = 32;
/// Most name servers of `resolv.conf` that are asked (count), as in the C library.
const MOST_SERVERS: usize = 3;
/// Most concurrent look-ups by the system: each occupies a thread, since the C library's resolver blocks.
const SYSTEM_AT_ONCE: usize = 8;
/// Most concurrent questions to name servers.
const AT_ONCE: usize = 64;
/// A look-up by the system that takes longer counts as failed.
const SYSTEM_TIMEOUT: Duration = Duration::from_secs(5);
/// The file with the system's name servers (resolv.conf(5)).
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The port of name servers.
const PORT: u16 = 53;

/// Which name servers are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    /// The C library's resolver, with its whole configuration. It reports no TTLs.
    System,
    /// Those in `resolv.conf` at the time of the question.
    ResolvConf,
    /// These, one after the other.
    Given(Vec<SocketAddr>),
}

/// Looks up names.
#[derive(Clone)]
pub(super) struct Resolver {
    servers: Servers,
    timeout: Duration,
    system_slots: Arc<Semaphore>,
    slots: Arc<Semaphore>,
}

/// Addresses of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// In the order of the answer.
    pub addresses: Vec<IpAddr>,
    /// How long they are valid; `None` without a TTL.
    pub ttl: Option<Duration>,
    /// Whether the question for one of the two address types failed, so that there may be more addresses.
    pub is_partial: bool,
    /// How many more there were that are not allowed (count).
    pub refused_count: usize,
}

impl Resolver {
    /// `timeout` is for one answer of one server.
    pub fn new(servers: Servers, timeout: Duration) -> Resolver {
        let (system_slots, slots) = (Semaphore::new(SYSTEM_AT_ONCE), Semaphore::new(AT_ONCE));
        Resolver { servers, timeout, system_slots: Arc::new(system_slots), slots: Arc::new(slots) }
    }

    /// The addresses of a host. Empty if there are none, or the name does not exist. `Err` is the reason why
    /// this is not known.
    pub async fn addresses(&self, host: &str) -> Result<Found, String> {
        match self.servers {
            Servers::System => self.ask_system(host).await,
            Servers::ResolvConf | Servers::Given(_) => self.addresses_by_servers(host).await,
        }
    }

    /// The same from name servers; from the system's if the config names none.
    pub async fn addresses_by_servers(&self, host: &str) -> Result<Found, String> {
        let (v4, v6) = tokio::join!(self.ask(host, Kind::A), self.ask(host, Kind::Aaaa));
        let mut found = Found::default();
        let mut failed = None;
        for said in [v4, v6] {
            match said {
                Ok(Said::Addresses(addresses, ttl)) => {
                    found.addresses.extend(addresses);
                    found.ttl = [found.ttl, ttl].into_iter().flatten().min();
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if found.addresses.is_empty() => Err(error),
            failed => Ok(Found { is_partial: failed.is_some(), ..found }),
        }
    }

    /// The hosts that provide a service, and how long that is valid.
    pub async fn services(&self, name: &str) -> Result<(Vec<Service>, Option<Duration>), String> {
        match self.ask(name, Kind::Srv).await? {
            Said::Services(services, ttl) => Ok((services, ttl)),
            _ => Ok((Vec::new(), None)),
        }
    }

    async fn ask_system(&self, host: &str) -> Result<Found, String> {
        let slots = self.system_slots.clone();
        let Ok(slot) = slots.acquire_owned().await else { return Err("resolving has ended".to_owned()) };
        let host = host.to_owned();
        // The task holds the slot: an abandoned look-up still occupies its thread until the resolver returns.
        let mut asking = tokio::spawn(async move {
            let _slot = slot;
            let answer = blocking::addresses((host, 0)).await;
            answer.map(|answer| answer.iter().map(SocketAddr::ip).collect::<Vec<_>>())
        });
        match tokio::time::timeout(SYSTEM_TIMEOUT, &mut asking).await {
            Ok(Ok(Ok(addresses))) => Ok(Found { addresses, ..Found::default() }),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(panicked)) => Err(panicked.to_string()),
            Err(_) => Err(format!("no answer within {SYSTEM_TIMEOUT:?}")),
        }
    }

    /// Asks one server after the other until one answers.
    async fn ask(&self, name: &str, kind: Kind) -> Result<Said, String> {
        let Ok(_slot) = self.slots.acquire().await else { return Err("resolving has ended".to_owned()) };
        let servers = match &self.servers {
            Servers::Given(servers) => servers.clone(),
            Servers::ResolvConf | Servers::System => servers_of(Path::new(RESOLV_CONF))?,
        };
        let mut last = "no name server is known".to_owned();
        for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
            let question = Question::new(random()?, name, kind)?;
            match self.ask_server(*server, &question).await {
                Ok(Said::Failed(why)) => last = format!("{why} ({server})"),
                Ok(said) => return Ok(said),
                Err(why) => last = format!("{why} ({server})"),
            }
        }
        Err(last)
    }

    /// Asks one server, and again without EDNS if it does not support that.
    async fn ask_server(&self, server: SocketAddr, question: &Question) -> Result<Said, String> {
        match self.ask_once(server, question).await? {
            Said::NotExtended => self.ask_once(server, &question.plain(random()?)).await,
            said => Ok(said),
        }
    }

    async fn ask_once(&self, server: SocketAddr, question: &Question) -> Result<Said, String> {
        let in_time = |limited| async {
            tokio::time::timeout(self.timeout, limited)
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout)))
        };
        let said = in_time(Box::pin(over_udp(server, question)) as Asking<'_>).await?;
        if said != Said::Cut {
            return Ok(said);
        }
        match in_time(Box::pin(over_tcp(server, question)) as Asking<'_>).await? {
            Said::Cut => Err("the name server cut its answer over TCP, too".to_owned()),
            said => Ok(said),
        }
    }
}

type Asking<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Said, String>> + Send + 'a>>;

async fn over_udp(server: SocketAddr, question: &Question) -> Result<Said, String> {
    let told = |error: std::io::Error| error.to_string();
    // Its own port, chosen by the kernel; connected, so that the kernel drops what others send.
    let own: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((own, 0)).await.map_err(told)?;
    socket.connect(server).await.map_err(told)?;
    socket.send(&question.bytes()?).await.map_err(told)?;
    // One byte larger than the longest datagram, to detect one that was cut.
    let mut bytes = vec![0; usize::from(DATAGRAM_BYTES) + 1];
    for _ in 0..MOST_FORGED {
        let size = socket.recv(&mut bytes).await.map_err(told)?;
        if size == bytes.len() && question.has_number_of(&bytes) {
            return Ok(Said::Cut);
        }
        if let Some(said) = question.answer_in(&bytes[..size]) {
            return Ok(said);
        }
    }
    // Over TCP an attacker who does not see the question can't forge an answer.
    Ok(Said::Cut)
}

/// RFC 7766: each message is preceded by its length in two bytes.
async fn over_tcp(server: SocketAddr, question: &Question) -> Result<Said, String> {
    let told = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(server).await.map_err(told)?;
    let bytes = question.bytes()?;
    let length = u16::try_from(bytes.len()).map_err(|_| "the question is too long".to_owned())?;
    let framed = [&length.to_be_bytes()[..], &bytes].concat();
    stream.write_all(&framed).await.map_err(told)?;
    let length = stream.read_u16().await.map_err(told)?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await.map_err(told)?;
    question.answer_in(&bytes).ok_or_else(|| "what the name server sent is no answer".to_owned())
}

/// A random number that can't be guessed.
fn random() -> Result<u16, String> {
    let mut bytes = [0; 2];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes, flags) {
        Ok(2) => Ok(u16::from_ne_bytes(bytes)),
        _ => Err("the kernel gave no random bytes".to_owned()),
    }
}

fn servers_of(file: &Path) -> Result<Vec<SocketAddr>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let servers = servers_in(&text);
    if servers.is_empty() { Err(format!("{} names no name server", file.display())) } else { Ok(servers) }
}

/// Parses `nameserver ADDRESS` lines. A link-local address is followed by its interface, by name or number
/// (`fe80::1%eth0`, RFC 4007 section 11). A server whose interface does not exist here is left out.
fn servers_in(text: &str) -> Vec<SocketAddr> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then_some(())?;
        let address = words.next()?;
        let Some((address, link)) = address.split_once('%') else {
            return Some(SocketAddr::new(address.parse().ok()?, PORT));
        };
        let index = link.parse().ok().or_else(|| Some(interface_named(link)?.get()))?;
        Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, index).into())
    };
    text.lines().filter_map(of_line).take(MOST_SERVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_system_has_them() {
        let text = "# made by hand\nsearch example\nnameserver 10.0.0.53\nnameserver fe80::1%nowhere\n nameserver ::1\nnameserver 1.1.1.1\nnameserver 9.9.9.9\n";
        let servers: Vec<String> = servers_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.53:53", "[::1]:53", "1.1.1.1:53"]);
        let of_links = "nameserver fe80::2%lo\nnameserver fe80::3%7\nnameserver 10.0.0.1%lo\n";
        let lo = interface_named("lo").unwrap();
        let servers: Vec<String> = servers_in(of_links).iter().map(ToString::to_string).collect();
        assert_eq!(servers, [format!("[fe80::2%{lo}]:53"), "[fe80::3%7]:53".to_owned()]);
    }

    /// A server over UDP that sends `wrong` before its answer, or nothing but that.
    async fn server(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut bytes = [0; 512];
            while let Ok((size, from)) = socket.recv_from(&mut bytes).await {
                for datagram in answer(&bytes[..size]) {
                    let _ = socket.send_to(&datagram, from).await;
                }
            }
        });
        address
    }

    /// The question as an answer, with one address for A.
    fn answer_to(question: &[u8]) -> Vec<u8> {
        let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
        let is_a = question[end - 3] == 1;
        let mut bytes = question[..end].to_vec();
        bytes[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
        if is_a {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 0, 0, 1]);
        }
        bytes
    }

    fn resolver(servers: Vec<SocketAddr>) -> Resolver {
        Resolver::new(Servers::Given(servers), Duration::from_secs(5))
    }

    #[tokio::test]
    async fn a_forged_answer_under_another_number_is_passed_over() {
        let forging = |question: &[u8]| {
            let mut forged = answer_to(question);
            forged[0] ^= 1;
            if let Some(last) = forged.last_mut() {
                *last = 66;
            }
            vec![forged, answer_to(question)]
        };
        let found = resolver(vec![server(forging).await]).addresses("app.example").await.unwrap();
        assert_eq!(found.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(found.ttl, Some(Duration::from_secs(30)));
    }

    #[tokio::test]
    async fn after_many_forged_answers_the_question_is_asked_over_tcp() {
        use tokio::net::TcpListener;
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            let mut bytes = [0; 512];
            while let Ok((size, from)) = udp.recv_from(&mut bytes).await {
                let mut forged = answer_to(&bytes[..size]);
                forged[0] ^= 1;
                for _ in 0..MOST_FORGED {
                    let _ = udp.send_to(&forged, from).await;
                }
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut question = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut question).await.unwrap();
                let answer = answer_to(&question);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        let found = resolver(vec![address]).addresses("app.example").await.unwrap();
        assert_eq!(found.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[tokio::test]
    async fn a_server_that_cannot_answer_is_passed_over_for_the_next() {
        let failing = |question: &[u8]| {
            let mut failure = answer_to(question);
            failure[3] |= 2;
            vec![failure]
        };
        let servers = vec![server(failing).await, server(|question| vec![answer_to(question)]).await];
        let found = resolver(servers).addresses("app.example").await.unwrap();
        assert_eq!((found.addresses.len(), found.is_partial), (1, false));
        let error = resolver(vec![server(failing).await]).addresses("app.example").await.unwrap_err();
        assert!(error.contains("the name server answered"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_knows_no_extensions_is_asked_again_without() {
        // The header alone, as servers of before RFC 6891 answer what they can't read.
        let old = |question: &[u8]| {
            let has_extension = question[11] == 1;
            let refusal = [&question[..2], &[0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
            vec![if has_extension { refusal } else { answer_to(question) }]
        };
        let found = resolver(vec![server(old).await]).addresses("app.example").await.unwrap();
        assert_eq!((found.addresses.len(), found.is_partial), (1, false));
        // One that understands nothing at all is passed over at once.
        let none = |question: &[u8]| vec![[&question[..2], &[0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]].concat()];
        let servers = vec![server(none).await, server(old).await];
        let found = resolver(servers).addresses("app.example").await.unwrap();
        assert_eq!((found.addresses.len(), found.is_partial), (1, false));
        let error = resolver(vec![server(none).await]).addresses("app.example").await.unwrap_err();
        assert!(error.contains("the name server answered"), "{error}");
    }

    #[tokio::test]
    async fn addresses_of_one_kind_are_partial_where_the_other_was_not_answered() {
        let only_v4 = |question: &[u8]| {
            let mut answer = answer_to(question);
            if answer.ends_with(&[0, 28, 0, 1]) {
                answer[3] |= 2;
            }
            vec![answer]
        };
        let found = resolver(vec![server(only_v4).await]).addresses("app.example").await.unwrap();
        assert_eq!((found.addresses.len(), found.is_partial), (1, true));
    }
}
