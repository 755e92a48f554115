//! Logs a client in: Weir acts as the server, and a server decides.
//!
//! Weir sends a greeting with its own nonce and asks for `caching_sha2_password`. If Weir knows the account,
//! the fast proof is enough; otherwise the client must send the password, within TLS or encrypted with Weir's
//! RSA key. Weir admits no client on its own authority: a server confirms each login, and the client gets the
//! server's error.
//!
//! Source: MySQL internals, "Connection Phase" and "Caching_sha2_password information".

mod proof;
mod refusal;
mod relay;
mod servers;
mod undecided;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use weir_config::{ListenerMysql, MysqlCompression, TlsMode};
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::error_number::{ER_NOT_SUPPORTED_AUTH_MODE, ER_SECURE_TRANSPORT_REQUIRED};
use weir_mysql::greeting::{
    self, CACHING_SHA2_PASSWORD, MYSQL_CLEAR_PASSWORD, MYSQL_NATIVE_PASSWORD, Nonce, SHA256_PASSWORD,
    ServerGreeting,
};
use weir_mysql::login::{ChangeUser, ClientFirst, ClientLogin};
use weir_state::listener::AccountSession;
use weir_stats::table::{End, Login};
use zeroize::Zeroizing;

use self::proof::{Admission, Proof};
use self::refusal::{Failed, say_no};
pub use self::undecided::Undecided;
use super::account::Account;
use super::attach::{self, ServerError, ServerLogin};
use super::compress::{Algorithm, COMPRESSION};
use super::is_relayed;
use super::report::Report;
use super::talk::{Talk, TalkError, Wire};
use crate::backends::WorkerPool;
use crate::handshake;
use crate::worker::{Worker, WorkerListener};

/// Longest first packet of a client (bytes): attributes take up to 64 KiB.
const LOGIN_BYTES: usize = 80 << 10;
/// Longest accepted user or schema name (bytes). Servers allow at most 64 characters of four bytes.
const NAME_BYTES: usize = 256;
/// The version in the greeting if neither the configuration nor a server gives one.
const SERVER_VERSION: &[u8] = b"8.4.0";
/// The plugin that libmariadb names if it lacks the greeting's plugin, or is still loading it in another
/// thread.
const NONE_YET: &[u8] = b"dummy_fallback_auth";
/// The plugins of clients that can send a password. A client that names no plugin waits for a request.
pub(super) const PASSWORD_PLUGINS: [&[u8]; 6] =
    [CACHING_SHA2_PASSWORD, MYSQL_NATIVE_PASSWORD, SHA256_PASSWORD, MYSQL_CLEAR_PASSWORD, NONE_YET, b""];
/// utf8mb4_0900_ai_ci, the default of servers since 8.0.
const COLLATION: u8 = 255;

/// The context of a login.
#[derive(Clone, Copy)]
pub struct LoginTerms<'a> {
    /// The worker that serves the client.
    pub worker: &'a Rc<Worker>,
    /// The listener that accepted it.
    pub listener: &'a Rc<WorkerListener>,
    /// The pool whose servers decide.
    pub pool: &'a Rc<WorkerPool>,
    /// The session's deadline.
    pub deadline: &'a Deadline,
    /// The client's address, for limits and error texts.
    pub client: IpAddr,
    /// Capabilities that may be negotiated in addition to [`Capabilities::SPOKEN`], such as compression.
    pub offers: Capabilities,
    /// The data for the log line, which failed logins get as well.
    pub report: &'a RefCell<Report>,
}

/// A client's login data, including a password that no server has confirmed yet.
pub struct Candidate {
    /// The user and password.
    pub account: Rc<Account>,
    /// The negotiated capabilities.
    pub capabilities: Capabilities,
    /// The longest packet that the client wants (bytes).
    pub max_packet_bytes: u32,
    /// The collation id of the connection.
    pub collation: u16,
    /// The default schema; `None` for none.
    pub database: Option<Box<[u8]>>,
    /// The client's connection attributes as sent.
    pub attributes: Box<[u8]>,
    /// The compression of its connection after the login; `None` for none.
    pub compression: Option<Algorithm>,
    /// The count of its session for the account, if those are limited.
    pub session: Option<AccountSession>,
}

impl Candidate {
    /// Counts its session for its account.
    fn count(&mut self, terms: &LoginTerms<'_>) -> Result<(), Failed> {
        let user = &self.account.user;
        let counted = terms.listener.shared.count_account(user);
        self.session = counted.map_err(|_| Failed::too_many_of_account(user))?;
        Ok(())
    }

    /// The parameters for a login to a server.
    pub fn at_server(&self) -> ServerLogin<'_> {
        ServerLogin {
            account: &self.account,
            capabilities: self.capabilities,
            max_packet_bytes: self.max_packet_bytes,
            collation: self.collation,
            database: self.database.as_deref(),
            attributes: &self.attributes,
            compression: self.compression,
        }
    }
}

/// Why a candidate was not confirmed.
#[derive(Debug)]
pub enum Denied {
    /// A server refused it, with this error. What is known about its account is forgotten if the error [says
    /// so](ServerError::refuses_account).
    Refused(ServerError),
    /// The account has this plugin, which does not use a password: the client must authenticate directly with
    /// a server.
    Plugin(String),
    /// No server could be asked; the error for the client, and how the session ends.
    Unavailable(ServerError, End),
}

impl Denied {
    /// Whether the stored data about the account is no longer valid.
    pub fn refuses_account(&self) -> bool {
        match self {
            Denied::Refused(error) => error.refuses_account(),
            Denied::Plugin(_) => true,
            Denied::Unavailable(..) => false,
        }
    }
}

/// The result of a login.
pub enum Opened<'a, T> {
    /// A server has confirmed it, with this result.
    LoggedIn(ClientLoggedIn, T),
    /// The client and a server still have to authenticate directly.
    Undecided(Undecided<'a>),
}

/// A client that is logged in and still has to get its OK packet.
pub struct ClientLoggedIn {
    /// The connection, within TLS if the client asked for it.
    pub stream: Stream,
    /// Bytes that were received after the login.
    pub first: Option<Buffer>,
    /// The client's login data.
    pub candidate: Candidate,
    /// The sequence id of the OK packet.
    pub sequence: u8,
}

/// Logs a client in; `confirm` lets a server decide. The deadline is `timeout.handshake` from now, except for
/// `confirm`, which sets its own. The connection counts as idle meanwhile, so that stalled logins are shed
/// first (threat D1).
///
/// # Errors
/// How the session ends. The client was sent its error, if any, and is counted.
pub async fn run<'a, T>(
    terms: &'a LoginTerms<'a>,
    stream: Stream,
    first: Option<Buffer>,
    connection_id: u32,
    confirm: impl AsyncFnMut(&Candidate, &mut Stream) -> Result<T, Denied>,
) -> Result<Opened<'a, T>, End> {
    let Begun { mut talk, newcomer, greeted } = begin(terms, stream, first, connection_id).await?;
    let entered = Box::pin(newcomer.enter(&mut talk, greeted, confirm)).await;
    let admission = match entered {
        Ok(admission) => admission,
        Err(failed) => return Err(say_no(terms, &mut talk, failed).await),
    };
    terms.deadline.set_idle(None);
    Ok(match admission {
        Admission::Confirmed(candidate, how, confirmed) => {
            count(terms, how);
            Opened::LoggedIn(logged_in(terms, talk, candidate), confirmed)
        }
        Admission::Undecided(candidate) => {
            let is_secure = newcomer.is_secure;
            Opened::Undecided(Undecided { terms, talk, is_secure, is_unasked: true, candidate })
        }
    })
}

/// Receives a client's login data, and leaves the authentication to the server that it will log in to.
///
/// # Errors
/// As [`run`].
pub async fn hear<'a>(
    terms: &'a LoginTerms<'a>,
    stream: Stream,
    first: Option<Buffer>,
    connection_id: u32,
) -> Result<Undecided<'a>, End> {
    let Begun { mut talk, newcomer, greeted } = begin(terms, stream, first, connection_id).await?;
    let is_secure = newcomer.is_secure;
    let heard = newcomer.hear(&mut talk, greeted).await;
    match heard.and_then(|Said { claim, .. }| claim.without_password()) {
        Ok(candidate) => Ok(Undecided { terms, talk, is_secure, is_unasked: false, candidate }),
        Err(failed) => Err(say_no(terms, &mut talk, failed).await),
    }
}

/// Changes the account of a logged-in client (COM_CHANGE_USER in `payload`). The client authenticates with a
/// new nonce, and `confirm` lets a server decide. `before` is the current login, whose capabilities are the
/// connection's. `first` holds bytes received after the command. The returned sequence id is that of the OK
/// packet.
///
/// # Errors
/// As [`run`]: the session ends, as it does on a server.
pub async fn change_user<T>(
    terms: &LoginTerms<'_>,
    stream: &mut Stream,
    first: &mut Option<Buffer>,
    payload: &[u8],
    before: &Candidate,
    confirm: impl AsyncFnMut(&Candidate, &mut Stream) -> Result<T, Denied>,
) -> Result<(Candidate, T, u8), End> {
    let mut talk = Talk::new(stream, first.take()).at(1);
    let changed = async {
        let change = ChangeUser::parse(payload, before.capabilities).map_err(|_| Failed::bad_handshake())?;
        terms.deadline.set(clock::now() + terms.listener.shared.config.timeout.handshake);
        let claim = Claim {
            user: change.user.into(),
            capabilities: before.capabilities,
            max_packet_bytes: before.max_packet_bytes,
            collation: change.collation.unwrap_or(before.collation),
            database: change.database.map(Into::into),
            attributes: change.attributes.into(),
            // Compression stays as negotiated for the connection.
            compression: before.compression,
        };
        let is_secure = before.capabilities.has(Capabilities::SSL);
        let proof = Proof { terms, is_secure, counted: Some(&before.account.user) };
        let nonce = draw_nonce().ok_or_else(Failed::internal)?;
        // The answer in the command is to a nonce that was already used.
        proof.admit(&mut talk, claim, Shown::Nothing(nonce), confirm).await
    };
    let changed = Box::pin(changed).await;
    match changed {
        Ok(Admission::Confirmed(candidate, how, confirmed)) => {
            count(terms, how);
            count_bytes(terms, &talk);
            let sequence = talk.sequence();
            *first = talk.into_parts().1;
            Ok((candidate, confirmed, sequence))
        }
        // It has already been asked for another plugin once.
        Ok(Admission::Undecided(_)) => Err(say_no(terms, &mut talk, Failed::internal()).await),
        Err(failed) => Err(say_no(terms, &mut talk, failed).await),
    }
}

fn logged_in(terms: &LoginTerms<'_>, talk: Talk, candidate: Candidate) -> ClientLoggedIn {
    count_bytes(terms, &talk);
    let sequence = talk.sequence();
    let (stream, first) = talk.into_parts();
    ClientLoggedIn { stream, first, candidate, sequence }
}

/// A client that was greeted, and whose TLS handshake is done if it wanted one.
struct Begun<'a> {
    talk: Talk,
    newcomer: UnknownClient<'a>,
    greeted: Greeted,
}

async fn begin<'a>(
    terms: &'a LoginTerms<'a>,
    stream: Stream,
    first: Option<Buffer>,
    connection_id: u32,
) -> Result<Begun<'a>, End> {
    let begun = clock::now();
    terms.deadline.set(begun + terms.listener.shared.config.timeout.handshake);
    terms.deadline.set_idle(Some(begun));
    let mut newcomer = UnknownClient { terms, is_secure: false };
    let mut talk = Talk::new(stream, first);
    let greeted = match newcomer.open(&mut talk, connection_id).await {
        Ok(greeted) => greeted,
        Err(failed) => return Err(say_no(terms, &mut talk, failed).await),
    };
    if greeted.wants_tls {
        count_bytes(terms, &talk);
        let sequence = talk.sequence();
        let (plain, mut behind) = talk.into_parts();
        // Everything after the request is TLS, even in the same segment: nothing that was read in clear text
        // is interpreted as anything else (threat F1).
        let LoginTerms { worker, listener, deadline, .. } = *terms;
        let shaken = handshake::with_client(worker, listener, &worker.buffers, plain, &mut behind, deadline);
        let (stream, made) = Box::pin(shaken).await.inspect_err(|_| count(terms, Login::Gone))?;
        terms.report.borrow_mut().secure = made;
        newcomer.is_secure = true;
        talk = Talk::new(stream, None).at(sequence);
        terms.deadline.set(begun + terms.listener.shared.config.timeout.handshake);
        terms.deadline.set_idle(Some(begun));
    }
    Ok(Begun { talk, newcomer, greeted })
}

/// A client's claims about itself, before it has proved any of them.
pub(super) struct Claim {
    pub user: Box<[u8]>,
    pub capabilities: Capabilities,
    pub max_packet_bytes: u32,
    pub collation: u16,
    pub database: Option<Box<[u8]>>,
    pub attributes: Box<[u8]>,
    pub compression: Option<Algorithm>,
}

/// The state of a password proof.
pub(super) enum Shown {
    /// There is none for this nonce yet: it must be asked for.
    Nothing(Nonce),
    /// The client's answer to this nonce.
    Answer(Nonce, Zeroizing<Vec<u8>>),
}

/// A client that is not logged in yet.
struct UnknownClient<'a> {
    terms: &'a LoginTerms<'a>,
    is_secure: bool,
}

/// The first packet from a client, and what it was offered.
struct Greeted {
    offered: Capabilities,
    nonce: Nonce,
    /// The login, unless TLS comes first.
    packet: Zeroizing<Vec<u8>>,
    wants_tls: bool,
}

/// The content of a client's login.
struct Said {
    claim: Claim,
    plugin: Box<[u8]>,
    /// The plugin's answer to `nonce`.
    answer: Zeroizing<Vec<u8>>,
    nonce: Nonce,
}

impl UnknownClient<'_> {
    /// Sends the greeting, and receives the first packet.
    async fn open(&self, talk: &mut Talk, connection_id: u32) -> Result<Greeted, Failed> {
        let nonce = draw_nonce().ok_or_else(Failed::internal)?;
        let offered = self.greet(talk, connection_id, &nonce).await?;
        let packet = self.receive(talk).await?;
        let first = ClientFirst::parse(&packet).map_err(|_| Failed::bad_handshake())?;
        let wants_tls = matches!(first, ClientFirst::Ssl(_));
        if wants_tls && !offered.has(Capabilities::SSL) {
            return Err(Failed::bad_handshake());
        }
        Ok(Greeted { offered, nonce, packet, wants_tls })
    }

    /// Receives the login, and has the client prove its password.
    async fn enter<T>(
        &self,
        talk: &mut Talk,
        greeted: Greeted,
        confirm: impl AsyncFnMut(&Candidate, &mut Stream) -> Result<T, Denied>,
    ) -> Result<Admission<T>, Failed> {
        let Said { claim, plugin, answer, nonce } = self.hear(talk, greeted).await?;
        let proof = Proof { terms: self.terms, is_secure: self.is_secure, counted: None };
        if !PASSWORD_PLUGINS.contains(&&*plugin) && proof.learns().is_some() {
            // A client with such a plugin has no password to send. Each such login costs a server a full
            // login.
            proof.take_turn(&claim.user).await?;
            return Ok(Admission::Undecided(claim.without_password()?));
        }
        let shown = match *plugin == *CACHING_SHA2_PASSWORD {
            true => Shown::Answer(nonce, answer),
            // The client is asked with a new nonce, because its answer to this one is by another plugin.
            false => Shown::Nothing(draw_nonce().ok_or_else(Failed::internal)?),
        };
        proof.admit(talk, claim, shown, confirm).await
    }

    /// Receives the login.
    async fn hear(&self, talk: &mut Talk, greeted: Greeted) -> Result<Said, Failed> {
        let Greeted { offered, nonce, mut packet, wants_tls } = greeted;
        if wants_tls {
            packet = self.receive(talk).await?;
        }
        let Ok(ClientFirst::Login(login)) = ClientFirst::parse(&packet) else {
            return Err(Failed::bad_handshake());
        };
        self.refuse_without_tls()?;
        Ok(Said {
            claim: self.claim(&login, offered)?,
            plugin: login.plugin.into(),
            answer: Zeroizing::new(login.auth_response.to_vec()),
            nonce,
        })
    }

    fn refuse_without_tls(&self) -> Result<(), Failed> {
        if self.is_secure || tls_mode(self.terms.listener) != TlsMode::Required {
            return Ok(());
        }
        let text = b"this listener lets nobody in without TLS (`mode = \"required\"`)";
        Err(Failed::refused(ER_SECURE_TRANSPORT_REQUIRED, b"HY000", text))
    }

    async fn receive(&self, talk: &mut Talk) -> Result<Zeroizing<Vec<u8>>, TalkError> {
        talk.receive(&self.terms.worker.buffers, self.terms.deadline, LOGIN_BYTES).await
    }

    /// Sends a greeting as a server would; returns the offered capabilities.
    async fn greet(
        &self,
        talk: &mut Talk,
        connection_id: u32,
        nonce: &Nonce,
    ) -> Result<Capabilities, Failed> {
        let LoginTerms { listener, deadline, offers, pool, .. } = *self.terms;
        let servers = self.known_servers().await?;
        // Only capabilities of all servers are offered, because the client may be served by any of them.
        if !is_relayed(pool) && servers.iter().any(|server| greeting::is_mariadb(&server.version)) {
            return Err(Failed::mariadb(&pool.shared.config.name));
        }
        let by_the_server = if is_relayed(pool) { COMPRESSION } else { Capabilities::NONE };
        let lacks = servers.iter().fold(Capabilities::NONE, |lacks, server| {
            lacks | (attach::AS_AGREED | by_the_server).without(Capabilities(server.capabilities))
        });
        let mut offered = (Capabilities::SPOKEN | offers).without(lacks);
        if listener.shared.tls.is_some() {
            offered = offered | Capabilities::SSL;
        }
        let configured = listener.shared.config.mysql().and_then(server_version).map(str::as_bytes);
        let known = servers.first().map(|server| &*server.version);
        let greeting = ServerGreeting {
            server_version: configured.or(known).unwrap_or(SERVER_VERSION),
            connection_id,
            capabilities: offered,
            collation: COLLATION,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: nonce.to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        };
        talk.send(deadline, |out| greeting.write(out)).await?;
        Ok(offered)
    }

    /// The client's claims, within limits.
    fn claim(&self, login: &ClientLogin<'_>, offered: Capabilities) -> Result<Claim, Failed> {
        let is_long = |name: &[u8]| name.len() > NAME_BYTES;
        if is_long(login.user) || login.database.is_some_and(is_long) {
            return Err(Failed::bad_handshake());
        }
        if !login.capabilities.has(Capabilities::SECURE_CONNECTION | Capabilities::PLUGIN_AUTH) {
            // Such a client cannot be asked for another proof.
            let text = b"the client knows no authentication plugins; expected one of 2010 or later";
            return Err(Failed::refused(ER_NOT_SUPPORTED_AUTH_MODE, b"08004", text));
        }
        let mut capabilities = login.capabilities & offered;
        let compression = self.compression(capabilities, login.zstd_level)?;
        // Compression is only between client and Weir, and does not affect the connection to a server.
        capabilities = capabilities.without(COMPRESSION);
        if !self.is_secure {
            capabilities = capabilities.without(Capabilities::SSL);
        }
        Ok(Claim {
            user: login.user.into(),
            capabilities,
            max_packet_bytes: login.max_packet_bytes,
            collation: login.collation.into(),
            database: login.database.map(Into::into),
            attributes: login.attributes.into(),
            compression,
        })
    }

    /// The compression of the client's connection, if the listener allows it.
    fn compression(&self, agreed: Capabilities, level: Option<u8>) -> Result<Option<Algorithm>, Failed> {
        let algorithm = Algorithm::of(agreed, level);
        match algorithm {
            Some(Algorithm::Zstd { level }) if !(1..=22).contains(&level) => {
                Err(Failed::of_compression_level(level))
            }
            None if !lets_uncompressed(self.terms.listener) => Err(Failed::uncompressed()),
            _ => Ok(algorithm),
        }
    }
}

fn lets_uncompressed(listener: &WorkerListener) -> bool {
    let mysql = listener.shared.config.mysql();
    mysql.is_none_or(|mysql| mysql.compression.contains(&MysqlCompression::Uncompressed))
}

fn server_version(mysql: &ListenerMysql) -> Option<&str> {
    mysql.server_version.as_deref()
}

fn tls_mode(listener: &WorkerListener) -> TlsMode {
    listener.shared.config.tls.as_ref().map_or(TlsMode::Disabled, |tls| tls.mode)
}

/// Draws a nonce from the kernel's randomness (decision 0024). As in mysqld, its bytes have seven bits and
/// are neither NUL nor `$`.
fn draw_nonce() -> Option<Nonce> {
    let mut nonce = Nonce::default();
    aws_lc_rs::rand::fill(&mut nonce).ok()?;
    for byte in &mut nonce {
        *byte &= 0x7F;
        *byte += u8::from(matches!(*byte, 0 | b'$'));
    }
    Some(nonce)
}

fn count(terms: &LoginTerms<'_>, login: Login) {
    terms.listener.shared.cells.of(terms.worker.number).logins[login as usize].increment();
}

fn count_bytes(terms: &LoginTerms<'_>, talk: &Talk<impl Wire>) {
    let cells = terms.listener.shared.cells.of(terms.worker.number);
    cells.bytes_received.add(talk.received_bytes);
    cells.bytes_sent.add(talk.sent_bytes);
    let mut report = terms.report.borrow_mut();
    report.from_client += talk.received_bytes;
    report.to_client += talk.sent_bytes;
}

#[cfg(test)]
mod tests;
