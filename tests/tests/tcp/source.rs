//! Whose address backends see: that of the pool, or the client's own.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{ONE_POOL, PATIENCE, Setup, Weir, datagram_socket, run_tool, tool, until};

/// A backend that answers each request and notes whom it comes from.
struct Backend {
    address: SocketAddr,
    peers: Arc<Mutex<Vec<IpAddr>>>,
}

impl Backend {
    fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = listener.local_addr().expect("an address");
        let peers = Arc::new(Mutex::new(Vec::new()));
        let noting = peers.clone();
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                noting.lock().unwrap().push(peer.ip());
                std::thread::spawn(move || {
                    let mut request = [0; 4096];
                    while stream.read(&mut request).is_ok_and(|count| count > 0) {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    }
                });
            }
        });
        Backend { address, peers }
    }

    /// Everybody that has connected.
    fn peers(&self) -> Vec<IpAddr> {
        self.peers.lock().unwrap().clone()
    }
}

const LISTENERS: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[listener.raw]
protocol = "tcp"
bind = "@raw"
pool = "app"
[listener.dns]
protocol = "udp"
bind = "@dns"
pool = "names"
"#;

fn start(backend: &Backend, names: &UdpSocket, keys: &str) -> Weir {
    let config = format!(
        "{LISTENERS}[pool.app]\nbackends = [\"@app\"]\nhealth = {{ check = \"tcp\", interval = \"100ms\" }}\n{keys}\n\
         [pool.names]\nbackends = [\"@names\"]\nhealth = {{ check = \"off\" }}\n{keys}\n"
    );
    let names = names.local_addr().expect("an address");
    Setup::of(&config).with("app", backend.address).with("names", names).start()
}

/// Has curl ask from an address; the status.
fn curls(weir: &Weir, listener: &str, from: &str) -> String {
    let url = format!("http://{}/", weir.address(listener));
    let arguments =
        ["--silent", "--globoff", "--noproxy", "*", "--interface", from, "--write-out", "%{http_code}", &url];
    run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE).succeeded().to_owned()
}

/// Sends a datagram from an address; whom the backend sees.
fn datagram_from(weir: &Weir, names: &UdpSocket, from: &str) -> IpAddr {
    let client = UdpSocket::bind((from, 0)).expect("an address of this machine");
    client.send_to(b"hello", weir.address("dns")).expect("sent");
    let mut datagram = [0; 16];
    let (count, seen) = names.recv_from(&mut datagram).expect("a datagram");
    assert_eq!(&datagram[..count], b"hello");
    names.send_to(b"back", seen).expect("sent");
    client.set_read_timeout(Some(PATIENCE)).expect("a timer");
    let count = client.recv(&mut datagram).expect("an answer");
    assert_eq!(&datagram[..count], b"back");
    seen.ip()
}

fn here(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

#[test]
fn requests_sessions_datagrams_and_probes_leave_from_the_address_of_the_pool() {
    let (backend, names) = (Backend::start(), datagram_socket());
    let weir = start(&backend, &names, "source = [\"127.0.0.77\", \"::1\"]\ninterface = \"lo\"");
    assert_eq!(curls(&weir, "web", "127.0.0.5"), "200");
    assert_eq!(curls(&weir, "raw", "127.0.0.5"), "200");
    assert_eq!(datagram_from(&weir, &names, "127.0.0.5"), here(77));
    let peers =
        until("probes, a request and a session", || Some(backend.peers()).filter(|peers| peers.len() >= 4));
    assert!(peers.iter().all(|peer| *peer == here(77)), "{peers:?}");
}

/// Loopback addresses are all this machine's, so that answers come back without routes that lead them here.
#[test]
fn backends_see_the_clients_own_address_and_no_connection_of_one_client_serves_another() {
    let (backend, names) = (Backend::start(), datagram_socket());
    let weir = start(&backend, &names, "source = \"client\"");
    for client in [5, 6, 5] {
        let from = here(client).to_string();
        assert_eq!(curls(&weir, "web", &from), "200");
        assert_eq!(curls(&weir, "raw", &from), "200");
        assert_eq!(datagram_from(&weir, &names, &from), here(client));
    }
    // Probes have no client, and leave from where the kernel has them leave.
    let of_clients: Vec<IpAddr> = backend.peers().into_iter().filter(|peer| *peer != here(1)).collect();
    assert_eq!(of_clients, [5, 5, 6, 6, 5, 5].map(here));
}

#[test]
fn an_address_that_is_not_here_is_told_and_is_not_the_backends_fault() {
    let backend = Backend::start();
    let config = format!(
        "{ONE_POOL}source = \"192.0.2.1\"\nhealth = {{ check = \"off\", passive = {{ errors = 1 }} }}"
    );
    let weir = Setup::of(&config).with("app", backend.address).start();
    for _ in 0..3 {
        assert!(curls(&weir, "web", "127.0.0.1").ends_with("502"));
    }
    assert_eq!(weir.metric("weir_backend_ejections_total", &[("pool", "app")]), 0.0);
    assert!(backend.peers().is_empty());
}

/// Every request got 502 from a pool whose backends were `ready`, and nothing said why.
#[test]
fn what_cannot_leave_is_told_in_the_log_and_the_status_of_its_pool() {
    let backend = Backend::start();
    let config = format!("{ONE_POOL}source = \"192.0.2.1\"\nhealth = {{ check = \"off\" }}");
    let weir = Setup::of(&config).with("app", backend.address).start();
    for _ in 0..20 {
        assert!(curls(&weir, "web", "127.0.0.1").ends_with("502"));
    }
    let said = "can leave from its pool's `source` or `interface`";
    until("it to be told", || weir.stderr().contains(said).then_some(()));
    assert_eq!(weir.stderr().matches(said).count(), 1, "once a minute: {}", weir.stderr());
    let told = weir.admin().reads("/v1/pools/app").json()["cannot_leave"].to_string();
    assert!(told.contains("no address of this host"), "{told}");
    let shown = weir.command(&["status"]);
    assert!(shown.stdout.contains("can leave from its pool's"), "{shown:?}");
}

#[test]
fn who_may_not_take_a_clients_address_does_not_start() {
    let setpriv = tool("setpriv", "util-linux").display().to_string();
    let without = ["-net_admin,-net_raw"; 2];
    let under = [&setpriv, "--bounding-set", without[0], "--inh-caps", without[1], "--no-new-privs"];
    let config = format!("{ONE_POOL}source = \"client\"\n");
    let backend = Backend::start();
    let mut weir = Setup::of(&config).with("app", backend.address).under(&under).launch();
    assert!(!weir.exits().success(), "{}", weir.story());
    let said = weir.stderr();
    assert!(said.contains("CAP_NET_ADMIN") && said.contains("`app`"), "{said}");
}
