//! Kinds of text with variables, each checked and compiled when the file is read.

use std::collections::BTreeMap;

use weir_template::{FAMILIES, LINE_FAMILY, Mistake, NAMES, Outcome, Piece, Template, Variable};

use crate::fields::{KeyValue, Value};
use crate::given;
use crate::keys::Shape;
use crate::report::{Span, quote};
use crate::setting::{One, Setting};
use crate::suggest::{nearest, one_of};
use crate::units::{Refused, refuse};
use crate::values::http::{field_value, uri_characters};

/// The value of a header field that Weir writes.
pub(crate) static HEADER_VALUE: Shape =
    Shape::new("a header value with variables", "$client_ip", header_value).with_variables();
/// What a value of a header field is replaced by.
pub(crate) static HEADER_REPLACEMENT: Shape =
    Shape::new("a header value with variables", "/", header_value).with_variables();
/// What an attribute of a cookie is replaced by.
pub(crate) static COOKIE_ATTRIBUTE: Shape =
    Shape::new("an attribute with variables", "/", cookie_attribute).with_variables();
/// The host sent to a backend.
pub(crate) static BACKEND_HOST: Shape =
    Shape::new("a host to ask by", "app.internal", backend_host).with_variables();
/// The target of a redirect.
pub(crate) static REDIRECT_TO: Shape =
    Shape::new("a target", "https://$host$path$query", redirect_to).with_variables();

/// The path sent to a backend.
pub(crate) static REWRITTEN_PATH: Shape =
    Shape::new("a path with variables", "/new/$1", rewritten_path).with_variables();
/// The query sent to a backend.
pub(crate) static REWRITTEN_QUERY: Shape =
    Shape::new("a query with variables", "id=$1", rewritten_query).with_variables();

/// Most groups that a text may use. The actual number is known only together with the route's path.
const GROUPS: u8 = 9;

impl One for Template {
    fn of(value: &Value) -> Option<Template> {
        match value {
            Value::Text(text) => Template::parse(text, GROUPS).ok(),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Text(self.as_written().to_owned())
    }

    fn blank() -> Template {
        Template::constant("")
    }
}

impl Setting for BTreeMap<String, Template> {
    fn read(value: Option<&Value>) -> BTreeMap<String, Template> {
        let Some(Value::Map(entries)) = value else { return BTreeMap::new() };
        let read = |entry: &KeyValue| Some((entry.name.clone(), Template::of(&entry.value)?));
        entries.iter().filter_map(read).collect()
    }

    fn write(&self) -> Option<Value> {
        let entry = |(name, template): (&String, &Template)| {
            KeyValue::new(name, Span::default(), Span::default(), template.value())
        };
        (!self.is_empty()).then(|| Value::Map(self.iter().map(entry).collect()))
    }
}

/// Compiles a text; `what` names its place, such as "a header value".
fn compiled(text: &str, what: &str) -> Result<Template, Refused> {
    Template::parse(text, GROUPS).map_err(|mistake| explained(mistake, text, what, meant_by))
}

/// Like [`compiled`], for a text that is rendered at the end.
pub(crate) fn compiled_line(text: &str, what: &str) -> Result<Template, Refused> {
    Template::parse_line(text).map_err(|mistake| explained(mistake, text, what, meant_in_line))
}

fn explained(
    mistake: Mistake,
    text: &str,
    what: &str,
    meant_by: impl FnOnce(&str) -> Option<String>,
) -> Refused {
    let literal = || {
        // In the form for the file: here, the file's `$${env:` is already `${env:`.
        let written = text.replace("$$", "$").replace('$', "$$");
        let written = quote(&given::escaped(&written));
        format!("a `$` itself is written `$$`: {written}")
    };
    let hint = match &mistake {
        Mistake::Bare => literal(),
        Mistake::Unknown { name } => meant_by(name).unwrap_or_else(literal),
        Mistake::Nameless { family } => format!("say which one, such as `${family}.x-tenant`"),
        Mistake::NoCapture { .. } => literal(),
    };
    let message = match mistake {
        Mistake::NoCapture { .. } => mistake.to_string(),
        _ => format!("{mistake} in {what}"),
    };
    Refused { message, hint }
}

/// Like [`meant_by`], where facts known at the end may be used, too.
fn meant_in_line(name: &str) -> Option<String> {
    let ours = match name {
        "time_local" | "trl" | "tr" => "time_common",
        "time_iso8601" => "time",
        "msec" => "time_unix",
        "request_uri" | "uri_path" | "HU" => "target",
        "request" => return Some("did you mean `$method $target $protocol`?".to_owned()),
        "server_protocol" => "protocol",
        "request_length" => "bytes_received",
        "request_time" | "duration" => "total",
        "upstream_addr" => "backend",
        "upstream_response_time" | "upstream_header_time" => "backend_header",
        "upstream_connect_time" => "connect",
        "upstream_cache_status" => "cache",
        "ssl_cipher" => "tls_cipher",
        "remote_user" => "user",
        _ => {
            let of_response = ["sent_http_", "upstream_http_"].into_iter().find_map(|prefix| {
                let member = name.strip_prefix(prefix).filter(|member| !member.is_empty())?;
                Some(format!("did you mean `${LINE_FAMILY}.{}`?", member.replace('_', "-")))
            });
            let outcomes = Outcome::ALL.into_iter().map(Outcome::name);
            let all = NAMES.into_iter().chain(FAMILIES).chain([LINE_FAMILY]).chain(outcomes);
            return of_response.or_else(|| match nearest(name, all) {
                Some(LINE_FAMILY) => Some(format!("did you mean `${LINE_FAMILY}.NAME`?")),
                Some(near) if Outcome::of_name(near).is_some() => Some(format!("did you mean `${near}`?")),
                _ => meant_by(name),
            });
        }
    };
    Some(format!("did you mean `${ours}`?"))
}

/// What the writer of this name may have meant: the equivalent of a name in nginx, HAProxy or Caddy, or the
/// nearest name.
fn meant_by(name: &str) -> Option<String> {
    let ours = match name {
        "remote_addr" | "src" | "client_address" | "remote_host" | "realip_remote_addr" => "client_ip",
        "remote_port" | "src_port" => "client_port",
        "http_host" | "hostname" | "hdr_host" => "host",
        "request_method" => "method",
        "uri" | "document_uri" | "request_path" => "path",
        "args" | "query_string" | "is_args" => "query",
        "server_port" | "dst_port" | "port" => "listener_port",
        "ssl_server_name" | "sni" | "ssl_fc_sni" => "server_name",
        "ssl_protocol" | "ssl_fc_protocol" => "tls_version",
        "ssl_client_s_dn" | "ssl_c_s_dn" => "client_cert_subject",
        "remote_user" | "auth_user" => "user",
        "request_uri" => return Some("did you mean `$path$query`?".to_owned()),
        "proxy_add_x_forwarded_for" | "proxy_protocol_addr" => {
            return Some("backends are told it in `x-forwarded-for` anyway".to_owned());
        }
        _ => {
            let families =
                [("http_", "header"), ("cookie_", "cookie"), ("arg_", "query"), ("jwt_claim_", "claim")];
            let of_nginx = families.into_iter().find_map(|(prefix, family)| {
                let member = name.strip_prefix(prefix).filter(|member| !member.is_empty())?;
                let dashed = if family == "header" { member.replace('_', "-") } else { member.to_owned() };
                Some(format!("did you mean `${family}.{dashed}`?"))
            });
            return of_nginx.or_else(|| {
                let near = nearest(name, NAMES.into_iter().chain(FAMILIES))?;
                let dotted = if matches!(near, "header" | "cookie" | "claim") { ".NAME" } else { "" };
                Some(format!("did you mean `${near}{dotted}`?"))
            });
        }
    };
    Some(format!("did you mean `${ours}`?"))
}

/// Refuses variables that are known only after authentication, if `what` is decided before.
pub(crate) fn of_anybody(template: &Template, what: &str) -> Result<(), Refused> {
    match template.variables().find(|it| matches!(it, Variable::User | Variable::Claim(_))) {
        None => Ok(()),
        Some(bad) => {
            let hint = "who asks is not known yet: it is in values of header fields, `backend_host`, `redirect`, the key of \
                        `hash` and access logs";
            refuse(format!("`${}` cannot stand in {what}", bad.name()), hint)
        }
    }
}

/// The accepted text is returned as it was written.
fn header_value(text: &str) -> Result<String, Refused> {
    field_value(text)?;
    compiled(text, "a header value")?;
    Ok(text.to_owned())
}

fn cookie_attribute(text: &str) -> Result<String, Refused> {
    header_value(text)?;
    match text.contains(';') {
        true => {
            let message = format!("{} is not the value of one attribute", quote(text));
            refuse(message, "a `;` ends it: other attributes are `secure`, `http_only` and `same_site`")
        }
        false => Ok(text.to_owned()),
    }
}

pub(crate) fn redirect_to(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a redirect target", quote(text));
    if text.is_empty() {
        return refuse(message, "expected something like \"https://$host$path$query\"");
    }
    compiled(text, "a redirect")?;
    uri_characters(text).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

fn rewritten_path(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a path to ask for", quote(text));
    let template = compiled(text, "a rewritten path")?;
    of_anybody(&template, "a rewritten path")?;
    if !text.starts_with('/') {
        let hint = match template.pieces().first() {
            Some(Piece::Value(Variable::Path)) => "the path is kept where `rewrite` has no `path`".to_owned(),
            _ => format!("a path begins with a slash: \"/{text}\""),
        };
        return refuse(message, hint);
    }
    if template.variables().any(|variable| *variable == Variable::Query) {
        return refuse(message, "leave `$query` out: it is kept, or `query` and `add_query` change it");
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return refuse(message, "no request with `.` or `..` in its path goes to a backend");
    }
    texts(&template, |part| match part.find(['?', '#']) {
        Some(at) => Err(format!("a query stands in `query`: \"{}\"", part.get(at + 1..).unwrap_or_default())),
        None => uri_characters(part),
    })
    .map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

fn rewritten_query(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a query", quote(text));
    let template = compiled(text, "a rewritten query")?;
    of_anybody(&template, "a rewritten query")?;
    if let Some(rest) = text.strip_prefix('?') {
        return refuse(message, format!("leave out the `?`: \"{rest}\""));
    }
    if template.variables().any(|variable| *variable == Variable::Query) {
        return refuse(message, "`add_query` adds to the query that was sent, and keeps it");
    }
    texts(&template, |part| match part.contains('#') {
        true => Err("a fragment is never sent".to_owned()),
        false => uri_characters(part),
    })
    .map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

/// Checks each text between the variables. `Err` says what to write.
fn texts(template: &Template, check: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    let mut parts = template.pieces().iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(&**text),
        Piece::Value(_) => None,
    });
    parts.try_for_each(check)
}

fn backend_host(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a host", quote(text));
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split('/').next().unwrap_or(rest);
        return refuse(message, format!("leave out the scheme: \"{host}\""));
    }
    let template = compiled(text, "a host")?;
    if let Some(constant) = template.as_constant() {
        return super::host::host_field(constant);
    }
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    let stands = |part: &str| match part.chars().find(|c| !is_good(*c)) {
        Some(bad) => Err(format!("{} stands in no host", quote(&bad.to_string()))),
        None => Ok(()),
    };
    texts(&template, stands).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

/// The text by which requests are split. Unlike a cache or limit key, it may be an id that is unique to each
/// request.
pub(crate) fn split_template(text: &str) -> Result<Template, Refused> {
    let template = compiled(text, "what to split by")?;
    of_anybody(&template, "what to split by")?;
    if template.as_constant().is_some() {
        let hint = "expected a variable such as `$cookie.session`";
        return refuse(format!("{} is the same for every request", quote(text)), hint);
    }
    Ok(template)
}

/// The text that distinguishes requests; `what` names its place.
pub(crate) fn key_template(text: &str, what: &str) -> Result<Template, Refused> {
    let template = compiled(text, what)?;
    if let Some(bad) = template.variables().find(|it| matches!(it, Variable::RequestId)) {
        let hint = "no two requests have the same, so that it tells nothing";
        return refuse(format!("`${}` cannot stand in {what}", bad.name()), hint);
    }
    if template.as_constant().is_some() {
        return refuse(
            format!("{} is the same for every request", quote(text)),
            "expected a variable such as `$host`",
        );
    }
    Ok(template)
}

/// "`$client_ip` and `$header.x-user`".
pub(crate) fn named<'n>(variables: impl IntoIterator<Item = &'n Variable>) -> String {
    let names: Vec<String> = variables.into_iter().map(|variable| format!("${}", variable.name())).collect();
    one_of(names.iter().map(String::as_str)).replace(" or ", " and ")
}
