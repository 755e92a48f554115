//! One pass over the workspace that lints it and builds it: every library, program, test and example, once.
//!
//! `cargo clippy` checks everything and leaves nothing that can be run, so that what it read is compiled
//! again for the tests. clippy's driver is a whole compiler, and cargo has a place for one: it then lints our
//! own crates while it compiles them.

use std::path::Path;
use std::process::Command;

use crate::run::{cargo, succeeds};

/// What a lint that is not denied by itself does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lints {
    /// It ends the build.
    Deny,
    /// It is printed.
    Warn,
}

/// A cargo that compiles our own crates with clippy's driver.
///
/// Incremental files are left out: a crate of ours compiles in seconds, and writing them costs a fifth of a
/// first build.
pub fn linting(root: &Path, lints: Lints) -> Command {
    let mut command = cargo(root);
    // Beside the cargo that runs this, so that both are of one toolchain.
    let beside = Path::new(command.get_program()).with_file_name("clippy-driver");
    let driver = if beside.is_file() { beside } else { "clippy-driver".into() };
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CARGO_INCREMENTAL", "0");
    // As `cargo clippy` hands them over.
    command.env(
        "CLIPPY_ARGS",
        if lints == Lints::Deny { "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" } else { "" },
    );
    command
}

/// Builds everything, and says which lints it was built with: those of the commands that run what it left
/// must be the same.
///
/// What only a lint ended is built again without denying it, so that one warning does not hide what the tests
/// say. `None` when it does not compile.
pub fn everything(root: &Path) -> Option<Lints> {
    let builds = |lints| succeeds(linting(root, lints).args(["build", "--workspace", "--all-targets"]));
    [Lints::Deny, Lints::Warn].into_iter().find(|lints| builds(*lints))
}
