//! Rust text as tokens: enough to find imports, signatures and comments without a parser.

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or a keyword.
    Word,
    /// `::`, `->`, `=>`, or any other character that is neither a name nor a blank.
    Mark,
    /// A string, a character or a number.
    Literal,
    /// A lifetime or a label.
    Lifetime,
}

/// One token, with the line (from 1) it begins on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind,
    /// As it stands in the file.
    pub text: &'a str,
    /// From 1.
    pub line: usize,
}

/// Marks of more than one character that matter here: if it were split, `->` would look like the end of a
/// generic list.
const LONG_MARKS: [&str; 3] = ["::", "->", "=>"];

/// The tokens of a file without comments and blanks. Text that is not Rust gives some tokens and never an
/// error.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, length) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else if rest.starts_with("//") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, block_comment(rest))
        } else if let Some(length) = string(rest) {
            (Some(Kind::Literal), length)
        } else if first == '\'' {
            quote(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let kind = if first.is_ascii_digit() { Kind::Literal } else { Kind::Word };
            (Some(kind), word(rest))
        } else {
            let long = LONG_MARKS.iter().find(|mark| rest.starts_with(**mark));
            (Some(Kind::Mark), long.map_or(first.len_utf8(), |mark| mark.len()))
        };
        if let Some(kind) = kind {
            found.push(Token { kind, text: &rest[..length], line });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

fn word(rest: &str) -> usize {
    let raw = if rest.starts_with("r#") { 2 } else { 0 };
    rest[raw..].find(|c: char| !c.is_alphanumeric() && c != '_').map_or(rest.len(), |end| raw + end)
}

/// The length of a comment that may hold others of its kind.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a string of any kind, when one begins here.
fn string(rest: &str) -> Option<usize> {
    let prefix = rest.find(|c: char| !matches!(c, 'b' | 'c' | 'r')).unwrap_or(rest.len());
    if prefix > 2 {
        return None;
    }
    let after = &rest[prefix..];
    let hashes = after.find(|c| c != '#').unwrap_or(after.len());
    let is_raw = rest[..prefix].ends_with('r');
    if !after[hashes..].starts_with('"') || (hashes > 0 && !is_raw) {
        return None;
    }
    let begin = prefix + hashes + 1;
    if is_raw {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[begin..].find(&close).map_or(rest.len(), |end| begin + end + close.len()));
    }
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(begin) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// A character, or a lifetime: a lifetime is a name that no quote follows.
fn quote(rest: &str) -> (Option<Kind>, usize) {
    let inside = &rest[1..];
    if let Some(escape) = inside.strip_prefix('\\') {
        let skipped = escape.chars().next().map_or(0, char::len_utf8);
        let end = escape[skipped..].find('\'').map_or(rest.len(), |end| 2 + skipped + end + 1);
        return (Some(Kind::Literal), end);
    }
    let first = inside.chars().next().map_or(0, char::len_utf8);
    if inside[first..].starts_with('\'') {
        return (Some(Kind::Literal), 1 + first + 1);
    }
    (Some(Kind::Lifetime), 1 + word(inside))
}

/// Where the bracket that opens at `open` is closed: the index of the closing token, or the end of the
/// tokens.
///
/// Round, square and curly brackets count together; `<` and `>` do not, because they also compare.
pub fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if token.kind == Kind::Mark {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return index;
                    }
                }
                _ => {}
            }
        }
    }
    tokens.len()
}

/// The tokens without the items that only tests compile: `#[cfg(test)]` and the item that follows it.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let mark: Vec<&str> = tokens[at..].iter().take(7).map(|token| token.text).collect();
        if mark != ["#", "[", "cfg", "(", "test", ")", "]"] {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        at = item_end(tokens, at + 7);
    }
    kept
}

/// Words that begin an item.
const ITEMS: [&str; 10] = ["const", "enum", "fn", "impl", "mod", "static", "struct", "trait", "type", "use"];

/// The index after an item: after its body, or after the semicolon that ends it.
fn item_end(tokens: &[Token<'_>], begin: usize) -> usize {
    let (mut at, mut is_item) = (begin, false);
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            // A field, a variant or an arm ends with a comma; in an item commas separate type arguments.
            "," if !is_item => return at + 1,
            word if ITEMS.contains(&word) => is_item = true,
            "{" => {
                let close = closing(tokens, at);
                // `use a::{b, c};` continues after its bracket.
                let goes_on = tokens.get(close + 1).is_some_and(|next| next.text == ";");
                return close + 1 + usize::from(goes_on);
            }
            "(" | "[" => at = closing(tokens, at),
            "}" => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_blanks_are_left_out_and_lines_are_counted_through_them() {
        let found = tokens("a // b\n/* c /* d */\n */ e::f");
        let shown: Vec<_> = found.iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(shown, [("a", 1), ("e", 3), ("::", 3), ("f", 3)]);
    }

    #[test]
    fn a_string_is_one_token_whatever_it_holds() {
        assert_eq!(
            texts(r####"x("a\" {", b"\\", r#"" }"#, br"\", c"y")"####),
            [
                "x",
                "(",
                r#""a\" {""#,
                ",",
                r#"b"\\""#,
                ",",
                r###"r#"" }"#"###,
                ",",
                r#"br"\""#,
                ",",
                r#"c"y""#,
                ")"
            ]
        );
    }

    #[test]
    fn a_quote_begins_a_character_or_a_lifetime() {
        let found = tokens(r"&'a '{' '\'' '\u{1F600}' 'ä' 'static");
        let lifetimes: Vec<_> =
            found.iter().filter(|token| token.kind == Kind::Lifetime).map(|token| token.text).collect();
        assert_eq!(lifetimes, ["'a", "'static"]);
        assert_eq!(found.iter().filter(|token| token.kind == Kind::Literal).count(), 4);
    }

    #[test]
    fn a_raw_name_is_no_string() {
        assert_eq!(texts("r#type br bar"), ["r#type", "br", "bar"]);
    }

    #[test]
    fn text_that_is_no_rust_ends() {
        for text in ["\"", "'", "'\\", "/*", "r#\"", "b'", "{{{", "ä'ä"] {
            assert!(tokens(text).len() <= 4, "{text}");
        }
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let text = "use a;\n#[cfg(test)]\nuse b::{c, d};\n#[cfg(test)]\nmod tests { fn e() { x; } }\nmod f;\n#[cfg(test)]\nmod g;\n#[cfg(test)]\n#[allow(x)]\nfn i() -> R<A, B> { j }\nstruct S { a: u8, #[cfg(test)] h: u8 }\n";
        let all = tokens(text);
        let kept: Vec<_> = without_tests(&all).iter().map(|token| token.text).collect();
        assert_eq!(kept.join(" "), "use a ; mod f ; struct S { a : u8 , }");
    }
}
