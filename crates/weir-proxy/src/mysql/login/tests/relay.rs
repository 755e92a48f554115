//! Logins that are relayed between a client and a server.

use weir_balance::PickInput;

use super::*;
use crate::backends::{Chosen, ProxyHeader};
use crate::mysql::attach::LoggedIn;
use crate::mysql::login::relay::NO_PLUGIN;

/// Lets the chosen server decide.
pub async fn settles(
    mut undecided: Undecided<'_>,
    chosen: &Chosen,
) -> Result<(ClientLoggedIn, LoggedIn, Zeroizing<Vec<u8>>), End> {
    let client = crate::client::Client::of_peer("192.0.2.7:4711".parse().unwrap());
    let header = ProxyHeader::of(&chosen.pool, &client, || Ok(client.address));
    match undecided.ask(chosen, &header).await {
        Ok(asked) => undecided.settle(chosen, asked).await,
        Err(error) => Err(undecided.refused(error).await),
    }
}

impl Rig {
    /// A client that has received the greeting and logs in with the server; the task returns what the server
    /// has sent.
    async fn relayed(&self) -> (Client, JoinHandle<Result<Vec<u8>, End>>) {
        let (socket, stream) = connection().await;
        let (worker, listener) = (self.worker.clone(), self.listener.clone());
        let session = tokio::task::spawn_local(async move {
            let login = LoginUnderTest::begin(worker, listener).await;
            let (terms, listener) = (login.terms(), &login.listener);
            let undecided = hear(&terms, stream, None, 0x8000_0007).await?;
            let (_, _, ok) = settles(undecided, &chosen(&listener.pools[0])).await?;
            Ok(ok.to_vec())
        });
        let mut client = Client::over(socket);
        client.nonce = ServerGreeting::parse(&client.hear().await).unwrap().nonce().unwrap();
        (client, session)
    }
}

/// The pool's one server.
pub fn chosen(pool: &Rc<WorkerPool>) -> Chosen {
    let input =
        PickInput { now: clock::now(), draw: [0; 2], key: None, sticky: None, exclude: &[], role: None };
    pool.choose(&input).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

/// A server that has received a login with an unknown plugin.
async fn greeted(server: TcpListener) -> Client {
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
    server
}

/// A server whose account uses `some_plugin`, and a pool with that server.
async fn of_some_plugin(pool: &str) -> (Rig, JoinHandle<()>) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backends = format!("backends = ['{}']", server.local_addr().unwrap());
    let served = tokio::task::spawn_local(async move {
        let mut server = greeted(server).await;
        server.say(b"\xfesome_plugin\0NNNNNNNNNNNNNNNNNNNN\0").await;
        assert_eq!(server.hear().await, b"first");
        server.say(b"\x01further").await;
        assert_eq!(server.hear().await, b"second");
        server.say(b"\0\0\0\x02\0\0\0").await;
    });
    (Rig::towards(&backends, "", pool), served)
}

/// Continues as a client that supports `some_plugin`.
async fn prove_by_some_plugin(client: &mut Client) {
    assert_eq!(client.hear_switch().await, b"some_plugin");
    assert_eq!(client.nonce, [b'N'; 20]);
    client.say(b"first").await;
    assert_eq!(client.hear().await, b"\x01further");
    client.say(b"second").await;
}

#[tokio::test(flavor = "local")]
async fn a_relayed_login_answers_the_servers_nonce_and_leaves_nothing_behind() {
    let (rig, served) = of_some_plugin("passwords = 'relay'").await;
    let (mut client, session) = rig.relayed().await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    prove_by_some_plugin(&mut client).await;
    assert_eq!(session.await.unwrap().as_deref(), Ok(&b"\0\0\0\x02\0\0\0"[..]));
    served.await.unwrap();
    assert_eq!(rig.listener.pools[0].shared.accounts.count(), 0);
    assert_eq!(rig.count(Login::Relayed), 1);
}

#[tokio::test(flavor = "local")]
async fn an_account_of_another_plugin_than_one_with_a_password_is_relayed_unasked() {
    for password in [&b""[..], b"shown"] {
        let (rig, served) = of_some_plugin("").await;
        let (mut client, session) = rig.client(BY_PLUGIN).await;
        if password.is_empty() {
            client.log_in(b"app", CACHING_SHA2_PASSWORD, b"").await;
        } else {
            client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(password)).await;
            client.show_by_rsa(password).await;
        }
        prove_by_some_plugin(&mut client).await;
        assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
        served.await.unwrap();
        assert_eq!((rig.asked().len(), rig.listener.pools[0].shared.accounts.count()), (1, 0));
        assert_eq!(rig.count(Login::Relayed), 1);
    }
}

#[tokio::test(flavor = "local")]
async fn a_client_that_comes_by_a_plugin_without_a_password_is_asked_for_none() {
    let (rig, served) = of_some_plugin("").await;
    let (mut client, session) = rig.client("").await;
    client.log_in(b"app", b"some_plugin", b"to another nonce").await;
    prove_by_some_plugin(&mut client).await;
    assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
    served.await.unwrap();
    assert_eq!(rig.asked().len(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_client_that_was_asked_for_a_plugin_hears_which_the_account_has() {
    let rig = Rig::new("", "");
    let (mut client, session) = rig.client(BY_PLUGIN).await;
    client.log_in(b"app", MYSQL_NATIVE_PASSWORD, &[7; 20]).await;
    assert_eq!(client.hear_switch().await, CACHING_SHA2_PASSWORD);
    client.say(b"").await;
    let (code, text) = error(&client.hear().await);
    assert_eq!(code, 1251);
    assert!(text.contains("some_plugin") && text.contains("passwords = \"relay\""), "{text}");
    assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
}

#[tokio::test(flavor = "local")]
async fn a_stranger_in_a_servers_place_is_not_shown_a_password_that_was_to_go_to_weir() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::towards(&format!("backends = ['{}']", server.local_addr().unwrap()), "", "");
    let served = tokio::task::spawn_local(async move {
        let mut server = greeted(server).await;
        server.say(b"\xfecaching_sha2_password\0NNNNNNNNNNNNNNNNNNNN\0").await;
        assert_eq!(server.hear().await, b"", "nothing more");
    });
    let (mut client, session) = rig.client(BY_PLUGIN).await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, b"").await;
    assert_eq!(error(&client.hear().await).0, 1251);
    assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    served.await.unwrap();
}

/// Needs the real server of `attach/tests.rs`, and the fresh accounts `relay1` and `relay2`.
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
