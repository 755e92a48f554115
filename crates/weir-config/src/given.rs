//! Values from the environment and from files: `${env:NAME}` and `${file:PATH}` in a text of the config. They
//! may be secrets, so they are never shown: messages about such a value say where it came from, and messages
//! about other values don't contain it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::report::Span;
use crate::suggest::either;
use crate::world::{World, below};

/// Longest value of a variable or a file, in bytes: a secret is a line.
const VALUE_BYTES: usize = 64 << 10;

/// Shortest value that is removed from messages about other values, in bytes: a shorter one is no secret, and
/// would occur in every other word.
const LEAST_SOUGHT: usize = 4;

/// The part of a long text that [`quote`](crate::report::quote) keeps (characters).
const QUOTED: usize = 60;

/// Characters with a special meaning in regular expressions.
const SIGNS: &str = "\\.+*?()|[]{}^$#&-~";

/// The beginnings of expressions.
const KINDS: [&str; 2] = ["${env:", "${file:"];

/// A text of the config that contains something from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    /// Written in the config.
    Said(String),
    /// From the environment or a file.
    Given { expression: String, value: String },
}

/// Why an expression has no value: the expression, what is wrong with it, and what to do.
pub(crate) struct Missing {
    pub expression: String,
    pub message: String,
    pub hint: String,
}

impl Text {
    /// Expands the expressions in a text. `None` if it has neither expressions nor escapes. Relative file
    /// names are below `folder`. `Err` holds every expression without a value.
    pub fn resolve(text: &str, folder: &str, files: &dyn World) -> Result<Option<Text>, Vec<Missing>> {
        let mut pieces = Vec::new();
        let mut missing = Vec::new();
        let mut rest = text;
        while let Some((at, kind)) = first_of(rest) {
            let expression = &rest[at..];
            // The text before an escape, without the `$` that makes it one.
            if rest[..at].ends_with('$') {
                pieces.push(Piece::Said(format!("{}{kind}", &rest[..at - 1])));
                rest = &expression[kind.len()..];
                continue;
            }
            pieces.push(Piece::Said(rest[..at].to_owned()));
            let Some(end) = expression.find('}') else {
                missing.push(Missing {
                    expression: kind.to_owned(),
                    message: format!("`{kind}` is not closed"),
                    hint: format!("expected `}}` behind it; the characters themselves are written `${kind}`"),
                });
                break;
            };
            let (expression, name) = (&expression[..=end], &expression[kind.len()..end]);
            rest = &rest[at + end + 1..];
            match value(kind, name, folder, files) {
                Ok(value) => pieces.push(Piece::Given { expression: expression.to_owned(), value }),
                Err((message, hint)) => {
                    missing.push(Missing { expression: expression.to_owned(), message, hint });
                }
            }
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        pieces.push(Piece::Said(rest.to_owned()));
        Ok((pieces.len() > 1).then_some(Text { pieces }))
    }

    /// Whether anything came from elsewhere; escapes don't count.
    pub fn is_given(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Given { .. }))
    }

    /// The whole text, expanded.
    pub fn whole(&self) -> String {
        self.written(str::to_owned)
    }

    /// The text for a key in which `$` begins a variable: in parts from elsewhere it does not.
    pub fn with_plain_dollars(&self) -> String {
        self.written(|value| value.replace('$', "$$"))
    }

    /// The text for a key whose values are patterns: a text that came entirely from elsewhere is taken
    /// literally. A secret that ends with `*` must not admit everybody who knows its beginning.
    pub fn with_plain_signs(&self) -> String {
        let is_said = |piece: &Piece| matches!(piece, Piece::Said(text) if !text.is_empty());
        let whole = self.whole();
        if self.pieces.iter().any(is_said) || !(whole.starts_with(['~', '!']) || whole.contains('*')) {
            return whole;
        }
        let mut expression = "~^".to_owned();
        for c in whole.chars() {
            if SIGNS.contains(c) {
                expression.push('\\');
            }
            expression.push(c);
        }
        expression + "$"
    }

    /// Whether it looks like a list: whether blanks, commas, semicolons or line ends separate several parts.
    pub fn holds_several(&self) -> bool {
        let whole = self.whole();
        whole.split([',', ';', ' ', '\t', '\r', '\n']).filter(|part| !part.is_empty()).count() > 1
    }

    /// Whether anything that came from elsewhere is empty.
    pub fn lacks_any(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Given { value, .. } if value.is_empty()))
    }

    fn written(&self, given: impl Fn(&str) -> String) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Said(text) => text.clone(),
            Piece::Given { value, .. } => given(value),
        };
        self.pieces.iter().map(piece).collect()
    }

    /// The origin, for messages.
    pub fn origin(&self) -> String {
        let of = |piece: &Piece| match piece {
            Piece::Said(_) => None,
            Piece::Given { expression, .. } => Some(format!("`{expression}`")),
        };
        let mut all: Vec<String> = self.pieces.iter().filter_map(of).collect();
        all.dedup();
        if all.len() == 2 { all.join(" and ") } else { either(&all) }
    }
}

/// Escapes a text so that reading it gives the same text: it then contains no expressions.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if first_of(text).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(KINDS.iter().fold(text.to_owned(), |text, kind| text.replace(kind, &format!("${kind}"))))
}

/// The first `${…}` expression in a text that is not a config value, such as a key. `None` if there is none
/// or if it is escaped.
pub(crate) fn expression_in(text: &str) -> Option<&str> {
    let (at, _) = first_of(text).filter(|(at, _)| !text[..*at].ends_with('$'))?;
    let end = text[at..].find('}').map_or(text.len(), |end| at + end + 1);
    Some(&text[at..end])
}

/// The first expression or escape of a text.
fn first_of(text: &str) -> Option<(usize, &'static str)> {
    KINDS.iter().filter_map(|kind| text.find(kind).map(|at| (at, *kind))).min()
}

/// The value of an expression. `Err` says why there is none, and what to do.
fn value(kind: &str, name: &str, folder: &str, files: &dyn World) -> Result<String, (String, String)> {
    let escape = format!("the characters themselves are written `${kind}`");
    if kind == KINDS[0] {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(good) || name.starts_with(|c: char| c.is_ascii_digit()) {
            let hint = format!("expected `{kind}NAME}}` with letters, digits and `_`; {escape}");
            return Err((format!("`{kind}{name}}}` names no environment variable"), hint));
        }
        let value = files.variable(name).map_err(|why| {
            let hint = format!("set it where Weir is started, or write the value here; {escape}");
            (format!("the environment variable `{name}` {why}"), hint)
        })?;
        return short(value, &format!("the environment variable `{name}`"));
    }
    if name.is_empty() || name.contains('\0') {
        return Err((
            format!("`{kind}{name}}}` names no file"),
            format!("expected `{kind}PATH}}`; {escape}"),
        ));
    }
    let path = below(folder, name);
    let bytes = files.read(&path, VALUE_BYTES + 1).map_err(|why| {
        let hint = "a path is seen from the folder of the file that says it";
        (format!("`{path}` can't be read: {why}"), hint.to_owned())
    })?;
    let text = String::from_utf8(bytes).map_err(|_| {
        (format!("`{path}` is not UTF-8 text"), "expected a file with the value and nothing else".to_owned())
    })?;
    let line = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    short(line.to_owned(), &format!("`{path}`"))
}

fn short(value: String, what: &str) -> Result<String, (String, String)> {
    if value.len() > VALUE_BYTES {
        return Err((format!("{what} is too long"), format!("expected at most {VALUE_BYTES} bytes")));
    }
    Ok(value)
}

/// All texts with parts from elsewhere, by position.
#[derive(Debug, Default)]
pub(crate) struct Given {
    texts: BTreeMap<Span, Text>,
}

impl Given {
    /// Records the position of a text with parts from elsewhere.
    pub fn add(&mut self, at: Span, text: Text) {
        self.texts.insert(at, text);
    }

    /// The text at a position; `None` if all of it is written in the config.
    pub fn at(&self, at: Span) -> Option<&Text> {
        self.texts.get(&at)
    }

    /// Whether the value at this position came from elsewhere.
    pub fn holds(&self, at: Span) -> bool {
        self.texts.contains_key(&at)
    }

    /// The text that contains a position.
    fn around(&self, at: Span) -> Option<&Text> {
        let most = Span { start: at.start, end: usize::MAX };
        let (span, text) = self.texts.range(..=most).next_back()?;
        (at.end <= span.end).then_some(text)
    }

    /// A message and its hint without anything that came from elsewhere.
    pub fn unseen(&self, at: Span, message: String, hint: String) -> (String, String) {
        if let Some(text) = self.around(at) {
            // The message may contain the value, or something similar to it.
            let message = format!("what comes from {} cannot stand here", text.origin());
            let hint =
                "it is not shown; with the value in its place, `weir check` says what is wrong with it";
            return (message, hint.to_owned());
        }
        (self.without(message), self.without(hint))
    }

    fn without(&self, mut message: String) -> String {
        let pieces = self.texts.values().flat_map(|text| &text.pieces);
        for piece in pieces {
            let Piece::Given { expression, value } = piece else { continue };
            let cut: String = value.chars().take(QUOTED).collect();
            for sought in [value.as_str(), &value.to_ascii_lowercase(), &cut] {
                if sought.len() >= LEAST_SOUGHT && message.contains(sought) {
                    message = message.replace(sought, expression);
                }
            }
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample;

    impl World for Sample {
        fn read(&self, path: &str, _: usize) -> Result<Vec<u8>, String> {
            match path {
                "/etc/weir/token" => Ok(b"s3cret\r\n".to_vec()),
                "two" => Ok(b"a\n\n".to_vec()),
                "lines" => Ok(b"10.0.0.0/8\n192.0.2.0/24\n".to_vec()),
                "latin" => Ok(b"\xe9".to_vec()),
                "long" => Ok(vec![b'a'; VALUE_BYTES + 1]),
                _ => Err("No such file or directory".to_owned()),
            }
        }

        fn names(&self, _: &str) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }

        fn variable(&self, name: &str) -> Result<String, String> {
            match name {
                "PORT" => Ok("80$0".to_owned()),
                "STARS" => Ok("*pa.d*".to_owned()),
                "EMPTY" => Ok(String::new()),
                _ => Err("is not set".to_owned()),
            }
        }
    }

    fn whole(text: &str) -> String {
        let resolved = Text::resolve(text, "/etc/weir/", &Sample);
        resolved.unwrap_or_else(|missing| panic!("{}", missing[0].message)).unwrap().whole()
    }

    fn refused(text: &str) -> String {
        Text::resolve(text, "", &Sample).err().map(|missing| missing[0].message.clone()).unwrap()
    }

    #[test]
    fn expressions_are_replaced_and_one_line_end_of_a_file_is_taken_off() {
        assert_eq!(whole("a:${env:PORT}/${file:token}!"), "a:80$0/s3cret!");
        let two = Text::resolve("${file:two}", "", &Sample).ok().flatten().unwrap();
        assert_eq!(two.whole(), "a\n");
    }

    #[test]
    fn other_dollars_stay_and_a_doubled_one_writes_the_expression_itself() {
        assert!(matches!(Text::resolve("$host ${x} $$", "", &Sample), Ok(None)));
        assert_eq!(whole("$${env:PORT}"), "${env:PORT}");
        assert_eq!(whole("$$${env:PORT} $${file:x}"), "$${env:PORT} ${file:x}");
        let written = Text::resolve("$${env:PORT}", "", &Sample).ok().flatten().unwrap();
        assert!(!written.is_given());
        for text in ["${env:PORT}", "$${file:token} and ${env:PORT}"] {
            assert_eq!(whole(&escaped(text)), text);
        }
        assert_eq!(escaped("$host ${x}"), "$host ${x}");
    }

    #[test]
    fn a_dollar_from_elsewhere_begins_no_variable() {
        let text = Text::resolve("$host:${env:PORT}", "", &Sample).ok().flatten().unwrap();
        assert_eq!(text.with_plain_dollars(), "$host:80$$0");
    }

    #[test]
    fn a_whole_value_from_elsewhere_is_no_pattern() {
        let text = |text: &str| Text::resolve(text, "", &Sample).ok().flatten().unwrap();
        assert_eq!(text("${env:STARS}").with_plain_signs(), r"~^\*pa\.d\*$");
        assert_eq!(text("${env:PORT}").with_plain_signs(), "80$0");
        assert_eq!(text("${env:PORT}*").with_plain_signs(), "80$0*");
        assert!(text("x${env:EMPTY}").lacks_any() && !text("${env:PORT}").lacks_any());
        assert!(text("${file:lines}").holds_several() && !text("${file:two}").holds_several());
    }

    #[test]
    fn what_stands_for_nothing_is_refused() {
        assert_eq!(refused("${env:NOPE}"), "the environment variable `NOPE` is not set");
        assert_eq!(refused("${env:a-b}"), "`${env:a-b}` names no environment variable");
        assert_eq!(refused("${env:A"), "`${env:` is not closed");
        assert_eq!(refused("${file:}"), "`${file:}` names no file");
        assert_eq!(refused("${file:nope}"), "`nope` can't be read: No such file or directory");
        assert_eq!(refused("${file:latin}"), "`latin` is not UTF-8 text");
        assert_eq!(refused("${file:long}"), "`long` is too long");
    }

    #[test]
    fn no_message_holds_what_came_from_elsewhere() {
        let mut given = Given::default();
        let text = Text::resolve("${file:token}", "/etc/weir/", &Sample).ok().flatten().unwrap();
        given.add(Span { start: 10, end: 30 }, text);
        let inside = Span { start: 12, end: 20 };
        let (message, hint) =
            given.unseen(inside, "`s3cret` is no size".into(), "did you mean `secret`?".into());
        assert!(message.contains("${file:token}") && !message.contains("s3cret"), "{message}");
        assert!(!hint.contains("secret`"), "{hint}");
        let elsewhere = Span { start: 31, end: 35 };
        let (message, _) = given.unseen(elsewhere, "it clashes with s3cret".into(), String::new());
        assert_eq!(message, "it clashes with ${file:token}");
    }
}
