//! How the C library copies memory.
//!
//! From 2 KiB on, glibc before 2.40 copies with `rep movsb` if the processor says that this is fast. On AMD's
//! Zen 3 to 5 it is not: for most alignments it is several times slower than a loop of vector moves. Copying
//! is most of a proxy's work with large bodies. glibc has a setting for this, which it reads before the
//! program begins, so the program restarts itself with the setting.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, fs};

/// Environment variable with glibc's settings: names and values, separated by colons (the manual's chapter
/// "Tunables").
const SETTINGS: &str = "GLIBC_TUNABLES";
const THRESHOLD: &str = "glibc.cpu.x86_rep_movsb_threshold";
/// A threshold above the size of any copy, in bytes.
const NEVER: &str = "0x7fffffff";

/// Marks that the program was restarted. The setting itself can't serve as the mark: for a program with file
/// capabilities (setcap(8)), glibc removes it from the environment, and the program would restart forever.
const BEGUN_ANEW: &str = "WEIR_BEGUN_ANEW";

/// Restarts this program, with the same process number, if copies would be slow otherwise. Call it before
/// anything is opened. Returns if there is nothing to do or if it can't be done.
pub fn avoid_slow_moves() {
    let settings = env::var_os(SETTINGS);
    let is_set = settings.as_ref().is_some_and(|set| set.to_string_lossy().contains(THRESHOLD));
    if is_set || env::var_os(BEGUN_ANEW).is_some() || !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return;
    }
    let Ok(processors) = fs::read_to_string("/proc/cpuinfo") else { return };
    if !moves_slowly(&processors) {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // `exec` returns only on an error; the program then goes on as it is.
    let _ = command.args(arguments).env(SETTINGS, with_threshold(settings)).env(BEGUN_ANEW, "1").exec();
}

fn with_threshold(settings: Option<OsString>) -> OsString {
    let mut all = settings.unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(format!("{THRESHOLD}={NEVER}"));
    all
}

/// Whether the first processor in the kernel's list claims fast string moves and is AMD's, whose moves are
/// slow.
fn moves_slowly(processors: &str) -> bool {
    let value = |name: &str| {
        let line = processors.lines().take_while(|line| !line.is_empty()).find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    };
    let claims =
        value("flags").is_some_and(|flags| flags.split(' ').any(|flag| matches!(flag, "erms" | "fsrm")));
    claims && value("vendor_id") == Some("AuthenticAMD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processors_that_claim_what_they_can_not_do_are_meant() {
        let processor = |vendor: &str, flags: &str| {
            format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse2\n\n")
        };
        assert!(moves_slowly(&processor("AuthenticAMD", "erms fsrm")));
        assert!(moves_slowly(&processor("AuthenticAMD", "erms")));
        assert!(!moves_slowly(&processor("AuthenticAMD", "avx2")), "it is not used there");
        assert!(!moves_slowly(&processor("GenuineIntel", "erms fsrm")));
        assert!(!moves_slowly(""));
    }

    #[test]
    fn settings_of_the_user_stay() {
        assert_eq!(with_threshold(None), format!("{THRESHOLD}={NEVER}").as_str());
        let others = Some("glibc.malloc.arena_max=1".into());
        assert_eq!(with_threshold(others), format!("glibc.malloc.arena_max=1:{THRESHOLD}={NEVER}").as_str());
    }
}
