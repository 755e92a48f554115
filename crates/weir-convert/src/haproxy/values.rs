//! Conditions that routes ask by a map of their own, whose key is a variable: the query, a certificate.

use super::asks::{Ask, Family};
use super::criteria::{Criterion, bounds};
use super::expressions::{literal, translated};
use super::maps::Maps;
use super::matching::{Atom, Test};
use super::output::is_token;

/// Most expressions of a map that is made here.
const MOST: usize = 200;

/// What a criterion asks of such a value. `None` where it asks for something else; `Err` says what there is
/// nothing like.
pub fn test(criterion: &Criterion, maps: &mut Maps) -> Option<Result<Test, String>> {
    let fetch = &criterion.sample.fetch;
    let (lowered, plain) = criterion.sample.without_case();
    if !plain.converters.iter().all(|call| call.name == "url_dec" && fetch.name == "query") {
        return None;
    }
    let note = |note: &str| vec![note.to_owned()];
    let (key, notes) = match fetch.name.as_str() {
        "query" if plain.converters.is_empty() => ("$query", Vec::new()),
        "query" => ("$query", note("the query is compared without taking its escapes out")),
        "base" => ("$host$path", note("the host is compared in lower case and without its port")),
        "ssl_fc_protocol" => ("$tls_version", Vec::new()),
        "ssl_c_s_dn" if fetch.argument(0).eq_ignore_ascii_case("cn") => {
            return Some(common_name(criterion, maps));
        }
        "ssl_c_used" | "ssl_fc_has_crt" => return Some(has_certificate(criterion, maps)),
        "ssl_c_verify" => return Some(is_verified(criterion)),
        _ => return None,
    };
    let case = if criterion.ignore_case || lowered { "(?i)" } else { "" };
    // A query has its `?` in Weir, where there is one.
    let front = if key == "$query" { "^\\??" } else { "^" };
    let mut expressions = Vec::new();
    for pattern in &criterion.patterns {
        if super::words::has_variable(pattern) {
            return Some(Err("a variable of the environment does not stand in the file of a map".to_owned()));
        }
        let text = literal(pattern);
        expressions.push(match criterion.method.as_str() {
            "" | "str" => format!("{case}{front}{text}$"),
            "beg" => format!("{case}{front}{text}"),
            "end" => format!("{case}{text}$"),
            "sub" => format!("{case}{text}"),
            "reg" => match translated(pattern) {
                Ok(expression) => match expression.strip_prefix('^') {
                    Some(rest) => format!("{case}{front}{rest}"),
                    None => format!("{case}{expression}"),
                },
                Err(why) => return Some(Err(why)),
            },
            "found" => return None,
            other => return Some(Err(format!("`{}` is not compared by `{other}`", fetch.name))),
        });
    }
    Some(by_map(key, &expressions, notes, maps))
}

/// That a value has a length, of which only a least one can be asked.
pub fn length(criterion: &Criterion) -> Option<Result<Test, String>> {
    let is_length = criterion.method == "len"
        || criterion.sample.converters.last().is_some_and(|call| call.name == "length");
    if !is_length {
        return None;
    }
    let fetch = &criterion.sample.fetch;
    let before = criterion.sample.converters.len() - usize::from(criterion.method != "len");
    let is_alone = criterion.sample.converters[..before].is_empty();
    let least = match criterion.patterns.as_slice() {
        [one] => bounds(one).filter(|(least, most)| *most == u64::MAX && (1..=1000).contains(least)),
        _ => None,
    };
    let Some((least, _)) = least.filter(|_| is_alone) else {
        return Some(Err("of a length it can be asked that it is above a number up to 1000".to_owned()));
    };
    let expression = format!("~^.{{{least},}}");
    let name = fetch.argument(0);
    let (ask, notes) = match fetch.name.as_str() {
        "hdr" | "req.hdr" | "req.fhdr" if is_token(name) && !name.eq_ignore_ascii_case("host") => {
            let note = "several values of a field are one";
            let notes = if fetch.name == "req.fhdr" { Vec::new() } else { vec![note.to_owned()] };
            (Ask::Named(Family::Header, name.to_ascii_lowercase(), expression), notes)
        }
        "cook" | "req.cook" if is_token(name) => {
            (Ask::Named(Family::Cookie, name.to_owned(), expression), Vec::new())
        }
        "url_param" | "urlp" if !name.is_empty() => (
            Ask::Named(Family::Query, name.to_owned(), expression),
            vec!["parameters are measured without their escapes".to_owned()],
        ),
        "path" => (Ask::Path(vec![expression]), vec!["a path is measured in its normal form".to_owned()]),
        other => return Some(Err(format!("the length of `{other}` can't be asked"))),
    };
    Some(Ok(Test { atoms: vec![Atom::Ask(ask)], notes }))
}

fn by_map(key: &str, expressions: &[String], notes: Vec<String>, maps: &mut Maps) -> Result<Test, String> {
    match expressions.len() {
        0 => Ok(Test { notes, ..Test::always(false) }),
        count if count > MOST => Err(format!("{count} patterns are too many for a map of expressions")),
        _ => {
            let map = maps.made(key, "expression", expressions);
            let ask = Ask::Named(Family::Map, map, "yes".to_owned());
            Ok(Test { atoms: vec![Atom::Ask(ask)], notes })
        }
    }
}

/// The common name of a client's certificate, as RFC 4514 writes it among others.
fn common_name(criterion: &Criterion, maps: &mut Maps) -> Result<Test, String> {
    let is_plain = |name: &String| {
        !name.is_empty()
            && !name.starts_with(' ')
            && !name.ends_with(' ')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ' | '@' | ':'))
    };
    if !matches!(criterion.method.as_str(), "" | "str") || !criterion.patterns.iter().all(is_plain) {
        return Err("a common name is compared whole, and has plain letters".to_owned());
    }
    let case = if criterion.ignore_case { "(?i)" } else { "" };
    // A comma behind a backslash is part of another value.
    let expression = |name: &String| format!("{case}(?:^|[^\\\\],)CN={}(?:,|$)", literal(name));
    let expressions: Vec<String> = criterion.patterns.iter().map(expression).collect();
    let notes =
        vec!["the certificate is verified (`client_ca`), as one that is not is never let in".to_owned()];
    by_map("$client_cert_subject", &expressions, notes, maps)
}

/// Whether the client has shown a certificate.
fn has_certificate(criterion: &Criterion, maps: &mut Maps) -> Result<Test, String> {
    let test = |maps: &mut Maps| {
        let notes = vec!["a certificate without a subject counts as none".to_owned()];
        by_map("$client_cert_subject", &[".".to_owned()], notes, maps)
    };
    match criterion.patterns.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["1" | "true" | "eq 1"] => test(maps),
        ["0" | "false" | "eq 0"] => match test(maps)?.atoms.pop() {
            Some(Atom::Ask(ask)) => Ok(Test::of(Atom::Unless(ask))),
            _ => Ok(Test::always(false)),
        },
        _ => Err("whether there is a certificate is yes or no".to_owned()),
    }
}

/// The result of a certificate's verification, which is 0 for every client that has got so far.
fn is_verified(criterion: &Criterion) -> Result<Test, String> {
    let bounds: Option<Vec<(u64, u64)>> = criterion.patterns.iter().map(|pattern| bounds(pattern)).collect();
    let bounds = bounds.filter(|bounds| !bounds.is_empty()).ok_or("its results are not numbers")?;
    let notes =
        vec!["a certificate that is not good ends the handshake, whatever `crt-ignore-err` says".to_owned()];
    Ok(Test { notes, ..Test::always(bounds.iter().any(|(least, _)| *least == 0)) })
}
