//! Servers that behave as each test specifies, and a real one.

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use weir_balance::PickInput;
use weir_io::clock;
use weir_mysql::authentication::{
    AuthSwitch, FAST_AUTH_SUCCESS, PERFORM_FULL_AUTHENTICATION, REQUEST_PUBLIC_KEY, write_more_data,
};
use weir_mysql::greeting::{MYSQL_CLEAR_PASSWORD, MYSQL_NATIVE_PASSWORD};
use weir_mysql::outcome::{OK, OkPacket};
use weir_mysql::packet::{HEADER_BYTES, write_packet_with};
use weir_tls::PasswordKey;
use weir_tls::password::Password;

use super::*;
use crate::client::Client;
use crate::mysql::server::{ConnectionKind, IdleServers, ServerConnection};
use crate::worker::tests::serving;

const NONCE: &Nonce = b"abcdefghijklmnopqrst";
const OTHER_NONCE: &Nonce = b"ABCDEFGHIJKLMNOPQRST";

/// A server's end of a connection.
struct Server {
    socket: TcpStream,
    sequence: u8,
}

impl Server {
    async fn say(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut packet = Vec::new();
        self.sequence = write_packet_with(&mut packet, self.sequence, fill);
        self.socket.write_all(&packet).await.unwrap();
    }

    async fn hear(&mut self) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES];
        if self.socket.read_exact(&mut header).await.is_err() {
            return Vec::new();
        }
        assert_eq!(header[3], self.sequence, "sequence ids follow each other");
        self.sequence = header[3].wrapping_add(1);
        let mut payload = vec![0; usize::from(header[0]) | usize::from(header[1]) << 8];
        self.socket.read_exact(&mut payload).await.unwrap();
        payload
    }

    async fn greet(&mut self, capabilities: Capabilities) {
        self.greet_as(b"9.7.4", capabilities).await;
    }

    async fn greet_as(&mut self, server_version: &[u8], capabilities: Capabilities) {
        let greeting = ServerGreeting {
            server_version,
            connection_id: 7,
            capabilities,
            collation: 255,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: NONCE.to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        };
        self.say(|out| greeting.write(out)).await;
    }

    async fn let_in(&mut self) {
        self.say(|out| OkPacket::of(StatusFlags::AUTOCOMMIT).write(out, OK, Capabilities::SESSION_TRACK))
            .await;
    }
}

/// A pool of one server, which handles its first connection with `serve`.
async fn server<F: Future<Output = ()> + 'static>(
    pool: &str,
    serve: impl FnOnce(Server) -> F + 'static,
) -> (Rc<Worker>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (worker, _) = serving(&config(&listener.local_addr().unwrap().to_string(), pool));
    let served = tokio::task::spawn_local(async move {
        serve(Server { socket: listener.accept().await.unwrap().0, sequence: 0 }).await;
    });
    (worker, served)
}

fn config(address: &str, pool: &str) -> String {
    format!(
        "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:80'\npool = 'app'\n\
         [pool.app]\nbackends = ['{address}']\n{pool}\n[pool.app.mysql]\ntopology = 'static'\n"
    )
}

fn chosen(worker: &Worker) -> Chosen {
    let pool = worker.pool("app").unwrap();
    let input =
        PickInput { now: clock::now(), draw: [0, 0], key: None, sticky: None, exclude: &[], role: None };
    pool.choose(&input).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

async fn deadline(worker: &Worker) -> Deadline {
    let waker = std::future::poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    deadline.set(clock::now() + Duration::from_secs(30));
    deadline
}

fn account(user: &[u8], password: &[u8]) -> Account {
    Account::new(user, Password::new(password).unwrap())
}

fn login(account: &Account) -> ServerLogin<'_> {
    ServerLogin {
        account,
        capabilities: Capabilities::SPOKEN,
        max_packet_bytes: 1 << 24,
        collation: 255,
        database: None,
        attributes: b"",
        compression: None,
    }
}

async fn attach(worker: &Worker, user: &[u8], password: &[u8]) -> Result<LoggedIn, AttachError> {
    let account = account(user, password);
    let chosen = chosen(worker);
    let client = Client::of_peer("192.0.2.7:4711".parse().unwrap());
    let header = ProxyHeader::of(&chosen.pool, &client, || Ok(client.address));
    log_in(worker, &chosen, &deadline(worker).await, &header, &login(&account)).await
}

#[tokio::test(flavor = "local")]
async fn a_server_of_mariadbs_is_not_logged_in_to_for_sessions_that_share_connections() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet_as(b"5.5.5-10.11.19-MariaDB-0+deb12u1", Capabilities::SPOKEN).await;
        assert_eq!(server.hear().await, b"", "nothing is said to it");
    })
    .await;
    let refused = attach(&worker, b"app", b"sesame").await;
    assert!(matches!(refused, Err(AttachError::MariaDb)));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_that_knows_the_account_lets_in_by_the_short_proof() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN | Capabilities::SSL).await;
        let payload = server.hear().await;
        let login = ClientLogin::parse(&payload).unwrap();
        assert_eq!(login.user, b"app");
        assert_eq!(login.auth_response, &**Password::new(b"sesame").unwrap().answer_sha2(NONCE));
        assert!(!login.capabilities.has(Capabilities::SSL), "the pool wants no TLS");
        server.say(|out| write_more_data(out, &[FAST_AUTH_SUCCESS])).await;
        server.let_in().await;
    })
    .await;
    let logged_in = attach(&worker, b"app", b"sesame").await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(logged_in.thread_id, 7);
    assert!(logged_in.capabilities.has(Capabilities::SESSION_TRACK));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_that_wants_the_password_gets_it_under_its_key_and_nothing_in_the_clear() {
    let (worker, served) = server("", async |mut server: Server| {
        let key = PasswordKey::load(None).unwrap();
        server.greet(Capabilities::SPOKEN).await;
        server.hear().await;
        server.say(|out| write_more_data(out, &[PERFORM_FULL_AUTHENTICATION])).await;
        assert_eq!(server.hear().await, [REQUEST_PUBLIC_KEY]);
        server.say(|out| write_more_data(out, key.public_pem().as_bytes())).await;
        let sealed = server.hear().await;
        assert_eq!(key.open(&sealed, NONCE).unwrap().bytes(), b"sesame");
        server.let_in().await;
    })
    .await;
    assert!(attach(&worker, b"app", b"sesame").await.is_ok());
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_without_tls_that_asks_for_a_password_in_the_clear_does_not_get_it() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN).await;
        server.hear().await;
        let switch = AuthSwitch { plugin: MYSQL_CLEAR_PASSWORD, data: b"" };
        server.say(|out| switch.write(out)).await;
        assert_eq!(server.hear().await, b"", "the connection is closed");
    })
    .await;
    let refused = attach(&worker, b"app", b"sesame").await.err();
    assert!(matches!(refused, Some(AttachError::Plugin(name)) if name == "mysql_clear_password"));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_that_asks_for_a_further_plugin_is_answered_by_it_and_its_error_is_kept() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN).await;
        server.hear().await;
        let switch = AuthSwitch { plugin: MYSQL_NATIVE_PASSWORD, data: OTHER_NONCE };
        server.say(|out| switch.write(out)).await;
        assert_eq!(server.hear().await, **Password::new(b"sesame").unwrap().answer_native(OTHER_NONCE));
        server.say(|out| out.extend_from_slice(b"\xff\x2e\x0c#HY000Account is locked")).await;
    })
    .await;
    let Some(AttachError::Refused(error)) = attach(&worker, b"app", b"sesame").await.err() else {
        panic!("a refusal is expected");
    };
    assert_eq!((error.code, &*error.message), (3118, &b"Account is locked"[..]));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_that_can_not_do_what_the_client_was_told_is_not_logged_in_to() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN.without(Capabilities::DEPRECATE_EOF)).await;
        assert_eq!(server.hear().await, b"");
    })
    .await;
    let lacks = attach(&worker, b"app", b"sesame").await.err();
    assert!(matches!(lacks, Some(AttachError::Lacks(Capabilities::DEPRECATE_EOF))));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_server_without_tls_is_spoken_to_only_where_the_pool_prefers_it() {
    for (mode, is_let_in) in [("required", false), ("preferred", true)] {
        let tls = format!("tls = {{ verify = false, mode = '{mode}' }}");
        let (worker, served) = server(&tls, async move |mut server: Server| {
            server.greet(Capabilities::SPOKEN).await;
            match is_let_in {
                true => assert!(!server.hear().await.is_empty()),
                false => assert_eq!(server.hear().await, b""),
            }
            if is_let_in {
                server.let_in().await;
            }
        })
        .await;
        match attach(&worker, b"app", b"sesame").await {
            Ok(_) => assert!(is_let_in),
            Err(error) => assert!(matches!(error, AttachError::NoTls) && !is_let_in, "{error}"),
        }
        served.await.unwrap();
    }
}

#[tokio::test(flavor = "local")]
async fn bytes_behind_the_greeting_are_nobodys_word() {
    let (worker, served) = server("tls = { verify = false }", async |mut server: Server| {
        let mut packets = Vec::new();
        let greeting = ServerGreeting {
            server_version: b"9.7.4",
            connection_id: 7,
            capabilities: Capabilities::SPOKEN | Capabilities::SSL,
            collation: 255,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: NONCE.to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        };
        write_packet_with(&mut packets, 0, |out| greeting.write(out));
        let ok = OkPacket::of(StatusFlags::AUTOCOMMIT);
        write_packet_with(&mut packets, 2, |out| ok.write(out, OK, Capabilities::NONE));
        server.socket.write_all(&packets).await.unwrap();
        server.sequence = 1;
        assert_eq!(server.hear().await, b"", "nothing is said to it any more");
    })
    .await;
    let refused = attach(&worker, b"app", b"sesame").await.err();
    assert!(matches!(refused, Some(AttachError::Talk(TalkError::Protocol(WireError::UnexpectedPacket)))));
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn an_idle_connection_is_logged_in_to_anew_by_a_new_nonce() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN).await;
        server.hear().await;
        server.let_in().await;
        server.sequence = 0;
        let payload = server.hear().await;
        let change = ChangeUser::parse(&payload, Capabilities::SPOKEN).unwrap();
        assert_eq!((change.user, change.auth_response), (&b"other"[..], &b""[..]));
        let switch = AuthSwitch { plugin: CACHING_SHA2_PASSWORD, data: OTHER_NONCE };
        server.say(|out| switch.write(out)).await;
        assert_eq!(server.hear().await, **Password::new(b"word").unwrap().answer_sha2(OTHER_NONCE));
        server.say(|out| write_more_data(out, &[FAST_AUTH_SUCCESS])).await;
        server.let_in().await;
    })
    .await;
    let LoggedIn { mut connection, capabilities, .. } =
        attach(&worker, b"app", b"sesame").await.unwrap_or_else(|error| panic!("{error}"));
    let (account, deadline) = (account(b"other", b"word"), deadline(&worker).await);
    let chosen = chosen(&worker);
    let changed =
        change_user(&worker, &chosen, &mut connection, capabilities, &deadline, &login(&account)).await;
    assert_eq!(changed.unwrap_or_else(|error| panic!("{error}")), StatusFlags::AUTOCOMMIT);
    served.await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn an_idle_connection_is_used_again_by_nobody_but_whose_login_was_the_same() {
    let (worker, served) = server("", async |mut server: Server| {
        server.greet(Capabilities::SPOKEN).await;
        server.hear().await;
        server.let_in().await;
        std::future::pending::<()>().await;
    })
    .await;
    let logged_in = attach(&worker, b"app", b"sesame").await.unwrap_or_else(|error| panic!("{error}"));
    let chosen = chosen(&worker);
    let (backend, idle) = (chosen.backend(), IdleServers::default());
    let kind = |user, password, capabilities| ConnectionKind {
        account: Rc::new(account(user, password)),
        capabilities,
        collation: 255,
    };
    let own = || kind(b"app", b"sesame", Capabilities::SPOKEN);
    idle.keep(backend, ServerConnection::of_login(logged_in, own()), clock::now(), 9);
    for other in [
        kind(b"root", b"sesame", Capabilities::SPOKEN),
        kind(b"app", b"changed", Capabilities::SPOKEN),
        kind(b"app", b"", Capabilities::SPOKEN),
        kind(b"app", b"sesame", Capabilities::SPOKEN.without(Capabilities::FOUND_ROWS)),
        kind(b"app", b"sesame", Capabilities::SPOKEN | Capabilities::SSL),
        ConnectionKind { collation: 45, ..own() },
    ] {
        assert!(idle.take_any(backend, &other).is_none());
        let state = Rc::default();
        assert!(idle.take(backend, &other, &state, clock::now(), Duration::from_secs(60)).is_none());
    }
    assert!(idle.take_any(backend, &own()).is_some());
    served.abort();
}

/// Needs a server at `WEIR_MYSQLD` with fresh accounts `cold1` to `cold3` (password `sesame`), `elder` with
/// sha256_password, and `empty` without a password. `WEIR_MYSQLD_CA` names the file with its CA certificate.
#[tokio::test(flavor = "local")]
#[ignore = "needs a MySQL server, which `lab/peers install mysqld` gets; see the text above"]
async fn a_real_server_lets_in_with_its_cache_cold_and_warm_with_and_without_tls() {
    let address = std::env::var("WEIR_MYSQLD").unwrap();
    let tls = format!("tls = {{ ca = '{}', verify = 'ca' }}", std::env::var("WEIR_MYSQLD_CA").unwrap());
    for (user, pool) in [(&b"cold1"[..], ""), (b"cold2", &*tls)] {
        let (worker, _) = serving(&config(&address, pool));
        for _ in ["cold", "warm"] {
            let logged_in = attach(&worker, user, b"sesame").await.unwrap_or_else(|error| panic!("{error}"));
            let LoggedIn { mut connection, capabilities, .. } = logged_in;
            assert_eq!(capabilities.has(Capabilities::SSL), !pool.is_empty());
            for (user, password) in
                [(&b"cold3"[..], &b"sesame"[..]), (b"elder", b"sesame"), (b"empty", b""), (user, b"sesame")]
            {
                let (account, deadline) = (account(user, password), deadline(&worker).await);
                let chosen = chosen(&worker);
                let login = login(&account);
                let changed =
                    change_user(&worker, &chosen, &mut connection, capabilities, &deadline, &login).await;
                assert!(changed.is_ok(), "{:?}: {}", account, changed.err().unwrap());
            }
            let (account, deadline) = (account(user, b"wrong"), deadline(&worker).await);
            let chosen = chosen(&worker);
            let changed =
                change_user(&worker, &chosen, &mut connection, capabilities, &deadline, &login(&account))
                    .await;
            assert!(matches!(changed, Err(AttachError::Refused(error)) if error.code == 1045));
        }
        let refused = attach(&worker, b"nobody", b"sesame").await.err();
        assert!(matches!(refused, Some(AttachError::Refused(error)) if error.code == 1045));
    }
}
