//! `if (…)`: as conditions of routes.

use super::conversion::Conversion;
use super::expression::{Compared, translate};
use super::referers::invalid_referer;
use super::request_test::{RequestTest, RouteTest, exactly};
use super::tree::NginxDirective;
use super::variables::{NginxPlace, single_variable};

/// What an `if` asks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfTest {
    /// It holds for every request that comes here.
    Always,
    /// It holds for none.
    Never,
    /// All of these must hold (`true`), or must not (`false`). With what differs, if anything does.
    All(Vec<(bool, RequestTest)>, Option<IfDoubt>),
    /// Weir has no such condition; why.
    Unknown(String),
}

/// What differs between an `if` and the conditions of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IfDoubt {
    /// In words.
    pub text: String,
    /// Whether it could hold for fewer requests than nginx's.
    pub holds_for_fewer: bool,
    /// Whether it could hold for more.
    pub holds_for_more: bool,
}

impl IfDoubt {
    fn fewer(text: &str) -> IfDoubt {
        IfDoubt { text: text.to_owned(), holds_for_fewer: true, holds_for_more: false }
    }

    fn more(text: &str) -> IfDoubt {
        IfDoubt { text: text.to_owned(), holds_for_fewer: false, holds_for_more: true }
    }

    fn negated(self) -> IfDoubt {
        let IfDoubt { text, holds_for_fewer, holds_for_more } = self;
        IfDoubt { text, holds_for_fewer: holds_for_more, holds_for_more: holds_for_fewer }
    }
}

impl IfTest {
    /// The route for requests for which it holds, and why there is none if there is none.
    pub fn route(&self, of: &RouteTest) -> Result<RouteTest, String> {
        match self {
            IfTest::Always => Ok(of.clone()),
            IfTest::Never => Err("it never holds".to_owned()),
            IfTest::Unknown(why) => Err(why.clone()),
            IfTest::All(tests, _) => {
                let mut route = of.clone();
                for (holds, test) in tests {
                    route = match holds {
                        true => route.and(test).ok_or("a route cannot ask for all of this together")?,
                        false => route.and_not(test),
                    };
                }
                Ok(route)
            }
        }
    }

    /// What differs, if anything does.
    pub fn doubt(&self) -> Option<&IfDoubt> {
        match self {
            IfTest::All(_, doubt) => doubt.as_ref(),
            _ => None,
        }
    }
}

/// An operator of `if`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equals,
    /// `~`, and `~*`, which ignores case.
    Matches {
        /// Whether it is `~*`.
        any_case: bool,
    },
}

/// Reads the condition of an `if`.
pub fn condition(conversion: &mut Conversion<'_>, of: &NginxDirective, place: &NginxPlace) -> IfTest {
    let words = inside(&of.words);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [one] => match single_variable(one) {
            Some(name) => truth(conversion, &name, place),
            None => IfTest::Unknown(format!("`{one}` is no variable")),
        },
        [file, _] if file.trim_start_matches('!').starts_with('-') => {
            IfTest::Unknown("Weir looks at no files (`weir maintenance` switches a site off)".to_owned())
        }
        [name, operator, value] => {
            let Some(name) = single_variable(name) else {
                return IfTest::Unknown(format!("`{name}` is no single variable"));
            };
            let (holds, operator) = match *operator {
                "=" => (true, Operator::Equals),
                "!=" => (false, Operator::Equals),
                "~" => (true, Operator::Matches { any_case: false }),
                "~*" => (true, Operator::Matches { any_case: true }),
                "!~" => (false, Operator::Matches { any_case: false }),
                "!~*" => (false, Operator::Matches { any_case: true }),
                other => return IfTest::Unknown(format!("`{other}` is no operator of `if`")),
            };
            let test = compared(conversion, &name, operator, value, place);
            if holds { test } else { negated(test) }
        }
        _ => IfTest::Unknown("it is no condition of nginx's".to_owned()),
    }
}

/// The words between the parentheses.
fn inside(words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if let Some(first) = words.first_mut()
        && let Some(rest) = first.strip_prefix('(')
    {
        *first = rest.to_owned();
        if first.is_empty() {
            words.remove(0);
        }
    }
    if let Some(last) = words.last_mut()
        && let Some(rest) = last.strip_suffix(')')
    {
        *last = rest.to_owned();
        if last.is_empty() {
            words.pop();
        }
    }
    words
}

fn negated(test: IfTest) -> IfTest {
    match test {
        IfTest::Always => IfTest::Never,
        IfTest::Never => IfTest::Always,
        IfTest::All(tests, doubt) => match tests.as_slice() {
            [(holds, test)] => IfTest::All(vec![(!holds, test.clone())], doubt.map(IfDoubt::negated)),
            _ => IfTest::Unknown("the opposite of several conditions".to_owned()),
        },
        unknown => unknown,
    }
}

fn fixed(holds: bool) -> IfTest {
    if holds { IfTest::Always } else { IfTest::Never }
}

fn all(tests: Vec<(bool, RequestTest)>) -> IfTest {
    IfTest::All(tests, None)
}

/// The table of conditions and the name in it of a variable such as `$http_x`.
fn of_family(name: &str) -> Option<(&'static str, String)> {
    for (prefix, table) in [("http_", "header"), ("cookie_", "cookie"), ("arg_", "query")] {
        if let Some(member) = name.strip_prefix(prefix).filter(|member| !member.is_empty()) {
            let member = if table == "header" { member.replace('_', "-") } else { member.to_owned() };
            return Some((table, member));
        }
    }
    None
}

/// A value that is true to nginx: it is not empty, and not `0`.
const TRUE: &str = "~^(?:[^0]|0.)";

/// A value that is not empty.
const SOME: &str = "~.";

/// `if ($x)`: it has a value, and that is not `0`.
fn truth(conversion: &mut Conversion<'_>, name: &str, place: &NginxPlace) -> IfTest {
    if let Some(value) = place.constants.get(name).filter(|value| !value.contains('$')) {
        return fixed(!value.is_empty() && value != "0");
    }
    if name == "invalid_referer" {
        return invalid_referer(&place.referers).map_or_else(IfTest::Unknown, all);
    }
    let family = of_family(name).or_else(|| Some(("map", conversion.map_of(name)?)));
    match (family, name) {
        (Some((table, member)), _) => all(vec![(true, RequestTest::value(table, member, TRUE))]),
        (None, "https") => fixed(place.is_tls),
        (None, "ssl_client_verify") => IfTest::Unknown("Weir has no `$ssl_client_verify` alone".to_owned()),
        (None, _) => IfTest::Unknown(format!("Weir has no condition on `${name}`")),
    }
}

/// What it asks that a variable is equal to a value, or matches an expression.
pub fn compared(
    conversion: &mut Conversion<'_>,
    name: &str,
    operator: Operator,
    value: &str,
    place: &NginxPlace,
) -> IfTest {
    let value = &place.constant(value);
    if value.contains("${") {
        return IfTest::Unknown("it compares with a variable".to_owned());
    }
    if let Some(own) = place.constants.get(name).filter(|own| !own.contains('$')) {
        return match operator {
            Operator::Equals => fixed(own == value),
            Operator::Matches { .. } => IfTest::Unknown(format!("`${name}` is compared with an expression")),
        };
    }
    match name {
        "invalid_referer" if operator == Operator::Equals && value == "1" => truth(conversion, name, place),
        "host" | "http_host" => host(operator, value),
        "server_name" if operator == Operator::Equals => fixed(place.server_name == *value),
        "scheme" if operator == Operator::Equals => {
            fixed(*value == if place.is_tls { "https" } else { "http" })
        }
        "https" if operator == Operator::Equals => fixed(*value == if place.is_tls { "on" } else { "" }),
        "request_method" => method(operator, value),
        "remote_addr" if operator == Operator::Equals => {
            all(vec![(true, RequestTest { client_ip: vec![value.clone()], ..RequestTest::default() })])
        }
        "uri" | "document_uri" => path(operator, value, false),
        "request_uri" => path(operator, value, true),
        "args" | "query_string" => query(operator, value),
        "ssl_client_verify" if operator == Operator::Equals => certificate(conversion, value, place),
        _ => {
            let family = of_family(name).or_else(|| Some(("map", conversion.map_of(name)?)));
            match family {
                Some((table, member)) => by_family(table, &member, operator, value),
                None => IfTest::Unknown(format!("Weir has no condition on `${name}`")),
            }
        }
    }
}

/// The expression as Weir writes it, with its `~`, and what differs. `Err` if it has no counterpart.
fn expression(
    operator: Operator,
    value: &str,
    compared: Compared,
) -> Result<(String, Option<IfDoubt>), IfTest> {
    let any_case = operator == Operator::Matches { any_case: true };
    match translate(value, any_case, compared) {
        Ok(translated) => {
            let doubt =
                (!translated.is_same).then(|| IfDoubt::more("the expression matches more than nginx's"));
            Ok((format!("~{}", translated.text), doubt))
        }
        Err(why) => Err(IfTest::Unknown(format!("the expression has no counterpart: {why}"))),
    }
}

fn by_family(table: &'static str, member: &str, operator: Operator, value: &str) -> IfTest {
    match operator {
        // Without a value: it is not there.
        Operator::Equals if value.is_empty() => all(vec![(false, RequestTest::value(table, member, SOME))]),
        Operator::Equals => all(vec![(true, RequestTest::value(table, member, exactly(value)))]),
        Operator::Matches { .. } => match expression(operator, value, Compared::Text) {
            Ok((text, doubt)) => IfTest::All(vec![(true, RequestTest::value(table, member, text))], doubt),
            Err(unknown) => unknown,
        },
    }
}

fn host(operator: Operator, value: &str) -> IfTest {
    let of = |host: String| vec![(true, RequestTest { host: vec![host], ..RequestTest::default() })];
    match operator {
        Operator::Equals if value.is_empty() => IfTest::Never,
        Operator::Equals => {
            let name = value.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
            all(of(name.map_or(value, |(name, _)| name).to_ascii_lowercase()))
        }
        Operator::Matches { .. } => match expression(operator, value, Compared::Text) {
            Ok((text, doubt)) => IfTest::All(of(text), doubt),
            Err(unknown) => unknown,
        },
    }
}

fn method(operator: Operator, value: &str) -> IfTest {
    let is_method = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    let methods: Vec<String> = match operator {
        Operator::Equals => vec![value.to_owned()],
        Operator::Matches { .. } => {
            let inner = value.strip_prefix('^').unwrap_or(value);
            let inner = inner.strip_suffix('$').unwrap_or(inner);
            let inner = inner.strip_prefix("(?:").or_else(|| inner.strip_prefix('(')).unwrap_or(inner);
            let inner = inner.strip_suffix(')').unwrap_or(inner);
            inner.split('|').map(str::to_owned).collect()
        }
    };
    match methods.iter().all(|method| is_method(method)) {
        true => all(vec![(true, RequestTest { method: methods, ..RequestTest::default() })]),
        false => IfTest::Unknown(format!("`{value}` is no list of methods")),
    }
}

fn path(operator: Operator, value: &str, with_query: bool) -> IfTest {
    // An expression that is not anchored could be meant for the query.
    let doubt = match (with_query, operator) {
        (false, _) => None,
        (true, Operator::Equals) => Some(IfDoubt::more("the path is compared without its query")),
        (true, Operator::Matches { .. }) => {
            Some(IfDoubt::fewer("the path is compared without its query, in its normal form"))
        }
    };
    match operator {
        Operator::Equals if value.contains('?') => {
            IfTest::Unknown("a path is compared without its query".to_owned())
        }
        Operator::Equals => IfTest::All(vec![(true, RequestTest::path(value))], doubt),
        Operator::Matches { .. } if value.contains('?') && with_query && value.contains("\\?") => {
            IfTest::Unknown("a path is compared without its query".to_owned())
        }
        Operator::Matches { .. } => match expression(operator, value, Compared::Path) {
            Ok((text, inexact)) => IfTest::All(vec![(true, RequestTest::path(text))], doubt.or(inexact)),
            Err(unknown) => unknown,
        },
    }
}

/// Conditions on the whole query: `name=value` in it is a condition on that parameter.
fn query(operator: Operator, value: &str) -> IfTest {
    let simple = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
    };
    let (any_case, is_start) = match operator {
        Operator::Equals => (false, false),
        Operator::Matches { any_case } => (any_case, true),
    };
    let text = ["(?:^|&)", "(^|&)", "(&|^)", "^"]
        .iter()
        .find_map(|front| value.strip_prefix(front))
        .unwrap_or(value);
    let text = text.strip_suffix(".*").unwrap_or(text);
    let Some((name, wanted)) = text
        .split_once('=')
        .filter(|(name, wanted)| simple(name) && (wanted.is_empty() || simple(wanted)) && !any_case)
    else {
        return IfTest::Unknown("Weir compares single parameters, not the whole query".to_owned());
    };
    let wanted = match (wanted, is_start) {
        ("", _) => "*".to_owned(),
        (wanted, true) => format!("{wanted}*"),
        (wanted, false) => wanted.to_owned(),
    };
    let text = "as a condition on this parameter, which is compared decoded";
    let doubt = if is_start { IfDoubt::fewer(text) } else { IfDoubt::more(text) };
    IfTest::All(vec![(true, RequestTest::value("query", name, wanted))], Some(doubt))
}

/// `$ssl_client_verify`: whether the client has shown a certificate, by a map of its subject. One that cannot
/// be verified ends the handshake.
fn certificate(conversion: &mut Conversion<'_>, value: &str, place: &NginxPlace) -> IfTest {
    if !place.has_client_ca {
        return fixed(value == "NONE");
    }
    let map = conversion.certificate_map();
    let test = RequestTest::value("map", map, "SUCCESS");
    match value {
        "SUCCESS" => all(vec![(true, test)]),
        "NONE" => all(vec![(false, test)]),
        _ => IfTest::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoFiles;

    fn test_of(text: &str) -> IfTest {
        let mut numbers = super::super::tree::DirectiveNumbers::default();
        let tree = super::super::tree::parse("", &format!("if ({text}) {{}}"), &mut numbers).unwrap();
        let mut conversion = Conversion::of(&[], &NoFiles);
        let place = NginxPlace { is_tls: true, ..NginxPlace::default() };
        condition(&mut conversion, &tree[0], &place)
    }

    #[test]
    fn conditions_of_nginx_are_conditions_of_routes() {
        let one = |holds, test| IfTest::All(vec![(holds, test)], None);
        let header = |name: &str, value: &str| RequestTest::value("header", name, value);
        let methods = |list: &[&str]| RequestTest {
            method: list.iter().map(|&method| method.to_owned()).collect(),
            ..RequestTest::default()
        };
        for (text, expected) in [
            ("$http_x_test = abc", one(true, header("x-test", "abc"))),
            ("$http_x = \"\"", one(false, header("x", SOME))),
            ("$http_user_agent ~* bot", one(true, header("user-agent", "~(?i)bot"))),
            ("$http_x !~ ^a", one(false, header("x", "~^a"))),
            ("$request_method !~ ^(GET|HEAD)$", one(false, methods(&["GET", "HEAD"]))),
            ("$request_method = POST", one(true, methods(&["POST"]))),
            ("$scheme = http", IfTest::Never),
            ("$scheme != http", IfTest::Always),
            ("$cookie_a", one(true, RequestTest::value("cookie", "a", TRUE))),
        ] {
            assert_eq!(test_of(text), expected, "{text}");
        }
        for text in ["-f /x", "$args ~ select", "$upstream_addr = x", "$http_x = $http_y", "a", "$a < b"] {
            assert!(matches!(test_of(text), IfTest::Unknown(_)), "{text}");
        }
    }
}
