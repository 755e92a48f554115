//! Which keys does Weir use for TLS and for its cookies, and which authorities does it trust?
//!
//! Reads the files that a config names (certificates, keys, authorities) and turns them into what rustls
//! needs: one [`ServerTls`] for each listener, one [`ClientTls`] for each pool. A file that can't be used is
//! an error that names it, so that a config is put in force as a whole or not at all. Sends no bytes and
//! opens no socket; weir-proxy does that.
//!
//! Start reading at [`loaded`].
#![forbid(unsafe_code)]

mod account_file;
pub mod accounts;
pub mod acme;
mod certificate;
mod client;
mod client_login;
mod dated;
mod files;
mod fingerprint;
pub mod folder;
pub mod full_logins;
pub mod hello;
mod loaded;
mod named;
mod ocsp;
pub mod on_demand;
mod own_account;
pub mod password;
mod peers;
mod prover;
mod provider;
mod resolver;
mod revocations;
mod rsa_key;
mod server;
mod sessions;
mod shared_tickets;
mod sticky;
pub mod tickets;
pub mod token;
mod x509;

pub use account_file::AccountFile;
pub use certificate::{ENDS_SOON, Facts, Identity, Validity};
pub use client::{BackendTls, ClientTls};
pub use client_login::ClientLogin;
pub use files::{LoadError, read_regular, why_unread};
pub use fingerprint::fingerprint;
pub use loaded::Loaded;
pub use named::{Looked, look_at};
pub use own_account::OwnAccount;
pub use peers::PeerKeys;
pub use prover::{Proof, ProofError, Prover};
pub use provider::warm_up;
pub use resolver::{ShownCertificates, observing_name};
pub use revocations::ListFacts;
pub use rsa_key::{PasswordKey, ServerKey};
pub use server::ServerTls;
pub use shared_tickets::SharedKeys;
pub use sticky::StickyKey;
pub use tickets::TicketKeys;
pub use x509::subject;
