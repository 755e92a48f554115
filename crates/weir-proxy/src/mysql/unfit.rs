//! Why a server that was chosen for a statement is not the one, who is to blame, and what follows.

use std::fmt;

use weir_config::RetryOn;
use weir_io::clock;

use super::attach::AttachError;
use super::exchange::ServerFailure;
use super::failure::Refusal;
use super::talk::TalkError;
use crate::backends::Chosen;
use crate::worker::Worker;

/// Why a server that was chosen is not the one.
pub enum Unfit {
    /// It could not be logged in to.
    Attach(AttachError),
    /// The connection to it failed while it was made ready.
    Server(ServerFailure),
    /// It says no to what the session is: its schema is gone, say.
    Refused(Refusal),
    /// It has not executed what the session has written, and did not within the time for that.
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
            Unfit::Server(failure) => !matches!(failure, ServerFailure::Refused(_)),
            _ => false,
        }
    }

    /// Whether the primary may know better.
    pub fn may_be_behind(&self) -> bool {
        match self {
            Unfit::Attach(AttachError::Refused(error)) => error.may_be_behind(),
            Unfit::Refused(refusal) => refusal.error.may_be_behind(),
            _ => false,
        }
    }

    /// Whether the server says that there is no such schema, or none that the account may see.
    pub fn lacks_schema(&self) -> bool {
        match self {
            Unfit::Attach(AttachError::Refused(error)) => error.lacks_schema(),
            Unfit::Refused(refusal) => refusal.error.lacks_schema(),
            _ => false,
        }
    }

    /// Tells passive health, and whoever watches the servers.
    pub fn note(&self, chosen: &Chosen, worker: &Worker) {
        let pool = &chosen.pool.shared;
        tracing::debug!(pool = pool.config.name, backend = chosen.backend().shared.address, unfit = %self, "MySQL server");
        if self.blames_server() {
            chosen.observe_failure(worker, clock::now(), || self.to_string());
            pool.nudge.ask();
        }
    }

    /// What `retry.on` calls it: nothing was sent of a statement.
    pub fn retried_as(&self) -> Option<RetryOn> {
        match self {
            Unfit::Attach(AttachError::Connect(error)) => error.retried_as(),
            _ => Some(RetryOn::Connect),
        }
    }

    /// What the client is told when no other server is tried: not where the servers are.
    pub fn refusal(self, pool: &str) -> Refusal {
        match self {
            Unfit::Attach(error) => Refusal::not_attached(&error, pool),
            // It was let in and may do nothing: an expired password, or as many statements as it may send.
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
