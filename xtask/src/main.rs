//! The repository's own tool: `cargo xtask <verb>`. Run it without a verb for the list.
#![forbid(unsafe_code)]

mod build;
mod check;
mod ci;
mod circles;
mod comments;
mod dist;
mod edges;
mod fences;
mod fuzz;
#[cfg(test)]
mod guide;
mod imports;
mod licences;
mod links;
mod named_files;
mod one_meaning;
mod packages;
mod parameters;
mod parts;
mod places;
#[cfg(test)]
mod reference;
mod run;
mod sources;
mod suite;
mod threats;
mod tidy;
mod tokens;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask VERB

  tidy              house rules that a machine can check; prints file:line: message
  tidy --circles    every circle of files that need each other, and which needs which
  lint              rustfmt, clippy with warnings as errors, licences, tidy
  ci                lint, build, every test, a short fuzz run; ends with `N passed, M failed`
  check             formatting, lints and the tests of what differs from main; ends with `N passed, M failed`
  test              build and every test; ends with `N passed, M failed`
  fuzz [SECONDS]    runs each fuzz target for that long (default 600)
  dist              builds the optimised binary that is packaged: target/dist/weir
  docs              writes the generated reference pages in docs/reference
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let good = match words[..] {
        ["tidy"] => tidy::holds(&root),
        ["tidy", "--circles"] => circles::print(&root),
        ["lint"] => ci::lint(&root),
        ["ci"] => ci::everything(&root),
        ["check"] => check::changes(&root),
        ["test"] => ci::tests_only(&root),
        ["fuzz"] => fuzz::run(&root, fuzz::DEFAULT_SECONDS),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(&root, seconds),
            Err(_) => {
                eprintln!("xtask: expected a number of seconds, found `{seconds}`");
                return ExitCode::from(2);
            }
        },
        ["dist"] => dist::build(&root),
        ["docs"] => ci::write_reference(&root),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The root of the checkout this was built from.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
