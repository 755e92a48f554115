//! How responses are compressed.

use super::collect;
use crate::fields::Fields;
use crate::schema::*;
use crate::values::Value;

/// What a listener or route says about compression; `None` when it says nothing.
pub(super) fn compress(fields: &Fields) -> Option<Option<Compress>> {
    match fields.value("compress")? {
        Value::Table(fields) => Some(Some(of_table(fields))),
        _ => Some(None),
    }
}

fn of_table(fields: &Fields) -> Compress {
    let mut codings = collect(fields, "codings", |value| match value {
        Value::Word(word) => Coding::from_word(word),
        _ => None,
    });
    // Of one that is named twice the first place counts.
    let mut place = 0;
    let named = codings.clone();
    codings.retain(|coding| {
        place += 1;
        !named[..place - 1].contains(coding)
    });
    if codings.is_empty() {
        codings = Coding::ALL.to_vec();
    }
    let mut types = collect(fields, "types", |value| match value {
        Value::Text(text) => Some(MediaRange::of(text)),
        _ => None,
    });
    if types.is_empty() {
        types = COMPRESSED_TYPES.into_iter().map(MediaRange::of).collect();
    }
    let said = fields.table("level");
    let unsaid = Fields { entries: Vec::new(), ..said.clone() };
    // The level of what is not offered means nothing, and must not make two configs differ.
    let level = |coding: Coding| match codings.contains(&coding) {
        true => said.count(coding.word()),
        false => unsaid.count(coding.word()),
    };
    let level =
        CodingLevels { zstd: level(Coding::Zstd), brotli: level(Coding::Brotli), gzip: level(Coding::Gzip) };
    Compress { codings, types, min_bytes: fields.number("min"), level }
}
