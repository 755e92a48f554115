//! Reads a config from standard input and prints what is wrong with it, or nothing. The argument is the file
//! name to show.

use std::io::Read;

fn main() -> std::process::ExitCode {
    #[expect(clippy::disallowed_methods, reason = "an example is a program, with arguments")]
    let name = std::env::args().nth(1).unwrap_or_else(|| "weir.toml".to_owned());
    let mut bytes = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut bytes) {
        eprintln!("standard input cannot be read: {error}");
        return std::process::ExitCode::FAILURE;
    }
    let checked = weir_config::decode(&name, &bytes).and_then(|text| weir_config::check_text(&name, text));
    match checked {
        Ok(checked) => {
            print!("{}", checked.warnings);
            std::process::ExitCode::SUCCESS
        }
        Err(report) => {
            print!("{report}");
            std::process::ExitCode::from(2)
        }
    }
}
