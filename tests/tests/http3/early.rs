//! Requests before the handshake is over (0-RTT, threat C7), where `early_data` allows them.

use std::net::UdpSocket;
use std::sync::mpsc;

use weir_tests::dialogue::{Request, until};

use super::relay::Relay;
use super::*;

const EARLY: &str = "early_data = true, certificates";

/// How long nothing may happen where nothing must happen.
const QUIET: Duration = Duration::from_millis(400);

fn setup(authority: &Authority, backend: &Backend, config: &str) -> Weir {
    authority.setup(&config.replace("certificates", EARLY)).with("app", backend.address()).start()
}

/// A client that remembers sessions.
struct Returning {
    endpoint: quinn::Endpoint,
    relay: Relay,
}

impl Returning {
    /// One that was here once, and has tickets. Without `proves` it shows no token when it comes back.
    async fn new(authority: &Authority, weir: &Weir, proves: bool) -> Returning {
        let mut tls = (*tls(authority)).clone();
        tls.enable_early_data = true;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        if !proves {
            config.token_store(Arc::new(quinn::NoneTokenStore));
        }
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(config);
        let returning = Returning { endpoint, relay: Relay::to(weir) };
        returning.visits().await;
        returning
    }

    /// Comes for tickets.
    async fn visits(&self) {
        let connection = self.endpoint.connect(self.relay.address, "shop.example").unwrap().await.unwrap();
        let mut client = Client::over(self.endpoint.clone(), connection).await;
        assert_eq!(client.asks(b"").await.0, 200);
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.connection.close(0_u32.into(), b"");
    }

    /// Begins with early data, of which Weir's answers are held. Gives the client, and whether what it sent
    /// early was taken.
    async fn comes_back(&self) -> (Client, quinn::ZeroRttAccepted) {
        self.relay.closes();
        let connecting = self.endpoint.connect(self.relay.address, "shop.example").unwrap();
        let (connection, accepted) = connecting.into_0rtt().expect("a ticket that promises early data");
        (Client::over(self.endpoint.clone(), connection).await, accepted)
    }
}

/// Asks in a task of its own.
fn asks(mut client: Client, body: &'static [u8]) -> mpsc::Receiver<(u16, Vec<u8>)> {
    let (tell, told) = mpsc::channel();
    tokio::spawn(async move {
        let _ = tell.send(client.asks(body).await);
        // As long as it lives the connection does.
        tokio::time::sleep(PATIENCE).await;
    });
    told
}

async fn answer(told: &mpsc::Receiver<(u16, Vec<u8>)>) -> (u16, Vec<u8>) {
    loop {
        match told.try_recv() {
            Ok(answer) => return answer,
            Err(mpsc::TryRecvError::Empty) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until the backend has seen `count` requests; gives the last.
async fn reaches(backend: &Backend, count: usize) -> Request {
    while backend.served() < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    backend.requests().last().cloned().unwrap()
}

fn is_early(request: &Request) -> bool {
    request.fields.all("early-data") == ["1"]
}

#[test]
fn c7_a_get_is_served_before_the_handshake_is_over_and_the_backend_is_told() {
    let (authority, backend) = (authority(), site());
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        assert!(!is_early(&reaches(&backend, 1).await));
        let (client, accepted) = returning.comes_back().await;
        let told = asks(client, b"");
        assert!(is_early(&reaches(&backend, 2).await));
        assert_eq!(weir.metric("weir_quic_early_requests_total", &[]), 1.0);
        returning.relay.opens();
        assert!(accepted.await);
        assert_eq!(answer(&told).await, (200, b"hello".to_vec()));
    });
}

#[test]
fn c7_a_post_waits_for_the_end_of_the_handshake() {
    let (authority, backend) = (authority(), site());
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let (client, accepted) = returning.comes_back().await;
        let told = asks(client, b"once");
        tokio::time::sleep(QUIET).await;
        assert_eq!(backend.served(), 1);
        returning.relay.opens();
        assert!(accepted.await);
        assert_eq!(answer(&told).await, (200, b"once".to_vec()));
        assert!(!is_early(&reaches(&backend, 2).await));
    });
    assert_eq!(weir.metric("weir_quic_early_requests_total", &[]), 0.0);
}

/// Whoever sends a first flight again must not have the service asked once more.
#[test]
fn c7_a_service_is_asked_who_may_pass_only_after_the_handshake() {
    let (authority, backend) = (authority(), site());
    let service = Backend::saying("you may");
    let auth = "[listener.web.auth.forward]\npool = \"auth\"\n[pool.auth]\nbackends = [\"@auth\"]\nhealth = \"off\"\n";
    let config = CONFIG.replace("[pool.app]", &format!("{auth}[pool.app]")).replace("certificates", EARLY);
    let setup = authority.setup(&config).with("app", backend.address()).with("auth", service.address());
    let weir = setup.start();
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let (client, accepted) = returning.comes_back().await;
        let told = asks(client, b"");
        tokio::time::sleep(QUIET).await;
        assert_eq!((service.served(), backend.served()), (1, 1));
        returning.relay.opens();
        assert!(accepted.await);
        assert_eq!(answer(&told).await, (200, b"hello".to_vec()));
        assert!(!is_early(&reaches(&backend, 2).await), "it is no copy by then");
        assert_eq!(service.served(), 2);
    });
}

/// Whoever names somebody else's address must not have requests done in that one's name.
#[test]
fn c7_a_client_that_does_not_prove_its_address_waits_too() {
    let (authority, backend) = (authority(), site());
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, false).await;
        let (client, _) = returning.comes_back().await;
        let told = asks(client, b"");
        tokio::time::sleep(QUIET).await;
        assert_eq!(backend.served(), 1);
        returning.relay.opens();
        assert_eq!(answer(&told).await, (200, b"hello".to_vec()));
        assert!(!is_early(&reaches(&backend, 2).await));
    });
}

#[test]
fn c7_a_first_flight_that_somebody_sends_again_does_nothing() {
    let (authority, backend) = (authority(), site());
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let (client, accepted) = returning.comes_back().await;
        let told = asks(client, b"");
        reaches(&backend, 2).await;
        let flight = returning.relay.flight();
        let resend = |name: &str| {
            // From several ports, so that every worker gets some of the copies.
            for _ in 0..8 {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                for datagram in &flight {
                    socket.send_to(datagram, weir.address("web")).unwrap();
                }
            }
            std::thread::sleep(QUIET);
            assert_eq!(backend.served(), 2, "{name}");
        };
        resend("while the client is being served");
        returning.relay.opens();
        assert!(accepted.await);
        assert_eq!(answer(&told).await.0, 200);
        resend("after it was served");
        returning.endpoint.close(0_u32.into(), b"");
        tokio::time::sleep(QUIET).await;
        resend("after it has gone");
    });
}

#[test]
fn c7_a_backend_may_refuse_what_may_be_a_copy() {
    let authority = authority();
    let backend = Backend::serving(|request, wire| {
        wire.answers(if is_early(request) { 425 } else { 200 }, &[], "");
        After::Keep
    });
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let (client, _) = returning.comes_back().await;
        let told = asks(client, b"");
        reaches(&backend, 2).await;
        returning.relay.opens();
        assert_eq!(answer(&told).await.0, 425);
    });
}

#[test]
fn c7_what_is_kept_for_others_is_not_fetched_for_what_may_be_a_copy() {
    let authority = authority();
    let backend = Backend::serving(|request, wire| {
        let store = if request.target == "/" { "no-store" } else { "max-age=60" };
        wire.answers(200, &[("cache-control", store)], "hello");
        After::Keep
    });
    let routes = "[[listener.web.route]]\npool = \"app\"\ncache = {}\n[pool.app]";
    let config = CONFIG.replace("[pool.app]", routes).replace("pool = \"app\"\ntls", "tls");
    let weir = setup(&authority, &backend, &config);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let ask = async |mut client: Client| {
            let request = http::Request::get("https://shop.example/kept").body(()).unwrap();
            let mut stream = client.requests.send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            (client, stream)
        };
        // Nothing is kept yet.
        let (client, _) = returning.comes_back().await;
        let (_client, mut stream) = ask(client).await;
        tokio::time::sleep(QUIET).await;
        assert_eq!(backend.served(), 1);
        returning.relay.opens();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        assert!(!is_early(&reaches(&backend, 2).await));
        // Now it is: who asks early is answered, and nobody else troubled.
        let before = weir.metric("weir_cache_requests_total", &[("listener", "web"), ("result", "hit")]);
        let (client, _) = returning.comes_back().await;
        let (_client, mut stream) = ask(client).await;
        tokio::time::sleep(QUIET).await;
        let hits = weir.metric("weir_cache_requests_total", &[("listener", "web"), ("result", "hit")]);
        assert_eq!(hits, before + 1.0);
        returning.relay.opens();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        assert_eq!(backend.served(), 2);
    });
}

/// A client keeps to the limits that it was told when it got its ticket (RFC 9000 section 7.4.1).
#[test]
fn sessions_outlive_a_reload_unless_their_limits_have_changed() {
    let (authority, backend) = (authority(), site());
    let mut weir = setup(&authority, &backend, CONFIG);
    let config = CONFIG.replace("certificates", EARLY);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        for (reloaded, is_taken) in [
            (format!("{config}\n[runtime]\ndrain = \"21s\"\n"), true),
            (config.replace("pool = \"app\"", "pool = \"app\"\nlimits = { streams = 7 }"), false),
        ] {
            weir.reloads(&reloaded);
            let (client, accepted) = returning.comes_back().await;
            returning.relay.opens();
            assert_eq!(accepted.await, is_taken, "{reloaded}");
            drop(client);
            returning.visits().await;
        }
    });
}

#[test]
fn a_new_process_takes_nothing_early_that_the_old_one_promised() {
    let (authority, backend) = (authority(), site());
    let weir = setup(&authority, &backend, CONFIG);
    run(async {
        let returning = Returning::new(&authority, &weir, true).await;
        let old = weir.pids();
        weir.signals(Signal::USR2);
        until("the new process serves", || weir.pids().iter().any(|pid| !old.contains(pid)).then_some(()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (client, accepted) = returning.comes_back().await;
        let told = asks(client, b"");
        tokio::time::sleep(QUIET).await;
        assert_eq!(backend.served(), 1);
        returning.relay.opens();
        assert!(!accepted.await);
        drop(told);
        returning.visits().await;
    });
}
