//! weir-balance
