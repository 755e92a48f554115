//! What is known of an exchange, a session or a flow when it is over.

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)+) => {
        /// A fact that only lines of a log can say.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Outcome {
            $($(#[doc = $doc])+ $Variant,)+
        }

        impl Outcome {
            /// All, in the order in which they are listed.
            pub const ALL: [Outcome; [$($name),+].len()] = [$(Outcome::$Variant),+];

            /// As it is written, without the `$`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Outcome::$Variant => $name,)+
                }
            }
        }
    };
}

outcomes! {
    /// When it ended, RFC 3339, in UTC.
    Time = "time",
    /// When it ended, as Apache and nginx write it: `21/Nov/2026:22:05:09 +0000`.
    TimeCommon = "time_common",
    /// When it ended, in seconds since 1970 with milliseconds.
    TimeUnix = "time_unix",
    /// Name of the listener.
    Listener = "listener",
    /// Name of the route that took it.
    Route = "route",
    /// Name of the pool.
    Pool = "pool",
    /// The backend that was used last.
    Backend = "backend",
    /// What was spoken: `HTTP/1.1`, `TCP`.
    Protocol = "protocol",
    /// What the backend was asked in: `HTTP/1.1`, `HTTP/2.0`.
    BackendProtocol = "backend_protocol",
    /// Path and query, as sent.
    Target = "target",
    /// The status that the client got.
    Status = "status",
    /// Bytes from the client.
    BytesReceived = "bytes_received",
    /// Bytes to the client.
    BytesSent = "bytes_sent",
    /// Bytes of the content to the client.
    BodyBytesSent = "body_bytes_sent",
    /// What the cache did, in one word.
    Cache = "cache",
    /// Tries after the first.
    Retries = "retries",
    /// What became of a second backend that was asked beside the first (`hedge`), in one word.
    Hedge = "hedge",
    /// Seconds from the first byte of the request to the end of its head.
    ClientHeader = "client_header",
    /// Seconds spent waiting for a backend with room.
    Queue = "queue",
    /// Seconds until a backend had accepted.
    Connect = "connect",
    /// Seconds from the request sent to the head of the response.
    BackendHeader = "backend_header",
    /// Seconds, everything.
    Total = "total",
    /// Why it ended, in one word.
    End = "end",
    /// What would have refused it, but for a dry run.
    WouldReject = "would_reject",
    /// What the screen for SQL injection found.
    Sqli = "sqli",
    /// The cipher suite of the client's connection.
    TlsCipher = "tls_cipher",
}

impl Outcome {
    /// The one of that name.
    pub fn of_name(name: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Whether its value is a number, wherever it has one.
    pub const fn is_number(self) -> bool {
        matches!(
            self,
            Outcome::TimeUnix
                | Outcome::Status
                | Outcome::BytesReceived
                | Outcome::BytesSent
                | Outcome::BodyBytesSent
                | Outcome::Retries
                | Outcome::ClientHeader
                | Outcome::Queue
                | Outcome::Connect
                | Outcome::BackendHeader
                | Outcome::Total
        )
    }
}
