//! curl, by prior knowledge.

use weir_tests::dialogue::{After, Backend, PATIENCE, Setup, Weir, fingerprint, pattern, run_tool, tool};

use super::super::clients::site;
use super::{BOTH, both};

/// Runs curl with these arguments and a path of `web`.
fn curl(weir: &Weir, arguments: &[&str], path: &str) -> String {
    let url = format!("http://{}{path}", weir.address("web"));
    let mut all =
        vec!["--http2-prior-knowledge", "--silent", "--show-error", "--max-time", "20", "--noproxy", "*"];
    all.extend(arguments);
    all.push(&url);
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

/// The version and status that curl saw.
fn status(weir: &Weir, arguments: &[&str], path: &str) -> String {
    let mut all = vec!["--output", "/dev/null", "--write-out", "%{http_version} %{http_code}"];
    all.extend(arguments);
    curl(weir, &all, path)
}

#[test]
fn answers_come_over_one_connection_whoever_makes_them() {
    let backend = site();
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h2"]
        [[listener.web.route]]
        path = "/own"
        respond = { status = 418, body = "short and stout" }
        [[listener.web.route]]
        path = "/old"
        redirect = { to = "https://$host/new", status = 301 }
        [[listener.web.route]]
        path = "/app/*"
        pool = "app"
        rewrite = { prefix = "/" }
        [[listener.web.route]]
        path = "/gone/*"
        pool = "gone"
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        [pool.gone]
        backends = ["@nobody"]
        retry = { attempts = 0 }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    assert_eq!(curl(&weir, &[], "/own"), "short and stout");
    assert_eq!(status(&weir, &[], "/own"), "2 418");
    assert_eq!(
        status(&weir, &["--write-out", "%{http_code} %{redirect_url}", "--header", "host: a.test"], "/old"),
        "301 https://a.test/new"
    );
    assert_eq!(status(&weir, &[], "/nowhere"), "2 404");
    assert_eq!(status(&weir, &[], "/gone/x"), "2 502");
    assert_eq!(curl(&weir, &[], "/app/"), "hello");
    assert!(curl(&weir, &["--head"], "/app/").to_lowercase().contains("content-length: 5"));
    assert_eq!(status(&weir, &["--head"], "/own"), "2 418");
}

#[test]
fn bodies_of_ten_mebibytes_go_both_ways_with_and_without_a_length() {
    let backend = site();
    let weir = both(&backend);
    let body = pattern(2, 10 << 20);
    let (file, back) = (weir.dir().join("upload"), weir.dir().join("back"));
    std::fs::write(&file, &body).expect("write");
    let (upload, output) = (file.display().to_string(), back.display().to_string());
    // Without a length: curl reads it from a pipe.
    let piped = format!("@{upload}");
    let ways: [&[&str]; 3] = [
        &["--upload-file", &upload],
        &["--upload-file", &upload, "--header", "expect: 100-continue"],
        &["--data-binary", &piped, "--header", "content-length:"],
    ];
    for way in ways {
        let mut arguments = way.to_vec();
        arguments.extend(["--fail", "--output", &output]);
        curl(&weir, &arguments, "/echo");
        let got = std::fs::read(&back).expect("read");
        assert_eq!((got.len(), fingerprint(&got)), (body.len(), fingerprint(&body)), "{way:?}");
    }
    let last = backend.requests();
    assert_eq!(last[0].fields.one("content-length"), Some("10485760"));
    assert_eq!(
        last[2].fields.one("transfer-encoding"),
        Some("chunked"),
        "a body without a length is chunked"
    );
    assert_eq!(curl(&weir, &["--request", "POST", "--data", "x"], "/echo"), "x");
    assert_eq!(status(&weir, &["--request", "POST"], "/echo"), "2 200");
}

#[test]
fn trailers_interim_answers_and_codings_pass() {
    let backend = Backend::serving(|request, wire| {
        match request.target.as_str() {
            "/trailers" => wire.sends(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                 4\r\nbody\r\n0\r\nx-sum: 42\r\ncontent-length: 9\r\n\r\n",
            ),
            "/hints" => wire.sends(
                "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n\
                 HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            ),
            _ => wire.answers(
                200,
                &[("content-encoding", "gzip"), ("vary", "accept-encoding")],
                b"\x1f\x8bnot",
            ),
        }
        After::Keep
    });
    let weir = both(&backend);
    let seen = curl(&weir, &["--include"], "/trailers");
    assert!(seen.contains("\r\n\r\nbody") && seen.to_lowercase().contains("x-sum: 42"), "{seen}");
    assert!(!seen.to_lowercase().contains("content-length: 9"), "a trailer that frames is left out: {seen}");
    let seen = curl(&weir, &["--include"], "/hints");
    assert!(seen.contains("HTTP/2 103") && seen.contains("link: </a.css>") && seen.ends_with("ok"), "{seen}");
    let seen = curl(&weir, &["--include", "--header", "accept-encoding: gzip"], "/gzip");
    assert!(seen.contains("content-encoding: gzip"), "{seen}");
    assert_eq!(backend.requests()[2].fields.one("accept-encoding"), Some("gzip"));
}

#[test]
fn large_heads_are_refused_and_crumbs_of_cookies_are_joined() {
    let backend = site();
    let limited = BOTH.replace("pool = \"app\"\n", "pool = \"app\"\nlimits = { header = \"8KiB\" }\n");
    let weir = Setup::of(&limited).with("app", backend.address()).start();
    let large = format!("x-large: {}", "v".repeat(12_000));
    assert_eq!(status(&weir, &["--header", &large], "/"), "2 431");
    let cookies: Vec<String> = (0..50).map(|number| format!("cookie: c{number}=v")).collect();
    let arguments: Vec<&str> = cookies.iter().flat_map(|cookie| ["--header", cookie]).collect();
    assert_eq!(curl(&weir, &arguments, "/"), "hello");
    let sent = backend.requests();
    let cookie = sent[0].fields.one("cookie").expect("one field");
    assert_eq!(cookie.split("; ").count(), 50, "RFC 9113 §8.2.3: {cookie}");
}
