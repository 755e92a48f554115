//! What happened, how often, how long?
//!
//! Counting without locks: every worker owns its copy of each cell and is the only one who writes it, so that
//! a count is a plain load and store; a reader sums the copies ([`PerWorker`]). Knows no protocols. Metric
//! names, help texts and the sets of label values are declared once, in [`table`] and [`expose`].
#![forbid(unsafe_code)]

mod cells;
pub mod expose;
pub mod table;

pub use cells::{BUCKET_COUNT, Counter, Counters, Histogram, HistogramSum, PerWorker};
