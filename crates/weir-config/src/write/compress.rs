//! How responses are compressed, as text.

use super::{inline, list, size, text};
use crate::schema::{COMPRESSED_TYPES, Compress, MediaRange};

/// The value of `compress`.
pub(super) fn compress(compress: Option<&Compress>) -> String {
    let Some(compress) = compress else { return "false".to_owned() };
    let mut keys = vec![("codings", list(&compress.codings, |coding| text(coding.word())))];
    if compress.types != COMPRESSED_TYPES.map(MediaRange::of) {
        keys.push(("types", list(&compress.types, |range| text(&range.to_string()))));
    }
    keys.push(("min", size(compress.min_bytes)));
    let levels =
        compress.codings.iter().map(|coding| (coding.word(), compress.level.of(*coding).to_string()));
    keys.push(("level", inline(levels.collect())));
    inline(keys)
}
