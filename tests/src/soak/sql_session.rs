//! A client's session with MySQL that notes what it was at when a statement failed.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use super::sql_judge::{SqlPhase, SqlTold};
use super::sql_servers::WITH_PASSWORD;
use super::traffic::{Outcome, Shared};
use crate::dialogue::Draws;
use crate::mysql::{Answer, Asked, Client, Login, LoginFailed, query};

/// Bytes that the system keeps for a client that reads slowly.
const SMALL_BUFFER: usize = 16 << 10;

/// A session, and since when it has something on a server.
pub(super) struct SqlSession {
    pub(super) client: Client,
    /// Its line in the access log has this address.
    key: String,
    pub(super) held_since: Option<Instant>,
}

/// A statement that came to nothing.
#[derive(Debug)]
pub(super) struct SqlFailed {
    key: String,
    what: String,
    pub(super) told: SqlTold,
}

impl SqlFailed {
    pub(super) fn outcome(self) -> Outcome {
        Outcome::SqlFailed { key: self.key, what: self.what, told: self.told }
    }
}

impl SqlSession {
    /// Logs in, with or without TLS.
    pub(super) fn log_in(
        shared: &Shared,
        to: SocketAddr,
        draws: &mut Draws,
    ) -> Result<SqlSession, SqlFailed> {
        let mut login = Login::of("app", "soak");
        match draws.below(4) {
            0 => login.tls = Some(shared.sql_tls.clone()),
            // An encrypted connection is needed to tell the password.
            1 => {
                (login.user, login.password) = WITH_PASSWORD;
                login.tls = Some(Arc::clone(&shared.sql_tls));
            }
            _ => {}
        }
        SqlSession::log_in_as(to, &login, false)
    }

    /// Logs in with a small receive buffer.
    pub(super) fn log_in_slow(to: SocketAddr) -> Result<SqlSession, SqlFailed> {
        SqlSession::log_in_as(to, &Login::of("app", "soak"), true)
    }

    fn log_in_as(to: SocketAddr, login: &Login<'_>, is_slow: bool) -> Result<SqlSession, SqlFailed> {
        let since = Instant::now();
        let failed = |key: &str, what: String, code: Option<u16>| {
            let told = SqlTold { phase: SqlPhase::Login, code, since };
            SqlFailed { key: key.to_owned(), what, told }
        };
        let stream = connect(to, is_slow).map_err(|problem| failed("", problem.to_string(), None))?;
        let key = stream.local_addr().map(|address| address.to_string()).unwrap_or_default();
        match Client::log_in_over(stream, login) {
            Ok(client) => Ok(SqlSession { client, key, held_since: None }),
            Err(LoginFailed::Refused(code, text)) => Err(failed(&key, format!("{code} {text}"), Some(code))),
            Err(other) => Err(failed(&key, format!("{other:?}"), None)),
        }
    }

    /// Asks, and gives the answer; an error of the server is a failure.
    pub(super) fn asks(&mut self, phase: SqlPhase, sql: &str) -> Result<Answer, SqlFailed> {
        self.sends(phase, sql, &query(sql))?;
        self.hears(phase, sql, Asked::Results)
    }

    /// Sends a command; `what` is its name in a failure.
    pub(super) fn sends(&mut self, phase: SqlPhase, what: &str, command: &[u8]) -> Result<(), SqlFailed> {
        let since = Instant::now();
        self.client
            .sends(command)
            .map_err(|problem| self.failed(phase, since, what, &problem.to_string(), None))
    }

    /// Receives an answer to its end.
    pub(super) fn hears(&mut self, phase: SqlPhase, what: &str, asked: Asked) -> Result<Answer, SqlFailed> {
        let (since, mut answer) = (Instant::now(), Answer::default());
        let whole =
            self.client.receives_with(asked, |sequence, payload| answer.packets.push((sequence, payload)));
        // The answer's own error may come behind rows of it.
        let phase = if answer.packets.len() > 1 { SqlPhase::Rows } else { phase };
        match (whole, answer.error()) {
            (Err(problem), _) => {
                let phase = if answer.packets.is_empty() { phase } else { SqlPhase::Rows };
                Err(self.failed(phase, since, what, &problem.to_string(), None))
            }
            (Ok(()), Some((code, text))) => {
                Err(self.failed(phase, since, what, &format!("{code} {text}"), Some(code)))
            }
            (Ok(()), None) => Ok(answer),
        }
    }

    /// From now on, or no more, it has something on a server.
    pub(super) fn holds(&mut self, holds: bool) {
        self.held_since = holds.then(Instant::now);
    }

    pub(super) fn failed(
        &self,
        phase: SqlPhase,
        since: Instant,
        what: &str,
        problem: &str,
        code: Option<u16>,
    ) -> SqlFailed {
        let since = self.held_since.map_or(since, |held| held.min(since));
        let what: String = what.chars().take(80).collect();
        let told = SqlTold { phase, code, since };
        SqlFailed { key: self.key.clone(), what: format!("{phase:?} {what}: {problem}"), told }
    }
}

fn connect(to: SocketAddr, is_slow: bool) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if is_slow {
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
    }
    socket.connect_timeout(&to.into(), crate::dialogue::PATIENCE)?;
    Ok(socket.into())
}
