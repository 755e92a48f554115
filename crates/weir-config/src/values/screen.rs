//! Rates, what requests are counted by, and patterns of lists.

use weir_screen::{Case, Key, Pattern, Rate};

use super::http::{METHODS, cookie_name, field_name, plain_path};
use super::{Shape, Value, refuse};
use crate::report::quote;
use crate::suggest::nearest;
use crate::units::Refused;

/// `rate_limit.rate`
pub(crate) static REQUEST_RATE: Shape = Shape::new("a rate", "100/s", rate);
/// `rate_limit.key`, `concurrency_limit.key`
pub(crate) static LIMIT_KEY: Shape = Shape::new("what to count by", "client_ip", limit_key);
/// `deny_method`, `allow_method`
pub(crate) static METHOD_PATTERN: Shape = Shape::new("a method or a pattern", "DELETE", method);
/// `deny_path`, `allow_path`
pub(crate) static PATH_PATTERN: Shape = Shape::new("a path or a pattern", "/admin/*", path);
/// `deny_user_agent`, `allow_user_agent`
pub(crate) static USER_AGENT_PATTERN: Shape = Shape::new("a user agent or a pattern", "curl/*", user_agent);

fn rate(text: &str) -> Result<Value, Refused> {
    let message = || format!("{} is not a rate", quote(text));
    Rate::parse(text).map(Value::RequestRate).map_err(|hint| Refused { message: message(), hint })
}

fn limit_key(text: &str) -> Result<Value, Refused> {
    const WORDS: [&str; 3] = ["client_ip", "route", "listener"];
    const EXPECTED: &str =
        "expected \"client_ip\", \"route\", \"listener\", \"header:NAME\" or \"cookie:NAME\"";
    let key = match (text, text.split_once(':')) {
        ("client_ip", _) => Key::CLIENT,
        ("route", _) => Key::Route,
        ("listener", _) => Key::Listener,
        (_, Some(("header", name))) => Key::Header(field_name(name)?.into()),
        (_, Some(("cookie", name))) => {
            cookie_name(name)?;
            Key::Cookie(name.into())
        }
        _ => {
            let hint = match (text, nearest(text, WORDS)) {
                ("header" | "cookie", _) => format!("say which one, such as \"{text}:session\""),
                ("source" | "src" | "ip" | "remote_addr" | "binary_remote_addr" | "client", _) => {
                    "did you mean \"client_ip\"?".to_owned()
                }
                ("server" | "all" | "global", _) => "did you mean \"route\"?".to_owned(),
                (_, Some(word)) => format!("did you mean \"{word}\"?"),
                _ => EXPECTED.to_owned(),
            };
            return refuse(format!("{} is not something to count by", quote(text)), hint);
        }
    };
    Ok(Value::LimitKey(key))
}

fn pattern(text: &str, case: Case) -> Result<Value, Refused> {
    let message = || format!("{} is not a pattern", quote(text));
    Pattern::parse(text, case).map(Value::Pattern).map_err(|hint| Refused { message: message(), hint })
}

fn user_agent(text: &str) -> Result<Value, Refused> {
    pattern(text, Case::Ignored)
}

fn method(text: &str) -> Result<Value, Refused> {
    let upper = text.to_ascii_uppercase();
    if upper != text && METHODS.contains(&upper.trim_start_matches('!')) {
        return refuse(
            format!("{} is not a method", quote(text)),
            format!("did you mean \"{upper}\"? Methods are case-sensitive"),
        );
    }
    pattern(text, Case::Sensitive)
}

fn path(text: &str) -> Result<Value, Refused> {
    let bare = text.strip_prefix('!').unwrap_or(text);
    // Where the beginning is said, it must be one that a normalised path can have.
    if !bare.starts_with(['~', '*']) {
        let whole = bare.strip_suffix('*').unwrap_or(bare);
        if !whole.contains('*') {
            plain_path(whole, bare)
                .map_err(|hint| Refused { message: format!("{} is not a path", quote(text)), hint })?;
        }
    }
    pattern(text, Case::Sensitive)
}
