//! Lays a finished binary's code out anew by what ran in a training: blocks that run one after another lie
//! one after another, and what did not run lies elsewhere (LLVM's BOLT, of Debian's package `bolt-19`).
//!
//! It needs symbols and relocations in the binary (`-Wl,--emit-relocs`), and takes them out. Only Rust's own
//! functions are taken apart: cryptography in assembly is not written for that. Those that never ran stay
//! where they are.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::succeeds;

/// Where the package has its programs; they find their own parts beside them.
const PROGRAMS: &str = "/usr/lib/llvm-19/bin";

/// How names of Rust's functions begin.
const RUST: [&str; 2] = ["_ZN", "_R"];

/// How code is laid out: blocks and functions in the order in which they run, blocks that do not run in a
/// section of their own, and functions that are the same once. Not in the place of what was there
/// (`--use-old-text`), which overwrites functions that are not taken apart.
const LAYOUT: [&str; 8] = [
    "--lite=1",
    "--reorder-blocks=ext-tsp",
    "--reorder-functions=cdsort",
    "--split-functions",
    "--split-all-cold",
    "--split-eh",
    "--icf=1",
    // Else there is a hole of up to 2 MB before it.
    "--no-huge-pages",
];

/// A binary whose blocks are counted as they run, and where it leaves the counts: a file for each process,
/// when that ends.
pub struct Counting {
    /// The binary.
    pub binary: PathBuf,
    counts: PathBuf,
    /// Names of functions that are not taken apart, one on a line.
    others: PathBuf,
}

/// Makes a binary that counts, in `directory`, which is made anew; `names` lists a binary's symbols (nm).
///
/// # Errors
/// The package is not there, or can't do it, in words.
pub fn counting(binary: &Path, names: &Path, directory: &Path) -> Result<Counting, String> {
    if !Path::new(PROGRAMS).join("llvm-bolt").exists() {
        return Err("llvm-bolt is missing: `xtask/setup.sh dist` installs it".to_owned());
    }
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let [counting, counts, others] = ["weir", "counts", "others"].map(|name| directory.join(name));
    let counting = Counting { binary: counting, counts, others };
    let listed = Command::new(names).arg("--format=posix").arg(binary).output();
    let listed = listed.map_err(|error| format!("{}: {error}", names.display()))?;
    let others = others_in(&String::from_utf8_lossy(&listed.stdout));
    fs::write(&counting.others, others).map_err(|error| format!("{}: {error}", counting.others.display()))?;
    let mut command = Command::new(Path::new(PROGRAMS).join("llvm-bolt"));
    command.arg(binary).args(["-instrument", "--instrumentation-file-append-pid"]);
    command.arg(named("--skip-funcs-file=", &counting.others));
    command.arg(named("--instrumentation-file=", &counting.counts)).arg("-o").arg(&counting.binary);
    if succeeds(&mut command) { Ok(counting) } else { Err("llvm-bolt could not count".to_owned()) }
}

/// Lays `binary` out by what the training with `counting` left, as `arranged`, without symbols; `strip` is
/// LLVM's own: that of binutils breaks what is laid out so.
///
/// # Errors
/// A program can't do it, in words.
pub fn arrange(binary: &Path, counting: &Counting, strip: &Path, arranged: &Path) -> Result<(), String> {
    let directory = counting.counts.parent().unwrap_or(Path::new("."));
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let is_count = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "fdata");
    let counts: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_count).collect();
    let merged = directory.join("merged");
    let mut merge = Command::new(Path::new(PROGRAMS).join("merge-fdata"));
    if counts.is_empty() || !succeeds(merge.args(&counts).arg("-o").arg(&merged)) {
        return Err("merge-fdata could not merge what the training counted".to_owned());
    }
    let mut bolt = Command::new(Path::new(PROGRAMS).join("llvm-bolt"));
    bolt.arg(binary).arg(named("--data=", &merged)).args(LAYOUT);
    bolt.arg(named("--skip-funcs-file=", &counting.others)).arg("-o").arg(arranged);
    if !succeeds(&mut bolt) || !succeeds(Command::new(strip).arg("--strip-all").arg(arranged)) {
        return Err("the code could not be laid out".to_owned());
    }
    Ok(())
}

/// The functions of a list of symbols (`NAME TYPE …`) that are not Rust's, as expressions, one on a line. Of
/// several with one name BOLT tells them apart by what it appends.
fn others_in(symbols: &str) -> String {
    let function = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        rest.starts_with(['t', 'T', 'w', 'W']).then(|| name.to_owned())
    };
    let others = symbols.lines().filter_map(function);
    let others = others.filter(|name| !RUST.iter().any(|begin| name.starts_with(begin)));
    others.map(|name| format!("{name}\n{name}/.*\n")).collect()
}

/// An option with a path.
fn named(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_not_of_rust_are_left_out_with_all_of_their_name() {
        let symbols =
            "_ZN4weir4mainE T 10 5\n_RNvC4weir T 20\naes_gcm t 30 9\ntable r 40 8\nmi_free T 50 2\n";
        assert_eq!(others_in(symbols), "aes_gcm\naes_gcm/.*\nmi_free\nmi_free/.*\n");
    }
}
