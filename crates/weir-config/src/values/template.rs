//! Texts with variables, each checked and compiled when the file is read.

use std::collections::BTreeMap;

use weir_template::{FAMILIES, Mistake, NAMES, Piece, Template};

use crate::fields::{KeyValue, Value};
use crate::keys::Shape;
use crate::report::{Span, quote};
use crate::setting::{One, Setting};
use crate::suggest::{nearest, one_of};
use crate::units::{Refused, refuse};
use crate::values::http::{field_value, uri_characters};

/// The value of a header field that Weir writes.
pub(crate) static HEADER_VALUE: Shape =
    Shape::new("a header value with variables", "$client_ip", header_value).with_variables();
/// The host that a backend is asked by.
pub(crate) static BACKEND_HOST: Shape =
    Shape::new("a host to ask by", "app.internal", backend_host).with_variables();
/// Where a redirect leads.
pub(crate) static REDIRECT_TO: Shape =
    Shape::new("a target", "https://$host$path$query", redirect_to).with_variables();

impl One for Template {
    fn of(value: &Value) -> Option<Template> {
        match value {
            Value::Text(text) => Template::parse(text, 0).ok(),
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

/// Compiles a text; `what` is where it stands, such as "a header value".
fn compiled(text: &str, what: &str) -> Result<Template, Refused> {
    Template::parse(text, 0).map_err(|mistake| {
        let literal = || {
            let written = quote(&text.replace("$$", "$").replace('$', "$$"));
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
    })
}

/// What somebody may have meant who wrote this name: what nginx, HAProxy and Caddy call it, or the nearest.
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
        "request_uri" => return Some("did you mean `$path$query`?".to_owned()),
        "proxy_add_x_forwarded_for" | "proxy_protocol_addr" => {
            return Some("backends are told it in `x-forwarded-for` anyway".to_owned());
        }
        _ => {
            let families = [("http_", "header"), ("cookie_", "cookie"), ("arg_", "query")];
            let of_nginx = families.into_iter().find_map(|(prefix, family)| {
                let member = name.strip_prefix(prefix).filter(|member| !member.is_empty())?;
                let dashed = if family == "header" { member.replace('_', "-") } else { member.to_owned() };
                Some(format!("did you mean `${family}.{dashed}`?"))
            });
            return of_nginx.or_else(|| {
                let near = nearest(name, NAMES.into_iter().chain(FAMILIES))?;
                let dotted = if near == "header" || near == "cookie" { ".NAME" } else { "" };
                Some(format!("did you mean `${near}{dotted}`?"))
            });
        }
    };
    Some(format!("did you mean `${ours}`?"))
}

/// What is taken is the text as it was written.
fn header_value(text: &str) -> Result<String, Refused> {
    field_value(text)?;
    compiled(text, "a header value")?;
    Ok(text.to_owned())
}

fn redirect_to(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a redirect target", quote(text));
    if text.is_empty() {
        return refuse(message, "expected something like \"https://$host$path$query\"");
    }
    compiled(text, "a redirect")?;
    uri_characters(text).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
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
    let texts = template.pieces().iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        Piece::Value(_) => None,
    });
    for part in texts {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        if let Some(bad) = part.chars().find(|c| !is_good(*c)) {
            let hint = format!("{} stands in no host", quote(&bad.to_string()));
            return refuse(message, hint);
        }
    }
    Ok(text.to_owned())
}

/// "`$client_ip` and `$header.x-user`".
pub(crate) fn named<'n>(variables: impl IntoIterator<Item = &'n weir_template::Variable>) -> String {
    let names: Vec<String> = variables.into_iter().map(|variable| format!("${}", variable.name())).collect();
    one_of(names.iter().map(String::as_str)).replace(" or ", " and ")
}
