//! Certificates that change while connections last (threat H2).

use weir_tests::dialogue::{PATIENCE, Signal, run_tool};

use super::{Authority, LAST, mirror, s_client};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1"]
pool = "app"
tls = { certificates = [{ cert = "@dir/live.pem", key = "@dir/live.key" }] }
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// Keeps one connection open over a reload and asks before and after it.
const KEEPER: &str = "
import socket, ssl, subprocess, sys
host, port, binary, config, ca = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
context = ssl.create_default_context(cafile=ca)
def connect():
    return context.wrap_socket(socket.create_connection((host, port)), server_hostname='shop.example')
def ask(tls):
    tls.sendall(b'GET / HTTP/1.1\\r\\nhost: shop.example\\r\\n\\r\\n')
    data = tls.recv(65536)
    assert data.startswith(b'HTTP/1.1 200'), data
def subject(tls):
    return dict(pair[0] for pair in tls.getpeercert()['subject'])['commonName']
kept = connect()
ask(kept)
before = subject(kept)
import shutil, os
folder = os.path.dirname(config)
for end in ('pem', 'key'):
    shutil.copy(f'{folder}/next.{end}', f'{folder}/live.{end}')
subprocess.run([binary, 'reload', '--config', config], check=True, stdout=subprocess.DEVNULL)
ask(kept)
print(before, subject(connect()))
";

fn authority() -> Authority {
    Authority::new().signs("first", &["shop.example"]).signs("next", &["shop.example"])
}

fn setup(authority: &Authority) -> weir_tests::dialogue::Setup {
    let (cert, key) = (authority.text("first.pem"), authority.text("first.key"));
    authority.setup(CONFIG).with_file("live.pem", &cert).with_file("live.key", &key)
}

#[test]
fn new_files_are_served_after_a_reload_and_no_connection_is_dropped() {
    let (authority, backend) = (authority(), mirror());
    let weir = setup(&authority).with("app", backend.address()).start();
    let address = weir.address("web");
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let binary = weir_tests::dialogue::weir_binary().display().to_string();
    let (config, ca) = (weir.config_path(), authority.path("ca.pem"));
    let python = weir_tests::dialogue::tool("python3", "python3");
    let arguments = ["-c", KEEPER, &host, &port, &binary, &config, &ca];
    let finished = run_tool(&python, &arguments, b"", weir_tests::dialogue::PATIENCE);
    assert_eq!(finished.succeeded().trim(), "first next", "{}", weir.story());
}

#[test]
fn files_that_cannot_be_used_are_named_and_the_old_ones_serve_on() {
    let (authority, backend) = (authority(), mirror());
    let weir = setup(&authority).with("app", backend.address()).start();
    let put = |file: &str, text: &str| std::fs::write(weir.dir().join(file), text).expect("write");
    let generation = weir.metric("weir_config_generation", &[]);
    for (file, text, reason) in [
        ("live.key", authority.text("next.key"), "is not the key of"),
        ("live.key", "nothing".to_owned(), "holds no private key"),
        ("live.pem", authority.text("first.key"), "holds no certificate"),
        (
            "live.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
            "is no certificate",
        ),
    ] {
        put(file, &text);
        let finished = weir.command(&["reload"]);
        assert_eq!(finished.code, 2, "{finished:?}");
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(said.contains(file) && said.contains(reason), "{file} {reason}: {said}");
        assert!(
            s_client(weir.address("web"), "-servername shop.example", LAST).stdout.contains("HTTP/1.1 200")
        );
        put("live.pem", &authority.text("first.pem"));
        put("live.key", &authority.text("first.key"));
    }
    assert_eq!(weir.metric("weir_config_generation", &[]), generation);
    std::fs::remove_file(weir.dir().join("live.pem")).expect("remove");
    assert_eq!(weir.command(&["reload"]).code, 2);
    assert!(s_client(weir.address("web"), "-servername shop.example", LAST).stdout.contains("HTTP/1.1 200"));
}

/// Opening a pipe waits for somebody who writes to it: a certificate that was one stopped reloads, probes,
/// metrics and `/livez` until somebody killed Weir.
#[test]
fn a_file_that_is_a_pipe_is_refused_and_holds_nobody_up() {
    let (authority, backend) = (authority(), mirror());
    let mut weir = setup(&authority).with("app", backend.address()).start();
    let pipe = weir.dir().join("pipe").display().to_string();
    run_tool(std::path::Path::new("mkfifo"), &[&pipe], b"", PATIENCE).succeeded();
    let list = "certificates = [{ cert = \"@dir/live.pem\", key = \"@dir/live.key\" }]";
    for (was, now) in [
        ("cert = \"@dir/live.pem\"", "cert = \"@dir/pipe\"".to_owned()),
        ("key = \"@dir/live.key\"", "key = \"@dir/pipe\"".to_owned()),
        ("key = \"@dir/live.key\"", "key = \"@dir/live.key\", ocsp = \"@dir/pipe\"".to_owned()),
        (list, format!("{list}, client_ca = \"@dir/pipe\"")),
        (list, format!("{list}, client_ca = \"@dir/live.pem\", crl = [\"@dir/pipe\"]")),
        (list, format!("{list}, ticket_keys = \"@dir/pipe\"")),
        ("health = \"off\"", "health = \"off\"\ntls = { ca = \"@dir/pipe\" }".to_owned()),
    ] {
        weir.rewrites(&CONFIG.replace(was, &now));
        let finished = weir.command(&["reload"]);
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(matches!(finished.code, 1 | 2) && said.contains("pipe"), "{now}: {finished:?}");
        assert_eq!(weir.admin().reads("/livez").status(), 200, "{now}");
    }
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
}

#[test]
fn a_reload_changes_something_only_when_a_file_says_something_new() {
    let (authority, backend) = (authority(), mirror());
    let weir = setup(&authority).with("app", backend.address()).start();
    let put = |file: &str, text: &str| std::fs::write(weir.dir().join(file), text).expect("write");
    let reloads = || {
        let finished = weir.command(&["reload"]);
        finished.succeeded().to_owned()
    };
    let generation = || weir.metric("weir_config_generation", &[]);
    let first = generation();
    assert!(reloads().contains("unchanged"));
    assert_eq!(generation(), first);
    put("live.pem", &authority.text("next.pem"));
    put("live.key", &authority.text("next.key"));
    let said = reloads();
    assert!(said.contains("files of certificates, keys, authorities or tokens have changed"), "{said}");
    assert_eq!(generation(), first + 1.0);
    assert!(reloads().contains("unchanged"));
    assert_eq!(generation(), first + 1.0);
    // A file that cannot be used is no news twice: what is in force is still what was read before.
    put("live.key", "nothing");
    assert_ne!(weir.command(&["reload"]).code, 0);
    put("live.key", &authority.text("next.key"));
    assert!(reloads().contains("unchanged"));
}
