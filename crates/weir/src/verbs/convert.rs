//! `weir convert`

use std::path::{Path, PathBuf};

use weir_convert::{Converted, DirectiveVerdict, SourceFiles};

use crate::exit::Exit;

/// What is converted, and where it goes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Configuration of another program: HAProxy's `haproxy.cfg`, `nginx.conf` or the output of `nginx -T`,
    /// MySQL Router's `mysqlrouter.conf`, ARC2 Proxy's `arc2.toml`
    pub file: PathBuf,
    /// Write the weir.toml to this file instead of standard output; an existing file is not overwritten
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Exit with code 1 if anything is unsupported
    #[arg(long)]
    pub strict: bool,
}

/// Writes the converted file, and prints on standard error what became of each directive.
pub fn convert(arguments: &Arguments) -> Result<Exit, Exit> {
    let name = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Exit::Failed.saying(format_args!("{name} is not text in UTF-8")),
        _ => Exit::Failed.saying(format_args!("{name} cannot be read: {error}")),
    })?;
    let around = Around::of(arguments);
    let converted = weir_convert::convert_with(&text, &around)
        .map_err(|error| Exit::Failed.saying(format_args!("{name}: {error}")))?;
    let source =
        arguments.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let written = converted.to_toml(&source);
    match &arguments.output {
        None => say!("{}", written.trim_end()),
        Some(output) => {
            write_new(output, &written)?;
            converted.files.iter().try_for_each(|file| write_new(Path::new(&file.path), &file.text))?;
        }
    }
    report(&converted);
    if arguments.output.is_none() {
        for file in &converted.files {
            tell!(
                "not written: {}, whose lines stand at the end; --output FILE writes it beside FILE",
                file.path
            );
        }
    }
    check(&written)?;
    let lacks = arguments.strict && converted.count(DirectiveVerdict::Unsupported) > 0;
    if lacks { Err(Exit::Failed) } else { Ok(Exit::Done) }
}

/// Checks the converted file as `weir check` does, as far as that is possible here.
fn check(written: &str) -> Result<(), Exit> {
    let (text, takes_variables) = match filled_in(written) {
        Ok(filled_in) => filled_in,
        Err(missing) => {
            tell!(
                "not checked, because these environment variables are not set here: {}",
                missing.join(", ")
            );
            return Ok(());
        }
    };
    weir_config::check_text("the converted file", &text).map(drop).map_err(|report| match takes_variables {
        // The report would show the lines, with values that may be secrets.
        true => Exit::Failed.saying("`weir check` does not accept the converted file yet; run it to see why"),
        false => Exit::Failed
            .saying(format_args!("`weir check` does not accept the converted file yet:\n{report}")),
    })
}

/// The text with what it takes from elsewhere filled in: environment variables, and a network in the place of
/// each list of networks in a file. Says also whether there are variables. `Err` names those that are not
/// set.
fn filled_in(text: &str) -> Result<(String, bool), Vec<String>> {
    let mut filled = String::with_capacity(text.len());
    let mut missing = Vec::new();
    let mut takes_variables = false;
    for (number, line) in text.lines().enumerate() {
        let mut rest = if line.starts_with('#') { "" } else { line };
        while let Some(at) = ["${env:", "\"@file:"].iter().filter_map(|mark| rest.find(mark)).min() {
            let (before, found) = rest.split_at(at);
            filled.push_str(before);
            let (mark, end) = if found.starts_with('$') { ("${env:", '}') } else { ("\"@file:", '"') };
            let inner = &found[mark.len()..];
            let Some((name, behind)) = inner.split_once(end).filter(|_| !before.ends_with('$')) else {
                filled.push_str(mark);
                rest = inner;
                continue;
            };
            match (mark, std::env::var(name)) {
                ("${env:", Ok(value)) => {
                    takes_variables = true;
                    filled.push_str(weir_config::quoted(&value).trim_matches('"'));
                }
                ("${env:", Err(_)) => missing.push(name.to_owned()),
                // One that no other line has.
                _ => filled.push_str(&format!("\"2001:db8:{:x}::/48\"", number % 0xffff)),
            }
            rest = behind;
        }
        filled.push_str(rest);
        filled.push('\n');
    }
    missing.sort();
    missing.dedup();
    if missing.is_empty() { Ok((filled, takes_variables)) } else { Err(missing) }
}

/// The files around the one that is converted, and where new ones are put.
struct Around {
    folder: PathBuf,
    folder_text: String,
    new_folder: String,
}

impl Around {
    fn of(arguments: &Arguments) -> Around {
        let folder = folder_of(&arguments.file);
        let new_folder = match &arguments.output {
            None => "/etc/weir".to_owned(),
            Some(output) => folder_of(output).display().to_string(),
        };
        Around { folder_text: folder.display().to_string(), folder, new_folder }
    }
}

/// The folder of a file, absolute.
fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
}

impl SourceFiles for Around {
    fn matching(&self, pattern: &str) -> Vec<String> {
        let pattern = self.folder.join(pattern);
        let text = pattern.to_string_lossy().into_owned();
        if !text.contains(['*', '?', '[']) {
            return vec![text];
        }
        weir_convert::matching_paths(&text, &|folder| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        })
    }

    fn read(&self, path: &str) -> Result<String, String> {
        std::fs::read(self.folder.join(path))
            .map_err(|error| error.to_string())
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned()))
    }

    fn folder(&self) -> &str {
        &self.folder_text
    }

    fn new_folder(&self) -> &str {
        &self.new_folder
    }

    fn host_name(&self) -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }
}

/// Writes a new file; an existing one is an error.
fn write_new(path: &Path, text: &str) -> Result<(), Exit> {
    use std::io::Write as _;
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Exit::Failed.saying(format_args!("{} cannot be written: {error}", path.display())))
}

fn report(converted: &Converted) {
    for directive in &converted.directives {
        tell!("{directive}");
    }
    tell!(
        "{} exact, {} approximate, {} unsupported",
        converted.count(DirectiveVerdict::Exact),
        converted.count(DirectiveVerdict::Approximate),
        converted.count(DirectiveVerdict::Unsupported),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_converted_file_takes_from_elsewhere_is_filled_in_before_it_is_checked() {
        let filled =
            filled_in("# ${env:NOT_SET_HERE}\na = \"${env:PATH}/x\" # \nb = [\"@file:/a\", \"$${env:X}\"]\n");
        let (text, takes_variables) = filled.expect("PATH is set");
        assert!(takes_variables && !text.contains("${env:PATH}") && text.contains("/x\" # "), "{text}");
        assert!(text.ends_with("b = [\"2001:db8:2::/48\", \"$${env:X}\"]\n"), "{text}");
        assert_eq!(filled_in("a = \"${env:NOT_SET_HERE}\""), Err(vec!["NOT_SET_HERE".to_owned()]));
    }
}
