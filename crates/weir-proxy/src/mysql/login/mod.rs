//! Logging a client in: Weir plays the server, and a server decides.
//!
//! Weir greets with a nonce of its own and asks for `caching_sha2_password`. Whom it knows it believes by the
//! short proof, everybody else has to show the password: within TLS, or under Weir's RSA key. Nobody is let in
//! on Weir's word: each login is confirmed by a server, and the server's error is the client's answer.
//!
//! Source: MySQL internals, "Connection Phase" and "Caching_sha2_password information".

mod proof;

use std::net::IpAddr;
use std::rc::Rc;

use weir_config::{ListenerMysql, TlsMode};
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::Secure;
use weir_io::stream::Stream;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::greeting::{CACHING_SHA2_PASSWORD, Nonce, ServerGreeting};
use weir_mysql::login::{ChangeUser, ClientFirst, ClientLogin};
use weir_mysql::outcome::ErrPacket;
use weir_stats::table::{End, Login};
use zeroize::Zeroizing;

use self::proof::Proof;
use super::account::Account;
use super::attach::{ServerError, ServerLogin};
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
const SERVER_VERSION: &str = "8.4.0";
/// utf8mb4_0900_ai_ci, the default of servers since 8.0.
const COLLATION: u8 = 255;

/// What a login goes by.
#[derive(Clone, Copy)]
pub struct LoginTerms<'a> {
    /// The worker that has the client.
    pub worker: &'a Worker,
    /// The listener that it came to.
    pub listener: &'a WorkerListener,
    /// The pool whose servers decide.
    pub pool: &'a Rc<WorkerPool>,
    /// The session's deadline.
    pub deadline: &'a Deadline,
    /// The client's address, for limits and the text of errors.
    pub client: IpAddr,
    /// What can be agreed on with a client beside [`Capabilities::SPOKEN`], as compression.
    pub offers: Capabilities,
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
    pub collation: u8,
    /// The default schema; `None` for none.
    pub database: Option<Box<[u8]>>,
    /// The client's attributes as it sent them.
    pub attributes: Box<[u8]>,
}

impl Candidate {
    /// How a server is logged in to for it.
    pub fn at_server(&self) -> ServerLogin<'_> {
        ServerLogin {
            account: &self.account,
            capabilities: self.capabilities,
            max_packet_bytes: self.max_packet_bytes,
            collation: self.collation,
            database: self.database.as_deref(),
            attributes: &self.attributes,
        }
    }
}

/// Why a candidate was not confirmed.
#[derive(Debug)]
pub enum Denied {
    /// A server has refused it: it is forgotten, and the error is its answer.
    Refused(ServerError),
    /// No server could be asked; the answer, and how the session ends.
    Unavailable(ServerError, End),
}

/// A client that is logged in, to whom an OK packet is still to be said.
pub struct ClientLoggedIn {
    /// The connection, within TLS where that was made.
    pub stream: Stream,
    /// What was received behind the login.
    pub first: Option<Buffer>,
    /// What the TLS handshake came to; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
    /// As whom, and what was agreed on.
    pub candidate: Candidate,
    /// The level of zstd, 1 to 22, where that was agreed on.
    pub zstd_level: Option<u8>,
    /// That the OK packet has.
    pub sequence: u8,
}

/// What a client is told that is not let in, if anything, and how its session ends.
pub(super) struct Failed {
    answer: Option<ServerError>,
    end: End,
    counted: Login,
}

/// Logs a client in; `confirm` has a server decide. The deadline is `timeout.handshake` from now, but for
/// `confirm`, which sets its own. The connection counts as idle meanwhile: those that do not get on are the
/// first to make room (threat D1).
///
/// # Errors
/// The client was told what there was to say, and is counted; how its session ends.
pub async fn run<T>(
    terms: &LoginTerms<'_>,
    stream: Stream,
    first: Option<Buffer>,
    connection_id: u32,
    confirm: impl AsyncFnMut(&Candidate) -> Result<T, Denied>,
) -> Result<(ClientLoggedIn, T), End> {
    let begun = clock::now();
    terms.deadline.set(begun + terms.listener.shared.config.timeout.handshake);
    terms.deadline.set_idle(Some(begun));
    let mut newcomer = Newcomer { terms, is_secure: false };
    let mut talk = Talk::new(stream, first);
    let mut secure = None;
    let opened = newcomer.open(&mut talk, connection_id).await;
    let opened = match opened {
        Ok(opened) => opened,
        Err(failed) => return Err(say_no(terms, &mut talk, failed).await),
    };
    if opened.wants_tls {
        count_bytes(terms, &talk);
        let sequence = talk.sequence();
        let (plain, mut behind) = talk.into_parts();
        // All that follows the request is TLS, what came in the same segment too: nothing that was read in the
        // clear is taken for anything else (threat F1).
        let shaken = handshake::with_client(terms.worker, terms.listener, plain, &mut behind, terms.deadline);
        let (stream, made) = Box::pin(shaken).await.inspect_err(|_| count(terms, Login::Gone))?;
        secure = made;
        newcomer.is_secure = true;
        talk = Talk::new(stream, None).at(sequence);
        terms.deadline.set(begun + terms.listener.shared.config.timeout.handshake);
        terms.deadline.set_idle(Some(begun));
    }
    let entered = Box::pin(newcomer.enter(&mut talk, opened, confirm)).await;
    let (Entered { candidate, zstd_level, how }, confirmed) = match entered {
        Ok(entered) => entered,
        Err(failed) => return Err(say_no(terms, &mut talk, failed).await),
    };
    terms.deadline.set_idle(None);
    count(terms, how);
    count_bytes(terms, &talk);
    let sequence = talk.sequence();
    let (stream, first) = talk.into_parts();
    let logged_in = ClientLoggedIn { stream, first, secure, candidate, zstd_level, sequence };
    Ok((logged_in, confirmed))
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
    confirm: impl AsyncFnMut(&Candidate) -> Result<T, Denied>,
) -> Result<(Candidate, T, u8), End> {
    let mut talk = Talk::new(stream, first.take()).at(1);
    let changed = async {
        let change = ChangeUser::parse(payload, before.capabilities).map_err(|_| Failed::bad_handshake())?;
        terms.deadline.set(clock::now() + terms.listener.shared.config.timeout.handshake);
        let claim = Claim {
            user: change.user.into(),
            capabilities: before.capabilities,
            max_packet_bytes: before.max_packet_bytes,
            collation: change.collation.map_or(before.collation, |collation| collation as u8),
            database: change.database.map(Into::into),
            attributes: change.attributes.into(),
        };
        let proof = Proof { terms, is_secure: before.capabilities.has(Capabilities::SSL) };
        let nonce = draw_nonce().ok_or_else(Failed::internal)?;
        // The answer that came with the command is to a nonce that was used before.
        proof.admit(&mut talk, claim, Shown::Nothing(nonce), confirm).await
    };
    let changed = Box::pin(changed).await;
    match changed {
        Ok((candidate, how, confirmed)) => {
            count(terms, how);
            count_bytes(terms, &talk);
            let sequence = talk.sequence();
            *first = talk.into_parts().1;
            Ok((candidate, confirmed, sequence))
        }
        Err(failed) => Err(say_no(terms, &mut talk, failed).await),
    }
}

/// What a client says of itself, before anything of it is shown.
pub(super) struct Claim {
    pub user: Box<[u8]>,
    pub capabilities: Capabilities,
    pub max_packet_bytes: u32,
    pub collation: u8,
    pub database: Option<Box<[u8]>>,
    pub attributes: Box<[u8]>,
}

/// What has come of a proof.
pub(super) enum Shown {
    /// None for this nonce: it is asked for.
    Nothing(Nonce),
    /// An answer to it.
    Answer(Nonce, Zeroizing<Vec<u8>>),
}

/// A client before it is logged in.
struct Newcomer<'a> {
    terms: &'a LoginTerms<'a>,
    is_secure: bool,
}

/// What came first of a client.
struct Opened {
    offered: Capabilities,
    nonce: Nonce,
    /// The login, unless TLS comes before it.
    packet: Zeroizing<Vec<u8>>,
    wants_tls: bool,
}

struct Entered {
    candidate: Candidate,
    zstd_level: Option<u8>,
    how: Login,
}

impl Newcomer<'_> {
    /// Greets, and hears what comes first.
    async fn open(&self, talk: &mut Talk, connection_id: u32) -> Result<Opened, Failed> {
        let nonce = draw_nonce().ok_or_else(Failed::internal)?;
        let offered = self.greet(talk, connection_id, &nonce).await?;
        let packet = self.receive(talk).await?;
        let first = ClientFirst::parse(&packet).map_err(|_| Failed::bad_handshake())?;
        let wants_tls = matches!(first, ClientFirst::Ssl(_));
        if wants_tls && !offered.has(Capabilities::SSL) {
            return Err(Failed::bad_handshake());
        }
        Ok(Opened { offered, nonce, packet, wants_tls })
    }

    /// Hears who it is, and has it prove that.
    async fn enter<T>(
        &self,
        talk: &mut Talk,
        opened: Opened,
        confirm: impl AsyncFnMut(&Candidate) -> Result<T, Denied>,
    ) -> Result<(Entered, T), Failed> {
        let Opened { offered, nonce, mut packet, wants_tls } = opened;
        if wants_tls {
            packet = self.receive(talk).await?;
        }
        let Ok(ClientFirst::Login(login)) = ClientFirst::parse(&packet) else {
            return Err(Failed::bad_handshake());
        };
        if !self.is_secure && tls_mode(self.terms.listener) == TlsMode::Required {
            let text = b"this listener lets nobody in without TLS (`mode = \"required\"`)";
            return Err(Failed::refused(3159, b"HY000", text));
        }
        let claim = self.claim(&login, offered)?;
        let shown = match login.plugin == CACHING_SHA2_PASSWORD {
            true => Shown::Answer(nonce, Zeroizing::new(login.auth_response.to_vec())),
            // Asked with another nonce, as what was said to this one is by another plugin.
            false => Shown::Nothing(draw_nonce().ok_or_else(Failed::internal)?),
        };
        let zstd_level = login
            .zstd_level
            .filter(|level| (1..=22).contains(level))
            .filter(|_| claim.capabilities.has(Capabilities::ZSTD_COMPRESSION_ALGORITHM));
        drop(packet);
        let proof = Proof { terms: self.terms, is_secure: self.is_secure };
        let (candidate, how, confirmed) = proof.admit(talk, claim, shown, confirm).await?;
        Ok((Entered { candidate, zstd_level, how }, confirmed))
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
        let LoginTerms { listener, deadline, offers, .. } = *self.terms;
        let mut offered = Capabilities::SPOKEN | offers;
        if listener.shared.tls.is_some() {
            offered = offered | Capabilities::SSL;
        }
        let configured = listener.shared.config.mysql().and_then(server_version);
        let greeting = ServerGreeting {
            server_version: configured.unwrap_or(SERVER_VERSION).as_bytes(),
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
            return Err(Failed::refused(1251, b"08004", text));
        }
        let mut capabilities = login.capabilities & offered;
        if !self.is_secure {
            capabilities = capabilities.without(Capabilities::SSL);
        }
        Ok(Claim {
            user: login.user.into(),
            capabilities,
            max_packet_bytes: login.max_packet_bytes,
            collation: login.collation,
            database: login.database.map(Into::into),
            attributes: login.attributes.into(),
        })
    }
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

/// Tells a client why it is not let in, counts it, and says how its session ends.
async fn say_no(terms: &LoginTerms<'_>, talk: &mut Talk<impl Wire>, failed: Failed) -> End {
    terms.deadline.set_idle(None);
    count(terms, failed.counted);
    if let Some(error) = failed.answer {
        terms.deadline.set(clock::now() + terms.listener.shared.config.timeout.handshake);
        // Who does not take it has left.
        let _ = talk.send(terms.deadline, |out| error.packet().write(out)).await;
        talk.wire().say_farewell().await;
    }
    count_bytes(terms, talk);
    failed.end
}

fn count(terms: &LoginTerms<'_>, login: Login) {
    terms.listener.shared.cells.of(terms.worker.number).logins[login as usize].increment();
}

fn count_bytes(terms: &LoginTerms<'_>, talk: &Talk<impl Wire>) {
    let cells = terms.listener.shared.cells.of(terms.worker.number);
    cells.bytes_received.add(talk.received_bytes);
    cells.bytes_sent.add(talk.sent_bytes);
}

impl Failed {
    fn refused(code: u16, state: &[u8; 5], message: &[u8]) -> Failed {
        let answer = ServerError::of(&ErrPacket { code, state: *state, message });
        Failed { answer: Some(answer), end: End::LoginRefused, counted: Login::Refused }
    }

    /// What mysqld says of a login that it can't read (ER_HANDSHAKE_ERROR).
    fn bad_handshake() -> Failed {
        let answer = Failed::refused(1043, b"08S01", b"Bad handshake");
        Failed { end: End::BadRequest, counted: Login::Malformed, ..answer }
    }

    /// Access denied (ER_ACCESS_DENIED_ERROR), in mysqld's words.
    fn denied(claim: &Claim, client: IpAddr, has_password: bool) -> Failed {
        let text = format!(
            "Access denied for user '{}'@'{client}' (using password: {})",
            String::from_utf8_lossy(&claim.user),
            if has_password { "YES" } else { "NO" },
        );
        Failed::refused(1045, b"28000", text.as_bytes())
    }

    fn limited() -> Failed {
        let text = b"too many logins show their password at the same time; try again in a moment";
        let refused = Failed::refused(1040, b"08004", text);
        Failed { end: End::LoginLimited, counted: Login::Limited, ..refused }
    }

    fn internal() -> Failed {
        Failed { answer: None, end: End::Internal, counted: Login::Unavailable }
    }
}

impl From<TalkError> for Failed {
    fn from(error: TalkError) -> Failed {
        let (end, counted) = match error {
            TalkError::TimedOut => (End::LoginTimeout, Login::Gone),
            TalkError::Broken(_) | TalkError::Closed => (End::ClientClosed, Login::Gone),
            TalkError::NoMemory | TalkError::Shed => (End::Overload, Login::Gone),
            TalkError::TooLong | TalkError::Protocol(_) => return Failed::bad_handshake(),
        };
        Failed { answer: None, end, counted }
    }
}
