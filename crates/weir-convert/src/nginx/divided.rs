//! Maps that Weir's can't be, such as those whose values have variables: where a field has such a value, or
//! it says whom to ask, there is a route for each line of the map.

use super::conditions::{IfTest, Operator, compared};
use super::content::LocationContent;
use super::conversion::Conversion;
use super::expression::literal;
use super::request_test::RouteTest;
use super::tree::NginxDirective;
use super::variables::{NginxPart, NginxPlace, parts, single_variable};
use crate::DirectiveVerdict;

/// Most lines of a map that divides a location.
const MOST_LINES: usize = 12;
/// Most maps that divide one.
const MOST_MAPS: usize = 2;

/// The requests of a location for each line of a map that it needs divided, in the order in which nginx asks
/// its lines; `None` if it needs none, or one that can't be asked so.
pub fn divided<'c>(
    conversion: &mut Conversion<'c>,
    content: &LocationContent<'c, '_>,
    test: &RouteTest,
) -> Option<Vec<(RouteTest, NginxPlace)>> {
    if content.place.divided >= MOST_MAPS {
        return None;
    }
    let fields = [("proxy_set_header", 1), ("grpc_set_header", 1), ("add_header", 1), ("proxy_pass", 0)];
    let values =
        fields.iter().flat_map(|(name, at)| content.scope.all(name).into_iter().map(|it| it.word(*at)));
    let variables: Vec<String> = values.flat_map(|value| variables(&content.place.constant(value))).collect();
    let found = variables.into_iter().find_map(|variable| {
        let folder = conversion.files.new_folder();
        let table = conversion.maps.table(&variable).filter(|table| can_divide(table))?;
        if conversion.maps.is_possible(&variable, folder) {
            return None;
        }
        Some((branches(conversion, (&variable, table), test, &content.place)?, table))
    });
    let (branches, table) = found?;
    conversion.ledger.exact(table, "a route for each of its lines where its value is used");
    conversion.ledger.judge_below(table.inner(), DirectiveVerdict::Exact, "a route of its own");
    Some(branches)
}

fn variables(text: &str) -> Vec<String> {
    let named = parts(text).into_iter().filter_map(|part| match part {
        NginxPart::Variable(name) => Some(name),
        NginxPart::Text(_) => None,
    });
    named.collect()
}

/// Whether it is a small map of which each line can be asked by itself; values may have variables, but not
/// the groups of expressions.
fn can_divide(table: &NginxDirective) -> bool {
    let lines = table.inner();
    let is_group = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
    let values: Vec<Vec<String>> = lines.iter().map(|line| variables(line.word(0))).collect();
    table.name == "map"
        && lines.len() <= MOST_LINES
        && !lines.iter().any(|line| matches!(line.name.as_str(), "hostnames" | "include"))
        && !values.iter().flatten().any(is_group)
}

fn branches(
    conversion: &mut Conversion<'_>,
    (variable, table): (&str, &NginxDirective),
    test: &RouteTest,
    place: &NginxPlace,
) -> Option<Vec<(RouteTest, NginxPlace)>> {
    let key = single_variable(&place.constant(table.word(0)))?;
    let lines = table.inner().iter().filter(|line| line.name != "volatile" && line.name != "default");
    let (expressions, plain): (Vec<_>, Vec<_>) = lines.partition(|line| line.name.starts_with('~'));
    let with = |value: &str| {
        let mut place = place.clone();
        let value = place.constant(value);
        place.constants.insert(variable.to_owned(), value);
        place.divided += 1;
        place
    };
    let mut branches = Vec::new();
    for line in plain.into_iter().chain(expressions) {
        match asked(conversion, &key, &line.name, place) {
            IfTest::Never => {}
            IfTest::Always => {
                branches.push((test.clone(), with(line.word(0))));
                return Some(branches);
            }
            found if found.doubt().is_none() => branches.push((found.route(test).ok()?, with(line.word(0)))),
            _ => return None,
        }
    }
    let default = table.inner().iter().rfind(|line| line.name == "default");
    branches.push((test.clone(), with(default.map_or("", |line| line.word(0)))));
    Some(branches)
}

/// What a line of a map asks. Texts are compared without regard to case.
fn asked(conversion: &mut Conversion<'_>, key: &str, line: &str, place: &NginxPlace) -> IfTest {
    let line = line.strip_prefix('\\').unwrap_or(line);
    if let Some(expression) = line.strip_prefix('~') {
        let (any_case, expression) = match expression.strip_prefix('*') {
            Some(rest) => (true, rest),
            None => (false, expression),
        };
        return compared(conversion, key, Operator::Matches { any_case }, expression, place);
    }
    let is_free =
        ["http_", "cookie_", "arg_"].iter().any(|front| key.starts_with(front)) && key != "http_host";
    match is_free && !line.is_empty() {
        true => {
            let expression = format!("^{}$", literal(line));
            compared(conversion, key, Operator::Matches { any_case: true }, &expression, place)
        }
        false => compared(conversion, key, Operator::Equals, line, place),
    }
}
