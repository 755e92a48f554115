//! Mistakes in the TOML itself: in our words, and one for each mistake.
//!
//! The parser recovers and continues, so that one forgotten bracket causes a series of errors. Only the first
//! of a series is shown, and nothing else in the text that the series covers is reported.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::report::{Findings, Span, quote};
use crate::source::Source;

const FOREIGN: &str =
    "this is not TOML; docs/guide/from-haproxy.md and from-nginx.md say what each directive of those is here";

const OTHER_NOTATION: &str = "Weir's file is TOML: `[listener.web]` begins a table, and `bind = \"0.0.0.0:80\"` is a key in it; \
     docs/guide/getting-started.md has a whole one";

/// Lists and tables that are not closed, at most (count). Each costs one more pass over the text.
const MOST_OPEN: usize = 32;

/// The text with the unreadable parts blanked out (every other byte keeps its position), and the stretches
/// that were probably misread; problems found there are not worth reporting.
pub(crate) struct Mended<'a> {
    pub text: Cow<'a, str>,
    pub blind: Vec<Span>,
}

/// Reports every syntax error.
pub(crate) fn mend<'a>(findings: &mut Findings<'a>) -> Mended<'a> {
    let source = findings.source;
    let length = source.text().len();
    let mut text = Cow::Borrowed(source.text());
    let mut round = 0;
    // An unclosed list swallows the text after it. So the list is blanked out, and the rest is read as if the
    // list were not there.
    let mut errors = loop {
        let (table, errors) = DeTable::parse_recoverable(&text);
        let mut errors: Vec<(Span, String)> = errors
            .iter()
            .map(|error| {
                let span = error.span().map_or(Span { start: length, end: length }, Span::from);
                (span, error.message().to_owned())
            })
            .collect();
        errors.sort();
        let open =
            errors.iter().find_map(|(span, message)| never_closed(table.get_ref(), *span, message, source));
        round += 1;
        let Some(open) = open.filter(|_| round <= MOST_OPEN) else { break errors };
        let (what, end) =
            if source.text()[open.start..].starts_with('{') { ("table", "}") } else { ("list", "]") };
        let at = Span { start: open.start, end: open.start + 1 };
        findings.error(
            at,
            format!("the {what} that begins here is not closed"),
            format!("expected `{end}` at its end"),
        );
        text = Cow::Owned(blank(&text, swallowed(source, open, what == "table")));
    };
    errors.dedup();
    let mut blind: Vec<Span> = Vec::new();
    let mut reach = 0;
    for (span, message) in errors {
        // Errors come in order of position, so only the stretch that reaches farthest can contain the next
        // one.
        if !blind.is_empty() && span.start <= reach {
            continue;
        }
        let (message, hint) = explain(&message, span, findings);
        let foreign = hint == FOREIGN || hint == OTHER_NOTATION;
        findings.error(span, message, hint);
        if foreign {
            // The syntax of another program: every line would be wrong in the same way.
            blind.push(Span { start: 0, end: length });
            break;
        }
        let stretch = if source.line_at(span.start).trim_start().starts_with('[') {
            section(source, span.start)
        } else {
            source.line_span(span.start)
        };
        reach = reach.max(stretch.end);
        blind.push(stretch);
    }
    Mended { text, blind }
}

/// The lines of an unclosed list or table: up to the next line that begins a key, or that begins a table if
/// keys may be inside.
fn swallowed(source: &Source<'_>, open: Span, keys_inside: bool) -> Span {
    let mut lines = source.line_span(open.start);
    while let Some(next) = source.line_below(lines.end) {
        let text = source.slice(next).trim_start();
        let name =
            text.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.')).unwrap_or(0);
        let is_key = name > 0 && text[name..].trim_start().starts_with('=');
        if text.starts_with('[') || is_key && !keys_inside {
            break;
        }
        lines.end = next.end;
    }
    lines
}

/// The text with spaces in place of these bytes, but with its line ends.
fn blank(text: &str, span: Span) -> String {
    let end = span.end.min(text.len());
    let blanks: String =
        text[span.start..end].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect();
    [&text[..span.start], &blanks, &text[end..]].concat()
}

/// From the line of `offset` to the next line that looks like a table header.
fn section(source: &Source<'_>, offset: usize) -> Span {
    let mut section = source.line_span(offset);
    while let Some(line) = source.line_below(section.end) {
        if source.slice(line).trim_start().starts_with('[') {
            break;
        }
        section.end = line.end;
    }
    section
}

/// The list or inline table that extends into `span` because it is not closed where it should be.
fn never_closed(table: &DeTable<'_>, span: Span, message: &str, source: &Source<'_>) -> Option<Span> {
    let structural = [
        "unexpected `=` in array",
        "unclosed array",
        "unclosed inline table",
        "missing key for inline table",
    ];
    if !structural.iter().any(|start| message.starts_with(start))
        || message.starts_with("unclosed array table")
    {
        return None;
    }
    let open = table.iter().find_map(|(_, value)| enclosing(value, span.start, source))?;
    Some(Span { start: open.start, end: open.end.max(span.end) })
}

fn enclosing(value: &Spanned<DeValue<'_>>, offset: usize, source: &Source<'_>) -> Option<Span> {
    let span = Span::from(value.span());
    let line = source.line_span(span.start);
    let is_header = source.text().get(line.start..span.start).is_some_and(|before| before.trim().is_empty());
    let opens = source.text().get(span.start..).is_some_and(|text| text.starts_with(['[', '{']));
    if opens && !is_header && span.start <= offset && offset <= span.end {
        return Some(span);
    }
    match value.get_ref() {
        DeValue::Table(table) => table.iter().find_map(|(_, value)| enclosing(value, offset, source)),
        DeValue::Array(list) => list.iter().find_map(|value| enclosing(value, offset, source)),
        _ => None,
    }
}

fn explain(message: &str, span: Span, findings: &Findings<'_>) -> (String, String) {
    let source = findings.source;
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let raw = source.slice(span).trim();
    let (message, hint) = match what {
        "duplicate key" => return (format!("{} is said twice", quote(raw)), first_of(source, span)),
        "string values must be quoted" => return unquoted(raw),
        "key with no value" | "missing value for key" => return no_value(source, span),
        "invalid unquoted key" => return bad_key(source, span, raw),
        "invalid key-value pair" if source.text().trim_start().starts_with('{') => {
            ("this looks like JSON", OTHER_NOTATION)
        }
        "unclosed table" => ("a table header is not closed", "expected `]`"),
        "unclosed array table" => ("a table header is not closed", "expected `]]`"),
        "unquoted keys cannot be empty" => ("a name is missing", "expected letters, digits, `-` or `_`"),
        "invalid boolean" => ("this is neither true nor false", "expected `true` or `false`, in lower case"),
        "invalid basic string" if expected == "`\"`" => ("a text is not closed", "expected `\"` at its end"),
        "invalid literal string" if expected == "'" || expected == "`'`" => {
            ("a text is not closed", "expected `'` at its end")
        }
        "invalid basic string" | "invalid literal string" => {
            ("a text holds a control character", "write it as an escape such as `\\n` or `\\u0001`")
        }
        "missing escaped value" => (
            "this is not an escape",
            "a backslash itself is written `\\\\`; between single quotes it stands for itself",
        ),
        "missing comma between array elements" | "missing comma between key-value pairs" => {
            ("a comma is missing", "expected `,` in front of this")
        }
        "extra comma in array" | "extra comma in inline table" => ("a comma too many", "leave it out"),
        "extra `=`" => ("an `=` too many", "leave it out"),
        "missing assignment between key-value pairs" => ("a key without value", "expected `=` and a value"),
        "unexpected key or value" => {
            ("something follows the value", "expected the end of the line, or `#` and a comment")
        }
        "carriage return must be followed by newline" => {
            ("a carriage return without line feed", "save the file with LF or CRLF line ends")
        }
        "invalid comment character" => ("a comment holds a control character", "leave it out"),
        "cannot recurse further; max recursion depth met" | "recursion limit" => {
            ("lists and tables are nested too deeply", "no key needs more than four levels")
        }
        _ if what.starts_with("cannot extend value of type ") => {
            return (
                format!("{} is a value already, not a table", quote(raw)),
                "keep one of the two".to_owned(),
            );
        }
        _ if expected == "nothing" || what == "unexpected leading zero" => return not_a_number(source, span),
        _ => {
            return (
                what.to_owned(),
                if expected.is_empty() { String::new() } else { format!("expected {expected}") },
            );
        }
    };
    (message.to_owned(), hint.to_owned())
}

fn unquoted(raw: &str) -> (String, String) {
    const CURLY: [char; 6] = ['“', '”', '„', '‘', '’', '«'];
    let bare = raw.trim_matches(CURLY);
    if raw.is_empty() {
        ("a value is missing".to_owned(), "expected a value behind the `=`".to_owned())
    } else if raw.starts_with(CURLY) {
        (
            format!("{} stands in typographic quotes", quote(bare)),
            format!("say \"{bare}\" with straight quotes"),
        )
    } else {
        (format!("{} is not in quotes", quote(raw)), format!("say \"{}\"", bare.replace(['"', '\\'], "")))
    }
}

fn not_a_number(source: &Source<'_>, span: Span) -> (String, String) {
    let line = source.line_span(span.start);
    let before = source.text().get(line.start..span.start).unwrap_or("");
    let start = line.start + before.rfind(['=', ',', '[']).map_or(0, |at| at + 1);
    let rest = source.text().get(start..line.end).unwrap_or("");
    let token = rest.split(['#', ',', ']', '}']).next().unwrap_or("").trim();
    (
        format!("{} is not a number", quote(token)),
        format!("say \"{}\" if it is a text", token.replace(['"', '\\'], "")),
    )
}

fn no_value(source: &Source<'_>, span: Span) -> (String, String) {
    let line = source.line_at(span.start).trim();
    let first = line.split_whitespace().next().unwrap_or("");
    let message = format!("{} has no value", quote(first.trim_end_matches([';', ':', '{'])));
    let foreign = [
        "frontend", "backend", "listen", "server", "upstream", "global", "defaults", "events", "http", "acl",
    ];
    if line.ends_with([';', '{', '}']) || foreign.contains(&first) {
        return (message, FOREIGN.to_owned());
    }
    (message, format!("expected `{} = …`", first.trim_end_matches(':')))
}

/// Blanks without a width, which are no white space to Unicode.
const ZERO_WIDTH: [char; 4] = ['\u{200b}', '\u{200c}', '\u{200d}', '\u{feff}'];

fn bad_key(source: &Source<'_>, span: Span, raw: &str) -> (String, String) {
    let line = source.line_at(span.start).trim_start();
    if line.starts_with("//") || line.starts_with(';') || line.starts_with("/*") {
        return ("this is not a key".to_owned(), "a comment begins with `#`".to_owned());
    }
    if raw.starts_with(':') && line.trim_end().ends_with(':') {
        return ("this looks like YAML".to_owned(), OTHER_NOTATION.to_owned());
    }
    if raw.starts_with(':') {
        return (
            "a key and its value are joined by `=`".to_owned(),
            "expected `=` in place of `:`".to_owned(),
        );
    }
    // Nobody sees how it differs from a space.
    let first = source.text().get(span.start..).and_then(|text| text.chars().next());
    if let Some(blank) = first.filter(|c| c.is_whitespace() || ZERO_WIDTH.contains(c)) {
        return (
            format!("a blank that is no ordinary space (U+{:04X})", u32::from(blank)),
            "pages and mails have such blanks: put a space in its place".to_owned(),
        );
    }
    (
        format!("a key cannot hold {}", quote(raw)),
        "expected letters, digits, `-` and `_`; anything else stands in quotes".to_owned(),
    )
}

/// "the first is at …" for a duplicate key or header; empty if the first one cannot be found in the text.
fn first_of(source: &Source<'_>, span: Span) -> String {
    let said =
        |offset: usize| format!("the first is at {}", source.place(Span { start: offset, end: offset }));
    let key = source.slice(span);
    let line = source.line_span(span.start);
    let starts_with_key =
        |text: &str| text.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']));
    let own = source.text().get(line.start..span.start).unwrap_or("");
    let is_header = own.trim_start().starts_with('[');
    if !is_header && !own.trim().is_empty() {
        // Inside an inline table: the first one is further left.
        let left = own.match_indices(key).find(|(at, _)| starts_with_key(&own[*at..]));
        return left.map_or_else(String::new, |(at, _)| said(line.start + at));
    }
    let plain = |text: &str| text.split('#').next().unwrap_or("").replace([' ', '\t', '\r', '"', '\''], "");
    let wanted = plain(source.line_at(span.start));
    let mut below = line;
    while let Some(line) = source.line_above(below.start) {
        let text = source.slice(line);
        let indent = text.len() - text.trim_start().len();
        if is_header && plain(text) == wanted || !is_header && starts_with_key(text.trim_start()) {
            return said(line.start + indent);
        }
        if !is_header && text.trim_start().starts_with('[') {
            break;
        }
        below = line;
    }
    String::new()
}
