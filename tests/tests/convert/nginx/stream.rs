//! `stream`: connections that are told apart by the name in their greeting.

use std::process::Command;

use super::{Folder, convert, telling};
use weir_tests::dialogue::{
    Authority, Backend, PATIENCE, Program, Setup, Weir, Wire, free_address, run_tool, tool,
};
use weir_tests::mysql::words_of;

/// The nginx of `lab/peers`, which has the stream module; Debian's own is a package apart.
pub(super) fn nginx(file: &str, at: std::net::SocketAddr) -> Program {
    let words = words_of("nginx");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["-c", file]);
    Program::start(&mut command, at)
}

/// The module's file, in the folder of the program.
pub(super) fn module() -> String {
    let words = words_of("nginx");
    let program = words.last().expect("a program");
    let root = program.strip_suffix("/usr/sbin/nginx").expect("in a root of its own");
    format!("{root}/usr/lib/nginx/modules/ngx_stream_module.so")
}

/// Which certificate a client is shown who asks for a name: its subject.
fn shown(at: std::net::SocketAddr, name: &str) -> String {
    let address = at.to_string();
    let mut words = vec!["s_client", "-connect", &address];
    match name {
        "" => words.push("-noservername"),
        name => words.extend(["-servername", name]),
    }
    let finished = run_tool(&tool("openssl", "openssl"), &words, b"Q\n", PATIENCE);
    let subject = finished.stdout.lines().find(|line| line.starts_with("subject="));
    subject.unwrap_or("no certificate").replace(' ', "")
}

/// A Weir with TLS that shows the certificate of `name`.
fn secure(authority: &Authority, name: &str) -> Weir {
    let config = format!(
        "[listener.web]\nbind = \"@web\"\ntls = {{ certificates = [{{ cert = \"{}\", key = \"{}\" }}] }}\n\
         [[listener.web.route]]\nrespond = {{ body = \"{name}\" }}\n",
        authority.path(&format!("{name}.pem")),
        authority.path(&format!("{name}.key"))
    );
    Setup::of(&config).start()
}

#[test]
fn connections_go_where_the_name_in_their_greeting_leads() {
    let authority = Authority::new()
        .signs("one", &["one.example"])
        .signs("two", &["two.example"])
        .signs("rest", &["rest.example"]);
    let [one, two, rest] = ["one", "two", "rest"].map(|name| secure(&authority, name));
    let raw = Backend::saying("raw");
    let text = |tls: std::net::SocketAddr, plain: std::net::SocketAddr, folder: &Folder| {
        format!(
            "load_module {};\nuser root;\ndaemon off;\npid {};\nerror_log stderr;\nevents {{}}\nstream {{\n\
             map $ssl_preread_server_name $where {{ hostnames; one.example {}; .two.example two; *.one.example {}; default {}; }}\n\
             upstream two {{ server {}; }}\n\
             server {{ listen {tls}; ssl_preread on; proxy_pass $where; proxy_timeout 1m; }}\n\
             server {{ listen {plain}; proxy_pass {}; }}\n}}\n",
            module(),
            folder.path("nginx.pid"),
            one.address("web"),
            one.address("web"),
            rest.address("web"),
            two.address("web"),
            raw.address(),
        )
    };
    let [of_nginx, of_weir] = [free_address(), free_address()];
    let [plain_nginx, plain_weir] = [free_address(), free_address()];
    let (nginx_folder, folder) = (Folder::new(), Folder::new());
    let file = nginx_folder.write("nginx.conf", &text(of_nginx, plain_nginx, &nginx_folder));
    let _nginx = nginx(&file, of_nginx);
    let file = folder.write("nginx.conf", &text(of_weir, plain_weir, &folder));
    let finished = convert(&folder, &file);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let toml = std::fs::read_to_string(folder.path("weir.toml")).expect("it was written");
    let _weir = Setup::of(&toml).start();
    for name in [
        "one.example",
        "a.one.example",
        "two.example",
        "a.b.two.example",
        "xtwo.example",
        "unknown.example",
        "",
    ] {
        assert_eq!(shown(of_nginx, name), shown(of_weir, name), "{name}\n{toml}");
    }
    assert!(shown(of_weir, "two.example").contains("two"), "{}", shown(of_weir, "two.example"));
    for at in [plain_nginx, plain_weir] {
        let mut client = Wire::connect(at);
        client.sends("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "raw");
    }
}

#[test]
fn a_stream_without_any_http_converts() {
    let backend = telling("raw");
    let (folder, at) = (Folder::new(), free_address());
    let text = format!(
        "events {{}}\nstream {{\n  upstream db {{ least_conn; server {} weight=2; server 127.0.0.1:9 backup; }}\n\
         server {{ listen {at}; proxy_pass db; proxy_connect_timeout 1s; allow 127.0.0.0/8; deny all; }}\n}}\n",
        backend.address()
    );
    let file = folder.write("nginx.conf", &text);
    let finished = convert(&folder, &file);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains(" 0 unsupported"), "{}", finished.stderr);
    let _weir = Setup::of(&std::fs::read_to_string(folder.path("weir.toml")).expect("written")).start();
    let mut client = Wire::connect(at);
    client.sends("GET /x HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(client.receives_status(200).text().starts_with("raw GET /x"));
}
