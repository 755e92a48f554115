//! What operators see of the Weirs that count together.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::tell::Standing;
use super::{Common, Sharing};
use crate::lock;

/// How limits are shared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeersStatus {
    /// Where other Weirs reach this one.
    pub bind: String,
    /// Why it does not listen; `None` if it does.
    pub error: Option<String>,
    /// Limits that are shared (count).
    pub limits: usize,
    /// The Weirs that are told, in the order of the config.
    pub told: Vec<PeerStatus>,
    /// The Weirs that are listened to.
    pub heard: Vec<HeardStatus>,
    /// Counts and debts of keys that were heard.
    pub heard_entries_total: u64,
    /// Bytes of this.
    pub heard_bytes_total: u64,
    /// Messages about limits that this Weir does not have.
    pub unknown_total: u64,
    /// Connections that ended before the other side had proved to be a peer.
    pub strangers_total: u64,
    /// Connections that ended because of what was said.
    pub mistakes_total: u64,
}

/// A Weir that is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// As configured.
    pub address: String,
    /// `told`, `learning` (it is being told everything), `own` (it is this Weir) or `away`.
    pub state: String,
    /// Why it is away.
    pub error: Option<String>,
    /// Counts and debts of keys that it was told.
    pub entries_total: u64,
    /// Bytes that it was sent.
    pub bytes_total: u64,
    /// How often it was too slow and had to be told everything again.
    pub behind_total: u64,
}

/// A Weir that is listened to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeardStatus {
    /// Where its connection comes from.
    pub from: String,
    /// Counts and debts of keys that it has said.
    pub entries_total: u64,
}

impl Sharing {
    /// How limits are shared; `None` if the config has no `[peers]`.
    pub fn status(&self) -> Option<PeersStatus> {
        let common: &Common = &self.common;
        let compiled = (common.compiled)()?;
        let config = compiled.snapshot.config.peers.as_ref()?;
        let peers = lock(&common.peers).clone();
        let told = peers.iter().map(|peer| {
            let (state, error) = match &*lock(&peer.standing) {
                Standing::Told(_) if peer.outbox.is_complete() => ("told", None),
                Standing::Told(_) => ("learning", None),
                Standing::Own => ("own", None),
                Standing::Away(error) => ("away", Some(error.clone())),
                Standing::Unknown => ("away", None),
            };
            PeerStatus {
                address: peer.address.clone(),
                state: state.to_owned(),
                error,
                entries_total: peer.entries.load(Relaxed),
                bytes_total: peer.bytes.load(Relaxed),
                behind_total: peer.behind.load(Relaxed),
            }
        });
        let hearings: Vec<_> = lock(&common.hearings).values().cloned().collect();
        let heard = hearings.iter().map(|hearing| HeardStatus {
            from: hearing.from.to_string(),
            entries_total: hearing.entries.load(Relaxed),
        });
        Some(PeersStatus {
            bind: config.bind.to_string(),
            error: lock(&common.cannot_listen).clone(),
            limits: lock(&common.limits).len(),
            told: told.collect(),
            heard: heard.collect(),
            heard_entries_total: common.heard.entries.load(Relaxed),
            heard_bytes_total: common.heard.bytes.load(Relaxed),
            unknown_total: common.heard.unknown.load(Relaxed),
            strangers_total: common.heard.strangers.load(Relaxed),
            mistakes_total: common.heard.mistakes.load(Relaxed),
        })
    }
}
