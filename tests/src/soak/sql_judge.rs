//! Which failures of MySQL clients the guide allows, by what was done to servers and to Weir at that moment.
//!
//! Source: docs/guide/mysql.md, "Failover" and "Taking a server, a listener or Weir out".

use std::time::{Duration, Instant};

use super::site::DRAIN_SECONDS;

/// A failure that begins so long behind a change may still come of it: timers run out.
const AFTERMATH: Duration = Duration::from_secs(1);

/// How long an old process serves what is under way.
const DRAIN: Duration = Duration::from_secs(DRAIN_SECONDS);

/// What a client was at when its statement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlPhase {
    /// Its login.
    Login,
    /// A read, or the begin of a transaction, with nothing held on a server.
    Read,
    /// A write with autocommit on, likewise.
    Write,
    /// Anything in a transaction or on a pinned connection.
    Within,
    /// The end of a transaction.
    Commit,
    /// An answer that has begun.
    Rows,
    /// A statement that another session kills, without effect.
    Kill,
}

/// How a statement failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlTold {
    pub(super) phase: SqlPhase,
    /// The error's number; `None` if the connection ended.
    pub(super) code: Option<u16>,
    /// Since when the statement ran, or the session had something on a server.
    pub(super) since: Instant,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlCause {
    /// A server was killed, or stopped, and came back.
    Lost,
    /// The primary and the copy changed places.
    HandedOver,
    /// A new process of Weir took over, and the old one drained.
    Upgrade,
}

/// One change.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlChange {
    pub(super) cause: SqlCause,
    pub(super) from: Instant,
    /// `None` as long as it goes on.
    pub(super) until: Option<Instant>,
}

impl SqlChange {
    /// Whether this failure, which was noticed at `ended`, may come of it.
    pub(super) fn explains(&self, told: &SqlTold, ended: Instant) -> bool {
        let is_at_that_time =
            ended >= self.from && self.until.is_none_or(|until| told.since <= until + AFTERMATH);
        let is_drained = self.cause == SqlCause::Upgrade && ended >= self.from + DRAIN;
        // What is left after the drain time is cut off, whatever it is at.
        is_at_that_time
            && (self.cause.allows(told.phase, told.code)
                || (is_drained && matches!(told.code, None | Some(1053))))
    }
}

impl SqlCause {
    /// Whether a statement in this phase may fail so.
    pub(super) fn allows(self, phase: SqlPhase, code: Option<u16>) -> bool {
        match (self, phase) {
            // Its next statement goes to another server, and so does a login.
            (SqlCause::Lost, SqlPhase::Login | SqlPhase::Read) => code == Some(1105),
            (SqlCause::Lost, SqlPhase::Write) => matches!(code, None | Some(1105)),
            (SqlCause::Lost, SqlPhase::Within) => matches!(code, None | Some(1105 | 1205 | 1213 | 1836)),
            (SqlCause::Lost, SqlPhase::Commit) => matches!(code, None | Some(1213)),
            (SqlCause::Lost, SqlPhase::Rows) => code.is_none(),
            // The old process has the one session, and the new process the other.
            (SqlCause::Upgrade, SqlPhase::Kill) => true,
            (SqlCause::Lost, SqlPhase::Kill) => false,
            // The first that finds the server read-only has that server's own error.
            (SqlCause::HandedOver, SqlPhase::Within) => {
                matches!(code, None | Some(1205 | 1213 | 1290 | 1836))
            }
            (SqlCause::HandedOver, SqlPhase::Commit) => matches!(code, None | Some(1213 | 1290)),
            // What the server refuses as read-only goes to the next primary; what it runs, it answers.
            (SqlCause::HandedOver, _) => false,
            // A session that has nothing on a server is told, or finds its connection closed.
            (SqlCause::Upgrade, SqlPhase::Login | SqlPhase::Read | SqlPhase::Write) => {
                matches!(code, None | Some(1053))
            }
            (SqlCause::Upgrade, SqlPhase::Within | SqlPhase::Commit | SqlPhase::Rows) => false,
        }
    }
}
