//! Values as they stand in the converted file.

use weir_config::quoted;

use super::words::with_variables;

/// A text in quotes, with its variables of the environment.
pub fn said(text: &str) -> String {
    quoted(&with_variables(text))
}

/// Texts as a list, or a single one as a text.
pub fn said_all(values: &[String]) -> String {
    match values {
        [one] => said(one),
        several => format!("[{}]", several.iter().map(|value| said(value)).collect::<Vec<_>>().join(", ")),
    }
}

/// `{ a = 1, b = 2 }`
pub fn inline(entries: &[(String, String)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{} = {value}", key_of(key))).collect();
    format!("{{ {} }}", entries.join(", "))
}

/// A key, in quotes where it needs them.
pub fn key_of(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(plain) { key.to_owned() } else { quoted(key) }
}

/// A name that Weir takes for a listener, a pool or a log: HAProxy's may have `:` too, and any length.
pub fn name_of(name: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().map(|c| if good(c) { c } else { '_' }).take(60).collect();
    match name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => name,
        false => format!("x{name}").chars().take(60).collect(),
    }
}

/// Whether a text can be the name of a header field or a cookie (RFC 9110 section 5.6.2).
pub fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Keys of a table in the order in which they were said; each holds once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    entries: Vec<(String, String)>,
}

impl Keys {
    /// Says a key, in place of what it said before.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        let value = value.into();
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
    }

    /// Whether a key is said.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// What a key says.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(name, _)| name != key);
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys with their values.
    pub fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// As an inline table.
    pub fn inline(&self) -> String {
        inline(&self.entries)
    }

    /// Writes each key on a line.
    pub fn write(&self, body: &mut String) {
        for (key, value) in &self.entries {
            crate::write::line(body, &key_of(key), value);
        }
    }
}
