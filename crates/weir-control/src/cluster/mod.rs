//! MySQL servers that replicate to each other, as the control side asks them.
//!
//! [`client`] logs in to one and asks it a question. What the answers mean is said by
//! `weir_mysql::topology`.

pub mod client;
