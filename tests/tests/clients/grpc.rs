//! gRPC's interoperability tests, with the client and the server that grpc-go has for them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use weir_tests::dialogue::{Authority, PATIENCE, Setup, Weir, client_program, free_address, run_tool, until};

/// All that need no account with a cloud.
const CASES: [&str; 14] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
];

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of grpc-go's servers.
fn serve(name: &str, address: SocketAddr, arguments: &[String]) -> Server {
    let mut server = Command::new(client_program(&format!("bin/{name}")));
    server.arg(format!("--port={}", address.port())).args(arguments);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    until("the server to listen", || std::net::TcpStream::connect(address).ok());
    Server(server.expect("the server starts"))
}

/// Weir over TLS and without before a server with TLS (`secure` and `plain`) or without.
fn start(with_tls: bool) -> (Authority, Weir, Server) {
    let authority = Authority::new().signs("calls", &["calls.example"]);
    let address = free_address();
    let mut arguments = vec![];
    if with_tls {
        let (cert, key) = (authority.path("calls.pem"), authority.path("calls.key"));
        arguments.extend(["--use_tls=true".to_owned()]);
        arguments.extend([format!("--tls_cert_file={cert}"), format!("--tls_key_file={key}")]);
    }
    let server = serve("grpc-interop-server", address, &arguments);
    let tls = if with_tls { r#"tls = { ca = "@dir/ca.pem", server_name = "calls.example" }"# } else { "" };
    let config = format!(
        r#"
        [listener.plain]
        bind = "@plain"
        http = ["h2"]
        pool = "calls"
        [listener.secure]
        bind = "@secure"
        http = ["h2"]
        pool = "calls"
        tls = {{ certificates = [{{ cert = "@dir/calls.pem", key = "@dir/calls.key" }}] }}
        [pool.calls]
        backends = ["@calls"]
        protocol = "h2"
        health = "off"
        {tls}
        [log]
        access = "@dir/access.log"
        "#
    );
    let weir = authority.setup(&config).with("calls", address).start();
    (authority, weir, server)
}

#[test]
fn every_interoperability_test_of_grpc_passes_with_and_without_tls_on_both_sides() {
    let client = client_program("bin/grpc-interop-client").display().to_string();
    for with_tls in [false, true] {
        let (authority, weir, _server) = start(with_tls);
        let ca = format!("--ca_file={}", authority.path("ca.pem"));
        for listener in ["plain", "secure"] {
            let port = format!("--server_port={}", weir.address(listener).port());
            let mut arguments = vec!["--server_host=127.0.0.1", &port];
            if listener == "secure" {
                arguments.extend([
                    "--use_tls=true",
                    "--server_host_override=calls.example",
                    &ca,
                    "--use_test_ca=true",
                ]);
            }
            for case in CASES {
                let case = format!("--test_case={case}");
                let mut words = vec!["GRPC_GO_LOG_SEVERITY_LEVEL=info", &client];
                words.extend(arguments.iter().copied().chain([case.as_str()]));
                let finished = run_tool(Path::new("/usr/bin/env"), &words, b"", PATIENCE * 3);
                let name = format!("{case} to {listener}, server with TLS: {with_tls}");
                assert_eq!(finished.code, 0, "{name}\n{}\n{}", finished.stderr, weir.story());
                assert!(finished.stderr.contains(" done"), "{name}\n{}", finished.stderr);
            }
        }
        let lines = weir.lines_of("access.log", CASES.len());
        assert!(lines.iter().all(|line| line.contains("\"protocol\":\"HTTP/2.0\"")), "{lines:?}");
    }
}

/// For each message that it gets grpc-go opens a window and sends a `PING` to measure the path.
#[test]
fn streams_of_a_thousand_small_messages_a_second_last() {
    let address = free_address();
    let config = r#"
        [listener.plain]
        bind = "@plain"
        http = ["h2"]
        pool = "calls"
        [pool.calls]
        backends = ["@calls"]
        protocol = "h2"
        health = "off"
        "#;
    let weir = Setup::of(config).with("calls", address).start();
    // Both leave profiles in /tmp, but for a way out of it.
    let name = |of: &str| format!("-test_name=..{}/{of}", weir.dir().display());
    let _server = serve("grpc-benchmark-server", address, &[name("server")]);
    let client = client_program("bin/grpc-benchmark-client");
    let port = format!("--port={}", weir.address("plain").port());
    for streams in ["-r=1", "-r=20"] {
        let name = name("client");
        let arguments = [port.as_str(), "-rpc_type=streaming", "-w=1", "-d=4", &name, streams];
        let finished = run_tool(&client, &arguments, b"", PATIENCE * 3);
        assert_eq!(finished.code, 0, "{streams}\n{}\n{}", finished.stderr, weir.story());
    }
    assert_eq!(weir.metric("weir_rejected_total", &[("listener", "plain"), ("reason", "frame_flood")]), 0.0);
}
