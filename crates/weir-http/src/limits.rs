//! Limits on what a peer may make us read before it has sent something we can act on, with unit and reason.

/// Limits of one message. They all apply before the message is complete: a peer that sends an endless line is
/// refused at the limit, not when the line ends (threats A6, A22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request line or status line, in bytes without its CRLF. 414 for a request (RFC 9112 §3 asks
    /// for at least 8000).
    pub request_line_bytes: usize,
    /// Longest field block, in bytes, from the first field to the empty line inclusive. 431 (RFC 6585 §5). In
    /// HTTP/2 and HTTP/3 it is the sum of names, values and 32 bytes for each field, including cookie crumbs
    /// and `:authority`.
    pub header_block_bytes: usize,
    /// Most field lines in a head. 431: with a byte limit alone, short fields could take more memory than
    /// their size. Cookie crumbs together count as one line; the byte limit bounds them, as they take less
    /// memory than they count for.
    pub field_count: usize,
    /// Most options that all `Connection` lines may list. 400: each is compared with each field.
    pub connection_option_count: usize,
    /// Longest total of chunk extensions in one body, in bytes. 400 (RFC 9112 §7.1.1 asks for such a limit).
    pub chunk_extension_bytes: usize,
    /// Longest trailer section of a request, in bytes, its empty line included. 431. For responses see
    /// [`Limits::trailers_of_responses`].
    pub trailer_bytes: usize,
    /// Most trailer lines of a request. 431.
    pub trailer_count: usize,
    /// Most interim (1xx) responses before the final one. The proxy counts them ([`InterimAllowance`]); the
    /// client gets a 502 if a backend exceeds it. Frameworks send one for each file of a page.
    pub interim_responses: usize,
    /// Longest total of their heads, in bytes. If a head may be longer, it is that.
    pub interim_bytes: usize,
    /// Most empty lines tolerated before a request line (RFC 9112 §2.2 asks for at least one).
    pub leading_empty_lines: usize,
}

/// Longest line or block that spans can address; larger configured limits are reduced to it.
const CEILING_BYTES: usize = 1 << 28;

impl Limits {
    pub(crate) fn line_bytes(&self) -> usize {
        self.request_line_bytes.min(CEILING_BYTES)
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.header_block_bytes.min(CEILING_BYTES)
    }

    /// Longest head that can be parsed, in bytes: the size that a read buffer must be able to grow to.
    pub fn head_bytes(&self) -> usize {
        self.line_bytes() + self.block_bytes() + 2 * self.leading_empty_lines.min(1024) + 2
    }
}

/// The cost of the pseudo-headers in a request line besides their values, in bytes, with a margin.
const REQUEST_LINE_OVERHEAD_BYTES: usize = 256;

impl Limits {
    /// Largest field section that can be accepted, in bytes as HTTP/2 and HTTP/3 count them. This is what to
    /// announce as `SETTINGS_MAX_HEADER_LIST_SIZE` (RFC 9113 §6.5.2) and `SETTINGS_MAX_FIELD_SECTION_SIZE`
    /// (RFC 9114 §4.2.2), and where a decoder should stop.
    pub fn section_bytes(&self) -> usize {
        self.line_bytes() + self.block_bytes() + REQUEST_LINE_OVERHEAD_BYTES
    }
}

/// What a backend may still send of interim responses before its final one.
#[derive(Clone, Copy, Debug)]
pub struct InterimAllowance {
    responses: usize,
    bytes: usize,
}

impl InterimAllowance {
    /// All that the limits allow.
    pub fn of(limits: &Limits) -> InterimAllowance {
        let bytes = limits.interim_bytes.max(limits.head_bytes());
        InterimAllowance { responses: limits.interim_responses, bytes }
    }

    /// Takes a response whose head has so many bytes off; false if it is more than may still come.
    pub fn take(&mut self, head_bytes: usize) -> bool {
        let left = self.responses.checked_sub(1).zip(self.bytes.checked_sub(head_bytes));
        if let Some((responses, bytes)) = left {
            *self = InterimAllowance { responses, bytes };
        }
        left.is_some()
    }
}

/// Limits of one trailer section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailerLimits {
    /// Its length, in bytes, counted like that of a head.
    pub bytes: u32,
    /// Its number of lines.
    pub count: u32,
}

impl Limits {
    /// Limits for the trailers of a request.
    pub fn trailers_of_requests(&self) -> TrailerLimits {
        self.trailers(self.trailer_bytes, self.trailer_count)
    }

    /// Limits for the trailers of a response, which may be as large as a head: gRPC puts error details into
    /// them, and services make these as long as they like.
    pub fn trailers_of_responses(&self) -> TrailerLimits {
        self.trailers(self.header_block_bytes, self.field_count)
    }

    fn trailers(&self, bytes: usize, count: usize) -> TrailerLimits {
        // The value is below [`CEILING_BYTES`], which fits.
        let bytes = bytes.min(self.block_bytes()) as u32;
        TrailerLimits { bytes, count: count.try_into().unwrap_or(u32::MAX) }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_line_bytes: 8192,
            header_block_bytes: 65536,
            field_count: 100,
            connection_option_count: 16,
            chunk_extension_bytes: 4096,
            trailer_bytes: 8192,
            trailer_count: 32,
            interim_responses: 100,
            interim_bytes: 512 << 10,
            leading_empty_lines: 2,
        }
    }
}
