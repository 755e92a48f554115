//! The lines of a map's file, compiled for lookups.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use weir_screen::{Case, Networks, PatternSet};
use weir_template::Template;

use super::{MapKind, patterns, sorted};
use crate::report::quote;

/// Longest file, in bytes.
pub(crate) const FILE_BYTES: usize = 16 << 20;
/// Most lines with a key (count), of one file.
pub(crate) const MOST_LINES: usize = 1_000_000;
/// Most lines (count) of a file whose keys may match anywhere in a text.
pub(crate) const MOST_PATTERNS: usize = 1_000;

/// A mistake in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// From 1.
    pub line: usize,
    /// What was found.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {}", self.line, self.message, self.hint)
    }
}

/// A line, as positions in the text: 24 bytes beside the file itself.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) key: Range<u32>,
    pub(super) value: Range<u32>,
    pub(super) number: u32,
    /// The index of the longest other key that is a prefix or suffix of this one (in the way in which keys
    /// match texts), or [`NONE`].
    pub(super) within: u32,
}

pub(super) const NONE: u32 = u32::MAX;

/// The lines of a map's file. A lookup by exact text, prefix, suffix or network takes O(log n), plus as many
/// steps as there are nested keys; it allocates only to convert to lower case. A lookup by expression or
/// substring takes time in proportion to the text, and allocates.
#[derive(Debug)]
pub struct MapContent {
    text: Arc<[u8]>,
    /// Sorted by key for the kinds in [`sorted`], otherwise in the order of the file.
    lines: Box<[Line]>,
    finder: Finder,
    kind: MapKind,
    /// Keys in `text` are in lower case, and so must be the text that is looked up.
    in_lower_case: bool,
}

/// How the line for a text is found.
#[derive(Debug)]
enum Finder {
    /// By binary search.
    Sorted,
    /// By network; `None` without a line.
    Networks(Option<Networks>),
    /// By patterns that may match anywhere in a text: the first matching line counts.
    Patterns(PatternSet),
    /// The same, with values that may use the matches of groups.
    Expressions(PatternSet, Box<[Option<Template>]>),
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapLine<'c> {
    /// The key of the line; in lower case if case is ignored, unless it is an expression.
    pub key: &'c [u8],
    /// Its value; for an expression, with the matches of its groups filled in.
    pub value: Cow<'c, [u8]>,
    /// Its number in the file, from 1.
    pub number: usize,
}

impl Default for MapContent {
    fn default() -> MapContent {
        MapContent {
            text: Arc::default(),
            lines: Box::default(),
            finder: Finder::Sorted,
            kind: MapKind::Exact,
            in_lower_case: false,
        }
    }
}

impl MapContent {
    /// Reads the bytes of a file. Takes O(n log n).
    pub(crate) fn read(
        kind: MapKind,
        ignore_case: bool,
        bytes: &Arc<[u8]>,
    ) -> Result<MapContent, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let mut lines = split(bytes, &mut mistakes);
        let most = if kind.is_by_patterns() { MOST_PATTERNS } else { MOST_LINES };
        if lines.len() > most {
            let hint = format!("expected at most {most}");
            let message = format!("it has {} lines", lines.len());
            return Err(vec![Mistake { line: most, message, hint }]);
        }
        // Lower-casing would change the meaning of an expression.
        let in_lower_case = ignore_case && kind != MapKind::Expression;
        let text = if in_lower_case { lower_case(bytes, &lines) } else { bytes.clone() };
        let case = if ignore_case { Case::Ignored } else { Case::Sensitive };
        let finder = match kind {
            MapKind::Network => Finder::Networks(networks(&text, &lines, &mut mistakes)),
            MapKind::Contains => {
                in_file_order(&text, &lines, &mut mistakes);
                Finder::Patterns(patterns::contained(&text, &lines))
            }
            MapKind::Expression => {
                in_file_order(&text, &lines, &mut mistakes);
                let (set, values) = patterns::expressions(&text, &lines, case, &mut mistakes);
                Finder::Expressions(set, values)
            }
            MapKind::Exact | MapKind::Prefix | MapKind::Suffix | MapKind::Domain => {
                sorted::sort(kind, &text, &mut lines, &mut mistakes);
                sorted::nest(kind, &text, &mut lines);
                Finder::Sorted
            }
        };
        if !mistakes.is_empty() {
            mistakes.sort_by_key(|mistake| mistake.line);
            return Err(mistakes);
        }
        Ok(MapContent { text, lines: lines.into(), finder, kind, in_lower_case })
    }

    /// Whether it was compiled from these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        match self.in_lower_case {
            true => lower_case(bytes, &self.lines) == self.text,
            false => *self.text == *bytes,
        }
    }

    /// Lines with a key (count).
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Length of the file in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The matching line for a text; `None` if there is none.
    pub fn look_up(&self, text: &[u8]) -> Option<MapLine<'_>> {
        let text = match self.in_lower_case && text.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(text.to_ascii_lowercase()),
            false => Cow::Borrowed(text),
        };
        match &self.finder {
            Finder::Sorted => sorted::find(self.kind, &self.text, &self.lines, &text),
            Finder::Networks(networks) => self.lines.get(networks.as_ref()?.place_of(address(&text)?)?),
            Finder::Patterns(set) => self.lines.get(set.first(&text)?.0),
            Finder::Expressions(set, values) => {
                let (place, expression) = set.first(&text)?;
                let shown = self.shown(self.lines.get(place)?);
                let Some(value) = values.get(place)? else { return Some(shown) };
                let value = patterns::fill_in(value, expression, &text);
                return Some(MapLine { value: Cow::Owned(value), ..shown });
            }
        }
        .map(|line| self.shown(line))
    }

    /// All lines, sorted by key; those of networks, expressions and substrings in the order of the file.
    pub fn lines(&self) -> impl Iterator<Item = MapLine<'_>> {
        self.lines.iter().map(|line| self.shown(line))
    }

    /// The position in the file of the value of the line with exactly this key; `None` if no line has it.
    pub(crate) fn value_of_key(&self, key: &str) -> Option<Range<usize>> {
        let line = match self.kind {
            MapKind::Network => {
                let wanted = network(key).ok()?;
                let is_wanted = |line: &&Line| {
                    let key = std::str::from_utf8(part(&self.text, &line.key)).ok();
                    key.and_then(|key| network(key).ok()) == Some(wanted)
                };
                self.lines.iter().find(is_wanted)?
            }
            _ => {
                let key = if self.in_lower_case { key.to_ascii_lowercase() } else { key.to_owned() };
                self.lines.iter().find(|line| part(&self.text, &line.key) == key.as_bytes())?
            }
        };
        Some(line.value.start as usize..line.value.end as usize)
    }

    fn shown(&self, line: &Line) -> MapLine<'_> {
        MapLine {
            key: part(&self.text, &line.key),
            value: Cow::Borrowed(part(&self.text, &line.value)),
            number: line.number as usize,
        }
    }
}

/// Key and value as slices of a line.
type KeyAndValue<'l> = (&'l [u8], &'l [u8]);

pub(super) fn part<'t>(text: &'t [u8], range: &Range<u32>) -> &'t [u8] {
    text.get(range.start as usize..range.end as usize).unwrap_or_default()
}

/// The lines with content. A key ends at the first space; the value is the rest, without surrounding spaces.
fn split(bytes: &[u8], mistakes: &mut Vec<Mistake>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut start = 0;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let (number, this) = (number + 1, start);
        start += line.len() + 1;
        let mut said = line.trim_ascii();
        if number == 1 {
            said = said.strip_prefix(b"\xef\xbb\xbf").unwrap_or(said);
        }
        if said.is_empty() || said.starts_with(b"#") {
            continue;
        }
        match within(said) {
            Ok((key, value)) => {
                // Both are slices of the line, whose position in the file is known.
                let place = |part: &[u8]| {
                    let begin = this + (part.as_ptr() as usize - line.as_ptr() as usize);
                    begin as u32..(begin + part.len()) as u32
                };
                lines.push(Line {
                    key: place(key),
                    value: place(value),
                    number: number as u32,
                    within: NONE,
                });
            }
            Err((message, hint)) => mistakes.push(Mistake { line: number, message, hint: hint.to_owned() }),
        }
    }
    lines
}

fn within(said: &[u8]) -> Result<KeyAndValue<'_>, (String, &'static str)> {
    let text = std::str::from_utf8(said).map_err(|_| ("it is not UTF-8".to_owned(), "save it as UTF-8"))?;
    if let Some(bad) = text.chars().find(|c| c.is_control() && *c != '\t') {
        let message = format!("it has `{}` in it", bad.escape_debug());
        return Err((message, "values go into header fields, where no control character may stand"));
    }
    let end = said.iter().position(u8::is_ascii_whitespace).unwrap_or(said.len());
    let (key, rest) = said.split_at(end);
    match rest.trim_ascii() {
        b"" => Err((format!("{} has no value", quote(text)), "expected a key, a space and a value")),
        value => Ok((key, value)),
    }
}

/// Checks that these are a valid key and value for a line.
///
/// # Errors
/// They are not; says what is wrong.
pub(crate) fn is_line(key: &str, value: &str) -> Result<(), String> {
    let line = format!("{key} {value}");
    let (mut mistakes, bytes) = (Vec::new(), line.as_bytes());
    let is_same = |line: &Line| {
        part(bytes, &line.key) == key.as_bytes() && part(bytes, &line.value) == value.as_bytes()
    };
    match split(bytes, &mut mistakes).as_slice() {
        [one] if is_same(one) => Ok(()),
        _ => {
            let why = mistakes.first().map_or(String::new(), |mistake| format!(" ({})", mistake.message));
            Err(format!(
                "{} is no line of a map{why}: expected a key without spaces that does not begin with `#`, and a value",
                quote(&line)
            ))
        }
    }
}

fn lower_case(bytes: &[u8], lines: &[Line]) -> Arc<[u8]> {
    let mut text = bytes.to_vec();
    for line in lines {
        if let Some(key) = text.get_mut(line.key.start as usize..line.key.end as usize) {
            key.make_ascii_lowercase();
        }
    }
    text.into()
}

pub(super) fn twice(key: &[u8], number: u32, first: u32) -> Mistake {
    Mistake {
        line: number as usize,
        message: format!("{} is there twice", quote(&String::from_utf8_lossy(key))),
        hint: format!("keep one: the first is in line {first}"),
    }
}

/// Reports duplicate keys among lines that stay in the order of the file.
fn in_file_order(text: &[u8], lines: &[Line], mistakes: &mut Vec<Mistake>) {
    sorted::sort(MapKind::Exact, text, &mut lines.to_vec(), mistakes);
}

/// The address in a text, in the form of `$client_ip` and `$host`.
fn address(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.trim_matches(['[', ']']).parse().ok()
}

fn networks(text: &[u8], lines: &[Line], mistakes: &mut Vec<Mistake>) -> Option<Networks> {
    let mut read = Vec::with_capacity(lines.len());
    for line in lines {
        let key = String::from_utf8_lossy(part(text, &line.key));
        match network(&key) {
            Ok(network) => read.push((network, line.number)),
            Err(hint) => {
                let message = format!("{} is not a network", quote(&key));
                mistakes.push(Mistake { line: line.number as usize, message, hint });
            }
        }
    }
    let mut sorted = read.clone();
    sorted.sort();
    for pair in sorted.windows(2) {
        if let [(first, number), (second, again)] = pair
            && first == second
        {
            mistakes.push(twice(second.to_string().as_bytes(), *again, *number));
        }
    }
    let all: Vec<IpNet> = read.into_iter().map(|(network, _)| network).collect();
    Networks::compile(&all)
}

/// Parses a network. `Err` says what to write.
fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let expected = || "expected one such as \"10.0.0.0/8\", \"2001:db8::/32\" or an address".to_owned();
    let network: IpNet = text.parse().map_err(|_| expected())?;
    if network.trunc() != network {
        return Err(format!("did you mean \"{}\"?", network.trunc()));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: MapKind, text: &str) -> MapContent {
        MapContent::read(kind, false, &Arc::from(text.as_bytes())).unwrap_or_else(|it| panic!("{it:?}"))
    }

    fn value(map: &MapContent, text: &str) -> String {
        map.look_up(text.as_bytes())
            .map_or("-".to_owned(), |line| String::from_utf8(line.value.into_owned()).unwrap())
    }

    #[test]
    fn lines_are_those_of_haproxys_maps() {
        let map = map(MapKind::Exact, "\u{feff}a 1\n\n# b 2\n  c\t\tthree  words \r\nd#e 4\n   # x\nf 5");
        assert_eq!(map.line_count(), 4);
        for (key, expected) in [("a", "1"), ("b", "-"), ("c", "three  words"), ("d#e", "4"), ("f", "5")] {
            assert_eq!(value(&map, key), expected, "{key}");
        }
        assert_eq!(["", "A", "aa", "#", "g"].map(|key| value(&map, key)), ["-"; 5]);
        assert_eq!(map.look_up(b"d#e").unwrap().number, 5);
    }

    #[test]
    fn the_longest_prefix_wins_and_a_nearer_key_hides_none() {
        let map = map(MapKind::Prefix, "/ root\n/a a\n/a/b/c abc\n/ab ab\n/a/b ab2\n/a/b/c/d/e deep\n");
        for (path, expected) in [
            ("/", "root"),
            ("/z", "root"),
            ("/a", "a"),
            ("/a/", "a"),
            ("/a/b", "ab2"),
            ("/a/bb", "ab2"),
            ("/a/b/c/d", "abc"),
            ("/a/b/c/d/e/f", "deep"),
            ("/a/b/d", "ab2"),
            ("/abc", "ab"),
            ("/a0", "a"),
            ("x", "-"),
            ("", "-"),
        ] {
            assert_eq!(value(&map, path), expected, "{path}");
        }
    }

    #[test]
    fn prefixes_are_found_as_by_looking_at_every_line() {
        let keys: Vec<String> = (0_u32..3000)
            .map(|number| {
                let mixed = number.wrapping_mul(2_654_435_761);
                (0..1 + mixed % 9).map(|digit| char::from(b'a' + ((mixed >> digit) & 1) as u8)).collect()
            })
            .collect();
        let mut unique = keys.clone();
        unique.sort();
        unique.dedup();
        let text: String = unique.iter().map(|key| format!("{key} v{key}\n")).collect();
        let map = map(MapKind::Prefix, &text);
        for text in keys.iter().map(|key| format!("{key}abba")).chain(["b".into(), "ac".into(), "c".into()]) {
            let longest = unique.iter().filter(|key| text.starts_with(*key)).max_by_key(|key| key.len());
            assert_eq!(value(&map, &text), longest.map_or("-".to_owned(), |key| format!("v{key}")), "{text}");
        }
    }

    #[test]
    fn the_smallest_network_wins_in_either_spelling() {
        let map = map(
            MapKind::Network,
            "10.0.0.0/8 office\n10.1.0.0/16 lab\n10.1.2.3 door\n2001:db8::/32 six\n0.0.0.0/0 world\n",
        );
        for (address, expected) in [
            ("10.9.9.9", "office"),
            ("10.1.9.9", "lab"),
            ("10.1.2.3", "door"),
            ("::ffff:10.1.2.3", "door"),
            ("2001:db8::1", "six"),
            ("[2001:db8::1]", "six"),
            ("192.0.2.1", "world"),
            ("2001:db9::1", "-"),
            ("unix:", "-"),
            ("10.1.2", "-"),
            ("", "-"),
        ] {
            assert_eq!(value(&map, address), expected, "{address}");
        }
    }

    #[test]
    fn case_is_one_where_it_is_to_be_and_values_keep_theirs() {
        let map = MapContent::read(MapKind::Exact, true, &Arc::from(&b"Shop.Test App\n"[..])).unwrap();
        assert_eq!(map.look_up(b"sHOP.test").unwrap().value, b"App".as_slice());
        assert!(map.look_up("shop.te\u{17f}t".as_bytes()).is_none());
    }

    #[test]
    fn all_mistakes_are_told_with_their_lines() {
        let told = |kind, bytes: &[u8]| {
            let mistakes = MapContent::read(kind, true, &Arc::from(bytes)).unwrap_err();
            mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            told(MapKind::Exact, b"a 1\nb\nA 2\nc \xff\nd \x01\n"),
            [
                "2: `b` has no value: expected a key, a space and a value",
                "3: `a` is there twice: keep one: the first is in line 1",
                "4: it is not UTF-8: save it as UTF-8",
                "5: it has `\\u{1}` in it: values go into header fields, where no control character may stand",
            ]
        );
        assert_eq!(
            told(MapKind::Network, b"10.0.0.1/8 a\nx b\n10.0.0.0/8 c\n10.0.0.0/8 d\n"),
            [
                "1: `10.0.0.1/8` is not a network: did you mean \"10.0.0.0/8\"?",
                "2: `x` is not a network: expected one such as \"10.0.0.0/8\", \"2001:db8::/32\" or an address",
                "4: `10.0.0.0/8` is there twice: keep one: the first is in line 3",
            ]
        );
    }

    #[test]
    fn j12_a_hundred_thousand_keys_within_each_other_cost_no_more_than_their_text() {
        // Each key begins with the one before it.
        let mut text = String::new();
        for length in 1..=2000 {
            text += &"a".repeat(length);
            text += " v\n";
        }
        let map = map(MapKind::Prefix, &text);
        let asked = "a".repeat(100_000);
        assert_eq!(map.look_up(asked.as_bytes()).unwrap().key.len(), 2000);
        let other = "a".repeat(1000) + "b";
        assert_eq!(map.look_up(other.as_bytes()).unwrap().key.len(), 1000);
        let many: String = (0..100_000)
            .map(|number| format!("10.{}.{}.{} v{number}\n", number >> 16, number >> 8 & 255, number & 255))
            .collect();
        let map = self::map(MapKind::Network, &many);
        assert_eq!((map.line_count(), value(&map, "10.1.134.159").as_str()), (100_000, "v99999"));
    }
}
