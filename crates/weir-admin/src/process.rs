//! Resource usage of the process, from `/proc/self` (proc(5)).

/// Each field is `None` if the kernel does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system CPU time.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<f64>,
    /// Virtual memory.
    pub virtual_bytes: Option<f64>,
    /// Open file descriptors.
    pub open_fds: Option<f64>,
    /// Limit of file descriptors.
    pub max_fds: Option<f64>,
    /// Number of threads.
    pub threads: Option<f64>,
}

/// Reads the current usage.
pub fn usage() -> Usage {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let open_fds = std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1) as f64);
    let max_fds =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map(|most| most as f64);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Usage { open_fds, max_fds, ..of_stat(&stat, ticks, rustix::param::page_size() as f64) }
}

/// Parses the fields of `/proc/self/stat` after the command, which is in parentheses and may contain
/// anything.
fn of_stat(stat: &str, ticks: f64, page_bytes: f64) -> Usage {
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    // Numbered as in proc(5), where the first field after the command, the state, is field 3.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    Usage {
        cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
        virtual_bytes: field(23),
        resident_bytes: field(24).map(|pages| pages * page_bytes),
        threads: field(20),
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "42 (a ) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 7 0 12345 8192000 300 18446744073709551615";
        let usage = of_stat(stat, 100.0, 4096.0);
        assert_eq!((usage.cpu_seconds, usage.threads), (Some(2.0), Some(7.0)));
        assert_eq!((usage.virtual_bytes, usage.resident_bytes), (Some(8_192_000.0), Some(1_228_800.0)));
    }

    #[test]
    fn this_process_uses_something() {
        let usage = usage();
        assert!(
            usage.resident_bytes.unwrap() > 0.0 && usage.open_fds.unwrap() >= 3.0 && usage.max_fds.is_some()
        );
    }

    #[test]
    fn a_kernel_that_says_nothing_is_no_panic() {
        assert!(of_stat("", 100.0, 4096.0).cpu_seconds.is_none());
    }
}
