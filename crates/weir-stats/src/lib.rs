//! weir-stats
