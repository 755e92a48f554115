//! Regular expressions: HAProxy's (PCRE) as Weir has them (Rust's regex library, on bytes, linear time).

/// The text with everything escaped that means something in an expression.
pub fn literal(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(
            c,
            '\\' | '.'
                | '+'
                | '*'
                | '?'
                | '('
                | ')'
                | '|'
                | '['
                | ']'
                | '{'
                | '}'
                | '^'
                | '$'
                | '#'
                | '&'
                | '-'
                | '~'
        ) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// An expression that matches one of these.
pub fn one_of(expressions: &[String]) -> String {
    match expressions {
        [one] => one.clone(),
        several => format!("(?:{})", several.join("|")),
    }
}

/// The same expression for Weir. `Err` says what of it there is nothing like.
pub fn translated(expression: &str) -> Result<String, String> {
    let mut written = String::with_capacity(expression.len());
    let mut left = expression.chars().peekable();
    let mut repeated = false;
    while let Some(c) = left.next() {
        let was_repeated = std::mem::replace(&mut repeated, false);
        match c {
            '\\' => match left.next() {
                None => return Err("it ends in a backslash".to_owned()),
                Some(c @ '1'..='9') => return Err(format!("it has a back-reference (`\\{c}`)")),
                Some(
                    c @ ('K' | 'G' | 'R' | 'X' | 'Q' | 'E' | 'C' | 'g' | 'k' | 'h' | 'H' | 'V' | 'N' | 'c'
                    | 'Z'),
                ) => {
                    return Err(format!("Weir's expressions have no `\\{c}`"));
                }
                Some('e') => written.push_str("\\x1B"),
                Some(c @ ('<' | '>' | ' ')) => written.push(c),
                Some(c) if c.is_ascii_punctuation() || "dDwWsSbBAznrtfvaxpP".contains(c) => {
                    written.push('\\');
                    written.push(c);
                }
                Some(c) => written.push(c),
            },
            '[' => class(&mut left, &mut written)?,
            '(' if left.peek() == Some(&'?') => {
                left.next();
                group(&mut left, &mut written)?;
            }
            '*' | '+' | '?' => {
                if c == '+' && was_repeated {
                    return Err("it has a possessive repetition".to_owned());
                }
                repeated = true;
                written.push(c);
            }
            '{' if counts(&mut left.clone()) => {
                written.push(c);
                for c in left.by_ref() {
                    written.push(c);
                    if c == '}' {
                        break;
                    }
                }
                repeated = true;
            }
            '{' | '}' => {
                written.push('\\');
                written.push(c);
            }
            c => written.push(c),
        }
    }
    Ok(written)
}

type Left<'t> = std::iter::Peekable<std::str::Chars<'t>>;

/// Whether a repetition such as `{2,3}` follows the brace.
fn counts(left: &mut Left<'_>) -> bool {
    let inner: String = left.take_while(|c| *c != '}').collect();
    let (least, most) = inner.split_once(',').unwrap_or((&inner, "0"));
    let number =
        |text: &str| !text.is_empty() && text.len() < 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    number(least) && (most.is_empty() || number(most))
}

/// What stands behind `(?`.
fn group(left: &mut Left<'_>, written: &mut String) -> Result<(), String> {
    let rest: String = left.clone().take(3).collect();
    for (begins, what) in [
        ("=", "look-ahead"),
        ("!", "look-ahead"),
        ("<=", "look-behind"),
        ("<!", "look-behind"),
        (">", "an atomic group"),
        ("|", "a branch reset"),
        ("(", "a condition"),
        ("&", "a recursion"),
        ("R", "a recursion"),
        ("P>", "a recursion"),
        ("P=", "a back-reference"),
        ("#", "a comment"),
    ] {
        if rest.starts_with(begins) {
            return Err(format!("it has {what} (`(?{begins}`)"));
        }
    }
    written.push_str("(?");
    Ok(())
}

/// A class, behind its `[`: what is special in Rust's classes and not in PCRE's is escaped.
fn class(left: &mut Left<'_>, written: &mut String) -> Result<(), String> {
    written.push('[');
    if let Some(c) = left.next_if_eq(&'^') {
        written.push(c);
    }
    if left.next_if_eq(&']').is_some() {
        written.push_str("\\]");
    }
    while let Some(c) = left.next() {
        match c {
            ']' => {
                written.push(']');
                return Ok(());
            }
            '[' if left.peek() == Some(&':') => {
                written.push('[');
                for c in left.by_ref() {
                    written.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' => {
                written.push('\\');
                written.push(c);
            }
            '-' if left.peek() == Some(&'-') => written.push_str("\\-"),
            '\\' => match left.next() {
                None => break,
                Some('b') => written.push_str("\\x08"),
                Some(c @ ('<' | '>' | ' ')) => written.push(c),
                Some(c) => {
                    written.push('\\');
                    written.push(c);
                }
            },
            c => written.push(c),
        }
    }
    Err("a class is not closed by `]`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_know_is_kept_and_what_differs_is_escaped() {
        for (from, to) in [
            (r"^/v[0-9]+/", r"^/v[0-9]+/"),
            (r"\.(?:png|jpe?g)$", r"\.(?:png|jpe?g)$"),
            (r"[[:alpha:]]{2,3}", r"[[:alpha:]]{2,3}"),
            (r"a{b}", r"a\{b\}"),
            (r"[[&]", r"[\[\&]"),
            (r"[]a]", r"[\]a]"),
            (r"\<a\>", r"<a>"),
        ] {
            assert_eq!(translated(from).as_deref(), Ok(to), "{from}");
        }
        assert_eq!(literal("a.b/c"), r"a\.b/c");
    }

    #[test]
    fn what_takes_more_than_linear_time_is_refused() {
        for expression in ["(?=a)", "(?<!a)b", r"(a)\1", "a++", "(?>a)", "[a", "a\\"] {
            translated(expression).expect_err(expression);
        }
    }
}
