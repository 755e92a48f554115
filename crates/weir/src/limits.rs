//! What the kernel allows this process to use: file descriptors, memory pages and CPUs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// With fewer file descriptors than this, a load balancer under load soon runs out: each proxied connection
/// takes two.
const FEW_DESCRIPTORS: u64 = 4096;

/// Size of the descriptor table from the start, in descriptors; it takes half a mebibyte of kernel memory.
const TABLE: u64 = 1 << 16;

/// Raises the soft limit of file descriptors to the hard limit, and warns if that is low.
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

/// Grows the kernel's descriptor table of this process to its limit, up to [`TABLE`]. Call it before there
/// are threads: with threads, each doubling of the table waits until no processor uses the old one, 10 to 20
/// ms in which a worker that accepts serves nobody.
pub fn grow_descriptor_table() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(TABLE).min(TABLE);
    if let (Ok(file), Ok(last)) = (std::fs::File::open("/dev/null"), i32::try_from(most.saturating_sub(1))) {
        // The descriptor is closed at once; the table keeps its size.
        drop(rustix::io::fcntl_dupfd_cloexec(&file, last));
    }
}

/// Makes the kernel use memory pages of 4 KiB. A huge page is cleared as a whole when it is first touched,
/// and all connections of the worker wait for that (docs/decisions/0017).
pub fn refuse_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages could not be refused");
    }
}

/// Number of CPUs that this process may run on; 0 if the kernel does not say.
pub fn allowed_cpu_count() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(0, |cpus| cpus.count() as usize)
}

/// Number of CPUs whose time this process may use, at least 1: those it may run on, or fewer if the quota of
/// its control group allows less.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
