//! Relays a login between a client and a server: the server's nonce and requests go to the client, and the
//! client's answers go to the server, whatever the plugin.
//!
//! Weir has sent its own greeting, and may terminate TLS on either side. Weir logs in with a plugin that no
//! account has, so that the server names the account's plugin and sends its nonce. A client can be asked for
//! another plugin once in a login, and that request is used for this. Nothing is stored.
//!
//! If only one side uses TLS, a password that is sent itself would leave TLS. Such logins are allowed only
//! with plugins for which it is known when that happens; Weir then encrypts the password with the server's
//! key, or decrypts it with its own.

use weir_mysql::authentication::{
    AuthSwitch, LoginAnswer, PERFORM_FULL_AUTHENTICATION, REQUEST_PUBLIC_KEY, write_more_data,
};
use weir_mysql::greeting::{
    CACHING_SHA2_PASSWORD, CLIENT_ED25519, MYSQL_CLEAR_PASSWORD, MYSQL_NATIVE_PASSWORD, Nonce,
};
use weir_mysql::outcome::printable;
use weir_tls::password::Password;
use weir_tls::{ClientLogin as LoginKeys, ServerKey};
use zeroize::Zeroizing;

use super::{LoginTerms, PASSWORD_PLUGINS};
use crate::mysql::attach::{AttachError, ServerError};
use crate::mysql::talk::{Talk, TalkError, Wire};

/// A plugin that no account has.
pub const NO_PLUGIN: &[u8] = b"weir_relay";
/// Longest relayed packet (bytes): Kerberos tickets take some ten thousand.
const PACKET_BYTES: usize = 64 << 10;
/// Most packets of one login, in both directions together.
const MOST_PACKETS: usize = 32;

/// Both sides of a login, after Weir has logged in to the server with [`NO_PLUGIN`].
pub struct Settling<'a, C, S> {
    pub terms: &'a LoginTerms<'a>,
    pub client: &'a mut Talk<C>,
    pub server: &'a mut Talk<S>,
    /// The capabilities in use with the server.
    pub capabilities: weir_mysql::capability::Capabilities,
    /// Weir's own key, and the servers' key if it is pinned.
    pub keys: &'a LoginKeys,
    pub client_is_secure: bool,
    /// Whether the login is relayed although the configuration wants Weir to ask for the password.
    pub is_unasked: bool,
    pub server_is_secure: bool,
}

/// Why a relayed login failed.
#[derive(Debug)]
pub enum Unsettled {
    /// The server refused it; the client gets its error.
    Refused(ServerError),
    /// The conversation with the client failed.
    Client(TalkError),
    /// The conversation with the server failed.
    Server(AttachError),
}

impl From<AttachError> for Unsettled {
    fn from(error: AttachError) -> Unsettled {
        Unsettled::Server(error)
    }
}

/// A packet, by the side that sent it.
enum Came {
    Client(Zeroizing<Vec<u8>>),
    Server(Zeroizing<Vec<u8>>),
}

impl<C: Wire, S: Wire> Settling<'_, C, S> {
    /// Relays packets until the server has decided; returns the payload of its OK packet, which the client
    /// has not received yet.
    ///
    /// # Errors
    /// The client is not logged in.
    pub async fn run(&mut self) -> Result<Zeroizing<Vec<u8>>, Unsettled> {
        let mut challenge: Option<(Vec<u8>, Option<Nonce>)> = None;
        for _ in 0..MOST_PACKETS {
            let packet = match self.next().await? {
                Came::Client(packet) => {
                    self.tell_server(&packet).await?;
                    continue;
                }
                Came::Server(packet) => packet,
            };
            let answer = LoginAnswer::parse(&packet, self.capabilities);
            match answer.map_err(|error| AttachError::Talk(TalkError::Protocol(error)))? {
                LoginAnswer::Ok(_) => return Ok(packet),
                LoginAnswer::Err(error) => return Err(Unsettled::Refused(ServerError::of(&error))),
                LoginAnswer::Switch(AuthSwitch { plugin, data })
                | LoginAnswer::NextFactor(AuthSwitch { plugin, data }) => {
                    if !self.may_ask(plugin) {
                        return Err(AttachError::Plugin(printable(plugin)).into());
                    }
                    challenge = Some((plugin.to_vec(), data.try_into().ok()));
                    self.tell_client(&packet).await?;
                }
                LoginAnswer::MoreData(&[PERFORM_FULL_AUTHENTICATION])
                    if self.client_is_secure != self.server_is_secure
                        && challenge.as_ref().is_some_and(|(plugin, _)| plugin == CACHING_SHA2_PASSWORD) =>
                {
                    let nonce = challenge.as_ref().and_then(|(_, nonce)| *nonce);
                    let nonce = nonce.ok_or(AttachError::NoKey)?;
                    self.tell_client(&packet).await?;
                    self.password_between(&nonce).await?;
                }
                LoginAnswer::MoreData(_) => {
                    self.tell_client(&packet).await?;
                }
            }
        }
        Err(AttachError::Talk(TalkError::TooLong).into())
    }

    /// Whether a client's answer to this plugin may go to the server unchanged.
    fn may_ask(&self, plugin: &[u8]) -> bool {
        match (self.client_is_secure, self.server_is_secure) {
            (true, true) => true,
            // An attacker in between could claim that the account has no password, ask for it here, and have
            // it encrypted with his own key, which bypasses the key that the configuration pins.
            (_, false) if self.is_unasked && PASSWORD_PLUGINS.contains(&plugin) => false,
            // Without TLS, clients send only what is safe to be overheard, except with this plugin.
            (false, false) => plugin != MYSQL_CLEAR_PASSWORD,
            _ => matches!(plugin, CACHING_SHA2_PASSWORD | MYSQL_NATIVE_PASSWORD | CLIENT_ED25519),
        }
    }

    /// Transfers the password itself if one side sends it within TLS and the other needs it encrypted.
    async fn password_between(&mut self, nonce: &Nonce) -> Result<(), Unsettled> {
        let mut packet = self.hear_client().await?;
        if !self.client_is_secure {
            if **packet == [REQUEST_PUBLIC_KEY] {
                let mut pem = Vec::new();
                write_more_data(&mut pem, self.keys.own_key.public_pem().as_bytes());
                self.tell_client(&pem).await?;
                packet = self.hear_client().await?;
            }
            let password = self.keys.own_key.open(&packet, nonce);
            let password = password.ok_or(Unsettled::Client(TalkError::Closed))?;
            return self.tell_server(&password.ended()).await;
        }
        let password = packet.strip_suffix(b"\0").and_then(Password::new);
        let password = password.ok_or(Unsettled::Client(TalkError::Closed))?;
        let sealed = match &self.keys.server_key {
            Some(key) => key.seal(&password, nonce),
            None => {
                self.tell_server(&[REQUEST_PUBLIC_KEY]).await?;
                let answer = self.hear_server().await?;
                let pem = answer.strip_prefix(&[weir_mysql::authentication::MORE_DATA]);
                pem.and_then(ServerKey::from_pem).and_then(|key| key.seal(&password, nonce))
            }
        };
        self.tell_server(&sealed.ok_or(AttachError::NoKey)?).await
    }

    async fn next(&mut self) -> Result<Came, Unsettled> {
        let LoginTerms { worker, deadline, .. } = *self.terms;
        // Receiving can be cancelled at any time: the bytes received so far stay in the conversation.
        tokio::select! {
            biased;
            packet = self.server.receive(&worker.buffers, deadline, PACKET_BYTES) => {
                packet.map(Came::Server).map_err(|error| AttachError::Talk(error).into())
            }
            packet = self.client.receive(&worker.buffers, deadline, PACKET_BYTES) => {
                packet.map(Came::Client).map_err(Unsettled::Client)
            }
        }
    }

    async fn hear_client(&mut self) -> Result<Zeroizing<Vec<u8>>, Unsettled> {
        let LoginTerms { worker, deadline, .. } = *self.terms;
        let packet = self.client.receive(&worker.buffers, deadline, PACKET_BYTES).await;
        packet.map_err(Unsettled::Client)
    }

    async fn hear_server(&mut self) -> Result<Zeroizing<Vec<u8>>, Unsettled> {
        let LoginTerms { worker, deadline, .. } = *self.terms;
        let packet = self.server.receive(&worker.buffers, deadline, PACKET_BYTES).await;
        packet.map_err(|error| AttachError::Talk(error).into())
    }

    async fn tell_client(&mut self, packet: &[u8]) -> Result<(), Unsettled> {
        let sent = self.client.send(self.terms.deadline, |out| out.extend_from_slice(packet)).await;
        sent.map_err(Unsettled::Client)
    }

    async fn tell_server(&mut self, packet: &[u8]) -> Result<(), Unsettled> {
        let sent = self.server.send(self.terms.deadline, |out| out.extend_from_slice(packet)).await;
        sent.map_err(|error| AttachError::Talk(error).into())
    }
}
