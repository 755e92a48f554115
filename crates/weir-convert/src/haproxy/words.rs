//! Words of a line, as section 2 of HAProxy's configuration manual ("quoting and escaping") has them.
//!
//! A variable of the environment, which HAProxy fills in between double quotes, is kept as a mark within the
//! word (see [`variable`]), because a `$` that the file means literally must not be taken for one.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// The beginning and the end of a variable's mark: characters for private use, which no config has.
const MARKS: [char; 2] = ['\u{E000}', '\u{E001}'];

/// Values that the file itself gives to variables, by `setenv` and `presetenv`.
pub type Given = BTreeMap<String, String>;

/// The words of one line, without its comment. `Err` says what is wrong, in lower case.
pub fn words(line: &str, given: &Given) -> Result<Vec<String>, String> {
    let mut reading = Reading { left: line.chars().peekable(), given, words: Vec::new(), word: None };
    reading.line()?;
    Ok(reading.words)
}

/// A word with the variables in it that stand outside of quotes.
pub fn filled_in(word: &str, given: &Given) -> Result<String, String> {
    let is_name =
        |at: usize| word[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '{'));
    if !word.match_indices('$').any(|(at, _)| is_name(at)) {
        return Ok(word.to_owned());
    }
    let mut reading = Reading { left: word.chars().peekable(), given, words: Vec::new(), word: None };
    while let Some(c) = reading.left.next() {
        match c {
            '$' => reading.variable()?,
            c => reading.word.get_or_insert_default().push(c),
        }
    }
    Ok(reading.word.unwrap_or_default())
}

/// The text with each variable as Weir writes it, and with everything else that Weir would take for one
/// escaped.
pub fn with_variables(text: &str) -> String {
    let escaped = text.replace("${env:", "$${env:").replace("${file:", "$${file:");
    let mut written = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        match c {
            c if c == MARKS[0] => written.push_str("${env:"),
            c if c == MARKS[1] => written.push('}'),
            c => written.push(c),
        }
    }
    written
}

/// Whether a variable of the environment is part of the text.
pub fn has_variable(text: &str) -> bool {
    text.contains(MARKS)
}

/// The mark of a variable.
fn variable(name: &str) -> String {
    format!("{}{name}{}", MARKS[0], MARKS[1])
}

struct Reading<'t> {
    left: Peekable<Chars<'t>>,
    given: &'t Given,
    words: Vec<String>,
    /// The word under way; an empty one may be meant (`""`).
    word: Option<String>,
}

impl Reading<'_> {
    fn line(&mut self) -> Result<(), String> {
        while let Some(c) = self.left.next() {
            match c {
                '#' => break,
                ' ' | '\t' | '\r' => self.end_word(),
                '"' => self.double_quoted()?,
                '\'' => self.single_quoted()?,
                '\\' => self.escape(false)?,
                c => self.push(c),
            }
        }
        self.end_word();
        Ok(())
    }

    fn push(&mut self, c: char) {
        let c = if MARKS.contains(&c) || c == '\0' { char::REPLACEMENT_CHARACTER } else { c };
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn single_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.left.next() {
                Some('\'') => return Ok(()),
                Some(c) => self.push(c),
                None => return Err("a single quote is not closed".to_owned()),
            }
        }
    }

    fn double_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.left.next() {
                Some('"') => return Ok(()),
                Some('\\') => self.escape(true)?,
                Some('$') => self.variable()?,
                Some(c) => self.push(c),
                None => return Err("a double quote is not closed".to_owned()),
            }
        }
    }

    /// What stands behind a backslash. One that escapes nothing stays, such as that of `\1` or `\.`.
    fn escape(&mut self, quoted: bool) -> Result<(), String> {
        let plain = match self.left.peek() {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c @ (' ' | '\\' | '#' | '"' | '\'')) => *c,
            Some('$') if quoted => '$',
            Some('x') => {
                self.left.next();
                return self.byte();
            }
            _ => {
                self.push('\\');
                return Ok(());
            }
        };
        self.left.next();
        self.push(plain);
        Ok(())
    }

    fn byte(&mut self) -> Result<(), String> {
        let digits: String = self.left.by_ref().take(2).collect();
        match u8::from_str_radix(&digits, 16) {
            Ok(byte) if digits.len() == 2 => self.push(char::from(byte)),
            _ => return Err(format!("`\\x{digits}` is no byte, expected two hexadecimal digits")),
        }
        Ok(())
    }

    /// A variable, behind its `$`: `NAME`, `{NAME}`, `{NAME[*]}` or `{NAME-default}`.
    fn variable(&mut self) -> Result<(), String> {
        let braced = self.left.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = self.left.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')) {
            name.push(c);
        }
        let mut rest = String::new();
        if braced {
            loop {
                match self.left.next() {
                    Some('}') => break,
                    Some(c) => rest.push(c),
                    None => return Err(format!("the variable `${{{name}` is not closed by `}}`")),
                }
            }
        }
        if name.is_empty() {
            let written = if braced { format!("${{{rest}}}") } else { "$".to_owned() };
            return Err(format!("`{written}` names no variable; a `$` itself is written `\\$` here"));
        }
        let value = match (self.given.get(&name), rest.strip_prefix('-')) {
            // No variable has such a name, and HAProxy fills in nothing.
            (None, None) if name.starts_with(|c: char| c.is_ascii_digit()) || name.contains('.') => {
                String::new()
            }
            (Some(value), _) => value.clone(),
            (None, Some(default)) => default.to_owned(),
            (None, None) => variable(&name),
        };
        self.word.get_or_insert_default().push_str(&value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<String> {
        words(line, &Given::new()).unwrap_or_else(|problem| panic!("{problem}: {line}"))
    }

    #[test]
    fn words_are_read_as_the_manual_says() {
        assert_eq!(read("bind  :80\t# a comment"), ["bind", ":80"]);
        assert_eq!(read(r"log-format %{+Q}o\ %t\ %s"), ["log-format", "%{+Q}o %t %s"]);
        assert_eq!(
            read(r#"log-format "%{+Q}o %t 'a' \"b\"" 'c "d" \e'"#),
            ["log-format", r#"%{+Q}o %t 'a' "b""#, r#"c "d" \e"#]
        );
        assert_eq!(read(r"path_reg ^/v\.[0-9]\# \1"), ["path_reg", r"^/v\.[0-9]#", r"\1"]);
        assert_eq!(read(r"a\x41b \\ ''"), ["aAb", r"\", ""]);
        assert!(read("   # nothing").is_empty());
    }

    #[test]
    fn a_variable_is_filled_in_between_double_quotes_alone() {
        let written = |line: &str| read(line).iter().map(|word| with_variables(word)).collect::<Vec<_>>();
        assert_eq!(written(r#"bind "${HOST}:80" "$PORT""#), ["bind", "${env:HOST}:80", "${env:PORT}"]);
        assert_eq!(written(r#"a '$HOST' $HOST "\$HOST""#), ["a", "$HOST", "$HOST", "$HOST"]);
        assert_eq!(written("a '${env:HOME}'"), ["a", "$${env:HOME}"]);
        let given = Given::from([("HOST".to_owned(), "10.0.0.1".to_owned())]);
        assert_eq!(
            words(r#""$HOST" "${PORT-80}""#, &given),
            Ok(vec!["10.0.0.1".to_owned(), "80".to_owned()])
        );
    }

    #[test]
    fn what_is_not_closed_is_a_mistake() {
        for (line, told) in [
            ("a 'b", "single quote"),
            ("a \"b", "double quote"),
            ("a \"${B\"", "not closed by"),
            ("a \\xZZ", "two hexadecimal digits"),
            ("a \"$ b\"", "names no variable"),
        ] {
            let problem = words(line, &Given::new()).expect_err(line);
            assert!(problem.contains(told), "{line}: {problem}");
        }
    }
}
