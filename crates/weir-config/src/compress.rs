//! `compress = { … }` of a listener or a route: how responses are compressed.

use std::fmt;

use crate::fields::{Fields, Value};
use crate::keys::{Each, KIB, Key, Limit, Shape, TIB, count, list_or, size, table as below};
use crate::report::{Findings, quote};
use crate::setting::{Section as _, one, table, words};
use crate::units::{Refused, refuse};
use crate::values::http::is_token;

words! {
    /// A content coding (RFC 9110 section 8.4.1) that Weir can apply.
    pub enum Coding {
        Zstd = "zstd": "Zstandard (RFC 8878)",
        Brotli = "br": "Brotli (RFC 7932)",
        Gzip = "gzip": "gzip (RFC 1952)",
    }
}

table! {
    /// Compresses responses for clients that ask for it (RFC 9110 section 12.5.3). Never one that is encoded
    /// already, that says `no-transform`, or that is a part of a whole (206). Read the
    /// [guide](../guide/compression.md) about secrets before switching it on.
    #[derive(Eq)]
    pub struct Compress at "compress = { … }" settled by only_what_is_offered {
        /// What is offered. A client that likes several equally well gets the first of them.
        codings: Vec<Coding> =
            list_or(Each::Word(Coding::WORDS), &["zstd", "br", "gzip"])
                .http()
                .also(&["coding", "encodings", "algorithms", "algo", "gzip"]);
        /// Media types that are compressed; `text/*` is any text but `text/event-stream`, which has to be
        /// named.
        types: Vec<MediaRange> =
            list_or(Each::Text(&MEDIA_RANGE), &COMPRESSED_TYPES)
                .default("text, scripts, JSON, XML, SVG, WebAssembly: see the guide")
                .brief()
                .http()
                .also(&["type", "gzip_types", "content_types"]);
        /// A response that is declared to be smaller goes as it came.
        min_bytes as "min": u64 =
            size(Limit::new(
                KIB,
                0,
                TIB,
                "below some hundred bytes the coding costs more than it saves: a packet is sent either way",
            ))
            .http()
            .also(&["min_length", "gzip_min_length", "min_size"]);
        /// How hard each coding tries.
        level: CodingLevels =
            below(CodingLevels::TABLE).http().also(&["levels", "gzip_comp_level", "quality"]);
    }
}

const fn level(default: u64, least: u64, most: u64, reason: &'static str) -> Key {
    count(Limit::new(default, least, most, reason)).http()
}

table! {
    /// How hard each coding tries: more is smaller and slower.
    #[derive(Copy, Eq)]
    pub struct CodingLevels at "level = { … }" {
        /// Level of Zstandard.
        zstd: u32 = level(3, 1, 12, "above 12 a core compresses less than a slow line carries");
        /// Quality of Brotli.
        brotli as "br": u32 =
            level(4, 0, 6, "from 7 on each response holds 8MiB and more while it is under way")
                .also(&["brotli"]);
        /// Level of gzip.
        gzip: u32 = level(5, 1, 9, "level 0 compresses nothing");
    }
}

/// If a coding is named twice its first place counts. The level of a coding that is not offered is dropped,
/// so that it does not make two configs differ.
fn only_what_is_offered(mut compress: Compress) -> Compress {
    let named = std::mem::take(&mut compress.codings);
    for coding in named {
        if !compress.codings.contains(&coding) {
            compress.codings.push(coding);
        }
    }
    let (said, default) = (compress.level, CodingLevels::default());
    let level =
        |coding| if compress.codings.contains(&coding) { said.of(coding) } else { default.of(coding) };
    compress.level =
        CodingLevels { zstd: level(Coding::Zstd), brotli: level(Coding::Brotli), gzip: level(Coding::Gzip) };
    compress
}

/// Reports codings named twice, and levels of codings that are not offered.
pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(compress) = fields.table("compress") else { return };
    let mut offered: Vec<&str> = Vec::new();
    for (at, value) in compress.list("codings") {
        let Value::Word(word) = value else { continue };
        if offered.contains(word) {
            findings.warning(
                *at,
                format!("`{word}` is offered twice"),
                "the first place counts; leave this out",
            );
        }
        offered.push(word);
    }
    if offered.is_empty() {
        return;
    }
    for entry in compress.table("level").into_iter().flat_map(|level| &level.entries) {
        if !offered.contains(&entry.name.as_str()) {
            let hint = format!("`codings` ({}) does not offer it", findings.place(compress.at("codings")));
            findings.warning(entry.key, format!("the level of `{}` has no effect", entry.name), hint);
        }
    }
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

impl Compress {
    /// Whether the media type of a `content-type` is one to compress. `text/*` excludes `text/event-stream`:
    /// a client that reads single events gains little, and occupies an encoder for as long as it listens.
    pub fn takes_type(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|&byte| byte == b';').unwrap_or(content_type.len());
        let media_type = content_type.get(..end).unwrap_or_default().trim_ascii();
        self.types.iter().any(|range| range.takes(media_type))
    }
}

/// The media types that are compressed by default.
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
    /// This type, in lower case, without parameters.
    Exact(String),
    /// `text/*`: all types with this prefix (the string kept here includes the slash).
    Main(String),
}

static MEDIA_RANGE: Shape =
    Shape::new("a media type", "text/*", |text| media_range(text).map(|range| range.to_string()));

one!(MediaRange, Value::Text(text) => Some(MediaRange::of(text)), |it| Value::Text(it.to_string()), MediaRange::of(""));

impl MediaRange {
    /// The range in a text that was checked.
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

impl fmt::Display for MediaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MediaRange::Exact(exact) => f.write_str(exact),
            MediaRange::Main(main) => write!(f, "{main}*"),
        }
    }
}

fn media_range(text: &str) -> Result<MediaRange, Refused> {
    let message = format!("{} is not a media type", quote(text));
    if let Some((main, _)) = text.split_once(';') {
        return refuse(message, format!("leave out the parameters: \"{}\"", main.trim()));
    }
    let token = |part: &str| !part.is_empty() && part.bytes().all(is_token) && !part.contains('*');
    match text.split_once('/') {
        Some((main, sub)) if token(main) && (sub == "*" || token(sub)) => Ok(MediaRange::of(text)),
        _ => refuse(message, "expected something like \"text/html\" or \"text/*\""),
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
