//! `weir convert`

use std::path::{Path, PathBuf};

use weir_convert::{Converted, DirectiveVerdict};

use crate::exit::Exit;

/// What is converted, and where it goes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Configuration of another program: ARC2 Proxy's `arc2.toml`
    pub file: PathBuf,
    /// Write the weir.toml here instead of to standard output; an existing file is left as it is
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// End with code 1 where anything is unsupported
    #[arg(long)]
    pub strict: bool,
}

/// Writes the converted file, and prints on standard error what became of each directive.
pub fn convert(arguments: &Arguments) -> Result<Exit, Exit> {
    let name = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            Exit::Failed.saying(format_args!("{name} is not text in UTF-8, as TOML is"))
        }
        _ => Exit::Failed.saying(format_args!("{name} cannot be read: {error}")),
    })?;
    let converted =
        weir_convert::convert(&text).map_err(|error| Exit::Failed.saying(format_args!("{name}: {error}")))?;
    let source =
        arguments.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let written = converted.to_toml(&source);
    match &arguments.output {
        None => say!("{}", written.trim_end()),
        Some(output) => write_new(output, &written)?,
    }
    report(&converted);
    weir_config::check_text("the converted file", &written).map_err(|report| {
        Exit::Failed.saying(format_args!("not all of it is taken by `weir check` yet:\n{report}"))
    })?;
    let lacks = arguments.strict && converted.count(DirectiveVerdict::Unsupported) > 0;
    if lacks { Err(Exit::Failed) } else { Ok(Exit::Done) }
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
