//! What the kernel lets this process use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this many descriptors a balancer under load soon runs dry: each proxied connection takes two.
const FEW_DESCRIPTORS: u64 = 4096;

/// Descriptors that there is room for from the start, half a mebibyte of the kernel's memory.
const TABLE: u64 = 1 << 16;

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

/// Makes the kernel's table of this process's descriptors as large as it may become, up to [`TABLE`]. To be
/// called before there are threads: with them, each time the table doubles the kernel waits until no
/// processor looks at the old one, 10 to 20 ms in which a worker that accepts serves nobody.
pub fn grow_descriptor_table() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(TABLE).min(TABLE);
    if let (Ok(file), Ok(last)) = (std::fs::File::open("/dev/null"), i32::try_from(most.saturating_sub(1))) {
        // Closed at once; the table stays as it is.
        drop(rustix::io::fcntl_dupfd_cloexec(&file, last));
    }
}

/// Has memory come in pages of 4 KiB. A huge page is cleared as a whole where it is first touched, and all
/// connections of the worker wait for that (docs/decisions/0017).
pub fn refuse_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages could not be refused");
    }
}

/// CPUs that this process may run on; 0 when the kernel does not say.
pub fn allowed_cpu_count() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(0, |cpus| cpus.count() as usize)
}

/// CPUs that this process may use the time of, at least 1: those it may run on, or as many as the quota of
/// its control group comes to.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
