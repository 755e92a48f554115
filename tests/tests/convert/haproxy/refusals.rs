//! Rules that refuse clients under conditions that routes can't ask: whom HAProxy refuses, the converted
//! file refuses as well.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use weir_tests::dialogue::{PATIENCE, Setup, free_address};

use super::super::converts;
use super::{haproxy, servers};

/// What stands in front of the rules that are tried, at 127.0.0.1:18000.
const FRAME: &str = "userlist staff\n user ann insecure-password secret\n\
     defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n timeout tarpit 10ms\n";

/// Starts HAProxy and a Weir with the converted file; their addresses, and what keeps them.
fn both(text: &str) -> ([SocketAddr; 2], impl Sized, String) {
    let (app, port) = servers(2);
    let addresses = [free_address(), free_address()];
    let [of_haproxy, of_weir] = addresses.map(|address| {
        let text = text.replace("127.0.0.1:18000", &address.to_string());
        (1..=2).fold(text, |text, last| {
            text.replace(&format!("10.0.0.{last}:80"), &format!("127.0.4.{last}:{port}"))
        })
    });
    let (code, config, said) = converts(&of_weir, &[]);
    assert_eq!(code, 0, "{said}");
    let users = std::env::temp_dir().join(format!("weir-refused-{}", addresses[1].port()));
    std::fs::create_dir_all(&users).expect("a folder");
    std::fs::write(
        users.join("staff.users"),
        "ann:$2y$04$5wL8Maga44cxasO3xBxUEeUaORA77/Rt1.M4koBDzhFK4.17kYjqW\n",
    )
    .expect("written");
    let weir = Setup::of(&config.replace("/etc/weir", &users.display().to_string())).start();
    let (program, folder) = haproxy(&of_haproxy, addresses[0]);
    let kept = (app, weir, program, Removed([folder, users]));
    (addresses, kept, said)
}

/// Folders that go with a test.
struct Removed([std::path::PathBuf; 2]);

impl Drop for Removed {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The status of what a client gets; `None` where its connection is closed without an answer, with or without
/// a reset.
fn status(address: SocketAddr, line: &str, fields: &str) -> Option<u16> {
    let mut client = TcpStream::connect(address).ok()?;
    client.set_read_timeout(Some(PATIENCE)).ok()?;
    client
        .write_all(format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}connection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said);
    let text = String::from_utf8_lossy(&said);
    text.split(' ').nth(1).and_then(|status| status.parse().ok())
}

#[test]
fn whom_haproxy_refuses_the_converted_file_lets_in_neither() {
    for rules in [
        // Nothing of it can be asked.
        "http-request deny if { req.hdr(x-token),length eq 6 }",
        "http-request deny if { req.cook(a),base64 -m str YQ== } or { path_beg /admin }",
        // A part of it can.
        "http-request deny deny_status 401 if { path_beg /admin } !{ req.hdr(x-token),length eq 6 }",
        "http-request tarpit unless { path_beg /open } || { req.hdr(x-token),length eq 6 }",
        "http-request auth realm Staff if { path_beg /admin } !{ req.hdr(x-token),length eq 6 }",
        "http-request auth realm Staff if { path_beg /admin } { http_auth(staff) } || { req.hdr(x-token),length eq 6 } !{ http_auth(staff) }",
        // A rule that lets some in is not converted, either.
        "http-request allow if { req.hdr(x-token),length eq 6 }\n http-request deny if { path_beg /admin }",
        // The rule before has changed what is asked.
        "http-request set-path /admin%[path] if { path_beg /x }\n http-request deny if { path_beg /admin }",
        "tcp-request inspect-delay 5s\n tcp-request content reject if { req.hdr(x-token),length eq 6 }",
        "tcp-request connection accept if { src 127.0.0.1 }\n tcp-request content reject if { src 127.0.0.0/8 } { path_beg /admin }",
        "tcp-request connection reject if { src 127.0.0.0/8 }\n tcp-request connection reject unless { src 127.0.0.1 }",
        "tcp-request connection reject",
        "use_backend nobody if { req.hdr(x-token),length eq 6 }",
    ] {
        let text = format!(
            "{FRAME}frontend web\n bind 127.0.0.1:18000\n {rules}\n default_backend one\n\
             backend one\n server a 10.0.0.1:80\nbackend nobody\n http-request deny\n"
        );
        let (addresses, _kept, said) = both(&text);
        for line in ["GET /", "GET /admin/x", "GET /open", "GET /x"] {
            for fields in ["", "x-token: abcdef\r\n", "x-token: a\r\n", "cookie: a=a\r\n"] {
                let [there, here] = addresses.map(|address| status(address, line, fields));
                let refused = |status: Option<u16>| status.is_none_or(|status| status >= 400);
                assert!(
                    !refused(there) || refused(here),
                    "{rules}\n{line} {fields} is {there:?} by HAProxy, and {here:?} by Weir\n{said}"
                );
            }
        }
    }
}

#[test]
fn a_refusal_in_a_backend_holds_for_what_leads_there() {
    let text = format!(
        "{FRAME}frontend web\n bind 127.0.0.1:18000\n use_backend two if {{ path_beg /two }}\n default_backend one\n\
         backend one\n server a 10.0.0.1:80\nbackend two\n tcp-request inspect-delay 5s\n\
         tcp-request content reject if {{ hdr(x-bad) -m found }}\n http-request deny if {{ req.hdr(x-token),length eq 6 }}\n server b 10.0.0.2:80\n"
    );
    let (addresses, _kept, said) = both(&text);
    for (line, fields) in
        [("GET /two", "x-bad: 1\r\n"), ("GET /two", "x-token: abcdef\r\n"), ("GET /", "x-bad: 1\r\n")]
    {
        let [there, here] =
            addresses.map(|address| status(address, line, fields).filter(|status| *status < 400));
        assert_eq!(there, here, "{line} {fields}\n{said}");
    }
}

#[test]
fn a_limit_that_can_not_be_converted_is_told_and_refuses_nobody() {
    let text = format!(
        "{FRAME}frontend web\n bind 127.0.0.1:18000\n stick-table type ip size 1k expire 1m store gpc0,gpc0_rate(1m)\n\
         http-request track-sc0 src\n http-request deny if {{ sc0_gpc0_rate gt 100 }}\n default_backend one\n\
         backend one\n server a 10.0.0.1:80\n"
    );
    let (addresses, _kept, said) = both(&text);
    assert_eq!(addresses.map(|address| status(address, "GET /", "")), [Some(200); 2]);
    assert!(said.contains("NOT CONVERTED: there is NO LIMIT here in Weir"), "{said}");
}

#[test]
fn what_a_relay_of_tcp_refuses_the_converted_file_closes_as_well() {
    for rules in [
        "tcp-request connection reject if { src 127.0.0.0/8 }",
        "tcp-request content reject if { dst 127.0.0.0/8 }",
        "tcp-request content reject",
    ] {
        let text = format!(
            "{}frontend web\n bind 127.0.0.1:18000\n {rules}\n default_backend one\nbackend one\n server a 10.0.0.1:80\n",
            FRAME.replace("mode http", "mode tcp")
        );
        let (addresses, _kept, said) = both(&text);
        for address in addresses {
            assert_eq!(status(address, "GET /", ""), None, "{rules}\n{said}");
        }
    }
}

#[test]
fn a_relay_of_tcp_asks_what_a_server_name_is_not() {
    let text = "defaults\n mode tcp\n timeout connect 5s\n timeout client 9s\n timeout server 9s\nfrontend f\n bind 127.0.0.1:18000\n\
                tcp-request inspect-delay 5s\n use_backend two if { src 10.0.0.0/8 }\n\
                use_backend two if !{ req.ssl_sni -i one.test }\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\nbackend two\n server b 10.0.0.2:80\n";
    let (code, config, said) = converts(text, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("line 9  use_backend two: routes of tcp ask for server names"), "{said}");
    for part in ["sni = \"one.test\"\npool = \"one\"\n", "pool = \"two\"\ntimeout = { client_idle"] {
        assert!(config.contains(part), "{part}\n{config}");
    }
}
