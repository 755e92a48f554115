//! Regular expressions: from PCRE's syntax to that of Weir, which takes linear time.

use std::collections::BTreeSet;

/// A regular expression as Weir writes it, without its `~`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The expression.
    pub text: String,
    /// The names of its groups, in their order; empty for those without one.
    pub groups: Vec<String>,
    /// Whether it matches the same texts. Otherwise it matches more, never less.
    pub is_same: bool,
}

/// What an expression is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// A path: nginx has it decoded, Weir keeps the escapes of what is not a plain character.
    Path,
    /// Anything else.
    Text,
}

/// Translates an expression. `any_case` is that of `~*`.
///
/// # Errors
/// It has what cannot be expressed at all, such as recursion.
pub fn translate(pcre: &str, any_case: bool, compared: Compared) -> Result<Translated, String> {
    let mut translator =
        Translator { rest: pcre, out: String::new(), groups: Vec::new(), is_same: true, compared };
    translator.run()?;
    let Translator { out, groups, is_same, .. } = translator;
    let out = if out.is_empty() { "(?:)".to_owned() } else { out };
    let text = if any_case { format!("(?i){out}") } else { out };
    Ok(Translated { text, groups, is_same })
}

/// A text as an expression that matches it.
pub fn literal(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric()
            && c.is_ascii()
            && !matches!(c, '/' | '_' | '%' | ' ' | '=' | ':' | '@' | ',')
        {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

struct Translator<'p> {
    rest: &'p str,
    out: String,
    groups: Vec<String>,
    is_same: bool,
    compared: Compared,
}

impl Translator<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.chars().next() {
            let after = &self.rest[c.len_utf8()..];
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.open()?,
                '{' if !is_repetition(after) => {
                    self.out.push_str("\\{");
                    self.rest = after;
                }
                ' ' if self.compared == Compared::Path => {
                    self.out.push_str("%20");
                    self.rest = after;
                }
                c if !c.is_ascii() && self.compared == Compared::Path => {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).bytes() {
                        self.out.push_str(&format!("%{byte:02X}"));
                    }
                    self.rest = after;
                }
                c => {
                    self.out.push(c);
                    self.rest = after;
                }
            }
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        let mut chars = self.rest.chars();
        chars.next();
        let Some(c) = chars.next() else { return Err("it ends in a backslash".to_owned()) };
        let after = chars.as_str();
        self.rest = after;
        match c {
            '/' | '<' | '>' | '"' | '\'' | '_' | '%' | '=' | ':' | '@' | ',' | ' ' => self.out.push(c),
            'Z' => self.out.push_str("\\z"),
            'h' => self.out.push_str("[ \\t]"),
            'e' => self.out.push_str("\\x1b"),
            'Q' => {
                let (quoted, rest) = after.split_once("\\E").unwrap_or((after, ""));
                self.out.push_str(&literal(quoted));
                self.rest = rest;
            }
            'E' => {}
            '1'..='9' | 'k' | 'g' => {
                // A reference to what a group has matched. Anything may stand there.
                let name = after.strip_prefix(['<', '{', '\'']).and_then(|rest| rest.find(['>', '}', '\'']));
                if let (Some(end), 'k' | 'g') = (name, c) {
                    self.rest = &after[end + 2..];
                }
                self.out.push_str(".*");
                self.is_same = false;
            }
            'G' | 'K' | 'R' | 'X' | 'C' | 'N' | 'H' | 'V' => {
                return Err(format!("`\\{c}` has no counterpart"));
            }
            c if c.is_ascii_alphanumeric() => self.out.extend(['\\', c]),
            c if c.is_ascii() => self.out.extend(['\\', c]),
            c => self.out.push(c),
        }
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        let mut chars = self.rest.char_indices().skip(1).peekable();
        let mut out = "[".to_owned();
        if chars.next_if(|(_, c)| *c == '^').is_some() {
            out.push('^');
        }
        if chars.next_if(|(_, c)| *c == ']').is_some() {
            out.push_str("\\]");
        }
        while let Some((at, c)) = chars.next() {
            match c {
                ']' => {
                    out.push(']');
                    self.out.push_str(&out);
                    self.rest = &self.rest[at + 1..];
                    return Ok(());
                }
                '\\' => {
                    let Some((_, escaped)) = chars.next() else { break };
                    match escaped {
                        'h' => out.push_str(" \\t"),
                        '/' | '<' | '>' | '"' | '\'' | '_' => out.push(escaped),
                        c => out.extend(['\\', c]),
                    }
                }
                '[' => match self.rest[at..].find(":]") {
                    Some(end) if self.rest[at..].starts_with("[:") => {
                        out.push_str(&self.rest[at..at + end + 2]);
                        while chars.next_if(|(next, _)| *next < at + end + 2).is_some() {}
                    }
                    _ => out.push_str("\\["),
                },
                '&' | '~' => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
        Err("a `[` has no end".to_owned())
    }

    fn open(&mut self) -> Result<(), String> {
        let Some(inner) = self.rest.strip_prefix("(?") else {
            self.rest = &self.rest[1..];
            let after = self.rest;
            if after.starts_with('*') {
                return Err("verbs such as `(*SKIP)` have no counterpart".to_owned());
            }
            self.groups.push(String::new());
            self.out.push('(');
            return Ok(());
        };
        for around in ["=", "!", "<=", "<!"] {
            if inner.starts_with(around) {
                return self.look_around(around);
            }
        }
        let name = [("<", ">"), ("P<", ">"), ("'", "'")].into_iter().find_map(|(open, close)| {
            let rest = inner.strip_prefix(open)?;
            let end = rest.find(close)?;
            Some((rest[..end].to_owned(), &rest[end + 1..]))
        });
        if let Some((name, rest)) = name {
            self.groups.push(name);
            self.out.push('(');
            self.rest = rest;
            return Ok(());
        }
        if let Some(rest) = inner.strip_prefix('>') {
            self.is_same = false;
            self.out.push_str("(?:");
            self.rest = rest;
            return Ok(());
        }
        if let Some(rest) = inner.strip_prefix('#') {
            self.rest = rest.split_once(')').map_or("", |(_, rest)| rest);
            return Ok(());
        }
        let flags = inner.find(|c: char| !matches!(c, 'i' | 'm' | 's' | 'x' | '-')).unwrap_or(inner.len());
        match inner[flags..].chars().next() {
            Some(end @ (':' | ')')) => {
                self.out.push_str("(?");
                self.out.push_str(&inner[..flags]);
                self.out.push(end);
                self.rest = &inner[flags + 1..];
                Ok(())
            }
            _ => Err("a group of this kind has no counterpart".to_owned()),
        }
    }

    /// Leaves out an assertion about what stands around a place, so that the expression matches more. One of
    /// what must not follow is expressed where nothing else is asked of what follows.
    fn look_around(&mut self, kind: &str) -> Result<(), String> {
        let start = 2 + kind.len();
        let end = closing(self.rest).ok_or_else(|| "a `(` has no end".to_owned())?;
        let (inner, rest) = (&self.rest[start..end], &self.rest[end + 1..]);
        let rest_is_free = matches!(rest, "" | ".*" | ".*$" | "(?:.*)" | ".+" | ".+$");
        if kind == "!"
            && rest_is_free
            && !self.is_in_group()
            && let Some(without) = avoiding(inner, !rest.starts_with(".+"))
        {
            self.out.push_str(&without);
            self.rest = "";
            return Ok(());
        }
        self.is_same = false;
        self.rest = rest;
        Ok(())
    }

    fn is_in_group(&self) -> bool {
        parentheses(&self.out).map(|(_, c)| if c == '(' { 1 } else { -1 }).sum::<i32>() != 0
    }
}

/// Whether a repetition such as `{2}`, `{2,}` or `{2,3}` stands behind its `{`.
fn is_repetition(after: &str) -> bool {
    let Some(end) = after.find('}') else { return false };
    let (least, most) = after[..end].split_once(',').unwrap_or((&after[..end], ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

/// The parentheses that are not escaped and stand in no class, with their places.
pub fn parentheses(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut in_class, mut escaped) = (false, false);
    text.char_indices().filter(move |(_, c)| {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' | ')' => return true,
            _ => {}
        }
        false
    })
}

/// The place of the `)` that closes the group at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0;
    parentheses(text).find_map(|(at, c)| {
        open += if c == '(' { 1 } else { -1 };
        (open == 0).then_some(at)
    })
}

/// An expression for texts that begin with none of these literals, which are separated by `|`.
fn avoiding(literals: &str, may_end: bool) -> Option<String> {
    let plain: Option<Vec<String>> = literals.split('|').map(plain_text).collect();
    let plain = plain?;
    let texts: Vec<&str> = plain.iter().map(String::as_str).collect();
    none_of(&texts, may_end)
}

/// A literal with its escapes undone; `None` if it is more than a literal.
fn plain_text(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(chars.next().filter(char::is_ascii_punctuation)?),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '/' | '-' | '_' => out.push(c),
            _ => return None,
        }
    }
    Some(out)
}

fn none_of(texts: &[&str], may_end: bool) -> Option<String> {
    if texts.iter().any(|text| text.is_empty()) {
        return None;
    }
    let firsts: BTreeSet<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
    let class: String = firsts
        .iter()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\{c}") })
        .collect();
    let mut parts = vec![format!("[^{class}]")];
    if may_end {
        parts.push("$".to_owned());
    }
    for first in firsts {
        let behind: Vec<&str> = texts.iter().filter_map(|text| text.strip_prefix(first)).collect();
        if let Some(more) = none_of(&behind, true) {
            parts.push(format!("{}{more}", literal(&first.to_string())));
        }
    }
    Some(format!("(?:{})", parts.join("|")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(pcre: &str) -> String {
        let translated = translate(pcre, false, Compared::Path).unwrap();
        assert!(translated.is_same, "{pcre}: {}", translated.text);
        translated.text
    }

    #[test]
    fn what_both_know_stays_as_it_is() {
        for pcre in ["\\.(png|jpg)$", "^/v[0-9]{1,3}/", "^/a(?:b|c)+", "^/[^/]+/\\d+$", "^/[[:alpha:]]+$"] {
            assert_eq!(same(pcre), pcre);
        }
        assert_eq!(same("^\\/a\\/"), "^/a/");
        assert_eq!(same("^/a{b}"), "^/a\\{b}");
        assert_eq!(same("^/[^[]"), "^/[^\\[]");
        assert_eq!(same("^/a b"), "^/a%20b");
        assert_eq!(translate("x", true, Compared::Text).unwrap().text, "(?i)x");
    }

    #[test]
    fn groups_have_numbers_and_their_names_are_known() {
        let translated = translate("^/(?<shop>[a-z]+)/(.*)/(?:x)(?P<id>y)", false, Compared::Path).unwrap();
        assert_eq!(translated.text, "^/([a-z]+)/(.*)/(?:x)(y)");
        assert_eq!(translated.groups, ["shop", "", "id"]);
    }

    #[test]
    fn what_must_not_follow_is_spelt_out_where_anything_else_may() {
        let text = same("/\\.(?!well-known)");
        let pattern = format!("~{text}");
        let matches = |path: &str| {
            let toml = format!(
                "[listener.a]\nbind = \"127.0.0.1:1\"\n[[listener.a.route]]\npath = '{pattern}'\nrespond = {{}}\n"
            );
            let config = weir_config::parse("", &toml).unwrap_or_else(|report| panic!("{report}"));
            match &config.listeners[0].routes[0].path[0] {
                weir_config::PathPattern::Regex(pattern) => pattern.matches(path.as_bytes()),
                other => panic!("{other}"),
            }
        };
        assert!(matches("/.git") && matches("/.w") && matches("/.") && matches("/.well-knowN/x"));
        assert!(!matches("/.well-known/acme") && !matches("/a"));
    }

    #[test]
    fn what_takes_more_than_linear_time_matches_more_and_says_so() {
        for (pcre, text) in
            [("^/(?=a).*b", "^/.*b"), ("(.)\\1", "(.).*"), ("^/(?!a)(.*)$", "^/(.*)$"), ("(?<!x)y", "y")]
        {
            let translated = translate(pcre, false, Compared::Path).unwrap();
            assert_eq!((translated.text.as_str(), translated.is_same), (text, false), "{pcre}");
        }
        for pcre in ["(?R)", "\\K", "[a", "(?(1)a|b)", "a\\"] {
            assert!(translate(pcre, false, Compared::Path).is_err(), "{pcre}");
        }
    }
}
