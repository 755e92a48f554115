//! Paths: those that routes match, and those that Weir writes.

use std::fmt;

use weir_screen::{Case, Pattern};

use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

/// A path that a route matches; compared with the normalised path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// This path.
    Exact(String),
    /// Any path that starts so (written with a trailing `*`).
    Prefix(String),
    /// Any path that ends so (written with a leading `*`).
    Suffix(String),
    /// Any path that has this in it (written with a `*` at both ends).
    Contains(String),
    /// Any path in which this expression matches (written behind a `~`).
    Regex(Pattern),
}

/// A path or a pattern of paths.
pub(crate) static PATH: Shape =
    Shape::new("a path", "/api/*", |text| path(text).map(|path| path.to_string()));

/// The beginning of a path.
pub(crate) static PREFIX: Shape = Shape::new("a path prefix", "/v2/", prefix);

/// A path, optionally with a query, to request.
pub(crate) static PROBE_PATH: Shape = Shape::new("a path", "/healthz", probe_path);

one!(PathPattern, Value::Text(text) => path(text).ok(), |it| Value::Text(it.to_string()), PathPattern::Exact(String::new()));

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Exact(path) => f.write_str(path),
            PathPattern::Prefix(prefix) => write!(f, "{prefix}*"),
            PathPattern::Suffix(suffix) => write!(f, "*{suffix}"),
            PathPattern::Contains(part) => write!(f, "*{part}*"),
            PathPattern::Regex(expression) => write!(f, "{expression}"),
        }
    }
}

impl PathPattern {
    /// Whether it matches every path that `other` matches.
    pub(crate) fn covers(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (PathPattern::Exact(a), PathPattern::Exact(b)) => a == b,
            (PathPattern::Prefix(a), PathPattern::Exact(b) | PathPattern::Prefix(b)) => {
                b.starts_with(a.as_str())
            }
            (PathPattern::Suffix(a), PathPattern::Exact(b) | PathPattern::Suffix(b)) => {
                b.ends_with(a.as_str())
            }
            (PathPattern::Contains(a), PathPattern::Exact(b))
            | (PathPattern::Contains(a), PathPattern::Prefix(b))
            | (PathPattern::Contains(a), PathPattern::Suffix(b))
            | (PathPattern::Contains(a), PathPattern::Contains(b)) => b.contains(a.as_str()),
            (PathPattern::Regex(a), PathPattern::Exact(b)) => a.matches(b.as_bytes()),
            (PathPattern::Regex(a), PathPattern::Regex(b)) => a == b,
            _ => false,
        }
    }
}

fn path(text: &str) -> Result<PathPattern, Refused> {
    let message = format!("{} is not a path", quote(text));
    if text == "*" {
        return refuse(message, "did you mean \"/*\"? Or leave `path` out to match every path");
    }
    if let Some(expression) = text.strip_prefix('~') {
        return regex(expression, text).map_err(|hint| Refused { message, hint });
    }
    if let Some(rest) = text.strip_prefix('!') {
        return refuse(message, format!("what must not match stands in `not = {{ path = {rest:?} }}`"));
    }
    let (begins, rest) = match text.strip_prefix('*') {
        Some(rest) => (false, rest),
        None => (true, text),
    };
    let (ends, rest) = match rest.strip_suffix('*') {
        Some(rest) => (false, rest),
        None => (true, rest),
    };
    if rest.contains('*') {
        return refuse(message, "a `*` stands only at an end, such as \"/api/*\" or \"*.png\"");
    }
    if rest.is_empty() {
        return refuse(message, "one `*` says it already; or leave `path` out to match every path");
    }
    match begins {
        true => plain_path(rest, text),
        false => plain_part(rest),
    }
    .map_err(|hint| Refused { message, hint })?;
    let rest = rest.to_owned();
    Ok(match (begins, ends) {
        (true, true) => PathPattern::Exact(rest),
        (true, false) => PathPattern::Prefix(rest),
        (false, true) => PathPattern::Suffix(rest),
        (false, false) => PathPattern::Contains(rest),
    })
}

/// Parses a regular expression for paths; `text` is the whole text, with its `~`. `Err` says what to write.
fn regex(expression: &str, text: &str) -> Result<PathPattern, String> {
    let begins = expression.strip_prefix('^').unwrap_or("/");
    if begins.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!("it can never match: a path begins with a slash: \"~^/{begins}\""));
    }
    if expression.contains("\\?") {
        return Err(
            "a path is compared without the query: expected `query = { NAME = \"VALUE\" }`".to_owned()
        );
    }
    Pattern::parse(text, Case::Sensitive).map(PathPattern::Regex)
}

/// Checks a part of a path. `Err` says what to write.
fn plain_part(part: &str) -> Result<(), String> {
    if part.contains(['?', '#']) {
        return Err("a path is compared without the query".to_owned());
    }
    super::http::uri_characters(part)?;
    let normal = normal_escapes(part);
    if normal != part {
        return Err(format!("it can never match: paths are compared in their normal form, \"{normal}\""));
    }
    Ok(())
}

/// Checks an absolute path without query. `Err` says what to write.
pub(crate) fn plain_path(path: &str, whole: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("a path begins with a slash: \"/{whole}\""));
    }
    if let Some(at) = path.find(['?', '#']) {
        return Err(format!("a path is compared without the query: \"{}\"", &path[..at]));
    }
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err("it can never match: `.` and `..` are resolved before paths are compared".to_owned());
    }
    super::http::uri_characters(path)?;
    let normal = normal_escapes(path);
    if normal != path {
        let star = if whole.ends_with('*') { "*" } else { "" };
        return Err(format!(
            "it can never match: paths are compared in their normal form, \"{normal}{star}\""
        ));
    }
    Ok(())
}

/// The path in the normal form of requests (RFC 3986 section 6.2.2): unreserved bytes unescaped, other
/// escapes in upper case.
fn normal_escapes(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        normal.push_str(&rest[..at]);
        let escape = &rest[at..(at + 3).min(rest.len())];
        match u8::from_str_radix(escape.trim_start_matches('%'), 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                normal.push(char::from(byte))
            }
            _ => normal.push_str(&escape.to_ascii_uppercase()),
        }
        rest = &rest[at + escape.len()..];
    }
    normal + rest
}

fn prefix(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a path prefix", quote(text));
    if let Some(rest) = text.strip_suffix('*') {
        return refuse(message, format!("leave out the `*`: \"{rest}\""));
    }
    plain_path(text, text).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

fn probe_path(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a path", quote(text));
    if let Some((_, rest)) = text.split_once("://") {
        let path = rest.find('/').map_or("/", |at| &rest[at..]);
        return refuse(
            message,
            format!("the probe goes to the backend itself; leave the host out: \"{path}\""),
        );
    }
    if !text.starts_with('/') {
        return refuse(message, format!("a path begins with a slash: \"/{text}\""));
    }
    if let Some(at) = text.find('#') {
        return refuse(message, format!("a fragment is never sent: \"{}\"", &text[..at]));
    }
    super::http::uri_characters(text).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}
