//! Clients that speak by themselves: slowly, something else than HTTP, or not to the end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::clients::{Clients, Question, connect};
use super::site::HOST;
use super::traffic::{Outcome, Shared};
use crate::dialogue::{Draws, PATIENCE, pattern};
use crate::versions::Front;

/// How often a datagram is sent before it counts as lost, and how long each is waited for.
const SENDINGS: (u32, Duration) = (4, Duration::from_secs(1));

/// A GET in HTTP/1.1.
pub(super) fn get(path: &str, close: bool) -> String {
    let connection = if close { "connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\n{connection}\r\n")
}

/// Judges a whole answer as it came, with a length that is told.
pub(super) fn judge(question: &Question, shared: &Shared, bytes: &[u8]) -> Outcome {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return question.failed(format!("{} bytes and no whole head", bytes.len()));
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let content = &bytes[end + 4..];
    if status == 200 && length.is_some_and(|length: usize| content.len() < length) {
        return question.failed(format!("cut off: {} bytes of {length:?}", content.len()));
    }
    question.judge(shared, status, content)
}

/// Lines in the access log have this address.
fn key_of(stream: &TcpStream) -> String {
    stream.local_addr().map(|address| address.to_string()).unwrap_or_default()
}

/// Bytes over a WebSocket that come back, some at a time.
pub(super) async fn web_socket(address: SocketAddr, number: u64, mut draws: Draws) -> Outcome {
    let path = format!("/ws/{number}");
    let handshake = format!(
        "GET {path} HTTP/1.1\r\nhost: {HOST}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    );
    let failed = |what: String| Outcome::Failed(path.clone(), what);
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(handshake.as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        if !head.starts_with("HTTP/1.1 101 ") {
            return Ok(failed(format!("refused: {head:?}")));
        }
        let turns = draws.below(10) + 1;
        for turn in 0..turns {
            let sent = pattern(number ^ turn << 32, draws.below(3000) as usize + 1);
            stream.write_all(&sent).await?;
            let mut got = vec![0; sent.len()];
            stream.read_exact(&mut got).await?;
            if got != sent {
                return Ok(Outcome::Wrong(format!("{path}: other bytes in turn {turn}")));
            }
            sleep(Duration::from_millis(draws.below(600))).await;
        }
        Ok::<_, io::Error>(Outcome::Good)
    };
    ended(talk, &failed).await
}

async fn ended(
    talk: impl Future<Output = io::Result<Outcome>>,
    failed: &impl Fn(String) -> Outcome,
) -> Outcome {
    match timeout(PATIENCE, talk).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(problem)) => failed(problem.to_string()),
        Err(_) => failed(format!("not done in {PATIENCE:?}")),
    }
}

async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A client with a small receive buffer that reads some, and waits, and reads some more.
pub(super) async fn slow_reader(clients: &Clients, number: u64, draws: &mut Draws) -> Outcome {
    let length = 200_000 + draws.below(1_500_000) as usize;
    let mut question = Question::get(number, length);
    if draws.below(2) == 0 {
        question.path.insert_str(0, "/u");
    }
    let talk = async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 << 10)?;
        let mut stream = socket.connect(clients.shared.targets.web).await?;
        stream.write_all(get(&question.path, true).as_bytes()).await?;
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; length / 12]);
        loop {
            let count = stream.read(&mut chunk).await?;
            if count == 0 {
                return Ok(judge(&question, &clients.shared, &bytes));
            }
            bytes.extend_from_slice(&chunk[..count]);
            // About three seconds in all, whatever a read brings.
            sleep(Duration::from_millis(3000 * count as u64 / length as u64)).await;
        }
    };
    ended(talk, &|what| question.failed(what)).await
}

/// A request through the relay, which does not read it.
pub(super) async fn relay(clients: &Clients, number: u64, draws: &mut Draws) -> Outcome {
    let question = Question::get(number, draws.below(120_000) as usize);
    let stream = match timeout(PATIENCE, TcpStream::connect(clients.shared.targets.relay)).await {
        Ok(Ok(stream)) => stream,
        other => return Outcome::Failed(String::new(), format!("can't connect: {other:?}")),
    };
    let key = key_of(&stream);
    let failed = |what: String| Outcome::Failed(key.clone(), what);
    let talk = async {
        let mut stream = stream;
        stream.write_all(get(&question.path, false).as_bytes()).await?;
        let mut bytes = read_head(&mut stream).await?.into_bytes();
        let mut content = vec![0; question.expected.len()];
        stream.read_exact(&mut content).await?;
        bytes.extend_from_slice(&content);
        stream.shutdown().await?;
        if stream.read(&mut content).await? > 0 {
            return Ok(Outcome::Wrong(format!("{}: more than was asked for", question.path)));
        }
        Ok(judge(&question, &clients.shared, &bytes))
    };
    match ended(talk, &failed).await {
        Outcome::Failed(_, what) => failed(what),
        other => other,
    }
}

/// Some datagrams that come back; one that got lost is sent again.
pub(super) async fn datagrams(address: SocketAddr, number: u64, draws: &mut Draws) -> Outcome {
    let mut key = String::new();
    let mut got = [0; 2048];
    let talk = async {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        key = socket.local_addr()?.to_string();
        socket.connect(address).await?;
        'turns: for turn in 0..=draws.below(4) {
            let sent = [number.to_be_bytes(), turn.to_be_bytes()].concat();
            for _ in 0..SENDINGS.0 {
                // An error here tells that an earlier one met a closed port.
                let _ = socket.send(&sent).await;
                let wait = async {
                    loop {
                        let count = socket.recv(&mut got).await?;
                        if got[..count] == sent {
                            return Ok::<_, io::Error>(true);
                        }
                        // The answer to one that was sent twice may still come.
                        if count != sent.len() || got[..8] != sent[..8] {
                            return Ok(false);
                        }
                    }
                };
                match timeout(SENDINGS.1, wait).await {
                    Ok(Ok(true)) => {
                        sleep(Duration::from_millis(draws.below(300))).await;
                        continue 'turns;
                    }
                    Ok(Ok(false)) => {
                        return Ok(Some(Outcome::Wrong(format!("UDP client {number}: another's datagram"))));
                    }
                    Ok(Err(_)) | Err(_) => {}
                }
            }
            return Ok(None);
        }
        Ok::<_, io::Error>(Some(Outcome::Good))
    };
    let outcome = talk.await;
    match outcome {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Outcome::Failed(key, format!("no answer to {} datagrams", SENDINGS.0)),
        Err(problem) => Outcome::Failed(key, problem.to_string()),
    }
}

/// A client that leaves before it has what it came for. Nothing that it sees counts.
pub(super) async fn leaver(clients: &Clients, number: u64, draws: &mut Draws) -> Outcome {
    let patience = Duration::from_millis(draws.below(40));
    let way = draws.below(14);
    let _ = match way {
        0..9 => leaves_stream(clients, way, number, patience).await,
        9 => {
            // In the middle of the TLS handshake, mostly.
            leaves_handshake(clients, patience).await
        }
        10 => datagram_without_a_reader(clients.shared.targets.flow).await,
        _ => {
            let front = if way == 11 { Front::Http3 } else { Front::Http2Tls };
            leaves_versioned(clients, front, number, patience).await;
            Ok(())
        }
    };
    Outcome::Good
}

async fn leaves_handshake(clients: &Clients, patience: Duration) -> io::Result<()> {
    let name = ServerName::try_from(HOST).map_err(io::Error::other)?;
    let stream = TcpStream::connect(clients.shared.targets.secure).await?;
    let _ = timeout(patience, TlsConnector::from(clients.tls.clone()).connect(name, stream)).await;
    Ok(())
}

async fn datagram_without_a_reader(flow: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.send_to(b"0123456789", flow).await?;
    Ok(())
}

/// A request, and a slow upload, on a connection that is dropped with them.
async fn leaves_versioned(clients: &Clients, front: Front, number: u64, patience: Duration) {
    let Ok(client) = connect(&clients.shared, front, clients.shared.targets.secure).await else { return };
    let (path, long) = (format!("/r/{number}/300000"), format!("/events/{number}/50"));
    let (Some(mut one), Some(mut other)) = (client.share(), client.share()) else { return };
    let first = timeout(patience, one.ask("GET", &path, &[], Vec::new()));
    let second = timeout(patience * 3, other.ask("GET", &long, &[], Vec::new()));
    let _ = tokio::join!(first, second);
}

async fn leaves_stream(clients: &Clients, way: u64, number: u64, patience: Duration) -> io::Result<()> {
    let targets = &clients.shared.targets;
    let address = match way {
        5 => targets.secure,
        6 => targets.relay,
        _ => targets.web,
    };
    let mut stream = TcpStream::connect(address).await?;
    let big = get(&format!("/r/{number}/400000"), false);
    let upload = format!("POST /u/r/{number}/5 HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 200000\r\n\r\n");
    match way {
        // Half a head, or nothing, and then silence.
        0 => {}
        1 => stream.write_all(&big.as_bytes()[..big.len() / 2]).await?,
        2 | 6 => {
            stream.write_all(big.as_bytes()).await?;
            let mut some = [0; 1000];
            stream.read_exact(&mut some).await?;
        }
        3 => {
            stream.write_all(upload.as_bytes()).await?;
            stream.write_all(&[b'x'; 90_000]).await?;
        }
        4 => stream.write_all(get(&format!("/events/{number}/50"), false).as_bytes()).await?,
        // The beginning of a record of TLS.
        5 => stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await?,
        7 => {
            // A head that never ends: Weir gives up waiting.
            stream.write_all(&big.as_bytes()[..20]).await?;
            let _ = timeout(PATIENCE, stream.read_u8()).await;
        }
        _ => stream.write_all(get(&format!("/c/{}/970?leaver", number % 40), false).as_bytes()).await?,
    }
    sleep(patience).await;
    // Half of them with a reset.
    if number.is_multiple_of(2) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}
