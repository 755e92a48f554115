//! Which paths patterns of Weir have in common, as far as it can be told from their texts.

/// What is known of the paths that a pattern matches.
enum Form<'p> {
    Exact(&'p str),
    /// All paths that begin so.
    Prefix(&'p str),
    Suffix(&'p str),
    Contains(&'p str),
    /// Some of the paths that begin so.
    Within(String),
    Unknown,
}

fn form(pattern: &str) -> Form<'_> {
    if let Some(expression) = pattern.strip_prefix('~') {
        return beginning(expression).map_or(Form::Unknown, Form::Within);
    }
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => Form::Contains(rest.trim_end_matches('*')),
        (Some(suffix), None) => Form::Suffix(suffix),
        (None, Some(prefix)) => Form::Prefix(prefix),
        (None, None) => Form::Exact(pattern),
    }
}

/// The text that every match of an expression begins with; `None` where none is known.
fn beginning(expression: &str) -> Option<String> {
    let rest = expression.strip_prefix('^').filter(|rest| !rest.contains('|'))?;
    let mut text = String::new();
    let mut left = rest.chars().peekable();
    while let Some(c) = left.next() {
        let plain = match c {
            '\\' => left.next().filter(char::is_ascii_punctuation),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => None,
            c => Some(c),
        };
        // A character that may be repeated, or be missing, is not known to be there.
        match plain.filter(|_| !matches!(left.peek(), Some('*' | '?' | '{'))) {
            Some(c) => text.push(c),
            None => break,
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Whether `wide` matches every path that `narrow` does. False where it can't be told.
pub fn covers(wide: &str, narrow: &str) -> bool {
    match (form(wide), form(narrow)) {
        (Form::Exact(a), Form::Exact(b)) => a == b,
        (Form::Prefix(a), Form::Exact(b) | Form::Prefix(b)) => b.starts_with(a),
        (Form::Prefix(a), Form::Within(b)) => b.starts_with(a),
        (Form::Suffix(a), Form::Exact(b) | Form::Suffix(b)) => b.ends_with(a),
        (Form::Contains(a), Form::Exact(b) | Form::Prefix(b) | Form::Suffix(b) | Form::Contains(b)) => {
            b.contains(a)
        }
        (Form::Contains(a), Form::Within(b)) => b.contains(a),
        _ => wide == narrow,
    }
}

/// Whether no path is matched by both. False where it can't be told.
pub fn exclude(one: &str, other: &str) -> bool {
    match (form(one), form(other)) {
        (Form::Exact(a), Form::Exact(b)) => a != b,
        (Form::Exact(a), Form::Prefix(b)) | (Form::Prefix(b), Form::Exact(a)) => !a.starts_with(b),
        (Form::Exact(a), Form::Within(b)) | (Form::Within(b), Form::Exact(a)) => !a.starts_with(&b),
        (Form::Exact(a), Form::Suffix(b)) | (Form::Suffix(b), Form::Exact(a)) => !a.ends_with(b),
        (Form::Exact(a), Form::Contains(b)) | (Form::Contains(b), Form::Exact(a)) => !a.contains(b),
        (Form::Prefix(a), Form::Prefix(b)) => apart(a, b),
        (Form::Prefix(a), Form::Within(b)) | (Form::Within(b), Form::Prefix(a)) => apart(a, &b),
        (Form::Within(a), Form::Within(b)) => apart(&a, &b),
        _ => false,
    }
}

/// Whether nothing begins with both.
fn apart(one: &str, other: &str) -> bool {
    !one.starts_with(other) && !other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_patterns_have_in_common_is_told_from_their_texts() {
        for (wide, narrow) in [
            ("/a*", "/a/b"),
            ("/a*", "/ab*"),
            ("/a*", "~^/a/[0-9]"),
            ("*.png", "/x.png"),
            ("*/x/*", "/a/x/*"),
            ("~^/a", "~^/a"),
        ] {
            assert!(covers(wide, narrow) && !exclude(wide, narrow), "{wide} {narrow}");
        }
        for (one, other) in [
            ("/a", "/b"),
            ("/a/*", "/b*"),
            ("/a/*", "/a"),
            ("~^/a/x", "/b*"),
            ("/a.css", "*.png"),
            ("~^/a", "~^/b"),
        ] {
            assert!(exclude(one, other) && exclude(other, one) && !covers(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("/a*", "*.png"),
            ("~a", "/b"),
            ("~(?i)^/a", "/b*"),
            ("~^/a|^/b", "/b*"),
            ("~^/ab?", "/a*/c"),
            ("~^/ab*", "/a"),
        ] {
            assert!(!exclude(one, other) && !covers(one, other), "{one} {other}");
        }
    }
}
