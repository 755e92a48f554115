//! Rules in every version in front with every version behind.

use std::time::Duration;

use weir_tests::dialogue::{Authority, PATIENCE, Setup, free_address, run_tool, tool, until};
use weir_tests::versions::{Answer, Behind, Client, Front, VersionedBackend, run};

fn config(behind: Behind) -> String {
    let word = behind.word();
    let protocol = behind.protocol();
    let tls =
        if behind.is_tls() { r#"tls = { ca = "@dir/ca.pem", server_name = "app.internal" }"# } else { "" };
    let rules = r#"
        set_response_header = { x-site = "$method $host$path", x-behind = "hidden" }
        remove_response_header = ["x-scheme"]
        via = false
        "#;
    format!(
        r#"
        [listener.plain_{word}]
        bind = "@plain_{word}"
        http = ["h1", "h2"]
        pool = "{word}"
        {rules}
        [listener.secure_{word}]
        bind = "@secure_{word}"
        http = ["h1", "h2", "h3"]
        pool = "{word}"
        tls = {{ certificates = [{{ cert = "@dir/shop.pem", key = "@dir/shop.key" }}] }}
        {rules}
        [[listener.secure_{word}.route]]
        path = "/own"
        respond = {{ status = 200, body = "own" }}
        [pool.{word}]
        backends = ["@{word}"]
        protocol = "{protocol}"
        health = "off"
        backend_host = "inner.test:8080"
        set_request_header = {{ x-client = "$client_ip $scheme $header.x-me", x-set = "ours" }}
        add_request_header = {{ x-added = "$query.page" }}
        remove_request_header = ["x-gone"]
        {tls}
        "#
    )
}

async fn fields(client: &mut Client, path: &str) -> Answer {
    let sent = [
        ("x-me", "me"),
        ("x-set", "theirs"),
        ("x-added", "theirs"),
        ("x-gone", "1"),
        ("x-real-ip", "1.2.3.4"),
    ];
    client.ask("GET", path, &sent, vec![]).await.expect("an answer")
}

#[test]
fn rules_say_the_same_in_every_version_in_front_with_every_version_behind() {
    let authority = Authority::new().signs("shop", &["shop.example"]).signs("app", &["app.internal"]);
    let backends =
        Behind::ALL.map(|behind| VersionedBackend::start(free_address(), behind, &authority, "app"));
    let config: String = Behind::ALL.into_iter().map(config).collect();
    let setup = authority.setup(&config);
    let known = Behind::ALL.iter().zip(&backends);
    let weir = known.fold(setup, |setup, (behind, it)| setup.with(behind.word(), it.address())).start();
    run(Duration::from_secs(100), async {
        for front in Front::ALL {
            for behind in Behind::ALL {
                let cell = format!("{front:?} before {behind:?}");
                let kind = if front.is_tls() { "secure" } else { "plain" };
                let address = weir.address(&format!("{kind}_{}", behind.word()));
                let mut client =
                    Client::connect(front, &authority, address, "shop.example").await.expect("a connection");
                let answer = fields(&mut client, "/fields?page=2").await;
                let asked = String::from_utf8(answer.content).expect("text");
                let lines: Vec<&str> = asked.lines().collect();
                let host = if behind.protocol() == "h1" { "host: " } else { ":authority: " };
                let scheme = if front.is_tls() { "https" } else { "http" };
                let client_line = format!("x-client: 127.0.0.1 {scheme} me");
                let port = format!("x-forwarded-port: {}", address.port());
                for expected in [
                    format!("{host}inner.test:8080"),
                    client_line,
                    "x-set: ours".to_owned(),
                    "x-added: theirs".to_owned(),
                    "x-added: 2".to_owned(),
                    "x-real-ip: 127.0.0.1".to_owned(),
                    port,
                ] {
                    let count = lines.iter().filter(|line| **line == expected).count();
                    assert_eq!(count, 1, "{cell}: {expected}\n{asked}");
                }
                for gone in ["x-gone", "via:", "x-set: theirs", "1.2.3.4"] {
                    assert!(!asked.contains(gone), "{cell}: {gone}\n{asked}");
                }
                let told = &answer.fields;
                assert_eq!(told["x-site"], "GET shop.example/fields", "{cell}");
                assert_eq!(told.get_all("x-behind").iter().count(), 1, "{cell}");
                assert_eq!(told["x-behind"], "hidden", "{cell}");
                assert!(!told.contains_key("x-scheme") && !told.contains_key("via"), "{cell}: {told:?}");
                let own = fields(&mut client, "/own").await;
                assert_eq!(own.fields["x-site"], "GET shop.example/own", "{cell}");
            }
        }
    });
}

#[test]
fn nghttpd_is_asked_by_its_own_host_and_its_name_is_hidden_from_curl() {
    let address = free_address();
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        remove_response_header = ["server"]
        set_response_header = { x-proto = "$scheme $method" }
        [pool.app]
        backends = ["@app"]
        protocol = "h2"
        backend_host = "inner.test"
        set_request_header = { x-from = "$client_ip" }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", address)
    .start();
    std::fs::write(weir.dir().join("file"), "content").expect("write");
    let root = format!("--htdocs={}", weir.dir().display());
    let log = weir.dir().join("nghttpd.log");
    let mut server = std::process::Command::new(tool("nghttpd", "nghttp2-server"))
        .args(["--verbose", "--no-tls", "--address=127.0.0.1", &root, &address.port().to_string()])
        .stdout(std::fs::File::create(&log).expect("a log"))
        .spawn()
        .expect("nghttpd starts");
    until("nghttpd to listen", || std::net::TcpStream::connect(address).ok());
    let url = format!("http://{}/file", weir.address("web"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let arguments = [version, "-sSfi", "--max-time", "20", "--noproxy", "*", &url];
        let told = run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE);
        let text = told.succeeded().to_lowercase();
        assert!(text.ends_with("content") && text.contains("x-proto: http get\r\n"), "{version}: {text}");
        assert!(!text.contains("server:"), "{version}: {text}");
    }
    let seen = until("nghttpd to have told", || {
        let text = std::fs::read_to_string(&log).ok()?;
        (text.matches("x-from: 127.0.0.1").count() == 2).then_some(text)
    });
    assert_eq!(seen.matches(":authority: inner.test").count(), 2, "{seen}");
    let _ = server.kill();
    let _ = server.wait();
}
