//! Tags that origins give to responses, for purging all responses with a tag at once: `surrogate-key`,
//! separated by spaces, and `cache-tag`, separated by commas.
//!
//! Only their hashes are stored. Two tags with the same hash would be purged together, which costs a fetch
//! but is otherwise harmless.

use weir_http::ResponseHead;

use crate::key;

/// Most tags of one response; further ones are ignored.
const TAGS: usize = 256;

/// Any value will do: tag hashes are compared only with each other.
const SEED: u64 = 0x7461_6773;

/// The hash of a tag.
pub(crate) fn hash(tag: &[u8]) -> u64 {
    key::hash(SEED, tag)
}

/// Hashes of a response's tags, sorted. O(fields) and no allocation when there are none.
pub(crate) fn of(head: &ResponseHead, buffer: &[u8]) -> Box<[u64]> {
    let mut tags = Vec::new();
    for field in head.fields(buffer) {
        let is_space: fn(&u8) -> bool = match field.name.len() {
            13 if field.name.eq_ignore_ascii_case(b"surrogate-key") => |byte| matches!(byte, b' ' | b'\t'),
            9 if field.name.eq_ignore_ascii_case(b"cache-tag") => |byte| *byte == b',',
            _ => continue,
        };
        let names = field.value.split(is_space).map(<[u8]>::trim_ascii).filter(|tag| !tag.is_empty());
        tags.extend(names.take(TAGS - tags.len().min(TAGS)).map(hash));
    }
    tags.sort_unstable();
    tags.dedup();
    tags.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::response;

    #[test]
    fn tags_of_both_fields_and_all_lines_count_once() {
        let (head, buffer) =
            response("HTTP/1.1 200 OK\r\nSurrogate-Key: a  b\r\nsurrogate-key: c\r\nCache-Tag: b, d e,,\r\n");
        let mut expected: Vec<u64> = [&b"a"[..], b"b", b"c", b"d e"].map(hash).to_vec();
        expected.sort_unstable();
        assert_eq!(*of(&head, &buffer), expected);
    }

    #[test]
    fn a_response_has_only_so_many_tags() {
        let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let (head, buffer) = response(&format!("HTTP/1.1 200 OK\r\nsurrogate-key: {}\r\n", many.join(" ")));
        assert_eq!(of(&head, &buffer).len(), TAGS);
    }
}
