//! Lists of text patterns: exact, prefix, suffix, contained, regular expression, and the negation of each.

use std::fmt;
use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// Up to this many patterns are compared one by one; more are joined into one automaton, whose time does not
/// grow with their number.
const FEW: usize = 8;

/// Memory limit of one list's automaton, in bytes. A list that needs more is compared one by one.
const LIST_BYTES: usize = 64 << 20;

/// Memory limit of one entry's automaton, in bytes.
const ENTRY_BYTES: usize = 4 << 20;

/// Whether ASCII letters match in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// They don't: paths, methods.
    Sensitive,
    /// They do: user agents.
    Ignored,
}

/// One entry of a list.
///
/// Written `text` (exactly this), `text*` (begins so), `*text` (ends so), `*text*` (contains it), `*`
/// (everything), `~regex` (a regular expression that matches anywhere), each with a leading `!` for its
/// negation. [`fmt::Display`] writes it in the same form.
#[derive(Clone, Debug)]
pub struct Pattern {
    negated: bool,
    form: Form,
    case: Case,
    /// The expression, if comparing bytes is not enough.
    regex: Option<Regex>,
}

/// Capture groups that templates can use: `$1` to `$9` (count).
const NAMED_GROUPS: usize = 9;

/// The matches of a regular expression's groups, as positions in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    places: [(u32, u32); NAMED_GROUPS],
}

impl Groups {
    /// The match of the group with that number in `text`, which must be the searched text; empty if the group
    /// took no part or does not exist.
    pub fn of<'t>(&self, number: u8, text: &'t [u8]) -> &'t [u8] {
        let place = usize::from(number).checked_sub(1).and_then(|index| self.places.get(index));
        let (start, end) = place.copied().unwrap_or_default();
        text.get(start as usize..end as usize).unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Exact(Box<str>),
    Prefix(Box<str>),
    Suffix(Box<str>),
    Contains(Box<str>),
    Regex(Box<str>),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        (self.negated, &self.form, self.case) == (other.negated, &other.form, other.case)
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.negated { "!" } else { "" };
        match &self.form {
            Form::Exact(text) => write!(out, "{not}{text}"),
            Form::Prefix(text) => write!(out, "{not}{text}*"),
            Form::Suffix(text) => write!(out, "{not}*{text}"),
            Form::Contains(text) => write!(out, "{not}*{text}*"),
            Form::Regex(text) => write!(out, "{not}~{text}"),
        }
    }
}

impl Pattern {
    /// Parses an entry as written in the config.
    ///
    /// # Errors
    /// It is not a pattern; the message says what to write instead.
    pub fn parse(text: &str, case: Case) -> Result<Pattern, String> {
        let (negated, form) = read(text)?;
        let regex = match &form {
            Form::Regex(expression) => {
                Some(build(expression, case, ENTRY_BYTES).map_err(|error| reason(&error))?)
            }
            Form::Contains(part) => return Ok(Pattern { negated, ..Pattern::containing(part, case) }),
            _ => None,
        };
        Ok(Pattern { negated, form, case, regex })
    }

    /// The entry for every text that contains `part`, whatever characters are in `part`.
    pub fn containing(part: &str, case: Case) -> Pattern {
        let regex = build(&regex::escape(part), case, ENTRY_BYTES).ok();
        Pattern { negated: false, form: Form::Contains(part.into()), case, regex }
    }

    /// Whether [`Self::parse`] would accept `text`, found without building the automaton: a list may have
    /// thousands of entries.
    pub fn check(text: &str, case: Case) -> Result<(), String> {
        match read(text)? {
            (_, Form::Regex(_)) => Pattern::parse(text, case).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the entry matches `text`. Linear in the length of `text`; does not allocate.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.matches_unnegated(text) != self.negated
    }

    /// The end of the first match of a regular expression; `None` if there is none, and for every other form.
    /// Ignores negation. Linear in the length of `text`; does not allocate.
    pub fn end_in(&self, text: &[u8]) -> Option<usize> {
        let expression = self.regex.as_ref().filter(|_| matches!(self.form, Form::Regex(_)))?;
        expression.find(text).map(|found| found.end())
    }

    /// The number of groups of a regular expression, at most the nine that can be used; 0 for every other
    /// form.
    pub fn group_count(&self) -> u8 {
        let expression = self.regex.as_ref().filter(|_| matches!(self.form, Form::Regex(_)));
        expression.map_or(0, |regex| (regex.captures_len() - 1).min(NAMED_GROUPS) as u8)
    }

    /// The groups of a regular expression's first match in `text`; `None` if there is none, and for every
    /// other form. Linear in the length of `text`; allocates once.
    pub fn groups_in(&self, text: &[u8]) -> Option<Groups> {
        let expression = self.regex.as_ref().filter(|_| matches!(self.form, Form::Regex(_)))?;
        let found = expression.captures(text)?;
        let mut groups = Groups::default();
        for (place, group) in groups.places.iter_mut().zip(found.iter().skip(1)) {
            if let Some(group) = group {
                *place = (group.start() as u32, group.end() as u32);
            }
        }
        Some(groups)
    }

    /// Where the part of `text` is that an entry without a regular expression is about: all of it for `text`
    /// and `*`, its beginning for `text*`, its end for `*text`, the first such place for `*text*`. `None` if
    /// there is none, and for regular expressions. Ignores negation. Linear in the length of `text`; does not
    /// allocate.
    pub fn part_in(&self, text: &[u8]) -> Option<Range<usize>> {
        if let Form::Contains(_) = &self.form {
            return self.regex.as_ref()?.find(text).map(|found| found.range());
        }
        if !self.matches_unnegated(text) {
            return None;
        }
        match &self.form {
            Form::Prefix(wanted) if !wanted.is_empty() => Some(0..wanted.len()),
            Form::Exact(_) | Form::Prefix(_) => Some(0..text.len()),
            Form::Suffix(wanted) => Some(text.len() - wanted.len()..text.len()),
            Form::Contains(_) | Form::Regex(_) => None,
        }
    }

    /// Whether it is a text that must be equal, without any sign.
    pub fn is_exact(&self) -> bool {
        !self.negated && matches!(self.form, Form::Exact(_))
    }

    /// The same entry where ASCII letters match in any case.
    pub fn in_any_case(&self) -> Pattern {
        Pattern::parse(&self.to_string(), Case::Ignored).unwrap_or_else(|_| self.clone())
    }

    /// Whether it matches everything: `*`.
    pub fn is_everything(&self) -> bool {
        !self.negated && matches!(&self.form, Form::Prefix(text) if text.is_empty())
    }

    /// Whether it is negated.
    pub fn is_negated(&self) -> bool {
        self.negated
    }

    fn matches_unnegated(&self, text: &[u8]) -> bool {
        let same = |part: Option<&[u8]>, wanted: &str| {
            part.is_some_and(|part| match self.case {
                Case::Sensitive => part == wanted.as_bytes(),
                Case::Ignored => part.eq_ignore_ascii_case(wanted.as_bytes()),
            })
        };
        match &self.form {
            Form::Exact(wanted) => same(Some(text), wanted),
            Form::Prefix(wanted) => same(text.get(..wanted.len()), wanted),
            Form::Suffix(wanted) => {
                same(text.len().checked_sub(wanted.len()).map(|start| &text[start..]), wanted)
            }
            Form::Contains(_) | Form::Regex(_) => {
                self.regex.as_ref().is_some_and(|regex| regex.is_match(text))
            }
        }
    }

    /// The same without negation, as a regular expression.
    fn expression(&self) -> String {
        match &self.form {
            Form::Exact(text) => format!(r"\A(?:{})\z", regex::escape(text)),
            Form::Prefix(text) => format!(r"\A(?:{})", regex::escape(text)),
            Form::Suffix(text) => format!(r"(?:{})\z", regex::escape(text)),
            Form::Contains(text) => regex::escape(text),
            Form::Regex(text) => format!("(?:{text})"),
        }
    }
}

/// Whether an entry is negated, and its form.
fn read(text: &str) -> Result<(bool, Form), String> {
    let (negated, rest) = match text.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let Some(expression) = rest.strip_prefix('~') else { return Ok((negated, simple(rest)?)) };
    if expression.is_empty() {
        return Err("expected a regular expression behind the `~`, such as \"~^bot/[0-9]+\"".to_owned());
    }
    Ok((negated, Form::Regex(expression.into())))
}

fn simple(text: &str) -> Result<Form, String> {
    let (starts, inner) = match text.strip_prefix('*') {
        Some(inner) => (true, inner),
        None => (false, text),
    };
    let (ends, inner) = match inner.strip_suffix('*') {
        Some(inner) => (true, inner),
        None => (false, inner),
    };
    if inner.contains('*') || (starts && ends && inner.is_empty()) {
        let expression = text.split('*').map(regex::escape).collect::<Vec<_>>().join(".*");
        return Err(format!(
            "a `*` stands only at the beginning and the end; as a regular expression: '~^{expression}$'"
        ));
    }
    Ok(match (starts, ends) {
        (false, false) => Form::Exact(inner.into()),
        (false, true) => Form::Prefix(inner.into()),
        // A `*` alone.
        (true, false) if inner.is_empty() => Form::Prefix(inner.into()),
        (true, false) => Form::Suffix(inner.into()),
        (true, true) => Form::Contains(inner.into()),
    })
}

/// For bytes, because header values need not be UTF-8; with ASCII classes, because the Unicode `\w` makes
/// automata a hundred times larger.
fn build(expression: &str, case: Case, most_bytes: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(expression)
        .unicode(false)
        .case_insensitive(case == Case::Ignored)
        .size_limit(most_bytes)
        .build()
}

/// The last line of the regex crate's message, which says what is wrong; the lines before it show where.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    let what = last.strip_prefix("error: ").unwrap_or(last);
    format!("not a regular expression of linear time: {what}")
}

/// A compiled list.
#[derive(Debug)]
pub(crate) struct Patterns {
    list: Box<[Pattern]>,
    /// All entries that are not negated, joined; `None` if there are few.
    joined: Option<Regex>,
}

impl Patterns {
    /// `None` for an empty list.
    pub fn compile(list: &[Pattern]) -> Option<Patterns> {
        let case = list.first()?.case;
        let positive: Vec<_> = list.iter().filter(|pattern| !pattern.negated).collect();
        let joined = (positive.len() > FEW)
            .then(|| positive.iter().map(|pattern| pattern.expression()).collect::<Vec<_>>().join("|"))
            .and_then(|expression| build(&expression, case, LIST_BYTES).ok());
        Some(Patterns { list: list.into(), joined })
    }

    /// Whether any entry matches.
    pub fn any(&self, text: &[u8]) -> bool {
        match &self.joined {
            Some(joined) => {
                joined.is_match(text)
                    || self.list.iter().any(|pattern| pattern.negated && pattern.matches(text))
            }
            None => self.list.iter().any(|pattern| pattern.matches(text)),
        }
    }

    /// The first entry that matches.
    pub fn first(&self, text: &[u8]) -> Option<&Pattern> {
        self.list.iter().find(|pattern| pattern.matches(text))
    }
}

/// A list of which the first matching entry counts. None is negated.
#[derive(Debug)]
pub struct PatternSet {
    list: Box<[Pattern]>,
    /// All entries in one automaton; `None` if there are few, or if it would take too much memory.
    set: Option<RegexSet>,
}

impl PatternSet {
    /// All entries of `list` must have the same [`Case`].
    pub fn compile(list: Vec<Pattern>) -> PatternSet {
        let is_ignored = list.first().is_some_and(|first| first.case == Case::Ignored);
        let set = (list.len() > FEW)
            .then(|| {
                RegexSetBuilder::new(list.iter().map(Pattern::expression))
                    .unicode(false)
                    .case_insensitive(is_ignored)
                    .size_limit(LIST_BYTES)
                    .build()
            })
            .and_then(Result::ok);
        PatternSet { list: list.into(), set }
    }

    /// The index of the first entry that matches `text`, and the entry; `None` if none does. Linear in the
    /// length of `text`, whatever the number of entries, except for a list too large for one automaton.
    pub fn first(&self, text: &[u8]) -> Option<(usize, &Pattern)> {
        let place = match &self.set {
            Some(set) => set.matches(text).iter().next()?,
            None => self.list.iter().position(|pattern| pattern.matches(text))?,
        };
        Some((place, self.list.get(place)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text, Case::Sensitive).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_part_that_an_entry_is_about_is_found() {
        let part = |entry: &str, text: &str| pattern(entry).part_in(text.as_bytes());
        assert_eq!(part("http://app/*", "http://app/a/b"), Some(0..11));
        assert_eq!(part("http://app/", "http://app/"), Some(0..11));
        assert_eq!(part("*", "any"), Some(0..3));
        assert_eq!(part("*.internal", "shop.internal"), Some(4..13));
        assert_eq!(part("*b*", "abcb"), Some(1..2));
        assert_eq!(part("http://app/*", "http://other/"), None);
        assert_eq!(part("~b", "abc"), None);
        assert_eq!(pattern("App.Internal").in_any_case().part_in(b"app.internal"), Some(0..12));
        assert!(pattern("a").is_exact() && !pattern("a*").is_exact());
    }

    #[test]
    fn each_form_matches_what_it_says_and_its_negation_the_rest() {
        for (text, good, bad) in [
            ("curl", &["curl"][..], &["curl/8", "", "xcurl"][..]),
            ("curl/*", &["curl/", "curl/8.5"], &["curl", "xcurl/8", ""]),
            ("*bot", &["bot", "Googlebot"], &["bots", "bo", ""]),
            ("*bot*", &["bot", "a bot 1"], &["bo", "b ot", ""]),
            ("*", &["", "anything"], &[]),
            ("", &[""], &["x"]),
            ("~^bot/[0-9]+$", &["bot/12"], &["bot/", "xbot/1", "bot/1x"]),
            ("~bot|spider", &["a spider", "bots"], &["crawler"]),
            ("a.b*", &["a.bc"], &["aXbc"]),
        ] {
            for (texts, expected) in [(good, true), (bad, false)] {
                for tried in texts {
                    assert_eq!(pattern(text).matches(tried.as_bytes()), expected, "{text} on {tried:?}");
                    let negation = pattern(&format!("!{text}"));
                    assert_eq!(negation.matches(tried.as_bytes()), !expected, "!{text} on {tried:?}");
                }
            }
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn case_counts_only_where_it_is_asked_for() {
        for text in ["Curl/8", "CURL*", "*RL/8", "*uRl*", "~^CURL"] {
            assert!(Pattern::parse(text, Case::Ignored).unwrap().matches(b"cUrl/8"), "{text}");
            assert!(!pattern(text).matches(b"cUrl/8"), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_compared_too() {
        assert!(pattern("*bot*").matches(b"\xff\xfe bot \x80"));
        assert!(pattern("~^.bot").matches(b"\xffbot"));
    }

    #[test]
    fn what_is_no_pattern_says_what_to_write() {
        let error = |text| Pattern::parse(text, Case::Sensitive).unwrap_err();
        assert_eq!(
            error("/a/*/b"),
            "a `*` stands only at the beginning and the end; as a regular expression: '~^/a/.*/b$'"
        );
        assert!(error("**").contains("a `*` stands only"));
        assert!(error("~(").contains("unclosed group"), "{}", error("~("));
        assert!(error("~a(?=b)").contains("look-around"), "{}", error("~a(?=b)"));
        assert!(error("!~").contains("expected a regular expression"));
        assert!(error("~((a{999}){999}){999}").contains("linear time"));
    }

    #[test]
    fn groups_are_found_by_their_number_and_one_that_took_no_part_is_empty() {
        let two = pattern("~^/(v[0-9]+)(?:/(a)|/(b))");
        assert_eq!(two.group_count(), 3);
        let text = b"/v12/b/c";
        let groups = two.groups_in(text).unwrap();
        assert_eq!([1, 2, 3, 4, 0].map(|number| groups.of(number, text)), [&b"v12"[..], b"", b"b", b"", b""]);
        assert_eq!(groups.of(1, b"/"), b"", "of another text");
        assert_eq!(two.groups_in(b"/x"), None);
        assert_eq!((pattern("/v*").group_count(), pattern("/v*").groups_in(b"/v1")), (0, None));
        assert_eq!(pattern("~(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)").group_count(), 9);
    }

    /// Expressions that take a backtracking engine longer than the age of the universe.
    #[test]
    fn a28_expressions_that_explode_elsewhere_cost_time_in_proportion_to_the_text() {
        let text = [b"/".as_slice(), &b"a".repeat(8_000), b"!"].concat();
        for expression in ["~^/(a+)+$", "~^/(a|aa)+$", "~^/(a|a?)+$", "~^/(.*a){20}$", "~^/((a*)*)*b"] {
            let pattern = pattern(expression);
            assert!(!pattern.matches(&text), "{expression}");
            assert_eq!(pattern.groups_in(&text), None, "{expression}");
        }
    }

    #[test]
    fn a_long_list_answers_as_its_entries_one_by_one() {
        let texts: Vec<String> = (0..2_000)
            .flat_map(|n| {
                [format!("bot-{n}/*"), format!("*agent{n}x*"), format!("tool {n}"), format!("*/v{n}")]
            })
            .chain(["!*a*".to_owned(), "~^x[0-9]{3}$".to_owned()])
            .collect();
        let list: Vec<_> = texts.iter().map(|text| Pattern::parse(text, Case::Ignored).unwrap()).collect();
        let patterns = Patterns::compile(&list).unwrap();
        assert!(patterns.joined.is_some());
        for tried in [
            "BOT-7/1",
            "a bot-7/1",
            "an AGENT1999X",
            "an agent1999",
            "tool 3",
            "a tool 3",
            "tool 3 a",
            "a/v5",
            "x123",
            "xa123",
            "b",
            "",
        ] {
            let single = list.iter().any(|pattern| pattern.matches(tried.as_bytes()));
            assert_eq!(patterns.any(tried.as_bytes()), single, "{tried}");
            assert_eq!(patterns.first(tried.as_bytes()).is_some(), single, "{tried}");
        }
        assert!(!patterns.any(b"an ordinary browser"));
    }
}
