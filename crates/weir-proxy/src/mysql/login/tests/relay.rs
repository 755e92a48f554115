//! Logins that a client and a server settle between them.

use weir_balance::PickInput;

use super::*;

impl Rig {
    /// A client that has been greeted, and logs in with the server. Then what the server has said.
    async fn relayed(&self) -> (Client, JoinHandle<Result<Vec<u8>, End>>) {
        let accepting = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(accepting.local_addr().unwrap()).await.unwrap();
        let stream = Stream::plain(accepting.accept().await.unwrap().0);
        let (worker, listener) = (self.worker.clone(), self.listener.clone());
        let session = tokio::task::spawn_local(async move {
            let waker = std::future::poll_fn(|context| Poll::Ready(context.waker().clone())).await;
            let deadline = worker.deadlines.register(waker);
            let pool = &listener.pools[0];
            let terms = LoginTerms {
                worker: &worker,
                listener: &listener,
                pool,
                deadline: &deadline,
                client: "192.0.2.7".parse().unwrap(),
                offers: Capabilities::NONE,
            };
            let input = PickInput {
                now: clock::now(),
                draw: [0; 2],
                key: None,
                sticky: None,
                exclude: &[],
                role: None,
            };
            let chosen = pool.choose(&input).unwrap_or_else(|refusal| panic!("{refusal:?}"));
            let (_, _, ok) = relay(&terms, stream, None, 0x8000_0007, &chosen, None).await?;
            Ok(ok.to_vec())
        });
        let mut client = Client {
            socket,
            tls: None,
            received: Vec::new(),
            sequence: 0,
            nonce: [0; 20],
            greeting: Vec::new(),
        };
        client.nonce = ServerGreeting::parse(&client.hear().await).unwrap().nonce().unwrap();
        (client, session)
    }
}

#[tokio::test(flavor = "local")]
async fn a_relayed_login_answers_the_servers_nonce_and_leaves_nothing_behind() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backends = format!("backends = ['{}']", server.local_addr().unwrap());
    let rig = Rig::towards(&backends, "", "passwords = 'relay'");
    let served = tokio::task::spawn_local(async move {
        let socket = server.accept().await.unwrap().0;
        let mut server = Client {
            socket,
            tls: None,
            received: Vec::new(),
            sequence: 0,
            nonce: [b'n'; 20],
            greeting: Vec::new(),
        };
        let greeting = ServerGreeting {
            server_version: b"9.7.4",
            connection_id: 7,
            capabilities: Capabilities::SPOKEN,
            collation: 255,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: server.nonce.to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        };
        let mut payload = Vec::new();
        greeting.write(&mut payload);
        server.say(&payload).await;
        let login = server.hear().await;
        let login = ClientLogin::parse(&login).unwrap();
        assert_eq!((login.user, login.auth_response), (&b"app"[..], &b""[..]));
        assert_eq!(login.plugin, NO_PLUGIN);
        server.say(b"\xfesome_plugin\0NNNNNNNNNNNNNNNNNNNN\0").await;
        assert_eq!(server.hear().await, b"first");
        server.say(b"\x01further").await;
        assert_eq!(server.hear().await, b"second");
        server.say(b"\0\0\0\x02\0\0\0").await;
    });
    let (mut client, session) = rig.relayed().await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear_switch().await, b"some_plugin");
    assert_eq!(client.nonce, [b'N'; 20]);
    client.say(b"first").await;
    assert_eq!(client.hear().await, b"\x01further");
    client.say(b"second").await;
    assert_eq!(session.await.unwrap().as_deref(), Ok(&b"\0\0\0\x02\0\0\0"[..]));
    served.await.unwrap();
    assert_eq!(rig.listener.pools[0].shared.accounts.count(), 0);
    assert_eq!(rig.count(Login::Relayed), 1);
}

/// Needs what the real server of `attach` needs, and the fresh accounts `relay1` and `relay2`.
#[tokio::test(flavor = "local")]
#[ignore = "needs a MySQL server, which `lab/peers install mysqld` gets; see attach/tests.rs"]
async fn a_real_server_and_a_client_without_tls_settle_a_login_over_one_leg_of_tls() {
    let address = std::env::var("WEIR_MYSQLD").unwrap();
    let tls = format!("tls = {{ ca = '{}', verify = 'ca' }}", std::env::var("WEIR_MYSQLD_CA").unwrap());
    for (user, tls) in [(&b"relay1"[..], ""), (b"relay2", &*tls)] {
        let rig = Rig::towards(&format!("backends = ['{address}']\n{tls}"), "", "passwords = 'relay'");
        let (mut client, session) = rig.relayed().await;
        client.log_in(user, CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
        assert_eq!(client.hear_switch().await, CACHING_SHA2_PASSWORD);
        client.say(&client.proof(b"sesame")).await;
        client.show_by_rsa(b"sesame").await;
        assert!(session.await.unwrap().is_ok(), "{user:?} is let in with the server's cache cold");
        let (mut client, session) = rig.relayed().await;
        client.log_in(user, CACHING_SHA2_PASSWORD, b"").await;
        client.hear_switch().await;
        client.say(&client.proof(b"sesame")).await;
        assert_eq!(client.hear().await, b"\x01\x03");
        assert!(session.await.unwrap().is_ok());
        let (mut client, session) = rig.relayed().await;
        client.log_in(user, MYSQL_NATIVE_PASSWORD, &[7; 20]).await;
        client.hear_switch().await;
        client.say(&client.proof(b"wrong")).await;
        client.show_by_rsa(b"wrong").await;
        assert_eq!(error(&client.hear().await).0, 1045);
        assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    }
}
