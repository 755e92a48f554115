//! The clock of the program in the kernel.

use std::sync::LazyLock;
use std::time::Duration;

/// The program's clock, which is the host's, even if this process is in a time namespace with another one
/// (time_namespaces(7)).
pub(super) fn monotonic() -> Duration {
    // It can't change once a process is in the namespace.
    static AHEAD_NANOS: LazyLock<i128> = LazyLock::new(|| {
        // Without the file there are no time namespaces.
        std::fs::read_to_string("/proc/self/timens_offsets").map_or(0, |offsets| monotonic_offset(&offsets))
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = nanos(i128::from(now.tv_sec), i128::from(now.tv_nsec)) - *AHEAD_NANOS;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

fn nanos(seconds: i128, nanos: i128) -> i128 {
    seconds * 1_000_000_000 + nanos
}

/// How far the namespace's monotonic clock is ahead of the host's, in nanoseconds.
fn monotonic_offset(offsets: &str) -> i128 {
    let mut lines = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let offset = lines.find_map(|words| match words[..] {
        ["monotonic", seconds, rest] => Some(nanos(seconds.parse().ok()?, rest.parse().ok()?)),
        _ => None,
    });
    offset.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_time_namespace_the_hosts_clock_is_the_namespaces_without_its_offset() {
        let offsets = "monotonic      864000         5\nboottime           7         0\n";
        assert_eq!(monotonic_offset(offsets), 864_000 * 1_000_000_000 + 5);
        assert_eq!(monotonic_offset("monotonic  -2  999999999\n"), -1_000_000_001);
        assert_eq!(monotonic_offset("boottime 7 0\n"), 0);
    }
}
