//! Rate limits that are counted together with other Weirs.

use weir_control::control::Control;
use weir_stats::expose::{self, Exposition};

/// Nothing without `[peers]`.
pub(super) fn of_peers(out: &mut Exposition, control: &Control) {
    let Some(status) = control.sharing().status() else { return };
    out.single(&expose::PEERS_LISTENING, f64::from(u8::from(status.error.is_none())));
    out.single(&expose::PEERS_HEARD, status.heard.len() as f64);
    out.single(&expose::PEERS_LIMITS, status.limits as f64);
    let mut told = out.family(&expose::PEERS_TOLD);
    for peer in status.told.iter().filter(|peer| peer.state != "own") {
        told.sample(&[&peer.address], f64::from(u8::from(peer.state == "told")));
    }
    let mut entries = out.family(&expose::PEERS_SENT_ENTRIES);
    for peer in &status.told {
        entries.sample(&[&peer.address], peer.entries_total as f64);
    }
    let mut bytes = out.family(&expose::PEERS_SENT_BYTES);
    for peer in &status.told {
        bytes.sample(&[&peer.address], peer.bytes_total as f64);
    }
    let mut behind = out.family(&expose::PEERS_BEHIND);
    for peer in &status.told {
        behind.sample(&[&peer.address], peer.behind_total as f64);
    }
    out.single(&expose::PEERS_RECEIVED_ENTRIES, status.heard_entries_total as f64);
    out.single(&expose::PEERS_RECEIVED_BYTES, status.heard_bytes_total as f64);
    out.single(&expose::PEERS_UNKNOWN, status.unknown_total as f64);
    let mut refused = out.family(&expose::PEERS_REFUSED);
    refused.sample(&["stranger"], status.strangers_total as f64);
    refused.sample(&["mistake"], status.mistakes_total as f64);
}
