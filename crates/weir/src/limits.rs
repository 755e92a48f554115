//! What the kernel lets this process use.

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

/// Has memory come in pages of 4 KiB. A huge page is cleared as a whole where it is first touched, and all connections of the worker wait for
/// that (docs/decisions/0017).
pub fn refuse_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages could not be refused");
    }
}

/// CPUs this process may use, at least 1.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
