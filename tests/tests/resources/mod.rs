//! Short of descriptors, memory, time or luck.

mod clock;
mod descriptors;
mod faults;
mod memory;
mod names;
mod reader;
mod shares;
mod threads;
