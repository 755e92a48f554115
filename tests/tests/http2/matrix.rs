//! Every version in front with every version behind.

use weir_tests::dialogue::{
    Backend, NO_HEALTH, PATIENCE, Setup, Weir, curl, fingerprint, pattern, run_tool, tool,
};

use super::super::clients::site;
use super::before_h2;

/// `direct` speaks to the backend in HTTP/1.1; `over` speaks HTTP/2 to `direct`. Both take both versions from
/// clients.
fn chain(backend: &Backend) -> Weir {
    Setup::of(
        r#"
        [listener.over]
        bind = "@over"
        http = ["h1", "h2"]
        pool = "direct"
        [listener.direct]
        bind = "@direct"
        http = ["h1", "h2"]
        pool = "app"
        [pool.direct]
        backends = ["@direct"]
        protocol = "h2"
        health = { check = "off", passive = "off" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start()
}

#[test]
fn every_version_in_front_works_with_every_version_behind() {
    let backend = site();
    let weir = chain(&backend);
    let body = pattern(3, 3 << 20);
    let (file, back) = (weir.dir().join("upload"), weir.dir().join("back"));
    std::fs::write(&file, &body).expect("write");
    let (file, back) = (file.display().to_string(), back.display().to_string());
    for (front, version) in [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
        for behind in ["direct", "over"] {
            let curl = |arguments: &[&str], path: &str| {
                let url = format!("http://{}{path}", weir.address(behind));
                curl(&[&[front][..], arguments, &[&*url]].concat())
            };
            let named = format!("{front} {behind}");
            assert_eq!(
                curl(&["--write-out", " %{http_version}"], "/"),
                format!("hello {version}"),
                "{named}"
            );
            assert_eq!(curl(&[], "/chunked"), "hello world", "{named}");
            assert!(curl(&["--head"], "/").to_lowercase().contains("content-length: 5"), "{named}");
            assert_eq!(curl(&["--request", "POST"], "/echo"), "", "{named}");
            for length in ["transfer-encoding: chunked", "x-with: a length"] {
                if version == "2" && length.starts_with("transfer") {
                    continue;
                }
                curl(&["--upload-file", &file, "--header", length, "--output", &back], "/echo");
                let got = std::fs::read(&back).expect("read");
                assert_eq!(
                    (got.len(), fingerprint(&got)),
                    (body.len(), fingerprint(&body)),
                    "{named} {length}"
                );
            }
        }
    }
}

#[test]
fn many_clients_share_few_connections_to_a_backend_of_http2() {
    let backend = site();
    let weir = chain(&backend);
    let url = format!("http://{}/bytes/3000", weir.address("over"));
    let arguments = ["-c", "50", "-m", "10", "-n", "10000", &url];
    let finished = run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 6);
    let text = finished.succeeded();
    assert!(text.contains("10000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
    assert!(text.contains("10000 2xx"), "{text}");
    let connections = weir.metric("weir_connections_total", &[("listener", "direct")]);
    println!("{connections} connections to the backend for 500 streams of 50 clients");
    assert!(connections <= 40.0, "{connections} connections");
}

#[test]
fn nghttpd_as_a_backend_serves_files_of_all_sizes() {
    let address = weir_tests::dialogue::free_address();
    let weir = Setup::of(&before_h2("", NO_HEALTH)).with("app", address).start();
    let sizes = [0, 1, 65_535, 65_536, 3 << 20];
    for size in sizes {
        std::fs::write(weir.dir().join(format!("file-{size}")), pattern(1, size)).expect("write");
    }
    let root = format!("--htdocs={}", weir.dir().display());
    let port = address.port().to_string();
    let mut server = std::process::Command::new(tool("nghttpd", "nghttp2-server"))
        .args(["--no-tls", "--address=127.0.0.1", &root, &port])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("nghttpd starts");
    weir_tests::dialogue::until("nghttpd to listen", || std::net::TcpStream::connect(address).ok());
    let back = weir.dir().join("back");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for size in sizes {
            let url = format!("http://{}/file-{size}", weir.address("web"));
            let output = back.display().to_string();
            let arguments =
                [version, "-sSf", "--max-time", "20", "--noproxy", "*", "--output", &output, &url];
            run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE * 3).succeeded();
            let got = if size == 0 { Vec::new() } else { std::fs::read(&back).expect("read") };
            assert!(got == pattern(1, size), "{version} {size}");
        }
    }
    let _ = server.kill();
    let _ = server.wait();
}
