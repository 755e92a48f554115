//! The grammar of `content-type` and `content-disposition`, to the letter (RFC 9110 §5.6.6): readers differ
//! on values that depart from it.

/// A value with parameters.
pub struct Parameterized<'b> {
    /// The text before the first `;`.
    pub value: &'b [u8],
    parameters: &'b [u8],
}

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'b> {
    /// The name, in the case in which it was sent.
    pub name: &'b [u8],
    /// The value without its quotes, but with its escapes.
    pub value: &'b [u8],
}

/// A value that violates the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'b> Parameterized<'b> {
    /// Splits a field value. `Err` if the part before the first `;` is anything but tokens with at most one
    /// `/` between them.
    pub fn of(text: &'b [u8]) -> Result<Parameterized<'b>, Malformed> {
        let text = trimmed(text);
        let end = text.iter().position(|&byte| byte == b';').unwrap_or(text.len());
        let (value, parameters) = text.split_at(end);
        let value = trimmed(value);
        let mut words = value.split(|&byte| byte == b'/');
        let is_good = words.by_ref().take(2).all(is_token) && words.next().is_none();
        if is_good { Ok(Parameterized { value, parameters }) } else { Err(Malformed) }
    }

    /// Every parameter, in order; ends after the first malformed one.
    pub fn parameters(&self) -> impl Iterator<Item = Result<Parameter<'b>, Malformed>> + use<'b> {
        let mut rest = self.parameters;
        std::iter::from_fn(move || {
            loop {
                rest = trimmed_start(rest);
                if rest.is_empty() {
                    return None;
                }
                let Some(behind) = rest.strip_prefix(b";") else {
                    rest = b"";
                    return Some(Err(Malformed));
                };
                rest = trimmed_start(behind);
                // A semicolon with nothing after it is allowed.
                if rest.is_empty() || rest.starts_with(b";") {
                    continue;
                }
                let parameter = take_parameter(&mut rest);
                if parameter.is_none() {
                    rest = b"";
                }
                return Some(parameter.ok_or(Malformed));
            }
        })
    }
}

/// Takes one parameter from the front.
fn take_parameter<'b>(rest: &mut &'b [u8]) -> Option<Parameter<'b>> {
    let equals = rest.iter().position(|&byte| byte == b'=')?;
    let (name, behind) = (rest.get(..equals)?, rest.get(equals + 1..)?);
    if !is_token(name) {
        return None;
    }
    let (value, used) = match behind.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = quoted_end(quoted)?;
            (quoted.get(..end)?, end + 2)
        }
        None => {
            let end = behind.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(behind.len());
            (behind.get(..end).filter(|value| !value.is_empty())?, end)
        }
    };
    *rest = behind.get(used..)?;
    Some(Parameter { name, value })
}

/// The end of the quoted string whose opening quote is just before `quoted`.
fn quoted_end(quoted: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *quoted.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            0..=8 | 10..=31 | 127 => return None,
            _ => at += 1,
        }
    }
}

/// Whether `text` is a token (RFC 9110 §5.6.2).
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// `text` without HTTP's whitespace at both ends.
fn trimmed(text: &[u8]) -> &[u8] {
    let text = trimmed_start(text);
    let end = text.iter().rposition(|&byte| !is_blank(byte)).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

fn trimmed_start(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_blank(byte)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<String>> {
        let read = Parameterized::of(text.as_bytes()).ok()?;
        let mut all = vec![String::from_utf8_lossy(read.value).into_owned()];
        for parameter in read.parameters() {
            let Parameter { name, value } = parameter.ok()?;
            all.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        }
        Some(all)
    }

    #[test]
    fn parameters_come_in_order_without_their_quotes() {
        assert_eq!(
            read(" a/b;c=d ; E=\"f; g=\\\"h\"; ;").unwrap(),
            ["a/b", "c=d", "E=f; g=\\\"h"],
            "semicolons in quotes are text"
        );
        assert_eq!(read("form-data").unwrap(), ["form-data"]);
    }

    #[test]
    fn what_departs_from_the_grammar_is_malformed() {
        for text in [
            "",
            ";a=b",
            "a/b/c",
            "a b",
            "a/b, c/d",
            "a/b;c",
            "a/b;c =d",
            "a/b;c= d",
            "a/b;c=",
            "a/b;c=\"d",
            "a/b;c=\"d\"e",
            "a/b;c=d e",
            "a/b;c=\"d\ne\"",
            "a/b;c=\"d\\",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
