//! Decides the status, the log word and the counter of a failure; nothing else decides them.

use weir_config::RetryOn;
use weir_http::{AddedField, Violation};
use weir_io::wait::WaitError;
use weir_screen::Refusal;

use crate::admission::end_of;
use weir_stats::table::{End, Rejected};

use crate::backends::ConnectError;
use crate::http::pages::Replaced;
use crate::http::plan::Refused;
use crate::reach::Unavailable;

/// Why an exchange failed.
#[derive(Debug)]
pub enum Failure {
    /// The request violated the protocol; it was not forwarded.
    BadRequest(Violation),
    /// The request's head was not complete in time.
    HeaderTimeout,
    /// The client's body stalled or came too slowly.
    BodyTimeout,
    /// The body is larger than the route allows.
    BodyTooLarge,
    /// CONNECT, because Weir is no forward proxy; TRACE, because a backend would echo secrets.
    MethodRefused,
    /// The request has passed through Weir as often as it may.
    Looped,
    /// The host is not covered by the certificate that the client was shown.
    Misdirected,
    /// An access list or a limit of the listener or the route did not let it pass.
    Screened(Refusal),
    /// It looks like SQL injection.
    Injection,
    /// The client is not authenticated, or not authorized.
    AuthDenied(Box<Denied>),
    /// Authentication was not possible.
    AuthUnavailable,
    /// Authentication was not possible because too many requests of this client already wait for it.
    AuthCrowded,
    /// No route matches, and there is no default pool.
    NoRoute,
    /// No backend of the pool is up.
    NoBackend,
    /// Most requests to the pool fail, so its breaker is open for a while.
    BreakerOpen {
        /// When the client may ask again.
        retry_after_seconds: u64,
    },
    /// Every backend is busy and the queue is full.
    QueueFull,
    /// The request waited in the queue for the whole timeout.
    QueueTimeout,
    /// No connection could be made.
    Connect(ConnectError),
    /// The request needs a tunnel, and the backend speaks HTTP/2 without extended CONNECT (RFC 8441 §3), or
    /// does not speak HTTP/1.1.
    NoTunnel,
    /// The backend closed without a byte of response; with who was waited for then.
    Empty(Awaited),
    /// The backend closed within the response's head, or within its body; with who was waited for then.
    BackendClosed(Awaited),
    /// The backend was silent for too long.
    BackendTimeout,
    /// Neither side sent anything for too long while the response was being sent.
    StreamTimeout {
        /// The backend has announced the length of its response, and owes the rest.
        is_owed: bool,
    },
    /// The time for the whole request was over.
    RequestTotal(Awaited),
    /// The backend's response violated the protocol.
    BadResponse(Violation),
    /// More interim responses than allowed.
    InterimFlood,
    /// The client went away.
    ClientClosed,
    /// The client read too slowly.
    ClientStalled,
    /// The memory budget is used up.
    OutOfMemory,
    /// What a file held of the request or the response could not be read back, or its disk hung.
    BufferLost,
    /// The drain time was over.
    Drained,
    /// No usable response is stored, and the client accepts nothing else (RFC 9111 §5.2.1.7).
    NotCached,
    /// A fetch that another request began failed, and this request waited for it.
    Fetch(FailedFetch),
    /// The part of the service that the request is for is in maintenance.
    Maintenance { retry_after_seconds: u64 },
    /// A backend answered with a status that is replaced by a page.
    Replaced(Box<Replaced>),
}

/// Who was waited for when a request failed because its time was over, or its backend closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The client, which had to send or to read.
    Client,
    /// A backend that had received the request and had not begun to answer.
    Backend,
    /// Neither: a place in a line, a connection, or the rest of a response.
    Nobody,
}

/// The answer to a client that is not authenticated or authorized.
#[derive(Debug)]
pub struct Denied {
    /// The status, 300 to 499.
    pub status: u16,
    /// Fields that belong to the answer, such as a challenge.
    pub fields: Vec<AddedField>,
}

/// Which requests a failure would affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meets {
    /// Only this request.
    Client,
    /// This request; and all others, unless its content caused the failure.
    Request,
    /// All requests.
    All,
}

/// Why a fetch brought no response, for those who wait for it.
#[derive(Clone, Copy, Debug)]
pub struct FailedFetch {
    pub status: u16,
    pub end: End,
    pub word: &'static str,
    pub rejected: Option<Rejected>,
    pub retry_after_seconds: Option<u64>,
    /// Which requests the failure would have affected.
    pub meets: Meets,
}

impl FailedFetch {
    /// What others that wait are told about a failure of the fetch.
    pub fn of(failure: &Failure) -> FailedFetch {
        FailedFetch {
            status: failure.status().unwrap_or(503),
            end: failure.end(),
            word: failure.word(),
            rejected: failure.rejected(),
            retry_after_seconds: failure.retry_after_seconds(),
            meets: failure.meets(),
        }
    }
}

impl Failure {
    /// Its name in `retry.on`; `None` for failures that a retry does not help.
    pub fn retried_as(&self) -> Option<RetryOn> {
        match self {
            Failure::Connect(failed) => failed.retried_as(),
            Failure::Empty(_) => Some(RetryOn::Empty),
            Failure::BackendClosed(_) => Some(RetryOn::Reset),
            Failure::BackendTimeout => Some(RetryOn::Timeout),
            _ => None,
        }
    }
}

impl Failure {
    /// The same failure; if the backend has closed, then with who was waited for.
    pub fn while_awaiting(self, awaited: Awaited) -> Failure {
        match self {
            Failure::Empty(_) => Failure::Empty(awaited),
            Failure::BackendClosed(_) => Failure::BackendClosed(awaited),
            other => other,
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        match refused {
            Refused::BadRequest(violation) => Failure::BadRequest(violation),
            Refused::Method => Failure::MethodRefused,
            Refused::Looped => Failure::Looped,
            Refused::Misdirected => Failure::Misdirected,
            Refused::NoRoute => Failure::NoRoute,
            Refused::BodyTooLarge => Failure::BodyTooLarge,
        }
    }
}

impl From<Unavailable> for Failure {
    fn from(unavailable: Unavailable) -> Failure {
        match unavailable {
            Unavailable::NoneUp | Unavailable::NoneInRole => Failure::NoBackend,
            Unavailable::QueueFull | Unavailable::ParkFull => Failure::QueueFull,
            Unavailable::QueueTimeout { .. } | Unavailable::ParkTimeout { .. } => Failure::QueueTimeout,
            Unavailable::ClientGone { .. } => Failure::ClientClosed,
        }
    }
}

impl From<WaitError> for Failure {
    /// For waits on the client's side.
    fn from(error: WaitError) -> Failure {
        match error {
            WaitError::TimedOut => Failure::ClientStalled,
            WaitError::Broken(_) => Failure::ClientClosed,
        }
    }
}

/// Seconds after which a client that got 503 may try again, if nothing better is known.
const RETRY_AFTER_SECONDS: u64 = 1;

impl Failure {
    /// When the client may try again (RFC 9110 §10.2.3), in seconds; `None` if trying again is useless.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Failure::Screened(refusal) => refusal.retry_after_seconds(),
            Failure::Maintenance { retry_after_seconds } => Some(*retry_after_seconds),
            Failure::Fetch(failed) => failed.retry_after_seconds,
            Failure::BreakerOpen { retry_after_seconds } => Some(*retry_after_seconds),
            _ => (self.status() == Some(503)).then_some(RETRY_AFTER_SECONDS),
        }
    }

    /// The status that Weir answers with while nothing has been sent to the client (RFC 9110 §15.5, §15.6);
    /// `None` if there is nobody to answer.
    pub fn status(&self) -> Option<u16> {
        Some(match self {
            Failure::BadRequest(violation) => violation.status(),
            Failure::HeaderTimeout | Failure::BodyTimeout | Failure::RequestTotal(Awaited::Client) => 408,
            Failure::BodyTooLarge => 413,
            Failure::MethodRefused => 405,
            Failure::Looped => 508,
            Failure::Misdirected => 421,
            Failure::Screened(refusal) => refusal.status,
            Failure::Injection => 403,
            Failure::NoRoute => 404,
            Failure::AuthDenied(denied) => denied.status,
            Failure::NoBackend
            | Failure::BreakerOpen { .. }
            | Failure::AuthUnavailable
            | Failure::AuthCrowded
            | Failure::QueueFull
            | Failure::QueueTimeout
            | Failure::OutOfMemory
            | Failure::Maintenance { .. }
            | Failure::Drained => 503,
            Failure::Connect(ConnectError::TimedOut { .. })
            | Failure::BackendTimeout
            | Failure::StreamTimeout { .. }
            | Failure::RequestTotal(Awaited::Backend | Awaited::Nobody)
            | Failure::NotCached => 504,
            Failure::BufferLost => 500,
            Failure::Fetch(failed) => failed.status,
            Failure::Replaced(answer) => answer.status,
            Failure::Connect(_)
            | Failure::NoTunnel
            | Failure::Empty(_)
            | Failure::BackendClosed(_)
            | Failure::BadResponse(_)
            | Failure::InterimFlood => 502,
            Failure::ClientClosed | Failure::ClientStalled => return None,
        })
    }

    /// The word in the access log.
    pub fn end(&self) -> End {
        match self {
            Failure::BadRequest(_) => End::BadRequest,
            Failure::HeaderTimeout => End::ClientHeader,
            Failure::BodyTimeout | Failure::ClientStalled => End::ClientBody,
            Failure::BodyTooLarge => End::BodyTooLarge,
            Failure::MethodRefused => End::MethodRefused,
            Failure::Looped => End::Looped,
            Failure::Misdirected => End::Misdirected,
            Failure::Screened(refusal) => end_of(refusal.reason),
            Failure::Injection => End::Sqli,
            Failure::AuthDenied(_) => End::AuthDenied,
            Failure::AuthUnavailable | Failure::AuthCrowded => End::AuthUnavailable,
            Failure::NoRoute => End::NoRoute,
            Failure::NoBackend => End::NoBackend,
            Failure::BreakerOpen { .. } => End::BreakerOpen,
            Failure::QueueFull => End::QueueFull,
            Failure::QueueTimeout => End::QueueTimeout,
            Failure::Connect(ConnectError::TimedOut { .. }) => End::ConnectTimeout,
            Failure::Connect(ConnectError::OutOfDescriptors) => End::Overload,
            Failure::Connect(ConnectError::Tls { .. }) => End::BackendTls,
            Failure::Connect(_) => End::ConnectFailed,
            Failure::NoTunnel => End::NoTunnel,
            Failure::Empty(_) | Failure::BackendClosed(_) => End::BackendClosed,
            Failure::BackendTimeout => End::BackendTimeout,
            Failure::StreamTimeout { .. } => End::StreamTimeout,
            Failure::RequestTotal(_) => End::RequestTotal,
            Failure::BadResponse(_) | Failure::InterimFlood => End::BadResponse,
            Failure::ClientClosed => End::ClientClosed,
            Failure::OutOfMemory => End::Overload,
            Failure::BufferLost => End::BufferLost,
            Failure::Drained => End::Draining,
            Failure::NotCached => End::NotCached,
            Failure::Fetch(failed) => failed.end,
            Failure::Maintenance { .. } => End::Maintenance,
            Failure::Replaced(_) => End::Done,
        }
    }

    /// Whether a rate limit or a limit on concurrent requests refused it.
    pub fn is_by_limit(&self) -> bool {
        matches!(self.end(), End::RateLimited | End::ConcurrencyLimited)
    }

    /// The counter of refusals that it belongs to; `None` for failures caused by a backend or the client.
    pub fn rejected(&self) -> Option<Rejected> {
        match self {
            Failure::BadRequest(violation) if matches!(violation.status(), 414 | 431) => {
                Some(Rejected::HeaderTooLarge)
            }
            // A client that stalls while it reads gets the same `end`, but was refused nothing.
            Failure::BodyTimeout => Some(Rejected::BodyTimeout),
            Failure::Connect(ConnectError::OutOfDescriptors) => Some(Rejected::Descriptors),
            Failure::Fetch(failed) => failed.rejected,
            _ => self.end().rejected(),
        }
    }

    /// The reason in the body of the error, in one word.
    pub fn word(&self) -> &'static str {
        match self {
            Failure::BadRequest(violation) | Failure::BadResponse(violation) => violation.word(),
            Failure::Fetch(failed) => failed.word,
            Failure::Replaced(_) => "backend_status",
            other => other.end().word(),
        }
    }

    /// Fields that belong to the answer, such as those of a response that it replaces.
    pub fn fields(&self) -> &[AddedField] {
        match self {
            Failure::Replaced(answer) => &answer.fields,
            Failure::AuthDenied(denied) => &denied.fields,
            _ => &[],
        }
    }

    /// What the backend did wrong, in words for an operator.
    pub fn of_backend(&self) -> String {
        match self {
            Failure::Connect(error) => error.to_string(),
            Failure::Empty(_) => "closed without an answer".to_owned(),
            Failure::BackendClosed(_) => "closed within its answer".to_owned(),
            Failure::BackendTimeout => "did not answer in time".to_owned(),
            Failure::RequestTotal(_) => "did not answer in the time for the whole request".to_owned(),
            Failure::StreamTimeout { .. } => "fell silent within its answer".to_owned(),
            Failure::BadResponse(violation) => format!("answered against the protocol: {}", violation.word()),
            other => other.word().to_owned(),
        }
    }

    /// Whether a backend had received the request and did not begin to answer in time.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Failure::BackendTimeout | Failure::RequestTotal(Awaited::Backend))
    }

    /// Whether the backend is to blame, for passive health and breakers.
    pub fn blames_backend(&self) -> bool {
        match self {
            Failure::Connect(error) => error.blames_backend(),
            // The size of fields mostly follows from the request, and a backend may close when a client keeps
            // it waiting: clients could otherwise have working backends ejected (threat H16).
            Failure::BadResponse(
                Violation::HeaderBlockTooLarge | Violation::TooManyFields | Violation::TrailersTooLarge,
            )
            | Failure::Empty(Awaited::Client)
            | Failure::BackendClosed(Awaited::Client) => false,
            Failure::Empty(_)
            | Failure::BackendClosed(_)
            | Failure::BackendTimeout
            | Failure::StreamTimeout { is_owed: true }
            | Failure::RequestTotal(Awaited::Backend)
            | Failure::BadResponse(_)
            | Failure::InterimFlood => true,
            _ => false,
        }
    }

    /// Which requests to the pool at that time would have failed in the same way.
    pub fn meets(&self) -> Meets {
        match self {
            // Another client's address may be one that the connection can leave from.
            Failure::Connect(ConnectError::Source { .. }) => Meets::Client,
            Failure::Connect(_)
            | Failure::NoBackend
            | Failure::BreakerOpen { .. }
            | Failure::QueueFull
            | Failure::QueueTimeout => Meets::All,
            Failure::BadResponse(_) | Failure::Empty(_) | Failure::BackendClosed(_) => Meets::Request,
            // The total time of another request began at another moment.
            Failure::RequestTotal(_) => Meets::Client,
            _ if self.blames_backend() => Meets::Request,
            _ => Meets::Client,
        }
    }

    /// Whether the bytes that the client sent can no longer be told apart from a next request, so that the
    /// connection ends.
    pub fn closes_client(&self) -> bool {
        matches!(
            self,
            Failure::BadRequest(_)
                | Failure::HeaderTimeout
                | Failure::BodyTimeout
                | Failure::RequestTotal(Awaited::Client)
                | Failure::BodyTooLarge
                | Failure::MethodRefused
                | Failure::ClientClosed
                | Failure::ClientStalled
                | Failure::OutOfMemory
                | Failure::BufferLost
                | Failure::Drained
        )
    }
}
