//! Reads the named files and those that they include, each once.

use std::collections::HashMap;

use toml::de::{DeTable, DeValue};

use super::glob::files_of;
use crate::given::Text;
use crate::report::{Findings, Found, Span};
use crate::source::Source;
use crate::syntax;
use crate::world::{World, folder_of};

/// Longest text of a file, in bytes; a larger one is not a config file.
pub(crate) const FILE_BYTES: usize = 16 << 20;
/// Most bytes of all files together.
const ALL_BYTES: usize = 64 << 20;
/// Most files (count).
const MOST_FILES: usize = 1000;
/// Deepest inclusion of files (count), the named file included.
const MOST_DEEP: usize = 8;

/// All files of one config.
#[derive(Default)]
pub(crate) struct Gathered {
    /// In the order in which they apply: included files come before the file that includes them, as the
    /// including line comes before the file's own keys.
    pub files: Vec<Member>,
    /// The index of the first named file.
    pub first: usize,
    /// Whether a file is missing, so that its content is unknown.
    pub is_short: bool,
}

/// One file.
pub(crate) struct Member {
    /// The name for display; its folder is the base for the paths in it.
    pub name: String,
    pub text: String,
    /// The text with unreadable parts blanked out.
    pub mended: String,
    /// Stretches that were probably misread.
    pub blind: Vec<Span>,
    /// Problems so far, by positions in this text.
    pub problems: Vec<Found>,
}

impl Member {
    pub fn folder(&self) -> &str {
        folder_of(&self.name)
    }
}

/// A named file, with its text.
#[derive(Clone, Copy, Debug)]
pub struct Root<'t> {
    /// The name for display; included paths are relative to its folder.
    pub name: &'t str,
    /// Its text.
    pub text: &'t str,
}

/// Reads included files. The caller has read the named files themselves.
pub(crate) fn gather(roots: &[Root<'_>], files: &dyn World) -> Gathered {
    let mut reader =
        Reader { files, gathered: Gathered::default(), seen: HashMap::new(), bytes: 0, count: 0 };
    for (number, root) in roots.iter().enumerate() {
        reader.seen.insert(root.name.to_owned(), "it is named on the command line".to_owned());
        reader.read(root.name, root.text.to_owned(), 1);
        if number == 0 {
            reader.gathered.first = reader.gathered.files.len() - 1;
        }
    }
    reader.gathered
}

struct Reader<'f> {
    files: &'f dyn World,
    gathered: Gathered,
    /// The files so far, and which file included each.
    seen: HashMap<String, String>,
    /// Bytes of all files so far.
    bytes: usize,
    count: usize,
}

/// A pattern in `include`, and its position.
struct Include {
    at: Span,
    pattern: String,
}

impl Reader<'_> {
    fn read(&mut self, name: &str, text: String, depth: usize) {
        self.bytes += text.len();
        self.count += 1;
        let source = Source::new(name, text.as_str());
        let mut findings = Findings::new(&source);
        let mended = syntax::mend(&mut findings);
        let (text_to_read, blind) = (mended.text.into_owned(), mended.blind);
        let (table, _) = DeTable::parse_recoverable(&text_to_read);
        let includes = self.includes(table.get_ref(), name, &mut findings);
        for include in includes {
            self.include(&include, name, depth, &mut findings);
        }
        let problems = findings.into_found();
        drop(table);
        drop(source);
        let mended = text_to_read;
        self.gathered.files.push(Member { name: name.to_owned(), text, mended, blind, problems });
    }

    /// The patterns that a file includes. Mistakes in the key are reported here, since nothing else reads it.
    fn includes(&mut self, table: &DeTable<'_>, name: &str, findings: &mut Findings<'_>) -> Vec<Include> {
        let Some((key, value)) = table.get_key_value("include") else { return Vec::new() };
        let key = Span::from(key.span());
        let elements: Vec<_> = match value.get_ref() {
            DeValue::Array(list) => list.iter().collect(),
            _ => vec![value],
        };
        let mut includes = Vec::new();
        for element in elements {
            let at = match Span::from(element.span()) {
                // The parser found no value, and has reported that.
                span if span.end == 0 => continue,
                span => span,
            };
            let DeValue::String(text) = element.get_ref() else {
                let hint = "expected a file or a pattern such as `\"conf.d/*.toml\"`, or a list of them";
                findings.error(at, "`include` takes texts", hint);
                continue;
            };
            let resolved = Text::resolve(text, folder_of(name), self.files);
            let pattern = match resolved {
                Ok(resolved) => resolved.map_or_else(|| text.to_string(), |resolved| resolved.whole()),
                Err(missing) => {
                    self.gathered.is_short = true;
                    missing.into_iter().for_each(|missing| findings.error(at, missing.message, missing.hint));
                    continue;
                }
            };
            if pattern.is_empty() || pattern.contains('\0') {
                findings.error(at, "this names no file", "expected a pattern such as `\"conf.d/*.toml\"`");
                continue;
            }
            includes.push(Include { at, pattern });
        }
        if matches!(value.get_ref(), DeValue::Array(list) if list.is_empty()) {
            findings.error(key, "`include` is empty", "expected at least one pattern, or leave the key out");
        }
        includes
    }

    fn include(&mut self, include: &Include, by: &str, depth: usize, findings: &mut Findings<'_>) {
        let at = include.at;
        let found = match files_of(&include.pattern, folder_of(by), self.files) {
            Ok(found) => found,
            Err(message) => {
                self.gathered.is_short = true;
                return findings.error(
                    at,
                    message,
                    "a path is seen from the folder of the file that says it",
                );
            }
        };
        for path in found {
            if let Some(first) = self.seen.get(&path) {
                let hint =
                    format!("{first}; a file is read once, and none reads itself, not even by way of others");
                findings.error(at, format!("`{path}` is included twice"), hint);
                continue;
            }
            if depth >= MOST_DEEP {
                let message = format!("`{path}` is included too deep");
                return findings.error(at, message, format!("expected at most {MOST_DEEP} files in a row"));
            }
            if self.count >= MOST_FILES {
                self.gathered.is_short = true;
                return findings.error(at, "too many files", format!("expected at most {MOST_FILES}"));
            }
            self.seen.insert(path.clone(), format!("the first is at {}", findings.place(at)));
            match self.text_of(&path) {
                Ok(text) => self.read(&path, text, depth + 1),
                Err((message, hint)) => {
                    self.gathered.is_short = true;
                    findings.error(at, message, hint);
                }
            }
        }
    }

    fn text_of(&self, path: &str) -> Result<String, (String, String)> {
        let bytes = self.files.read(path, FILE_BYTES + 1).map_err(|why| {
            let hint = "a path is seen from the folder of the file that says it";
            (format!("`{path}` can't be read: {why}"), hint.to_owned())
        })?;
        if bytes.len() > FILE_BYTES {
            let hint = format!("expected at most {FILE_BYTES} bytes of TOML");
            return Err((format!("`{path}` is too long"), hint));
        }
        if self.bytes + bytes.len() > ALL_BYTES {
            let hint = format!("expected at most {ALL_BYTES} bytes of TOML in all files");
            return Err((format!("with `{path}` all files are too long"), hint));
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let before = &error.as_bytes()[..at];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let message = format!("`{path}` is not UTF-8 text: line {line}");
            (message, "expected a TOML file saved as UTF-8".to_owned())
        })
    }
}
