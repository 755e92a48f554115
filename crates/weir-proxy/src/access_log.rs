//! The access log, off the data path: workers render a line and hand it to a writer thread through a bounded queue.

