//! Variables that are known only when an exchange, a session or a flow is over.

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)+) => {
        /// A fact that only log lines can contain.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Outcome {
            $($(#[doc = $doc])+ $Variant,)+
        }

        impl Outcome {
            /// All of them, in the order of the list.
            pub const ALL: [Outcome; [$($name),+].len()] = [$(Outcome::$Variant),+];

            /// The name as written in a template, without the `$`.
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
    /// Name of the route that matched.
    Route = "route",
    /// Name of the pool.
    Pool = "pool",
    /// The backend that was used last.
    Backend = "backend",
    /// The client's protocol: `HTTP/1.1`, `TCP`.
    Protocol = "protocol",
    /// The protocol towards the backend: `HTTP/1.1`, `HTTP/2.0`.
    BackendProtocol = "backend_protocol",
    /// Path and query, as sent.
    Target = "target",
    /// The status that the client got.
    Status = "status",
    /// Bytes from the client.
    BytesReceived = "bytes_received",
    /// Bytes to the client.
    BytesSent = "bytes_sent",
    /// Bytes of content to the client.
    BodyBytesSent = "body_bytes_sent",
    /// The result of the cache, as one word.
    Cache = "cache",
    /// Attempts after the first.
    Retries = "retries",
    /// The result of a hedged request (`hedge`), as one word.
    Hedge = "hedge",
    /// Seconds from the first byte of the request to the end of its head.
    ClientHeader = "client_header",
    /// Seconds spent in the queue for a backend with room.
    Queue = "queue",
    /// Seconds until a backend accepted the connection.
    Connect = "connect",
    /// Seconds from sending the request to the head of the response.
    BackendHeader = "backend_header",
    /// Seconds in total.
    Total = "total",
    /// Why it ended, as one word.
    End = "end",
    /// The reason for which a limit with dry run would have refused it.
    WouldReject = "would_reject",
    /// What the screen for SQL injection found.
    Sqli = "sqli",
    /// The cipher suite of the client's connection.
    TlsCipher = "tls_cipher",
}

impl Outcome {
    /// The variable with this name.
    pub fn of_name(name: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Whether its value, if any, is a number.
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
