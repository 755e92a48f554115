//! The request fields that determined which response was chosen (RFC 9110 §12.5.5).

use super::list;
use crate::scan;

/// The fields named by all `vary` lines of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vary {
    /// No request field.
    #[default]
    Nothing,
    /// These fields, in lower case, sorted, each once.
    Names(Vec<Box<[u8]>>),
    /// `*`, or something malformed: the response suits no other request.
    Anything,
}

impl Vary {
    /// Parses the lines. Allocates one box for each name.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vary {
        let mut names = Vec::new();
        for name in list::elements(values) {
            // `*` is also a token; it means anything wherever it stands.
            if name == b"*" || !scan::is_token(name) {
                return Vary::Anything;
            }
            names.push(name.to_ascii_lowercase().into_boxed_slice());
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { Vary::Nothing } else { Vary::Names(names) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&'static str]) -> Vary {
        Vary::of(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn names_of_all_lines_count_once_in_one_order() {
        let names = |names: &[&str]| Vary::Names(names.iter().map(|name| name.as_bytes().into()).collect());
        assert_eq!(of(&["accept-encoding, accept-language"]), names(&["accept-encoding", "accept-language"]));
        assert_eq!(
            of(&["Accept-Language", "Accept-Encoding,accept-LANGUAGE"]),
            names(&["accept-encoding", "accept-language"])
        );
        assert_eq!(of(&[]), Vary::Nothing);
        assert_eq!(of(&["", " , "]), Vary::Nothing);
    }

    #[test]
    fn a_star_anywhere_and_what_is_no_name_mean_anything() {
        for anything in [&["*"][..], &["accept, *"], &["accept", "*"], &["a b"], &["\"accept\""], &["a:b"]] {
            assert_eq!(of(anything), Vary::Anything, "{anything:?}");
        }
    }
}
