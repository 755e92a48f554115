//! MySQL listeners before real servers.

mod cluster;
mod failover;
