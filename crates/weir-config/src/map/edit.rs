//! Changes one line of a map's file, for the admin API; the rest, comments and spaces included, stays as it
//! was.

use std::sync::Arc;

use super::MapFile;
use super::content::{MapContent, is_line};

/// What happened to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEdit {
    /// The key is new.
    Added,
    /// The key had another value.
    Changed,
    /// The line was removed.
    Removed,
}

/// A map's file after a change.
#[derive(Debug)]
pub struct EditedMap {
    /// What happened to the line; `None` if the file already had this content.
    pub edit: Option<LineEdit>,
    /// The new content of the file.
    pub bytes: Arc<[u8]>,
}

impl MapFile {
    /// The file with this line: the value is replaced if the key exists, otherwise a line is added at the
    /// end. `value: None` removes the line.
    ///
    /// # Errors
    /// The file has mistakes, or would have; lists all of them.
    pub fn edited(
        &self,
        bytes: &Arc<[u8]>,
        key: &str,
        value: Option<&str>,
    ) -> Result<EditedMap, Vec<String>> {
        let content = self.content_of(bytes)?;
        if let Some(value) = value {
            is_line(key, value).map_err(|why| vec![why])?;
        }
        let Some((edit, text)) = edit(&content, bytes, key, value) else {
            return Ok(EditedMap { edit: None, bytes: bytes.clone() });
        };
        let bytes = text.into();
        self.content_of(&bytes)?;
        Ok(EditedMap { edit: Some(edit), bytes })
    }
}

fn edit(content: &MapContent, bytes: &[u8], key: &str, value: Option<&str>) -> Option<(LineEdit, Vec<u8>)> {
    match (content.value_of_key(key), value) {
        (None, None) => None,
        (Some(place), Some(value)) if bytes.get(place.clone()) == Some(value.as_bytes()) => None,
        (Some(place), Some(value)) => {
            let text = [bytes.get(..place.start)?, value.as_bytes(), bytes.get(place.end..)?].concat();
            Some((LineEdit::Changed, text))
        }
        (Some(place), None) => {
            let before = bytes.get(..place.start)?.iter().rposition(|byte| *byte == b'\n');
            let behind = bytes.get(place.end..)?.iter().position(|byte| *byte == b'\n');
            let end = behind.map_or(bytes.len(), |at| place.end + at + 1);
            let text = [bytes.get(..before.map_or(0, |at| at + 1))?, bytes.get(end..)?].concat();
            Some((LineEdit::Removed, text))
        }
        (None, Some(value)) => {
            let is_open = bytes.last().is_some_and(|byte| *byte != b'\n');
            let end: &[u8] = if is_open { b"\n" } else { b"" };
            let text = [bytes, end, key.as_bytes(), b" ", value.as_bytes(), b"\n"].concat();
            Some((LineEdit::Added, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapKind;

    fn map(kind: MapKind) -> MapFile {
        MapFile { kind, ..MapFile::default() }
    }

    /// The file after the edit; `None` if nothing changes.
    fn edited(map: &MapFile, text: &str, key: &str, value: Option<&str>) -> Option<(LineEdit, String)> {
        let edited = map.edited(&Arc::from(text.as_bytes()), key, value).unwrap();
        let text = String::from_utf8(edited.bytes.to_vec()).unwrap();
        edited.edit.map(|edit| (edit, text))
    }

    #[test]
    fn one_line_changes_and_the_rest_of_the_file_stays() {
        let text = "# tenants\n\n  a.example \t gold  \nb.example silver # no comment\n";
        let map = map(MapKind::Exact);
        let changed = "# tenants\n\n  a.example \t iron ore  \nb.example silver # no comment\n";
        assert_eq!(
            edited(&map, text, "a.example", Some("iron ore")),
            Some((LineEdit::Changed, changed.into()))
        );
        let added = format!("{text}c.example tin\n");
        assert_eq!(edited(&map, text, "c.example", Some("tin")), Some((LineEdit::Added, added)));
        let removed = "# tenants\n\nb.example silver # no comment\n";
        assert_eq!(edited(&map, text, "a.example", None), Some((LineEdit::Removed, removed.into())));
        assert_eq!(edited(&map, text, "a.example", Some("gold")), None);
        assert_eq!(edited(&map, text, "nobody", None), None);
        // Without a line end after its last line.
        assert_eq!(edited(&map, "a b", "c", Some("d")), Some((LineEdit::Added, "a b\nc d\n".into())));
        assert_eq!(edited(&map, "a b\nc d", "c", None), Some((LineEdit::Removed, "a b\n".into())));
        assert_eq!(edited(&map, "", "c", Some("d")), Some((LineEdit::Added, "c d\n".into())));
    }

    #[test]
    fn a_key_is_that_line_and_no_shorter_prefix_nor_wider_network() {
        let map = map(MapKind::Prefix);
        let added = "/a one\n/a/b two\n".to_owned();
        assert_eq!(edited(&map, "/a one\n", "/a/b", Some("two")), Some((LineEdit::Added, added)));
        let map = MapFile { kind: MapKind::Network, ..map };
        let text = "10.0.0.0/8 wide\n10.1.0.0/16 narrow\n2001:db8::/32 six\n";
        let changed = text.replace("wide", "all");
        assert_eq!(edited(&map, text, "10.0.0.0/8", Some("all")), Some((LineEdit::Changed, changed)));
        let removed = text.replace("2001:db8::/32 six\n", "");
        assert_eq!(edited(&map, text, "2001:0db8::/32", None), Some((LineEdit::Removed, removed)));
        let added = format!("{text}10.1.2.3 host\n");
        assert_eq!(edited(&map, text, "10.1.2.3", Some("host")), Some((LineEdit::Added, added)));
    }

    #[test]
    fn capitals_make_no_other_line_where_case_is_ignored() {
        let map = MapFile { ignore_case: true, ..map(MapKind::Exact) };
        let changed = "Shop.example tin\n".to_owned();
        let found = edited(&map, "Shop.example gold\n", "sHop.Example", Some("tin"));
        assert_eq!(found, Some((LineEdit::Changed, changed)));
    }

    #[test]
    fn what_would_be_no_line_or_another_one_is_refused() {
        let exact = map(MapKind::Exact);
        let refused = |map: &MapFile, text: &str, key: &str, value: &str| {
            map.edited(&Arc::from(text.as_bytes()), key, Some(value)).unwrap_err().join("; ")
        };
        for (key, value) in [
            ("a b", "c"),
            ("", "c"),
            ("# a", "c"),
            ("#a", "c"),
            ("a", ""),
            ("a", " c"),
            ("a", "c\nd e"),
            ("a\r\nb", "c"),
            ("a", "c\u{7f}"),
            ("\u{feff}a", "c"),
        ] {
            let said = refused(&exact, "", key, value);
            assert!(said.contains("is no line of a map"), "{key:?} {value:?}: {said}");
        }
        let said = refused(&map(MapKind::Network), "", "10.0.0.1/8", "x");
        assert!(said.contains("did you mean \"10.0.0.0/8\""), "{said}");
        let said = refused(&exact, "half\n", "a", "b");
        assert!(said.contains("has no value"), "{said}");
    }
}
