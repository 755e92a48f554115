//! Chromium without a window.

use std::path::Path;
use std::time::Duration;

use weir_tests::dialogue::{After, Authority, Backend, PATIENCE, Weir, pattern, run_tool, tool};

use super::super::http3::CONFIG;

/// Sends many requests at once and writes the results and the protocols into the page.
const PAGE: &str = r#"<!doctype html><title>test</title><body>waiting</body><script type="module">
const body = new Uint8Array(3 << 20).map((_, at) => at * 7);
const echoed = new Uint8Array(await (await fetch("/echo", { method: "POST", body })).arrayBuffer());
const same = echoed.length === body.length && echoed.every((byte, at) => byte === body[at]);
const lengths = await Promise.all([...Array(60).keys()].map(async n =>
  (await (await fetch(`/bytes/${n * 700}`)).arrayBuffer()).byteLength === n * 700));
const protocols = new Set(performance.getEntriesByType("resource").map(entry => entry.nextHopProtocol));
document.body.textContent = `echo ${same}, all ${lengths.every(good => good)}, ${[...protocols].join(" and ")}`;
</script>"#;

fn site() -> Backend {
    Backend::serving(|request, wire| {
        if let Some(count) = request.target.strip_prefix("/bytes/") {
            wire.answers(200, &[], pattern(1, count.parse().unwrap_or(0)));
        } else if request.target == "/echo" {
            wire.answers(200, &[], &request.body);
        } else {
            wire.answers(200, &[("content-type", "text/html")], PAGE);
        }
        After::Keep
    })
}

fn start(authority: &Authority, backend: &Backend) -> Weir {
    start_with(authority, backend, CONFIG)
}

fn start_with(authority: &Authority, backend: &Backend, config: &str) -> Weir {
    authority.setup(config).with("app", backend.address()).start()
}

/// The final text of the page.
fn chromium(authority: &Authority, weir: &Weir, more: &[&str]) -> String {
    let url = format!("https://shop.example:{}/", weir.address("web").port());
    chromium_at(authority, weir, &url, more)
}

/// The final text of the page at `url`.
fn chromium_at(authority: &Authority, weir: &Weir, url: &str, more: &[&str]) -> String {
    let digest = format!(
        "openssl x509 -in '{}' -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | openssl base64",
        authority.path("shop.pem")
    );
    let digest =
        run_tool(Path::new("/bin/sh"), &["-c", &digest], b"", PATIENCE).succeeded().trim().to_owned();
    let trusted = format!("--ignore-certificate-errors-spki-list={digest}");
    let profile = format!("--user-data-dir={}", weir.dir().join("profile").display());
    let mut arguments = vec![
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * 127.0.0.1",
        "--virtual-time-budget=30000",
        "--dump-dom",
        &trusted,
        &profile,
    ];
    arguments.extend(more);
    arguments.push(url);
    let finished = run_tool(&tool("chromium", "chromium"), &arguments, b"", PATIENCE * 6);
    let page = finished.succeeded();
    let body = page.split_once("<body>").and_then(|(_, rest)| rest.split_once("</body>"));
    let said = body.map(|(text, _)| text.trim().to_owned());
    said.unwrap_or_else(|| panic!("no page: {finished:?}\n{}", weir.story()))
}

#[test]
fn chromium_speaks_http_2_where_it_may_not_speak_http_3() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), site());
    let weir = start(&authority, &backend);
    assert_eq!(chromium(&authority, &weir, &["--disable-quic"]), "echo true, all true, h2");
    let lines = weir.lines_of("access.log", 62);
    assert!(lines.iter().all(|line| line.contains("\"protocol\":\"HTTP/2.0\"")), "{lines:?}");
    // A browser may open a second connection in advance; 62 requests over HTTP/1.1 would have taken six.
    let connections = weir.metric("weir_connections_total", &[("listener", "web")]);
    assert!(connections <= 2.0, "{connections} connections");
}

#[test]
fn chromium_speaks_http_3_where_it_is_told_to() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), site());
    let weir = start(&authority, &backend);
    let origin = format!("--origin-to-force-quic-on=shop.example:{}", weir.address("web").port());
    assert_eq!(chromium(&authority, &weir, &["--enable-quic", &origin]), "echo true, all true, h3");
    let lines = weir.lines_of("access.log", 62);
    assert!(lines.iter().all(|line| line.contains("\"protocol\":\"HTTP/3.0\"")), "{lines:?}");
}

/// A short idle timeout, and a listener to wait at in the meantime.
const IDLE: &str = r#"
        timeout = { client_idle = "1s" }
        [listener.plain]
        bind = "@plain"
        pool = "app"
        [pool.app]"#;

/// Asks once, lets its connection become too old, and asks again.
const LATER: &str = r#"<!doctype html><title>test</title><body>waiting</body><script type="module">
await fetch("/first");
await fetch("http://127.0.0.1:PLAIN/wait", { mode: "no-cors" });
const answer = await (await fetch("/second")).text();
document.body.textContent = `second: ${answer}`;
</script>"#;

/// It sends only its settings as early data, and holds requests back until the handshake is complete.
#[test]
fn what_chromium_sends_early_when_it_comes_again_is_taken() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = Backend::serving(|request, wire| {
        match request.target.as_str() {
            "/first" => wire.answers(200, &[], ""),
            "/wait" => {
                // Long enough for Weir and Chromium to give up what is idle.
                std::thread::sleep(Duration::from_secs(3));
                wire.answers(200, &[], "");
            }
            "/second" => wire.answers(200, &[], "well"),
            page => {
                let page = LATER.replace("PLAIN", page.trim_start_matches('/'));
                wire.answers(200, &[("content-type", "text/html")], page);
            }
        }
        After::Keep
    });
    let config =
        CONFIG.replace("shop.key\" }]", "shop.key\" }], early_data = true").replace("[pool.app]", IDLE);
    let weir = start_with(&authority, &backend, &config);
    let (port, plain) = (weir.address("web").port(), weir.address("plain").port());
    let (log, url) = (weir.dir().join("net.json"), format!("https://shop.example:{port}/{plain}"));
    let [origin, log_to] = [
        format!("--origin-to-force-quic-on=shop.example:{port}"),
        format!("--log-net-log={}", log.display()),
    ];
    assert_eq!(chromium_at(&authority, &weir, &url, &["--enable-quic", &origin, &log_to]), "second: well");
    let log = std::fs::read_to_string(log).unwrap();
    let states: Vec<&str> = ["NotAttempted", "AttemptedAndSucceeded", "AttemptedAndRejected"]
        .into_iter()
        .filter(|state| log.contains(&format!("\"state\":\"{state}\"")))
        .collect();
    assert_eq!(states, ["NotAttempted", "AttemptedAndSucceeded"]);
}
