//! Field names that some part of Weir acts on. They are classified once, while parsing, so that names are not
//! compared as text again.

macro_rules! known_headers {
    ($($name:ident $text:literal;)*) => {
        /// A field name that Weir knows, or `Other`. Compared case-insensitively (RFC 9110 §5.1).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum KnownHeader {
            $(#[doc = concat!("`", $text, "`")] $name,)*
            /// A name that Weir has no special treatment for.
            Other,
        }

        impl KnownHeader {
            /// All known names; `Other` is not among them.
            pub const ALL: &[KnownHeader] = &[$(KnownHeader::$name),*];

            /// The name in lower case; empty for `Other`.
            #[inline(always)]
            pub const fn name(self) -> &'static str {
                NAMES[self as usize]
            }
        }

        static NAMES: [&str; KnownHeader::ALL.len() + 1] = [$($text,)* ""];
    };
}

known_headers! {
    Host "host";
    ContentLength "content-length";
    TransferEncoding "transfer-encoding";
    Connection "connection";
    KeepAlive "keep-alive";
    ProxyConnection "proxy-connection";
    Te "te";
    Trailer "trailer";
    Upgrade "upgrade";
    Http2Settings "http2-settings";
    Expect "expect";
    MaxForwards "max-forwards";
    Via "via";
    Forwarded "forwarded";
    XForwardedFor "x-forwarded-for";
    XForwardedProto "x-forwarded-proto";
    XForwardedHost "x-forwarded-host";
    XForwardedPort "x-forwarded-port";
    XRealIp "x-real-ip";
    ClientCert "client-cert";
    ClientCertChain "client-cert-chain";
    XRequestId "x-request-id";
    Authorization "authorization";
    ProxyAuthorization "proxy-authorization";
    ProxyAuthenticate "proxy-authenticate";
    WwwAuthenticate "www-authenticate";
    Proxy "proxy";
    Cookie "cookie";
    SetCookie "set-cookie";
    Date "date";
    Server "server";
    Age "age";
    CacheControl "cache-control";
    CacheStatus "cache-status";
    CdnCacheControl "cdn-cache-control";
    ContentLocation "content-location";
    ContentType "content-type";
    ContentEncoding "content-encoding";
    ContentRange "content-range";
    Range "range";
    Etag "etag";
    LastModified "last-modified";
    Expires "expires";
    Vary "vary";
    Location "location";
    UserAgent "user-agent";
    Referer "referer";
    Accept "accept";
    AcceptEncoding "accept-encoding";
    AcceptLanguage "accept-language";
    Origin "origin";
    IfMatch "if-match";
    IfNoneMatch "if-none-match";
    IfModifiedSince "if-modified-since";
    IfUnmodifiedSince "if-unmodified-since";
    IfRange "if-range";
    Pragma "pragma";
    RetryAfter "retry-after";
    AltSvc "alt-svc";
    EarlyData "early-data";
    SecWebsocketKey "sec-websocket-key";
    SecWebsocketAccept "sec-websocket-accept";
}

/// A set of known names, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownSet(u64);

const _: () = assert!(KnownHeader::ALL.len() <= 63, "a set of known names is one u64");

impl KnownSet {
    pub(crate) const EMPTY: KnownSet = KnownSet(0);

    pub(crate) const fn of(names: &[KnownHeader]) -> KnownSet {
        let mut bits = 0;
        let mut index = 0;
        while index < names.len() {
            bits |= 1 << (names[index] as u8);
            index += 1;
        }
        KnownSet(bits)
    }

    pub(crate) const fn has(self, name: KnownHeader) -> bool {
        self.0 >> (name as u8) & 1 != 0
    }

    pub(crate) const fn with(self, name: KnownHeader) -> KnownSet {
        KnownSet(self.0 | 1 << (name as u8))
    }

    pub(crate) const fn without(self, name: KnownHeader) -> KnownSet {
        KnownSet(self.0 & !(1 << (name as u8)))
    }

    pub(crate) const fn union(self, other: KnownSet) -> KnownSet {
        KnownSet(self.0 | other.0)
    }

    pub(crate) const fn intersection(self, other: KnownSet) -> KnownSet {
        KnownSet(self.0 & other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

use KnownHeader as K;

/// Connection-specific fields, which are never forwarded as received (RFC 9110 §7.6.1). `Proxy` is not a
/// hop-by-hop field, but CGI backends read it as `HTTP_PROXY` (CVE-2016-5385).
pub(crate) const HOP_BY_HOP: KnownSet = KnownSet::of(&[
    K::Connection,
    K::KeepAlive,
    K::ProxyConnection,
    K::Te,
    K::TransferEncoding,
    K::Upgrade,
    K::Http2Settings,
    K::ProxyAuthorization,
    K::ProxyAuthenticate,
    K::Proxy,
]);

/// Response fields that are not forwarded as received: connection-specific ones, those that Weir writes or
/// extends itself, and `alt-svc`, which is about the host and port that the client used (RFC 7838 §3), and
/// those are Weir's.
pub(crate) const NOT_OF_BACKENDS: KnownSet = HOP_BY_HOP.with(K::Via).with(K::AltSvc);

/// Fields by which a request asks for less than the whole response (RFC 9110 §13.1, §14.2).
pub(crate) const CONDITIONAL: KnownSet = KnownSet::of(&[
    K::Range,
    K::IfMatch,
    K::IfNoneMatch,
    K::IfModifiedSince,
    K::IfUnmodifiedSince,
    K::IfRange,
]);

/// Fields that identify the client to a backend. From untrusted clients they are overwritten or dropped.
pub(crate) const IDENTITY: KnownSet = KnownSet::of(&[
    K::Forwarded,
    K::XForwardedFor,
    K::XForwardedProto,
    K::XForwardedHost,
    K::XForwardedPort,
    K::XRealIp,
    K::ClientCert,
    K::ClientCertChain,
]);

/// Fields that a `Connection` option must never remove (threat A23), and whose underscore twins are dropped
/// (A24).
pub(crate) const PROTECTED: KnownSet = KnownSet::of(&[
    K::Host,
    K::ContentLength,
    K::TransferEncoding,
    K::Authorization,
    K::Cookie,
    K::SetCookie,
    K::WwwAuthenticate,
    K::Via,
    K::XRequestId,
    K::Date,
    K::CacheControl,
    K::ContentType,
    K::ContentEncoding,
    K::ContentRange,
    K::Location,
    K::Vary,
    K::Expect,
    K::MaxForwards,
    K::EarlyData,
    K::Origin,
])
.union(IDENTITY);

/// Fields that must not arrive in a trailer section: framing, routing, authentication, controls and content
/// description (RFC 9110 §6.5.1).
pub(crate) const NOT_IN_TRAILERS: KnownSet =
    KnownSet::of(&[K::Trailer, K::Expires, K::Age, K::Pragma, K::RetryAfter, K::AltSvc, K::CacheStatus])
        .union(CONDITIONAL)
        .union(HOP_BY_HOP)
        .union(PROTECTED);

impl KnownHeader {
    /// Classifies a field name. Takes at most one comparison: its length and three of its letters leave one
    /// candidate.
    #[inline]
    pub fn classify(name: &[u8]) -> KnownHeader {
        if name.is_empty() {
            return K::Other;
        }
        let candidate = BY_PLACE[place(name)];
        if same(candidate.name().as_bytes(), name) { candidate } else { K::Other }
    }
}

/// Whether `name` equals `lower`, ignoring case. `lower` has only `a-z`, `0-9`, `-` and `:`.
///
/// Compares words: bytes may differ only in the case bit, and only where `lower` has a letter (bit 6 is set).
/// The last word may overlap the one before.
#[inline(always)]
pub(crate) fn same(lower: &[u8], name: &[u8]) -> bool {
    if lower.len() != name.len() {
        return false;
    }
    let differ_8 = |lower: &[u8; 8], name: &[u8; 8]| {
        let (lower, name) = (u64::from_le_bytes(*lower), u64::from_le_bytes(*name));
        (lower ^ name) & !(lower >> 1 & 0x2020_2020_2020_2020)
    };
    if let (Some(lower_last), Some(name_last)) = (lower.last_chunk(), name.last_chunk()) {
        let words = lower.as_chunks().0.iter().zip(name.as_chunks().0);
        return words.fold(differ_8(lower_last, name_last), |all, (lower, name)| all | differ_8(lower, name))
            == 0;
    }
    let differ_4 = |lower: &[u8; 4], name: &[u8; 4]| {
        let (lower, name) = (u32::from_le_bytes(*lower), u32::from_le_bytes(*name));
        (lower ^ name) & !(lower >> 1 & 0x2020_2020)
    };
    match (lower.first_chunk(), name.first_chunk(), lower.last_chunk(), name.last_chunk()) {
        (Some(lower_first), Some(name_first), Some(lower_last), Some(name_last)) => {
            differ_4(lower_first, name_first) | differ_4(lower_last, name_last) == 0
        }
        _ => lower.eq_ignore_ascii_case(name),
    }
}

/// Factors of the hash for the length and the first, last and fourth letter from the end, chosen so that no
/// two known names collide. Found by trial.
const FACTORS: [usize; 4] = [228, 79, 191, 184];

/// The one known name that each hash value may stand for.
static BY_PLACE: [KnownHeader; 256] = by_place();

const fn by_place() -> [KnownHeader; 256] {
    let mut table = [K::Other; 256];
    let mut index = 0;
    while index < K::ALL.len() {
        let known = K::ALL[index];
        let place = place(known.name().as_bytes());
        assert!(matches!(table[place], K::Other), "two names have one place: FACTORS needs other numbers");
        table[place] = known;
        index += 1;
    }
    table
}

/// The hash of a name, which must not be empty.
#[inline(always)]
const fn place(name: &[u8]) -> usize {
    let length = name.len();
    let first = (name[0] | 0x20) as usize;
    let last = (name[length - 1] | 0x20) as usize;
    let fourth = (name[length.saturating_sub(4)] | 0x20) as usize;
    (length * FACTORS[0] + first * FACTORS[1] + last * FACTORS[2] + fourth * FACTORS[3]) % 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for &known in KnownHeader::ALL {
            assert_eq!(KnownHeader::classify(known.name().as_bytes()), known);
            assert_eq!(KnownHeader::classify(known.name().to_uppercase().as_bytes()), known);
        }
    }

    #[test]
    fn a_name_with_one_letter_changed_is_not_known() {
        for &known in KnownHeader::ALL {
            for position in 0..known.name().len() {
                let mut name = known.name().as_bytes().to_vec();
                name[position] = b'!';
                assert_eq!(KnownHeader::classify(&name), KnownHeader::Other, "{}", known.name());
            }
        }
        assert_eq!(KnownHeader::classify(b""), KnownHeader::Other);
        for &known in KnownHeader::ALL {
            for (position, right) in known.name().bytes().enumerate() {
                for byte in (0..=255_u8).filter(|byte| byte.to_ascii_lowercase() != right) {
                    let mut name = known.name().as_bytes().to_vec();
                    name[position] = byte;
                    assert_ne!(KnownHeader::classify(&name), known, "{}", name.escape_ascii());
                }
            }
        }
        // Bytes that differ from a letter only in bit 5 must not pass for it.
        assert_eq!(KnownHeader::classify(b"\x48\x4f\x53\x14"), KnownHeader::Other);
        assert_eq!(KnownHeader::classify(b"content\x0dlength"), KnownHeader::Other);
    }
}
