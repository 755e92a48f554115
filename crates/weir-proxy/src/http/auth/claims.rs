//! The claims of a token as text for header fields and logs.

use serde_json::{Map, Value};

/// The claims of a valid token.
pub struct Claims(pub(super) Map<String, Value>);

impl Claims {
    /// The value of a claim, found by its name or by a path of names; `None` if it is missing, or has no form
    /// that fits into one line. The text comes from somebody else and is not escaped.
    pub fn told(&self, path: &str) -> Option<String> {
        found(&self.0, path).and_then(told)
    }
}

/// The claim of that name, or of a path of names inside other claims.
fn found<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    found(claims.get(first)?.as_object()?, rest)
}

/// The value as it is written in a field: texts, whole numbers, booleans, and lists of them. `None` for
/// nested values, and for a list with a text that contains a comma, which a backend would take for two.
/// `None` too for numbers beyond 64 bits: they are rounded when they are parsed, so two users could get the
/// same value.
fn told(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_f64() => None,
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().filter_map(told).collect();
            all.iter().all(|one| !one.contains(',')).then(|| all.join(","))
        }
        Value::Null | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_by_their_whole_name_or_by_a_path_and_told_flat() {
        let claims = serde_json::from_str(
            r#"{"a.b": "whole", "a": {"c": ["x", 1, {"y": 2}], "d": {"e": true}}, "https://x.example/r": "url"}"#,
        );
        let claims: Map<String, Value> = claims.unwrap();
        let of = |path: &str| found(&claims, path).and_then(told);
        assert_eq!(of("a.b").as_deref(), Some("whole"));
        assert_eq!(of("a.c").as_deref(), Some("x,1"));
        assert_eq!(of("a.d.e").as_deref(), Some("true"));
        let list = |text: &str| told(&serde_json::from_str(text).unwrap());
        assert_eq!(list(r#"["a,admin"]"#), None, "one role must not become two");
        assert_eq!(list(r#"["b", ["a", "admin"]]"#), None);
        assert_eq!((list(r#""a,b""#).as_deref(), list("[]").as_deref()), (Some("a,b"), Some("")));
        assert_eq!(of("https://x.example/r").as_deref(), Some("url"));
        for whole in ["18446744073709551615", "-9223372036854775808", "0"] {
            assert_eq!(list(whole).as_deref(), Some(whole));
        }
        for rounded in
            ["18446744073709551616", "20000000000000000000001", "-9223372036854775809", "1.5", "1e3"]
        {
            assert_eq!(list(rounded), None, "{rounded}");
        }
        assert_eq!((of("a"), of("a.x"), of("b.c")), (None, None, None));
    }
}
