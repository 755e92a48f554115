//! What an ACL tests, as something that a route can ask, or that is known beforehand.

use super::asks::{Ask, Family, merged};
use super::criteria::{Criterion, bounds};
use super::maps::{Maps, kind_of};
use super::networks::network;
use super::output::{is_token, said};
use super::samples::Sample;
use super::texts::{self, Texts};
use super::values;

/// One alternative of an ACL.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// A route can ask it.
    Ask(Ask),
    /// A route can ask that it is not so.
    Unless(Ask),
    /// A route of a listener with TLS can ask it; for all others it does not hold.
    AskByTls(Ask),
    /// It always holds, or never.
    Always(bool),
    /// The client has come by TLS, which is known of each listener.
    Tls,
    /// The port that the client came to.
    Port(u64, u64),
    /// What only certain rules know what to do with.
    Special(Special),
    /// Nothing can ask it, for this reason.
    Unasked(String),
}

/// Conditions that become something else than a condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Special {
    /// The client has shown a name and a password of this list, and is in one of the groups if there are any.
    Auth(String, Vec<String>),
    /// A counter of a stick table is above this.
    Above(Counter, u64),
    /// The body of a request is larger than this, in bytes.
    Larger(u64),
    /// No server of this backend is up.
    NoServer(String),
    /// A response has one of these statuses, or of these classes of errors, as they stand in the config.
    Status(Vec<String>),
    /// By chance.
    Share(f64),
}

impl Special {
    /// Whether it is how much somebody does or sends, so that a rule which refuses is a limit.
    pub const fn is_limit(&self) -> bool {
        matches!(self, Special::Above(..) | Special::Larger(_) | Special::NoServer(_))
    }
}

/// What a stick table counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Such as `http_req_rate`.
    pub what: String,
    /// Which `track-scN` has the key; none where the fetch is by the source address itself.
    pub tracked: Option<String>,
    /// The table that it names itself.
    pub table: Option<String>,
}

/// An ACL, as far as it was understood: one of the alternatives must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Test {
    /// The alternatives.
    pub atoms: Vec<Atom>,
    /// What differs.
    pub notes: Vec<String>,
}

impl Test {
    /// One that always holds, or never.
    pub fn always(holds: bool) -> Test {
        Test { atoms: vec![Atom::Always(holds)], notes: Vec::new() }
    }

    /// One with a single alternative.
    pub fn of(atom: Atom) -> Test {
        Test { atoms: vec![atom], notes: Vec::new() }
    }

    fn special(special: Special) -> Test {
        Test::of(Atom::Special(special))
    }

    /// Alternatives that a route can ask.
    fn asks(asks: Vec<Ask>, notes: Vec<String>) -> Test {
        let atoms: Vec<Atom> = merged(asks).into_iter().map(Atom::Ask).collect();
        if atoms.is_empty() { Test { notes, ..Test::always(false) } } else { Test { atoms, notes } }
    }
}

/// What a criterion asks. `Err` says what there is nothing like.
pub fn test(criterion: &Criterion, maps: &mut Maps, is_tcp: bool) -> Result<Test, String> {
    let sample = &criterion.sample;
    let name = sample.fetch.name.as_str();
    if let Some(at) = sample.converters.iter().position(|call| kind_of(&call.name).is_some()) {
        return of_map(criterion, at, maps);
    }
    if let Some(test) = known_beforehand(criterion) {
        return test;
    }
    if let Some(test) = counted(criterion) {
        return test;
    }
    if matches!(name, "req.ssl_sni" | "ssl_fc_sni") {
        if let Some(converter) = sample.without_case().1.converters.first() {
            return Err(format!("a condition has no converter `{}`", converter.name));
        }
        return if is_tcp { server_name(criterion) } else { server_name_of_http(criterion, maps) };
    }
    if name == "src" {
        return addresses(criterion);
    }
    if is_tcp {
        return Err(format!("routes of tcp ask for server names (`sni`) alone, not for `{name}`"));
    }
    if criterion.method == "cnt"
        && ["host", "content-length"].contains(&sample.fetch.argument(0).to_ascii_lowercase().as_str())
        && criterion.patterns.first().and_then(|pattern| bounds(pattern)) == Some((2, u64::MAX))
    {
        let notes = vec!["Weir answers 400 by itself where the field is there twice".to_owned()];
        return Ok(Test { notes, ..Test::always(false) });
    }
    if let Some(test) = values::length(criterion).or_else(|| values::test(criterion, maps)) {
        return test;
    }
    if let Some(without_port) = sample.is_host() {
        if criterion.method == "cnt" && criterion.patterns.first().and_then(|one| bounds(one)) == Some((0, 0))
        {
            let notes = vec!["Weir answers 400 by itself where there is none".to_owned()];
            return Ok(Test { notes, ..Test::always(false) });
        }
        return texts::host(criterion, without_port).map(|(asks, notes)| Test::asks(asks, notes));
    }
    let (lowered, plain) = sample.without_case();
    let texts = Texts::of(criterion, lowered)?;
    if let Some(converter) = plain.converters.iter().find(|call| call.name != "url_dec") {
        return Err(format!("a condition has no converter `{}`", converter.name));
    }
    let argument = sample.fetch.argument(0);
    match name {
        "path" => texts.path().map(|asks| of_paths(asks, Vec::new())),
        "url" | "pathq" | "capture.req.uri" => {
            let about = format!("`{name}` is compared without its query");
            if criterion.patterns.iter().any(|pattern| pattern.contains('?')) {
                return Err("a path is compared without its query".to_owned());
            }
            let notes = if texts.is_beginning() { Vec::new() } else { vec![about] };
            texts.path().map(|asks| of_paths(asks, notes))
        }
        "method" | "capture.req.method" => {
            methods(&criterion.patterns).map(|methods| Test::asks(vec![Ask::Method(methods)], Vec::new()))
        }
        "hdr" | "req.hdr" | "req.fhdr" if !is_token(argument) => Err("it names no header field".to_owned()),
        "cook" | "req.cook" if !is_token(argument) => Err("it names no cookie".to_owned()),
        "hdr" | "req.hdr" | "req.fhdr" => header(criterion, &texts, name != "req.fhdr"),
        "cook" | "req.cook" => named(&texts, Family::Cookie, argument, Vec::new()),
        "url_param" | "urlp" => {
            let notes = vec!["parameters are compared without their escapes".to_owned()];
            named(&texts, Family::Query, argument, notes)
        }
        "req.cook_cnt" | "req.hdr_cnt" => Err(format!("`{name}` is not counted")),
        _ => Err(format!("no route can ask for `{name}`")),
    }
}

/// Paths; where nothing can match, never.
fn of_paths(asks: Vec<Ask>, notes: Vec<String>) -> Test {
    Test::asks(asks, notes)
}

/// Methods as Weir has them, which takes what is nearly one that HTTP knows for a slip.
fn methods(patterns: &[String]) -> Result<Vec<String>, String> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let mut methods: Vec<String> = Vec::new();
    for method in patterns.iter().map(|pattern| pattern.to_ascii_uppercase()) {
        let near = |known: &str| {
            let same = known.bytes().zip(method.bytes()).filter(|(a, b)| a == b).count();
            known != method && same + 2 >= known.len().max(method.len())
        };
        if let Some(known) = KNOWN.iter().find(|known| near(known) && !KNOWN.contains(&method.as_str())) {
            return Err(format!("`{method}` is nearly `{known}`, and no method that Weir takes"));
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(format!("`{method}` is no method"));
        }
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    Ok(methods)
}

fn header(criterion: &Criterion, texts: &Texts, by_comma: bool) -> Result<Test, String> {
    let name = criterion.sample.fetch.argument(0).to_ascii_lowercase();
    if criterion.method == "cnt" {
        let any = Ask::Named(Family::Header, name, "*".to_owned());
        return match criterion.patterns.first().and_then(|pattern| bounds(pattern)) {
            Some((0, 0)) => Ok(Test::of(Atom::Unless(any))),
            Some((1, u64::MAX)) => Ok(Test::of(Atom::Ask(any))),
            Some((1, 1)) => {
                let note = "it is not asked whether the field is there once or more often";
                Ok(Test { atoms: vec![Atom::Ask(any)], notes: vec![note.to_owned()] })
            }
            _ => Err("fields are not counted".to_owned()),
        };
    }
    match texts.header(by_comma)? {
        Some(value) => Ok(Test::of(Atom::Ask(Ask::Named(Family::Header, name, value)))),
        None => Ok(Test::always(false)),
    }
}

fn named(texts: &Texts, family: Family, name: &str, notes: Vec<String>) -> Result<Test, String> {
    if name.is_empty() {
        return Err(format!(
            "it does not name which {}",
            if family == Family::Cookie { "cookie" } else { "parameter" }
        ));
    }
    Ok(match texts.value()? {
        Some(value) => Test { atoms: vec![Atom::Ask(Ask::Named(family, name.to_owned(), value))], notes },
        None => Test::always(false),
    })
}

/// A criterion with a `map` converter.
fn of_map(criterion: &Criterion, at: usize, maps: &mut Maps) -> Result<Test, String> {
    let sample = &criterion.sample;
    let before = Sample { fetch: sample.fetch.clone(), converters: sample.converters[..at].to_vec() };
    let after = Sample { fetch: sample.fetch.clone(), converters: sample.converters[at + 1..].to_vec() };
    let (lowered, rest) = after.without_case();
    if let Some(converter) = rest.converters.first() {
        return Err(format!("nothing is done to what a map says (`{}`)", converter.name));
    }
    let (name, notes) = maps.named(&before, &sample.converters[at])?;
    let texts = Texts::of(criterion, lowered)?;
    named(&texts, Family::Map, &name, notes)
}

/// What is known before a request comes, or of each listener.
fn known_beforehand(criterion: &Criterion) -> Option<Result<Test, String>> {
    let fetch = &criterion.sample.fetch;
    let number = || criterion.patterns.first().and_then(|pattern| bounds(pattern));
    let has_length = fetch.argument(0).eq_ignore_ascii_case("content-length");
    let is_size = matches!(fetch.name.as_str(), "req.body_size" | "req.body_len")
        || (criterion.method == "val" && has_length && matches!(fetch.name.as_str(), "hdr" | "req.hdr"));
    if let (true, Some((least, u64::MAX)), true) = (is_size, number(), criterion.patterns.len() == 1) {
        return Some(Ok(Test::special(Special::Larger(least.saturating_sub(1)))));
    }
    Some(Ok(match fetch.name.as_str() {
        "always_true" | "req.proto_http" => Test::always(true),
        "always_false" => Test::always(false),
        "req.ssl_hello_type" if number() == Some((1, 1)) => {
            let note = "what is not TLS goes to the listener's own pool";
            Test { notes: vec![note.to_owned()], ..Test::always(true) }
        }
        "ssl_fc" => match criterion.patterns.first().map(String::as_str) {
            None | Some("1" | "true" | "on" | "yes") => Test::of(Atom::Tls),
            _ => return Some(Err("`ssl_fc` is compared with nothing but 1".to_owned())),
        },
        "dst_port" => {
            let ports: Option<Vec<Atom>> = criterion
                .patterns
                .iter()
                .map(|pattern| bounds(pattern).map(|(least, most)| Atom::Port(least, most)))
                .collect();
            match ports {
                Some(atoms) if !atoms.is_empty() => Test { atoms, notes: Vec::new() },
                _ => return Some(Err("its ports are not numbers".to_owned())),
            }
        }
        "http_auth" => Test::special(Special::Auth(fetch.argument(0).to_owned(), Vec::new())),
        "http_auth_group" => {
            Test::special(Special::Auth(fetch.argument(0).to_owned(), criterion.patterns.clone()))
        }
        "status" => match error_statuses(&criterion.patterns) {
            Some(statuses) => Test::special(Special::Status(statuses)),
            None => return Some(Err("no route can ask for `status`, but pages for 400 to 599".to_owned())),
        },
        "nbsrv" => match number() {
            Some((0, 0)) => Test::special(Special::NoServer(fetch.argument(0).to_owned())),
            _ => return Some(Err("no route can ask how many servers are up, but that none is".to_owned())),
        },
        "rand" => {
            let range: f64 = fetch.argument(0).parse().unwrap_or(4_294_967_296.0);
            match number() {
                Some((0, most)) if range > 0.0 && most != u64::MAX => {
                    let share = f64::from(u32::try_from(most.saturating_add(1)).unwrap_or(u32::MAX)) / range;
                    Test::special(Special::Share(share.min(1.0)))
                }
                _ => return Some(Err("a share begins at 0: `rand(100) lt 10`".to_owned())),
            }
        }
        _ => return None,
    }))
}

/// Statuses of errors, as pages have them; `None` where others are among them.
fn error_statuses(patterns: &[String]) -> Option<Vec<String>> {
    let mut statuses: Vec<String> = Vec::new();
    for pattern in patterns {
        let (least, most) = bounds(pattern)?;
        let most = most.min(599);
        if least < 400 || most < least {
            return None;
        }
        for class in [400, 500] {
            let (first, last) = (least.max(class), most.min(class + 99));
            match (first, last) {
                (first, last) if first > last => {}
                (first, last) if first == class && last == class + 99 => {
                    statuses.push(said(&format!("{}xx", class / 100)));
                }
                (first, last) => statuses.extend((first..=last).map(|status| status.to_string())),
            }
        }
    }
    statuses.sort();
    statuses.dedup();
    (!statuses.is_empty()).then_some(statuses)
}

/// Counters of stick tables.
fn counted(criterion: &Criterion) -> Option<Result<Test, String>> {
    let fetch = &criterion.sample.fetch;
    let name = fetch.name.as_str();
    let (tracked, what, table) = if let Some(rest) = name.strip_prefix("sc_") {
        (Some(fetch.argument(0).to_owned()), rest.to_owned(), fetch.arguments.get(1).cloned())
    } else if let Some(rest) =
        name.strip_prefix("sc").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        let (index, what) = rest.split_once('_')?;
        (Some(index.to_owned()), what.to_owned(), fetch.arguments.first().cloned())
    } else if let Some(rest) = name.strip_prefix("src_").filter(|rest| *rest != "port") {
        (None, rest.to_owned(), fetch.arguments.first().cloned())
    } else {
        return None;
    };
    if !criterion.sample.converters.is_empty() {
        return Some(Err("counters are not converted to something else".to_owned()));
    }
    let above = criterion.patterns.first().and_then(|pattern| bounds(pattern));
    Some(match above {
        Some((least, u64::MAX)) if least > 0 && criterion.patterns.len() == 1 => {
            let counter = Counter { what, tracked, table: table.filter(|table| !table.is_empty()) };
            Ok(Test::special(Special::Above(counter, least - 1)))
        }
        _ => Err(format!("`{name}` can only be limited from above (`gt`)")),
    })
}

fn addresses(criterion: &Criterion) -> Result<Test, String> {
    if let Some(converter) = criterion.sample.converters.first() {
        return Err(format!("addresses are compared as they are, without `{}`", converter.name));
    }
    let mut networks: Vec<String> = criterion.files.iter().map(|file| format!("@file:{file}")).collect();
    for pattern in &criterion.patterns {
        let one = match super::words::has_variable(pattern) {
            true => pattern.clone(),
            false => network(pattern).ok_or_else(|| format!("`{pattern}` is no network"))?,
        };
        if !networks.contains(&one) {
            networks.push(one);
        }
    }
    let asks = if networks.is_empty() { Vec::new() } else { vec![Ask::ClientIp(networks)] };
    Ok(Test::asks(asks, Vec::new()))
}

/// The server name in a client's greeting.
fn server_name(criterion: &Criterion) -> Result<Test, String> {
    let mut names = Vec::new();
    for pattern in &criterion.patterns {
        let name = pattern.to_ascii_lowercase();
        let good = |name: &str| {
            !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        };
        match criterion.method.as_str() {
            "" | "str" if good(&name) => names.push(name),
            "end" if name.starts_with('.') && good(&name) => names.push(format!("*{name}")),
            _ => {
                return Err(
                    "server names are compared whole, or by their end behind a dot (`-m end .example.com`)"
                        .to_owned(),
                );
            }
        }
    }
    let asks = if names.is_empty() { Vec::new() } else { vec![Ask::Sni(names)] };
    Ok(Test::asks(asks, Vec::new()))
}

/// The same over HTTP, where a map says which names are meant.
fn server_name_of_http(criterion: &Criterion, maps: &mut Maps) -> Result<Test, String> {
    let kind = match criterion.method.as_str() {
        "" | "str" => "exact",
        "beg" => "prefix",
        "end" => "suffix",
        "sub" => "contains",
        "reg" => "expression",
        other => return Err(format!("server names are not compared by `{other}`")),
    };
    let mut names = Vec::new();
    for pattern in &criterion.patterns {
        if super::words::has_variable(pattern) || pattern.is_empty() || pattern.starts_with('#') {
            return Err("server names stand in the file of a map, as they are".to_owned());
        }
        names.push(match kind {
            "expression" => super::expressions::translated(pattern)?,
            _ => pattern.to_ascii_lowercase(),
        });
    }
    if names.is_empty() {
        return Ok(Test::always(false));
    }
    let map = maps.made("$server_name", kind, &names);
    Ok(Test::of(Atom::AskByTls(Ask::Named(Family::Map, map, "yes".to_owned()))))
}
