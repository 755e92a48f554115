//! `[runtime]`: settings of the whole process.

use std::time::Duration;

use crate::keys::{DAY, Limit, MIB, TIB, count, duration, seconds, size};
use crate::setting::table;

table! {
    /// Settings of the whole process.
    pub struct Runtime at "[runtime]" {
        /// Worker threads, each pinned to a CPU.
        workers: Option<usize> =
            count(Limit::optional(1, 1024, "a worker is a thread pinned to a CPU"))
                .default("one per CPU this process may use")
                .restart()
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
    }
}
