//! The way from text to [`Config`]: TOML syntax, then each value by itself, then the values together.

use crate::bind::{Context, bind};
use crate::compose::gather::FILE_BYTES;
use crate::compose::{Root, compose, gather};
use crate::config::{Config, ROOT, assume};
use crate::files;
use crate::hidden;
use crate::named_files::NamedFiles;
use crate::report::{Findings, Report, Span};
use crate::source::Source;
use crate::world::{Nothing, World};

/// An accepted configuration, with its warnings.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// Warnings, sorted by position; usually empty.
    pub warnings: Report,
}

/// Reads a configuration; warnings are dropped. See [`check_text`].
pub fn parse(file_name: &str, text: &str) -> Result<Config, Report> {
    check_text(file_name, text).map(|checked| checked.config)
}

/// Reads a self-contained configuration: no other file, and no environment. `file_name` is only displayed.
///
/// `Err` holds every mistake of the file, sorted by position. Never panics, whatever the text.
///
/// Files whose content would be part of the configuration are not read: their content is empty.
pub fn check_text(file_name: &str, text: &str) -> Result<Checked, Report> {
    check(&[Root { name: file_name, text }], &Nothing, false)
}

/// Reads a configuration from several files, which together say what one file could: the named files, in
/// their order, and what they request from `world`.
///
/// `Err` holds every mistake of all files, sorted by file and position. Never panics, whatever the texts.
///
/// # Panics
///
/// Panics if `roots` is empty.
pub fn check_files(roots: &[Root<'_>], world: &dyn NamedFiles) -> Result<Checked, Report> {
    check(roots, world, true)
}

fn check(roots: &[Root<'_>], world: &dyn NamedFiles, are_contents_read: bool) -> Result<Checked, Report> {
    if let Some(root) = roots.iter().find(|root| root.text.len() > FILE_BYTES) {
        // Nothing of it is read, not even its lines.
        let source = Source::new(root.name, "");
        let mut findings = Findings::new(&source);
        let hint = format!("expected at most {FILE_BYTES} bytes of TOML");
        findings.error(Span::default(), format!("the file is {} bytes long", root.text.len()), hint);
        return Err(findings.into_report());
    }
    let gathered = gather(roots, world);
    let composed = compose(&gathered, world);
    let complete = composed.is_complete;
    let composed_count = composed.problems.len();
    let mut findings = Findings::with(&composed.source, &composed.given, composed.problems);
    let mut root = bind(&composed.table, composed.at, &ROOT, &Context::root(), complete, &mut findings);
    findings.once_at(&composed.shared);
    if !complete {
        findings.forget_in(&composed.blind, composed_count);
        return Err(findings.into_report());
    }
    if are_contents_read {
        files::read(&mut root, world, &mut findings);
    }
    let uses = assume(&mut root);
    let hidden = hidden::of(&root, &composed.given);
    let config = Config { hidden, ..Config::read(&root) };
    config.check(&root, &uses, &mut findings);
    let refused = findings.refused();
    let report = findings.into_report();
    if refused { Err(report) } else { Ok(Checked { config, warnings: report }) }
}

/// The texts of all files of a config, included files among them, as far as they can be read.
pub fn all_texts(roots: &[Root<'_>], world: &dyn World) -> Vec<String> {
    gather(roots, world).files.into_iter().map(|file| file.text).collect()
}

/// The text of a file, or a report of the first byte that is not valid UTF-8.
pub fn decode<'b>(file_name: &str, bytes: &'b [u8]) -> Result<&'b str, Report> {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    // The text is valid up to that byte, so the place can be shown.
    let text = String::from_utf8_lossy(bytes);
    let source = Source::new(file_name, text);
    let mut findings = Findings::new(&source);
    let at = error.valid_up_to();
    let byte = bytes.get(at).copied().unwrap_or_default();
    let span = Span { start: at, end: at + 1 };
    findings.error(
        span,
        format!("byte 0x{byte:02x} is not UTF-8 text"),
        "expected a TOML file saved as UTF-8",
    );
    Err(findings.into_report())
}
