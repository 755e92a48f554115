//! Compiles text to pieces.

use std::fmt;

use crate::{FAMILIES, LINE_FAMILY, Outcome, Piece, Scope, Variable};

/// A mistake in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A `$` without a name after it.
    Bare,
    /// An unknown variable.
    Unknown {
        /// Without the `$`.
        name: String,
    },
    /// `$header`, `$cookie` or another family without a name.
    Nameless {
        /// The family, without the `$`.
        family: &'static str,
    },
    /// `$3` if there are fewer groups.
    NoCapture {
        /// The number.
        number: u8,
        /// The number of groups.
        captures: u8,
    },
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::Bare => formatter.write_str("a `$` names nothing"),
            Mistake::Unknown { name } => write!(formatter, "`${name}` is no variable"),
            Mistake::Nameless { family } => write!(formatter, "`${family}` does not say which one"),
            Mistake::NoCapture { number, captures: 0 } => {
                write!(formatter, "`${number}` stands for nothing: no expression is matched here")
            }
            Mistake::NoCapture { number, captures } => {
                write!(formatter, "`${number}` stands for nothing: the expression has {captures} groups")
            }
        }
    }
}

impl std::error::Error for Mistake {}

/// Compiles a text; adjacent texts become one piece.
pub(crate) fn pieces(text: &str, captures: u8, scope: Scope) -> Result<Vec<Piece>, Mistake> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('$') {
            plain.push('$');
            rest = behind;
            continue;
        }
        let (variable, behind) = variable(rest, captures, scope)?;
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain).into()));
        }
        pieces.push(Piece::Value(variable));
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain.into()));
    }
    Ok(pieces)
}

/// The variable at the beginning of `text`, and the text after it.
fn variable(text: &str, captures: u8, scope: Scope) -> Result<(Variable, &str), Mistake> {
    let (name, behind) = text.split_at(length(text, |byte| byte == b'_' || byte.is_ascii_alphanumeric()));
    if name.is_empty() {
        return Err(Mistake::Bare);
    }
    // One digit only, so that `$10` is group 1 followed by a zero.
    if let Some(number @ 1..=9) = name.chars().next().and_then(|digit| digit.to_digit(10)) {
        let number = number as u8;
        return match number <= captures {
            true => Ok((Variable::Capture(number), &text[1..])),
            false => Err(Mistake::NoCapture { number, captures }),
        };
    }
    let of_line = (scope == Scope::Line).then_some(LINE_FAMILY);
    if let Some(family) = FAMILIES.into_iter().chain(of_line).find(|family| *family == name) {
        let of_family = behind.strip_prefix('.').unwrap_or_default();
        let end = length(of_family, |byte| matches!(byte, b'_' | b'-') || byte.is_ascii_alphanumeric());
        let (member, behind) = of_family.split_at(end);
        match (family, member.is_empty()) {
            ("header", false) => return Ok((Variable::Header(member.to_ascii_lowercase().into()), behind)),
            ("cookie", false) => return Ok((Variable::Cookie(member.into()), behind)),
            ("claim", false) => {
                let (name, behind) = claim(of_family);
                return Ok((Variable::Claim(name.into()), behind));
            }
            ("map", false) => return Ok((Variable::Map(member.into()), behind)),
            (LINE_FAMILY, false) => {
                return Ok((Variable::ResponseHeader(member.to_ascii_lowercase().into()), behind));
            }
            (_, false) => return Ok((Variable::Parameter(member.into()), behind)),
            ("query", true) => {}
            (family, true) => return Err(Mistake::Nameless { family }),
        }
    }
    // A log line may use all variables of a request too.
    let outcome = Outcome::of_name(name).filter(|_| scope == Scope::Line).map(Variable::Outcome);
    match outcome.or_else(|| Variable::of_name(name)) {
        Some(variable) => Ok((variable, behind)),
        None => Err(Mistake::Unknown { name: name.to_owned() }),
    }
}

/// The path of a claim at the beginning of `text`, and the text after it. A dot is part of the path if a name
/// follows.
fn claim(text: &str) -> (&str, &str) {
    let is_such = |byte: u8| matches!(byte, b'_' | b'-') || byte.is_ascii_alphanumeric();
    let mut end = length(text, is_such);
    while let Some(inner) = text[end..].strip_prefix('.')
        && let more @ 1.. = length(inner, is_such)
    {
        end += 1 + more;
    }
    text.split_at(end)
}

/// The number of leading bytes for which `is_such` holds.
fn length(text: &str, is_such: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is_such(*byte)).count()
}
