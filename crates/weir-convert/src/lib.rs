//! Converts another program's configuration into a `weir.toml`.
//!
//! Each directive gets a verdict. The converted file is for a person to read: comments beside it say what
//! could not be converted exactly. [`weir_config::check_text`] checks it like any other, which is the
//! caller's work; the converter of nginx asks it about single routes, to say in the verdict what Weir does
//! not accept. This crate never opens a file.
//!
//! Start reading at [`convert`]. Each program has a module of its own.
#![forbid(unsafe_code)]

mod arc2;
mod haproxy;
mod mysqlrouter;
mod nginx;
mod paths;
mod verdicts;
mod write;

use std::fmt::{self, Write as _};

pub use paths::matching_paths;

/// How well the converted file expresses a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirectiveVerdict {
    /// Weir does the same.
    Exact,
    /// Weir does something close; the note says what differs.
    Approximate,
    /// Weir has nothing like it; the note says what is missing.
    Unsupported,
}

impl DirectiveVerdict {
    /// The word that is shown.
    pub const fn word(self) -> &'static str {
        match self {
            DirectiveVerdict::Exact => "exact",
            DirectiveVerdict::Approximate => "approximate",
            DirectiveVerdict::Unsupported => "unsupported",
        }
    }
}

/// One directive of the other configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The included file that it stands in; empty for the converted file itself.
    pub file: String,
    /// Line in its file, from 1; 0 for a default that the file does not mention.
    pub line: usize,
    /// Its name in that file, such as `proxy_rules[0].domain`.
    pub name: String,
    /// What became of it.
    pub verdict: DirectiveVerdict,
    /// What it was converted to, or what differs; one line.
    pub note: String,
}

impl fmt::Display for Directive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match (self.line, self.file.as_str()) {
            (0, _) => "default".to_owned(),
            (line, "") => format!("line {line}"),
            (line, file) => format!("{file}:{line}"),
        };
        write!(f, "{:<11} {line:>8}  {}: {}", self.verdict.word(), self.name, self.note)
    }
}

/// A file beside the `weir.toml`, which it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedFile {
    /// Its path, as the `weir.toml` says it.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Other files that a configuration names, as far as the caller gives them. This crate opens none itself.
pub trait SourceFiles {
    /// The paths that a path or a pattern (`*`, `?`, `[…]`) stands for, sorted. A path without a pattern
    /// stands for itself, whether the file is there or not. Relative ones are seen from [`Self::folder`].
    fn matching(&self, pattern: &str) -> Vec<String>;

    /// The text of a file. `Err` says why it cannot be read, in lower case.
    fn read(&self, path: &str) -> Result<String, String>;

    /// The folder of the converted file, absolute; empty if it is not known.
    fn folder(&self) -> &str;

    /// The folder that [`Converted::files`] are to be put in.
    fn new_folder(&self) -> &str {
        "/etc/weir"
    }

    /// The name of the machine that the file is of; empty if it is not known.
    fn host_name(&self) -> String {
        String::new()
    }
}

/// No other file can be read.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

impl SourceFiles for NoFiles {
    fn matching(&self, pattern: &str) -> Vec<String> {
        if pattern.contains(['*', '?', '[']) { Vec::new() } else { vec![pattern.to_owned()] }
    }

    fn read(&self, _: &str) -> Result<String, String> {
        Err("no other file is read here".to_owned())
    }

    fn folder(&self) -> &str {
        ""
    }
}

/// A converted configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The name of the program that it was for.
    pub from: &'static str,
    /// Tables and keys of a `weir.toml`.
    pub body: String,
    /// Files that the `weir.toml` names and that are not there yet, such as those of maps.
    pub files: Vec<ConvertedFile>,
    /// Every directive of the source, in its order, followed by defaults that differ from Weir's.
    pub directives: Vec<Directive>,
}

impl Converted {
    /// How many directives got this verdict.
    pub fn count(&self, verdict: DirectiveVerdict) -> usize {
        self.directives.iter().filter(|directive| directive.verdict == verdict).count()
    }

    /// The whole file: the verdicts as comments, then the tables.
    pub fn to_toml(&self, source: &str) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "# Converted from {} ({}): {} exact, {} approximate, {} unsupported.",
            one_line(source),
            self.from,
            self.count(DirectiveVerdict::Exact),
            self.count(DirectiveVerdict::Approximate),
            self.count(DirectiveVerdict::Unsupported),
        );
        for directive in &self.directives {
            let _ = writeln!(text, "#   {}", one_line(&directive.to_string()));
        }
        let _ = write!(text, "\n{}", self.body);
        for file in &self.files {
            let _ = writeln!(text, "\n# The file {}:", one_line(&file.path));
            for line in file.text.lines() {
                let _ = writeln!(text, "#   {}", one_line(line));
            }
        }
        text
    }
}

/// The text with control characters, which could end a comment, replaced by blanks.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Why nothing could be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotConverted {
    /// One line, lower case.
    pub message: String,
    /// What to do instead; may be empty.
    pub hint: String,
}

impl fmt::Display for NotConverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, ": {}", self.hint) }
    }
}

/// Converts a configuration that is in one file. See [`convert_with`].
///
/// # Errors
/// The text is not of a program that is known here, or can't be parsed.
pub fn convert(text: &str) -> Result<Converted, NotConverted> {
    convert_with(text, &NoFiles)
}

/// Converts the configuration of another program, which may include files. The program is recognised by the
/// text.
///
/// # Errors
/// The text is not of a program that is known here, or can't be parsed.
pub fn convert_with(text: &str, files: &dyn SourceFiles) -> Result<Converted, NotConverted> {
    if arc2::looks_like(text) {
        return arc2::convert(text);
    }
    if mysqlrouter::looks_like(text) {
        return mysqlrouter::convert(text, files);
    }
    if haproxy::looks_like(text) {
        return haproxy::convert(text, files);
    }
    if nginx::looks_like(text) {
        return nginx::convert(text, files);
    }
    let message = "this is no configuration that can be converted".to_owned();
    Err(NotConverted {
        message,
        hint: "expected one of ARC2 Proxy, a TOML file with `[[proxy_rules]]`, of HAProxy, with `frontend NAME`, of nginx, with `server { … }`, or of MySQL Router, with `[routing:NAME]`"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_with_a_way_on() {
        let other = convert("hello").unwrap_err();
        assert!(other.hint.contains("proxy_rules"), "{other}");
    }

    #[test]
    fn a_note_never_leaves_its_comment() {
        let directive = Directive {
            file: String::new(),
            line: 3,
            name: "proxy_rules[0].x\n[admin]".to_owned(),
            verdict: DirectiveVerdict::Unsupported,
            note: "a\rb".to_owned(),
        };
        let converted = Converted {
            from: "ARC2 Proxy",
            body: "[log]\n".to_owned(),
            files: Vec::new(),
            directives: vec![directive],
        };
        let text = converted.to_toml("a.toml");
        assert_eq!(
            text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count(),
            1,
            "{text}"
        );
        assert!(
            text.starts_with(
                "# Converted from a.toml (ARC2 Proxy): 0 exact, 0 approximate, 1 unsupported.\n"
            )
        );
    }
}
