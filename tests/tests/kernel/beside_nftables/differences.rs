//! Where the kernel plane's NAT and that of nftables differ, and why that is so.

/// A case whose packets come out otherwise.
pub(super) struct Difference {
    /// The name of the case, with its family, or without where that is the same for both.
    pub(super) case: &'static str,
    pub(super) ours: Outcome,
    pub(super) theirs: Outcome,
    pub(super) why: &'static str,
}

impl Difference {
    pub(super) fn is_of(&self, case: &str) -> bool {
        case == self.case || case.rsplit_once(", ").is_some_and(|(name, _)| name == self.case)
    }
}

/// What came out, told by parts of its lines: as many lines as there are parts, each with all words of its
/// part.
pub(super) struct Outcome(pub(super) &'static [&'static [&'static str]]);

impl Outcome {
    pub(super) fn matches(&self, lines: &[String]) -> bool {
        lines.len() == self.0.len()
            && self.0.iter().zip(lines).all(|(parts, line)| parts.iter().all(|part| line.contains(part)))
    }
}

/// Nothing came out.
const NOTHING: Outcome = Outcome(&[]);
/// A handshake alone.
const HANDSHAKE: Outcome = Outcome(&[&[], &[], &[]]);

const STATES_ONLY: &str = "Connection tracking calls it invalid, and leaves it untranslated: it goes to the listener's \
    address, where nobody is. Weir leaves it to the backend's own TCP, which has to judge it in any case.";
const SUMS: &str = "Connection tracking reads every sum. Weir changes it by what it rewrites, so that it is as wrong \
    behind as before, and the backend sees the damage.";

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        case: "data far outside the window",
        ours: Outcome(&[&[], &[], &[], &["server", "numbers [70, 0, 0, 0"]]),
        theirs: HANDSHAKE,
        why: STATES_ONLY,
    },
    Difference {
        case: "a first segment with a wrong sum",
        ours: Outcome(&[&["server", "sum wrong"]]),
        theirs: NOTHING,
        why: SUMS,
    },
    Difference {
        case: "a later segment with a wrong sum",
        ours: Outcome(&[&[], &[], &[], &["server", "sum wrong"]]),
        theirs: HANDSHAKE,
        why: SUMS,
    },
    Difference {
        case: "a datagram with a wrong sum",
        ours: Outcome(&[&["server", "sum wrong"]]),
        theirs: NOTHING,
        why: SUMS,
    },
    Difference {
        case: "a reset of an unknown connection",
        ours: Outcome(&[&["server", "flags 4 "]]),
        theirs: NOTHING,
        why: "In a pool that hashes Weir finds the backend of a connection that it has forgotten, and passes the reset on.",
    },
    Difference {
        case: "the end of an unknown connection",
        ours: Outcome(&[&["server", "flags 11 "]]),
        theirs: NOTHING,
        why: "As a reset: the backend may still have the connection.",
    },
    Difference {
        case: "SYN and RST at once",
        ours: Outcome(&[&["server", "flags 6 "]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "no flags at all",
        ours: Outcome(&[&["server", "flags 0 "]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "FIN, PSH and URG",
        ours: Outcome(&[&["server", "flags 29 "]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "a TCP header that says it is too short",
        ours: Outcome(&[&["server", "of 4 numbers"]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "a TCP header that ends behind its packet",
        ours: Outcome(&[&["server", "of 15 numbers"]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "a datagram that says it is longer",
        ours: Outcome(&[&["server", "udp of 21 4 bytes"]]),
        theirs: NOTHING,
        why: STATES_ONLY,
    },
    Difference {
        case: "a datagram shorter than its packet",
        ours: Outcome(&[&["server", "udp of 13 12 bytes"]]),
        theirs: NOTHING,
        why: SUMS,
    },
    Difference {
        case: "a client's port at two listeners of a pool",
        ours: Outcome(&[&["server", "numbers [0, 0, 0, 64"], &["server", "numbers [0, 0, 0, c8"]]),
        theirs: Outcome(&[&["server", "numbers [0, 0, 0, 64"], &["server", "numbers [0, 0, 0, c8"]]),
        why: "Both give the second flow another port; which one is theirs to choose.",
    },
    Difference {
        case: "too long for the backend's link, and not to be cut",
        ours: Outcome(&[&[], &[], &[], &["client", "value [0, 0, 5, 14]", " 0 bytes #811c9dc5 ("]]),
        theirs: Outcome(&[&[], &[], &[], &["client", "value [0, 0, 5, 14]"]]),
        why: "Errors of Weir quote the headers alone: an answer is never larger than a small packet.",
    },
    Difference {
        case: "too long for the backend's link, and may be cut",
        ours: NOTHING,
        theirs: Outcome(&[&["server", "fragment of 1280 bytes"], &["server", "fragment of 78 bytes"]]),
        why: "Weir cuts no packets; it counts one that does not fit and may not be answered as `drop_unanswered`.",
    },
    Difference {
        case: "an option that asks routers for their addresses",
        ours: Outcome(&[&["server", "options [7, b, 4, 0, 0, 0, 0"]]),
        theirs: Outcome(&[&["server", "options [7, b, 8, a, 32, b, 1"]]),
        why: "Weir carries options as they are, and does not tell its own address.",
    },
    Difference {
        case: "an option that names the way",
        ours: Outcome(&[&["server", "options [83, 7, 4"]]),
        theirs: NOTHING,
        why: "Weir carries options as they are, and goes its own way; the backend refuses source routes as this host does.",
    },
    Difference {
        case: "fragments in their order, IPv6",
        ours: Outcome(&[
            &["800 bytes", " 77])"],
            &["408 bytes", " 77])"],
            &["800 bytes", " 78])"],
            &["408 bytes", " 78])"],
        ]),
        theirs: Outcome(&[&["800 bytes"], &["408 bytes"], &["800 bytes"], &["408 bytes"]]),
        why: "Connection tracking puts the packet together and cuts it again, under another number.",
    },
    Difference {
        case: "the last fragment first",
        ours: Outcome(&[&["server", "fragment of 800 bytes"]]),
        theirs: Outcome(&[&["server", "fragment of 800 bytes"], &["server", "fragment of 408 bytes"]]),
        why: "Weir holds no packet back: fragments follow the first one (`drop_fragment` otherwise).",
    },
    Difference {
        case: "a backend says so of an unknown datagram",
        ours: NOTHING,
        theirs: Outcome(&[&["client", "icmp"]]),
        why: "Two listeners might have asked: nothing leaves with the backend's address (`drop_icmp`).",
    },
    Difference {
        case: "the backend speaks first",
        ours: NOTHING,
        theirs: Outcome(&[&["client", ":8080 >"]]),
        why: "Two listeners might have asked: nothing leaves with the backend's address (`drop_unknown_flow`).",
    },
];
