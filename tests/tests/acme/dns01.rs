//! Domains that are proved by records in their zones: signed updates of a real name server (Knot), and a
//! program.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use weir_tests::dialogue::{
    Backend, PATIENCE, Setup, UPDATE_KEY, Weir, ZoneServer, free_address, run_tool, tool, until,
};

use super::{Pebble, Ports, asked, certificate, comes_to, is_issued, mirror, orders, shown};

const CONFIG: &str = r#"
[listener.secure]
bind = "@secure"
http = ["h1"]
pool = "app"
[listener.secure.tls.acme]
directory = "@directory"
challenges = ["dns-01"]
ca = "@dir/front-ca.pem"
store = "@dir/store"
@way
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// An update at `server`, waiting for all of `wait_for`.
fn update(server: SocketAddr, wait_for: &[SocketAddr], more: &str) -> String {
    let wait_for: Vec<String> = wait_for.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "dns_update = {{ server = \"{server}\", key_name = \"weir\", key = \"${{file:@dir/tsig.key}}\", wait_for = [{}]{more} }}",
        wait_for.join(", ")
    )
}

fn weir(way: &str, pebble: &Pebble, key: &str) -> (Weir, Backend) {
    let backend = mirror();
    let both = "domains = [\"shop.example\", \"*.shop.example\"]\n";
    let way = if way.starts_with("domains") { way.to_owned() } else { format!("{both}{way}") };
    let weir = Setup::of(&CONFIG.replace("@way", &way))
        .with("secure", free_address())
        .with("directory", pebble.directory())
        .with("app", backend.address())
        .with_file("front-ca.pem", &pebble.front_ca())
        .with_file("tsig.key", key)
        .start();
    (weir, backend)
}

/// The values of the record that proves the domain, as a name server has them.
fn values(server: SocketAddr) -> Vec<String> {
    const ASK: &str = r"
import socket, struct, sys
name = b''.join(bytes([len(x)]) + x for x in [b'_acme-challenge', b'shop', b'example', b''])
ask = struct.pack('>6H', 7, 0, 1, 0, 0, 0) + name + struct.pack('>2H', 16, 1)
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stream.sendall(struct.pack('>H', len(ask)) + ask)
answer = stream.makefile('rb')
data = answer.read(struct.unpack('>H', answer.read(2))[0])
count, at = struct.unpack('>H', data[6:8])[0], len(ask)
for _ in range(count):
    while data[at] and data[at] < 0xc0: at += 1 + data[at]
    at += 2 if data[at] else 1
    size = struct.unpack('>H', data[at + 8:at + 10])[0]
    print(data[at + 11:at + 10 + size].decode())
    at += 10 + size
";
    let (ip, port) = (server.ip().to_string(), server.port().to_string());
    let said = run_tool(&tool("python3", "python3"), &["-c", ASK, &ip, &port], b"", PATIENCE);
    said.succeeded().lines().map(str::to_owned).collect()
}

#[test]
fn a_wildcard_is_proved_by_signed_updates_that_all_name_servers_have_before_the_authority_looks() {
    let second = free_address();
    let first = ZoneServer::telling(second);
    let second = ZoneServer::following(second, first.address());
    // It asks the one that is told later.
    let pebble = Pebble::away(Ports::free(), false).asking(second.address());
    let way = update(first.address(), &[first.address(), second.address()], "");
    let (weir, _backend) = weir(&way, &pebble, UPDATE_KEY);
    is_issued(&weir, "secure");
    assert_eq!((orders(&weir, "issued"), orders(&weir, "refused")), (1.0, 0.0), "{}", weir.story());
    for name in ["shop.example", "any.shop.example"] {
        assert!(asked(&weir, &pebble, name).succeeded().ends_with("status 200"), "{name}");
    }
    until("the records to be taken out", || values(first.address()).is_empty().then_some(()));
    // The key is in no answer and no log line.
    let config = weir.admin().reads("/v1/config").response.text();
    assert!(config.contains("dns_update") && config.contains("(secret)"), "{config}");
    let all = [config, weir.story(), weir.admin().reads("/v1/status").response.text()].concat();
    assert!(!all.contains(UPDATE_KEY));
    let file = certificate(&weir, "secure")["file"].as_str().expect("a file").to_owned();
    assert!(file.contains("/_.shop.example-"), "{file}");
}

#[test]
fn a_name_server_that_does_not_get_the_record_is_named_and_the_record_is_taken_out() {
    let (first, other) = (ZoneServer::start(), ZoneServer::start());
    let pebble = Pebble::away(Ports::free(), false).asking(first.address());
    let way = update(
        first.address(),
        &[first.address(), other.address()],
        ", wait = \"1s\", zone = \"shop.example\"",
    );
    let (weir, _backend) = weir(&way, &pebble, UPDATE_KEY);
    comes_to(&weir, "dns", 1.0);
    let error = certificate(&weir, "secure")["acme"]["error"].as_str().expect("an error").to_owned();
    let other = format!("name server {} answers", other.address());
    assert!(
        error.contains("_acme-challenge.shop.example was not there within 1s") && error.contains(&other),
        "{error}"
    );
    until("the record to be taken out", || values(first.address()).is_empty().then_some(()));
    assert_eq!(orders(&weir, "issued"), 0.0);
}

#[test]
fn a_name_server_that_does_not_know_the_key_says_so() {
    let server = ZoneServer::start();
    let pebble = Pebble::away(Ports::free(), false).asking(server.address());
    let wrong = "b3RoZXIgb2N0ZXRzIG9mIGEga2V5IGZvciB3ZWlyLi4=";
    let (weir, _backend) = weir(&update(server.address(), &[server.address()], ""), &pebble, wrong);
    comes_to(&weir, "dns", 1.0);
    let error = certificate(&weir, "secure")["acme"]["error"].as_str().expect("an error").to_owned();
    assert!(error.contains("did not update shop.example") && error.contains("BADSIG"), "{error}");
    assert!(!weir.story().contains(wrong));
    assert!(values(server.address()).is_empty());
}

/// A program of this text, which anybody may run.
fn program(text: &str) -> String {
    let path = std::env::temp_dir().join(format!("weir-dns-program-{}", free_address().port()));
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path.display().to_string()
}

#[test]
fn a_program_puts_records_where_it_wants_and_takes_them_out_again() {
    let pebble = Pebble::running(Ports::free());
    let curl = tool("curl", "curl");
    let path = program(&format!(
        "case $1 in\n\
         present) {curl} -sf http://{at}/set-txt -d \"{{\\\"host\\\": \\\"$2\\\", \\\"value\\\": \\\"$3\\\"}}\" ;;\n\
         cleanup) {curl} -sf http://{at}/clear-txt -d \"{{\\\"host\\\": \\\"$2\\\"}}\" ;;\n\
         esac\necho \"$1 $2 $CERTBOT_DOMAIN\" >> \"$0.ran\"",
        curl = curl.display(),
        at = pebble.names_management
    ));
    // Its server for tests has one value for a name, and the wildcard has another proof than the domain.
    let way = format!("domains = [\"*.shop.example\"]\ndns_program = {{ program = \"{path}\" }}");
    let (weir, _backend) = weir(&way, &pebble, "");
    is_issued(&weir, "secure");
    assert!(asked(&weir, &pebble, "any.shop.example").succeeded().ends_with("status 200"));
    let ran = || std::fs::read_to_string(format!("{path}.ran")).unwrap_or_default();
    until("the record to be taken out", || {
        ran().contains("cleanup _acme-challenge.shop.example. shop.example").then_some(())
    });
    assert!(ran().starts_with("present _acme-challenge.shop.example. shop.example"), "{}", ran());
    assert!(shown(&weir, "www.shop.example").starts_with("-----BEGIN"));
    for file in [path.clone(), format!("{path}.ran")] {
        std::fs::remove_file(file).expect("remove");
    }
}

#[test]
fn a_program_that_fails_is_told_of_with_what_it_said() {
    let pebble = Pebble::running(Ports::free());
    let path = program("echo \"no token for $2\" >&2\nexit 9");
    let (weir, _backend) = weir(&format!("dns_program = {{ program = \"{path}\" }}"), &pebble, "");
    comes_to(&weir, "dns", 1.0);
    let error = certificate(&weir, "secure")["acme"]["error"].as_str().expect("an error").to_owned();
    assert!(
        error.contains("ended with status 9 and said: no token for _acme-challenge.shop.example."),
        "{error}"
    );
    until("a line in the log", || weir.stderr().contains("could not be taken out of its zone").then_some(()));
    std::fs::remove_file(path).expect("remove");
}

/// The order ends by a reload while the program is at work, which is told to take out what it may have put.
#[test]
fn a_program_is_told_to_clean_up_when_it_has_put_the_record_and_not_before() {
    let pebble = Pebble::running(Ports::free());
    // It waits a while for being told to clean up meanwhile.
    let path = program(
        "echo \"$1 begins\" >> \"$0.ran\"\n\
         if [ $1 = present ]; then\n\
         for i in $(seq 30); do grep -q cleanup \"$0.ran\" && break; sleep 0.1; done\n\
         fi\n\
         echo \"$1 ends\" >> \"$0.ran\"",
    );
    let way = format!("domains = [\"*.shop.example\"]\ndns_program = {{ program = \"{path}\" }}");
    let (mut weir, _backend) = weir(&way, &pebble, "");
    let ran = || std::fs::read_to_string(format!("{path}.ran")).unwrap_or_default();
    until("the program to be at work", || ran().contains("present begins").then_some(()));
    let (head, rest) = CONFIG.split_once("[listener.secure.tls.acme]").expect("a table");
    weir.reloads(&[head, &rest[rest.find("[pool.app]").expect("a pool")..]].concat());
    until("it to have cleaned up", || ran().contains("cleanup ends").then_some(()));
    let (put, taken) = (ran().find("present ends"), ran().find("cleanup begins"));
    assert!(put.is_some() && put < taken, "{}", ran());
    for file in [path.clone(), format!("{path}.ran")] {
        std::fs::remove_file(file).expect("remove");
    }
}
