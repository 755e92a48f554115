//! Which content codings a client accepts (RFC 9110 §12.5.3), to choose one of them, and for cache keys.

use super::list;
use crate::scan;

/// A content coding that Weir can produce (RFC 9110 §8.4.1, RFC 7932, RFC 8878), or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `gzip`
    Gzip,
    /// `br`
    Brotli,
    /// `zstd`
    Zstd,
    /// Not encoded.
    Identity,
}

impl Coding {
    /// All of them.
    pub const ALL: [Coding; 4] = [Coding::Gzip, Coding::Brotli, Coding::Zstd, Coding::Identity];

    /// The word in `content-encoding` and `accept-encoding`.
    pub const fn word(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Identity => "identity",
        }
    }

    /// The coding with that name, case-insensitively; `x-gzip` is `gzip` (RFC 9110 §8.4.1.3).
    pub fn from_word(word: &[u8]) -> Option<Coding> {
        if word.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Coding::Gzip);
        }
        Coding::ALL.into_iter().find(|coding| word.eq_ignore_ascii_case(coding.word().as_bytes()))
    }
}

/// The codings that a client accepts, with their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Weights in thousandths, in the order of [`Coding::ALL`].
    weights: [u16; 4],
}

impl Accepted {
    /// Parses all `accept-encoding` lines of a request. Malformed elements are ignored. Without any line only
    /// `identity` is accepted: the client may support no coding at all. O(length), does not allocate.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Accepted {
        let mut named = [None; 4];
        let mut others = None;
        for (word, weight) in list::elements(values).filter_map(weighted) {
            let place = match Coding::from_word(word) {
                Some(coding) => named.get_mut(coding as usize),
                None => (word == b"*").then_some(&mut others),
            };
            if let Some(place) = place {
                *place = Some(place.map_or(weight, |before: u16| before.min(weight)));
            }
        }
        let [gzip, brotli, zstd, identity] = named.map(|weight: Option<u16>| weight.or(others));
        //= https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3
        //# If the representation has no content coding, then it is acceptable
        //# by default unless specifically excluded by the Accept-Encoding
        //# header field stating either "identity;q=0" or "*;q=0" without a
        //# more specific entry for "identity".
        // If it is accepted only by default, we rank it below everything that the field names.
        let identity = match (identity, named[Coding::Identity as usize]) {
            (Some(0), _) => 0,
            (_, Some(named)) => named,
            _ => 1,
        };
        Accepted { weights: [gzip.unwrap_or(0), brotli.unwrap_or(0), zstd.unwrap_or(0), identity] }
    }

    /// The client's preference for this coding, from 0 (not acceptable) to 1000.
    pub fn weight(&self, coding: Coding) -> u16 {
        self.weights.get(coding as usize).copied().unwrap_or(0)
    }

    /// The client's most preferred coding of those `offered`, the first of several with equal weight; `None`
    /// when it accepts none of them.
    pub fn best(&self, offered: impl IntoIterator<Item = Coding>) -> Option<Coding> {
        let mut best = None;
        for coding in offered {
            let weight = self.weight(coding);
            if weight > best.map_or(0, |(_, weight)| weight) {
                best = Some((coding, weight));
            }
        }
        best.map(|(coding, _)| coding)
    }
}

/// A word and its weight in thousandths; `None` when the element is malformed.
fn weighted(element: &[u8]) -> Option<(&[u8], u16)> {
    let end = element.iter().position(|&byte| byte == b';').unwrap_or(element.len());
    let (word, parameter) = element.split_at(end);
    let word = scan::trim(word);
    scan::is_token(word).then_some(())?;
    let Some(parameter) = parameter.get(1..) else { return Some((word, 1000)) };
    let [b'q' | b'Q', b'=', value @ ..] = scan::trim(parameter) else { return None };
    Some((word, thousandths(value)?))
}

/// Parses a weight (RFC 9110 §12.4.2).
pub(super) fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, fraction) = match text {
        [whole @ (b'0' | b'1')] => (whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let mut value = u16::from(whole - b'0');
    for place in 0..3 {
        let digit = fraction.get(place).map_or(0, |byte| byte.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        value = value * 10 + u16::from(digit);
    }
    (value <= 1000).then_some(value)
}

/// Most codings to normalise; for requests that list more the text is used as it is.
const CODINGS: usize = 12;

/// Appends a normal form of the `accept-encoding` lines, so that requests that mean the same get the same
/// stored response: the accepted codings in lower case, by descending weight and then by name, and whether
/// `*` and `identity` are refused.
///
/// Codings unknown to Weir are included: an origin may support them. O(length), does not allocate when `out`
/// has room.
pub fn normalise<'a>(values: impl Iterator<Item = &'a [u8]> + Clone, out: &mut Vec<u8>) {
    let mut taken: [(u16, &[u8]); CODINGS] = [(0, b""); CODINGS];
    let mut count = 0;
    for (word, weight) in list::elements(values.clone()).filter_map(weighted) {
        let word = if word.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { word };
        let refusal = word == b"*" || word.eq_ignore_ascii_case(b"identity");
        // Acceptance is the default for `identity`, and refusal for all others; neither is written.
        if refusal && word != b"*" && weight > 0 || !refusal && weight == 0 {
            continue;
        }
        let Some(place) = taken.get_mut(count) else {
            out.push(b'?');
            return values.for_each(|value| {
                out.extend(value.iter().map(u8::to_ascii_lowercase));
                out.push(b',');
            });
        };
        *place = (weight, word);
        count += 1;
    }
    let taken = taken.get_mut(..count).unwrap_or_default();
    taken.sort_unstable_by(|(weight, word), (other_weight, other)| {
        let lower = |text: &'a [u8]| text.iter().map(u8::to_ascii_lowercase);
        other_weight.cmp(weight).then_with(|| lower(word).cmp(lower(other)))
    });
    for (index, (weight, word)) in taken.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if *weight == 0 {
            out.push(b'!');
        }
        out.extend(word.iter().map(u8::to_ascii_lowercase));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

    fn of(values: &[&'static str]) -> Accepted {
        Accepted::of(values.iter().map(|value| value.as_bytes()))
    }

    fn normal(values: &[&'static str]) -> String {
        let mut out = Vec::new();
        normalise(values.iter().map(|value| value.as_bytes()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_examples_of_the_rfc_choose_as_it_says() {
        // RFC 9110 section 12.5.3.
        assert_eq!(of(&["compress, gzip"]).best(MADE), Some(Coding::Gzip));
        assert_eq!(of(&[""]).best(MADE), None);
        assert_eq!(of(&["*"]).best(MADE), Some(Coding::Zstd));
        assert_eq!(of(&["compress;q=0.5, gzip;q=1.0"]).best(MADE), Some(Coding::Gzip));
        let last = of(&["gzip;q=1.0, identity; q=0.5, *;q=0"]);
        assert_eq!(last.best(MADE), Some(Coding::Gzip));
        assert_eq!((last.weight(Coding::Brotli), last.weight(Coding::Identity)), (0, 500));
    }

    #[test]
    fn what_is_not_encoded_is_taken_unless_it_is_refused() {
        let identity = |values: &[&'static str]| of(values).weight(Coding::Identity) > 0;
        assert!(identity(&[]) && identity(&["gzip"]) && identity(&["*"]) && identity(&["*;q=0, identity"]));
        assert!(!identity(&["identity;q=0"]) && !identity(&["gzip, *;q=0"]) && !identity(&["*;q=0.0"]));
        // A client that would rather have it as it is gets it so.
        let offered = [Coding::Gzip, Coding::Identity];
        assert_eq!(of(&["gzip;q=0.5, identity"]).best(offered), Some(Coding::Identity));
        assert_eq!(of(&["gzip;q=0.002"]).best(offered), Some(Coding::Gzip));
        assert_eq!(of(&["identity;q=0"]).best(offered), None);
    }

    #[test]
    fn of_codings_alike_the_server_chooses() {
        assert_eq!(of(&["gzip, deflate, br, zstd"]).best(MADE), Some(Coding::Zstd));
        assert_eq!(of(&["GZIP", "Br;Q=0.9"]).best(MADE), Some(Coding::Gzip));
        assert_eq!(of(&["x-gzip"]).best(MADE), Some(Coding::Gzip));
        assert_eq!(of(&["*;q=0.1, br;q=0"]).best([Coding::Brotli, Coding::Gzip]), Some(Coding::Gzip));
    }

    #[test]
    fn elements_that_cannot_be_read_are_not_there_and_of_two_weights_the_smaller_holds() {
        for unreadable in [
            "gzip;q=2",
            "gzip;q=0.1234",
            "gzip;q=-1",
            "gzip;q=",
            "gzip;q=1.001",
            "gzip;x=1",
            "gzip q=1",
            "gzip;q=0;x=1",
            "gz ip",
        ] {
            assert_eq!(of(&[unreadable]).best(MADE), None, "{unreadable}");
        }
        assert_eq!(of(&["gzip, gzip;q=0"]).best(MADE), None);
        assert_eq!(of(&["gzip ; q=0.5"]).weight(Coding::Gzip), 500);
    }

    #[test]
    fn requests_that_ask_for_the_same_in_other_words_look_the_same() {
        // Of codings taken as gladly as each other any will do, also the one that another client would rather
        // have.
        assert_eq!(normal(&["gzip, br"]), normal(&["br, gzip;q=0.5"]));
        let same = "br,deflate,gzip,zstd";
        assert_eq!(normal(&["gzip, deflate, br, zstd"]), same);
        assert_eq!(normal(&["zstd,br", "GZip;q=1.0", "deflate ; q=1"]), same);
        assert_eq!(normal(&["gzip, identity, br;q=0"]), normal(&["x-gzip"]));
        assert_eq!(normal(&[]), normal(&["identity"]));
    }

    #[test]
    fn requests_that_ask_for_something_else_do_not() {
        let all = [
            "",
            "gzip",
            "br",
            "deflate",
            "gzip, br",
            "gzip, br;q=0.5",
            "*",
            "gzip, *;q=0",
            "*;q=0",
            "identity;q=0",
            "gzip, identity;q=0",
        ];
        let different: std::collections::BTreeSet<String> =
            all.iter().map(|value| normal(&[value])).collect();
        assert_eq!(different.len(), all.len(), "{different:?}");
    }

    #[test]
    fn a_long_list_is_told_apart_by_its_text() {
        let long = "a,b,c,d,e,f,g,h,i,j,k,l,M";
        assert_eq!(normal(&[long]), "?a,b,c,d,e,f,g,h,i,j,k,l,m,");
    }
}
