//! Divides the memory budget of the process.

use std::path::Path;

use weir_config::Config;

/// The cache gets one part in this many of the budget, if the config does not say.
const CACHE_SHARE: u64 = 8;
/// The cache's least size, in bytes.
const CACHE_LEAST: u64 = 16 << 20;
/// Buffers get at least one part in this many, whatever the cache takes.
const BUFFER_SHARE: u64 = 4;

/// The size of the cache, in bytes; `None` if no route caches.
pub fn for_cache(config: &Config) -> Option<u64> {
    config.listeners.iter().flat_map(|listener| &listener.routes).find(|route| route.cache.is_some())?;
    Some(config.cache.memory_bytes.unwrap_or_else(|| (total(config) / CACHE_SHARE).max(CACHE_LEAST)))
}

/// The size of the buffers of all connections, in bytes.
pub fn for_buffers(config: &Config) -> u64 {
    let total = total(config);
    total.saturating_sub(for_cache(config).unwrap_or_default()).max(total / BUFFER_SHARE)
}

/// How many of `bytes` for buffers one client may have (`runtime.memory_share_per_client`).
pub fn for_client(config: &Config, bytes: u64) -> u64 {
    (bytes as f64 * config.runtime.memory_share_per_client) as u64
}

fn total(config: &Config) -> u64 {
    config.runtime.memory_bytes.unwrap_or_else(default_bytes)
}

/// Three quarters of the memory this process may use, in bytes.
fn default_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |path: &Path| std::fs::read_to_string(path).ok();
    let most = total_bytes(&meminfo).into_iter().chain(group_limits(&groups, limit)).min();
    // If the kernel gives no figure, the budget fits any machine that Weir runs on.
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

    fn config(text: &str) -> Config {
        let whole = format!("{text}\n[pool.app]\nbackends = ['10.0.0.1:80']");
        weir_config::parse("test.toml", &whole).unwrap_or_else(|report| panic!("{report}"))
    }

    #[test]
    fn what_is_kept_comes_out_of_the_budget_of_the_process() {
        const PLAIN: &str = "runtime = { memory = '1GiB' }\n[listener.web]\nbind = '127.0.0.1:80'\n[[listener.web.route]]\npool = 'app'\n";
        let without = config(PLAIN);
        assert_eq!((for_cache(&without), for_buffers(&without)), (None, 1 << 30));
        let kept = config(&format!("{PLAIN}cache = {{}}"));
        assert_eq!((for_cache(&kept), for_buffers(&kept)), (Some(128 << 20), (1 << 30) - (128 << 20)));
        let said = config(&format!("cache = {{ memory = '2GiB' }}\n{PLAIN}cache = {{}}"));
        assert_eq!((for_cache(&said), for_buffers(&said)), (Some(2 << 30), 256 << 20));
    }

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
