//! How a client proves its password: with the fast proof if the account is known, otherwise by sending the
//! password. A server confirms it in both cases.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use weir_config::Passwords;
use weir_io::clock;
use weir_io::stream::Stream;
use weir_mysql::authentication::{
    AuthSwitch, FAST_AUTH_SUCCESS, PERFORM_FULL_AUTHENTICATION, REQUEST_PUBLIC_KEY, write_more_data,
};
use weir_mysql::greeting::{CACHING_SHA2_PASSWORD, Nonce};
use weir_stats::table::Login;
use weir_tls::ClientLogin;
use weir_tls::full_logins::{LoginRates, TooManyLogins};
use weir_tls::password::Password;
use zeroize::Zeroizing;

use super::refusal::Failed;
use super::{Candidate, Claim, Denied, LoginTerms, Shown};
use crate::mysql::talk::{Talk, TalkError, Wire};

/// Longest packet of a proof (bytes): a password encrypted with an RSA key of 8,192 bits takes 1,024.
const PROOF_BYTES: usize = 1024;

/// The context of a proof.
pub struct Proof<'a> {
    pub terms: &'a LoginTerms<'a>,
    /// Whether the client's connection is TLS.
    pub is_secure: bool,
    /// The user for whom its session is already counted.
    pub counted: Option<&'a [u8]>,
}

/// The result of a proof.
pub enum Admission<T> {
    /// A server has confirmed it, with this result.
    Confirmed(Candidate, Login, T),
    /// The account does not use a password.
    Undecided(Candidate),
}

impl Proof<'_> {
    /// Has the client prove its password, and lets a server decide.
    pub async fn admit<T>(
        &self,
        talk: &mut Talk<impl Wire>,
        claim: Claim,
        shown: Shown,
        mut confirm: impl AsyncFnMut(&Candidate, &mut Stream) -> Result<T, Denied>,
    ) -> Result<Admission<T>, Failed> {
        // A client can be asked for another plugin only once in a login.
        let was_asked = matches!(shown, Shown::Nothing(_));
        let (password, how) = self.password(talk, &claim, shown).await?;
        let mut candidate = claim.with_password(password);
        // From here it waits for a server, so it does not count as idle.
        self.terms.deadline.set_idle(None);
        let confirmed = confirm(&candidate, talk.wire()).await;
        let (shared, account) = (&self.terms.pool.shared, &candidate.account);
        match confirmed {
            Ok(confirmed) => {
                if let Some(most) = self.learns() {
                    shared.accounts.keep(&account.user, &account.password, most, clock::now());
                }
                if self.counted != Some(&account.user) {
                    candidate.count(self.terms)?;
                }
                Ok(Admission::Confirmed(candidate, how, confirmed))
            }
            Err(Denied::Refused(error)) => {
                if error.refuses_account() {
                    shared.accounts.refuse(&account.user, &account.password);
                }
                Err(Failed::refused(error.code, &error.state, &error.message))
            }
            Err(Denied::Plugin(plugin)) => {
                shared.accounts.refuse(&account.user, &account.password);
                match was_asked {
                    true => Err(Failed::of_plugin(&plugin)),
                    false => Ok(Admission::Undecided(candidate.without_password()?)),
                }
            }
            Err(Denied::Unavailable(error, end)) => {
                Err(Failed { answer: Some(error), end, counted: Login::Unavailable })
            }
        }
    }

    /// The password that the client has proved or sent.
    async fn password(
        &self,
        talk: &mut Talk<impl Wire>,
        claim: &Claim,
        shown: Shown,
    ) -> Result<(Password, Login), Failed> {
        let (nonce, answer) = match shown {
            Shown::Answer(nonce, answer) => (nonce, answer),
            Shown::Nothing(nonce) => {
                let switch = AuthSwitch { plugin: CACHING_SHA2_PASSWORD, data: &nonce };
                talk.send(self.terms.deadline, |out| switch.write(out)).await?;
                (nonce, self.receive(talk).await?)
            }
        };
        let client_login = self.terms.pool.shared.client_login.clone().ok_or_else(Failed::internal)?;
        if self.learns().is_none() {
            return self.of_the_file(talk, claim, &client_login, (&nonce, &answer)).await;
        }
        if answer.is_empty() || **answer == [0] {
            // A login with an empty password. Nothing is compared here; a server decides, as for any other
            // login. It costs the servers a login each time.
            self.take_turn(&claim.user).await?;
            let empty = Password::new(b"").ok_or_else(Failed::internal)?;
            return Ok((empty, Login::Empty));
        }
        let known = self.terms.pool.shared.accounts.find(&claim.user, clock::now());
        if let Some(password) = known.filter(|password| password.is_shown_by(&answer, &nonce)) {
            self.say(talk, &[FAST_AUTH_SUCCESS]).await?;
            return Ok((password, Login::Fast));
        }
        // The same exchange follows if the account is unknown and if the proof does not fit the stored
        // password. The password may have been changed on the servers, and a client must not find out here
        // which accounts are known.
        self.in_full(talk, claim, &client_login, &nonce).await
    }

    /// For an account in `passwords_file`. One that is not in the file is refused after exactly the same
    /// exchange.
    async fn of_the_file(
        &self,
        talk: &mut Talk<impl Wire>,
        claim: &Claim,
        client_login: &ClientLogin,
        (nonce, answer): (&Nonce, &[u8]),
    ) -> Result<(Password, Login), Failed> {
        let found = client_login.file.as_ref().and_then(|file| file.find(&claim.user));
        let nobodys = Password::new(b"nobody's").ok_or_else(Failed::internal)?;
        let is_shown = found.unwrap_or(&nobodys).is_shown_by(answer, nonce);
        let answer = if *answer == [0] { &[][..] } else { answer };
        match found.filter(|password| is_shown || (password.is_empty() && answer.is_empty())) {
            Some(password) if password.is_empty() => Ok((password.clone(), Login::Empty)),
            Some(password) => {
                self.say(talk, &[FAST_AUTH_SUCCESS]).await?;
                Ok((password.clone(), Login::Fast))
            }
            None => Err(Failed::denied(claim, self.terms.client, !answer.is_empty())),
        }
    }

    /// Asks the client to send its password.
    async fn in_full(
        &self,
        talk: &mut Talk<impl Wire>,
        claim: &Claim,
        client_login: &ClientLogin,
        nonce: &Nonce,
    ) -> Result<(Password, Login), Failed> {
        let denied = || Failed::denied(claim, self.terms.client, true);
        self.say(talk, &[PERFORM_FULL_AUTHENTICATION]).await?;
        let mut packet = self.receive(talk).await?;
        if self.is_secure {
            self.take_turn(&claim.user).await?;
            // The NUL shows that the password is complete.
            let password = packet.strip_suffix(b"\0").and_then(Password::new);
            return Ok((password.ok_or_else(denied)?, Login::FullTls));
        }
        if **packet == [REQUEST_PUBLIC_KEY] {
            self.say(talk, client_login.own_key.public_pem().as_bytes()).await?;
            packet = self.receive(talk).await?;
        }
        self.take_turn(&claim.user).await?;
        let password = client_login.own_key.open(&packet, nonce);
        Ok((password.ok_or_else(denied)?, Login::FullRsa))
    }

    /// Waits until the rate limits for full logins admit this client.
    pub async fn take_turn(&self, user: &[u8]) -> Result<(), Failed> {
        let LoginTerms { worker, listener, pool, deadline, client, .. } = *self.terms;
        let Some(config) = &pool.shared.config.mysql else { return Err(Failed::internal()) };
        let rates = LoginRates {
            all: config.full_logins,
            client: config.full_logins_per_client,
            account: config.full_logins_per_account,
        };
        let client = weir_screen::address_key(client);
        let wait = pool.shared.full_logins.take(client, user, rates, clock::now());
        let wait = wait.map_err(|over| match over {
            TooManyLogins::Client => Failed::limited(),
            TooManyLogins::Account => Failed::of_limited_account(user, rates.account.unwrap_or_default()),
        })?;
        if wait == Duration::ZERO {
            return Ok(());
        }
        listener.shared.cells.of(worker.number).logins_waited.increment();
        let mut turn = pin!(tokio::time::sleep(wait));
        let waited = poll_fn(|context| match turn.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending if deadline.has_passed() => Poll::Ready(Err(TalkError::TimedOut)),
            Poll::Pending if deadline.is_shed() => Poll::Ready(Err(TalkError::Shed)),
            Poll::Pending => Poll::Pending,
        });
        waited.await.map_err(|error| match error {
            TalkError::TimedOut => Failed::limited(),
            other => other.into(),
        })
    }

    /// Most accounts that are remembered; `None` if they are in a file.
    pub fn learns(&self) -> Option<usize> {
        let config = self.terms.pool.shared.config.mysql.as_ref()?;
        (config.passwords != Passwords::File).then_some(config.accounts as usize)
    }

    async fn say(&self, talk: &mut Talk<impl Wire>, data: &[u8]) -> Result<(), TalkError> {
        talk.send(self.terms.deadline, |out| write_more_data(out, data)).await
    }

    async fn receive(&self, talk: &mut Talk<impl Wire>) -> Result<Zeroizing<Vec<u8>>, TalkError> {
        talk.receive(&self.terms.worker.buffers, self.terms.deadline, PROOF_BYTES).await
    }
}
