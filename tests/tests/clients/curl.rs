//! curl.

use weir_tests::dialogue::{NO_PROBES, PATIENCE, curl, fingerprint, one_pool, pattern, run_tool, tool};

use super::super::http::plain;
use super::site;

#[test]
fn curl_keeps_its_connection_for_several_urls() {
    let backend = site();
    let weir = plain(&backend);
    let url = format!("http://{}/", weir.address("web"));
    let mut arguments = vec!["--write-out", "%{num_connects} %{http_code}\n", "--output", "/dev/null"];
    for _ in 0..9 {
        arguments.extend([url.as_str(), "--output", "/dev/null"]);
    }
    arguments.push(&url);
    let text = curl(&arguments);
    let connects: Vec<&str> = text.lines().collect();
    assert_eq!(connects.len(), 10, "{text}");
    assert_eq!((connects[0], connects[9]), ("1 200", "0 200"));
    assert_eq!(weir.metric("weir_connections_total", &[("listener", "web")]), 1.0);
}

#[test]
fn curl_uploads_with_length_chunked_and_after_100_continue() {
    let backend = site();
    let weir = plain(&backend);
    let url = format!("http://{}/echo", weir.address("web"));
    let body = pattern(2, 5 << 20);
    let (file, back) = (weir.dir().join("upload"), weir.dir().join("back"));
    std::fs::write(&file, &body).expect("write");
    let upload = file.display().to_string();
    let output = back.display().to_string();
    for field in ["expect: 100-continue", "transfer-encoding: chunked", "expect:"] {
        curl(&["--upload-file", &upload, "--header", field, "--output", &output, &url]);
        let got = std::fs::read(&back).expect("read");
        assert_eq!((got.len(), fingerprint(&got)), (body.len(), fingerprint(&body)), "{field}");
    }
}

#[test]
fn curl_asks_for_ranges_heads_and_http_1_0() {
    let backend = site();
    let weir = plain(&backend);
    let address = weir.address("web");
    let url = format!("http://{address}/bytes/100000");
    let output = weir.dir().join("part").display().to_string();
    curl(&["--range", "500-1499", "--output", &output, &url]);
    assert!(std::fs::read(&output).expect("read") == pattern(1, 100_000)[500..1500]);
    assert!(curl(&["--head", &format!("http://{address}/")]).to_lowercase().contains("content-length: 5"));
    assert_eq!(curl(&["--http1.0", &format!("http://{address}/")]), "hello");
    assert_eq!(curl(&[&format!("http://{address}/chunked")]), "hello world");
    assert_eq!(curl(&["--http1.0", &format!("http://{address}/chunked")]), "hello world");
}

#[test]
fn curl_in_parallel_gets_every_body_right() {
    let backend = site();
    let weir = plain(&backend);
    let url = format!("http://{}/bytes/[10000-10099]", weir.address("web"));
    let pattern_of_files = weir.dir().join("body-#1").display().to_string();
    curl(&["--parallel", "--parallel-max", "20", "--output", &pattern_of_files, &url]);
    for length in 10_000..10_100 {
        let got = std::fs::read(weir.dir().join(format!("body-{length}"))).expect("read");
        assert!(got == pattern(1, length), "{length}");
    }
}

#[test]
fn curl_speaks_the_proxy_protocol() {
    let backend = site();
    let weir = weir_tests::dialogue::Setup::of(&one_pool(r#"accept_proxy = ["127.0.0.0/8"]"#, NO_PROBES))
        .with("app", backend.address())
        .start();
    assert_eq!(curl(&["--haproxy-protocol", &format!("http://{}/", weir.address("web"))]), "hello");
}

#[test]
fn netcat_half_closes_and_still_gets_its_answer() {
    let backend = site();
    let weir = plain(&backend);
    let address = weir.address("web");
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let finished = run_tool(
        &tool("nc", "netcat-openbsd"),
        &["-N", &host, &port],
        b"GET /chunked HTTP/1.0\r\nhost: a\r\n\r\n",
        PATIENCE,
    );
    assert!(finished.succeeded().ends_with("\r\n\r\nhello world"), "{finished:?}");
}
