//! Peers that break the protocol at any place, with any bytes: an error comes of it, never a panic and never
//! a connection that does not end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream as StdStream};
use std::sync::OnceLock;
use std::time::Duration;

use proptest::prelude::*;
use rustls::pki_types::PrivateKeyDer;

use super::*;

/// What a peer does besides what it should.
#[derive(Clone, Debug)]
enum Break {
    /// The byte at this place of all that it sends is changed so.
    Flip(usize, u8),
    /// From this place on it says nothing more.
    Cut(usize),
    /// At this place these bytes are put in between.
    Insert(usize, Vec<u8>),
}

/// Any record: mostly of a type that there is, its length mostly right.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![9 => 20u8..=24, 1 => any::<u8>()];
    let content = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..200),
        // Messages of handshakes, and alerts, that might be taken for such.
        (0u8..=25, 0usize..40)
            .prop_map(|(kind, count)| [&[kind, 0, 0, count as u8][..], &vec![0; count]].concat()),
        (any::<u8>(), any::<u8>()).prop_map(|(level, alert)| vec![level % 3, alert]),
    ];
    (kind, 0u8..=4, content, prop_oneof![9 => Just(0i32), 1 => -3i32..20_000]).prop_map(
        |(kind, minor, content, off)| {
            let length = (content.len() as i32 + off).clamp(0, 0xffff) as u16;
            [&[kind, 3, minor][..], &length.to_be_bytes(), &content].concat()
        },
    )
}

fn break_of_peer() -> impl Strategy<Value = Break> {
    let place = 0usize..2_500;
    prop_oneof![
        (place.clone(), 1u8..).prop_map(|(at, by)| Break::Flip(at, by)),
        place.clone().prop_map(Break::Cut),
        (place, prop::collection::vec(record(), 1..4))
            .prop_map(|(at, records)| Break::Insert(at, records.concat())),
    ]
}

/// A stream that breaks what goes out through it.
struct Broken {
    stream: StdStream,
    sent: usize,
    how: Break,
}

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut said = bytes.to_vec();
        let here = |at: usize| at.checked_sub(self.sent).filter(|at| *at < bytes.len());
        match &self.how {
            Break::Flip(at, by) => here(*at).into_iter().for_each(|at| said[at] ^= by),
            Break::Cut(at) if *at < self.sent => said.clear(),
            Break::Cut(at) => said.truncate(at - self.sent),
            Break::Insert(at, more) => {
                here(*at).into_iter().for_each(|at| drop(said.splice(at..at, more.iter().copied())));
            }
        }
        self.sent += bytes.len();
        self.stream.write_all(&said)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Broken {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.stream.read(room)
    }
}

fn configs() -> &'static (Arc<ServerConfig>, Arc<ClientConfig>, Arc<ClientConfig>) {
    static MADE: OnceLock<(Arc<ServerConfig>, Arc<ClientConfig>, Arc<ClientConfig>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key)
            .unwrap();
        let client = |versions: &[&'static rustls::SupportedProtocolVersion]| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(identity.cert.der().clone()).unwrap();
            let builder = ClientConfig::builder_with_provider(provider.clone());
            let builder = builder.with_protocol_versions(versions).unwrap();
            Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
        };
        (Arc::new(server), client(&[&rustls::version::TLS13]), client(&[&rustls::version::TLS12]))
    })
}

/// Makes a handshake and says a little, as far as the other side lets it.
fn talk(mut stream: Broken, is_server: bool, is_old: bool, behind: &[u8]) {
    let (server, new, old) = configs();
    let mut connection: rustls::Connection = if is_server {
        rustls::ServerConnection::new(server.clone()).unwrap().into()
    } else {
        let config = if is_old { old } else { new };
        rustls::ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap().into()
    };
    let _ = connection.complete_io(&mut stream);
    let _ = connection.writer().write_all(b"hello");
    let _ = connection.complete_io(&mut stream);
    let _ = stream.stream.write_all(behind);
    let _ = stream.stream.shutdown(Shutdown::Write);
    // Reads what comes, so that nobody waits for room.
    let _ = stream.stream.read_to_end(&mut Vec::new());
}

/// Our side: takes what comes until it ends, answers once, and goes on asking after an error.
async fn listen(socket: TcpStream, mut tls: Tls) {
    let mut errors = 0;
    let shaken = std::future::poll_fn(|context| tls.poll_handshake(&socket, context)).await;
    errors += usize::from(shaken.is_err());
    let _ = std::future::poll_fn(|context| tls.poll_send(&socket, context, &[b"answer"])).await;
    while errors < 4 {
        let read = std::future::poll_fn(|context| tls.poll_readable(&socket, context)).await;
        match read.and_then(|()| tls.take_with(4096, |_| {})) {
            Ok(1..) => {}
            Ok(0) => break,
            Err(_) => errors += 1,
        }
    }
    let _ = std::future::poll_fn(|context| tls.poll_close(&socket, context)).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn d4_whatever_a_peer_breaks_comes_to_an_end(
        how in break_of_peer(),
        behind in prop::collection::vec(record(), 0..4),
        is_server in any::<bool>(),
        is_old in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (text, behind) = (format!("{how:?}"), behind.concat());
            let peer = std::thread::spawn(move || {
                let stream = StdStream::connect(address).unwrap();
                // Where something was left out both would wait for each other.
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                talk(Broken { stream, sent: 0, how }, !is_server, is_old, &behind);
            });
            let (socket, _) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let socket = TcpStream::from_std(socket).unwrap();
            let buffers = Buffers::new(1 << 20);
            let (server, new, old) = configs();
            let tls = if is_server {
                Tls::server(server.clone(), &buffers, None)
            } else {
                let config = if is_old { old } else { new };
                Tls::client(config.clone(), "localhost".try_into().unwrap(), &buffers)
            };
            let ended = tokio::time::timeout(Duration::from_secs(10), listen(socket, tls.unwrap())).await;
            assert!(ended.is_ok(), "it hangs: {text}");
            peer.join().unwrap();
        });
    }
}
