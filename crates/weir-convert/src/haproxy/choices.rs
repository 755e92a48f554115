//! `use_backend` with a name of which a value of the request is a part: a route for each backend of the file
//! that has such a name.
//!
//! Where no backend has the name that comes out, HAProxy asks no further `use_backend` and takes the default.

use std::net::IpAddr;

use super::acls::When;
use super::asks::{Ask, Family};
use super::criteria::Criterion;
use super::expressions::literal;
use super::maps::{Maps, kind_of};
use super::matching::{self, Atom, Test};
use super::output::is_token;
use super::samples::{Call, Sample, closing};

/// The backends that a value names.
#[derive(Debug, Default)]
pub struct NamedBackends {
    /// Each with when it is named; one may stand there twice.
    pub all: Vec<(String, When)>,
    /// What differs.
    pub notes: Vec<String>,
}

/// What a name looks up in a map, if it is that and nothing else.
pub fn lookup(name: &str) -> Option<Sample> {
    let (front, sample, behind) = split(name).ok()?;
    (front.is_empty() && behind.is_empty() && sample.converters.iter().any(is_map)).then_some(sample)
}

/// Whether a backend may be meant by a name with a value in it.
pub fn may_name(name: &str, backend: &str) -> bool {
    split(name).is_ok_and(|(front, _, behind)| value_of(backend, front, behind).is_some())
}

/// Those of the backends that the name may be of. `Err` says what there is nothing like.
pub fn named(
    name: &str,
    backends: &[String],
    maps: &mut Maps,
    is_tcp: bool,
) -> Result<NamedBackends, String> {
    let (front, sample, behind) = split(name)?;
    let values: Vec<(&String, &str)> = backends
        .iter()
        .filter_map(|backend| value_of(backend, front, behind).map(|value| (backend, value)))
        .collect();
    let texts: Vec<String> = values.iter().map(|(_, value)| (*value).to_owned()).collect();
    let mut named = NamedBackends::default();
    for (backend, value) in values {
        for test in conditions_of(&sample, value, &texts, maps, is_tcp)? {
            for note in &test.notes {
                if !named.notes.contains(note) {
                    named.notes.push(note.clone());
                }
            }
            named.all.push((backend.clone(), When::of(test)));
        }
    }
    Ok(named)
}

/// The text before a value, the value, and the text behind it.
fn split(name: &str) -> Result<(&str, Sample, &str), String> {
    let one = "the name of a backend is made of one value, `%[…]`, and of text";
    let (front, rest) = name.split_once("%[").ok_or(one)?;
    let end = closing(rest).ok_or_else(|| format!("`%[{rest}` lacks its `]`"))?;
    let (inner, behind) = (&rest[..end], &rest[end + 1..]);
    if front.contains('%') || behind.contains('%') {
        return Err(one.to_owned());
    }
    Ok((front, Sample::parse(inner)?, behind))
}

/// What a value must be for this backend.
fn value_of<'b>(backend: &'b str, front: &str, behind: &str) -> Option<&'b str> {
    backend.strip_prefix(front)?.strip_suffix(behind)
}

fn is_map(call: &Call) -> bool {
    kind_of(&call.name).is_some()
}

/// What routes ask to know that a value is this text; several where one can't ask it, none where it never is.
/// `texts` are those of all backends.
fn conditions_of(
    sample: &Sample,
    text: &str,
    texts: &[String],
    maps: &mut Maps,
    is_tcp: bool,
) -> Result<Vec<Test>, String> {
    if sample.converters.iter().any(|call| call.name == "upper") {
        return Err("there is no converter `upper`".to_owned());
    }
    let (any_case, plain) = sample.without_case();
    if any_case && text.contains(|c: char| c.is_ascii_uppercase()) {
        return Ok(Vec::new());
    }
    let case = if any_case { "(?i)" } else { "" };
    let name = plain.fetch.name.as_str();
    let field = plain.fetch.argument(0).to_ascii_lowercase();
    let is_field = matches!(name, "hdr" | "req.hdr" | "req.fhdr");
    let is_alone = plain.converters.is_empty();
    if is_tcp || sample.converters.iter().any(is_map) {
        return compared(sample, text, maps, is_tcp);
    }
    if name == "path" && first_part(&plain).is_some_and(|(separator, before)| separator == "/" && before == 0)
    {
        return Ok(vec![segment(text, case)]);
    }
    if is_field && field == "host" {
        if let Some((".", before)) = first_part(&plain) {
            let host = Sample { fetch: plain.fetch.clone(), converters: plain.converters[..before].to_vec() };
            let without_port = host.is_host().ok_or("a host has no such converters")?;
            return Ok(label(text, (any_case, without_port)).into_iter().collect());
        }
        return if text.is_empty() { Ok(Vec::new()) } else { compared(sample, text, maps, is_tcp) };
    }
    if is_field && is_alone && is_token(&field) && matches!(plain.fetch.argument(1), "" | "-1") {
        return Ok(last_of_field(&field, text, case, name == "req.fhdr"));
    }
    if name == "ssl_fc_sni" && is_alone {
        let is_lower = |name: &&String| !name.is_empty() && !name.contains(|c: char| c.is_ascii_uppercase());
        let names: Vec<String> = texts.iter().filter(is_lower).cloned().collect();
        if !names.iter().any(|name| name == text) {
            return Ok(Vec::new());
        }
        let ask = Ask::Named(Family::Map, maps.each("$server_name", &names), text.to_owned());
        return Ok(vec![Test::of(Atom::AskByTls(ask))]);
    }
    compared(sample, text, maps, is_tcp)
}

/// The separator of which a sample ends with the first part, and how many converters stand before that.
fn first_part(sample: &Sample) -> Option<(&str, usize)> {
    let (last, before) = sample.converters.split_last()?;
    // A path begins with a slash, so that its first field is empty.
    let is_first = match (last.name.as_str(), last.argument(1)) {
        ("field", "/") => last.argument(0) == "2",
        ("field" | "word", _) => last.argument(0) == "1",
        _ => false,
    };
    (is_first && last.arguments.len() == 2).then(|| (last.argument(1), before.len()))
}

/// The first segment of a path.
fn segment(text: &str, case: &str) -> Test {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let paths = match text {
        "" => vec!["/".to_owned()],
        text if case.is_empty() && text.chars().all(is_plain) => {
            vec![format!("/{text}"), format!("/{text}/*")]
        }
        text => vec![format!("~{case}^/{}(?:/|$)", literal(text))],
    };
    Test::of(Atom::Ask(Ask::Path(paths)))
}

/// The first label of a host; `None` where it never is this.
fn label(text: &str, (any_case, without_port): (bool, bool)) -> Option<Test> {
    if text.is_empty() || text.contains('.') || (without_port && text.contains(':')) {
        return None;
    }
    let mut notes = Vec::new();
    if !any_case {
        notes.push("hosts are compared without regard to case".to_owned());
    }
    if !without_port {
        notes.push("a host without a dot is compared without its port".to_owned());
    }
    let host = format!("~^{}(?:\\.|$)", literal(&text.to_ascii_lowercase()));
    Some(Test { atoms: vec![Atom::Ask(Ask::Host(vec![host]))], notes })
}

/// The last value of a field, of which commas divide several, or `whole` of it.
fn last_of_field(field: &str, text: &str, case: &str, whole: bool) -> Vec<Test> {
    let ask = |value: String| Ask::Named(Family::Header, field.to_owned(), value);
    if text.is_empty() {
        let end = if whole { "~^$" } else { "~(?:^|,)[ \\t]*$" };
        let absent = Test::of(Atom::Unless(ask("*".to_owned())));
        return vec![absent, Test::of(Atom::Ask(ask(end.to_owned())))];
    }
    let text = literal(text);
    if whole {
        let note = "of a field that is there twice, HAProxy takes the last";
        let atoms = vec![Atom::Ask(ask(format!("~{case}^{text}$")))];
        return vec![Test { atoms, notes: vec![note.to_owned()] }];
    }
    vec![Test::of(Atom::Ask(ask(format!("~{case}(?:^|,)[ \\t]*{text}[ \\t]*$"))))]
}

/// What an ACL would ask that compares the whole value.
fn compared(sample: &Sample, text: &str, maps: &mut Maps, is_tcp: bool) -> Result<Vec<Test>, String> {
    let (_, plain) = sample.without_case();
    let name = plain.fetch.name.as_str();
    let has_map = plain.converters.iter().any(is_map);
    let is_found = match name {
        _ if has_map => true,
        "hdr" | "req.hdr" | "req.fhdr" if plain.is_host().is_some() => true,
        "cook" | "req.cook" | "url_param" | "urlp" => true,
        "req.ssl_sni" if is_tcp => {
            let is_plain =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
            text.chars().all(is_plain)
        }
        "dst_port" if plain.converters.is_empty() => text.parse::<u16>().is_ok(),
        "src" if plain.converters.is_empty() => text.parse::<IpAddr>().is_ok(),
        _ => return Err(format!("no route can ask what `{name}` is, as a part of a backend's name")),
    };
    if !is_found {
        return Ok(Vec::new());
    }
    let (method, patterns) = match text {
        "" => ("found", Vec::new()),
        text => ("str", vec![text.to_owned()]),
    };
    let criterion = Criterion {
        sample: sample.clone(),
        method: if matches!(name, "dst_port" | "src") { String::new() } else { method.to_owned() },
        ignore_case: false,
        patterns,
        files: Vec::new(),
        of_request: false,
    };
    let mut test = matching::test(&criterion, maps, is_tcp)?;
    if text.is_empty() {
        // The backend whose name is the text alone is for those who have no value, or an empty one.
        let Some(Atom::Ask(ask)) = test.atoms.pop() else { return Ok(Vec::new()) };
        let mut tests = vec![Test { atoms: vec![Atom::Unless(ask.clone())], notes: test.notes }];
        if let Ask::Named(family, name, _) = ask {
            tests.push(Test::of(Atom::Ask(Ask::Named(family, name, "~^$".to_owned()))));
        }
        return Ok(tests);
    }
    let can_be_asked =
        |atom: &Atom| matches!(atom, Atom::Ask(_) | Atom::Unless(_) | Atom::Port(..) | Atom::Always(_));
    match test.atoms.iter().all(can_be_asked) {
        true => Ok(vec![test]),
        false => Err(format!("no route can ask what `{name}` is, as a part of a backend's name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, backends: &[&str]) -> Result<Vec<String>, String> {
        let backends: Vec<String> = backends.iter().map(|name| (*name).to_owned()).collect();
        let named = named(name, &backends, &mut Maps::default(), false)?;
        Ok(named.all.into_iter().map(|(backend, when)| format!("{backend}: {when:?}")).collect())
    }

    #[test]
    fn only_backends_whose_names_have_the_text_are_meant() {
        let all = names("app_%[req.cook(tenant)]-v2", &["app_a-v2", "app_-v2", "app_a", "b-v2", "app-v2"]);
        let all = all.expect("values that routes ask for");
        assert!(all.len() == 3 && all[0].starts_with("app_a-v2: "), "{all:?}");
        assert!(all[1].starts_with("app_-v2: ") && all[1].contains("Unless"), "{all:?}");
        assert!(all[2].starts_with("app_-v2: ") && all[2].contains("~^$"), "{all:?}");
        assert_eq!(names("%[req.hdr(x)]", &[]), Ok(Vec::new()));
        assert_eq!(names("%[req.hdr(x),lower]", &["Big"]), Ok(Vec::new()));
    }

    #[test]
    fn what_no_route_asks_for_names_none() {
        for name in ["%[rand(9)]", "a%[src]%[dst_port]", "%ci", "%[path", "%[req.hdr(x),upper]", "%[url]"] {
            names(name, &["a1"]).expect_err(name);
        }
    }

    #[test]
    fn parts_of_paths_and_hosts_name_backends() {
        for (name, backend, asked) in [
            ("%[path,field(2,/)]", "app", r#"Path(["/app", "/app/*"])"#),
            ("%[path,word(1,'/'),lower]", "app", r#"Path(["~(?i)^/app(?:/|$)"])"#),
            ("%[req.hdr(host),lower,field(1,.)]", "app", r#"Host(["~^app(?:\\.|$)"])"#),
            ("be_%[req.hdr(x-to)]", "be_a", r#""~(?:^|,)[ \\t]*a[ \\t]*$""#),
            ("be_%[req.fhdr(x-to),lower]", "be_a", r#""~(?i)^a$""#),
            ("%[req.hdr(host),lower]", "a.example", r#"Host(["a.example"])"#),
        ] {
            let all = names(name, &[backend]).expect(name);
            assert!(all.len() == 1 && all[0].contains(asked), "{name}: {all:?}");
        }
    }
}
