//! A client of MySQL that shows every byte of an answer.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::packets::{Answer, Asked, CONNECT_WITH_DB, DEPRECATE_EOF, Reading, TLS, USUAL, error_of};
use crate::dialogue::PATIENCE;

/// A client's account and login options.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    /// The account.
    pub user: &'a str,
    /// Empty for none.
    pub password: &'a str,
    /// Empty for none.
    pub schema: &'a str,
    /// Capability flags besides those that every client has.
    pub capabilities: u32,
    /// The collation's number, and the schema in its character set, if that is not utf8mb4.
    pub national: Option<(u8, &'a [u8])>,
    /// If set, changes to TLS with this configuration after the server's greeting.
    pub tls: Option<Arc<ClientConfig>>,
}

impl<'a> Login<'a> {
    /// A login without a password, in this schema.
    pub fn of(user: &'a str, schema: &'a str) -> Login<'a> {
        Login { user, password: "", schema, capabilities: DEPRECATE_EOF, national: None, tls: None }
    }
}

/// Why a client is not logged in.
#[derive(Debug)]
pub enum LoginFailed {
    /// The server refused: number and text.
    Refused(u16, String),
    /// The connection broke.
    Broken(io::Error),
    /// The server asks for the password itself, and the connection is not encrypted.
    WantsPassword,
}

impl From<io::Error> for LoginFailed {
    fn from(error: io::Error) -> LoginFailed {
        LoginFailed::Broken(error)
    }
}

enum Bytes {
    Plain(BufReader<TcpStream>),
    Tls(Box<BufReader<StreamOwned<ClientConnection, TcpStream>>>),
}

/// A connection that is logged in.
pub struct Client {
    bytes: Bytes,
    has_eof: bool,
    /// The server's id of the connection.
    pub connection_id: u32,
    /// The content to send if the server asks for a file; by default empty.
    pub file: Vec<u8>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "client {}", self.connection_id)
    }
}

impl Client {
    /// Logs in.
    ///
    /// # Errors
    /// The server refuses, or the connection breaks.
    pub fn log_in(to: SocketAddr, login: &Login<'_>) -> Result<Client, LoginFailed> {
        Client::log_in_over(TcpStream::connect_timeout(&to, PATIENCE)?, login)
    }

    /// Logs in over a connection that is there.
    ///
    /// # Errors
    /// As [`Self::log_in`].
    pub fn log_in_over(stream: TcpStream, login: &Login<'_>) -> Result<Client, LoginFailed> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE * 6))?;
        // utf8mb4_0900_ai_ci.
        let (collation, schema_name) = login.national.unwrap_or((255, login.schema.as_bytes()));
        let schema = if schema_name.is_empty() { 0 } else { CONNECT_WITH_DB };
        let tls = if login.tls.is_some() { TLS } else { 0 };
        let capabilities = USUAL | schema | tls | login.capabilities;
        let has_eof = capabilities & DEPRECATE_EOF == 0;
        let bytes = Bytes::Plain(BufReader::new(stream));
        let mut client = Client { bytes, has_eof, connection_id: 0, file: Vec::new() };
        let (_, greeting) = client.receives_packet()?;
        if let Some((code, message)) = error_of(&greeting) {
            return Err(LoginFailed::Refused(code, message));
        }
        let (id, nonce) = read_greeting(&greeting);
        client.connection_id = id;
        let mut head = capabilities.to_le_bytes().to_vec();
        head.extend((1_u32 << 30).to_le_bytes());
        head.push(collation);
        head.extend([0; 23]);
        let mut sequence = 1;
        if let Some(config) = &login.tls {
            client.sends_packet(sequence, &head)?;
            client.encrypts(config)?;
            sequence += 1;
        }
        let mut response = head;
        response.extend(login.user.as_bytes());
        response.push(0);
        let proof = fast_proof(login.password, &nonce);
        response.push(proof.len() as u8);
        response.extend(proof);
        if schema != 0 {
            response.extend(schema_name);
            response.push(0);
        }
        response.extend(b"caching_sha2_password\0");
        client.sends_packet(sequence, &response)?;
        client.is_let_in(login)?;
        Ok(client)
    }

    /// Answers what the server still asks during the login.
    fn is_let_in(&mut self, login: &Login<'_>) -> Result<(), LoginFailed> {
        loop {
            let (sequence, payload) = self.receives_packet()?;
            match payload.as_slice() {
                [0, ..] => return Ok(()),
                // The fast proof was enough.
                [1, 3] => {}
                [1, 4] => {
                    if login.tls.is_none() {
                        return Err(LoginFailed::WantsPassword);
                    }
                    let password = [login.password.as_bytes(), b"\0"].concat();
                    self.sends_packet(sequence.wrapping_add(1), &password)?;
                }
                [0xfe, rest @ ..] => {
                    let name = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
                    let nonce = rest.get(name + 1..).unwrap_or_default();
                    let proof = fast_proof(login.password, nonce.strip_suffix(&[0]).unwrap_or(nonce));
                    self.sends_packet(sequence.wrapping_add(1), &proof)?;
                }
                other => {
                    let (code, message) = error_of(other).unwrap_or((0, format!("{other:?}")));
                    return Err(LoginFailed::Refused(code, message));
                }
            }
        }
    }

    fn encrypts(&mut self, config: &Arc<ClientConfig>) -> io::Result<()> {
        let Bytes::Plain(plain) = &self.bytes else { return Ok(()) };
        let name = "localhost".try_into().expect("a name");
        let connection = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        let stream = StreamOwned::new(connection, plain.get_ref().try_clone()?);
        self.bytes = Bytes::Tls(Box::new(BufReader::new(stream)));
        Ok(())
    }

    /// Sends a statement and returns its answer.
    ///
    /// Panics when the connection breaks.
    pub fn asks(&mut self, sql: &str) -> Answer {
        self.tries(sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"))
    }

    /// As [`Self::asks`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn tries(&mut self, sql: &str) -> io::Result<Answer> {
        self.sends(&query(sql))?;
        self.receives(Asked::Results)
    }

    /// Sends a statement that must succeed; gives its answer.
    pub fn does(&mut self, sql: &str) -> Answer {
        let answer = self.asks(sql);
        assert!(answer.error().is_none(), "{sql}: {answer}");
        answer
    }

    /// Prepares a statement; returns its number.
    pub fn prepares(&mut self, sql: &str) -> u32 {
        self.sends(&[b"\x16", sql.as_bytes()].concat()).expect("sent");
        self.receives(Asked::Statement).expect("an answer").statement().expect("prepared")
    }

    /// Makes the server reset the connection to a new session (COM_RESET_CONNECTION).
    pub fn resets(&mut self) {
        self.sends(b"\x1f").expect("sent");
        let answer = self.receives(Asked::One).expect("an answer");
        assert!(answer.is_ok(), "{answer}");
    }

    /// Sends a command, in as many packets as it needs.
    pub fn sends(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut rest = payload;
        let mut sequence = 0;
        loop {
            let (piece, behind) = rest.split_at(rest.len().min(0xff_ffff));
            self.sends_packet(sequence, piece)?;
            if piece.len() < 0xff_ffff {
                return Ok(());
            }
            (rest, sequence) = (behind, sequence.wrapping_add(1));
        }
    }

    /// Receives an answer to its end.
    pub fn receives(&mut self, asked: Asked) -> io::Result<Answer> {
        let mut answer = Answer::default();
        let whole = self.receives_with(asked, |sequence, payload| answer.packets.push((sequence, payload)));
        match whole {
            Ok(()) => Ok(answer),
            Err(problem) => Err(io::Error::new(problem.kind(), format!("{problem}, behind {answer}"))),
        }
    }

    /// Receives an answer to its end without keeping it.
    pub fn receives_with(&mut self, asked: Asked, mut each: impl FnMut(u8, Vec<u8>)) -> io::Result<()> {
        let mut reading = Reading::of(asked, self.has_eof);
        while !reading.is_over() {
            let (mut sequence, mut payload) = self.receives_packet()?;
            let mut length = payload.len();
            while length == 0xff_ffff {
                let (next, more) = self.receives_packet()?;
                (sequence, length) = (next, more.len());
                payload.extend(more);
            }
            if reading.take(&payload) {
                let file = std::mem::take(&mut self.file);
                if !file.is_empty() {
                    self.sends_packet(sequence.wrapping_add(1), &file)?;
                    sequence = sequence.wrapping_add(1);
                }
                self.sends_packet(sequence.wrapping_add(1), &[])?;
                reading.file_sent();
            }
            each(sequence, payload);
        }
        Ok(())
    }

    /// Receives one packet: its sequence id and payload.
    pub fn receives_packet(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 4];
        self.reader().read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.reader().read_exact(&mut payload)?;
        Ok((head[3], payload))
    }

    /// Sends bytes as they are.
    pub fn sends_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.bytes {
            Bytes::Plain(plain) => plain.get_mut().write_all(bytes),
            Bytes::Tls(tls) => tls.get_mut().write_all(bytes),
        }
    }

    /// Receives as many bytes as `bytes` has room for.
    pub fn receives_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.reader().read_exact(bytes)
    }

    fn reader(&mut self) -> &mut dyn Read {
        match &mut self.bytes {
            Bytes::Plain(plain) => plain,
            Bytes::Tls(tls) => tls,
        }
    }

    fn sends_packet(&mut self, sequence: u8, payload: &[u8]) -> io::Result<()> {
        let mut packet = (payload.len() as u32).to_le_bytes();
        packet[3] = sequence;
        let packet = [&packet[..], payload].concat();
        match &mut self.bytes {
            Bytes::Plain(plain) => plain.get_mut().write_all(&packet),
            Bytes::Tls(tls) => {
                tls.get_mut().write_all(&packet)?;
                tls.get_mut().flush()
            }
        }
    }

    /// Ends the connection with COM_QUIT.
    pub fn quits(mut self) {
        // The server may be gone already.
        let _ = self.sends(&[1]);
    }
}

/// TLS for a client that trusts the authority in this PEM file; it knows Weir as `localhost`.
pub fn trusting(authority: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

/// The payload of COM_QUERY.
pub fn query(sql: &str) -> Vec<u8> {
    [b"\x03", sql.as_bytes()].concat()
}

/// The connection's number and the nonce of a greeting.
fn read_greeting(payload: &[u8]) -> (u32, Vec<u8>) {
    let version = 1 + payload[1..].iter().position(|byte| *byte == 0).expect("a version that ends");
    let id = u32::from_le_bytes(payload[version + 1..version + 5].try_into().expect("four bytes"));
    let mut nonce = payload[version + 5..version + 13].to_vec();
    // The rest of the nonce follows the capabilities, collation, status, a length and ten zeros.
    nonce.extend(&payload[version + 32..version + 44]);
    (id, nonce)
}

/// SHA256(password) XOR SHA256(SHA256(SHA256(password)) nonce).
fn fast_proof(password: &str, nonce: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = sha256(password.as_bytes());
    let mask = sha256(&[&sha256(&sha256(password.as_bytes()))[..], nonce].concat());
    once.iter().zip(mask).map(|(one, other)| one ^ other).collect()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let mut suites = provider.cipher_suites.iter().filter_map(rustls::SupportedCipherSuite::tls13);
    let suite =
        suites.find(|suite| suite.common.hash_provider.output_len() == 32).expect("a suite with SHA-256");
    suite.common.hash_provider.hash(bytes).as_ref().to_vec()
}
