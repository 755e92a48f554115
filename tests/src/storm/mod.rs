//! Load with verification.
