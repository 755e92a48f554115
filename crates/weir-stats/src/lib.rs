//! Counters and histograms: what happened, how often, and how long it took.
//!
//! Counting takes no locks: every worker has its own copy of each cell and alone writes to it, so that
//! counting is a plain load and store; a reader sums the copies ([`PerWorker`]). The crate depends on no
//! protocol. Metric names, help texts and the sets of label values are declared once, in [`table`] and
//! [`expose`].
#![forbid(unsafe_code)]

mod cells;
pub mod expose;
pub mod table;

pub use cells::{BUCKET_COUNT, Counter, Counters, Histogram, HistogramSum, PerWorker};
