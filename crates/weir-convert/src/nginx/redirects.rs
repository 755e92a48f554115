//! Where backends' answers name the backends themselves: `proxy_redirect`, and `proxy_cookie_domain`,
//! `proxy_cookie_path` and `proxy_cookie_flags`.

use weir_config::quoted;

use super::conversion::Conversion;
use super::expression::{Compared, literal, parentheses, translate};
use super::locations::{LocationKind, PlacedLocation, encoded};
use super::request_test::toml_key;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::variables::{NginxPart, NginxPlace, parts};
use crate::DirectiveVerdict;

/// An address that nginx replaces unasked, and what takes its place.
pub type OwnAddress = Option<(String, String)>;

/// The address in a `proxy_pass`, which gives way to the location's path; `None` if nginx has none to
/// replace, as for one with variables.
pub fn own_address(pass: &NginxDirective, location: Option<&PlacedLocation<'_>>) -> OwnAddress {
    let url = pass.word(0);
    let (_, rest) = url.split_once("://")?;
    if pass.name != "proxy_pass" || url.contains('$') || rest.starts_with("unix:") {
        return None;
    }
    if !rest.contains('/') {
        return Some((format!("{url}/"), "/".to_owned()));
    }
    match location.map(|location| &location.kind) {
        Some(LocationKind::Prefix(path) | LocationKind::Exact(path)) => {
            Some((url.to_owned(), encoded(path).replace('$', "$$")))
        }
        _ => None,
    }
}

/// Sets `replace_response_header` and `response_cookie`.
pub fn of_route(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    place: &NginxPlace,
    own: &OwnAddress,
    route: &mut NewRoute,
) {
    let mut rules = Vec::new();
    let written = scope.all("proxy_redirect");
    if let (Some((from, to)), true) = (own, written.is_empty()) {
        plain_address(from, to, &mut rules);
        let note = "`replace_response_header`: a `location` with the address in `proxy_pass` becomes the site's, as by nginx";
        conversion.ledger.unsaid("proxy_redirect", DirectiveVerdict::Exact, note);
    }
    let is_off = |directive: &&NginxDirective| directive.word(0) == "off";
    for directive in written {
        match (directive.word(0), own) {
            _ if is_off(&directive) => conversion.ledger.exact(directive, "`location` passes as it is"),
            ("default", Some((from, to))) => {
                plain_address(from, to, &mut rules);
                conversion.ledger.exact(directive, "`replace_response_header`");
            }
            ("default", None) => conversion.ledger.exact(directive, "no address is known to be replaced"),
            _ => redirect(conversion, directive, place, &mut rules),
        }
    }
    rules.retain(|(name, _)| !is_thrown_away(route, name));
    if !rules.is_empty() {
        let tables: Vec<String> = rules.into_iter().map(|(_, table)| table).collect();
        route.set("replace_response_header", format!("[{}]", tables.join(", ")));
    }
    cookies(conversion, scope, place, route);
}

/// Whether other rules of the route leave nothing of a field that a backend sent.
fn is_thrown_away(route: &NewRoute, name: &str) -> bool {
    let removed = route.get("remove_response_header").is_some_and(|names| names.contains(&quoted(name)));
    let set = route.get("set_response_header").unwrap_or_default();
    removed
        || set.contains(&format!("{{ {} = ", toml_key(name)))
        || set.contains(&format!(", {} = ", toml_key(name)))
}

/// A rule for one field.
fn rule(name: &str, matching: &str, to: &str) -> (String, String) {
    let table = format!("{{ name = {}, match = {}, to = {} }}", quoted(name), quoted(matching), quoted(to));
    (name.to_owned(), table)
}

/// What stands before the address in `refresh`: everything up to its first `=`.
const URL: &str = "(?i:[^=]*url=)";

/// The beginning of an address gives way, in `location` and behind the `url=` of `refresh`.
fn plain_address(from: &str, to: &str, rules: &mut Vec<(String, String)>) {
    let has_signs = from.contains('*') || from.starts_with(['~', '!']);
    rules.push(match has_signs {
        true => rule("location", &format!("~^{}(.*)$", literal(from)), &format!("{to}$1")),
        false => rule("location", &format!("{from}*"), to),
    });
    // What follows must not begin with a slash again: a path would name another site.
    let more = if from.ends_with('/') && to.ends_with('/') { "+" } else { "" };
    let expression = format!("~^({URL}){}{more}(.*)$", literal(from));
    rules.push(rule("refresh", &expression, &format!("$1{to}$2")));
}

/// `proxy_redirect FROM TO`
fn redirect(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    place: &NginxPlace,
    rules: &mut Vec<(String, String)>,
) {
    let from = directive.word(0);
    if let Some((expression, any_case)) = as_expression(from) {
        match by_expression(conversion, (expression, any_case), directive.word(1), place) {
            Ok((matching, to)) => {
                rules.push(rule("location", &matching, &to));
                match behind_url(&matching, &to) {
                    Some((matching, to)) => {
                        rules.push(rule("refresh", &matching, &to));
                        conversion.ledger.exact(directive, "`replace_response_header`");
                    }
                    None => {
                        let note = "`replace_response_header`; a `refresh` passes as it is: its expression can't stand behind the `url=`";
                        conversion.ledger.approximate(directive, note);
                    }
                }
            }
            Err(why) => {
                conversion.ledger.unsupported(directive, format!("{why}: `location` passes as it is"))
            }
        }
        return;
    }
    match plain(conversion, from, directive.word(1), place) {
        Ok((from, to)) if !from.contains('$') => {
            plain_address(&from, &to, rules);
            conversion.ledger.exact(directive, "`replace_response_header`");
        }
        Ok((from, to)) => match of_any_host(&from) {
            Some(expression) => {
                rules.push(rule("location", &format!("~^{expression}(.*)$"), &format!("{to}$1")));
                let of_refresh = format!("~^({URL}){expression}(.*)$");
                rules.push(rule("refresh", &of_refresh, &format!("$1{to}$2")));
                let note = "`replace_response_header`, for every host: what is compared has no variables";
                conversion.ledger.approximate(directive, note);
            }
            None => {
                let note = "what is compared has no variables: `location` passes as it is";
                conversion.ledger.unsupported(directive, note);
            }
        },
        Err(why) => conversion.ledger.unsupported(directive, format!("{why}: `location` passes as it is")),
    }
}

/// The rule of an expression for the address behind the `url=` of `refresh`, whose groups follow that of what
/// stands before it; `None` if it can't stand there.
fn behind_url(matching: &str, to: &str) -> Option<(String, String)> {
    let expression = matching.strip_prefix('~')?;
    let (case, expression) = match expression.strip_prefix("(?i)") {
        Some(rest) => ("(?i:", rest),
        None => ("(?:", expression),
    };
    // The first match in the address is the one that counts.
    let (gap, inner) = match expression.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => (".*?", expression),
    };
    let (has_choice, has_anchor) = outside_of_classes(inner);
    if has_anchor || (has_choice && gap.is_empty()) || to.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let inner = one_slash(inner, to);
    let mut moved = "$1".to_owned();
    let mut left = to.chars();
    while let Some(c) = left.next() {
        moved.push(c);
        if c != '$' {
            continue;
        }
        let Some(next) = left.next() else { break };
        match next.to_digit(10) {
            Some(number) if number < 9 => moved.push_str(&(number + 1).to_string()),
            Some(_) => return None,
            None => moved.push(next),
        }
    }
    Some((format!("~^({URL}){gap}{case}{inner})"), moved))
}

/// The expression with slashes taken off the group that a path begins with in what takes the place: of
/// several slashes one remains, so that the path names no other site.
fn one_slash(expression: &str, to: &str) -> String {
    let (rest, begins) = match to.strip_prefix("/$") {
        Some(rest) => (rest, "("),
        None => (to.strip_prefix('$').unwrap_or_default(), "(/"),
    };
    let Some(number) = rest.chars().next().and_then(|c| c.to_digit(10)) else { return expression.to_owned() };
    let groups = parentheses(expression).filter(|(at, c)| *c == '(' && !expression[*at..].starts_with("(?"));
    let Some((at, _)) = groups.zip(1..).find(|(_, count)| *count == number).map(|(group, _)| group) else {
        return expression.to_owned();
    };
    if expression[at..].starts_with(begins) {
        return format!("{}/*{}", &expression[..at], &expression[at..]);
    }
    expression.to_owned()
}

/// Whether an expression has a choice that no group encloses, and whether it asks anywhere for a beginning.
fn outside_of_classes(expression: &str) -> (bool, bool) {
    let (mut has_choice, mut has_anchor) = (false, false);
    let (mut depth, mut in_class) = (0_usize, false);
    let mut left = expression.chars();
    while let Some(c) = left.next() {
        match c {
            '\\' => {
                let escaped = left.next();
                has_anchor |= !in_class && matches!(escaped, Some('A' | 'b' | 'B'));
            }
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' => has_choice |= depth == 0,
            '^' => has_anchor = true,
            _ => {}
        }
    }
    (has_choice, has_anchor)
}

/// An address whose only variable is the client's host.
fn of_any_host(from: &str) -> Option<String> {
    let (before, after) = from.split_once("$host")?;
    let is_host = !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let is_plain = is_host && !before.contains('$') && !after.contains('$');
    is_plain.then(|| format!("{}[^/:]+{}", literal(before), literal(after)))
}

/// The expression of a `~` or `~*`, and whether it ignores case.
fn as_expression(text: &str) -> Option<(&str, bool)> {
    let rest = text.strip_prefix('~')?;
    Some(rest.strip_prefix('*').map_or((rest, false), |rest| (rest, true)))
}

/// `match` and `to` of an expression. `Err` says what there is nothing like.
fn by_expression(
    conversion: &mut Conversion<'_>,
    (expression, any_case): (&str, bool),
    to: &str,
    place: &NginxPlace,
) -> Result<(String, String), String> {
    let translated = translate(expression, any_case, Compared::Text)?;
    if !translated.is_same {
        return Err("its expression takes more than linear time".to_owned());
    }
    let groups = translated.groups;
    let place = NginxPlace { group_count: groups.len(), groups, whole_path: None, ..place.clone() };
    let to = conversion.template(to, &place).map_err(|bad| format!("Weir has no `${bad}` there"))?;
    Ok((format!("~{}", translated.text), to))
}

/// A text that is compared and what takes its place, neither with groups. `Err` says what there is nothing
/// like.
fn plain(
    conversion: &mut Conversion<'_>,
    from: &str,
    to: &str,
    place: &NginxPlace,
) -> Result<(String, String), String> {
    let is_group = |part: &NginxPart| match part {
        NginxPart::Variable(name) => name.parse::<u8>().is_ok() || place.groups.contains(name),
        NginxPart::Text(_) => false,
    };
    if [from, to].into_iter().any(|text| parts(text).iter().any(is_group)) {
        return Err("`$1` is what its own `match` has found, and not the location's expression".to_owned());
    }
    let mut said =
        |text: &str| conversion.template(text, place).map_err(|bad| format!("Weir has no `${bad}` there"));
    Ok((said(from)?, said(to)?))
}

/// Sets `response_cookie`: nginx changes each attribute by itself, and Weir has one rule for a cookie.
fn cookies(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let thrown = is_thrown_away(route, "set-cookie");
    let domain = attribute(conversion, &scope.all("proxy_cookie_domain"), place);
    let path = attribute(conversion, &scope.all("proxy_cookie_path"), place);
    let of_all: Vec<String> = [("domain", domain), ("path", path)]
        .into_iter()
        .filter(|(_, rules)| !rules.is_empty())
        .map(|(key, rules)| format!("{key} = [{}]", rules.join(", ")))
        .collect();
    let mut tables = Vec::new();
    let mut is_for_all = false;
    for directive in scope.all("proxy_cookie_flags") {
        if directive.word(0) == "off" {
            conversion.ledger.exact(directive, "flags pass as they are");
            continue;
        }
        match flags(directive, place) {
            Ok((name, flags)) => {
                is_for_all |= name.is_none();
                let name = name.map(|name| format!("name = {}", quoted(&name)));
                let keys: Vec<String> = name.into_iter().chain(of_all.clone()).chain(flags).collect();
                tables.push(format!("{{ {} }}", keys.join(", ")));
                conversion.ledger.exact(directive, "`response_cookie`");
            }
            Err(why) => {
                conversion.ledger.unsupported(directive, format!("{why}: flags pass as they are"));
            }
        }
    }
    if !of_all.is_empty() && !is_for_all {
        tables.push(format!("{{ {} }}", of_all.join(", ")));
    }
    if !tables.is_empty() && !thrown {
        route.set("response_cookie", format!("[{}]", tables.join(", ")));
    }
}

/// The rules of `proxy_cookie_domain` or `proxy_cookie_path`.
fn attribute(
    conversion: &mut Conversion<'_>,
    directives: &[&NginxDirective],
    place: &NginxPlace,
) -> Vec<String> {
    let mut rules = Vec::new();
    for directive in directives {
        let from = directive.word(0);
        if from == "off" {
            conversion.ledger.exact(directive, "the attribute passes as it is");
            continue;
        }
        let is_domain = directive.name == "proxy_cookie_domain";
        let read = match as_expression(from) {
            Some((expression, any_case)) => {
                by_expression(conversion, (expression, any_case || is_domain), directive.word(1), place)
            }
            None => plain(conversion, from, directive.word(1), place).and_then(|(from, to)| {
                let bare = if is_domain { from.strip_prefix('.').unwrap_or(&from) } else { &from };
                match from.contains(['$', '*']) || bare.starts_with(['~', '!']) {
                    true => Err("what is compared has no variables".to_owned()),
                    false => Ok((if is_domain { bare.to_owned() } else { format!("{bare}*") }, to)),
                }
            }),
        };
        match read {
            Ok((_, to)) if to.contains(';') => {
                conversion.ledger.unsupported(directive, "a `;` ends an attribute: it passes as it is");
            }
            Ok((matching, to)) => {
                rules.push(format!("{{ match = {}, to = {} }}", quoted(&matching), quoted(&to)));
                match is_domain && matching.starts_with("~") && matching.contains("\\.") {
                    true => conversion.ledger.approximate(
                        directive,
                        "`response_cookie`: a domain is compared without the dot that may stand in front",
                    ),
                    false => conversion.ledger.exact(directive, "`response_cookie`"),
                }
            }
            Err(why) => {
                conversion.ledger.unsupported(directive, format!("{why}: the attribute passes as it is"))
            }
        }
    }
    rules
}

/// The pattern of the names of cookies (`None` for all), and the keys of a rule. `Err` says what there is
/// nothing like.
fn flags(directive: &NginxDirective, place: &NginxPlace) -> Result<(Option<String>, Vec<String>), String> {
    let name = match (directive.word(0), as_expression(directive.word(0))) {
        (_, Some(("", _))) => None,
        (_, Some((expression, _))) => {
            let translated = translate(expression, true, Compared::Text)?;
            if !translated.is_same {
                return Err("its expression takes more than linear time".to_owned());
            }
            Some(format!("~{}", translated.text))
        }
        (name, None) if name.contains('$') => return Err("names of cookies have no variables".to_owned()),
        (name, None) => Some(format!("~(?i)^{}$", literal(name))),
    };
    let mut keys: Vec<String> = Vec::new();
    for word in directive.words.iter().skip(1) {
        let key = match place.constant(word).to_ascii_lowercase().as_str() {
            "secure" => "secure = true",
            "nosecure" => "secure = false",
            "httponly" => "http_only = true",
            "nohttponly" => "http_only = false",
            "samesite=strict" => "same_site = \"strict\"",
            "samesite=lax" => "same_site = \"lax\"",
            "samesite=none" => "same_site = \"none\"",
            "nosamesite" => "same_site = \"absent\"",
            other => return Err(format!("Weir has no flag `{other}`")),
        };
        let name = key.split(' ').next().unwrap_or_default();
        keys.retain(|other| !other.starts_with(name));
        keys.push(key.to_owned());
    }
    Ok((name, keys))
}
