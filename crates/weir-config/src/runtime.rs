//! `[runtime]`: settings of the whole process.

use std::time::Duration;

use crate::keys::{DAY, Limit, MIB, TIB, count, duration, factor, seconds, size, text};
use crate::setting::table;
use crate::values::address::FOLDER;

table! {
    /// Settings of the whole process.
    pub struct Runtime at "[runtime]" {
        /// Worker threads, each pinned to a CPU.
        workers: Option<usize> =
            count(Limit::optional(1, 1024, "a worker is a thread pinned to a CPU"))
                .default("one per CPU this process may use")
                .restart()
                .instead(&[(&["auto"], "leave it out: one per CPU is the default")])
                .also(&["threads", "nbthread", "worker_processes"]);
        /// Longest wait for running work on shutdown, when a listener goes away, or when a MySQL server goes
        /// that sessions have something on.
        drain: Duration =
            duration(Limit::new(seconds(30), seconds(0), DAY, "an old process must end one day"));
        /// Budget for all connection buffers of the process.
        memory_bytes as "memory": Option<u64> =
            size(Limit::optional(
                16 * MIB,
                64 * TIB,
                "below 16MiB not even one buffer per connection of a small site fits",
            ))
            .default("3/4 of the memory this process may use")
            .restart();
        /// Most of that budget that one client may have: an IPv4 address, or the /64 of an IPv6 address; all
        /// clients of an IPv6 /48 may have twice as much together. When memory runs short, no more than is
        /// still free.
        memory_share_per_client: f64 =
            factor(Limit::new(0.25, 0.01, 1.0, "a share of the budget: 1 lets one client have all of it"))
                .also(&["memory_per_client", "client_memory", "client_memory_share", "memory_share"]);
        /// The folder of the files that `buffer` of pools and routes holds bodies in. They have no name, and
        /// are gone with the process, however it ends.
        buffer_directory: Option<String> =
            text(&FOLDER)
                .default("none: bodies are held in memory alone")
                .also(&["client_body_temp_path", "proxy_temp_path", "temp_path", "buffer_dir"]);
        /// Most bytes in all these files; beyond it bodies stream.
        buffer_files_bytes as "buffer_files": u64 =
            size(Limit::new(4096 * MIB, MIB, 64 * TIB, "it is disk that others may need as well"));
        /// Most of these files at once, each a descriptor; beyond it bodies stream.
        buffer_files_count as "buffer_files_max": u32 =
            count(Limit::new(1024, 1, 1_000_000, "each is a descriptor beside those of its connections"));
        /// Most threads that read and write these files, beside the workers.
        buffer_threads: u32 =
            count(Limit::new(4, 1, 256, "a disk takes few writes at once"));
    }
}
