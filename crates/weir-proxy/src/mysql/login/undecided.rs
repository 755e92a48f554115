//! Clients that have sent their login and must authenticate directly with a server: all of them if the
//! configuration says so, otherwise those whose account does not use a password.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Context;

use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_mysql::capability::Capabilities;
use weir_stats::table::{End, Login};
use weir_tls::password::Password;
use zeroize::Zeroizing;

use super::refusal::{Failed, say_no};
use super::relay::{NO_PLUGIN, Settling, Unsettled};
use super::{Candidate, Claim, ClientLoggedIn, LoginTerms, count, logged_in};
use crate::backends::{Chosen, Connection, ProxyHeader};
use crate::mysql::account::Account;
use crate::mysql::attach::{self, AttachError, LoggedIn, ServerError};
use crate::mysql::talk::{Talk, TalkError};

/// A client that can still be asked for a plugin, and whose password Weir does not have.
pub struct Undecided<'a> {
    pub(super) terms: &'a LoginTerms<'a>,
    pub(super) talk: Talk,
    pub(super) is_secure: bool,
    /// Whether the configuration wants Weir to ask for the password.
    pub(super) is_unasked: bool,
    pub(super) candidate: Candidate,
}

/// A server that has received the login and asks for a proof.
pub struct AskedServer {
    talk: Talk<Connection>,
    capabilities: Capabilities,
    thread_id: u32,
}

impl Undecided<'_> {
    /// The local address of the client's connection.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn local_addr(&mut self) -> io::Result<SocketAddr> {
        self.talk.wire().local_addr()
    }

    /// See [`Stream::poll_left`].
    pub fn poll_left(&mut self, context: &mut Context<'_>) -> bool {
        self.talk.wire().poll_left(context)
    }

    /// Lets the client authenticate with the chosen server. Returns the logged-in client, the server
    /// connection with the same capabilities, and the payload of the server's OK packet, which the client has
    /// not received yet. The two have `timeout.handshake` from now.
    ///
    /// # Errors
    /// How the session ends. The client was sent its error, if any, and is counted.
    pub async fn settle(
        mut self,
        chosen: &Chosen,
        asked: AskedServer,
    ) -> Result<(ClientLoggedIn, LoggedIn, Zeroizing<Vec<u8>>), End> {
        let terms = self.terms;
        let mut settled = Box::pin(self.settled(chosen, asked)).await;
        if settled.is_ok()
            && let Err(failed) = self.candidate.count(terms)
        {
            settled = Err(failed);
        }
        let (server, ok) = match settled {
            Ok(settled) => settled,
            Err(failed) => return Err(say_no(terms, &mut self.talk, failed).await),
        };
        count(terms, Login::Relayed);
        let client = logged_in(terms, self.talk, self.candidate);
        Ok((client, server, ok))
    }

    /// Sends the login to the chosen server, and receives its request for a proof. The client sees none of
    /// this.
    ///
    /// # Errors
    /// Another server may be asked.
    pub async fn ask(
        &mut self,
        chosen: &Chosen,
        proxy_header: &ProxyHeader,
    ) -> Result<AskedServer, AttachError> {
        let LoginTerms { worker, listener, deadline, .. } = *self.terms;
        deadline.set(clock::now() + listener.shared.config.timeout.connect);
        deadline.set_idle(None);
        let at_server = self.candidate.at_server();
        let asked = attach::ask_for_plugin(worker, chosen, deadline, proxy_header, &at_server, NO_PLUGIN);
        let (talk, capabilities, thread_id) = Box::pin(asked).await?;
        Ok(AskedServer { talk, capabilities, thread_id })
    }

    /// Sends the client the error of a server that does not admit it; returns how its session ends.
    pub async fn refused(mut self, error: AttachError) -> End {
        say_no(self.terms, &mut self.talk, Failed::of_server(error)).await
    }

    /// Sends the client the error that no server can be asked; returns how its session ends.
    pub async fn refuse(mut self, answer: ServerError, end: End) -> End {
        let failed = Failed { answer: Some(answer), end, counted: Login::Unavailable };
        say_no(self.terms, &mut self.talk, failed).await
    }

    async fn settled(
        &mut self,
        chosen: &Chosen,
        asked: AskedServer,
    ) -> Result<(LoggedIn, Zeroizing<Vec<u8>>), Failed> {
        let LoginTerms { listener, pool, deadline, .. } = *self.terms;
        let keys = pool.shared.client_login.clone().ok_or_else(Failed::internal)?;
        deadline.set(clock::now() + listener.shared.config.timeout.handshake);
        let AskedServer { talk: mut server, capabilities, thread_id } = asked;
        let mut settling = Settling {
            terms: self.terms,
            client: &mut self.talk,
            capabilities,
            keys: &keys,
            client_is_secure: self.is_secure,
            is_unasked: self.is_unasked,
            server_is_secure: server.wire().bare().is_none(),
            server: &mut server,
        };
        let settled = Box::pin(settling.run()).await;
        let cells = chosen.backend().cells();
        cells.bytes_received.add(server.received_bytes);
        cells.bytes_sent.add(server.sent_bytes);
        let ok = settled.map_err(|unsettled| match unsettled {
            Unsettled::Refused(error) => Failed::refused(error.code, &error.state, &error.message),
            Unsettled::Client(error) => error.into(),
            Unsettled::Server(error) => Failed::of_server(error),
        })?;
        let (connection, unread) = server.into_parts();
        if unread.is_some() {
            return Err(Failed::of_server(AttachError::Talk(TalkError::TooLong)));
        }
        Ok((LoggedIn { connection, capabilities, thread_id }, ok))
    }
}

impl Claim {
    /// The login data without a password: the client has proved nothing to Weir.
    pub(super) fn without_password(self) -> Result<Candidate, Failed> {
        let nothing = Password::new(b"").ok_or_else(Failed::internal)?;
        Ok(self.with_password(nothing))
    }

    /// The login data with a password that the client has proved.
    pub(super) fn with_password(self, password: Password) -> Candidate {
        let Claim { user, capabilities, max_packet_bytes, collation, database, attributes, compression } =
            self;
        let account = Rc::new(Account::new(&user, password));
        let session = None;
        Candidate {
            account,
            capabilities,
            max_packet_bytes,
            collation,
            database,
            attributes,
            compression,
            session,
        }
    }
}

impl Candidate {
    /// The same without its password.
    pub(super) fn without_password(mut self) -> Result<Candidate, Failed> {
        let nothing = Password::new(b"").ok_or_else(Failed::internal)?;
        self.account = Rc::new(Account::new(&self.account.user, nothing));
        Ok(self)
    }
}
