//! What happened to a packet, and the words for it.

/// What happened to a packet: as `enum verdict`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Verdict {
    /// Forwarded to a backend.
    ToBackend,
    /// Forwarded to a client.
    ToClient,
    /// An ICMP error, translated for a backend.
    IcmpToBackend,
    /// An ICMP error, translated for a client.
    IcmpToClient,
    /// Answered with a TCP reset.
    Reset,
    /// Answered with ICMP: its hop limit was reached.
    TimeExceeded,
    /// Answered with ICMP: it does not fit the outgoing link.
    TooBig,
    /// The checksum of its IP header is wrong.
    DropBadHeader,
    /// It is shorter than its header says.
    DropTruncated,
    /// No backend accepts flows.
    DropNoBackend,
    /// It belongs to an unknown flow.
    DropUnknownFlow,
    /// The client is the backend that was chosen.
    DropOwnBackend,
    /// A later fragment whose first one was not seen.
    DropFragment,
    /// No route leads there.
    DropNoRoute,
    /// There is no room for a new flow.
    DropShed,
    /// No port was free at the backend.
    DropNoPort,
    /// An ICMP error that can't be translated.
    DropIcmp,
    /// The kernel refused to rewrite it.
    DropNotRewritten,
    /// It should get an answer, but there were too many, or its kind has none.
    DropUnanswered,
    /// A list refuses its client.
    DropDenied,
    /// Left to this host, which has a socket for its connection.
    ToHost,
    /// Its source is an address of this host, which no other host may use.
    DropOwnAddress,
    /// It has both SYN and FIN.
    DropBadFlags,
}

impl Verdict {
    /// All, in the order of their numbers.
    pub const ALL: [Verdict; 23] = [
        Verdict::ToBackend,
        Verdict::ToClient,
        Verdict::IcmpToBackend,
        Verdict::IcmpToClient,
        Verdict::Reset,
        Verdict::TimeExceeded,
        Verdict::TooBig,
        Verdict::DropBadHeader,
        Verdict::DropTruncated,
        Verdict::DropNoBackend,
        Verdict::DropUnknownFlow,
        Verdict::DropOwnBackend,
        Verdict::DropFragment,
        Verdict::DropNoRoute,
        Verdict::DropShed,
        Verdict::DropNoPort,
        Verdict::DropIcmp,
        Verdict::DropNotRewritten,
        Verdict::DropUnanswered,
        Verdict::DropDenied,
        Verdict::ToHost,
        Verdict::DropOwnAddress,
        Verdict::DropBadFlags,
    ];

    /// The word for it in metrics and `weir explain`.
    pub const fn word(self) -> &'static str {
        match self {
            Verdict::ToBackend => "to_backend",
            Verdict::ToClient => "to_client",
            Verdict::IcmpToBackend => "icmp_to_backend",
            Verdict::IcmpToClient => "icmp_to_client",
            Verdict::Reset => "reset",
            Verdict::TimeExceeded => "time_exceeded",
            Verdict::TooBig => "too_big",
            Verdict::DropBadHeader => "drop_bad_header",
            Verdict::DropTruncated => "drop_truncated",
            Verdict::DropNoBackend => "drop_no_backend",
            Verdict::DropUnknownFlow => "drop_unknown_flow",
            Verdict::DropOwnBackend => "drop_own_backend",
            Verdict::DropFragment => "drop_fragment",
            Verdict::DropNoRoute => "drop_no_route",
            Verdict::DropShed => "drop_shed",
            Verdict::DropNoPort => "drop_no_port",
            Verdict::DropIcmp => "drop_icmp",
            Verdict::DropNotRewritten => "drop_not_rewritten",
            Verdict::DropUnanswered => "drop_unanswered",
            Verdict::DropDenied => "drop_denied",
            Verdict::ToHost => "to_host",
            Verdict::DropOwnAddress => "drop_own_address",
            Verdict::DropBadFlags => "drop_bad_flags",
        }
    }
}
