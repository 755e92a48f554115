//! Keys that may match anywhere in a text, and values that use the matches.

use weir_screen::{Case, Groups, Pattern, PatternSet};
use weir_template::{Source, Template, Variable};

use super::content::{Line, Mistake, part};
use crate::report::quote;

/// Compiles a search for the first line whose key is contained in a text. Case matters: if it is to be
/// ignored, both are in lower case.
pub(super) fn contained(text: &[u8], lines: &[Line]) -> PatternSet {
    let pattern = |line: &Line| Pattern::containing(&key(text, line), Case::Sensitive);
    PatternSet::compile(lines.iter().map(pattern).collect())
}

/// Compiles a search for the first line whose expression matches, and the values that use groups; `None` for
/// values that are constant.
pub(super) fn expressions(
    text: &[u8],
    lines: &[Line],
    case: Case,
    mistakes: &mut Vec<Mistake>,
) -> (PatternSet, Box<[Option<Template>]>) {
    let (mut list, mut values) = (Vec::new(), Vec::new());
    for line in lines {
        match expression(text, line, case) {
            Ok((pattern, value)) => {
                list.push(pattern);
                values.push(value);
            }
            Err((message, hint)) => mistakes.push(Mistake { line: line.number as usize, message, hint }),
        }
    }
    (PatternSet::compile(list), values.into())
}

fn expression(text: &[u8], line: &Line, case: Case) -> Result<(Pattern, Option<Template>), (String, String)> {
    let (key, value) = (key(text, line), String::from_utf8_lossy(part(text, &line.value)));
    let pattern = Pattern::parse(&format!("~{key}"), case).map_err(|why| {
        (format!("{} is {why}", quote(&key)), "expected one such as \"^/old/(.*)$\"".to_owned())
    })?;
    if !value.contains('$') {
        return Ok((pattern, None));
    }
    let hint = || "expected `$1` to `$9` for what a group has matched, and `$$` for a `$`".to_owned();
    let value = Template::parse(&value, pattern.group_count()).map_err(|why| (why.to_string(), hint()))?;
    if let Some(other) = value.variables().find(|variable| !matches!(variable, Variable::Capture(_))) {
        return Err((format!("a map's value cannot have `${}`", other.name()), hint()));
    }
    Ok((pattern, Some(value)))
}

/// The value of a line whose expression matches `text`.
pub(super) fn fill_in(value: &Template, expression: &Pattern, text: &[u8]) -> Vec<u8> {
    let mut filled = Vec::new();
    let groups = expression.groups_in(text).unwrap_or_default();
    value.render(&Matched { groups, text }, &mut filled);
    filled
}

/// The matches of the groups.
struct Matched<'t> {
    groups: Groups,
    text: &'t [u8],
}

impl Source for Matched<'_> {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        if let Variable::Capture(number) = variable {
            out.extend_from_slice(self.groups.of(*number, self.text));
        }
    }
}

fn key(text: &[u8], line: &Line) -> String {
    String::from_utf8_lossy(part(text, &line.key)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::sync::Arc;

    use super::super::MapKind;
    use super::super::content::MapContent;

    fn read(kind: MapKind, ignore_case: bool, lines: &str) -> Result<MapContent, Vec<String>> {
        let content = MapContent::read(kind, ignore_case, &Arc::from(lines.as_bytes()));
        content.map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    fn value(map: &MapContent, text: &str) -> String {
        let line = map.look_up(text.as_bytes());
        line.map_or("-".to_owned(), |line| String::from_utf8(line.value.into_owned()).unwrap())
    }

    #[test]
    fn the_first_line_that_matches_counts_whether_they_are_few_or_many() {
        let few = "^/a/ first\n/b second\n^/a/b third\n";
        let many = (0..900).fold(few.to_owned(), |mut all, number| {
            writeln!(all, "^/n/{number}$ n{number}").unwrap();
            all
        });
        for lines in [few, &many] {
            let map = read(MapKind::Expression, false, lines).unwrap();
            for (asked, expected) in
                [("/a/b", "first"), ("/x/b", "second"), ("/a", "-"), ("/A/x", "-"), ("", "-")]
            {
                assert_eq!(value(&map, asked), expected, "{asked}");
            }
            assert_eq!(map.look_up(b"/x/b").unwrap().number, 2);
        }
        let map = read(MapKind::Expression, false, &many).unwrap();
        assert_eq!(["/n/7", "/n/899", "/n/900"].map(|asked| value(&map, asked)), ["n7", "n899", "-"]);
    }

    #[test]
    fn values_say_what_groups_have_matched_in_the_case_that_it_has() {
        let lines = r"^/old/(\w+)/(\d+)$ /new/$2/$1?cost=$$5
^/(x)?y [$1]
^/plain a b
";
        let map = read(MapKind::Expression, true, lines).unwrap();
        assert_eq!(value(&map, "/OLD/Shoes/12"), "/new/12/Shoes?cost=$5");
        assert_eq!(value(&map, "/y"), "[]", "a group that took no part");
        assert_eq!(value(&map, "/PLAIN"), "a b");
        let listed: Vec<_> = map.lines().map(|line| line.value.into_owned()).collect();
        assert_eq!(listed[0], b"/new/$2/$1?cost=$$5", "as it is written");
        let case_counts = read(MapKind::Expression, false, lines).unwrap();
        assert_eq!(value(&case_counts, "/OLD/Shoes/12"), "-");
    }

    #[test]
    fn capitals_count_in_an_expression_and_not_in_what_it_matches() {
        let map = read(MapKind::Expression, true, "^\\D+$ no-digits\n").unwrap();
        assert_eq!([value(&map, "abc"), value(&map, "a1")], ["no-digits", "-"]);
    }

    #[test]
    fn what_is_contained_is_no_expression() {
        let map = read(MapKind::Contains, true, "bot crawler\na.b dotted\n*star* stars\nGoogle(bot) never\n")
            .unwrap();
        for (asked, expected) in [
            ("Mozilla Googlebot/2", "crawler"),
            ("xA.Bx", "dotted"),
            ("axb", "-"),
            ("a *STAR*", "stars"),
            ("", "-"),
        ] {
            assert_eq!(value(&map, asked), expected, "{asked}");
        }
    }

    #[test]
    fn mistakes_of_all_lines_are_told() {
        let mistakes =
            read(MapKind::Expression, false, "(a b\n^/x$ $1\n^/(y) $2\n^/z $host\n^/q 5$\n^/x$ again\n");
        assert_eq!(
            mistakes.unwrap_err(),
            [
                "1: `(a` is not a regular expression of linear time: unclosed group: expected one such as \"^/old/(.*)$\"",
                "2: `$1` stands for nothing: no expression is matched here: expected `$1` to `$9` for what a group has matched, and `$$` for a `$`",
                "3: `$2` stands for nothing: the expression has 1 groups: expected `$1` to `$9` for what a group has matched, and `$$` for a `$`",
                "4: a map's value cannot have `$host`: expected `$1` to `$9` for what a group has matched, and `$$` for a `$`",
                "5: a `$` names nothing: expected `$1` to `$9` for what a group has matched, and `$$` for a `$`",
                "6: `^/x$` is there twice: keep one: the first is in line 2",
            ]
        );
        let many: String = (0..1001).map(|number| format!("k{number} v\n")).collect();
        for kind in [MapKind::Expression, MapKind::Contains] {
            assert_eq!(
                read(kind, false, &many).unwrap_err(),
                ["1000: it has 1001 lines: expected at most 1000"]
            );
        }
    }

    #[test]
    fn j12_expressions_that_explode_elsewhere_cost_time_in_proportion_to_the_text() {
        let evil = ["^/(a+)+$", "^/(a|aa)+$", "^/(.*a){20}$", "^/((a*)*)*b", "(x+x+)+y"];
        let lines: String = (0..1000).map(|number| format!("{}#{number} v$$\n", evil[number % 5])).collect();
        let map = read(MapKind::Expression, false, &lines).unwrap();
        let text = format!("/{}!", "a".repeat(60_000));
        assert_eq!(value(&map, &text), "-");
        // An expression whose automaton would be too large is refused.
        let large = read(MapKind::Expression, false, "(a{1000}){1000} v\n").unwrap_err();
        assert!(large[0].contains("not a regular expression of linear time"), "{large:?}");
    }
}
