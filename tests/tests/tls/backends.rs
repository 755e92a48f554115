//! TLS towards backends: who they are is verified before a byte of a request leaves (threat A21).

use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir, Wire};

use super::{Authority, mirror};

/// The inner listener is the backend of the outer ones.
const CONFIG: &str = r#"
[listener.inner]
bind = "@inner"
http = ["h1"]
pool = "app"
[listener.inner.tls]
certificates = [{ cert = "@dir/inner.pem", key = "@dir/inner.key" }]
client_ca = "@dir/ca.pem"
client_auth = "optional"
[listener.outer]
bind = "@outer"
pool = "inner"
[pool.inner]
backends = ["@inner"]
tls = { TLS }
health = { check = "off", passive = "off" }
keep_alive = { max = 0 }
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn running(tls: &str) -> (Authority, Backend, Weir) {
    let authority = Authority::new().signs("inner", &["app.internal"]).signs("client", &["client"]);
    let backend = mirror();
    let setup = authority.setup(&CONFIG.replace("TLS", tls)).with("app", backend.address());
    let weir = setup.start();
    (authority, backend, weir)
}

fn asked(weir: &Weir) -> (u16, String) {
    let mut client = weir.client("outer");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = client.receives_response();
    (answer.status, answer.text())
}

#[test]
fn a_backend_that_proves_its_name_is_asked_and_sessions_are_resumed() {
    let (_authority, _backend, weir) = running(r#"ca = "@dir/ca.pem", server_name = "app.internal""#);
    for _ in 0..5 {
        assert_eq!(asked(&weir).0, 200);
    }
    let inner = weir.address("inner").to_string();
    let count = |result| {
        weir.metric(
            "weir_backend_tls_handshakes_total",
            &[("pool", "inner"), ("backend", &inner), ("result", result)],
        )
    };
    assert_eq!((count("failed"), count("full") + count("resumed")), (0.0, 5.0));
    assert!(count("resumed") >= 3.0, "{} of 5", count("resumed"));
}

#[test]
fn a_backend_of_another_name_or_authority_gets_no_request() {
    for tls in [
        r#"ca = "@dir/ca.pem", server_name = "other.internal""#,
        r#"ca = "@dir/ca.pem""#,
        r#"server_name = "app.internal""#,
    ] {
        let (_authority, backend, weir) = running(tls);
        let (status, text) = asked(&weir);
        assert_eq!(status, 502, "{tls}");
        assert!(text.contains("backend_tls"), "{tls}: {text}");
        assert!(backend.requests().is_empty(), "{tls}");
    }
    let (_authority, _backend, weir) = running(r#"verify = false"#);
    assert_eq!(asked(&weir).0, 200, "any certificate is taken where that is asked for");
}

#[test]
fn a_backend_that_speaks_no_tls_is_given_up_for_one_that_does() {
    let authority = Authority::new().signs("inner", &["app.internal"]).signs("client", &["client"]);
    let (plain, app) = (Backend::saying("plain"), mirror());
    let config = CONFIG
        .replace("TLS", r#"ca = "@dir/ca.pem", server_name = "app.internal""#)
        .replace(r#"backends = ["@inner"]"#, "backends = [\"@plain\", \"@inner\"]\nbalance = \"first\"");
    let weir = authority.setup(&config).with("plain", plain.address()).with("app", app.address()).start();
    assert_eq!(asked(&weir).0, 200, "nothing of the request was sent to the first one");
    weir.reaches("weir_redispatches_total", &[("pool", "inner")], 1.0);
}

#[test]
fn backends_are_shown_the_client_certificate_of_the_pool() {
    let tls = r#"ca = "@dir/ca.pem", server_name = "app.internal", cert = "@dir/client.pem", key = "@dir/client.key""#;
    let (_authority, _backend, weir) = running(tls);
    assert!(asked(&weir).1.contains("client-cert: :"));
}

/// Threat A21 (CVE-2026-1642): an answer that comes before the handshake is done is nobody's answer.
#[test]
fn a21_an_answer_in_the_clear_never_reaches_the_client() {
    let config =
        CONFIG.replace("TLS", "verify = false").replace("backends = [\"@inner\"]", "backends = [\"@liar\"]");
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let liar = ScriptedBackend::start();
    let setup: Setup = authority.setup(&config);
    let weir = setup.with("liar", liar.address()).with("app", liar.address()).start();
    let mut client = weir.client("outer");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut connection = liar.accepts();
    connection.receives_something();
    connection.sends("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nforge");
    drop(connection);
    drop(liar);
    let answer = client.receives_response();
    assert_eq!(answer.status, 502);
    assert!(!answer.text().contains("forge"));
}

/// What was agreed on under other settings says nothing of who the backend would have to be now.
#[test]
fn connections_made_under_other_settings_serve_nobody_behind_a_reload() {
    for protocol in ["h1", "h2"] {
        let authority = Authority::new().signs("inner", &["app.internal"]).signs("client", &["client"]);
        let backend = mirror();
        let config = CONFIG
            .replace("http = [\"h1\"]", &format!("http = [\"{protocol}\"]"))
            .replace("keep_alive = { max = 0 }", &format!("protocol = \"{protocol}\""));
        let with = |tls: &str| format!("[runtime]\nworkers = 1\n{}", config.replace("TLS", tls));
        let mut weir = authority.setup(&with("verify = false")).with("app", backend.address()).start();
        let mut kept = weir.client("outer");
        let asks = |kept: &mut Wire| {
            kept.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            kept.receives_response().status
        };
        assert_eq!([asks(&mut kept), asked(&weir).0], [200, 200], "{protocol}");
        weir.reloads(&with(r#"ca = "@dir/ca.pem", server_name = "other.internal""#));
        assert_eq!([asks(&mut kept), asked(&weir).0], [502, 502], "{protocol}");
        weir.reloads(&with(r#"ca = "@dir/ca.pem", server_name = "app.internal""#));
        assert_eq!([asks(&mut kept), asked(&weir).0], [200, 200], "{protocol}");
        // Where nothing of it changes, connections stay.
        let opened = |weir: &Weir| weir.metric("weir_backend_connections_total", &[("pool", "inner")]);
        let before = opened(&weir);
        weir.reloads(
            &with(r#"ca = "@dir/ca.pem", server_name = "app.internal""#)
                .replace("[pool.app]", "[pool.app]\nbalance = \"random-two\""),
        );
        assert_eq!([asks(&mut kept), asked(&weir).0], [200, 200], "{protocol}");
        assert_eq!(opened(&weir), before, "{protocol}");
    }
}

/// A body that came with its head is framed once the backend has picked.
#[test]
fn trailers_lose_what_is_taken_out_also_where_the_backend_picks_its_protocol() {
    for protocol in ["auto", "h1"] {
        let authority = Authority::new().signs("inner", &["app.internal"]).signs("client", &["client"]);
        let backend = mirror();
        let config = CONFIG
            .replace("TLS", "verify = false")
            .replace("keep_alive = { max = 0 }", &format!("protocol = \"{protocol}\""))
            .replace("pool = \"inner\"", "pool = \"inner\"\nremove_request_header = [\"x-user\"]");
        let weir = authority.setup(&config).with("app", backend.address()).start();
        for body in ["5\r\nhello\r\n", ""] {
            let mut client = weir.client("outer");
            client.sends(format!(
                "POST / HTTP/1.1\r\nhost: a\r\nx-user: forged\r\ntransfer-encoding: chunked\r\n\r\n\
                 {body}0\r\nx-user: forged\r\nx-other: 1\r\n\r\n"
            ));
            client.receives_status(200);
            let request = backend.requests().pop().expect("a request");
            assert!(request.fields.all("x-user").is_empty(), "{protocol}: {:?}", request.fields);
            assert!(request.trailers.all("x-user").is_empty(), "{protocol}: {:?}", request.trailers);
            assert_eq!(request.trailers.one("x-other"), Some("1"), "{protocol}");
        }
    }
}
