//! The sections and options of MySQL Router's configuration, which is an INI file.
//!
//! Source: `config_parser.cc` of MySQL Router's harness; version 9.7 was asked where that is unclear.

use crate::NotConverted;

/// How deep `{option}` in a value may lead to further ones, as in Router.
const DEPTH: usize = 10;
/// Most `{option}` that are replaced in one value. Without it a short file could make a text without end.
const REPLACED_MOST: usize = 100;

/// A line `option = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterOption {
    /// In lower case: Router does not tell cases apart.
    pub name: String,
    /// As it is written, without blanks around it.
    pub value: String,
    /// Its line, from 1.
    pub line: usize,
}

/// A `[name]` or `[name:key]` with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSection {
    /// In lower case.
    pub name: String,
    /// What follows the colon; empty without one.
    pub key: String,
    /// Line of its header, from 1; 0 of a `[DEFAULT]` that is not there.
    pub line: usize,
    /// In file order.
    pub options: Vec<RouterOption>,
}

/// A whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterFile {
    /// `[DEFAULT]`: options of all other sections, where these do not say them.
    pub defaults: RouterSection,
    /// The others, in file order.
    pub sections: Vec<RouterSection>,
}

impl RouterSection {
    /// What stands in its header.
    pub fn title(&self) -> String {
        match (self.name.as_str(), self.key.as_str()) {
            ("default", _) => "DEFAULT".to_owned(),
            (name, "") => name.to_owned(),
            (name, key) => format!("{name}:{key}"),
        }
    }

    /// The option of this name that the section itself has.
    pub fn option(&self, name: &str) -> Option<&RouterOption> {
        self.options.iter().find(|option| option.name == name)
    }
}

impl RouterFile {
    /// Reads a file. `Err` names the first line that Router would refuse.
    pub fn parse(text: &str) -> Result<RouterFile, NotConverted> {
        let defaults =
            RouterSection { name: "default".to_owned(), key: String::new(), line: 0, options: Vec::new() };
        let mut file = RouterFile { defaults, sections: Vec::new() };
        let mut current = None;
        for (index, line) in text.lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                let (name, key) = header_of(header, number)?;
                current = Some(file.begin(name, key, number)?);
                continue;
            }
            let Some(section) = current.and_then(|at| file.section_at(at)) else {
                return refuse(
                    number,
                    "an option stands before the first section",
                    "expected a header such as `[routing:rw]` above it",
                );
            };
            section.add(option_of(line, number)?)?;
        }
        Ok(file)
    }

    /// Makes a section, or takes up `[DEFAULT]`; returns its position for [`RouterFile::section_at`].
    fn begin(&mut self, name: String, key: String, line: usize) -> Result<Option<usize>, NotConverted> {
        if name == "default" {
            if !key.is_empty() {
                return refuse(line, "`[DEFAULT]` has a key", "expected `[DEFAULT]` alone");
            }
            self.defaults.line = line;
            return Ok(None);
        }
        let section = RouterSection { name, key, line, options: Vec::new() };
        let same = |other: &&RouterSection| other.name == section.name && other.key == section.key;
        if let Some(other) = self.sections.iter().find(same) {
            let first = format!("the first is at line {}; Router refuses this, too", other.line);
            return refuse(line, &format!("`[{}]` stands there twice", section.title()), &first);
        }
        self.sections.push(section);
        Ok(Some(self.sections.len() - 1))
    }

    fn section_at(&mut self, at: Option<usize>) -> Option<&mut RouterSection> {
        match at {
            None => Some(&mut self.defaults),
            Some(at) => self.sections.get_mut(at),
        }
    }

    /// The value of an option for a section: its own, or else the one of `[DEFAULT]`, with each `{option}`
    /// replaced. `None` where neither has it.
    pub fn value(&self, section: &RouterSection, name: &str) -> Option<String> {
        let option = section.option(name).or_else(|| self.defaults.option(name))?;
        let mut left = REPLACED_MOST;
        Some(self.expand(section, &option.value, 0, &mut left))
    }

    fn expand(&self, section: &RouterSection, value: &str, depth: usize, left: &mut usize) -> String {
        let mut expanded = String::new();
        let mut rest = value;
        while let Some((before, after)) = rest.split_once('{') {
            expanded.push_str(before);
            let known = after.split_once('}').and_then(|(name, behind)| {
                let name = name.to_ascii_lowercase();
                let option = section.option(&name).or_else(|| self.defaults.option(&name))?;
                Some((option, behind))
            });
            match known {
                Some((option, behind)) if depth < DEPTH && *left > 0 => {
                    *left -= 1;
                    expanded.push_str(&self.expand(section, &option.value, depth + 1, left));
                    rest = behind;
                }
                _ => {
                    expanded.push('{');
                    rest = after;
                }
            }
        }
        expanded.push_str(rest);
        expanded
    }
}

impl RouterSection {
    fn add(&mut self, option: RouterOption) -> Result<(), NotConverted> {
        if let Some(other) = self.option(&option.name) {
            let first = format!("the first is at line {}; Router refuses this, too", other.line);
            let twice = format!("`{}` is said twice in `[{}]`", option.name, self.title());
            return refuse(option.line, &twice, &first);
        }
        self.options.push(option);
        Ok(())
    }
}

/// The name and the key of a header, from the text after its bracket.
fn header_of(header: &str, line: usize) -> Result<(String, String), NotConverted> {
    let expected = "expected `[name]` or `[name:key]`, of letters, digits and `_`";
    let Some(inner) = header.strip_suffix(']') else {
        return refuse(line, "a section's header does not end with `]`", expected);
    };
    let (name, key) = match inner.rsplit_once(':') {
        Some((name, key)) if is_identifier(key) => (name, key),
        Some(_) => return refuse(line, "the key of a section's header is not one", expected),
        None => (inner, ""),
    };
    if !is_identifier(name) {
        return refuse(line, "the name in a section's header is not one", expected);
    }
    Ok((name.to_ascii_lowercase(), key.to_owned()))
}

fn option_of(line: &str, number: usize) -> Result<RouterOption, NotConverted> {
    let expected = "expected `option = value`, with an option of letters, digits and `_`";
    let Some((name, value)) = line.split_once(['=', ':']) else {
        return refuse(number, "this is neither a section's header nor an option", expected);
    };
    let name = name.trim();
    if !is_identifier(name) {
        return refuse(number, "the name of an option is not one", expected);
    }
    Ok(RouterOption { name: name.to_ascii_lowercase(), value: value.trim().to_owned(), line: number })
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn refuse<T>(line: usize, message: &str, hint: &str) -> Result<T, NotConverted> {
    Err(NotConverted { message: format!("line {line}: {message}"), hint: hint.to_owned() })
}
