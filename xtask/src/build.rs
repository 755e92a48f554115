//! One pass over the workspace that lints it and builds it: every library, program, test and example, once.
//!
//! `cargo clippy` checks everything but leaves nothing that can be run, so the tests would need a second
//! compilation. clippy's driver is a whole compiler that cargo can use as a wrapper: it lints our own crates
//! while it compiles them.

use std::path::Path;
use std::process::Command;

use crate::run::{cargo, succeeds};

/// What happens on a lint that is not denied by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lints {
    /// It ends the build.
    Deny,
    /// It is printed.
    Warn,
}

/// A cargo that compiles our own crates with clippy's driver.
///
/// Incremental compilation is off: each of our crates compiles in seconds, and writing its files costs a
/// fifth of a first build.
pub fn linting(root: &Path, lints: Lints) -> Command {
    let mut command = cargo(root);
    // The driver beside the cargo that runs this, so that both belong to one toolchain.
    let beside = Path::new(command.get_program()).with_file_name("clippy-driver");
    let driver = if beside.is_file() { beside } else { "clippy-driver".into() };
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CARGO_INCREMENTAL", "0");
    // The form in which `cargo clippy` passes them.
    command.env(
        "CLIPPY_ARGS",
        if lints == Lints::Deny { "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" } else { "" },
    );
    command
}

/// Builds everything. Returns the lints that it was built with; commands that run the results must use the
/// same.
///
/// If only a lint ended the build, it is repeated without denying lints, so that one warning does not hide
/// the results of the tests. `None` if it does not compile.
pub fn everything(root: &Path) -> Option<Lints> {
    let builds = |lints| succeeds(linting(root, lints).args(["build", "--workspace", "--all-targets"]));
    [Lints::Deny, Lints::Warn].into_iter().find(|lints| builds(*lints))
}
