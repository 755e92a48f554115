//! How responses are compressed.

/// A content coding (RFC 9110 section 8.4.1) that Weir can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    Brotli,
    /// gzip (RFC 1952).
    Gzip,
}

impl Coding {
    /// All, in the order in which they are preferred where the file does not say.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

    /// As written in the file and in `content-encoding`.
    pub const fn word(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
            Coding::Gzip => "gzip",
        }
    }

    /// The coding of that word.
    pub fn from_word(word: &str) -> Option<Coding> {
        Coding::ALL.into_iter().find(|coding| coding.word() == word)
    }
}

/// `compress = { codings, types, min, level }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// What is offered, best first; not empty.
    pub codings: Vec<Coding>,
    /// Media types that are compressed; not empty.
    pub types: Vec<MediaRange>,
    /// A response that is declared to be smaller, in bytes, goes as it came. Default 1 KiB.
    pub min_bytes: u64,
    /// How hard each coding tries.
    pub level: CodingLevels,
}

impl Compress {
    /// Whether the media type of a `content-type` is one that is compressed. `text/*` leaves `text/event-stream` out: whoever reads
    /// events one by one gains little, and holds an encoder as long as it listens.
    pub fn takes_type(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|&byte| byte == b';').unwrap_or(content_type.len());
        let media_type = content_type.get(..end).unwrap_or_default().trim_ascii();
        self.types.iter().any(|range| range.takes(media_type))
    }
}

/// The media types that are compressed where the file does not say.
pub const COMPRESSED_TYPES: [&str; 19] = [
    "text/*",
    "application/atom+xml",
    "application/graphql-response+json",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/problem+json",
    "application/rss+xml",
    "application/vnd.api+json",
    "application/wasm",
    "application/x-javascript",
    "application/xhtml+xml",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/svg+xml",
    "image/x-icon",
];

/// A media type, or all with one main type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaRange {
    /// This one, lower case, without parameters.
    Exact(String),
    /// `text/*`: all that begin so (the string kept here, with its slash).
    Main(String),
}

impl MediaRange {
    /// The range of a text that was checked.
    pub fn of(text: &str) -> MediaRange {
        let lower = text.to_ascii_lowercase();
        match lower.strip_suffix('*') {
            Some(main) => MediaRange::Main(main.to_owned()),
            None => MediaRange::Exact(lower),
        }
    }

    fn takes(&self, media_type: &[u8]) -> bool {
        match self {
            MediaRange::Exact(exact) => media_type.eq_ignore_ascii_case(exact.as_bytes()),
            MediaRange::Main(main) => {
                media_type.get(..main.len()).is_some_and(|start| start.eq_ignore_ascii_case(main.as_bytes()))
                    && !media_type.eq_ignore_ascii_case(b"text/event-stream")
            }
        }
    }
}

impl std::fmt::Display for MediaRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MediaRange::Exact(exact) => f.write_str(exact),
            MediaRange::Main(main) => write!(f, "{main}*"),
        }
    }
}

/// `level = { zstd, br, gzip }`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodingLevels {
    /// 1 to 12; default 3.
    pub zstd: u32,
    /// 0 to 6; default 4.
    pub brotli: u32,
    /// 1 to 9; default 5.
    pub gzip: u32,
}

impl CodingLevels {
    /// The level of one coding.
    pub const fn of(&self, coding: Coding) -> u32 {
        match coding {
            Coding::Zstd => self.zstd,
            Coding::Brotli => self.brotli,
            Coding::Gzip => self.gzip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(types: &[&str], content_type: &str) -> bool {
        let compress = Compress {
            codings: vec![Coding::Gzip],
            types: types.iter().map(|text| MediaRange::of(text)).collect(),
            min_bytes: 0,
            level: CodingLevels { zstd: 3, brotli: 4, gzip: 5 },
        };
        compress.takes_type(content_type.as_bytes())
    }

    #[test]
    fn a_media_type_is_compared_without_parameters_and_without_case() {
        assert!(takes(&["text/html"], "Text/HTML; charset=utf-8"));
        assert!(takes(&["text/html"], "text/html ;charset=utf-8"));
        assert!(!takes(&["text/html"], "text/html5"));
        assert!(!takes(&["text/html"], "text/htm"));
        assert!(!takes(&["text/html"], ""));
    }

    #[test]
    fn a_main_type_takes_all_below_it_but_events() {
        assert!(takes(&["text/*"], "text/css"));
        assert!(!takes(&["text/*"], "textual/css"));
        assert!(!takes(&["text/*"], "text"));
        assert!(!takes(&["text/*"], "text/event-stream"));
        assert!(!takes(&["text/*"], "Text/Event-Stream; charset=utf-8"));
        assert!(takes(&["text/*", "text/event-stream"], "text/event-stream"));
    }
}
