//! Reloads after which connections of HTTP/3 have no place any more.

use h3::error::StreamError;
use weir_tests::dialogue::{PATIENCE, Signal, until};

use super::super::tls::curl;
use super::{Authority, CONFIG, Client, Weir, authority, run, site, start};

/// Waits for Weir to end the connection in order.
async fn ends(client: &Client) {
    let closed = tokio::time::timeout(PATIENCE, client.connection.closed()).await.expect("it goes on");
    let quinn::ConnectionError::ApplicationClosed(closed) = closed else { panic!("{closed}") };
    assert_eq!(closed.error_code.into_inner(), 0x100, "H3_NO_ERROR");
}

/// See `tls::kept` for the other versions.
#[test]
fn d6_a_client_without_a_certificate_is_let_go_once_one_is_required_and_not_for_a_new_certificate() {
    let (authority, backend) = (authority().signs("next", &["shop.example"]), site());
    let mut weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
        weir.reloads(&CONFIG.replace("@dir/shop.", "@dir/next."));
        assert_eq!(client.asks(b"").await.0, 200);
        let required = ", client_ca = \"@dir/ca.pem\", client_auth = \"required\" }\n[pool.app]";
        weir.reloads(&CONFIG.replace(" }\n[pool.app]", required));
        ends(&client).await;
        let strange = Client::try_connect_as(&authority, weir.address("web"), Default::default()).await;
        if let Ok(strange) = strange {
            // In TLS 1.3 the client is done before the server has looked at its certificate.
            let closed = strange.connection.closed().await;
            assert!(matches!(closed, quinn::ConnectionError::ConnectionClosed(_)), "{closed}");
        }
    });
}

/// Asks one request after the other until no more are taken; how many were answered.
async fn asks_on(mut client: Client) -> usize {
    let request = || http::Request::get("https://shop.example/").body(()).unwrap();
    let mut answered = 0;
    while let Ok(mut stream) = client.requests.send_request(request()).await {
        let answer = async {
            stream.finish().await?;
            let status = stream.recv_response().await?.status();
            while stream.recv_data().await?.is_some() {}
            Ok::<_, StreamError>(status)
        };
        match answer.await {
            Ok(status) => assert_eq!(status, 200),
            // It may send it again elsewhere.
            Err(error) => assert!(is_rejected(&error), "after {answered} answers: {error:?}"),
        }
        answered += 1;
    }
    ends(&client).await;
    answered
}

fn is_rejected(error: &StreamError) -> bool {
    format!("{error:?}").contains("H3_REQUEST_REJECTED")
}

/// What clients of the other versions are told of HTTP/3.
fn told(weir: &Weir, authority: &Authority, version: &str) -> Vec<String> {
    let ca = authority.path("ca.pem");
    let answer = curl(weir, "web", "shop.example", &[version, "--cacert", &ca, "-i"]);
    let all = answer.succeeded().to_lowercase();
    all.lines().filter_map(|line| line.strip_prefix("alt-svc: ")).map(|it| it.trim().to_owned()).collect()
}

/// Who was there stayed for as long as it liked, and who had been told once came back for a day.
#[test]
fn a_reload_that_takes_http_3_out_lets_its_clients_go_and_tells_the_others() {
    let (authority, backend) = (authority(), site());
    let mut weir = start(&authority, &backend);
    let without = CONFIG.replace(r#"["h1", "h2", "h3"]"#, r#"["h1", "h2"]"#);
    run(async {
        let mut idle = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(idle.asks(b"").await.0, 200);
        let busy = tokio::spawn(asks_on(Client::connect(&authority, weir.address("web")).await));
        weir.reloads(&without);
        ends(&idle).await;
        let answered = tokio::time::timeout(PATIENCE, busy).await.expect("it goes on").unwrap();
        println!("{answered} were answered meanwhile");
        weir.reloads(&format!("{without}\n[runtime]\ndrain = \"20s\"\n"));
        for version in ["--http1.1", "--http2"] {
            assert_eq!(told(&weir, &authority, version), ["clear"], "{version}");
        }
        weir.reloads(CONFIG);
        let again = format!("h3=\":{}\"; ma=86400", weir.address("web").port());
        assert_eq!(told(&weir, &authority, "--http2"), [again]);
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
    });
}

/// The new process did not know what the one before had told.
#[test]
fn clients_are_told_that_http_3_is_gone_by_the_next_process_too() {
    let (authority, backend) = (authority(), site());
    let mut weir = start(&authority, &backend);
    let without = CONFIG.replace(r#"["h1", "h2", "h3"]"#, r#"["h1", "h2"]"#);
    // Taken out by a reload, and by the upgrade itself.
    for is_reloaded in [true, false] {
        weir.reloads(CONFIG);
        let told_before = told(&weir, &authority, "--http2");
        assert_eq!(told_before, [format!("h3=\":{}\"; ma=86400", weir.address("web").port())]);
        match is_reloaded {
            true => weir.reloads(&without),
            false => weir.rewrites(&without),
        }
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until("the new process to serve alone", || match *weir.pids() {
            [pid] if pid != old => Some(()),
            _ => None,
        });
        until("the new process to answer", || weir.admin().tries_to_read("/readyz").map(|_| ()));
        for version in ["--http1.1", "--http2"] {
            assert_eq!(told(&weir, &authority, version), ["clear"], "{version}");
        }
    }
}
