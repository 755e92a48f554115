//! What a route does with the requests it matches: `pool`, `redirect` or `respond`.

use weir_template::{Piece, Template, Variable};

use crate::fields::Fields;
use crate::keys::{Key, Kind, Limit, Row, count, table as below, text, text_or};
use crate::protocol::Protocol;
use crate::report::Findings;
use crate::setting::{One as _, Part, Section as _, Setting as _, table};
use crate::values::http::CONTENT_TYPE;
use crate::values::template::REDIRECT_TO;
use crate::values::{NAME, TEXT};

/// What a route does.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteAction {
    /// Forward to this pool.
    Pool(String),
    /// Answer with a redirect.
    Redirect(Redirect),
    /// Answer from the config.
    Respond(Respond),
}

table! {
    /// Answers with a redirect.
    #[derive(Eq)]
    pub struct Redirect at "redirect = { … }" {
        /// Target, a URI reference with variables.
        to: Template = text(&REDIRECT_TO).required().also(&["location", "target", "url"]);
        /// Status code.
        status: u16 = Key::new(Kind::Choice(&[301, 302, 303, 307, 308], 308)).also(&["code"]);
    }
}

table! {
    /// Answers without any backend.
    #[derive(Eq)]
    pub struct Respond at "respond = { … }" {
        /// Status code.
        status: u16 =
            count(Limit::new(200, 200, 599, "1xx is not an answer; there is none above 599"))
                .also(&["code"]);
        /// Sent as it is.
        body: String = text(&TEXT).default("empty");
        /// Media type of the body.
        content_type: String = text_or(&CONTENT_TYPE, "text/plain; charset=utf-8");
    }
}

impl Part for RouteAction {
    const ROWS: &'static [Row] = &[
        Row::Key(
            text(&NAME)
                .also(&["use_backend", "proxy_pass", "backend", "upstream"])
                .named("pool", "Forward to this pool."),
        ),
        Row::Key(
            below(Redirect::TABLE).http().also(&["return"]).named("redirect", "Answer with a redirect."),
        ),
        Row::Key(
            below(Respond::TABLE)
                .http()
                .instead(&[(&["a text"], "did you mean `respond = { body = \"…\" }`?")])
                .also(&["response"])
                .named("respond", "Answer from here."),
        ),
    ];

    fn of(fields: &Fields) -> RouteAction {
        if let Some(pool) = fields.text("pool") {
            RouteAction::Pool(pool.to_owned())
        } else if let Some(redirect) = fields.value("redirect") {
            RouteAction::Redirect(Redirect::read(Some(redirect)))
        } else {
            RouteAction::Respond(Respond::read(fields.value("respond")))
        }
    }

    fn put(&self, fields: &mut Fields) {
        match self {
            RouteAction::Pool(pool) => fields.put("pool", pool.write()),
            RouteAction::Redirect(redirect) => fields.put("redirect", redirect.write()),
            RouteAction::Respond(respond) => fields.put("respond", respond.write()),
        }
    }
}

const ACTIONS: [&str; 3] = ["pool", "redirect", "respond"];

/// Checks that a route has exactly one action, and no key that its action does not use.
pub(crate) fn check(route: &Fields, protocol: Option<Protocol>, findings: &mut Findings<'_>) {
    respond(route, findings);
    redirect(route, findings);
    let given: Vec<_> = route.entries.iter().filter(|entry| ACTIONS.contains(&entry.name.as_str())).collect();
    match given.as_slice() {
        [] if ACTIONS.iter().any(|action| !route.lacks(action)) => {}
        [] => {
            let hint = match protocol {
                Some(Protocol::Tcp) => "expected `pool = \"NAME\"`",
                Some(Protocol::Http | Protocol::Udp | Protocol::Mysql) | None => {
                    "expected one of `pool = \"NAME\"`, `redirect = { to = \"…\" }` or `respond = { status = 200 }`"
                }
            };
            findings.error(route.at, "the route does nothing", hint);
        }
        [only] => {
            if only.name != "pool" {
                for name in [
                    "set_request_header",
                    "add_request_header",
                    "remove_request_header",
                    "backend_host",
                    "forwarded",
                    "body_limit",
                    "compress",
                ] {
                    if let Some(entry) = route.get(name) {
                        let hint = format!("nothing is forwarded: the route answers by `{}`", only.name);
                        findings.warning(entry.key, format!("`{name}` has no effect"), hint);
                    }
                }
            }
        }
        [first, rest @ ..] => {
            for other in rest {
                let hint = format!(
                    "`{}` says already what to do ({}); keep one",
                    first.name,
                    findings.place(first.key)
                );
                findings.error(
                    other.key,
                    format!("a route cannot have both `{}` and `{}`", first.name, other.name),
                    hint,
                );
            }
        }
    }
}

fn respond(route: &Fields, findings: &mut Findings<'_>) {
    let Some(respond) = route.table("respond") else { return };
    let status = respond.number("status");
    if respond.text("body").is_some_and(|body| !body.is_empty()) && matches!(status, 204 | 205 | 304) {
        let hint = format!("leave it out, or use another status than {status}");
        findings.error(respond.at("body"), format!("a response with status {status} has no body"), hint);
    }
}

/// Reports a redirect whose target a client can choose freely (CWE-601).
fn redirect(route: &Fields, findings: &mut Findings<'_>) {
    let Some(redirect) = route.table("redirect") else { return };
    let Some(to) = redirect.value("to").and_then(Template::of) else { return };
    let mut before = String::new();
    for piece in to.pieces() {
        let has_host = before.splitn(2, "://").last().is_some_and(|rest| rest.contains('/'));
        match piece {
            Piece::Text(text) => before.push_str(text),
            _ if has_host => return,
            Piece::Value(variable @ Variable::Capture(_)) => {
                let hint = format!(
                    "`${}` is what the client sends: let a slash stand between the host and it, such as \"https://$host/$1\" for \"~^/old/(.*)\"",
                    variable.name()
                );
                findings.error(
                    redirect.at("to"),
                    "a client could be sent to any site by this redirect",
                    hint,
                );
                return;
            }
            Piece::Value(variable @ (Variable::Header(_) | Variable::Cookie(_) | Variable::Parameter(_))) => {
                let hint = format!(
                    "`${}` is what the client sends: say the host, such as \"https://shop.example/\"",
                    variable.name()
                );
                findings.warning(
                    redirect.at("to"),
                    "a client can be sent to any site by this redirect",
                    hint,
                );
                return;
            }
            Piece::Value(Variable::Path) if before.is_empty() => {
                let hint = "a path may begin with `//`, behind which a host stands: expected \"https://$host$path$query\"";
                findings.warning(
                    redirect.at("to"),
                    "a client can be sent to any site by this redirect",
                    hint,
                );
                return;
            }
            Piece::Value(_) => before.push('x'),
        }
    }
}
