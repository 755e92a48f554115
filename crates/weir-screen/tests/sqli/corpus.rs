//! The corpora in `tests/corpora/sqli`; its README says where they are from.

pub const ATTACKS_TUNED: &str = include_str!("../../../../tests/corpora/sqli/attacks.tuned.txt");
pub const ATTACKS_HELD: &str = include_str!("../../../../tests/corpora/sqli/attacks.held.txt");
pub const ORDINARY_TUNED: &str = include_str!("../../../../tests/corpora/sqli/ordinary.tuned.txt");
pub const ORDINARY_HELD: &str = include_str!("../../../../tests/corpora/sqli/ordinary.held.txt");

/// A value, and the list that it is from.
pub struct CorpusValue {
    pub source: String,
    pub value: Vec<u8>,
}

/// The values of a corpus.
pub fn entries(text: &str) -> Vec<CorpusValue> {
    let mut source = String::new();
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(name) => name.clone_into(&mut source),
            None => all.push(CorpusValue { source: source.clone(), value: unescaped(line.as_bytes()) }),
        }
    }
    all
}

/// Undoes `\n`, `\\` and `\xNN`.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'n') => out.push(b'\n'),
            Some(b'x') => {
                let digits = [bytes.next().unwrap_or(b'3'), bytes.next().unwrap_or(b'f')];
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                out.push(digit(digits[0]) << 4 | digit(digits[1]));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}
