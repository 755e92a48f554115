//! Rules that change what a message says in a header field: `replace_request_header`,
//! `replace_response_header` and, for the attributes of cookies, `response_cookie`.

use weir_screen::{Case, Pattern};
use weir_template::{Template, Variable};

use super::RuleOf;
use crate::condition::{MATCHED_VALUE, matched_value};
use crate::fields::{Fields, Value};
use crate::keys::{Each, Key, Kind, Shape, flag, list, text, yes_or_no};
use crate::report::{Findings, Span, quote};
use crate::setting::{One as _, Section as _, one, table, words};
use crate::units::{Refused, refuse};
use crate::values::http::{REPLACED_REQUEST_HEADER, REPLACED_RESPONSE_HEADER};
use crate::values::template::{COOKIE_ATTRIBUTE, HEADER_REPLACEMENT};

/// A value that is replaced.
static REPLACED_VALUE: Shape =
    Shape::new("a value to replace", "http://app:8080/*", replaced_value).with_signs();

one!(Pattern, Value::Text(text) => Pattern::parse(text, Case::Sensitive).ok(), |it| Value::Text(it.to_string()), Pattern::containing("", Case::Sensitive));

table! {
    /// Replaces a value that a request has in a header field, towards the backend.
    #[derive(Eq)]
    pub struct RequestReplacement at "replace_request_header = [{ … }]" {
        /// The field, each line by itself.
        name: String =
            text(&REPLACED_REQUEST_HEADER).required().first().also(&["header", "field"]);
        /// The values that are replaced: `text`, `text*`, `*text`, `*text*`, `*` for all, or `~` and a
        /// regular expression.
        matching as "match": Pattern =
            text(&REPLACED_VALUE).required().secret().also(&["from", "regex", "pattern", "prefix"]);
        /// What takes its place, with variables: of the part that a `text` with `*` is about, what `*` stands
        /// for being kept; for a regular expression of the whole value, with `$1` for its first group. A
        /// field that comes out empty is left out.
        to: Template =
            text(&HEADER_REPLACEMENT).required().secret().also(&["with", "replacement", "value"]);
        /// Whether each element of a comma-separated list is a value by itself.
        each_value: bool = flag(false).also(&["each", "list", "replace_value"]);
        /// Whether a value that it has replaced is final; otherwise the rules behind it look at what it has
        /// become.
        last: bool = flag(true).also(&["stop", "break", "final"]);
    }
}

table! {
    /// Replaces a value that a backend's response has in a header field, towards the client.
    #[derive(Eq)]
    pub struct ResponseReplacement at "replace_response_header = [{ … }]" {
        /// The field, each line by itself.
        name: String =
            text(&REPLACED_RESPONSE_HEADER).required().first().also(&["header", "field"]);
        /// The values that are replaced, as in `replace_request_header`.
        matching as "match": Pattern =
            text(&REPLACED_VALUE).required().also(&["from", "regex", "pattern", "prefix"]);
        /// What takes its place, as in `replace_request_header`; variables are those of the request.
        to: Template = text(&HEADER_REPLACEMENT).required().also(&["with", "replacement", "value"]);
        /// Whether each element of a comma-separated list is a value by itself.
        each_value: bool = flag(false).also(&["each", "list", "replace_value"]);
        /// Whether a value that it has replaced is final; otherwise the rules behind it look at what it has
        /// become.
        last: bool = flag(true).also(&["stop", "break", "final"]);
    }
}

table! {
    /// Changes the attributes of cookies that backends set.
    #[derive(Eq)]
    pub struct CookieRule at "response_cookie = [{ … }]" {
        /// Names of the cookies, as in `match`.
        name: Option<Pattern> =
            text(&MATCHED_VALUE).default("every cookie").first().also(&["cookie", "names"]);
        /// What becomes of `Domain`, in any case and without a dot in front; the first that matches counts.
        domain: Vec<AttributeRule> =
            list(Each::Table(AttributeRule::TABLE)).default("kept").also(&["proxy_cookie_domain"]);
        /// What becomes of `Path`; the first that matches counts.
        path: Vec<AttributeRule> =
            list(Each::Table(AttributeRule::TABLE)).default("kept").also(&["proxy_cookie_path"]);
        /// Whether it has `Secure`.
        secure: Option<bool> = yes_or_no().default("kept").also(&["nosecure"]);
        /// Whether it has `HttpOnly`.
        http_only: Option<bool> = yes_or_no().default("kept").also(&["httponly", "nohttponly"]);
        /// Its `SameSite`.
        same_site: Option<CookieSite> =
            Key::new(Kind::Word(CookieSite::WORDS, None)).default("kept").also(&["samesite", "nosamesite"]);
    }
}

table! {
    /// What becomes of an attribute of a cookie that has it.
    #[derive(Eq)]
    pub struct AttributeRule at "domain = { … }" {
        /// The values that are replaced, as in `replace_response_header`.
        matching as "match": Pattern =
            text(&REPLACED_VALUE).required().also(&["from", "regex", "pattern", "prefix"]);
        /// What takes its place, as in `replace_response_header`; an attribute that comes out empty is left
        /// out.
        to: Template = text(&COOKIE_ATTRIBUTE).required().also(&["with", "replacement", "value"]);
    }
}

words! {
    /// What a cookie's `SameSite` is made.
    pub enum CookieSite {
        Strict = "strict": "`SameSite=Strict`",
        Lax = "lax": "`SameSite=Lax`",
        None = "none": "`SameSite=None`, which browsers take with `Secure` alone",
        Absent = "absent": "it has none",
    }
}

/// A rule that replaces values of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRule {
    /// The field, in lower case.
    pub name: String,
    /// The values that are replaced.
    pub matching: Pattern,
    /// What takes their place; `$1` is what a group of the expression in [`Self::matching`] matched.
    pub to: Template,
    /// Whether each element of a list is a value by itself.
    pub each_value: bool,
    /// Whether the rules behind it are not asked about what it has replaced.
    pub last: bool,
}

/// The rules of one owner about the values of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRules {
    /// The owner.
    pub of: RuleOf,
    /// Of those for a name, the first that matches counts, if it is a `last` one.
    pub values: Vec<ValueRule>,
    /// Of these, the first for a cookie's name counts.
    pub cookies: Vec<CookieRule>,
}

impl ValueRule {
    /// What it does, for display.
    pub fn words(&self) -> String {
        let each = if self.each_value { ", in each element of a list" } else { "" };
        let more = if self.last { "" } else { ", and then by what follows" };
        format!("`{}` by `{}`{each}{more}", self.matching, self.to)
    }
}

impl CookieRule {
    /// What it does, for display.
    pub fn words(&self) -> String {
        let of = self.name.as_ref().map_or("*".to_owned(), Pattern::to_string);
        let mut does = Vec::new();
        for (name, rules) in [("Domain", &self.domain), ("Path", &self.path)] {
            does.extend(rules.iter().map(|rule| format!("{name} `{}` by `{}`", rule.matching, rule.to)));
        }
        for (name, flag) in [("Secure", self.secure), ("HttpOnly", self.http_only)] {
            does.extend(flag.map(|has| if has { name.to_owned() } else { format!("no {name}") }));
        }
        does.extend(self.same_site.map(|site| format!("SameSite {}", site.word())));
        format!("of cookies `{of}`: {}", does.join(", "))
    }
}

impl RequestReplacement {
    pub(super) fn rule(&self) -> ValueRule {
        let RequestReplacement { name, matching, to, each_value, last } = self.clone();
        ValueRule { name, matching, to, each_value, last }
    }
}

impl ResponseReplacement {
    pub(super) fn rule(&self) -> ValueRule {
        let ResponseReplacement { name, matching, to, each_value, last } = self.clone();
        ValueRule { name, matching, to, each_value, last }
    }
}

/// The keys with rules that have `match` and `to`.
const REPLACEMENTS: [&str; 2] = ["replace_request_header", "replace_response_header"];

/// Every table with `match` and `to`, within the table of a listener, a pool or a route.
fn each_rule(fields: &Fields) -> impl Iterator<Item = &Fields> {
    let of_fields = REPLACEMENTS.into_iter().flat_map(|key| fields.tables(key));
    let of_cookies = fields
        .tables("response_cookie")
        .flat_map(|(_, rule)| ["domain", "path"].into_iter().flat_map(|attribute| rule.tables(attribute)));
    of_fields.chain(of_cookies).map(|(_, rule)| rule)
}

/// The variables of the request in each `to`, and its position.
pub(super) fn used(fields: &Fields) -> impl Iterator<Item = (Span, Vec<Variable>)> {
    each_rule(fields).filter_map(|rule| {
        let to = rule.get("to")?;
        Some((to.at, of_request(&Template::of(&to.value)?).cloned().collect()))
    })
}

/// The variables of a template that stand for something other than a group.
pub(super) fn of_request(template: &Template) -> impl Iterator<Item = &Variable> {
    template.variables().filter(|variable| !matches!(variable, Variable::Capture(_)))
}

/// Checks the rules of a listener, a pool or a route.
pub(super) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    for rule in each_rule(fields) {
        groups(rule, findings);
    }
    for side in ["request", "response"] {
        for (_, rule) in fields.tables(&format!("replace_{side}_header")) {
            without_effect(fields, rule, side, findings);
            whole_address(rule, findings);
        }
    }
    for (at, rule) in fields.tables("response_cookie") {
        let changes = ["domain", "path", "secure", "http_only", "same_site"];
        if changes.iter().all(|key| rule.lacks(key)) {
            let hint = "expected one of `domain`, `path`, `secure`, `http_only`, `same_site`";
            findings.error(at, "a rule of `response_cookie` changes nothing", hint);
        }
        let is_none = rule.get("same_site").filter(|entry| matches!(entry.value, Value::Word("none")));
        if let (Some(entry), Some(false)) = (is_none, rule.get("secure").and_then(|it| bool::of(&it.value))) {
            let hint = "browsers throw such cookies away: expected `secure = true`";
            findings.warning(entry.key, "`same_site = \"none\"` stands beside `secure = false`", hint);
        }
    }
}

fn replaced_value(text: &str) -> Result<String, Refused> {
    if text.starts_with('!') {
        let hint = "a rule says which values are replaced; `!` would say which are not";
        return refuse(format!("{} is not a value to replace", quote(text)), hint);
    }
    matched_value(text)
}

/// Reports groups that no expression has.
fn groups(rule: &Fields, findings: &mut Findings<'_>) {
    let (Some(matching), Some(to)) = (rule.get("match"), rule.get("to")) else { return };
    let (Some(pattern), Some(template)) = (Pattern::of(&matching.value), Template::of(&to.value)) else {
        return;
    };
    let count = pattern.group_count();
    if template.captures() <= count {
        return;
    }
    let place = findings.place(matching.at);
    let hint = match (count, pattern.part_in(pattern.to_string().as_bytes())) {
        (0, Some(_)) => format!(
            "`match` ({place}) is no expression: what its `*` stands for is kept by itself; or write it as \"~^(.*)$\""
        ),
        (0, None) => format!("the expression at {place} has no group: put one in parentheses"),
        (1, _) => format!("the expression at {place} has one group"),
        (count, _) => format!("the expression at {place} has {count} groups"),
    };
    findings.error(to.at, format!("`${}` stands for nothing", template.captures()), hint);
}

/// Reports a rule about a field whose values another rule of the same table throws away.
fn without_effect(fields: &Fields, rule: &Fields, side: &str, findings: &mut Findings<'_>) {
    let Some((name, at)) = rule.text("name").zip(rule.get("name").map(|entry| entry.at)) else { return };
    let set = format!("set_{side}_header");
    let removed = format!("remove_{side}_header");
    let by_set = fields.map(&set).iter().find(|entry| entry.name == name).map(|entry| (&set, entry.key));
    let mut list = fields.list(&removed).iter();
    let by_removal = list.find(|(_, value)| matches!(value, Value::Text(text) if text == name));
    let Some((key, place)) = by_set.or_else(|| Some((&removed, by_removal?.0))) else { return };
    let hint = format!("`{key}` ({}) throws the value away first; keep one", findings.place(place));
    findings.error(at, format!("`{name}` stands in both `{key}` and `replace_{side}_header`"), hint);
}

/// Warns about an address that is compared as a whole and looks like the beginning of others.
fn whole_address(rule: &Fields, findings: &mut Findings<'_>) {
    let Some(matching) = rule.get("match") else { return };
    let is_exact = Pattern::of(&matching.value).is_some_and(|pattern| pattern.is_exact());
    let Some(text) =
        rule.text("match").filter(|text| is_exact && text.contains("://") && text.ends_with('/'))
    else {
        return;
    };
    let hint = format!("did you mean \"{text}*\", for what is below it too?");
    findings.warning(matching.at, format!("only the value `{text}` itself is replaced"), hint);
}

#[cfg(test)]
mod tests {
    use crate::parse;

    fn config(rules: &str) -> String {
        format!(
            "[listener.a]\nbind = '127.0.0.1:1'\npool = 'p'\n{rules}\n[pool.p]\nbackends = ['127.0.0.1:2']\n"
        )
    }

    fn refused(rules: &str) -> String {
        parse("a.toml", &config(rules)).err().map(|report| report.to_string()).unwrap_or_default()
    }

    #[test]
    fn rules_are_written_as_they_were_read() {
        let rules = r#"
            replace_response_header = [
                { name = "Location", match = "http://app:8080/*", to = "/" },
                { name = "link", match = '~^<http://app/(.*)$', to = "<https://$host/$1", each_value = true },
            ]
            replace_request_header = { name = "referer", match = "*", to = "" }
            response_cookie = [
                { name = "s*", domain = { match = "app", to = "$host" }, secure = true, same_site = "strict" },
                { path = [{ match = "/two/*", to = "/" }, { match = "*", to = "" }], http_only = false },
            ]
        "#;
        let config = parse("a.toml", &config(rules)).unwrap_or_else(|report| panic!("{report}"));
        let again = parse("b.toml", &crate::to_toml(&config)).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(config, again);
        let headers = &config.listeners[0].http().headers;
        assert_eq!((headers.replace_response_header.len(), headers.response_cookie.len()), (2, 2));
        assert_eq!(headers.replace_response_header[0].name, "location");
    }

    #[test]
    fn a_group_that_the_expression_lacks_is_a_mistake() {
        let one = r#"replace_response_header = [{ name = "a", match = "~^x(.)", to = "$2" }]"#;
        assert!(refused(one).contains("`$2` stands for nothing"), "{}", refused(one));
        assert!(refused(one).contains("has one group"), "{}", refused(one));
        let none = r#"response_cookie = [{ path = { match = "/a/*", to = "/$1" } }]"#;
        assert!(refused(none).contains("is no expression"), "{}", refused(none));
    }

    #[test]
    fn what_has_no_effect_is_a_mistake() {
        let both = "remove_response_header = ['x-a']\nreplace_response_header = [{ name = 'x-a', match = '*', to = 'b' }]";
        assert!(refused(both).contains("throws the value away first"), "{}", refused(both));
        let nothing = "response_cookie = [{ name = 'a' }]";
        assert!(refused(nothing).contains("changes nothing"), "{}", refused(nothing));
        let own = "replace_request_header = [{ name = 'x-forwarded-for', match = '*', to = 'b' }]";
        assert!(refused(own).contains("Weir writes it"), "{}", refused(own));
    }
}
