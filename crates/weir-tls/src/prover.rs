//! Proves a password to a MySQL server: the client's answers until the server has decided. The caller sends
//! and receives the packets.
//!
//! A password is sent to a server only inside TLS, or encrypted with the server's RSA key: one that the
//! config pins, or one that we requested from the server, which an attacker in the path could forge. A key
//! that the server sends without being asked is not accepted. The number of packets before the decision is
//! limited.
//!
//! Source: MySQL internals, "Connection Phase" and "Caching_sha2_password information".

use weir_mysql::WireError;
use weir_mysql::authentication::{
    FAST_AUTH_SUCCESS, LoginAnswer, PERFORM_FULL_AUTHENTICATION, REQUEST_PUBLIC_KEY,
    SHA256_REQUEST_PUBLIC_KEY,
};
use weir_mysql::capability::Capabilities;
use weir_mysql::greeting::{
    CACHING_SHA2_PASSWORD, MYSQL_CLEAR_PASSWORD, MYSQL_NATIVE_PASSWORD, Nonce, SHA256_PASSWORD,
};
use weir_mysql::outcome::{ErrPacket, OkPacket, printable};
use zeroize::Zeroizing;

use crate::password::Password;
use crate::rsa_key::ServerKey;

/// Most packets that a server may send before it decides.
const MOST_PACKETS: usize = 8;

/// A login, from the server's greeting or a COM_CHANGE_USER up to the server's decision.
pub struct Prover<'a> {
    password: Option<&'a Password>,
    pinned: Option<&'a ServerKey>,
    is_secure: bool,
    plugin: Vec<u8>,
    /// `None` if none of the right length was received.
    nonce: Option<Nonce>,
    has_asked_for_key: bool,
    packets: usize,
}

/// What to do after a packet from the server.
pub enum Proof<'p> {
    /// The server accepted the login.
    Done(OkPacket<'p>),
    /// The server refused the login.
    Refused(ErrPacket<'p>),
    /// Send this payload, then read the server's next packet.
    Answer(Zeroizing<Vec<u8>>),
    /// Read the server's next packet.
    Wait,
}

/// Why a login can't continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofError {
    /// The account has this plugin, which needs something other than a password, or accepts one only inside
    /// TLS.
    Plugin(String),
    /// The server has no RSA key to encrypt a password without TLS, or the password does not fit the key.
    NoKey,
    /// The server broke the protocol.
    Protocol(WireError),
    /// The server sends too many packets.
    TooLong,
}

impl From<WireError> for ProofError {
    fn from(error: WireError) -> ProofError {
        ProofError::Protocol(error)
    }
}

impl<'a> Prover<'a> {
    /// For an account with this password. Without one, for a user whom no server knows, who goes through the
    /// login without proving anything. `pinned` is the servers' key, if the config has one; `is_secure` says
    /// whether the connection already uses TLS.
    pub fn new(password: Option<&'a Password>, pinned: Option<&'a ServerKey>, is_secure: bool) -> Prover<'a> {
        let plugin = CACHING_SHA2_PASSWORD.to_vec();
        Prover { password, pinned, is_secure, plugin, nonce: None, has_asked_for_key: false, packets: 0 }
    }

    /// The first answer to a server that has greeted with this plugin and nonce; [`Self::plugin`] returns the
    /// plugin that it is for.
    ///
    /// # Errors
    /// The plugin's data is not a nonce.
    pub fn begin(&mut self, plugin: &[u8], nonce: Option<Nonce>) -> Result<Zeroizing<Vec<u8>>, ProofError> {
        self.nonce = nonce;
        match plugin {
            CACHING_SHA2_PASSWORD | MYSQL_NATIVE_PASSWORD => {
                self.plugin = plugin.to_vec();
                self.answer()
            }
            // The server's preferred plugin need not be the account's; the server will request the right one.
            _ => Ok(Zeroizing::default()),
        }
    }

    /// The plugin with which the password is being proved.
    pub fn plugin(&self) -> &[u8] {
        &self.plugin
    }

    /// Handles a packet from the server; `capabilities` are those of the login.
    ///
    /// # Errors
    /// The connection can't be used any more.
    pub fn hear<'p>(
        &mut self,
        packet: &'p [u8],
        capabilities: Capabilities,
    ) -> Result<Proof<'p>, ProofError> {
        self.packets += 1;
        if self.packets > MOST_PACKETS {
            return Err(ProofError::TooLong);
        }
        let has_asked_for_key = std::mem::take(&mut self.has_asked_for_key);
        let answer = match LoginAnswer::parse(packet, capabilities)? {
            LoginAnswer::Ok(ok) => return Ok(Proof::Done(ok)),
            LoginAnswer::Err(error) => return Ok(Proof::Refused(error)),
            LoginAnswer::Switch(switch) => {
                self.plugin = switch.plugin.to_vec();
                self.nonce = switch.data.try_into().ok();
                self.answer()?
            }
            LoginAnswer::MoreData(&[FAST_AUTH_SUCCESS]) => return Ok(Proof::Wait),
            LoginAnswer::MoreData(&[PERFORM_FULL_AUTHENTICATION]) => self.in_full()?,
            LoginAnswer::MoreData(pem) if has_asked_for_key => {
                self.sealed(&ServerKey::from_pem(pem).ok_or(ProofError::NoKey)?)?
            }
            // An attacker in the path could use this to replace the pinned key with another.
            LoginAnswer::MoreData(_) => return Err(WireError::UnexpectedPacket.into()),
            LoginAnswer::NextFactor(_) => return Err(ProofError::Plugin("of a further factor".to_owned())),
        };
        Ok(Proof::Answer(answer))
    }

    /// The answer to a challenge.
    fn answer(&mut self) -> Result<Zeroizing<Vec<u8>>, ProofError> {
        let Some(password) = self.password else { return Ok(Zeroizing::default()) };
        match self.plugin.as_slice() {
            CACHING_SHA2_PASSWORD => Ok(password.answer_sha2(self.nonce()?)),
            MYSQL_NATIVE_PASSWORD => Ok(password.answer_native(self.nonce()?)),
            SHA256_PASSWORD if password.is_empty() => Ok(password.ended()),
            SHA256_PASSWORD => self.in_full(),
            MYSQL_CLEAR_PASSWORD if self.is_secure => self.in_full(),
            other => Err(ProofError::Plugin(printable(other))),
        }
    }

    /// The password itself, either inside TLS or encrypted with the server's key, which is requested unless
    /// it is pinned.
    fn in_full(&mut self) -> Result<Zeroizing<Vec<u8>>, ProofError> {
        let Some(password) = self.password else { return Ok(Zeroizing::default()) };
        if self.is_secure {
            return Ok(password.ended());
        }
        if let Some(key) = self.pinned {
            return self.sealed(key);
        }
        self.has_asked_for_key = true;
        let is_elder = self.plugin == SHA256_PASSWORD;
        Ok(Zeroizing::new(vec![if is_elder { SHA256_REQUEST_PUBLIC_KEY } else { REQUEST_PUBLIC_KEY }]))
    }

    fn sealed(&self, key: &ServerKey) -> Result<Zeroizing<Vec<u8>>, ProofError> {
        let Some(password) = self.password else { return Err(ProofError::NoKey) };
        key.seal(password, self.nonce()?).map(Zeroizing::new).ok_or(ProofError::NoKey)
    }

    fn nonce(&self) -> Result<&Nonce, ProofError> {
        self.nonce.as_ref().ok_or(ProofError::Protocol(WireError::Truncated))
    }
}

#[cfg(test)]
mod tests {
    use weir_mysql::authentication::{AuthSwitch, write_more_data};

    use super::*;
    use crate::rsa_key::PasswordKey;

    const NONCE: Nonce = *b"abcdefghijklmnopqrst";

    fn password() -> Password {
        Password::new(b"sesame").unwrap()
    }

    fn more_data(data: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        write_more_data(&mut packet, data);
        packet
    }

    fn switch(plugin: &[u8], data: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        AuthSwitch { plugin, data }.write(&mut packet);
        packet
    }

    /// What is answered to a packet.
    fn answer(prover: &mut Prover<'_>, packet: &[u8]) -> Result<Vec<u8>, ProofError> {
        match prover.hear(packet, Capabilities::NONE)? {
            Proof::Answer(answer) => Ok(answer.to_vec()),
            _ => panic!("an answer is expected"),
        }
    }

    #[test]
    fn a_password_goes_under_the_pinned_key_and_under_no_other() {
        let (own, strangers) = (PasswordKey::load(None).unwrap(), PasswordKey::load(None).unwrap());
        let pinned = ServerKey::from_pem(own.public_pem().as_bytes()).unwrap();
        let password = password();
        let mut prover = Prover::new(Some(&password), Some(&pinned), false);
        prover.begin(CACHING_SHA2_PASSWORD, Some(NONCE)).unwrap();
        let sealed = answer(&mut prover, &more_data(&[PERFORM_FULL_AUTHENTICATION])).unwrap();
        assert_eq!(own.open(&sealed, &NONCE).unwrap().bytes(), b"sesame");
        let pem = more_data(strangers.public_pem().as_bytes());
        assert_eq!(answer(&mut prover, &pem), Err(WireError::UnexpectedPacket.into()));
    }

    #[test]
    fn a_key_is_taken_once_and_only_right_behind_the_question_for_it() {
        let own = PasswordKey::load(None).unwrap();
        let pem = more_data(own.public_pem().as_bytes());
        let password = password();
        let mut prover = Prover::new(Some(&password), None, false);
        prover.begin(CACHING_SHA2_PASSWORD, Some(NONCE)).unwrap();
        assert_eq!(answer(&mut prover, &pem), Err(WireError::UnexpectedPacket.into()));
        let asked = answer(&mut prover, &more_data(&[PERFORM_FULL_AUTHENTICATION]));
        assert_eq!(asked.unwrap(), [REQUEST_PUBLIC_KEY]);
        let sealed = answer(&mut prover, &pem).unwrap();
        assert_eq!(own.open(&sealed, &NONCE).unwrap().bytes(), b"sesame");
        assert_eq!(answer(&mut prover, &pem), Err(WireError::UnexpectedPacket.into()));
    }

    #[test]
    fn a_password_is_said_as_it_is_within_tls_alone() {
        let (password, clear) = (password(), switch(MYSQL_CLEAR_PASSWORD, b""));
        let plugin = Err(ProofError::Plugin("mysql_clear_password".to_owned()));
        assert_eq!(answer(&mut Prover::new(Some(&password), None, false), &clear), plugin);
        assert_eq!(answer(&mut Prover::new(Some(&password), None, true), &clear).unwrap(), b"sesame\0");
        let elder = switch(SHA256_PASSWORD, &NONCE);
        let asked = answer(&mut Prover::new(Some(&password), None, false), &elder);
        assert_eq!(asked.unwrap(), [SHA256_REQUEST_PUBLIC_KEY]);
        assert_eq!(answer(&mut Prover::new(Some(&password), None, true), &elder).unwrap(), b"sesame\0");
    }

    #[test]
    fn a_nonce_of_another_length_proves_nothing() {
        let password = password();
        let mut prover = Prover::new(Some(&password), None, false);
        let short = Err(ProofError::Protocol(WireError::Truncated));
        assert_eq!(prover.begin(CACHING_SHA2_PASSWORD, None).map(|answer| answer.to_vec()), short);
        assert_eq!(answer(&mut prover, &switch(MYSQL_NATIVE_PASSWORD, &NONCE[..8])), short);
    }

    #[test]
    fn nobody_sees_a_login_through_with_nothing_to_show() {
        let mut prover = Prover::new(None, None, false);
        assert_eq!(**prover.begin(b"some_plugin", None).unwrap(), *b"");
        assert_eq!(prover.plugin(), CACHING_SHA2_PASSWORD);
        for packet in [switch(b"some_plugin", b""), more_data(&[PERFORM_FULL_AUTHENTICATION])] {
            assert_eq!(answer(&mut prover, &packet).unwrap(), b"");
        }
    }

    #[test]
    fn a_server_that_asks_on_and_on_is_given_up() {
        let password = password();
        let mut prover = Prover::new(Some(&password), None, false);
        let again = switch(CACHING_SHA2_PASSWORD, &NONCE);
        for _ in 0..MOST_PACKETS {
            answer(&mut prover, &again).unwrap();
        }
        assert_eq!(answer(&mut prover, &again), Err(ProofError::TooLong));
    }
}
