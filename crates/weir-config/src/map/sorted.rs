//! Keys that match a text exactly or at one of its ends, found by binary search.

use std::cmp::Ordering;

use super::MapKind;
use super::content::{Line, Mistake, NONE, part, twice};
use crate::report::quote;

/// Sorts the lines by key (compared from the end for suffixes), and reports duplicates.
pub(super) fn sort(kind: MapKind, text: &[u8], lines: &mut [Line], mistakes: &mut Vec<Mistake>) {
    if kind == MapKind::Domain {
        mistakes.extend(lines.iter().filter_map(|line| dotted(part(text, &line.key), line.number)));
    }
    // The sort is stable: of equal keys, the first in the file stays first.
    lines.sort_by(|one, other| compare(kind, part(text, &one.key), part(text, &other.key)));
    for pair in lines.windows(2) {
        if let [first, second] = pair
            && part(text, &first.key) == part(text, &second.key)
        {
            mistakes.push(twice(part(text, &second.key), second.number, first.number));
        }
    }
}

/// The mistake of a domain that begins with a dot: no client asks for such a name.
fn dotted(key: &[u8], line: u32) -> Option<Mistake> {
    let rest = String::from_utf8_lossy(key.strip_prefix(b".")?);
    Some(Mistake {
        line: line as usize,
        message: format!("the domain `.{rest}` begins with a dot"),
        hint: format!("expected {}, which means the names below it too", quote(&rest)),
    })
}

/// Finds for each key the longest other key that it begins (or ends) with. In sorted order these come before
/// it, each nested in the next: a stack holds them.
pub(super) fn nest(kind: MapKind, text: &[u8], lines: &mut [Line]) {
    let mut open: Vec<u32> = Vec::new();
    for place in 0..lines.len() {
        let key = part(text, &lines[place].key);
        while let Some(top) = open.last()
            && !is_at_end(kind, key, part(text, &lines[*top as usize].key))
        {
            open.pop();
        }
        lines[place].within = open.last().copied().unwrap_or(NONE);
        open.push(place as u32);
    }
}

/// The line for `asked` among those that [`sort`] and [`nest`] have prepared: the one with the longest key.
pub(super) fn find<'l>(kind: MapKind, text: &[u8], lines: &'l [Line], asked: &[u8]) -> Option<&'l Line> {
    let key_of = |line: &Line| part(text, &line.key);
    let behind = lines.partition_point(|line| compare(kind, key_of(line), asked) != Ordering::Greater);
    let mut line = lines.get(behind.checked_sub(1)?)?;
    if kind == MapKind::Exact {
        return (key_of(line) == asked).then_some(line);
    }
    // Every key that matches that end of the text is sorted before it, and also matches that end of the last
    // key before it: so they can be found from that key.
    loop {
        let key = key_of(line);
        if is_at_end(kind, asked, key) && (kind != MapKind::Domain || is_whole_labels(asked, key)) {
            return Some(line);
        }
        line = lines.get(line.within as usize)?;
    }
}

fn is_from_behind(kind: MapKind) -> bool {
    matches!(kind, MapKind::Suffix | MapKind::Domain)
}

fn compare(kind: MapKind, one: &[u8], other: &[u8]) -> Ordering {
    match is_from_behind(kind) {
        true => one.iter().rev().cmp(other.iter().rev()),
        false => one.cmp(other),
    }
}

fn is_at_end(kind: MapKind, text: &[u8], key: &[u8]) -> bool {
    if is_from_behind(kind) { text.ends_with(key) } else { text.starts_with(key) }
}

/// Whether a name that ends with `key` is that domain, or a subdomain of it.
fn is_whole_labels(name: &[u8], key: &[u8]) -> bool {
    name.len().checked_sub(key.len() + 1).is_none_or(|before| name.get(before) == Some(&b'.'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::content::MapContent;
    use super::*;

    fn values(kind: MapKind, lines: &str, asked: &[&str]) -> Vec<String> {
        let map = MapContent::read(kind, false, &Arc::from(lines.as_bytes())).unwrap();
        let value = |text: &&str| match map.look_up(text.as_bytes()) {
            Some(line) => String::from_utf8(line.value.into_owned()).unwrap(),
            None => "-".to_owned(),
        };
        asked.iter().map(value).collect()
    }

    #[test]
    fn the_longest_suffix_wins_and_a_nearer_key_hides_none() {
        let lines = ".js script\nmin.js small\ns plural\n.min.js smaller\n";
        let asked = ["/a.js", "/amin.js", "/a.min.js", ".min.js", "/as", "js", "/a.jpg", "/amin.jS", ""];
        assert_eq!(
            values(MapKind::Suffix, lines, &asked),
            ["script", "small", "smaller", "smaller", "plural", "plural", "-", "-", "-"]
        );
    }

    #[test]
    fn a_domain_means_itself_and_the_names_below_it_and_no_name_that_ends_like_it() {
        let lines = "example.com all\nshop.example.com shop\ncom top\nop.example.com op\n";
        let asked = [
            "example.com",
            "www.example.com",
            "a.b.example.com",
            "shop.example.com",
            "x.shop.example.com",
            "xshop.example.com",
            "badexample.com",
            "com",
            "example.com.evil.test",
            "",
        ];
        assert_eq!(
            values(MapKind::Domain, lines, &asked),
            ["all", "all", "all", "shop", "shop", "all", "top", "top", "-", "-"]
        );
        let dotted =
            MapContent::read(MapKind::Domain, false, &Arc::from(&b".example.com a\n"[..])).unwrap_err();
        assert_eq!(
            dotted[0].to_string(),
            "1: the domain `.example.com` begins with a dot: expected `example.com`, which means the names below it too"
        );
    }

    #[test]
    fn ends_are_found_as_by_looking_at_every_line() {
        let mut state = 7_u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let mut text = move |most: u32| -> String {
            (0..1 + random(most)).map(|_| ['a', 'b', '.'][random(3) as usize]).collect()
        };
        for kind in [MapKind::Suffix, MapKind::Domain] {
            let mut keys: Vec<String> =
                (0..300).map(|_| text(7)).filter(|key| !key.starts_with('.')).collect();
            keys.sort();
            keys.dedup();
            let lines: String = keys.iter().map(|key| format!("{key} v{key}\n")).collect();
            let asked: Vec<String> = (0..3000).map(|_| text(10)).collect();
            let is_meant = |asked: &str, key: &str| {
                asked.ends_with(key)
                    && (kind == MapKind::Suffix
                        || asked.len() == key.len()
                        || asked[..asked.len() - key.len()].ends_with('.'))
            };
            let expected = asked.iter().map(|asked| {
                let longest = keys.iter().filter(|key| is_meant(asked, key)).max_by_key(|key| key.len());
                longest.map_or("-".to_owned(), |key| format!("v{key}"))
            });
            let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
            assert_eq!(values(kind, &lines, &asked), expected.collect::<Vec<_>>(), "{kind:?}");
        }
    }
}
