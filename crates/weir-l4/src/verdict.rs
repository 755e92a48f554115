//! What became of a packet, and the words for it.

/// What became of a packet: as `enum verdict`, in its order.
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
    /// Answered by a TCP reset.
    Reset,
    /// Answered by ICMP: its hop limit ended here.
    TimeExceeded,
    /// Answered by ICMP: it does not fit the way out.
    TooBig,
    /// Its IP header's sum is wrong.
    DropBadHeader,
    /// It ends before it says it does.
    DropTruncated,
    /// No backend takes flows.
    DropNoBackend,
    /// It belongs to a flow that nobody remembers.
    DropUnknownFlow,
    /// The client is the backend that was chosen.
    DropOwnBackend,
    /// A later fragment whose first one was not seen.
    DropFragment,
    /// No way leads there.
    DropNoRoute,
    /// There is no room for a new flow.
    DropShed,
    /// No port was free at the backend.
    DropNoPort,
    /// An ICMP error that can't be translated.
    DropIcmp,
    /// The kernel refused to change it.
    DropNotRewritten,
    /// It deserves an answer, and there were too many, or there is none for its kind.
    DropUnanswered,
    /// A list keeps its client out.
    DropDenied,
    /// Left to this host, whose socket has its connection.
    ToHost,
    /// It comes from an address of this host, which nobody else may send from.
    DropOwnAddress,
    /// It opens a connection and ends it.
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

    /// The word that metrics and `weir explain` have for it.
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
