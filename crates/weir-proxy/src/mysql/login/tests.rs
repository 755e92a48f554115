//! Clients log in over the loopback interface; each test plays the server's part.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::task::Poll;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use weir_mysql::authentication::{AuthSwitch, LoginAnswer};
use weir_mysql::greeting::MYSQL_NATIVE_PASSWORD;
use weir_mysql::login::SslRequest;
use weir_mysql::outcome::ErrPacket;
use weir_mysql::packet::{HEADER_BYTES, write_packet_with};
use weir_state::server::ServerFacts;
use weir_tls::ServerKey;
use weir_tls::full_logins::LoginRates;
use weir_tls::password::Password;

use super::*;
use crate::worker::tests::{listener, serving};

mod relay;

/// A value for the right password that stands for an account without one: whatever the client sends, a server
/// says that the account has a plugin.
const BY_PLUGIN: &str = "by some_plugin";

/// A worker with one MySQL listener, and the requests that servers have received.
struct Rig {
    worker: Rc<Worker>,
    listener: Rc<WorkerListener>,
    asked: Rc<RefCell<Vec<(String, String)>>>,
}

/// The user of the session that began, or how it ended.
type Outcome = Result<String, End>;

impl Rig {
    /// `pool` is the text of `[pool.app.mysql]`, `of_listener` that of `[listener.db]`.
    fn new(of_listener: &str, pool: &str) -> Rig {
        Rig::towards("backends = ['127.0.0.1:9']", of_listener, pool)
    }

    /// The same, with the text of `[pool.app]`.
    fn towards(of_pool: &str, of_listener: &str, mysql: &str) -> Rig {
        let (worker, _) = serving(&format!(
            "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:80'\npool = 'app'\n{of_listener}\n\
             [pool.app]\nhealth = 'off'\n{of_pool}\n[pool.app.mysql]\ntopology = 'static'\n{mysql}"
        ));
        let listener = listener(&worker, 0);
        Rig { worker, listener, asked: Rc::default() }
    }

    /// A client that has received the greeting. Its login is confirmed if the password is `right`.
    async fn client(&self, right: &'static str) -> (Client, JoinHandle<Outcome>) {
        let (socket, stream) = connection().await;
        let (worker, listener, asked) = (self.worker.clone(), self.listener.clone(), self.asked.clone());
        let session = tokio::task::spawn_local(async move {
            let login = LoginUnderTest::begin(worker, listener).await;
            let (terms, listener) = (login.terms(), &login.listener);
            let confirm = async |candidate: &Candidate, _: &mut Stream| {
                let Account { user, password, .. } = &*candidate.account;
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                asked.borrow_mut().push((text(user), text(password.bytes())));
                match password.bytes() == right.as_bytes() {
                    true => Ok(()),
                    false if right == BY_PLUGIN => Err(Denied::Plugin("some_plugin".to_owned())),
                    false => Err(Denied::Refused(ServerError {
                        code: 1045,
                        state: *b"28000",
                        message: b"said by a server"[..].into(),
                    })),
                }
            };
            let client = match run(&terms, stream, None, 0x8000_0007, confirm).await? {
                Opened::LoggedIn(client, ()) => client,
                Opened::Undecided(undecided) => {
                    let chosen = relay::chosen(&listener.pools[0]);
                    let (client, ..) = relay::settles(undecided, &chosen).await?;
                    assert!(client.candidate.account.password.is_empty(), "none is kept");
                    client
                }
            };
            Ok(String::from_utf8(client.candidate.account.user.to_vec()).unwrap())
        });
        let mut client = Client::over(socket);
        client.greeting = client.hear().await;
        let greeting = ServerGreeting::parse(&client.greeting).unwrap();
        assert_eq!((greeting.connection_id, greeting.plugin), (0x8000_0007, CACHING_SHA2_PASSWORD));
        client.nonce = greeting.nonce().unwrap();
        (client, session)
    }

    /// The passwords that servers were asked to confirm.
    fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().map(|(_, password)| password.clone()).collect()
    }

    fn count(&self, login: Login) -> u64 {
        self.listener.shared.cells.total(|cells| &cells.logins[login as usize])
    }
}

/// A client's socket, and the stream at our end of it.
async fn connection() -> (TcpStream, Stream) {
    let accepting = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(accepting.local_addr().unwrap()).await.unwrap();
    (socket, Stream::plain(accepting.accept().await.unwrap().0))
}

/// What a login needs of the task that it runs in.
struct LoginUnderTest {
    worker: Rc<Worker>,
    listener: Rc<WorkerListener>,
    deadline: Deadline,
    report: RefCell<Report>,
}

impl LoginUnderTest {
    /// Its deadline wakes the task that calls this.
    async fn begin(worker: Rc<Worker>, listener: Rc<WorkerListener>) -> LoginUnderTest {
        let waker = std::future::poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = worker.deadlines.register(waker);
        LoginUnderTest { worker, listener, deadline, report: RefCell::default() }
    }

    fn terms(&self) -> LoginTerms<'_> {
        let LoginUnderTest { worker, listener, deadline, report } = self;
        let (pool, client) = (&listener.pools[0], "192.0.2.7".parse().unwrap());
        LoginTerms { worker, listener, pool, deadline, client, offers: Capabilities::NONE, report }
    }
}

struct Client {
    socket: TcpStream,
    tls: Option<rustls::ClientConnection>,
    received: Vec<u8>,
    sequence: u8,
    nonce: Nonce,
    greeting: Vec<u8>,
}

impl Client {
    fn over(socket: TcpStream) -> Client {
        Client { socket, tls: None, received: Vec::new(), sequence: 0, nonce: [0; 20], greeting: Vec::new() }
    }

    /// The payload of the next packet; empty if the connection ends.
    async fn hear(&mut self) -> Vec<u8> {
        loop {
            if let Some((header, rest)) = self.received.split_first_chunk::<HEADER_BYTES>() {
                let length = usize::from(header[0]) | usize::from(header[1]) << 8;
                if let Some(payload) = rest.get(..length) {
                    let payload = payload.to_vec();
                    assert_eq!(header[3], self.sequence, "sequence ids follow each other");
                    self.sequence = header[3].wrapping_add(1);
                    self.received.drain(..HEADER_BYTES + length);
                    return payload;
                }
            }
            let mut bytes = [0; 4096];
            let count = self.socket.read(&mut bytes).await.unwrap_or(0);
            if count == 0 {
                return Vec::new();
            }
            let Some(tls) = &mut self.tls else {
                self.received.extend_from_slice(&bytes[..count]);
                continue;
            };
            let mut came = &bytes[..count];
            while !came.is_empty() {
                tls.read_tls(&mut came).unwrap();
                tls.process_new_packets().unwrap();
            }
            let _ = tls.reader().read_to_end(&mut self.received);
            self.flush().await;
        }
    }

    /// As [`Self::hear`], after a packet that was not sent by [`Self::say`]: the next one has this sequence
    /// id.
    async fn hear_after(&mut self, sequence: u8) -> Vec<u8> {
        self.sequence = sequence;
        self.hear().await
    }

    async fn flush(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        let mut bytes = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut bytes).unwrap();
        }
        self.socket.write_all(&bytes).await.unwrap();
    }

    async fn say(&mut self, payload: &[u8]) {
        let mut packet = Vec::new();
        self.sequence = write_packet_with(&mut packet, self.sequence, |out| out.extend_from_slice(payload));
        match &mut self.tls {
            Some(tls) => {
                tls.writer().write_all(&packet).unwrap();
                self.flush().await;
            }
            None => self.socket.write_all(&packet).await.unwrap(),
        }
    }

    /// Sends a login with this plugin and answer.
    async fn log_in(&mut self, user: &[u8], plugin: &[u8], answer: &[u8]) {
        let login = login(user, plugin, answer);
        self.say(&login).await;
    }

    /// The fast proof of a password.
    fn proof(&self, password: &[u8]) -> Vec<u8> {
        Password::new(password).unwrap().answer_sha2(&self.nonce).to_vec()
    }

    /// Receives a request for another plugin, with a nonce; returns the plugin.
    async fn hear_switch(&mut self) -> Vec<u8> {
        let switch = self.hear().await;
        let Ok(LoginAnswer::Switch(AuthSwitch { plugin, data })) =
            LoginAnswer::parse(&switch, Capabilities::SPOKEN)
        else {
            panic!("a switch is expected, not {}", switch.escape_ascii());
        };
        self.nonce = data.try_into().unwrap();
        plugin.to_vec()
    }

    /// Continues as a client without TLS that asks for the key.
    async fn show_by_rsa(&mut self, password: &[u8]) {
        assert_eq!(self.hear().await, b"\x01\x04", "the password itself is asked for");
        self.say(b"\x02").await;
        let pem = self.hear().await;
        let key = ServerKey::from_pem(&pem[1..]).expect("more data that are a key");
        let sealed = key.seal(&Password::new(password).unwrap(), &self.nonce).unwrap();
        self.say(&sealed).await;
    }
}

fn login(user: &[u8], plugin: &[u8], answer: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    let login = ClientLogin {
        capabilities: Capabilities::SPOKEN.without(Capabilities::CONNECT_WITH_DB),
        max_packet_bytes: 1 << 24,
        collation: 255,
        user,
        auth_response: answer,
        database: None,
        plugin,
        attributes: b"",
        zstd_level: None,
    };
    login.write(&mut payload);
    payload
}

/// The code and text of an ERR packet.
fn error(payload: &[u8]) -> (u16, String) {
    let packet = ErrPacket::parse(payload).expect("an ERR packet");
    (packet.code, String::from_utf8(packet.message.to_vec()).unwrap())
}

#[tokio::test(flavor = "local")]
async fn a_password_is_learned_in_full_and_shown_by_the_short_proof_from_then_on() {
    let rig = Rig::new("", "");
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    client.show_by_rsa(b"sesame").await;
    assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x03", "the proof is good");
    assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
    assert_eq!(rig.asked(), ["sesame", "sesame"], "a server was asked each time");
    assert_eq!((rig.count(Login::FullRsa), rig.count(Login::Fast)), (1, 1));
}

#[tokio::test(flavor = "local")]
async fn a_proof_of_a_known_password_that_a_server_refuses_lets_nobody_in_and_is_forgotten() {
    let rig = Rig::new("", "");
    let old = Password::new(b"sesame").unwrap();
    let store = &rig.listener.pools[0].shared.accounts;
    store.keep(b"app", &old, 9, clock::now());
    let (mut client, session) = rig.client("changed").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x03");
    assert_eq!(error(&client.hear().await), (1045, "said by a server".to_owned()));
    assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    assert_eq!(store.count(), 0);
    assert_eq!(rig.count(Login::Refused), 1);
}

#[tokio::test(flavor = "local")]
async fn who_has_another_password_than_is_known_is_asked_for_it_as_is_who_is_not_known() {
    let rig = Rig::new("", "");
    rig.listener.pools[0].shared.accounts.keep(b"app", &Password::new(b"old").unwrap(), 9, clock::now());
    for user in [&b"app"[..], b"nobody"] {
        let (mut client, session) = rig.client("new").await;
        client.log_in(user, CACHING_SHA2_PASSWORD, &client.proof(b"new")).await;
        client.show_by_rsa(b"new").await;
        assert!(session.await.unwrap().is_ok());
    }
    assert_eq!(rig.asked(), ["new", "new"]);
}

#[tokio::test(flavor = "local")]
async fn an_empty_answer_is_an_empty_password_that_the_server_judges() {
    let rig = Rig::new("", "");
    let store = &rig.listener.pools[0].shared.accounts;
    store.keep(b"app", &Password::new(b"sesame").unwrap(), 9, clock::now());
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, b"").await;
    assert_eq!(error(&client.hear().await).0, 1045);
    assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    assert_eq!(rig.asked(), [""], "nothing was compared with what is known");
    assert_eq!(store.count(), 1, "a stranger's refusal forgets no password that is good");
    let (mut client, session) = rig.client("").await;
    client.log_in(b"open", CACHING_SHA2_PASSWORD, b"").await;
    assert_eq!(session.await.unwrap().as_deref(), Ok("open"));
}

#[tokio::test(flavor = "local")]
async fn a_client_of_another_plugin_is_asked_for_this_one_with_another_nonce() {
    // The second is what libmariadb names in threads that wait for another thread to load the greeting's
    // plugin.
    for (plugin, answer) in [(MYSQL_NATIVE_PASSWORD, &[7; 20][..]), (b"dummy_fallback_auth", b"")] {
        let rig = Rig::new("", "");
        let (mut client, session) = rig.client("sesame").await;
        client.log_in(b"app", plugin, answer).await;
        let greeted = client.nonce;
        assert_eq!(client.hear_switch().await, CACHING_SHA2_PASSWORD);
        assert_ne!(client.nonce, greeted);
        client.say(&client.proof(b"sesame")).await;
        client.show_by_rsa(b"sesame").await;
        assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
    }
}

#[tokio::test(flavor = "local")]
async fn fields_beyond_their_bounds_are_refused_before_a_server_hears_of_them() {
    let rig = Rig::new("", "");
    let long = vec![b'u'; 257];
    for payload in [login(&long, CACHING_SHA2_PASSWORD, b""), b"GET / HTTP/1.1\r\n\r\n".to_vec(), Vec::new()]
    {
        let (mut client, session) = rig.client("").await;
        client.say(&payload).await;
        assert_eq!(error(&client.hear().await), (1043, "Bad handshake".to_owned()));
        assert_eq!(session.await.unwrap(), Err(End::BadRequest));
    }
    let (mut client, session) = rig.client("").await;
    client.socket.write_all(b"\xff\xff\xff\x01").await.unwrap();
    assert_eq!(error(&client.hear_after(1).await).0, 1043, "16 MiB are not waited for");
    assert_eq!(session.await.unwrap(), Err(End::BadRequest));
    assert_eq!((rig.asked().len(), rig.count(Login::Malformed)), (0, 4));
}

#[tokio::test(flavor = "local")]
async fn a_login_that_does_not_get_on_ends_with_its_time() {
    let rig = Rig::new("timeout.handshake = '20ms'", "");
    let (mut client, session) = rig.client("").await;
    client.socket.write_all(b"\x40\0\0\x01half").await.unwrap();
    assert_eq!(session.await.unwrap(), Err(End::LoginTimeout));
    assert_eq!(client.hear().await, b"");
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(session.await.unwrap(), Err(End::LoginTimeout), "nor is a password waited for for ever");
    assert_eq!(rig.count(Login::Gone), 2);
}

#[tokio::test(flavor = "local")]
async fn a_flood_of_logins_in_full_is_bounded_before_it_costs_a_decryption() {
    let rig = Rig::new("timeout.handshake = '2s'", "full_logins_per_client = 1");
    let shared = &rig.listener.pools[0].shared;
    shared.accounts.keep(b"app", &Password::new(b"sesame").unwrap(), 9, clock::now());
    // Other clients have used every admission of the next five seconds.
    let rates = LoginRates { all: 500, client: 1, account: None };
    while shared.full_logins.take("192.0.2.7".parse().unwrap(), b"x", rates, clock::now()).is_ok() {}
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"other", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    client.show_by_rsa(b"sesame").await;
    assert_eq!(error(&client.hear().await).0, 1040, "its turn is seconds away");
    assert_eq!(session.await.unwrap(), Err(End::LoginLimited));
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x03", "who is known is not held up by it");
    assert!(session.await.unwrap().is_ok());
    assert_eq!((rig.asked().len(), rig.count(Login::Limited)), (1, 1));
}

#[tokio::test(flavor = "local")]
async fn a_password_is_guessed_no_faster_from_many_addresses() {
    let rig = Rig::new("timeout.handshake = '2s'", "full_logins_per_account = 1");
    let shared = &rig.listener.pools[0].shared;
    let rates = LoginRates { all: 500, client: 50, account: Some(1) };
    while shared.full_logins.take("198.51.100.9".parse().unwrap(), b"app", rates, clock::now()).is_ok() {}
    for (user, is_let_in) in [("app", false), ("other", true)] {
        let (mut client, session) = rig.client("sesame").await;
        client.log_in(user.as_bytes(), CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
        client.show_by_rsa(b"sesame").await;
        if !is_let_in {
            assert_eq!(error(&client.hear().await).0, 1226);
        }
        let expected = if is_let_in { Ok(user.to_owned()) } else { Err(End::LoginLimited) };
        assert_eq!(session.await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "local")]
async fn an_account_that_has_as_many_sessions_as_it_may_is_let_in_when_one_ends() {
    let rig = Rig::new("max_connections_per_account = 1", "");
    let shared = &rig.listener.pools[0].shared;
    shared.accounts.keep(b"app", &Password::new(b"sesame").unwrap(), 9, clock::now());
    let held = rig.listener.shared.count_account(b"app").unwrap();
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x03");
    assert_eq!(error(&client.hear().await).0, 1203);
    assert_eq!(session.await.unwrap(), Err(End::AccountConnections));
    drop(held);
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(session.await.unwrap(), Ok("app".to_owned()));
    assert!(rig.listener.shared.count_account(b"app").is_ok(), "that one has ended, too");
}

/// A file in the temporary folder that only its owner may read.
fn file(name: &str, contents: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let file = std::env::temp_dir().join(format!("weir-login-{}-{name}", std::process::id()));
    std::fs::write(&file, contents).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

#[tokio::test(flavor = "local")]
async fn accounts_of_a_file_are_confirmed_and_others_refused_after_the_same_exchange() {
    let accounts = file("accounts", "app:sesame\n");
    let rig = Rig::new("", &format!("passwords = 'file'\npasswords_file = '{}'", accounts.display()));
    std::fs::remove_file(&accounts).unwrap();
    let (mut client, session) = rig.client("sesame").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x03");
    assert!(session.await.unwrap().is_ok());
    for (user, password) in
        [("app", &b"wrong"[..]), ("nobody", b"wrong"), ("nobody", b"nobody's"), ("app", b"")]
    {
        let (mut client, session) = rig.client("sesame").await;
        client.log_in(user.as_bytes(), CACHING_SHA2_PASSWORD, &client.proof(password)).await;
        let using = if password.is_empty() { "NO" } else { "YES" };
        let expected = format!("Access denied for user '{user}'@'192.0.2.7' (using password: {using})");
        assert_eq!(error(&client.hear().await), (1045, expected));
        assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    }
    assert_eq!(rig.asked(), ["sesame"], "a server hears only of who has shown the password");
}

/// The configuration of a listener with its own certificate, and a client configuration that trusts it.
fn secured(name: &str, mode: &str) -> (String, Arc<rustls::ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["db.test".to_owned()]).unwrap();
    let cert = file(&format!("{name}.pem"), &made.cert.pem());
    let key = file(&format!("{name}.key"), &made.signing_key.serialize_pem());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (cert, key) = (cert.display(), key.display());
    let text = format!("tls = {{ mode = '{mode}', certificates = [{{ cert = '{cert}', key = '{key}' }}] }}");
    (text, Arc::new(client))
}

fn ssl_request() -> Vec<u8> {
    let capabilities = Capabilities::SPOKEN | Capabilities::SSL;
    let mut packet = Vec::new();
    let request = SslRequest { capabilities, max_packet_bytes: 1 << 24, collation: 255 };
    write_packet_with(&mut packet, 1, |out| request.write(out));
    packet
}

#[tokio::test(flavor = "local")]
async fn a_hello_in_the_segment_of_its_ssl_request_is_shaken_hands_with() {
    let (text, config) = secured("hello", "required");
    let rig = Rig::new(&text, "");
    let (mut client, session) = rig.client("sesame").await;
    let mut segment = ssl_request();
    let mut tls = rustls::ClientConnection::new(config, "db.test".try_into().unwrap()).unwrap();
    tls.write_tls(&mut segment).unwrap();
    client.socket.write_all(&segment).await.unwrap();
    client.tls = Some(tls);
    client.sequence = 2;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, &client.proof(b"sesame")).await;
    assert_eq!(client.hear().await, b"\x01\x04");
    client.say(b"sesame\0").await;
    assert_eq!(session.await.unwrap().as_deref(), Ok("app"));
    assert_eq!(rig.count(Login::FullTls), 1);
}

#[tokio::test(flavor = "local")]
async fn a_login_in_the_clear_behind_an_ssl_request_is_not_taken_for_one() {
    let (text, _) = secured("clear", "preferred");
    let rig = Rig::new(&text, "");
    let (mut client, session) = rig.client("").await;
    let mut segment = ssl_request();
    write_packet_with(&mut segment, 2, |out| out.extend(login(b"app", CACHING_SHA2_PASSWORD, b"")));
    client.socket.write_all(&segment).await.unwrap();
    drop(client);
    assert_eq!(session.await.unwrap(), Err(End::Handshake));
    assert_eq!(rig.asked().len(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_listener_that_requires_tls_refuses_a_login_without() {
    let (text, _) = secured("required", "required");
    let rig = Rig::new(&text, "");
    let (mut client, session) = rig.client("").await;
    client.log_in(b"app", CACHING_SHA2_PASSWORD, b"").await;
    assert_eq!(error(&client.hear().await).0, 3159);
    assert_eq!(session.await.unwrap(), Err(End::LoginRefused));
    assert_eq!(rig.asked().len(), 0);
    let rig = Rig::new("", "");
    let (mut client, session) = rig.client("").await;
    client.socket.write_all(&ssl_request()).await.unwrap();
    assert_eq!(error(&client.hear_after(2).await).0, 1043, "TLS that was not offered");
    assert_eq!(session.await.unwrap(), Err(End::BadRequest));
}

#[tokio::test(flavor = "local")]
async fn the_greeting_has_the_servers_version_and_promises_what_they_can_do() {
    let rig = Rig::new("", "");
    let of = |greeting: &[u8]| {
        let greeting = ServerGreeting::parse(greeting).unwrap();
        (greeting.server_version.to_vec(), greeting.capabilities.has(Capabilities::QUERY_ATTRIBUTES))
    };
    assert_eq!(of(&rig.client("").await.0.greeting), (b"8.4.0".to_vec(), true));
    let without = Capabilities::SPOKEN.without(Capabilities::QUERY_ATTRIBUTES);
    let facts = ServerFacts { version: b"8.0.20"[..].into(), capabilities: without.0, uuid: None };
    rig.listener.pools[0].shared.backends[0].learn(facts);
    assert_eq!(of(&rig.client("").await.0.greeting), (b"8.0.20".to_vec(), false));
}

#[tokio::test(flavor = "local")]
async fn a_client_in_session_proves_another_account_to_a_new_nonce() {
    let rig = Rig::new("max_connections_per_account = 1", "");
    let (socket, mut stream) = connection().await;
    let (worker, listener) = (rig.worker.clone(), rig.listener.clone());
    let store = &rig.listener.pools[0].shared.accounts;
    store.keep(b"other", &Password::new(b"word").unwrap(), 9, clock::now());
    let session = tokio::task::spawn_local(async move {
        let login = LoginUnderTest::begin(worker, listener).await;
        let (terms, listener) = (login.terms(), &login.listener);
        let before = Candidate {
            account: Rc::new(Account::new(b"app", Password::new(b"sesame").unwrap())),
            capabilities: Capabilities::SPOKEN,
            max_packet_bytes: 1 << 24,
            collation: 45,
            database: None,
            attributes: Box::default(),
            compression: None,
            session: listener.shared.count_account(b"app").unwrap(),
        };
        let mut payload = Vec::new();
        let change = ChangeUser {
            user: b"other",
            auth_response: &[9; 32],
            database: Some(b"shop"),
            collation: Some(255),
            plugin: CACHING_SHA2_PASSWORD,
            attributes: b"",
        };
        change.write(&mut payload, Capabilities::SPOKEN);
        let mut first = None;
        let confirm = async |candidate: &Candidate, _: &mut Stream| {
            assert_eq!(candidate.account.password.bytes(), b"word");
            Ok::<_, Denied>(7)
        };
        let changed = change_user(&terms, &mut stream, &mut first, &payload, &before, confirm).await;
        let (after, confirmed, sequence) = changed.map_err(|end| end.word())?;
        assert_eq!((confirmed, sequence, after.collation), (7, 4, 255));
        assert_eq!(after.database.as_deref(), Some(&b"shop"[..]));
        assert!(listener.shared.count_account(b"other").is_err(), "it is a session of that account now");
        Ok::<_, &str>(first.is_some())
    });
    let mut client = Client { sequence: 1, ..Client::over(socket) };
    assert_eq!(client.hear_switch().await, CACHING_SHA2_PASSWORD);
    client.say(&client.proof(b"word")).await;
    assert_eq!(client.hear().await, b"\x01\x03");
    assert_eq!(session.await.unwrap(), Ok(false));
    assert_eq!(rig.count(Login::Fast), 1);
}
