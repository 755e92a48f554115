//! Corpora and made-up traffic.

pub mod corpus;
pub mod traffic;
