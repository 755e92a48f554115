//! The tables of how responses are compressed.

use super::{Key, Kind, Table, Word};
use crate::limits as at;
use crate::values as shape;

const fn word(word: &'static str, doc: &'static str) -> Word {
    Word { word, doc, built: true }
}

/// `compress = { … }` of a listener or a route.
pub static COMPRESS: Table = Table {
    path: "compress = { … }",
    doc: "Compresses responses for clients that ask for it (RFC 9110 section 12.5.3). Never one that is encoded already, that says `no-transform`, or \
          that is a part of a whole (206). Read the [guide](../guide/compression.md) about secrets before switching it on.",
    keys: &[
        Key::new(
            "codings",
            Kind::OneOrMany(&Kind::Word(
                &[
                    word("zstd", "Zstandard (RFC 8878)"),
                    word("br", "Brotli (RFC 7932)"),
                    word("gzip", "gzip (RFC 1952)"),
                ],
                None,
            )),
            "What is offered. A client that likes several equally well gets the first of them.",
        )
        .default("[\"zstd\", \"br\", \"gzip\"]")
        .http()
        .also(&["coding", "encodings", "algorithms", "algo", "gzip"]),
        Key::new(
            "types",
            Kind::OneOrMany(&Kind::Text(&shape::MEDIA_RANGE)),
            "Media types that are compressed; `text/*` is any text but `text/event-stream`, which has to be named.",
        )
        .default("text, scripts, JSON, XML, SVG, WebAssembly: see the guide")
        .http()
        .also(&["type", "gzip_types", "content_types"]),
        Key::new(
            "min",
            Kind::Size(&at::COMPRESS_MIN),
            "A response that is declared to be smaller goes as it came.",
        )
        .http()
        .also(&["min_length", "gzip_min_length", "min_size"]),
        Key::new("level", Kind::Table(&LEVEL), "How hard each coding tries.")
            .http()
            .also(&["levels", "gzip_comp_level", "quality"]),
    ],
};

static LEVEL: Table = Table {
    path: "level = { … }",
    doc: "How hard each coding tries: more is smaller and slower.",
    keys: &[
        Key::new("zstd", Kind::Count(&at::ZSTD_LEVEL), "Level of Zstandard.").http(),
        Key::new("br", Kind::Count(&at::BROTLI_LEVEL), "Quality of Brotli.").http().also(&["brotli"]),
        Key::new("gzip", Kind::Count(&at::GZIP_LEVEL), "Level of gzip.").http(),
    ],
};
