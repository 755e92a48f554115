//! Backends given by host name (threat H5). A DNS server of our own answers; `resolv.conf` is Weir's view
//! only, by a mount namespace, so these need root (or skip nothing: they fail and say so).

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, Setup, Signal, Weir, tool, until, until_within};
use weir_tests::network::Network;

/// What the server says of every name.
#[derive(Clone)]
enum Say {
    Addresses(Vec<Ipv4Addr>),
    /// The address, after a while.
    Late(Duration, Ipv4Addr),
    ServerFailure,
    NoSuchName,
    Empty,
    Nothing,
}

struct NameServer {
    say: Arc<Mutex<Say>>,
    /// As `resolv.conf` has it.
    address: String,
}

/// Answers on port 53 of a loopback address of its own.
fn name_server(last: u8, say: Say) -> NameServer {
    let address = Ipv4Addr::new(127, 0, 53, last);
    name_server_at(SocketAddr::from((address, 53)), address.to_string(), say)
}

fn name_server_at(at: SocketAddr, address: String, say: Say) -> NameServer {
    let socket = UdpSocket::bind(at).unwrap_or_else(|problem| panic!("{at}: {problem} (needs root)"));
    let say = Arc::new(Mutex::new(say));
    let told = say.clone();
    std::thread::spawn(move || {
        let mut query = [0; 2048];
        while let Ok((size, from)) = socket.recv_from(&mut query) {
            let mut say = told.lock().map(|say| say.clone()).unwrap_or(Say::Nothing);
            if let Say::Late(delay, address) = say {
                std::thread::sleep(delay);
                say = Say::Addresses(vec![address]);
            }
            if let Some(answer) = answer(&query[..size], &say) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    NameServer { say, address }
}

/// A response to `query`, by RFC 1035 §4.1; only A questions get addresses.
fn answer(query: &[u8], say: &Say) -> Option<Vec<u8>> {
    let mut end = 12;
    while *query.get(end)? != 0 {
        end += usize::from(query[end]) + 1;
    }
    let question = query.get(12..end + 5)?;
    let is_a = question.ends_with(&[0, 1, 0, 1]);
    let (code, addresses) = match say {
        Say::Addresses(all) => (0, if is_a { all.as_slice() } else { &[] }),
        Say::ServerFailure => (2, &[][..]),
        Say::NoSuchName => (3, &[][..]),
        Say::Empty => (0, &[][..]),
        Say::Nothing | Say::Late(..) => return None,
    };
    // What does not fit into a datagram of 1232 bytes is left out, as a server without TCP would do.
    let addresses = &addresses[..addresses.len().min(70)];
    let mut bytes = query.get(..2)?.to_vec();
    bytes.extend([0x81, 0x80 | code, 0, 1]);
    bytes.extend(u16::try_from(addresses.len()).ok()?.to_be_bytes());
    bytes.extend([0, 0, 0, 0]);
    bytes.extend(question);
    for address in addresses {
        // A pointer to the question's name, type A, class IN, TTL 0.
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        bytes.extend(address.octets());
    }
    Some(bytes)
}

/// Weir in a mount namespace where `/etc/resolv.conf` names our server.
fn weir_asking(server: &NameServer, port: u16) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["app.weir.test:{port}", "@fixed"]
        balance = "first"
        health = {{ check = "tcp", interval = "300ms", fast_interval = "100ms", timeout = "200ms" }}
        "#
    );
    let fixed = Backend::saying("fixed");
    let weir = asking(server, Setup::of(&config).with("fixed", fixed.address()));
    // Lives as long as the process: the spare backend of every test here.
    std::mem::forget(fixed);
    weir
}

fn asking(server: &NameServer, setup: Setup) -> Weir {
    let unshare = tool("unshare", "util-linux").display().to_string();
    let dir = std::env::temp_dir().join(format!("weir-resolv-{}-{}", std::process::id(), server.address));
    std::fs::create_dir_all(&dir).expect("a directory");
    let resolv = dir.join("resolv.conf");
    std::fs::write(&resolv, format!("nameserver {}\noptions timeout:1 attempts:1\n", server.address))
        .expect("resolv.conf");
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", resolv.display());
    setup.under(&[unshare.as_str(), "--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).start()
}

fn ask(weir: &Weir) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let response = client.receives_response();
    (response.status, response.text())
}

fn says(server: &NameServer, what: Say) {
    *server.say.lock().expect("not poisoned") = what;
}

#[test]
fn a_name_is_resolved_and_its_last_good_address_kept_when_dns_fails() {
    let backend = Backend::saying("by name");
    let SocketAddr::V4(address) = backend.address() else { unreachable!("loopback is IPv4") };
    let server = name_server(1, Say::Addresses(vec![*address.ip()]));
    let weir = weir_asking(&server, address.port());
    until("the name to be used", || (ask(&weir).1 == "by name").then_some(()));
    for failure in [Say::ServerFailure, Say::NoSuchName, Say::Empty, Say::Nothing] {
        says(&server, failure);
        for _ in 0..5 {
            assert_eq!(ask(&weir), (200, "by name".to_owned()), "the last good address was given up");
        }
    }
    // A reload while DNS is down must not lose it either.
    let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(answer.status(), 200, "{:?}", answer.response);
    assert_eq!(ask(&weir), (200, "by name".to_owned()));
}

#[test]
fn a_name_that_never_resolved_leaves_the_others_serving_and_is_used_once_it_does() {
    let backend = Backend::saying("by name");
    let SocketAddr::V4(address) = backend.address() else { unreachable!("loopback is IPv4") };
    let server = name_server(2, Say::ServerFailure);
    let weir = weir_asking(&server, address.port());
    for _ in 0..10 {
        assert_eq!(ask(&weir), (200, "fixed".to_owned()));
    }
    says(&server, Say::Addresses(vec![*address.ip()]));
    until_within(Duration::from_secs(40), "the name to be used", || {
        (ask(&weir).1 == "by name").then_some(())
    });
}

#[test]
fn a_name_with_a_crowd_of_addresses_is_used_and_bounded() {
    let backend = Backend::saying("by name");
    let SocketAddr::V4(address) = backend.address() else { unreachable!("loopback is IPv4") };
    let server = name_server(3, Say::Addresses(vec![*address.ip(); 1000]));
    let weir = weir_asking(&server, address.port());
    until("the name to be used", || (ask(&weir).1 == "by name").then_some(()));
    let pool = weir.admin().reads("/v1/pools/app").json();
    assert!(pool["backends"].as_array().is_some_and(|all| all.len() <= 64), "{pool}");
}

/// One pool with one backend, by name.
fn by_name_alone(pool: &str, name: &str, port: u16) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "{pool}"
        [pool.{pool}]
        backends = ["{name}.weir.test:{port}"]
        health = {{ check = "off", passive = {{ errors = 1 }} }}
        "#
    )
}

#[test]
fn a_name_is_resolved_before_the_first_request_after_a_start_a_reload_and_an_upgrade() {
    let backend = Backend::saying("by name");
    let SocketAddr::V4(address) = backend.address() else { unreachable!("loopback is IPv4") };
    let server = name_server(4, Say::Late(Duration::from_millis(150), *address.ip()));
    let mut weir = asking(&server, Setup::of(&by_name_alone("app", "one", address.port())));
    assert_eq!(ask(&weir), (200, "by name".to_owned()), "the first request after the start");
    for (pool, name) in [("app", "two"), ("other", "two"), ("app", "three")] {
        weir.reloads(&by_name_alone(pool, name, address.port()));
        assert_eq!(ask(&weir), (200, "by name".to_owned()), "the first after the reload to {name} in {pool}");
    }
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    until("the old process to be gone", || {
        assert_eq!(ask(&weir), (200, "by name".to_owned()), "a request during the upgrade");
        let new = admin.tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (new != u64::from(old) && !weir.is_running(old)).then_some(())
    });
    assert!(!weir.stderr().contains("ejected"), "{}", weir.story());
}

#[test]
fn a_name_server_that_is_silent_delays_the_start_but_does_not_prevent_it() {
    let server = name_server(5, Say::Nothing);
    let weir = asking(&server, Setup::of(&by_name_alone("app", "one", 80)));
    assert_eq!(ask(&weir).0, 503);
    let pool = weir.admin().reads("/v1/pools/app").json();
    assert_eq!(pool["backends"][0]["state"], "down", "{pool}");
}

#[test]
fn connections_kept_to_an_address_that_the_name_has_left_carry_no_more_requests() {
    let old = Backend::saying("old");
    let port = old.address().port();
    let new = Backend::serving_at((Ipv4Addr::new(127, 0, 0, 2), port).into(), |_, wire| {
        wire.answers(200, &[], "new");
        After::Keep
    });
    let SocketAddr::V4(address) = old.address() else { unreachable!("loopback is IPv4") };
    let server = name_server(6, Say::Addresses(vec![*address.ip()]));
    let weir = weir_asking(&server, port);
    until("the name to be used", || (ask(&weir).1 == "old").then_some(()));
    // Never idle for long, so that age alone does not retire the backend's connection.
    let mut client = weir.client("web");
    let mut asks = || {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200).text()
    };
    assert_eq!(asks(), "old");
    says(&server, Say::Addresses(vec![Ipv4Addr::new(127, 0, 0, 2)]));
    until_within(Duration::from_secs(40), "the new address to be used", || (asks() == "new").then_some(()));
    let served = old.served();
    for _ in 0..10 {
        assert_eq!(asks(), "new");
    }
    assert_eq!(old.served(), served, "the old address is no longer asked");
    assert!(new.served() >= 10);
}

/// It was left out, and a host with IPv6 alone has often no other one.
#[test]
fn a_name_server_of_one_link_is_asked_by_its_interface() {
    let network = Network::enter(0);
    network.run("weir", &["ip", "address", "add", "fe80::53/64", "dev", "lo", "nodad"]);
    let backend = Backend::saying("by name");
    let SocketAddr::V4(address) = backend.address() else { unreachable!("loopback is IPv4") };
    let lo = std::fs::read_to_string("/sys/class/net/lo/ifindex").expect("an interface");
    let at = SocketAddrV6::new(
        "fe80::53".parse().expect("an address"),
        53,
        0,
        lo.trim().parse().expect("a number"),
    );
    let say = Say::Addresses(vec![*address.ip()]);
    let server = name_server_at(at.into(), "fe80::53%lo".to_owned(), say);
    let config =
        format!("[dns]\nresolvers = \"resolv.conf\"\n{}", by_name_alone("app", "one", address.port()));
    let weir = asking(&server, Setup::of(&config));
    assert_eq!(ask(&weir), (200, "by name".to_owned()), "{}", weir.story());
}
