//! Builds the Weir that is packaged, optimised by what it did in a training run (profile-guided), in three
//! steps.
//!
//! The first step builds a binary that counts branches. The second runs the lab's own scenarios with it as
//! training. The third builds again with the code laid out by those counts.
//! `docs/decisions/0008-profile-guided-packages.md` says what this gains.
//!
//! The binary contains no path of the build machine: the compilers are given other names for the source
//! directories, and the binary is searched afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{cargo, succeeds};

/// The training's scenarios: every way through the data path that has a scenario without other programs'
/// servers, in short form. Code that does not run here is taken for rarely used and made small instead of
/// fast.
const TRAINING: [&str; 20] = [
    "bench/http1",
    "bench/http1-close",
    "bench/http1-body",
    "bench/http1-rules",
    "bench/http1-log",
    "bench/http1-tls",
    "bench/http2",
    "bench/http2-body",
    "bench/http3",
    "bench/http3-body",
    "bench/cached-h1",
    "bench/cached-h2",
    "bench/cached-h3",
    "bench/tcp-rr",
    "bench/tcp-crr",
    "bench/tcp-bulk",
    "s2/relay-cost",
    "s2/connect-cost",
    "s2/transaction-cost",
    "s2/split-cost",
];

/// Builds `dist/weir` in the target directory; says whether it is there.
pub fn build(root: &Path) -> bool {
    match try_build(root) {
        Ok(binary) => {
            println!("dist: {}", binary.display());
            true
        }
        Err(problem) => {
            eprintln!("dist: {problem}");
            false
        }
    }
}

fn try_build(root: &Path) -> Result<PathBuf, String> {
    let host = said_by(Command::new("rustc").current_dir(root).arg("-vV"))?
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or("rustc -vV names no host")?;
    let merger = profile_merger(root, &host)?;
    let target = target_directory(root);
    let work = target.join("profile");
    let counts = work.join("counts");
    let profile = work.join("weir.profdata");
    let _ = fs::remove_dir_all(&counts);
    fs::create_dir_all(&counts).map_err(|error| format!("{}: {error}", counts.display()))?;

    let counting =
        compile(root, &host, &work.join("counting"), &format!("-Cprofile-generate={}", counts.display()))?;
    train(root, &counting)?;
    let merged = Command::new(&merger).arg("merge").arg("-o").arg(&profile).arg(&counts).status();
    if !merged.is_ok_and(|status| status.success()) {
        return Err(format!("{} could not merge what the training counted", merger.display()));
    }
    let built =
        compile(root, &host, &work.join("optimised"), &format!("-Cprofile-use={}", profile.display()))?;
    has_no_paths(&built, &path_prefixes(root, &target))?;
    let binary = target.join("dist").join("weir");
    fs::create_dir_all(target.join("dist")).map_err(|error| format!("{}: {error}", target.display()))?;
    fs::copy(&built, &binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    Ok(binary)
}

/// Compiles `weir` in the dist profile with one more compiler flag, in a target directory of its own: the
/// flag changes every crate, and the usual build must not be thrown away for it.
fn compile(root: &Path, host: &str, directory: &Path, flag: &str) -> Result<PathBuf, String> {
    let prefixes = path_prefixes(root, directory);
    let others = std::env::var("RUSTFLAGS").unwrap_or_default();
    let renamed =
        prefixes.iter().map(|prefix| format!("--remap-path-prefix={}={}", prefix.path, prefix.name));
    let flags: Vec<String> =
        others.split_whitespace().map(str::to_owned).chain(renamed).chain([flag.to_owned()]).collect();
    let of_c = prefixes.iter().map(|prefix| format!("-ffile-prefix-map={}={}", prefix.path, prefix.name));
    let of_c: Vec<String> = std::env::var("CFLAGS").into_iter().chain(of_c).collect();
    // If the target is named explicitly, build scripts and procedural macros are compiled without the flag.
    let mut command = cargo(root);
    command.args(["build", "--profile", "dist", "--package", "weir", "--target", host]);
    command.arg("--target-dir").arg(directory);
    // Paths may contain spaces; this variable separates flags by a byte that paths do not contain.
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).env("CFLAGS", of_c.join(" "));
    if !succeeds(&mut command) {
        return Err("the build failed".to_owned());
    }
    Ok(directory.join(host).join("dist").join("weir"))
}

/// A directory on the build machine, and its name in the binary.
struct PathPrefix {
    path: String,
    name: &'static str,
}

/// Every directory that compilers see. If one contains another, the inner one comes later and takes
/// precedence. The names are relative, so they can't be mistaken for a path of a machine.
fn path_prefixes(root: &Path, target: &Path) -> Vec<PathPrefix> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cargo =
        std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".cargo")));
    let known = [
        (home, "home"),
        (Some(root.to_owned()), "weir"),
        (Some(target.to_owned()), "target"),
        (cargo, "cargo"),
    ];
    let mut prefixes: Vec<PathPrefix> = known
        .into_iter()
        .filter_map(|(path, name)| Some(PathPrefix { path: path?.display().to_string(), name }))
        // Any path could begin with it.
        .filter(|prefix| prefix.path.len() > 1)
        .collect();
    prefixes.sort_by_key(|prefix| prefix.path.len());
    prefixes
}

/// `Err` with the first path if a binary contains one that lies in a prefix.
fn has_no_paths(binary: &Path, prefixes: &[PathPrefix]) -> Result<(), String> {
    let bytes = fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    match path_in(&bytes, prefixes) {
        None => Ok(()),
        Some(found) => Err(format!("{} holds `{found}`, a path of this machine", binary.display())),
    }
}

/// The first path in `bytes` that lies in one of the prefixes, with the text that follows it.
fn path_in(bytes: &[u8], prefixes: &[PathPrefix]) -> Option<String> {
    prefixes.iter().find_map(|prefix| {
        let begins = format!("{}/", prefix.path).into_bytes();
        let at = bytes.windows(begins.len()).position(|window| window == begins)?;
        let text = bytes[at..].iter().take(200).take_while(|byte| byte.is_ascii_graphic());
        Some(text.map(|&byte| char::from(byte)).collect())
    })
}

/// Runs the lab's scenarios with the counting binary as the only contender. The binary writes its counts when
/// it ends.
fn train(root: &Path, counting: &Path) -> Result<(), String> {
    let mut command = cargo(root);
    command.args(["run", "--release", "--package", "weir-lab", "--", "run"]).args(TRAINING);
    command.args(["--rounds", "1", "--seconds", "2", "--only", "weir", "--weir"]).arg(counting);
    if succeeds(&mut command) {
        Ok(())
    } else {
        Err("the training run failed; does `make bench` work?".to_owned())
    }
}

/// The program that merges profiles, from the same toolchain that reads them. Installs it by rustup if it is
/// missing.
fn profile_merger(root: &Path, host: &str) -> Result<PathBuf, String> {
    let sysroot = said_by(Command::new("rustc").current_dir(root).args(["--print", "sysroot"]))?;
    let merger = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/llvm-profdata");
    if merger.exists()
        || (succeeds(Command::new("rustup").current_dir(root).args(["component", "add", "llvm-tools"]))
            && merger.exists())
    {
        return Ok(merger);
    }
    Err("llvm-profdata is missing: `rustup component add llvm-tools` installs it".to_owned())
}

/// cargo's target directory.
fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |directory| root.join(directory))
}

fn said_by(command: &mut Command) -> Result<String, String> {
    let output =
        command.output().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_builder_is_found_in_a_binary() {
        let prefixes = path_prefixes(Path::new("/somewhere/weir"), Path::new("/somewhere/weir/target"));
        let names: Vec<&str> = prefixes.iter().map(|prefix| prefix.name).collect();
        assert!(
            names.iter().position(|name| *name == "weir") < names.iter().position(|name| *name == "target")
        );
        let found = path_in(b"\x7fELF\0\x01/somewhere/weir/crates/weir/src/main.rs\0more", &prefixes);
        assert_eq!(found.as_deref(), Some("/somewhere/weir/crates/weir/src/main.rs"));
        assert_eq!(path_in(b"\x7fELF\0weir/crates/weir/src/main.rs\0/somewhere/weird\0", &prefixes), None);
    }
}
