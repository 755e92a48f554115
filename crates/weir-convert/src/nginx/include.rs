//! The directives of all files of a configuration: `include`, and the output of `nginx -T`.

use std::collections::BTreeMap;

use super::ledger::NginxLedger;
use super::tree::{DirectiveNumbers, NginxDirective, parse};
use crate::paths::{is_pattern, path_matches};
use crate::{NotConverted, SourceFiles};

/// What `nginx -T` writes before each file.
const MARK: &str = "# configuration file ";

/// Most files that are read, and the deepest `include`.
const MOST_FILES: usize = 2000;
const DEEPEST: usize = 16;

/// Files of nginx's packages that say nothing to a balancer, with what they are for.
const OF_NO_MATTER: [(&str, &str); 9] = [
    ("mime.types", "media types of static files"),
    ("fastcgi_params", "parameters of FastCGI"),
    ("fastcgi.conf", "parameters of FastCGI"),
    ("uwsgi_params", "parameters of uwsgi"),
    ("scgi_params", "parameters of SCGI"),
    ("koi-utf", "a map of character sets"),
    ("koi-win", "a map of character sets"),
    ("win-utf", "a map of character sets"),
    ("modules-enabled/*.conf", "modules that are loaded"),
];

/// Reads a configuration with all that it includes. What became of each `include` is noted.
///
/// # Errors
/// A file is no nginx.conf, or there are too many.
pub fn gather(
    text: &str,
    files: &dyn SourceFiles,
    ledger: &mut NginxLedger,
) -> Result<Vec<NginxDirective>, NotConverted> {
    let dump = dumped(text);
    let (main, folder) = match dump.first() {
        Some((path, text)) => (text.as_str(), parent(path).to_owned()),
        None => (text, files.folder().to_owned()),
    };
    let known: BTreeMap<&str, &str> =
        dump.iter().skip(1).map(|(path, text)| (path.as_str(), &**text)).collect();
    let mut gatherer = Gatherer {
        files,
        known,
        is_dump: !dump.is_empty(),
        folder,
        numbers: DirectiveNumbers::default(),
        count: 0,
        ledger,
    };
    let name = dump.first().map_or("", |(path, _)| path.as_str());
    let directives = parse(name, main, &mut gatherer.numbers)?;
    gatherer.replaced(directives, 0)
}

/// The folder that a path is in.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The files in the output of `nginx -T`, in its order; none if the text is an ordinary file.
fn dumped(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix(MARK).and_then(|rest| rest.trim_end().strip_suffix(':')) {
            Some(path) => found.push((path.to_owned(), String::new())),
            None => {
                if let Some((_, text)) = found.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    found
}

struct Gatherer<'f> {
    files: &'f dyn SourceFiles,
    /// Files of `nginx -T`, by path.
    known: BTreeMap<&'f str, &'f str>,
    is_dump: bool,
    folder: String,
    numbers: DirectiveNumbers,
    count: usize,
    ledger: &'f mut NginxLedger,
}

impl Gatherer<'_> {
    /// The directives with those of included files in place of each `include`.
    fn replaced(
        &mut self,
        directives: Vec<NginxDirective>,
        depth: usize,
    ) -> Result<Vec<NginxDirective>, NotConverted> {
        let mut all = Vec::new();
        for mut directive in directives {
            if let Some(block) = directive.block.take() {
                directive.block = Some(self.replaced(block, depth)?);
            }
            let included = match directive.name.as_str() {
                "include" => self.included(&directive, depth)?,
                _ => Vec::new(),
            };
            self.ledger.add(&directive);
            all.push(directive);
            all.extend(included);
        }
        Ok(all)
    }

    fn included(
        &mut self,
        include: &NginxDirective,
        depth: usize,
    ) -> Result<Vec<NginxDirective>, NotConverted> {
        let pattern = include.word(0);
        let no_matter =
            OF_NO_MATTER.iter().find(|(name, _)| pattern == *name || pattern.ends_with(&format!("/{name}")));
        if let Some((_, what)) = no_matter {
            self.ledger.exact(include, format!("not needed: {what}"));
            return Ok(Vec::new());
        }
        let paths = self.matching(pattern);
        let mut all = Vec::new();
        let mut read = 0;
        for path in paths {
            self.count += 1;
            if self.count > MOST_FILES || depth > DEEPEST {
                let what = format!("`include` reads more than {MOST_FILES} files, or itself");
                return Err(super::lexer::mistake(&include.file, include.line, what));
            }
            let text = match self.known.get(path.as_str()) {
                Some(text) => Ok((*text).to_owned()),
                None if self.is_dump => Err("it is not in this output of `nginx -T`".to_owned()),
                None => self.files.read(&path),
            };
            match text {
                Ok(text) => {
                    let directives = parse(&self.shown(&path), &text, &mut self.numbers)?;
                    all.extend(self.replaced(directives, depth + 1)?);
                    read += 1;
                }
                Err(why) => {
                    let note = format!(
                        "`{path}` cannot be read ({why}): WHAT IT SAYS IS LEFT OUT, and so are limits that it may have"
                    );
                    self.ledger.unsupported(include, note);
                }
            }
        }
        match read {
            0 => self.ledger.exact(include, "there is no such file"),
            1 => self.ledger.exact(include, "its directives stand here"),
            more => self.ledger.exact(include, format!("the directives of its {more} files stand here")),
        }
        Ok(all)
    }

    fn matching(&self, pattern: &str) -> Vec<String> {
        let whole = match pattern.starts_with('/') || self.folder.is_empty() {
            true => pattern.to_owned(),
            false => format!("{}/{pattern}", self.folder),
        };
        match (self.is_dump, is_pattern(pattern)) {
            (true, true) => {
                let known = self.known.keys().filter(|path| path_matches(&whole, path));
                known.map(|path| (*path).to_owned()).collect()
            }
            (_, false) => vec![whole],
            (false, true) => self.files.matching(&whole),
        }
    }

    /// The path as verdicts show it: from the folder of the main file.
    fn shown(&self, path: &str) -> String {
        let inside = path.strip_prefix(self.folder.as_str()).and_then(|rest| rest.strip_prefix('/'));
        inside.filter(|_| !self.folder.is_empty()).unwrap_or(path).to_owned()
    }
}
