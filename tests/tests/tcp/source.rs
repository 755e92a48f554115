//! Whose address backends see: that of the pool, or the client's own.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_tests::dialogue::{
    NameServer, ONE_POOL, PATIENCE, Setup, Unreachable, Weir, datagram_socket, free_address, run_tool, tool,
    until, weir_binary,
};
use weir_tests::network::Network;

/// A backend that answers each request and notes whom it comes from.
struct Backend {
    address: SocketAddr,
    peers: Arc<Mutex<Vec<IpAddr>>>,
}

impl Backend {
    fn start() -> Backend {
        Backend::start_at("127.0.0.1:0")
    }

    fn start_at(address: impl ToSocketAddrs) -> Backend {
        let listener = TcpListener::bind(address).expect("an address");
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

/// Backends that listen in the first server's host, which is on a network of its own.
fn far_backends(network: &Network) -> [Backend; 2] {
    network.on("server1", || [0, 1].map(|_| Backend::start_at("10.50.11.2:0")))
}

fn is_blamed(weir: &Weir, pool: &str) -> bool {
    let counted = |name: &str| weir.metric(name, &[("pool", pool)]);
    counted("weir_backend_failures_total") + counted("weir_backend_ejections_total") > 0.0
}

/// `127.0.0.1` can be the source of nothing that leaves this host (EINVAL of connect(2)). Whoever asks from
/// here had a backend ejected for everybody.
#[test]
fn a_client_whose_address_can_be_no_source_has_no_backend_ejected() {
    let network = Network::enter(1);
    let backends = far_backends(&network);
    // Answers to clients come back here, and are this host's own.
    network.run("weir", &["ip", "rule", "add", "iif", "to_server1", "lookup", "100"]);
    network.run("weir", &["ip", "route", "add", "local", "default", "dev", "lo", "table", "100"]);
    let list = backends.each_ref().map(|it| format!("\"{}\"", it.address)).join(", ");
    let passive = "health = { check = \"off\", passive = { errors = 1 } }";
    let pools = ["app", "names"].map(|name| {
        format!("[pool.{name}]\nbackends = [{list}]\nsource = \"client\"\nbalance = \"first\"\n{passive}\n")
    });
    let config = format!("{LISTENERS}{}", pools.concat());
    let mut setup = Setup::of(&config);
    for name in ["web", "raw", "dns"] {
        setup = setup.with(name, format!("0.0.0.0:{}", free_address().port()));
    }
    let weir = setup.start();
    let port_of = |listener: &str| weir.address(listener).port();
    let asks = |host: &str, to: &str, listener: &str| {
        let url = format!("http://{to}:{}/", port_of(listener));
        let curl =
            ["curl", "-s", "--noproxy", "*", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"];
        let script = format!("{} '{url}' || true", curl.map(|word| format!("'{word}'")).join(" "));
        network.run(host, &["sh", "-c", &script])
    };
    let client = UdpSocket::bind("127.0.0.1:0").expect("an address");
    for _ in 0..3 {
        assert_eq!(asks("weir", "127.0.0.1", "web"), "502");
        assert_eq!(asks("weir", "127.0.0.1", "raw"), "000");
        client.send_to(b"hello", ("127.0.0.1", port_of("dns"))).expect("sent");
    }
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "no_backend")], 3.0);
    assert!(!is_blamed(&weir, "app") && !is_blamed(&weir, "names"), "{}", weir.story());
    // Everybody else is served, by the first.
    for listener in ["web", "raw"] {
        assert_eq!(asks("client", "10.50.1.1", listener), "200");
    }
    assert_eq!(backends[0].peers(), ["10.50.1.2".parse::<IpAddr>().unwrap(); 2]);
}

/// Answers to a client that is on the backends' own network go past Weir, and so nothing it asks for comes
/// about: that is known of the client, and not of backends.
#[test]
fn a_backend_is_ejected_by_connections_of_several_clients_that_come_to_nothing_and_by_no_ones_alone() {
    let (silent, good) = (Unreachable::start(), Backend::start());
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [listener.raw]
        protocol = "tcp"
        bind = "@raw"
        pool = "app"
        [pool.app]
        backends = ["@silent", "@good"]
        balance = "first"
        source = "client"
        timeout = { connect = "300ms" }
        health = { check = "off", passive = { errors = 3, within = "1h", eject = "1h" } }
    "#;
    let weir = Setup::of(config).with("silent", silent.address()).with("good", good.address).start();
    let counted = |name: &str| weir.metric(name, &[("pool", "app")]);
    for _ in 0..3 {
        assert_eq!(curls(&weir, "web", "127.0.0.5"), "200", "the other backend serves");
        assert_eq!(curls(&weir, "raw", "127.0.0.5"), "200");
    }
    assert_eq!(counted("weir_backend_connect_failures_total"), 6.0);
    assert_eq!(counted("weir_backend_failures_total"), 1.0);
    assert_eq!(counted("weir_backend_ejections_total"), 0.0, "{}", weir.story());
    assert_eq!(curls(&weir, "raw", "127.0.0.6"), "200");
    assert_eq!(counted("weir_backend_ejections_total"), 0.0, "{}", weir.story());
    assert_eq!(curls(&weir, "web", "127.0.0.7"), "200");
    assert_eq!(counted("weir_backend_ejections_total"), 1.0, "three clients could not reach it");
}

#[test]
fn connections_that_come_to_nothing_for_one_client_open_no_breaker() {
    let silent = Unreachable::start();
    let config = format!(
        "{ONE_POOL}source = \"client\"\ntimeout = {{ connect = \"300ms\" }}\nretry = {{ attempts = 0 }}\n\
         health = {{ check = \"off\" }}\nbreaker = {{ errors = 0.5, of = 2, within = \"1h\", for = \"1h\" }}\n"
    );
    let weir = Setup::of(&config).with("app", silent.address()).start();
    for _ in 0..4 {
        let told = curls(&weir, "web", "127.0.0.5");
        assert!(told.ends_with("504"), "{told}");
    }
    assert_eq!(weir.metric("weir_breaker_opened_total", &[("pool", "app")]), 0.0);
}

#[test]
fn a_client_comes_to_the_address_of_its_family_whichever_is_in_use() {
    let (server, port) = (NameServer::start(), free_address().port());
    let name = "app.weir.test";
    server.says(name, &["1 AAAA ::1"]);
    let (four, six) = (Backend::start_at(("127.0.1.1", port)), Backend::start_at(("::1", port)));
    let names = UdpSocket::bind(("127.0.1.1", port)).expect("an address");
    names.set_read_timeout(Some(PATIENCE)).expect("a timer");
    let keys = "source = \"client\"\nhealth = { check = \"off\" }\nretry = { attempts = 0 }";
    let config = format!(
        "{LISTENERS}[dns]\nresolvers = [\"@server\"]\nmin_ttl = \"100ms\"\n\
         [listener.six]\nbind = \"@six\"\npool = \"app\"\n\
         [listener.unix]\nbind = \"unix:@dir/web.sock\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{name}:{port}\"]\n{keys}\n\
         [pool.names]\nbackends = [\"{name}:{port}\"]\n{keys}\n"
    );
    let own = TcpListener::bind("[::1]:0").and_then(|it| it.local_addr()).expect("an address");
    let weir = Setup::of(&config).with("server", server.address()).with("six", own).start();
    assert_eq!(curls(&weir, "six", "::1"), "200");
    server.says(name, &["1 A 127.0.1.1", "1 AAAA ::1"]);
    let resolved = || weir.admin().reads("/v1/pools/app").json()["backends"][0]["resolved"].clone();
    until("the other address to be known", || (curls(&weir, "web", "127.0.0.5") == "200").then_some(()));
    for _ in 0..2 {
        assert_eq!(curls(&weir, "web", "127.0.0.5"), "200");
        assert_eq!(curls(&weir, "raw", "127.0.0.6"), "200");
        assert_eq!(datagram_from(&weir, &names, "127.0.0.7"), here(7));
        assert_eq!(curls(&weir, "six", "::1"), "200");
    }
    assert!(four.peers().iter().all(|peer| [here(5), here(6)].contains(peer)), "{:?}", four.peers());
    assert_eq!(six.peers(), ["::1".parse::<IpAddr>().unwrap(); 3]);
    // Nobody's address that was in use was moved by who could not use it.
    assert_eq!(weir.metric("weir_dns_other_address_total", &[]), 0.0);
    assert_eq!(resolved(), format!("[::1]:{port}"));
    // Of a Unix socket's client there is no address to leave from.
    let socket = format!("{}/web.sock", weir.dir().display());
    let arguments = ["-s", "--noproxy", "*", "--unix-socket", &socket, "-w", "%{http_code}", "http://a/"];
    assert_eq!(run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE).succeeded(), "200");
}

/// Each datagram had the backend blamed while the interface was away, and so it was ejected when that was
/// back.
#[test]
fn a_flow_outlasts_the_interface_of_its_pool_and_nobody_is_blamed_meanwhile() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    network.greets(1, 8081);
    let config = format!(
        "[listener.dns]\nprotocol = \"udp\"\nbind = \"10.50.1.1:53\"\npool = \"names\"\n\
         [pool.names]\nbackends = [\"{}\", \"{}\"]\ninterface = \"to_server1\"\n\
         health = {{ check = \"off\", passive = {{ errors = 1, eject = \"1h\" }} }}\n",
        network.server(1, 8080, false),
        network.server(1, 8081, false)
    );
    let weir = Setup::of(&config).start();
    let client = network.on("client", || UdpSocket::bind("0.0.0.0:0").expect("an address"));
    client.set_read_timeout(Some(Duration::from_millis(100))).expect("a timer");
    let asks = |word: &str| {
        client.send_to(word.as_bytes(), "10.50.1.1:53").expect("sent");
        let mut answer = [0; 64];
        let count = client.recv(&mut answer).ok()?;
        (answer[..count] == *format!("1\n{word}").as_bytes()).then_some(())
    };
    until("an answer", || asks("before"));
    network.run("weir", &["ip", "link", "del", "to_server1"]);
    let received = || weir.metric("weir_bytes_total", &[("listener", "dns"), ("direction", "received")]);
    let before = received();
    for _ in 0..5 {
        assert_eq!(asks("away"), None);
    }
    until("they have come", || (received() >= before + 20.0).then_some(()));
    assert!(!is_blamed(&weir, "names"), "{}", weir.story());
    network.links_again("server1", 11);
    until("an answer by the new interface", || asks("again"));
    assert!(!is_blamed(&weir, "names"), "{}", weir.story());
    assert_eq!(weir.metric("weir_connections_total", &[("listener", "dns")]), 1.0, "the flow is the same");
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
    // It was called good, and nothing was said.
    let check = |under: &[&str]| {
        let (program, config) = (weir_binary().display().to_string(), weir.config_path());
        let words: Vec<&str> = under.iter().copied().chain([program.as_str(), "check", &config]).collect();
        run_tool(Path::new(words[0]), &words[1..], b"", PATIENCE)
    };
    let checked = check(&under);
    assert_eq!(checked.code, 0, "it may be for another machine: {checked:?}");
    let warned = |told: &str| told.contains("warning: pool `app`") && told.contains("CAP_NET_ADMIN");
    assert!(warned(&checked.stderr), "{checked:?}");
    let allowed = check(&[]);
    assert!(allowed.code == 0 && allowed.stderr.is_empty(), "{allowed:?}");
}

/// Connections that are allowed and never came about were 502 for clients, and nobody had said so before.
#[test]
fn a_limit_that_is_more_than_there_are_ports_is_warned_of() {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("a setting");
    let range = read("ip_local_port_range");
    let ends: Vec<u32> = range.split_whitespace().map(|end| end.parse().expect("a number")).collect();
    let reserved: Vec<(u32, u32)> = read("ip_local_reserved_ports")
        .trim()
        .split_terminator(',')
        .map(|part| part.split_once('-').unwrap_or((part, part)))
        .map(|(first, last)| (first.parse().expect("a port"), last.parse().expect("a port")))
        .collect();
    let is_given = |port: &u32| !reserved.iter().any(|(first, last)| (first..=last).contains(&port));
    let room = (ends[0]..=ends[1]).filter(is_given).count();
    let config = |one: usize, other: usize, more: &str| {
        format!(
            "[listener.web]\nbind = \"@web\"\npool = \"app\"\n[[listener.web.route]]\npath = \"/other\"\npool = \"other\"\n\
             [pool.app]\nbackends = [{{ address = \"@app\", max_connections = {one} }}]\nhealth = \"off\"\n{more}\
             [pool.other]\nbackends = [{{ address = \"@app\", max_connections = {other} }}]\nhealth = \"off\"\n"
        )
    };
    let backend = Backend::start();
    let too_many = format!("{} may have {} connections", backend.address, room + 1);
    let mut weir = Setup::of(&config(room, 1, "")).with("app", backend.address).start();
    for text in [&too_many, "pools `app`, `other`", &format!("at most {room} can be open")] {
        assert!(weir.stderr().contains(text), "no word of {text:?}: {}", weir.story());
    }
    let checked = weir.command(&["check"]);
    assert!(checked.code == 0 && checked.stderr.contains(&too_many), "{checked:?}");
    for fitting in [config(room - 1, 1, ""), config(room, 1, "source = \"127.0.0.1\"\n")] {
        weir.rewrites(&fitting);
        let checked = weir.command(&["check"]);
        assert!(checked.code == 0 && checked.stderr.is_empty(), "{checked:?}");
        let reloaded = weir.command(&["reload"]);
        assert!(reloaded.code == 0 && reloaded.stderr.is_empty(), "{reloaded:?}");
    }
    weir.rewrites(&config(room, 1, ""));
    let reloaded = weir.command(&["reload"]);
    assert!(reloaded.code == 0 && reloaded.stderr.contains(&too_many), "{reloaded:?}");
}
