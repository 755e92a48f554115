//! Backends of HTTP/3 that are lost, or leave, while requests wait for them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::quic::wire::Reader;
use weir_tests::dialogue::{INNER, ScriptedBackend, Signal, Weir, Wire, free_address, until};

use super::backends::{ONLY, authority, before, behind_one_that_crashed, get, picked};
use super::origin::Origin;

/// One whose request must not be made twice: it is answered when its connection is given up.
fn waits(weir: &Weir) -> Wire {
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    client
}

/// It used to wait for the end of the connection, which took ten seconds.
#[test]
fn a_request_that_may_be_sent_again_leaves_a_silent_connection_before_that_is_given_up() {
    let (_app, _inner, weir) = behind_one_that_crashed(ONLY);
    let mut first = waits(&weir);
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(first.looks(), 0, "it was answered when the old connection was lost");
    assert_eq!(first.receives_response().status, 502, "it is not known whether it was processed");
    assert_eq!(picked(&weir, "h3"), 2.0);
}

/// A way to an origin. On the first connection nothing gets there any more but its handshake, and what comes
/// back is lost as well once it is cut.
struct LossyWay {
    address: SocketAddr,
    first: Arc<Mutex<FirstConnection>>,
}

/// The connection ids that the client and the origin have chosen for the first connection.
#[derive(Default)]
struct FirstConnection {
    of_client: Vec<u8>,
    of_origin: Vec<u8>,
    is_cut: bool,
}

impl LossyWay {
    fn to(origin: SocketAddr) -> LossyWay {
        let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        far.connect(origin).expect("the origin");
        let way = LossyWay { address: near.local_addr().expect("an address"), first: Arc::default() };
        let client = Arc::new(Mutex::new(None));
        let (first, from) = (way.first.clone(), client.clone());
        let [to_client, to_origin] = [&near, &far].map(|it| it.try_clone().expect("a socket"));
        std::thread::spawn(move || {
            let mut datagram = [0; 2000];
            while let Ok((length, sender)) = near.recv_from(&mut datagram) {
                *from.lock().unwrap() = Some(sender);
                let count = first.lock().unwrap().goes(&datagram[..length]);
                let _ = to_origin.send(&datagram[..count]);
            }
        });
        let first = way.first.clone();
        std::thread::spawn(move || {
            let mut datagram = [0; 2000];
            while let Ok(length) = far.recv(&mut datagram) {
                let client: SocketAddr = client.lock().unwrap().expect("it has sent before");
                if first.lock().unwrap().comes(&datagram[..length]) {
                    let _ = to_client.send_to(&datagram[..length], client);
                }
            }
        });
        way
    }

    fn cut(&self) {
        self.first.lock().unwrap().is_cut = true;
    }
}

impl FirstConnection {
    /// How many bytes of a datagram get to the origin, from its front.
    fn goes(&mut self, datagram: &[u8]) -> usize {
        let Some((_, from)) = ids_of_handshake(datagram) else {
            let is_first = !self.of_origin.is_empty() && datagram[1..].starts_with(&self.of_origin);
            return if is_first { 0 } else { datagram.len() };
        };
        if self.of_client.is_empty() {
            self.of_client.clone_from(&from);
        }
        // What comes right behind it may be a request.
        if from == self.of_client { handshake_bytes(datagram) } else { datagram.len() }
    }

    /// Whether a datagram gets to the client.
    fn comes(&mut self, datagram: &[u8]) -> bool {
        if let Some((to, from)) = ids_of_handshake(datagram) {
            if self.of_origin.is_empty() && to == self.of_client {
                self.of_origin = from;
            }
            return true;
        }
        !(self.is_cut && datagram[1..].starts_with(&self.of_client))
    }
}

/// Whom the first packet of a datagram is to and from, if it is of a handshake (RFC 9000 section 17.2).
fn ids_of_handshake(datagram: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    if datagram[0] & 0x80 == 0 {
        return None;
    }
    let (to, rest) = datagram[6..].split_at(usize::from(datagram[5]));
    Some((to.to_vec(), rest[1..=usize::from(rest[0])].to_vec()))
}

/// How many bytes of a datagram the packets of a handshake take that it begins with.
fn handshake_bytes(datagram: &[u8]) -> usize {
    let mut rest = Reader(datagram);
    while rest.0.first().is_some_and(|first| first & 0x80 != 0) {
        skip_packet(&mut rest).expect("a whole packet");
    }
    datagram.len() - rest.0.len()
}

fn skip_packet(rest: &mut Reader<'_>) -> Option<()> {
    let is_initial = rest.byte()? & 0x30 == 0;
    rest.bytes(4)?;
    for _ in 0..2 {
        let id_bytes = rest.byte()?;
        rest.bytes(id_bytes.into())?;
    }
    if is_initial {
        let token_bytes = rest.number()?;
        rest.bytes(token_bytes as usize)?;
    }
    let bytes = rest.number()?;
    rest.bytes(bytes as usize).map(drop)
}

/// It used to wait for the end of the connection, because a new connection is not treated as one that has
/// aged.
#[test]
fn the_first_request_on_a_connection_leaves_it_too_when_it_is_silent() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let way = LossyWay::to(origin.address);
    let weir = before(&authority, way.address, ONLY);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    until("the connection", || (picked(&weir, "h3") > 0.0).then_some(()));
    let mut other = waits(&weir);
    way.cut();
    client.receives_status(200);
    assert_eq!(other.looks(), 0, "it was answered when the first connection was lost");
    assert_eq!(other.receives_response().status, 502, "it is not known whether it was processed");
    assert_eq!((picked(&weir, "h3"), origin.connections()), (2.0, 2));
}

fn answers(wire: &mut Wire) {
    wire.receives_request();
    wire.answers(200, &[], "hello");
}

/// It moved from one silent connection to the next, because none of them was recognised as lost.
#[test]
fn a_request_that_leaves_a_silent_connection_takes_none_that_nobody_has_heard_on_since() {
    let authority = authority();
    let (app, address) = (ScriptedBackend::start(), free_address());
    let config = INNER.replace("VERSIONS", r#""h3""#).replace("pool =", "limits = { streams = 2 }\npool =");
    let mut inner = authority.setup(&config).with("app", app.address()).with("inner", address).start();
    let weir = before(&authority, address, ONLY);
    // More than fit on one connection.
    let mut clients: Vec<Wire> = (0..3).map(|_| weir.client("web")).collect();
    let mut asked: Vec<Wire> = Vec::new();
    for client in &mut clients {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        asked.push(app.accepts());
    }
    asked.iter_mut().for_each(answers);
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "hello");
    }
    assert_eq!(picked(&weir, "h3"), 2.0);
    inner.signals(Signal::KILL);
    inner.starts_again();
    let (mut first, mut client) = (waits(&weir), weir.client("web"));
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    answers(&mut app.accepts());
    assert_eq!(client.receives_status(200).text(), "hello");
    assert_eq!(first.looks(), 0, "it was answered when the old connections were lost");
    assert_eq!(picked(&weir, "h3"), 3.0);
}

#[test]
fn a_request_that_leaves_a_silent_connection_goes_over_tcp_where_quic_gets_through_no_more() {
    let (_app, mut inner, weir) = behind_one_that_crashed("fall_back_after = \"1s\"");
    inner.signals(Signal::KILL);
    inner.rewrites(&INNER.replace("VERSIONS", r#""h1", "h2""#));
    inner.starts_again();
    let mut first = waits(&weir);
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(first.looks(), 0, "it was answered when the old connection was lost");
    assert_eq!((picked(&weir, "h3"), picked(&weir, "h2")), (1.0, 1.0));
}

/// The error code with which QUIC closed was not read, so it was not noticed that a request had not been
/// processed.
#[test]
fn a_request_above_the_last_of_a_goaway_is_sent_again_though_the_connection_ends_with_it() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("POST /last-words HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    let has = |line: &str| origin.requests().iter().any(|it| it == line).then_some(());
    until("the request to be there", || has("POST /last-words"));
    // So that it finds both at the same time.
    weir.signals(Signal::STOP);
    origin.seen.leave.notify_one();
    until("its end", || has("gone"));
    weir.signals(Signal::CONT);
    assert_eq!(client.receives_status(200).text(), "hello");
    assert_eq!(origin.connections(), 2);
}

/// Many insertions that no answer used made the connection look like a flood, which ended all requests on it.
#[test]
fn clients_that_give_up_their_requests_do_not_end_the_connection_that_others_share() {
    const GIVEN_UP: usize = 300;
    let authority = authority();
    let origin = Origin::inserting(&authority);
    let weir = before(&authority, origin.address, ONLY);
    let mut patient = waits(&weir);
    let comes = |number: usize| {
        until("a request to be there", || (origin.requests().len() >= number).then_some(()));
    };
    comes(1);
    for number in 0..GIVEN_UP {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        comes(number + 2);
        client.resets();
    }
    let stops = || origin.seen.stops.lock().expect("a lock").len();
    until("all to be given up", || (stops() >= GIVEN_UP).then_some(()));
    assert_eq!(patient.looks(), 0, "its connection has ended");
    assert_eq!(origin.connections(), 1);
}
