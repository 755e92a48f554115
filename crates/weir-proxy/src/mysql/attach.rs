//! Logs in to a server as an account: over a new connection, or over an idle one with COM_CHANGE_USER.
//!
//! [`Prover`] computes the proof of the password.
//!
//! Source: MySQL internals, "Connection Phase" and "COM_CHANGE_USER".

use std::fmt;

use weir_config::ServerTlsMode;
use weir_io::deadline::Deadline;
use weir_io::stream::Duplex as _;
use weir_mysql::WireError;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::greeting::{self, CACHING_SHA2_PASSWORD, FirstWord, Nonce, ServerGreeting};
use weir_mysql::login::{ChangeUser, ClientLogin, SslRequest};
use weir_mysql::outcome::ErrPacket;
use weir_state::ServerFacts;
use weir_tls::{Proof, ProofError, Prover};

use super::account::Account;
use super::compress::Algorithm;
use super::talk::{Talk, TalkError, Wire};
use crate::backends::{Chosen, ConnectError, Connection, ProxyHeader};
use crate::worker::Worker;

/// `utf8mb4_0900_ai_ci`, a placeholder in the login packet for collation ids above 255: only COM_CHANGE_USER
/// has room for those.
const ANY_COLLATION: u8 = 255;

/// Longest packet accepted from a server during a login (bytes). An OK packet that reports every variable
/// takes a few thousand.
const PACKET_BYTES: usize = 64 << 10;

/// The error for clients whose sessions would need servers of MySQL.
pub const NOT_WITH_MARIADB: &str = "its servers are MariaDB's, which tell nothing of sessions that share connections; expected \
     `passwords = \"relay\"`, with which clients stay with a server";

/// Capabilities that affect the framing or content of answers: a server must use exactly those that were
/// negotiated with the client.
pub const AS_AGREED: Capabilities = Capabilities(
    Capabilities::FOUND_ROWS.0
        | Capabilities::LONG_FLAG.0
        | Capabilities::LOCAL_FILES.0
        | Capabilities::TRANSACTIONS.0
        | Capabilities::MULTI_STATEMENTS.0
        | Capabilities::MULTI_RESULTS.0
        | Capabilities::PS_MULTI_RESULTS.0
        | Capabilities::SESSION_TRACK.0
        | Capabilities::DEPRECATE_EOF.0
        | Capabilities::QUERY_ATTRIBUTES.0,
);

/// Capabilities that Weir always uses on shared connections, whatever its clients use: OK packets report
/// session state changes, and also end rows.
pub const OF_WEIR: Capabilities = Capabilities(Capabilities::SESSION_TRACK.0 | Capabilities::DEPRECATE_EOF.0);

/// The parameters of a login to a server.
#[derive(Clone, Copy)]
pub struct ServerLogin<'a> {
    /// The account.
    pub account: &'a Account,
    /// The capabilities negotiated with the client.
    pub capabilities: Capabilities,
    /// The longest packet that the client wants (bytes).
    pub max_packet_bytes: u32,
    /// The collation id of the connection.
    pub collation: u16,
    /// The default schema; `None` for none.
    pub database: Option<&'a [u8]>,
    /// The client's connection attributes as sent.
    pub attributes: &'a [u8],
    /// The compression negotiated with the client. A server is asked for it only if the login is relayed, and
    /// the bytes after it.
    pub compression: Option<Algorithm>,
}

/// A connection that is logged in to a server.
pub struct LoggedIn {
    /// The connection.
    pub connection: Connection,
    /// The capabilities in use on it.
    pub capabilities: Capabilities,
    /// The server's connection id; of larger ids the lower 32 bits.
    pub thread_id: u32,
}

/// Why a login to a server failed. The connection cannot be used any more.
#[derive(Debug)]
pub enum AttachError {
    /// No connection could be opened: another server may be tried.
    Connect(ConnectError),
    /// The server refused the login, with this error.
    Refused(ServerError),
    /// The server lacks capabilities that the client was offered: another server may be tried.
    Lacks(Capabilities),
    /// The account's plugin does not use a password, or accepts one only within TLS.
    Plugin(String),
    /// The server has no RSA key for a password sent without TLS, or the password does not fit the key.
    NoKey,
    /// The server is MariaDB: it does not report the session state that shared connections need.
    MariaDb,
    /// The server offers no TLS, but the pool's `tls` requires it.
    NoTls,
    /// The server disconnected or broke the protocol: another server may be tried.
    Talk(TalkError),
}

/// An owned ERR packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The error number, such as 1045.
    pub code: u16,
    /// The SQL state.
    pub state: [u8; 5],
    /// The message.
    pub message: Box<[u8]>,
}

impl ServerError {
    /// Copies a packet.
    pub fn of(packet: &ErrPacket<'_>) -> ServerError {
        ServerError { code: packet.code, state: packet.state, message: packet.message.into() }
    }

    /// The error as a packet.
    pub fn packet(&self) -> ErrPacket<'_> {
        ErrPacket { code: self.code, state: self.state, message: &self.message }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Connect(error) => write!(out, "{error}"),
            AttachError::Refused(error) => {
                write!(out, "the server refuses: {}", error.packet())
            }
            AttachError::Lacks(flags) => {
                write!(out, "the server lacks capabilities {:#x} that sessions need", flags.0)
            }
            AttachError::Plugin(plugin) => {
                write!(out, "the account is of plugin {plugin}; expected one with a password")
            }
            AttachError::NoKey => write!(out, "the server has no RSA key that the password can go under"),
            AttachError::MariaDb => out.write_str(NOT_WITH_MARIADB),
            AttachError::NoTls => write!(out, "the server offers no TLS, which the pool's `tls` requires"),
            AttachError::Talk(error) => write!(out, "the login with the server ended: {error}"),
        }
    }
}

impl From<TalkError> for AttachError {
    fn from(error: TalkError) -> AttachError {
        AttachError::Talk(error)
    }
}

impl From<WireError> for AttachError {
    fn from(error: WireError) -> AttachError {
        AttachError::Talk(TalkError::Protocol(error))
    }
}

impl From<ProofError> for AttachError {
    fn from(error: ProofError) -> AttachError {
        match error {
            ProofError::Plugin(plugin) => AttachError::Plugin(plugin),
            ProofError::NoKey => AttachError::NoKey,
            ProofError::Protocol(error) => error.into(),
            ProofError::TooLong => AttachError::Talk(TalkError::TooLong),
        }
    }
}

/// Opens a connection to the chosen server and logs in, with TLS as the pool is configured. The caller sets
/// the deadline, which covers everything.
///
/// # Errors
/// There is no connection.
pub async fn log_in(
    worker: &Worker,
    chosen: &Chosen,
    deadline: &Deadline,
    proxy_header: &ProxyHeader,
    login: &ServerLogin<'_>,
) -> Result<LoggedIn, AttachError> {
    let opened = chosen.open_counted(worker, deadline, proxy_header).await;
    log_in_over(opened.map_err(AttachError::Connect)?, worker, chosen, deadline, login).await
}

/// As [`log_in`], but also if the backend's configured `max_connections` is reached.
///
/// # Errors
/// As [`log_in`].
pub async fn log_in_beyond(
    worker: &Worker,
    chosen: &Chosen,
    deadline: &Deadline,
    proxy_header: &ProxyHeader,
    login: &ServerLogin<'_>,
) -> Result<LoggedIn, AttachError> {
    let opened = chosen.open_beyond(worker, deadline, proxy_header).await;
    log_in_over(opened.map_err(AttachError::Connect)?, worker, chosen, deadline, login).await
}

async fn log_in_over(
    opened: Connection,
    worker: &Worker,
    chosen: &Chosen,
    deadline: &Deadline,
    login: &ServerLogin<'_>,
) -> Result<LoggedIn, AttachError> {
    let mut attach = Attach { worker, chosen, deadline, login, also: OF_WEIR };
    let (connection, greeted) = attach.greeted(opened).await?;
    if greeted.is_mariadb {
        return Err(AttachError::MariaDb);
    }
    let mut talk = Talk::new(connection, None).at(greeted.sequence);
    let entered = attach.enter(&mut talk, &greeted).await;
    attach.count(&talk);
    let (connection, unread) = talk.into_parts();
    entered?;
    if unread.is_some() {
        // After the login, a server sends only answers.
        return Err(WireError::UnexpectedPacket.into());
    }
    let Greeted { capabilities, thread_id, .. } = greeted;
    let mut connection = connection;
    if login.collation > u8::MAX.into() {
        // Only COM_CHANGE_USER has room for the collation id.
        change_user(worker, chosen, &mut connection, capabilities, deadline, login).await?;
    }
    Ok(LoggedIn { connection, capabilities, thread_id })
}

/// Logs in again over an idle connection (COM_CHANGE_USER), with the capabilities that it was opened with.
/// This takes two round trips, and costs the server an eighth of a new connection.
///
/// # Errors
/// The connection cannot be used any more.
pub async fn change_user(
    worker: &Worker,
    chosen: &Chosen,
    connection: &mut Connection,
    capabilities: Capabilities,
    deadline: &Deadline,
    login: &ServerLogin<'_>,
) -> Result<StatusFlags, AttachError> {
    let attach = Attach { worker, chosen, deadline, login, also: OF_WEIR };
    let mut talk = Talk::new(connection, None);
    let change = ChangeUser {
        user: &login.account.user,
        // The server has not sent a nonce for this login yet, and does not accept an answer to the previous
        // one.
        auth_response: b"",
        database: login.database,
        collation: Some(login.collation),
        plugin: CACHING_SHA2_PASSWORD,
        attributes: login.attributes,
    };
    let changed = async {
        talk.send(deadline, |out| change.write(out, capabilities)).await?;
        let mut prover = attach.prover(is_secure(&mut talk));
        attach.prove(&mut talk, &mut prover, capabilities).await
    };
    let changed = Box::pin(changed).await;
    attach.count(&talk);
    match talk.has_unread() {
        true => changed.and(Err(WireError::UnexpectedPacket.into())),
        false => changed,
    }
}

/// Opens a connection as [`log_in`] does, and sends a login with a plugin that no account uses. The server
/// then asks for the plugin of the account. Returns the conversation, its capabilities, and the server's
/// connection id.
///
/// # Errors
/// There is no connection.
pub async fn ask_for_plugin(
    worker: &Worker,
    chosen: &Chosen,
    deadline: &Deadline,
    proxy_header: &ProxyHeader,
    login: &ServerLogin<'_>,
    no_plugin: &[u8],
) -> Result<(Talk<Connection>, Capabilities, u32), AttachError> {
    let opened = chosen.open_counted(worker, deadline, proxy_header).await;
    let also = login.compression.map_or(Capabilities::NONE, Algorithm::capability);
    let mut attach = Attach { worker, chosen, deadline, login, also };
    let (connection, greeted) = attach.greeted(opened.map_err(AttachError::Connect)?).await?;
    let mut talk = Talk::new(connection, None).at(greeted.sequence);
    attach.request(&mut talk, greeted.capabilities, no_plugin, b"").await?;
    Ok((talk, greeted.capabilities, greeted.thread_id))
}

/// The parameters of a login.
struct Attach<'a> {
    worker: &'a Worker,
    chosen: &'a Chosen,
    deadline: &'a Deadline,
    login: &'a ServerLogin<'a>,
    /// Capabilities required in addition to those negotiated with the client.
    also: Capabilities,
}

/// What is known after the greeting, and after TLS is established.
struct Greeted {
    capabilities: Capabilities,
    thread_id: u32,
    /// The server's default plugin.
    plugin: Vec<u8>,
    /// `None` if the greeting had no nonce of the right length.
    nonce: Option<Nonce>,
    /// The sequence id of the login packet.
    sequence: u8,
    is_mariadb: bool,
}

impl Attach<'_> {
    /// Receives the greeting, and establishes TLS if the pool wants it and the server supports it.
    async fn greeted(&mut self, connection: Connection) -> Result<(Connection, Greeted), AttachError> {
        let mut talk = Talk::new(connection, None);
        let first = talk.receive(&self.worker.buffers, self.deadline, PACKET_BYTES).await;
        let first = first.inspect_err(|_| self.count(&talk))?;
        let greeting = match FirstWord::parse(&first)? {
            FirstWord::Greeting(greeting) => greeting,
            FirstWord::Refused(error) => return Err(AttachError::Refused(ServerError::of(&error))),
        };
        if talk.has_unread() {
            // The sender of these bytes is not authenticated yet, and a server must not send anything here
            // (threat A21).
            return Err(WireError::UnexpectedPacket.into());
        }
        self.chosen.backend().shared.learn(ServerFacts {
            version: greeting.server_version.into(),
            capabilities: greeting.capabilities.0,
            uuid: None,
        });
        let capabilities = spoken(self.login, self.also, &greeting)?;
        let (plugin, nonce) = (greeting.plugin.to_vec(), greeting.nonce());
        let is_secured = self.request_tls(&mut talk, &greeting, capabilities).await?;
        self.count(&talk);
        let (thread_id, sequence) = (greeting.connection_id, talk.sequence());
        let is_mariadb = greeting::is_mariadb(greeting.server_version);
        let (mut connection, _) = talk.into_parts();
        if let (true, Some(tls)) = (is_secured, &self.chosen.backend().shared.tls) {
            let secured = self.chosen.backend().secure(tls, self.worker, connection, self.deadline);
            connection = Box::pin(secured).await.map_err(AttachError::Connect)?;
        }
        let capabilities = if is_secured { capabilities | Capabilities::SSL } else { capabilities };
        Ok((connection, Greeted { capabilities, thread_id, plugin, nonce, sequence, is_mariadb }))
    }

    /// Sends an SSLRequest if TLS is to be used; returns whether it was sent.
    async fn request_tls(
        &self,
        talk: &mut Talk<Connection>,
        greeting: &ServerGreeting<'_>,
        capabilities: Capabilities,
    ) -> Result<bool, AttachError> {
        if self.chosen.backend().shared.tls.is_none() {
            return Ok(false);
        }
        if !greeting.capabilities.has(Capabilities::SSL) {
            let tls = self.chosen.pool.shared.config.tls.as_ref();
            return match tls.map(|tls| tls.mode) {
                Some(ServerTlsMode::Preferred) => Ok(false),
                _ => Err(AttachError::NoTls),
            };
        }
        let request = SslRequest {
            capabilities: capabilities | Capabilities::SSL,
            max_packet_bytes: self.login.max_packet_bytes,
            collation: u8::try_from(self.login.collation).unwrap_or(ANY_COLLATION),
        };
        talk.send(self.deadline, |out| request.write(out)).await?;
        Ok(true)
    }

    /// Sends the login packet, and completes the authentication.
    async fn enter(
        &self,
        talk: &mut Talk<Connection>,
        greeted: &Greeted,
    ) -> Result<StatusFlags, AttachError> {
        let mut prover = self.prover(is_secure(talk));
        let answer = prover.begin(&greeted.plugin, greeted.nonce)?;
        self.request(talk, greeted.capabilities, prover.plugin(), &answer).await?;
        self.prove(talk, &mut prover, greeted.capabilities).await
    }

    /// A prover for the account's password. It accepts only the server key that the configuration pins, if
    /// any.
    fn prover(&self, is_secure: bool) -> Prover<'_> {
        let client_login = self.chosen.pool.shared.client_login.as_ref();
        let pinned = client_login.and_then(|login| login.server_key.as_ref());
        Prover::new(Some(&self.login.account.password), pinned, is_secure)
    }

    async fn request(
        &self,
        talk: &mut Talk<Connection>,
        capabilities: Capabilities,
        plugin: &[u8],
        answer: &[u8],
    ) -> Result<(), TalkError> {
        let request = ClientLogin {
            capabilities,
            max_packet_bytes: self.login.max_packet_bytes,
            collation: u8::try_from(self.login.collation).unwrap_or(ANY_COLLATION),
            user: &self.login.account.user,
            auth_response: answer,
            database: self.login.database,
            plugin,
            attributes: self.login.attributes,
            zstd_level: self.login.compression.and_then(Algorithm::zstd_level),
        };
        talk.send(self.deadline, |out| request.write(out)).await
    }

    /// Answers the server's packets until it accepts or refuses the login.
    async fn prove(
        &self,
        talk: &mut Talk<impl Wire>,
        prover: &mut Prover<'_>,
        capabilities: Capabilities,
    ) -> Result<StatusFlags, AttachError> {
        loop {
            let packet = talk.receive(&self.worker.buffers, self.deadline, PACKET_BYTES).await?;
            match prover.hear(&packet, capabilities)? {
                Proof::Done(ok) => return Ok(ok.status),
                Proof::Refused(error) => return Err(AttachError::Refused(ServerError::of(&error))),
                Proof::Answer(answer) => {
                    talk.send(self.deadline, |out| out.extend_from_slice(&answer)).await?
                }
                Proof::Wait => {}
            }
        }
    }

    fn count(&self, talk: &Talk<impl Wire>) {
        let cells = self.chosen.backend().cells();
        cells.bytes_received.add(talk.received_bytes);
        cells.bytes_sent.add(talk.sent_bytes);
    }
}

/// The capabilities to use with a server that sent this greeting: those negotiated with the client, the few
/// that a login needs, and `also`, which is [`OF_WEIR`] on a shared connection.
fn spoken(
    login: &ServerLogin<'_>,
    also: Capabilities,
    greeting: &ServerGreeting<'_>,
) -> Result<Capabilities, AttachError> {
    let of_the_login = Capabilities::CONNECT_WITH_DB
        | Capabilities::CONNECT_ATTRS
        | Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA;
    // Weir runs statements to prepare a shared connection, but with an expired password a server allows
    // nothing except changing it. Without this flag, the server refuses the login and says why.
    let for_one_client = match also.has(OF_WEIR) {
        true => Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS,
        false => Capabilities::NONE,
    };
    let agreed = login.capabilities.without(of_the_login | for_one_client) & Capabilities::SPOKEN;
    let needed = (agreed & AS_AGREED)
        | Capabilities::REQUIRED
        | also
        | match login.database {
            Some(_) => Capabilities::CONNECT_WITH_DB,
            None => Capabilities::NONE,
        };
    let lacks = needed.without(greeting.capabilities);
    if lacks != Capabilities::NONE {
        return Err(AttachError::Lacks(lacks));
    }
    let mut wanted = agreed | needed | Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA;
    if !login.attributes.is_empty() {
        wanted = wanted | Capabilities::CONNECT_ATTRS;
    }
    Ok(wanted & greeting.capabilities)
}

fn is_secure(talk: &mut Talk<impl Wire>) -> bool {
    talk.wire().bare().is_none()
}

#[cfg(test)]
mod tests;
