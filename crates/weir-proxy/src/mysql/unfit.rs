//! Why a server that was picked for a statement cannot be used, who is to blame, and how to continue.

use std::fmt;

use weir_config::RetryOn;
use weir_io::clock;

use super::attach::AttachError;
use super::exchange::ServerFailure;
use super::failure::Refusal;
use super::talk::TalkError;
use crate::backends::Chosen;
use crate::worker::Worker;

/// Why a server that was picked cannot be used.
pub enum Unfit {
    /// The login failed.
    Attach(AttachError),
    /// The connection failed while it was being prepared.
    Server(ServerFailure),
    /// The server refuses the session's state, for example because its schema no longer exists.
    Refused(Refusal),
    /// The server lacks the session's writes, and did not catch up in time.
    Behind,
}

impl Unfit {
    /// Whether the server is to blame, for passive health.
    pub fn blames_server(&self) -> bool {
        match self {
            Unfit::Attach(AttachError::Connect(error)) => error.blames_backend(),
            Unfit::Attach(AttachError::Talk(error)) => {
                !matches!(error, TalkError::NoMemory | TalkError::Shed)
            }
            Unfit::Server(failure) => !matches!(failure, ServerFailure::Refused(_) | ServerFailure::NoMemory),
            _ => false,
        }
    }

    /// Whether the primary may have newer information.
    pub fn may_be_behind(&self) -> bool {
        match self {
            Unfit::Attach(AttachError::Refused(error)) => error.may_be_behind(),
            Unfit::Refused(refusal) => refusal.error.may_be_behind(),
            _ => false,
        }
    }

    /// Whether the server reports that the schema does not exist or is not visible to the account.
    pub fn lacks_schema(&self) -> bool {
        match self {
            Unfit::Attach(AttachError::Refused(error)) => error.lacks_schema(),
            Unfit::Refused(refusal) => refusal.error.lacks_schema(),
            _ => false,
        }
    }

    /// Reports the failure to passive health checks and to the pool's monitor.
    pub fn note(&self, chosen: &Chosen, worker: &Worker) {
        let pool = &chosen.pool.shared;
        tracing::debug!(pool = pool.config.name, backend = chosen.backend().shared.address, unfit = %self, "MySQL server");
        if self.blames_server() {
            chosen.observe_failure(worker, clock::now(), || self.to_string());
            pool.nudge.ask();
        }
    }

    /// The matching condition of `retry.on`. Nothing of a statement was sent.
    pub fn retried_as(&self) -> Option<RetryOn> {
        match self {
            Unfit::Attach(AttachError::Connect(error)) => error.retried_as(),
            _ => Some(RetryOn::Connect),
        }
    }

    /// The error for the client if no other server is tried. It does not reveal server addresses.
    pub fn refusal(self, pool: &str) -> Refusal {
        match self {
            Unfit::Attach(error) => Refusal::not_attached(&error, pool),
            // The login was accepted, but the account may do nothing: its password has expired, or its limit
            // of queries is reached.
            Unfit::Server(ServerFailure::Refused(error)) => Refusal::of_server(error),
            _ => Refusal::failed("no server could be reached", pool),
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Attach(error) => write!(out, "{error}"),
            Unfit::Server(failure) => write!(out, "{failure}"),
            Unfit::Refused(refusal) => write!(out, "{}", refusal.error.packet()),
            Unfit::Behind => write!(out, "the server is behind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attach::ServerError;
    use super::*;

    #[test]
    fn a_servers_words_are_one_line_in_a_log_by_whichever_way_they_come() {
        let said = || ServerError::new(1045, *b"28000", "no\nway\x1b[2J");
        let refusals = [
            Unfit::Attach(AttachError::Refused(said())),
            Unfit::Server(ServerFailure::Refused(said())),
            Unfit::Refused(Refusal::of_server(said())),
        ];
        for unfit in refusals {
            assert!(unfit.to_string().ends_with("1045 no way [2J"), "{unfit}");
        }
    }
}
