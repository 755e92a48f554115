//! `http-request`, `http-response` and `http-after-response`: what each action becomes.

use super::acls::{Reader, When};
use super::answers::{self, Told};
use super::choices::{self, NamedBackends};
use super::expressions::translated;
use super::headers::{Act, Outcome, Replaced, Side, outcome};
use super::maps::Maps;
use super::rewrites;
use super::rules::StepAct;
use super::samples::{Value, constant, format};
use super::sections::Line;

/// What an action becomes.
#[derive(Debug, Default)]
pub struct Became {
    /// Steps, one after the other.
    pub acts: Vec<StepAct>,
    /// What it became, for the verdict.
    pub what: String,
    /// What differs.
    pub notes: Vec<String>,
    /// Its own condition, where it has one besides that of the line.
    pub when: Option<When>,
}

impl Became {
    fn one(act: StepAct, what: impl Into<String>) -> Became {
        Became { acts: vec![act], what: what.into(), ..Became::default() }
    }

    fn nothing(note: impl Into<String>) -> Became {
        Became { notes: vec![note.into()], what: "no key".to_owned(), ..Became::default() }
    }

    /// Nothing, since Weir does the same anyway.
    fn same(what: impl Into<String>) -> Became {
        Became { what: what.into(), ..Became::default() }
    }

    /// A route that answers.
    pub fn answer((answer, notes): Told) -> Became {
        let what = match answer.key {
            "redirect" => format!("a route that redirects with {}", answer.status),
            _ => format!("a route that answers {}", answer.status),
        };
        Became { acts: vec![answers::step(answer)], what, notes, when: None }
    }
}

/// `use_backend NAME`, where the name may come from a map, or have a value of the request in it.
pub fn use_backend(name: &str, reader: &mut Reader<'_>) -> Result<Became, String> {
    if !name.contains('%') {
        return Ok(Became::one(StepAct::Backend(name.to_owned()), "a route to its pool"));
    }
    let NamedBackends { all, mut notes } =
        choices::named(name, &reader.backends, reader.maps, reader.is_tcp)?;
    let (act, what) = match choices::lookup(name) {
        Some(sample) => {
            let value = super::samples::variable(&sample, reader.maps)?;
            let map = value.text.strip_prefix("$map.").unwrap_or_default().to_owned();
            let what = "a route with `pool_map`, or one for each backend if some have rules of their own";
            (StepAct::Mapped(map, all), what.to_owned())
        }
        None => {
            for other in reader.other_backends.iter().filter(|other| choices::may_name(name, other)) {
                notes.push(format!("`{other}` is of another mode: what names it goes to the default"));
            }
            let what = match all.len() {
                0 => "no backend has such a name: the default, as in HAProxy".to_owned(),
                count => {
                    format!("routes to {count} backends that have such a name; all others to the default")
                }
            };
            (StepAct::Chosen(all), what)
        }
    };
    let mut became = Became::one(act, what);
    became.notes = notes;
    Ok(became)
}

/// `ignore-persist`, whose route is told of where its pool is known.
pub fn ignored() -> Became {
    Became::one(StepAct::Unstuck, "a condition of routes")
}

/// `use-server NAME`.
pub fn use_server(name: &str) -> Result<Became, String> {
    if name.contains('%') {
        return Err("Weir takes no names of servers from what clients send".to_owned());
    }
    Ok(Became::one(StepAct::Server(name.to_owned()), "a route to a pool of that server alone"))
}

/// `reqadd` and `rspadd` of old files: `X-A:\ value`.
pub fn added(line: &Line) -> Result<Became, String> {
    let side = if line.word(0) == "reqadd" { Side::Request } else { Side::Response };
    let (name, value) = line.word(1).split_once(':').ok_or("it has no `NAME: VALUE`")?;
    edit(side, name, Act::Add(constant(value.trim())))
}

/// A rule's action with its arguments, without its condition. `Err` says what there is nothing like.
pub fn action(words: &[String], maps: &mut Maps) -> Result<Became, String> {
    let side =
        if words.first().is_some_and(|set| set == "http-request") { Side::Request } else { Side::Response };
    let name = words.get(1).map_or("", String::as_str);
    let arguments = words.get(2..).unwrap_or_default();
    let (name, within) =
        name.split_once('(').map_or((name, ""), |(name, rest)| (name, rest.trim_end_matches(')')));
    match (name, side) {
        ("set-header" | "add-header" | "del-header" | "replace-header" | "replace-value", _) => {
            field(name, side, arguments, maps)
        }
        ("deny" | "return", Side::Response) => {
            let default = if name == "deny" { 502 } else { 200 };
            answers::answer(arguments, default, maps).map(|(answer, mut notes)| {
                notes.push("no backend is asked where it holds".to_owned());
                let what = format!("routes that answer {}", answer.status);
                Became { acts: vec![StepAct::HoldBack(answer)], what, notes, when: None }
            })
        }
        ("deny", Side::Request) => answers::answer(arguments, 403, maps).map(Became::answer),
        ("tarpit", Side::Request) => answers::answer(arguments, 500, maps).map(|(answer, mut notes)| {
            notes.push("answered at once".to_owned());
            Became::answer((answer, notes))
        }),
        ("reject" | "silent-drop", Side::Request) => {
            let note = "the client is answered 403 and keeps its connection".to_owned();
            Ok(Became::answer((answers::refusal(403), vec![note])))
        }
        ("return", Side::Request) => answers::answer(arguments, 200, maps).map(Became::answer),
        ("redirect", Side::Request) => answers::redirect(arguments, maps).map(Became::answer),
        ("allow", Side::Request) => {
            Ok(Became::one(StepAct::Allow, "the routes behind it, without the rules between"))
        }
        ("auth", Side::Request) => Ok(auth(arguments)),
        (
            "set-path" | "replace-path" | "set-query" | "set-uri" | "replace-uri" | "set-pathq"
            | "replace-pathq",
            Side::Request,
        ) => rewrites::rewrite(name, arguments, maps).map(|(rewrite, notes)| Became {
            acts: vec![StepAct::Rewrite(rewrite)],
            what: "`rewrite` of routes".to_owned(),
            notes,
            when: None,
        }),
        ("cache-use", Side::Request) => Ok(Became {
            acts: vec![StepAct::Key("cache", "{}".to_owned())],
            what: "`cache` of routes".to_owned(),
            notes: vec!["Weir keeps what RFC 9111 allows, also what has `vary`".to_owned()],
            when: None,
        }),
        ("cache-store", Side::Response) => Ok(Became::nothing(
            "`cache` of the routes with `cache-use`: the rules of RFC 9111 say what is kept",
        )),
        ("set-log-level", Side::Request) => match arguments.first().map(String::as_str) {
            Some("silent") => Ok(Became::one(
                StepAct::Key("access_log", "false".to_owned()),
                "`access_log = false` of routes",
            )),
            _ => Ok(Became::nothing("each log has one severity")),
        },
        _ => without_route(name, within, side, arguments),
    }
}

/// An action that becomes no route of its own.
fn without_route(name: &str, within: &str, side: Side, arguments: &[String]) -> Result<Became, String> {
    match (name, side) {
        ("disable-l7-retry", Side::Request) => {
            Ok(Became::same("`retry.non_idempotent` is off: POST is not sent twice"))
        }
        ("normalize-uri", Side::Request) => {
            Ok(Became::nothing("paths are always brought into their normal form; queries are kept"))
        }
        ("set-timeout", Side::Request) => timeout(arguments),
        ("strict-mode", _) => Ok(Became::nothing("a rule that cannot be followed is told by `weir check`")),
        ("wait-for-handshake", Side::Request) => Ok(Became::same(
            "always so: only GET and the like are taken early, of HTTP/3, where `early_data` says so",
        )),
        ("set-nice" | "set-priority-class" | "set-priority-offset", _) => {
            Ok(Became::nothing("requests have no ranks: a queue is served in order"))
        }
        ("unset-var", _) => Ok(Became::same("nothing is kept")),
        ("wait-for-body", Side::Request) => Ok(Became::one(
            StepAct::Key("buffer", "{ requests = \"64KiB\" }".to_owned()),
            "`buffer` of routes",
        )),
        ("track-sc0" | "track-sc1" | "track-sc2" | "track-sc3" | "track-sc", Side::Request) => {
            Ok(Became::same("the key of the limits that ask for it"))
        }
        ("capture", _) => {
            Ok(Became::nothing("not in the log: `fields` of a log name what they show, such as `$header.x`"))
        }
        ("use-service", Side::Request)
            if arguments.first().is_some_and(|name| name == "prometheus-exporter")
                || within.contains("prometheus") =>
        {
            Ok(Became::nothing(
                "metrics are at `/metrics` of the admin API (`[admin]`), and not at this listener",
            ))
        }
        ("add-acl" | "del-acl" | "set-map" | "del-map", _) => {
            Err("maps and lists are changed by the admin API alone".to_owned())
        }
        ("set-src" | "set-src-port", Side::Request) => {
            Err("who a client is, is said by `trusted_proxies` and `client_address`".to_owned())
        }
        ("lua.", _) | ("use-service", _) | ("send-spoe-group", _) => {
            Err("there is no Lua and no SPOE".to_owned())
        }
        (name, _) if name.starts_with("lua") => Err("there is no Lua".to_owned()),
        (name, _) => Err(format!("there is nothing like `{name}`")),
    }
}

/// `set-timeout server 5s`
fn timeout(arguments: &[String]) -> Result<Became, String> {
    let [which, text] = arguments else { return Err("it has no time".to_owned()) };
    let time = super::times::duration(text, 1).ok_or("timers are not taken from what clients send")?;
    let day = 86_400_000;
    let timers: Vec<(&'static str, String)> = match which.as_str() {
        "server" => ["backend", "stream"].map(|key| (key, time.within(10, day).0.to_string())).into(),
        "tunnel" => vec![("tunnel", time.within(10, 30 * day).0.to_string())],
        "client" => vec![("client_body", time.within(10, day).0.to_string())],
        other => return Err(format!("routes have no timer `{other}`")),
    };
    Ok(Became::one(StepAct::Timeout(timers), "`timeout` of routes"))
}

fn auth(arguments: &[String]) -> Became {
    let realm = match arguments {
        [word, realm, ..] if word == "realm" => realm.clone(),
        _ => "restricted".to_owned(),
    };
    let mut became = Became::one(StepAct::Auth(String::new(), realm), "`auth.basic` of the routes behind it");
    became.notes.push(
        "the file of users is to be written with bcrypt or Argon2; Weir does not start without it".to_owned(),
    );
    became
}

fn field(action: &str, side: Side, arguments: &[String], maps: &mut Maps) -> Result<Became, String> {
    let name = arguments.first().map_or("", String::as_str);
    let text = arguments.get(1).map_or("", String::as_str);
    match action {
        "del-header" if arguments.len() > 1 => {
            Err("fields are removed by their whole name (`-m`)".to_owned())
        }
        "del-header" => edit(side, name, Act::Remove),
        "set-header" | "add-header" => {
            let Value { text, notes } = match side {
                Side::Request => format(text, maps)?,
                Side::Response => of_response(text, maps)?,
            };
            let act = if action == "add-header" { Act::Add(text) } else { Act::Set(text) };
            let mut became = edit(side, name, act)?;
            became.notes.extend(notes);
            Ok(became)
        }
        _ => {
            let replacement = arguments.get(2).ok_or("it has no replacement")?;
            let (rule, mut notes) = replaced(text, replacement, side, maps)?;
            if replacement.is_empty() {
                notes.push("a field that comes out empty is left out".to_owned());
            }
            let rule = Replaced { each_value: action == "replace-value", ..rule };
            let mut became = edit(side, name, Act::Replace(rule))?;
            became.notes.extend(notes);
            Ok(became)
        }
    }
}

/// `replace-header NAME EXPRESSION FORMAT`: where the expression matches, the whole value becomes the format,
/// in which `\1` stands for what a group has matched.
fn replaced(
    expression: &str,
    text: &str,
    side: Side,
    maps: &mut Maps,
) -> Result<(Replaced, Vec<String>), String> {
    let mut pieces = vec![(String::new(), None)];
    let mut left = text.chars();
    while let Some(c) = left.next() {
        match (c, pieces.last_mut()) {
            ('\\', Some((before, number))) => match left.next() {
                Some(digit) if digit.is_ascii_digit() => {
                    *number = digit.to_digit(10);
                    pieces.push((String::new(), None));
                }
                Some(other) => before.push(other),
                None => return Err("it ends in a backslash".to_owned()),
            },
            (c, Some((before, _))) => before.push(c),
            _ => {}
        }
    }
    let expression = translated(expression)?;
    // Weir has no name for all that has matched, so it becomes a group of its own.
    let has_all = pieces.iter().any(|(_, number)| *number == Some(0));
    let matching = if has_all { format!("~({expression})") } else { format!("~{expression}") };
    let (mut to, mut notes) = (String::new(), Vec::new());
    for (before, number) in pieces {
        let value = match side {
            Side::Request => format(&before, maps)?,
            Side::Response => of_response(&before, maps)?,
        };
        to.push_str(&value.text);
        notes.extend(value.notes);
        match number.map(|number| number + u32::from(has_all)) {
            Some(number @ 1..=9) => to.push_str(&format!("${number}")),
            Some(_) => return Err("there are no more than 9 groups".to_owned()),
            None => {}
        }
    }
    Ok((Replaced { matching, to, each_value: false }, notes))
}

/// A value in a response, where `res.hdr` and the like can't be filled in.
fn of_response(text: &str, maps: &mut Maps) -> Result<Value, String> {
    for fetch in ["res.", "%s", "%ST", "srv_name", "status", "capture.res"] {
        if text.contains(&format!("%[{fetch}")) || (fetch.starts_with('%') && text.contains(fetch)) {
            return Err("values of responses have variables of the request alone".to_owned());
        }
    }
    format(text, maps)
}

fn edit(side: Side, name: &str, act: Act) -> Result<Became, String> {
    let verb = match act {
        Act::Set(_) => "set",
        Act::Add(_) => "add",
        Act::Remove => "remove",
        Act::Replace(_) => "replace",
    };
    let word = if side == Side::Request { "request" } else { "response" };
    Ok(match outcome(side, name, act)? {
        Outcome::Edit(edit) => Became::one(StepAct::Edit(side, edit), format!("`{verb}_{word}_header`")),
        Outcome::Key(key, value) => Became::one(StepAct::Key(key, value), format!("`{key}`")),
        Outcome::Anyway(note) => Became::nothing(note),
    })
}
