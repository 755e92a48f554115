//! The conditions of a route besides host, path, method and header fields, and the conditions in its `not`
//! and `any`.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weir_screen::{Case, Pattern};

use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{Each, Key, Shape, list, map};
use crate::map::MAP_NAME;
use crate::report::{Findings, Span, quote};
use crate::setting::{Section as _, Setting, table};
use crate::units::{Refused, refuse};
use crate::values::address::NETWORK;
use crate::values::host::{HOST, HostPattern};
use crate::values::http::{COOKIE_NAME, METHOD, PROBED_HEADER, field_value};
use crate::values::path::{PATH, PathPattern};

/// The value with which a field, a cookie or a parameter is compared.
pub(crate) static MATCHED_VALUE: Shape =
    Shape::new("a value to compare with", "weir", matched_value).with_signs();
/// The name of a query parameter.
static PARAMETER: Shape = Shape::new("the name of a query parameter", "version", parameter);

table! {
    /// A condition of a route: it holds for a request for which all that it says does. In `not` stand those
    /// that must not hold, in `any` those of which one must.
    #[derive(Eq)]
    pub struct Condition at "not = { … }" {
        /// As the route's own.
        host: Vec<HostPattern> = list(Each::Text(&HOST)).default("every host");
        /// As the route's own; its groups name no `$1`.
        path: Vec<PathPattern> = list(Each::Text(&PATH)).default("every path");
        /// As the route's own.
        method: Vec<String> = list(Each::Text(&METHOD)).default("every method");
        /// As the route's own.
        header: BTreeMap<String, Pattern> = map(&PROBED_HEADER, &MATCHED_VALUE).secret().default("none");
        /// What is asked of query, cookies and client.
        others: Others;
    }
}

table! {
    /// What is asked of query, cookies and client.
    #[derive(Eq, Default)]
    pub struct Others {
        /// Query parameters, and the value that one of that name must have, as in `header`. Both are compared
        /// without their escapes, `+` being a space.
        query: BTreeMap<String, Pattern> =
            map(&PARAMETER, &MATCHED_VALUE)
                .http()
                .secret()
                .default("none")
                .also(&["query_params", "url_param", "urlp", "arg", "args"]);
        /// Cookies, and the value that one of that name must have, as in `header`.
        cookie: BTreeMap<String, Pattern> =
            map(&COOKIE_NAME, &MATCHED_VALUE).http().secret().default("none").also(&["cookies", "cook"]);
        /// Maps, and the value that each must have for the request, as in `header`; a map without one has
        /// none that matches.
        map: BTreeMap<String, Pattern> =
            map(&MAP_NAME, &MATCHED_VALUE).http().default("none").also(&["maps", "in_map"]);
        /// Networks of clients: who asks, as limits and the log have it.
        client_ip: Vec<IpNet> =
            list(Each::Text(&NETWORK))
                .http()
                .default("every client")
                .also(&["src", "source", "remote_ip", "remote_addr", "clientip"]);
    }
}

impl Others {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.query.is_empty() && self.cookie.is_empty() && self.map.is_empty() && self.client_ip.is_empty()
    }
}

/// One condition, or a list of them.
pub(crate) const CONDITIONS: Key = list(Each::Table(Condition::TABLE)).http();

impl Setting for BTreeMap<String, Pattern> {
    fn read(value: Option<&Value>) -> BTreeMap<String, Pattern> {
        let Some(Value::Map(entries)) = value else { return BTreeMap::new() };
        let texts = entries.iter().filter_map(|entry| match &entry.value {
            Value::Text(text) => Some((entry.name.clone(), Pattern::parse(text, Case::Sensitive).ok()?)),
            _ => None,
        });
        texts.collect()
    }

    fn write(&self) -> Option<Value> {
        let entry = |(name, pattern): (&String, &Pattern)| {
            KeyValue::new(name, Span::default(), Span::default(), Value::Text(pattern.to_string()))
        };
        (!self.is_empty()).then(|| Value::Map(self.iter().map(entry).collect()))
    }
}

/// Reports empty conditions, which match every request.
pub(crate) fn check(route: &Fields, findings: &mut Findings<'_>) {
    for (name, effect) in [("not", "the route takes nothing"), ("any", "`any` asks for nothing")] {
        for (at, condition) in route.tables(name) {
            if condition.entries.is_empty() && condition.meant.is_empty() {
                let hint = format!("expected something like `{name} = {{ path = \"/admin/*\" }}`");
                let message = format!("a condition of `{name}` holds for every request, so that {effect}");
                findings.error(at, message, hint);
            }
        }
    }
}

pub(crate) fn matched_value(text: &str) -> Result<String, Refused> {
    field_value(text)?;
    let message = || format!("{} is not a value to compare with", quote(text));
    if let Some(rest) = text.strip_prefix('!') {
        let hint = format!("what must not hold stands in `not`, here as {}", quote(rest));
        return refuse(message(), hint);
    }
    if text == "*/*" {
        let hint = "it would stand for any value with a slash in it; as an expression this very text is '~^\\*/\\*$'";
        return refuse(message(), hint);
    }
    Pattern::check(text, Case::Sensitive).map_err(|hint| Refused { message: message(), hint })?;
    Ok(text.to_owned())
}

fn parameter(text: &str) -> Result<String, Refused> {
    let message = || format!("{} is not the name of a query parameter", quote(text));
    match text.chars().find(|c| c.is_control() || matches!(c, '&' | '=')) {
        Some(bad) => refuse(message(), format!("{} stands in no name", quote(&bad.to_string()))),
        None if text.is_empty() => refuse(message(), "expected one such as \"version\""),
        None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{parse, to_toml};

    #[test]
    fn conditions_are_written_as_they_were_read() {
        let conditions = r#"
            path = ["~^/v(\\d+)/", "/static/*"]
            header = { x-canary = "*", x-tenant = "acme-*", user-agent = "~(?i)mobile|tablet", x-exact = "a.b" }
            query = { version = "2", "a b" = "~^[0-9]+$" }
            cookie = { beta = "*", user = "*@example.org" }
            client_ip = ["10.0.0.0/8", "2001:db8::/32"]
            not = [{ path = "/v1/old/*", method = ["POST"] }, { client_ip = "10.9.0.0/16" }]
            any = { header = { x-a = "1" } }
        "#;
        let text = format!(
            "[listener.web]\nbind = \"0.0.0.0:80\"\n[[listener.web.route]]\npool = \"app\"\n{conditions}\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"
        );
        let config = parse("a.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let route = &config.listeners[0].routes[0];
        assert_eq!((route.not.len(), route.any.len(), route.path.len()), (2, 1, 2));
        assert!(route.header["user-agent"].matches(b"A Mobile") && !route.header["x-exact"].matches(b"aXb"));
        assert!(route.others.query["a b"].matches(b"17"));
        let again = parse("b.toml", &to_toml(&config)).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(config, again);
        let shown = crate::to_toml_without_secrets(&config);
        assert!(!shown.contains("example.org") && !shown.contains("acme"), "{shown}");
    }
}
