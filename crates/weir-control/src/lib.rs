//! What is in force right now? Health, names, reload.
//!
//! One thread with an ordinary tokio runtime decides what is in force and hands it to the data planes; it
//! never touches a client's bytes. All changes go through [`control::Control`]; [`publish`] is the only
//! writer of the snapshot.
//!
//! Start reading at [`control`], then [`publish`] (how a config comes into force), [`reload`] (from a file to
//! there) and [`health`] (which backends are up). The interface for operators is in weir-admin.
#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod acme;
pub mod blocking;
pub mod carried;
pub mod certificates;
pub mod cluster;
mod config_files;
pub mod control;
pub mod dns;
pub mod events;
pub mod health;
pub mod kernel;
mod lease;
mod maps;
pub mod notify;
mod outgoing;
pub mod own_log;
pub mod peers;
pub mod publish;
pub mod reload;
mod slow_files;
mod store;
pub mod tasks;
pub mod this_host;
pub mod timestamp;
pub mod token_keys;
mod told;
pub mod upgrade;

/// Locks a mutex, even if a thread that held it has panicked: none leaves its data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
