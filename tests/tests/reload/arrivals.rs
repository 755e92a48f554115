//! Clients that arrive at the very moment at which a listening socket is closed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{
    PATIENCE, Sets, Setup, Signal, Weir, datagram_socket, free_address, until, until_within,
};
use weir_tests::network::Network;
use weir_tests::raw::{ACK, Listener, RST, SYN, Segment, Sender};

/// A listener at this address, with an answer that needs no backend.
fn config(bind: &str) -> String {
    format!(
        "[listener.web]\nbind = \"{bind}\"\n[[listener.web.route]]\n\
         respond = {{ status = 200, body = \"here\" }}\n"
    )
}

/// The outcomes of all clients.
#[derive(Default)]
pub(super) struct Arrivals {
    is_over: AtomicBool,
    served: AtomicU64,
    refused: AtomicU64,
    lost: Mutex<Vec<String>>,
}

impl Arrivals {
    /// Connects again and again until it is over. A client that is refused has lost nothing; one that was
    /// accepted must be served.
    fn come(&self, to: SocketAddr) {
        while !self.is_over.load(Ordering::Relaxed) {
            let Ok(stream) = TcpStream::connect(to) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            match ask(stream) {
                Ok(answer) if answer.ends_with("here") => {
                    self.served.fetch_add(1, Ordering::Relaxed);
                }
                other => self.lost.lock().expect("no panic").push(format!("{other:?}")),
            }
        }
    }

    /// Has clients connect without pause while `change` runs.
    fn during(to: SocketAddr, change: impl FnOnce(&Arrivals)) -> Arrivals {
        Arrivals::during_from(&|come| come(), to, change)
    }

    /// As [`Self::during`], with the clients where `there` runs them.
    pub(super) fn during_from(
        there: &(dyn Fn(&(dyn Fn() + Sync)) + Sync),
        to: SocketAddr,
        change: impl FnOnce(&Arrivals),
    ) -> Arrivals {
        let arrivals = Arrivals::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| there(&|| arrivals.come(to)));
            }
            // Also if it panics.
            let _end = Sets(&arrivals.is_over);
            change(&arrivals);
        });
        let lost = arrivals.lost.lock().expect("no panic").clone();
        let (served, refused) =
            (arrivals.served.load(Ordering::Relaxed), arrivals.refused.load(Ordering::Relaxed));
        println!("{served} served, {refused} refused, {} lost", lost.len());
        assert_eq!(lost, [] as [String; 0], "of {served} that were served");
        arrivals
    }

    /// Connections that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until some more were served.
    pub(super) fn go_on(&self) {
        let wanted = self.served.load(Ordering::Relaxed) + 50;
        until("some more to be served", || (self.served.load(Ordering::Relaxed) >= wanted).then_some(()));
    }
}

fn ask(mut stream: TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// One address and all addresses, in turn, at the same port: each change opens sockets and closes others.
fn binds(port: u16) -> impl Iterator<Item = String> {
    ["127.0.0.1", "0.0.0.0"].into_iter().cycle().map(move |host| format!("{host}:{port}"))
}

fn start(port: u16) -> Weir {
    let mut weir = Setup::of(&config(&format!("127.0.0.1:{port}"))).start();
    weir.knows("web", SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    weir
}

#[test]
fn no_arrival_is_lost_or_refused_while_reloads_change_the_bind() {
    let port = free_address().port();
    let mut weir = start(port);
    let arrivals = Arrivals::during(weir.address("web"), |arrivals| {
        for bind in binds(port).skip(1).take(12) {
            weir.reloads(&config(&bind));
            arrivals.go_on();
        }
    });
    assert_eq!(arrivals.refused.load(Ordering::Relaxed), 0);
}

/// The flow goes on sending through the socket of the specific address, which the kernel would prefer.
#[test]
fn datagrams_reach_the_socket_of_all_addresses_while_a_flow_of_one_goes_on() {
    let backend = datagram_socket();
    backend.set_read_timeout(Some(PATIENCE)).expect("a timer");
    let to = free_address();
    let config = |bind: SocketAddr| {
        format!(
            "[listener.dns]\nprotocol = \"udp\"\nbind = \"{bind}\"\npool = \"names\"\n\
             [pool.names]\nbackends = [\"{}\"]\nhealth = {{ check = \"off\" }}\n",
            backend.local_addr().expect("an address")
        )
    };
    let asks = |client: &UdpSocket| {
        client.set_read_timeout(Some(PATIENCE)).expect("a timer");
        client.send_to(b"who", to).expect("sent");
        let (count, flow) = backend.recv_from(&mut [0; 16]).expect("a datagram");
        backend.send_to(&[7; 16][..count], flow).expect("sent");
        assert_eq!(client.recv(&mut [0; 16]).expect("an answer"), count);
        flow
    };
    let mut weir = Setup::of(&config(to)).start();
    let first = datagram_socket();
    let flow = asks(&first);
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
        weir.reloads(&config(SocketAddr::from((ip, to.port()))));
        asks(&datagram_socket());
        // Datagrams that the backend sends on the earlier flow still reach their client.
        backend.send_to(b"more", flow).expect("sent");
        assert_eq!(first.recv(&mut [0; 16]).expect("more"), 4);
    }
}

/// Sends USR2, and waits until the old process has ended.
fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(old)).then_some(()));
}

#[test]
fn no_arrival_is_lost_or_refused_while_upgrades_change_the_bind() {
    let port = free_address().port();
    let mut weir = start(port);
    let arrivals = Arrivals::during(weir.address("web"), |arrivals| {
        for bind in binds(port).skip(1).take(4) {
            weir.rewrites(&config(&bind));
            upgrades(&weir);
            arrivals.go_on();
        }
    });
    assert_eq!(arrivals.refused.load(Ordering::Relaxed), 0);
}

#[test]
fn an_upgrade_that_keeps_the_bind_loses_and_refuses_no_arrival() {
    let weir = start(free_address().port());
    let arrivals = Arrivals::during(weir.address("web"), |arrivals| {
        for _ in 0..4 {
            upgrades(&weir);
            arrivals.go_on();
        }
    });
    assert_eq!(arrivals.refused.load(Ordering::Relaxed), 0);
}

#[test]
fn who_was_let_in_before_a_term_is_served_and_who_comes_later_is_refused() {
    let mut weir = start(free_address().port());
    Arrivals::during(weir.address("web"), |arrivals| {
        for _ in 0..4 {
            arrivals.go_on();
            weir.signals(Signal::TERM);
            weir.starts_again();
        }
        arrivals.go_on();
    });
}

#[test]
fn a_listener_comes_back_to_an_address_that_it_left_a_moment_ago() {
    let port = free_address().port();
    let mut weir = start(port);
    // The withdrawn socket still holds the port each time.
    for bind in binds(port).skip(1).take(6) {
        weir.reloads(&config(&bind));
        let stream = TcpStream::connect(weir.address("web")).expect("somebody listens");
        assert!(ask(stream).expect("an answer").ends_with("here"), "{bind}");
    }
}

/// A client that does the TCP handshake by hand.
struct Handshake {
    sender: Sender,
    listener: Listener,
    source: SocketAddr,
    to: SocketAddr,
}

impl Handshake {
    fn sends(&self, flags: u8, numbers: [u32; 2], payload: &[u8]) {
        let [sequence, acknowledgement] = numbers;
        let (source, destination) = (self.source, self.to);
        let segment = Segment { source, destination, flags, sequence, acknowledgement, payload };
        self.sender.sends(&segment.packet()).expect("sends");
    }

    /// The next segment to us: flags, sequence number and payload.
    fn hears(&self) -> (u8, u32, Vec<u8>) {
        loop {
            let packet = self.listener.hears(PATIENCE).expect("a packet");
            if packet[0] != 0x45 || packet[9] != 6 || packet[22..24] != self.source.port().to_be_bytes() {
                continue;
            }
            let tcp = &packet[20..];
            let number = u32::from_be_bytes(tcp[4..8].try_into().expect("four bytes"));
            return (tcp[13], number, tcp[usize::from(tcp[12] >> 4) * 4..].to_vec());
        }
    }

    /// The same client from another port.
    fn from(self, port: u16) -> Handshake {
        Handshake { source: SocketAddr::new(self.source.ip(), port), ..self }
    }
}

/// A reload closes the socket between the second and the third segment of the handshake.
#[test]
fn a_handshake_under_way_when_its_listener_goes_is_served() {
    let network = Network::enter(0);
    // Answers to this unused address are routed back to the client's side, and end there.
    network.run("weir", &["ip", "route", "add", "198.18.0.0/15", "via", "10.50.1.2"]);
    let mac = network.run("client", &["cat", "/sys/class/net/uplink/address"]);
    let mac: Vec<u8> = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect();
    let mut weir = Setup::of(&config("10.50.1.1:80")).start();
    let handshake = network.on("client", || Handshake {
        sender: Sender::here().expect("root"),
        listener: Listener::here(mac.try_into().expect("six bytes")).expect("root"),
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), 4000),
        to: "10.50.1.1:80".parse().expect("an address"),
    });
    handshake.sends(SYN, [1000, 0], b"");
    let (flags, number, _) = handshake.hears();
    assert_eq!(flags, SYN | ACK);

    weir.reloads(&config("10.50.1.1:81"));
    handshake.sends(ACK, [1001, number.wrapping_add(1)], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut heard = String::new();
    while !heard.ends_with("here") {
        let (flags, _, payload) = handshake.hears();
        assert_eq!(flags & RST, 0, "it was reset after {heard:?}");
        heard += std::str::from_utf8(&payload).expect("text");
    }

    // New connections to it are refused.
    let late = handshake.from(4001);
    late.sends(SYN, [1000, 0], b"");
    assert_eq!(late.hears().0, RST | ACK);
}
