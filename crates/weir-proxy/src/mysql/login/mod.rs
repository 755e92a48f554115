//! Logging a client in: Weir plays the server, and a server decides.
//!
//! Weir greets with a nonce of its own and asks for `caching_sha2_password`. Whom it knows it believes by
//! the short proof, everybody else has to show the password: within TLS, or under Weir's RSA key. Nobody is
//! let in on Weir's word: each login is confirmed by a server, and the server's error is the client's answer.
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

/// Longest first packet of a client, in bytes: attributes have up to 64 KiB.
const LOGIN_BYTES: usize = 80 << 10;
/// Longest name of a user or schema that is taken, in bytes. Those of servers have at most 64 characters of
/// four.
const NAME_BYTES: usize = 256;
/// What Weir says its version is where neither the config nor a server has said one.
const SERVER_VERSION: &[u8] = b"8.4.0";
/// What libmariadb names where it does not have the plugin that the greeting names, or is just loading it for
/// another of its threads.
const NONE_YET: &[u8] = b"dummy_fallback_auth";
/// Plugins of clients that have a password to show. A client that names none waits to be asked.
pub(super) const PASSWORD_PLUGINS: [&[u8]; 6] =
    [CACHING_SHA2_PASSWORD, MYSQL_NATIVE_PASSWORD, SHA256_PASSWORD, MYSQL_CLEAR_PASSWORD, NONE_YET, b""];
/// utf8mb4_0900_ai_ci, the default of servers since 8.0.
const COLLATION: u8 = 255;

/// What a login goes by.
#[derive(Clone, Copy)]
pub struct LoginTerms<'a> {
    /// The worker that has the client.
    pub worker: &'a Rc<Worker>,
    /// The listener that it came to.
    pub listener: &'a Rc<WorkerListener>,
    /// The pool whose servers decide.
    pub pool: &'a Rc<WorkerPool>,
    /// The session's deadline.
    pub deadline: &'a Deadline,
    /// The client's address, for limits and the text of errors.
    pub client: IpAddr,
    /// What can be agreed on with a client beside [`Capabilities::SPOKEN`], as compression.
    pub offers: Capabilities,
    /// What the log is told: a login that comes to nothing has its line too.
    pub report: &'a RefCell<Report>,
}

/// Who a client says it is, shown by a password that a server has yet to confirm.
pub struct Candidate {
    /// The user and password.
    pub account: Rc<Account>,
    /// What was agreed on.
    pub capabilities: Capabilities,
    /// The longest packet that the client would like (bytes).
    pub max_packet_bytes: u32,
    /// The collation of the connection, by number.
    pub collation: u16,
    /// The default schema; `None` for none.
    pub database: Option<Box<[u8]>>,
    /// The client's attributes as it sent them.
    pub attributes: Box<[u8]>,
    /// How what it says is compressed once it is logged in; `None` for not at all.
    pub compression: Option<Algorithm>,
    /// Its session's place among those of the account, where those are counted.
    pub session: Option<AccountSession>,
}

impl Candidate {
    /// Counts its session among those of its account.
    fn count(&mut self, terms: &LoginTerms<'_>) -> Result<(), Failed> {
        let user = &self.account.user;
        let counted = terms.listener.shared.count_account(user);
        self.session = counted.map_err(|_| Failed::too_many_of_account(user))?;
        Ok(())
    }

    /// How a server is logged in to for it.
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
    /// A server has refused it, and the error is its answer. What is known of its account is forgotten where
    /// that [is refused](ServerError::refuses_account).
    Refused(ServerError),
    /// It is of this plugin, and proves something else than a password: a server has to hear that from the
    /// client itself.
    Plugin(String),
    /// No server could be asked; the answer, and how the session ends.
    Unavailable(ServerError, End),
}

impl Denied {
    /// Whether what is known of the account does not hold any more.
    pub fn refuses_account(&self) -> bool {
        match self {
            Denied::Refused(error) => error.refuses_account(),
            Denied::Plugin(_) => true,
            Denied::Unavailable(..) => false,
        }
    }
}

/// How far a login has come.
pub enum Opened<'a, T> {
    /// A server has confirmed it, and said this.
    LoggedIn(ClientLoggedIn, T),
    /// A server and the client have yet to settle it between them.
    Undecided(Undecided<'a>),
}

/// A client that is logged in, to whom an OK packet is still to be said.
pub struct ClientLoggedIn {
    /// The connection, within TLS where that was made.
    pub stream: Stream,
    /// What was received behind the login.
    pub first: Option<Buffer>,
    /// As whom, and what was agreed on.
    pub candidate: Candidate,
    /// That the OK packet has.
    pub sequence: u8,
}

/// Logs a client in; `confirm` has a server decide. The deadline is `timeout.handshake` from now, but for
/// `confirm`, which sets its own. The connection counts as idle meanwhile: those that do not get on are the
/// first to make room (threat D1).
///
/// # Errors
/// The client was told what there was to say, and is counted; how its session ends.
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

/// Hears who a client is, and leaves all else to the server that it is to log in with.
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

/// Another account for a client in session (COM_CHANGE_USER, `payload`): it proves itself to a new nonce, and
/// `confirm` has a server decide. `capabilities` are the connection's. What was received behind the command
/// goes through `first`. The sequence id is the OK packet's.
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
            // What was agreed on stays as long as the connection.
            compression: before.compression,
        };
        let is_secure = before.capabilities.has(Capabilities::SSL);
        let proof = Proof { terms, is_secure, counted: Some(&before.account.user) };
        let nonce = draw_nonce().ok_or_else(Failed::internal)?;
        // The answer that came with the command is to a nonce that was used before.
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
        // It was asked for a plugin once by now.
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

/// A client that has been greeted, and with which TLS was made where it wanted that.
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
        // All that follows the request is TLS, what came in the same segment too: nothing that was read in
        // the clear is taken for anything else (threat F1).
        let shaken = handshake::with_client(terms.worker, terms.listener, plain, &mut behind, terms.deadline);
        let (stream, made) = Box::pin(shaken).await.inspect_err(|_| count(terms, Login::Gone))?;
        terms.report.borrow_mut().secure = made;
        newcomer.is_secure = true;
        talk = Talk::new(stream, None).at(sequence);
        terms.deadline.set(begun + terms.listener.shared.config.timeout.handshake);
        terms.deadline.set_idle(Some(begun));
    }
    Ok(Begun { talk, newcomer, greeted })
}

/// What a client says of itself, before anything of it is shown.
pub(super) struct Claim {
    pub user: Box<[u8]>,
    pub capabilities: Capabilities,
    pub max_packet_bytes: u32,
    pub collation: u16,
    pub database: Option<Box<[u8]>>,
    pub attributes: Box<[u8]>,
    pub compression: Option<Algorithm>,
}

/// What has come of a proof.
pub(super) enum Shown {
    /// None for this nonce: it is asked for.
    Nothing(Nonce),
    /// An answer to it.
    Answer(Nonce, Zeroizing<Vec<u8>>),
}

/// A client before it is logged in.
struct UnknownClient<'a> {
    terms: &'a LoginTerms<'a>,
    is_secure: bool,
}

/// What came first of a client.
struct Greeted {
    offered: Capabilities,
    nonce: Nonce,
    /// The login, unless TLS comes before it.
    packet: Zeroizing<Vec<u8>>,
    wants_tls: bool,
}

/// What a client says in its login.
struct Said {
    claim: Claim,
    plugin: Box<[u8]>,
    /// What it answers to this nonce, by the plugin.
    answer: Zeroizing<Vec<u8>>,
    nonce: Nonce,
}

impl UnknownClient<'_> {
    /// Greets, and hears what comes first.
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

    /// Hears who it is, and has it prove that.
    async fn enter<T>(
        &self,
        talk: &mut Talk,
        greeted: Greeted,
        confirm: impl AsyncFnMut(&Candidate, &mut Stream) -> Result<T, Denied>,
    ) -> Result<Admission<T>, Failed> {
        let Said { claim, plugin, answer, nonce } = self.hear(talk, greeted).await?;
        let proof = Proof { terms: self.terms, is_secure: self.is_secure, counted: None };
        if !PASSWORD_PLUGINS.contains(&&*plugin) && proof.learns().is_some() {
            // Who comes by such a plugin has no password to show; each costs a server a login.
            proof.take_turn(&claim.user).await?;
            return Ok(Admission::Undecided(claim.without_password()?));
        }
        let shown = match *plugin == *CACHING_SHA2_PASSWORD {
            true => Shown::Answer(nonce, answer),
            // Asked with another nonce, as what was said to this one is by another plugin.
            false => Shown::Nothing(draw_nonce().ok_or_else(Failed::internal)?),
        };
        proof.admit(talk, claim, shown, confirm).await
    }

    /// Hears who it is.
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

    /// Greets as a server would; gives what was offered.
    async fn greet(
        &self,
        talk: &mut Talk,
        connection_id: u32,
        nonce: &Nonce,
    ) -> Result<Capabilities, Failed> {
        let LoginTerms { listener, deadline, offers, pool, .. } = *self.terms;
        let servers = self.known_servers().await?;
        // What one of them can't do is not promised: the client may come to it.
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

    /// What the client says of itself, within bounds.
    fn claim(&self, login: &ClientLogin<'_>, offered: Capabilities) -> Result<Claim, Failed> {
        let is_long = |name: &[u8]| name.len() > NAME_BYTES;
        if is_long(login.user) || login.database.is_some_and(is_long) {
            return Err(Failed::bad_handshake());
        }
        if !login.capabilities.has(Capabilities::SECURE_CONNECTION | Capabilities::PLUGIN_AUTH) {
            // Such a client can not be asked for anything but what it has sent.
            let text = b"the client knows no authentication plugins; expected one of 2010 or later";
            return Err(Failed::refused(ER_NOT_SUPPORTED_AUTH_MODE, b"08004", text));
        }
        let mut capabilities = login.capabilities & offered;
        let compression = self.compression(capabilities, login.zstd_level)?;
        // It is between the client and Weir, and makes no difference to how a server is spoken to.
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

    /// How what the client says will be compressed, if the listener lets it.
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

/// A nonce from the kernel's randomness (decision 0024). As mysqld's, its bytes have seven bits and none is
/// NUL or `$`.
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
