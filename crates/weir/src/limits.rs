//! What the kernel lets this process use.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this many descriptors a balancer under load soon runs dry: each proxied connection takes two.
const FEW_DESCRIPTORS: u64 = 4096;

/// Raises the soft limit of descriptors to the hard one, and warns when that is little.
pub fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "the limit of file descriptors could not be raised");
    }
    let now = getrlimit(Resource::Nofile).current;
    if let Some(most) = now.filter(|most| *most < FEW_DESCRIPTORS) {
        tracing::warn!(
            most,
            "few file descriptors: about {} connections; raise LimitNOFILE or `ulimit -n`",
            most / 2
        );
    }
}

/// CPUs this process may use, at least 1.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default budget for connection buffers: three quarters of the memory this process may use, in bytes.
pub fn default_memory_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |path: &Path| std::fs::read_to_string(path).ok();
    let most = total_bytes(&meminfo).into_iter().chain(group_limits(&groups, limit)).min();
    // A kernel that says nothing gets a budget that fits any machine this runs on.
    most.unwrap_or(1 << 30) / 4 * 3
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The limits of the process's control group (version 2) and of all above it.
fn group_limits<'g>(
    groups: &'g str,
    read: impl Fn(&Path) -> Option<String> + 'g,
) -> impl Iterator<Item = u64> + 'g {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let below = Path::new("/sys/fs/cgroup").join(own);
    let ancestors: Vec<_> =
        below.ancestors().take_while(|path| path.starts_with("/sys/fs/cgroup")).map(Path::to_owned).collect();
    ancestors.into_iter().filter_map(move |path| read(&path.join("memory.max"))?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_memory_is_read_in_bytes() {
        assert_eq!(total_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_bytes(""), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let limits = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/system.slice/weir.service/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/system.slice/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/memory.max" => Some("5000\n".to_owned()),
            _ => None,
        };
        assert_eq!(group_limits("0::/system.slice/weir.service\n", limits).min(), Some(1000));
        assert_eq!(group_limits("", |_| None).min(), None);
    }
}
