//! Clients that have said who they are, and that have to prove it to a server themselves: all of them where
//! the config says so, else those whose account proves something else than a password.

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

/// A client that can still be asked for a plugin, and of which no password is kept.
pub struct Undecided<'a> {
    pub(super) terms: &'a LoginTerms<'a>,
    pub(super) talk: Talk,
    pub(super) is_secure: bool,
    /// Whether Weir was to hear the password itself.
    pub(super) is_unasked: bool,
    pub(super) candidate: Candidate,
}

/// A server that was told who comes, and has asked for a proof.
pub struct AskedServer {
    talk: Talk<Connection>,
    capabilities: Capabilities,
    thread_id: u32,
}

impl Undecided<'_> {
    /// Where the client has connected to.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&mut self) -> io::Result<SocketAddr> {
        self.talk.wire().local_addr()
    }

    /// See [`Stream::poll_left`].
    pub fn poll_left(&mut self, context: &mut Context<'_>) -> bool {
        self.talk.wire().poll_left(context)
    }

    /// Lets the client log in with the chosen server, which the two settle between them: the server's
    /// connection, logged in with the same capabilities, and its OK packet, still to be said to the client.
    /// They have `timeout.handshake` from now.
    ///
    /// # Errors
    /// The client was told what there was to say, and is counted; how its session ends.
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

    /// Tells the chosen server who comes, and hears what it asks for. The client has heard of none of it.
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

    /// Tells the client why no server lets it in; how its session ends.
    pub async fn refused(mut self, error: AttachError) -> End {
        say_no(self.terms, &mut self.talk, Failed::of_server(error)).await
    }

    /// Tells the client that no server can be asked; how its session ends.
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
    /// Who it is by its name alone: nothing of it was shown to Weir.
    pub(super) fn without_password(self) -> Result<Candidate, Failed> {
        let nothing = Password::new(b"").ok_or_else(Failed::internal)?;
        Ok(self.with_password(nothing))
    }

    /// Who it is by a password that it has shown.
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
    /// The same by its name alone.
    pub(super) fn without_password(mut self) -> Result<Candidate, Failed> {
        let nothing = Password::new(b"").ok_or_else(Failed::internal)?;
        self.account = Rc::new(Account::new(&self.account.user, nothing));
        Ok(self)
    }
}
