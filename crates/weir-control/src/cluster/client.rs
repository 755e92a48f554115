//! A small client for a MySQL server: it logs in with Weir's own account and makes one short query at a time.
//!
//! The data path has its own login code, with a worker's buffers and deadlines and for other accounts. Both
//! use weir-mysql for the protocol, and weir-tls to prove a password.
//!
//! Source: MySQL internals, "Connection Phase" and "Text Resultset".

use std::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_io::handshake;
use weir_mysql::WireError;
use weir_mysql::capability::Capabilities;
use weir_mysql::command::ClientCommand;
use weir_mysql::greeting::{FirstWord, ServerGreeting};
use weir_mysql::login::{ClientLogin, SslRequest, write_attribute};
use weir_mysql::outcome::{EOF, ERR, ErrPacket, OK, printable};
use weir_mysql::packet::{HEADER_BYTES, PacketHeader, write_packet_with};
use weir_mysql::topology::TextRow;
use weir_mysql::value::{NULL, PayloadCursor};
use weir_state::ServerFacts;
use weir_tls::{BackendTls, OwnAccount, Proof, ProofError, Prover};
use zeroize::Zeroizing;

/// Longest packet that is accepted from a server, in bytes. Answers to our queries have some hundred.
const PACKET_BYTES: usize = 64 * 1024;
/// Most rows, and most columns, of an answer.
const MOST_ROWS: usize = 256;
/// utf8mb4_general_ci, which servers of every version support.
const COLLATION: u8 = 45;

/// Why a login or a query failed.
#[derive(Debug)]
pub enum ClientError {
    /// The connection broke.
    Broken(io::Error),
    /// The server closed the connection.
    Closed,
    /// The server refused, with its own error.
    Refused {
        /// Its error number.
        code: u16,
        /// Its SQLSTATE.
        state: [u8; 5],
        /// Its text, cut to what fits in a line.
        message: String,
    },
    /// The server offers no TLS, and the pool's `tls` requires it.
    NoTls,
    /// TLS could not be established.
    Tls(String),
    /// The account has a plugin that needs more than a password, or a password in cleartext.
    Plugin(String),
    /// The server sent no RSA key to encrypt the password with, or the password does not fit it.
    NoKey,
    /// The answer violates MySQL's protocol.
    Protocol(WireError),
    /// The answer is longer than any valid answer to our query.
    TooLong,
}

impl fmt::Display for ClientError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Broken(error) => write!(out, "the connection broke: {error}"),
            ClientError::Closed => write!(out, "the server closed the connection"),
            ClientError::Refused { code, message, .. } => write!(out, "the server refuses: {code} {message}"),
            ClientError::NoTls => write!(out, "the server offers no TLS, which the pool's `tls` requires"),
            ClientError::Tls(why) => write!(out, "no TLS: {why}"),
            ClientError::Plugin(plugin) => {
                write!(out, "the account is of plugin {plugin}; expected one with a password")
            }
            ClientError::NoKey => write!(out, "the server has no RSA key that the password can go under"),
            ClientError::Protocol(error) => write!(out, "answered against MySQL's protocol: {error}"),
            ClientError::TooLong => write!(out, "answered more than was asked for"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ClientError::Closed,
            _ => ClientError::Broken(error),
        }
    }
}

impl From<WireError> for ClientError {
    fn from(error: WireError) -> ClientError {
        ClientError::Protocol(error)
    }
}

impl From<ProofError> for ClientError {
    fn from(error: ProofError) -> ClientError {
        match error {
            ProofError::Plugin(plugin) => ClientError::Plugin(plugin),
            ProofError::NoKey => ClientError::NoKey,
            ProofError::Protocol(error) => ClientError::Protocol(error),
            ProofError::TooLong => ClientError::TooLong,
        }
    }
}

/// Converts an error packet into [`ClientError::Refused`].
fn refused(error: &ErrPacket<'_>) -> ClientError {
    let message = printable(error.message);
    ClientError::Refused { code: error.code, state: error.state, message }
}

/// A connection, with or without TLS.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// How to log in to a server.
#[derive(Clone, Copy)]
pub struct LoginAs<'a> {
    /// The account with its password; `None` for a user whom no server knows.
    pub account: Option<&'a OwnAccount>,
    /// TLS settings, and whether TLS is required.
    pub tls: Option<(&'a BackendTls, bool)>,
}

/// A logged-in connection.
pub struct MysqlClient {
    stream: Box<dyn Wire>,
    capabilities: Capabilities,
}

impl MysqlClient {
    /// Logs in. `greeted` is set once the server has sent its greeting, whatever the result of the login. The
    /// caller limits the time.
    ///
    /// # Errors
    /// The connection is unusable.
    pub async fn login(
        stream: TcpStream,
        login: LoginAs<'_>,
        greeted: &mut Option<ServerFacts>,
    ) -> Result<MysqlClient, ClientError> {
        stream.set_nodelay(true)?;
        let mut talk = LoginTalk { stream: Box::new(stream), sequence: 0, is_secure: false };
        let capabilities = talk.run(login, greeted).await?;
        Ok(MysqlClient { stream: talk.stream, capabilities })
    }

    /// Makes a query, and returns the rows of the answer.
    ///
    /// # Errors
    /// The connection is unusable, except for [`ClientError::Refused`].
    pub async fn query(&mut self, sql: &str) -> Result<Vec<TextRow>, ClientError> {
        let mut packet = Vec::with_capacity(HEADER_BYTES + 1 + sql.len());
        write_packet_with(&mut packet, 0, |out| {
            out.push(ClientCommand::Query.byte());
            out.extend_from_slice(sql.as_bytes());
        });
        self.stream.write_all(&packet).await?;
        let (_, first) = receive(&mut self.stream).await?;
        let columns = match first.first() {
            Some(&OK) => return Ok(Vec::new()),
            Some(&ERR) => return Err(refused(&ErrPacket::parse(&first)?)),
            _ => PayloadCursor::new(&first).integer()?,
        };
        let columns = usize::try_from(columns).ok().filter(|count| (1..=MOST_ROWS).contains(count));
        let columns = columns.ok_or(WireError::ColumnCount)?;
        // There is an EOF packet between columns and rows, unless both sides have agreed to leave it out.
        let is_terse = self.capabilities.has(Capabilities::DEPRECATE_EOF);
        for _ in 0..columns + usize::from(!is_terse) {
            receive(&mut self.stream).await?;
        }
        let mut rows = Vec::new();
        loop {
            let (_, packet) = receive(&mut self.stream).await?;
            match packet.first() {
                // An EOF packet, or an OK packet with the same first byte. A row can't begin with it: its
                // first value would have 16 MiB.
                Some(&EOF) => return Ok(rows),
                Some(&ERR) => return Err(refused(&ErrPacket::parse(&packet)?)),
                _ if rows.len() == MOST_ROWS => return Err(ClientError::TooLong),
                _ => rows.push(text_row(&packet, columns)?),
            }
        }
    }

    /// Returns when the server has closed the connection, or sent something unasked, which it does only
    /// before it closes. Can be cancelled at any time.
    pub async fn ended(&mut self) {
        let mut byte = [0];
        let _ = self.stream.read(&mut byte).await;
    }

    /// Sends a quit, so that the server does not count an aborted client.
    pub async fn quit(mut self) {
        let mut packet = Vec::with_capacity(HEADER_BYTES + 1);
        write_packet_with(&mut packet, 0, |out| out.push(ClientCommand::Quit.byte()));
        let _ = self.stream.write_all(&packet).await;
        let _ = self.stream.shutdown().await;
    }
}

fn text_row(packet: &[u8], columns: usize) -> Result<TextRow, WireError> {
    let mut cursor = PayloadCursor::new(packet);
    let row = (0..columns).map(|_| match cursor.remaining().first() {
        Some(&NULL) => cursor.u8().map(|_| None),
        _ => cursor.string().map(|value| Some(value.to_vec())),
    });
    let row = row.collect::<Result<TextRow, WireError>>()?;
    cursor.end().map(|()| row)
}

/// A login in progress.
struct LoginTalk {
    stream: Box<dyn Wire>,
    /// Sequence number of our next packet.
    sequence: u8,
    is_secure: bool,
}

impl LoginTalk {
    async fn run(
        &mut self,
        login: LoginAs<'_>,
        greeted: &mut Option<ServerFacts>,
    ) -> Result<Capabilities, ClientError> {
        let first = self.receive().await?;
        let greeting = match FirstWord::parse(&first)? {
            FirstWord::Greeting(greeting) => greeting,
            FirstWord::Refused(error) => return Err(refused(&error)),
        };
        *greeted = Some(facts(&greeting));
        let capabilities = capabilities(&greeting);
        if let Some((tls, is_required)) = login.tls {
            match greeting.capabilities.has(Capabilities::SSL) {
                true => self.secure(capabilities | Capabilities::SSL, tls).await?,
                false if is_required => return Err(ClientError::NoTls),
                false => {}
            }
        }
        let capabilities = if self.is_secure { capabilities | Capabilities::SSL } else { capabilities };
        let password = login.account.map(|account| &account.password);
        let pinned = login.account.and_then(|account| account.server_key.as_ref());
        let mut prover = Prover::new(password, pinned, self.is_secure);
        let answer = prover.begin(greeting.plugin, greeting.nonce())?;
        let mut attributes = Vec::new();
        write_attribute(&mut attributes, b"program_name", b"weir");
        let request = ClientLogin {
            capabilities,
            max_packet_bytes: PACKET_BYTES as u32,
            collation: COLLATION,
            user: login.account.map_or(b"weir", |account| account.user.as_bytes()),
            auth_response: &answer,
            database: None,
            plugin: prover.plugin(),
            attributes: &attributes,
            zstd_level: None,
        };
        self.send(|out| request.write(out)).await?;
        loop {
            let packet = self.receive().await?;
            match prover.hear(&packet, capabilities)? {
                Proof::Done(_) => return Ok(capabilities),
                Proof::Refused(error) => return Err(refused(&error)),
                Proof::Answer(answer) => self.send(|out| out.extend_from_slice(&answer)).await?,
                Proof::Wait => {}
            }
        }
    }

    /// Begins TLS. Anything that the server sent after its greeting is dropped with the plain stream, as it
    /// should be, since it is not authenticated.
    async fn secure(&mut self, capabilities: Capabilities, tls: &BackendTls) -> Result<(), ClientError> {
        let request =
            SslRequest { capabilities, max_packet_bytes: PACKET_BYTES as u32, collation: COLLATION };
        self.send(|out| request.write(out)).await?;
        let plain = std::mem::replace(&mut self.stream, Box::new(tokio::io::empty()));
        let shaken = TlsConnector::from(tls.config.clone()).connect(tls.name.clone(), plain).await;
        self.stream = Box::new(shaken.map_err(|error| ClientError::Tls(handshake::describe(&error)))?);
        self.is_secure = true;
        Ok(())
    }

    async fn send(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), ClientError> {
        // It may contain a password.
        let mut packet = Zeroizing::new(Vec::with_capacity(1024));
        self.sequence = write_packet_with(&mut packet, self.sequence, fill);
        self.stream.write_all(&packet).await?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<Vec<u8>, ClientError> {
        let (header, payload) = receive(&mut self.stream).await?;
        self.sequence = header.sequence.wrapping_add(1);
        Ok(payload)
    }
}

fn facts(greeting: &ServerGreeting<'_>) -> ServerFacts {
    ServerFacts { version: greeting.server_version.into(), capabilities: greeting.capabilities.0, uuid: None }
}

/// The capabilities to use with a server that sends this greeting.
fn capabilities(greeting: &ServerGreeting<'_>) -> Capabilities {
    let wanted = Capabilities::REQUIRED
        | Capabilities::LONG_PASSWORD
        | Capabilities::TRANSACTIONS
        | Capabilities::CONNECT_ATTRS
        | Capabilities::PLUGIN_AUTH_LENENC_CLIENT_DATA
        | Capabilities::DEPRECATE_EOF;
    wanted & greeting.capabilities
}

async fn receive(stream: &mut Box<dyn Wire>) -> Result<(PacketHeader, Vec<u8>), ClientError> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let header = PacketHeader::parse(head);
    let length = header.payload_bytes as usize;
    if length > PACKET_BYTES {
        return Err(ClientError::TooLong);
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok((header, payload))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use tokio::net::TcpListener;
    use weir_mysql::authentication::write_more_data;
    use weir_mysql::capability::StatusFlags;
    use weir_mysql::greeting::CACHING_SHA2_PASSWORD;
    use weir_mysql::login::ClientFirst;
    use weir_mysql::outcome::{EofPacket, OkPacket};
    use weir_mysql::value::{write_integer, write_string};
    use weir_tls::{Loaded, PasswordKey, TicketKeys};

    use super::*;

    /// What a server of these tests says first.
    pub fn greeting_of_server() -> ServerGreeting<'static> {
        ServerGreeting {
            server_version: b"9.7.4",
            connection_id: 7,
            capabilities: Capabilities::SPOKEN.without(Capabilities::DEPRECATE_EOF),
            collation: 255,
            status: StatusFlags::AUTOCOMMIT,
            auth_data: b"abcdefghijklmnopqrst".to_vec(),
            plugin: CACHING_SHA2_PASSWORD,
        }
    }

    /// Greets as a server does, and gives the packet that comes for that.
    async fn greet(listener: TcpListener) -> (Box<dyn Wire>, Vec<u8>) {
        let mut stream: Box<dyn Wire> = Box::new(listener.accept().await.unwrap().0);
        let greeting = greeting_of_server();
        say(&mut stream, 0, |out| greeting.write(out)).await;
        let (_, login) = receive(&mut stream).await.unwrap();
        (stream, login)
    }

    /// Logs in to a server that greets and then says `decision` to the login, and asks it a question that it
    /// answers with `answer`; and the name of the login.
    async fn ask(
        decision: Vec<u8>,
        answer: Vec<Vec<u8>>,
    ) -> (Result<Vec<TextRow>, ClientError>, Option<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, login) = greet(listener).await;
            let ClientFirst::Login(login) = ClientFirst::parse(&login).unwrap() else { panic!("a login") };
            let user = login.user.to_vec();
            say(&mut stream, 2, |out| out.extend(decision)).await;
            if receive(&mut stream).await.is_ok() {
                for (packet, sequence) in answer.into_iter().zip(1_usize..) {
                    say(&mut stream, sequence as u8, |out| out.extend(packet)).await;
                }
            }
            user
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let asked = async {
            let login = LoginAs { account: None, tls: None };
            let mut client = MysqlClient::login(stream, login, &mut None).await?;
            client.query("SELECT 1, NULL").await
        };
        let asked = asked.await;
        (asked, server.await.ok())
    }

    /// The account of a pool whose servers have the key `pinned`, where there is one.
    fn account(pinned: Option<&PasswordKey>) -> Arc<OwnAccount> {
        let file = std::env::temp_dir().join(format!("weir-pinned-{}.pem", std::process::id()));
        let mut config = "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:1'\npool = 'db'\n\
             [pool.db]\nbackends = ['127.0.0.1:3306']\n[pool.db.mysql]\nuser = 'weir'\n"
            .to_owned();
        if let Some(key) = pinned {
            std::fs::write(&file, key.public_pem()).unwrap();
            config += &format!("server_public_key = '{}'\n", file.display());
        }
        let config = weir_config::parse("weir.toml", &config).unwrap_or_else(|report| panic!("{report}"));
        let loaded = Loaded::load(&config, &TicketKeys::new([]), &Arc::default()).unwrap();
        let _ = std::fs::remove_file(&file);
        loaded.account("db").unwrap().clone()
    }

    async fn say(stream: &mut Box<dyn Wire>, sequence: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut packet = Vec::new();
        write_packet_with(&mut packet, sequence, fill);
        stream.write_all(&packet).await.unwrap();
    }

    fn let_in() -> Vec<u8> {
        let mut packet = Vec::new();
        let ok = OkPacket::of(StatusFlags::AUTOCOMMIT);
        ok.write(&mut packet, OK, Capabilities::NONE);
        packet
    }

    fn end() -> Vec<u8> {
        let mut packet = Vec::new();
        EofPacket { warnings: 0, status: StatusFlags::AUTOCOMMIT }.write(&mut packet);
        packet
    }

    fn columns(count: u64) -> Vec<Vec<u8>> {
        let mut first = Vec::new();
        write_integer(&mut first, count);
        let definitions = (0..count).map(|_| b"a definition is not looked at".to_vec());
        std::iter::once(first).chain(definitions).chain([end()]).collect()
    }

    #[tokio::test]
    async fn rows_come_as_they_were_sent_and_null_is_none() {
        let mut row = Vec::new();
        write_string(&mut row, b"1");
        row.push(NULL);
        let mut answer = columns(2);
        answer.extend([row, end()]);
        let (asked, user) = ask(let_in(), answer).await;
        assert_eq!(asked.unwrap(), [vec![Some(b"1".to_vec()), None]]);
        assert_eq!(user.as_deref(), Some(&b"weir"[..]));
    }

    #[tokio::test]
    async fn a_login_that_is_refused_says_so_in_the_servers_words_without_its_control_characters() {
        let (asked, _) = ask(b"\xff\x15\x04#28000Access denied\nfor you".to_vec(), Vec::new()).await;
        let refused = asked.unwrap_err();
        assert!(matches!(refused, ClientError::Refused { code: 1045, .. }), "{refused}");
        assert_eq!(refused.to_string(), "the server refuses: 1045 Access denied for you");
    }

    #[tokio::test]
    async fn an_unasked_key_never_gets_a_password_whether_one_is_pinned_or_not() {
        let (servers_own, strangers) = (PasswordKey::load(None).unwrap(), PasswordKey::load(None).unwrap());
        let pem = strangers.public_pem().to_owned();
        for account in [account(Some(&servers_own)), account(None)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let pem = pem.clone();
            let stranger = tokio::spawn(async move {
                let (mut stream, _) = greet(listener).await;
                say(&mut stream, 2, |out| write_more_data(out, pem.as_bytes())).await;
                receive(&mut stream).await.is_err()
            });
            let login = LoginAs { account: Some(&account), tls: None };
            let refused = MysqlClient::login(stream, login, &mut None).await.err();
            let unexpected = Some(ClientError::Protocol(WireError::UnexpectedPacket));
            assert_eq!(format!("{refused:?}"), format!("{unexpected:?}"));
            assert!(stranger.await.unwrap(), "nothing is said to whoever says so");
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_given_up() {
        let mut answer = columns(1);
        answer.extend(vec![b"\x01x".to_vec(); MOST_ROWS + 1]);
        let (asked, _) = ask(let_in(), answer).await;
        assert!(matches!(asked, Err(ClientError::TooLong)), "{asked:?}");
    }

    #[tokio::test]
    async fn a_row_longer_than_its_packet_is_refused() {
        let mut answer = columns(1);
        answer.push(b"\x09short".to_vec());
        let (asked, _) = ask(let_in(), answer).await;
        assert!(matches!(asked, Err(ClientError::Protocol(WireError::Truncated))), "{asked:?}");
    }
}
