//! The way from text to [`Config`]: TOML syntax, then each value on its own, then the values together.

use toml::de::DeTable;

use crate::bind::{Context, bind};
use crate::config::{Config, ROOT, assume};
use crate::files::{self, ReadFile};
use crate::report::{Findings, Report, Source, Span};
use crate::syntax;

/// Longest text that is read, in bytes; a larger file is not a config file.
const FILE_BYTES: usize = 16 << 20;

/// A configuration that is taken, and what was odd about it.
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

/// Reads a configuration. `file_name` is only shown.
///
/// `Err` holds every mistake of the file, sorted by position. Never panics, whatever the text.
///
/// Files that it names are not read: what it holds of them is empty.
pub fn check_text(file_name: &str, text: &str) -> Result<Checked, Report> {
    check(file_name, text, None)
}

/// As [`check_text`], and has the files read whose content the configuration holds. One that can't be read is
/// a mistake of the line that names it.
pub fn check_with_files(file_name: &str, text: &str, read_file: &ReadFile<'_>) -> Result<Checked, Report> {
    check(file_name, text, Some(read_file))
}

fn check(file_name: &str, text: &str, read_file: Option<&ReadFile<'_>>) -> Result<Checked, Report> {
    if text.len() > FILE_BYTES {
        // Nothing of it is read, not even where its lines end.
        let source = Source::new(file_name, "");
        let mut findings = Findings::new(&source);
        let hint = format!("expected at most {} bytes of TOML", FILE_BYTES);
        findings.error(Span::default(), format!("the file is {} bytes long", text.len()), hint);
        return Err(findings.into_report());
    }
    let source = Source::new(file_name, text);
    let mut findings = Findings::new(&source);
    let mended = syntax::mend(&mut findings);
    let syntax_count = findings.count();
    let complete = syntax_count == 0;
    let (table, _) = DeTable::parse_recoverable(&mended.text);
    let mut root = bind(table.get_ref(), Span::default(), &ROOT, &Context::root(), complete, &mut findings);
    if !complete {
        findings.forget_in(&mended.blind, syntax_count);
        return Err(findings.into_report());
    }
    if let Some(read_file) = read_file {
        files::read(&mut root, read_file, &mut findings);
    }
    let uses = assume(&mut root);
    let config = Config::read(&root);
    config.check(&root, &uses, &mut findings);
    let refused = findings.refused();
    let report = findings.into_report();
    if refused { Err(report) } else { Ok(Checked { config, warnings: report }) }
}

/// The text of a file, or a report of the first byte that is not UTF-8.
pub fn decode<'b>(file_name: &str, bytes: &'b [u8]) -> Result<&'b str, Report> {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    // The text is good up to there, so the place can be shown in it.
    let text = String::from_utf8_lossy(bytes);
    let source = Source::new(file_name, &text);
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
