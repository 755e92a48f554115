//! Whether a failed attempt is tried again: the one place that decides it. Pure.

use weir_config::{Retry, RetryOn};

/// What is known of an attempt that failed, or whose answer is one that is tried again.
pub struct Attempt {
    /// Whether the method may be repeated (RFC 9110 §9.2.2).
    pub idempotent: bool,
    /// Whether everything that was sent can be sent once more.
    pub replayable: bool,
    /// Whether the connection had served an exchange before: the backend may have closed it just when we
    /// sent.
    pub reused: bool,
    /// The kind of failure; `None` when nothing that `on` could name.
    pub kind: Option<RetryOn>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again, on another backend where there is one.
    Again,
    /// Try again on the same backend with a new connection; neither the attempts nor the retry budget are
    /// charged, for the old connection's age is to blame and not the backend.
    Reconnect,
    /// Leave it.
    Leave,
}

/// Decides after `made` attempts, the last one included.
pub fn decide(retry: &Retry, made: u32, attempt: &Attempt) -> Verdict {
    let Some(kind) = attempt.kind else { return Verdict::Leave };
    if !attempt.replayable {
        return Verdict::Leave;
    }
    // Where no connection came about nothing was sent, whatever the method.
    let repeatable = kind == RetryOn::Connect || attempt.idempotent || retry.non_idempotent;
    if !repeatable {
        return Verdict::Leave;
    }
    if kind == RetryOn::Empty && attempt.reused {
        return Verdict::Reconnect;
    }
    if made <= retry.attempts && retry.on.contains(&kind) { Verdict::Again } else { Verdict::Leave }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(on: &[RetryOn]) -> Retry {
        Retry { attempts: 2, on: on.to_vec(), non_idempotent: false }
    }

    fn attempt(kind: RetryOn) -> Attempt {
        Attempt { idempotent: true, replayable: true, reused: false, kind: Some(kind) }
    }

    #[test]
    fn a_refused_connection_is_tried_again_even_for_a_post() {
        let post = Attempt { idempotent: false, ..attempt(RetryOn::Connect) };
        assert_eq!(decide(&retry(&[RetryOn::Connect]), 1, &post), Verdict::Again);
    }

    #[test]
    fn a_post_that_reached_a_backend_is_not_sent_twice() {
        let on = [RetryOn::Empty, RetryOn::Timeout, RetryOn::Status(503)];
        for kind in on {
            let post = Attempt { idempotent: false, ..attempt(kind) };
            assert_eq!(decide(&retry(&on), 1, &post), Verdict::Leave);
            assert_eq!(decide(&Retry { non_idempotent: true, ..retry(&on) }, 1, &post), Verdict::Again);
        }
    }

    #[test]
    fn a_body_that_is_gone_can_not_be_sent_again() {
        let gone = Attempt { replayable: false, ..attempt(RetryOn::Connect) };
        assert_eq!(decide(&retry(&[RetryOn::Connect]), 1, &gone), Verdict::Leave);
    }

    #[test]
    fn attempts_are_bounded_and_only_listed_failures_count() {
        let on = [RetryOn::Connect];
        assert_eq!(decide(&retry(&on), 2, &attempt(RetryOn::Connect)), Verdict::Again);
        assert_eq!(decide(&retry(&on), 3, &attempt(RetryOn::Connect)), Verdict::Leave);
        assert_eq!(decide(&retry(&on), 1, &attempt(RetryOn::Status(503))), Verdict::Leave);
    }

    #[test]
    fn a_kept_connection_that_proves_closed_is_replaced_without_charge() {
        let stale = Attempt { reused: true, ..attempt(RetryOn::Empty) };
        assert_eq!(decide(&retry(&[]), 1, &stale), Verdict::Reconnect);
    }
}
