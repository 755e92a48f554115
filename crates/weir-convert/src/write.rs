//! Lines of the converted file.

use std::fmt::{Display, Write as _};

use weir_config::quoted;

/// Writes a line `key = value`.
pub fn line(body: &mut String, key: &str, value: impl Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(body, "{key} = {value}");
}

/// Formats texts as a TOML list, or a single one as a string.
pub fn texts(values: &[String]) -> String {
    match values {
        [one] => quoted(one),
        _ => format!("[{}]", values.iter().map(|value| quoted(value)).collect::<Vec<_>>().join(", ")),
    }
}
