//! Listeners that are bound to interfaces: clients in several network namespaces, each by its own. Needs
//! root.

use std::net::{SocketAddr, UdpSocket};

use weir_tests::dialogue::http3::{Http3, Outcome, headers, request};
use weir_tests::dialogue::quic::trusting;
use weir_tests::dialogue::{PATIENCE, Setup, Signal, Weir, Wire, tool, until};
use weir_tests::network::Network;

use super::super::tls::Authority;
use super::arrivals::Arrivals;

/// An address of Weir's host that is on no link.
const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::10";

/// Clients in three hosts: by `to_client`, `to_server1` and `to_server2` they come to the same addresses.
fn network() -> Network {
    let network = Network::enter(2);
    for (address, interface) in [
        (format!("{VIP}/32"), "lo"),
        (format!("{VIP6}/128"), "lo"),
        ("fe80::53/64".to_owned(), "to_client"),
        ("fe80::53/64".to_owned(), "to_server1"),
    ] {
        let nodad: &[&str] = if address.contains("::") { &["nodad"] } else { &[] };
        network.run("weir", &[&["ip", "addr", "add", &address, "dev", interface][..], nodad].concat());
    }
    network
}

/// A listener of HTTP that answers by its name.
fn says_its_name(name: &str, keys: &str) -> String {
    format!(
        "[listener.{name}]\n{keys}\n[[listener.{name}.route]]\nrespond = {{ status = 200, body = \"{name} here\" }}\n"
    )
}

/// What a client in a host is told.
fn hears(network: &Network, host: &str, to: &str) -> String {
    let url = format!("http://{to}/");
    network.run(host, &["curl", "-sS", "-g", "--noproxy", "*", "--max-time", "20", &url])
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(VIP.parse().expect("an address"), port)
}

#[test]
fn listeners_at_one_address_get_what_comes_by_their_interfaces() {
    let network = network();
    let binds = format!("bind = [\"{VIP}:80\", \"[{VIP6}]:80\"");
    let config = [
        says_its_name("one", &format!("{binds}, \"[fe80::53]:80\"]\ninterface = \"to_client\"")),
        says_its_name("two", &format!("{binds}, \"[fe80::53]:80\"]\ninterface = [\"to_server1\"]")),
        // Whatever comes by others: the exact address is looked for first.
        says_its_name("rest", "bind = [\"0.0.0.0:80\", \"[::]:80\"]"),
    ]
    .concat();
    let weir = Setup::of(&config).start();
    for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        for (host, name) in [("client", "one"), ("server1", "two"), ("server2", "rest"), ("weir", "rest")] {
            assert_eq!(hears(&network, host, &to), format!("{name} here"), "from {host} to {to}");
        }
    }
    for (host, name) in [("client", "one"), ("server1", "two")] {
        assert_eq!(hears(&network, host, "[fe80::53%25uplink]:80"), format!("{name} here"));
    }
    let status = weir.admin().reads("/v1/status").json();
    let interfaces = |number: usize| status["listeners"][number]["interfaces"].to_string();
    assert_eq!([0, 1, 2].map(interfaces), ["[\"to_client\"]", "[\"to_server1\"]", "[]"]);
    let shown = weir.command(&["status"]);
    assert!(shown.stdout.contains("proxy at to_client"), "{shown:?}");
    let explained = weir.command(&["explain", "http", "GET", &format!("http://{VIP}/")]);
    assert!(explained.stdout.contains("at port 80 by to_client, the first of several"), "{explained:?}");
    assert!(weir.stderr().contains("to_server1"), "{}", weir.stderr());
}

#[test]
fn what_the_guide_has_serves_each_interface() {
    let network = network();
    let page = include_str!("../../../docs/guide/tcp-and-udp.md");
    let (_, below) = page.split_once("\n## By which interface clients come\n").expect("the heading");
    let (_, config) = below.split_once("```toml\n").expect("a config below it");
    let mut config = config.split_once("```").expect("its end").0.to_owned();
    for (interface, real) in [("eth0", "to_client"), ("eth1", "to_server1"), ("eth2", "to_server2")] {
        config = config.replace(interface, real);
    }
    let _weir = Setup::of(&config).start();
    for (host, body) in [("client", "the shop"), ("server1", "the office"), ("server2", "the office")] {
        for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
            assert_eq!(hears(&network, host, &to), body, "from {host} to {to}");
        }
    }
}

#[test]
fn flows_of_datagrams_come_and_go_by_the_interface_of_their_listener() {
    let network = network();
    network.greets(1, 8080);
    network.greets(2, 8080);
    let mut config = String::new();
    for (name, interface, server) in [("one", "to_client", 1), ("two", "to_server1", 2)] {
        config += &format!(
            "[listener.{name}]\nprotocol = \"udp\"\nbind = \"{VIP}:53\"\ninterface = \"{interface}\"\npool = \"{name}\"\n\
             [pool.{name}]\nbackends = [\"{}\"]\nhealth = {{ check = \"off\" }}\n",
            network.server(server, 8080, false)
        );
    }
    let weir = Setup::of(&config).start();
    for (host, expected) in [("client", "1\nhello"), ("server1", "2\nhello")] {
        let socket = network.on(host, || UdpSocket::bind("0.0.0.0:0").expect("an address"));
        socket.set_read_timeout(Some(PATIENCE)).expect("a timer");
        socket.send_to(b"hello", address(53)).expect("sent");
        let mut answer = [0; 64];
        let (count, from) = socket.recv_from(&mut answer).expect("an answer");
        assert_eq!((&answer[..count], from), (expected.as_bytes(), address(53)), "to {host}");
    }
    weir.reaches("weir_connections_total", &[("listener", "two")], 1.0);
}

/// A flow goes on sending by the socket that its client asked, which must get nothing any more.
#[test]
fn datagrams_reach_a_listener_of_all_interfaces_while_flows_of_one_go_on() {
    let network = network();
    network.greets(1, 8080);
    let keys = |interface: &str| {
        format!(
            "[listener.one]\nprotocol = \"udp\"\nbind = \"{VIP}:53\"\n{interface}\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\nhealth = {{ check = \"off\" }}\n",
            network.server(1, 8080, false)
        )
    };
    let mut weir = Setup::of(&keys("interface = \"to_client\"")).start();
    let client = || {
        let socket = network.on("client", || UdpSocket::bind("0.0.0.0:0").expect("an address"));
        socket.set_read_timeout(Some(PATIENCE)).expect("a timer");
        socket
    };
    let asks = |socket: &UdpSocket, word: &str| {
        socket.send_to(word.as_bytes(), address(53)).expect("sent");
        let mut answer = [0; 64];
        let count = socket.recv(&mut answer).unwrap_or_else(|problem| panic!("{word}: {problem}"));
        assert_eq!(answer[..count], *format!("1\n{word}").as_bytes());
    };
    let first = client();
    asks(&first, "before");
    for interface in ["", "interface = \"to_client\"", "interface = [\"to_server1\", \"to_client\"]", ""] {
        weir.reloads(&keys(interface));
        asks(&first, "again");
        asks(&client(), "another");
    }
    // By an interface that is left nobody listens.
    weir.reloads(&keys("interface = \"to_server1\""));
    until("the client to be refused", || {
        let socket = client();
        network.on("client", || socket.connect(address(53)).and_then(|()| socket.send(b"x")).expect("sent"));
        let answer = socket.recv(&mut [0; 64]);
        answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
}

/// Changes the interface again and again while clients come by one that is always among them.
fn nobody_is_lost(network: &Network, mut weir: Weir) {
    let keys = |interface: &str| says_its_name("web", &format!("bind = \"{VIP}:80\"\n{interface}"));
    let all = [
        "",
        "interface = \"to_client\"",
        "interface = [\"to_server1\", \"to_client\"]",
        "",
        "interface = [\"to_client\", \"to_server2\"]",
    ];
    let there = |come: &(dyn Fn() + Sync)| network.on("client", come);
    let arrivals = Arrivals::during_from(&there, address(80), |arrivals| {
        for interface in all.into_iter().cycle().take(8) {
            weir.reloads(&keys(interface));
            arrivals.go_on();
        }
    });
    assert_eq!(arrivals.refused(), 0, "{}", weir.story());
}

#[test]
fn nobody_is_lost_while_reloads_change_the_interface() {
    let network = network();
    let weir = Setup::of(&says_its_name("web", &format!("bind = \"{VIP}:80\""))).start();
    nobody_is_lost(&network, weir);
}

/// A socket that is bound to an interface may leave it by CAP_NET_RAW only.
#[test]
fn nobody_is_lost_where_weir_has_no_capabilities() {
    let network = network();
    let setpriv = tool("setpriv", "util-linux").display().to_string();
    let none = ["--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs"];
    let wrapper = [&[setpriv.as_str()][..], &none].concat();
    let weir = Setup::of(&says_its_name("web", &format!("bind = \"{VIP}:80\""))).under(&wrapper).start();
    nobody_is_lost(&network, weir);
}

#[test]
fn who_comes_by_an_interface_that_a_listener_has_left_is_refused() {
    let network = network();
    let keys =
        |interface: &str| says_its_name("web", &format!("bind = \"{VIP}:80\"\ninterface = \"{interface}\""));
    let mut weir = Setup::of(&keys("to_client")).start();
    assert_eq!(hears(&network, "client", &format!("{VIP}:80")), "web here");
    weir.reloads(&keys("to_server1"));
    assert_eq!(hears(&network, "server1", &format!("{VIP}:80")), "web here");
    let connects = || network.on("client", || std::net::TcpStream::connect_timeout(&address(80), PATIENCE));
    assert_eq!(
        connects().map(drop).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::ConnectionRefused)
    );
}

/// Has a new process take over, and waits until it serves.
fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the new process to answer", || {
        let pid = weir.admin().tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (pid != u64::from(old)).then_some(())
    });
}

#[test]
fn an_upgrade_keeps_interfaces_apart_and_loses_nobody() {
    let network = network();
    let keys = |interface: &str| format!("bind = \"{VIP}:80\"\ninterface = \"{interface}\"");
    let config = says_its_name("one", &keys("to_client")) + &says_its_name("two", &keys("to_server1"));
    let mut weir = Setup::of(&config).start();
    let there = |come: &(dyn Fn() + Sync)| network.on("server1", come);
    let arrivals = Arrivals::during_from(&there, address(80), |arrivals| {
        upgrades(&weir);
        arrivals.go_on();
        assert_eq!(hears(&network, "client", &format!("{VIP}:80")), "one here");
        // The new process changes them about.
        weir.rewrites(
            &(says_its_name("one", &keys("to_server2")) + &says_its_name("two", &keys("to_server1"))),
        );
        upgrades(&weir);
        arrivals.go_on();
    });
    assert_eq!(arrivals.refused(), 0, "{}", weir.story());
    assert_eq!(hears(&network, "server1", &format!("{VIP}:80")), "two here");
    assert_eq!(hears(&network, "server2", &format!("{VIP}:80")), "one here");
}

/// Both have their connection IDs from the same keys, and the same address.
#[test]
fn connections_of_http_3_stay_with_their_interface_over_an_upgrade() {
    let network = network();
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let keys = |interface: &str| {
        format!(
            "bind = \"{VIP}:443\"\ninterface = \"{interface}\"\nhttp = [\"h3\"]\n\
             tls = {{ certificates = [{{ cert = \"@dir/shop.pem\", key = \"@dir/shop.key\" }}] }}"
        )
    };
    let config = says_its_name("one", &keys("to_client")) + &says_its_name("two", &keys("to_server1"));
    let weir = authority.setup(&(config + "[runtime]\nworkers = 3\n")).start();
    let trust = trusting(authority.path("ca.pem").as_ref());
    let connect = |host| network.on(host, || Http3::connect(address(443), "shop.example", &trust));
    let said = |name: &str| Outcome::Answered(200, format!("{name} here").into_bytes());
    // Over several workers.
    let mut clients: Vec<(&str, Http3)> = Vec::new();
    for (host, name) in [("client", "one"), ("server1", "two")].into_iter().cycle().take(8) {
        clients.push((name, connect(host)));
    }
    for (name, client) in &mut clients {
        assert_eq!(client.asks(0, "/"), said(name));
        // The rest of a request comes once another process receives.
        let bytes = headers(&request("GET", "/"));
        client.begins(4, 0, &bytes[..5], false);
    }
    upgrades(&weir);
    for (name, client) in &mut clients {
        let bytes = headers(&request("GET", "/"));
        client.begins(4, 5, &bytes[5..], true);
        assert_eq!(client.outcome_of(4), said(name));
    }
    for (host, name) in [("client", "one"), ("server1", "two")] {
        assert_eq!(connect(host).asks(0, "/"), said(name));
    }
}

/// The kernel gives what comes to the socket before or to the one after, whichever it finds first.
#[test]
fn connections_of_http_3_go_on_while_reloads_and_upgrades_change_the_interface() {
    let network = network();
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let config = |interface: &str| {
        says_its_name(
            "web",
            &format!(
                "bind = \"{VIP}:443\"\n{interface}\nhttp = [\"h3\"]\n\
                 tls = {{ certificates = [{{ cert = \"@dir/shop.pem\", key = \"@dir/shop.key\" }}] }}"
            ),
        )
    };
    let mut weir = authority.setup(&config("")).start();
    let trust = trusting(authority.path("ca.pem").as_ref());
    let connect = || network.on("client", || Http3::connect(address(443), "shop.example", &trust));
    let said = Outcome::Answered(200, b"web here".to_vec());
    let mut clients: Vec<Http3> = (0..4).map(|_| connect()).collect();
    let changes = ["interface = \"to_client\"", "", "interface = [\"to_server1\", \"to_client\"]"];
    for (number, interface) in changes.into_iter().enumerate() {
        weir.reloads(&config(interface));
        for client in &mut clients {
            assert_eq!(client.asks(4 * number as u64, "/"), said, "{interface}");
        }
        assert_eq!(connect().asks(0, "/"), said, "{interface}");
    }
    let half = headers(&request("GET", "/"));
    for client in &mut clients {
        client.begins(12, 0, &half[..5], false);
    }
    weir.rewrites(&config(""));
    upgrades(&weir);
    for client in &mut clients {
        client.begins(12, 5, &half[5..], true);
        assert_eq!(client.outcome_of(12), said, "the old process has it");
    }
    assert_eq!(connect().asks(0, "/"), said);
}

/// The reason that the status gives for a listener.
fn reason(weir: &Weir, number: usize) -> Option<String> {
    let status = weir.admin().reads("/v1/status").json();
    status["listeners"][number]["plane_reason"].as_str().map(str::to_owned)
}

#[test]
fn an_interface_that_goes_away_and_comes_back_is_listened_at_again() {
    let network = network();
    let keys = |interface: &str| format!("bind = \"{VIP}:80\"\ninterface = \"{interface}\"");
    let config = says_its_name("one", &keys("to_client")) + &says_its_name("two", &keys("to_server2"));
    let mut weir = Setup::of(&config).start();
    let to = format!("{VIP}:80");
    for round in 0..2 {
        assert_eq!(hears(&network, "server2", &to), "two here");
        network.run("weir", &["ip", "link", "del", "to_server2"]);
        let told = until("the status to say so", || reason(&weir, 1));
        assert_eq!(told, "gone, and nobody comes by it until it is back: to_server2");
        assert_eq!((reason(&weir, 0), hears(&network, "client", &to).as_str()), (None, "one here"));
        match round {
            // The rest of the config changes all the same.
            0 => weir.reloads(&(says_its_name("more", &format!("bind = \"{VIP}:81\"")) + &config)),
            // And so does the process.
            _ => {
                weir.reloads(&config);
                upgrades(&weir);
            }
        }
        let number = 2 - round;
        until("the status to say so still", || reason(&weir, number));
        network.links_again("server2", 12);
        until("the interface to be listened at", || reason(&weir, number).is_none().then_some(()));
        assert_eq!(hears(&network, "server2", &to), "two here");
        if round == 0 {
            weir.reloads(&config);
        }
    }
    // By the process that saw it come back.
    let mut events = Wire::connect(weir.admin().address());
    events.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 0\r\n\r\n");
    events.receives_until("\"change\":\"back\",\"interface\":\"to_server2\"");
}

#[test]
fn an_interface_that_is_not_there_is_told_and_changes_nothing() {
    let network = network();
    let keys =
        |interface: &str| says_its_name("web", &format!("bind = \"{VIP}:80\"\ninterface = \"{interface}\""));
    let mut weir = Setup::of(&keys("eth7")).launch();
    assert!(!weir.exits().success());
    let told = "listener `web` can't bind tcp 192.0.2.10:80 by eth7: No such device (os error 19) (no interface \
                is named `eth7` here; `ip link` shows those that there are)";
    assert!(weir.stderr().contains(told), "{}", weir.stderr());
    let mut weir = Setup::of(&keys("to_client")).start();
    weir.rewrites(&keys("eth7"));
    let reloaded = weir.command(&["reload"]);
    assert_ne!(reloaded.code, 0, "{reloaded:?}");
    assert!(format!("{reloaded:?}").contains("no interface is named"), "{reloaded:?}");
    assert_eq!(hears(&network, "client", &format!("{VIP}:80")), "web here");
    // An address of one link is one only with it.
    let mut weir = Setup::of(&says_its_name("web", "bind = \"[fe80::53]:80\"")).launch();
    assert!(!weir.exits().success());
    assert!(weir.stderr().contains("(an address of one link needs `interface`)"), "{}", weir.stderr());
}
