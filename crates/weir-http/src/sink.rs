//! Sinks for the fields that Weir composes: a buffer with lines of HTTP/1.1, or a visitor that encodes them
//! for HTTP/2 or HTTP/3. The code that decides what is written serves both.

use crate::edits::FieldEdits;
use crate::h1::encode;

/// Takes fields in order.
pub(crate) trait FieldSink {
    /// One field; its bytes were checked.
    fn field(&mut self, name: &[u8], value: &[u8]);

    /// One field that is already rendered as `name: value` CRLF, with a name of `name_bytes`.
    fn line(&mut self, line: &[u8], name_bytes: usize);

    /// One field whose value is the concatenation of these parts.
    fn parts<'p>(&mut self, name: &'static [u8], parts: impl IntoIterator<Item = &'p [u8]>);

    /// The added lines of edits, in order.
    #[inline]
    fn lines(&mut self, edits: &FieldEdits<'_>) {
        for (line, name_bytes) in edits.each() {
            self.line(line, name_bytes);
        }
    }

    /// One field whose value is a number.
    #[inline]
    fn number(&mut self, name: &'static [u8], value: u64) {
        let mut digits = encode::Digits::default();
        self.field(name, digits.of(value));
    }
}

impl FieldSink for Vec<u8> {
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        encode::write_field(self, name, value);
    }

    #[inline]
    fn line(&mut self, line: &[u8], _: usize) {
        self.extend_from_slice(line);
    }

    #[inline]
    fn lines(&mut self, edits: &FieldEdits<'_>) {
        self.extend_from_slice(edits.lines);
    }

    #[inline]
    fn parts<'p>(&mut self, name: &'static [u8], parts: impl IntoIterator<Item = &'p [u8]>) {
        self.extend_from_slice(name);
        self.extend_from_slice(b": ");
        for part in parts {
            self.extend_from_slice(part);
        }
        self.extend_from_slice(b"\r\n");
    }
}

/// Passes each field to `visit`, its name in lower case (RFC 9113 §8.2.1).
pub(crate) struct Visitor<'v, V> {
    visit: &'v mut V,
    scratch: Scratch,
}

impl<'v, V: FnMut(&[u8], &[u8])> Visitor<'v, V> {
    pub(crate) fn new(visit: &'v mut V) -> Visitor<'v, V> {
        Visitor { visit, scratch: Scratch::default() }
    }
}

impl<V: FnMut(&[u8], &[u8])> FieldSink for Visitor<'_, V> {
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        if !name.iter().any(u8::is_ascii_uppercase) {
            return (self.visit)(name, value);
        }
        self.scratch.clear();
        self.scratch.push(name);
        let lower = self.scratch.filled();
        lower.make_ascii_lowercase();
        (self.visit)(lower, value);
    }

    fn line(&mut self, line: &[u8], name_bytes: usize) {
        let value_end = line.len().saturating_sub(2);
        let value = line.get(name_bytes + 2..value_end).unwrap_or_default();
        self.field(line.get(..name_bytes).unwrap_or_default(), value);
    }

    fn parts<'p>(&mut self, name: &'static [u8], parts: impl IntoIterator<Item = &'p [u8]>) {
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        let Some(second) = parts.next() else { return (self.visit)(name, first) };
        self.scratch.clear();
        self.scratch.push(first);
        self.scratch.push(second);
        for part in parts {
            self.scratch.push(part);
        }
        (self.visit)(name, self.scratch.filled());
    }
}

/// Room for one name or value, on the stack for all but the longest.
struct Scratch {
    stack: [u8; 256],
    length: usize,
    heap: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { stack: [0; 256], length: 0, heap: Vec::new() }
    }
}

impl Scratch {
    fn clear(&mut self) {
        self.length = 0;
        self.heap.clear();
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if self.heap.is_empty() {
            if let Some(room) = self.stack.get_mut(self.length..end) {
                room.copy_from_slice(bytes);
                self.length = end;
                return;
            }
            self.heap.extend_from_slice(self.stack.get(..self.length).unwrap_or_default());
        }
        self.heap.extend_from_slice(bytes);
    }

    fn filled(&mut self) -> &mut [u8] {
        if self.heap.is_empty() {
            self.stack.get_mut(..self.length).unwrap_or_default()
        } else {
            &mut self.heap
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_any_length_arrives_whole_and_a_name_in_lower_case() {
        for length in [0, 1, 200, 255, 256, 257, 5000] {
            let long = vec![b'v'; length];
            let mut seen = Vec::new();
            let mut visit = |name: &[u8], value: &[u8]| seen.push((name.to_vec(), value.to_vec()));
            let mut sink = Visitor::new(&mut visit);
            sink.parts(b"x", [&long[..], b"-", &long]);
            sink.field(&vec![b'N'; length], b"y");
            sink.line(b"Server: weir\r\n", 6);
            sink.number(b"age", 70);
            let both = [&long[..], b"-", &long].concat();
            assert_eq!(seen[0], (b"x".to_vec(), both));
            assert_eq!(seen[1], (vec![b'n'; length], b"y".to_vec()));
            assert_eq!(seen[2], (b"server".to_vec(), b"weir".to_vec()));
            assert_eq!(seen[3], (b"age".to_vec(), b"70".to_vec()));
        }
    }
}
