//! The kernel plane's packet counters, and the interfaces where it takes packets.

use weir_control::control::Control;
use weir_stats::expose::{self, Exposition};

pub(super) fn in_kernel(out: &mut Exposition, control: &Control) {
    let Some(seen) = control.kernel().seen() else { return };
    let mut packets = out.family(&expose::KERNEL_PACKETS);
    for (name, listener) in &seen.listeners {
        for (verdict, counter) in &listener.verdicts {
            packets.sample(&[name, verdict.word()], counter.packets as f64);
        }
    }
    let mut flows = out.family(&expose::KERNEL_FLOWS);
    for (name, listener) in &seen.listeners {
        flows.sample(&[name], listener.flows as f64);
    }
    let mut attached = out.family(&expose::KERNEL_ATTACHED);
    for name in &seen.interfaces {
        attached.sample(&[name], 1.0);
    }
    for name in seen.unattached.keys() {
        attached.sample(&[name], 0.0);
    }
    out.single(&expose::KERNEL_LOST, seen.lost_attachments as f64);
    let mut left_out = out.family(&expose::KERNEL_LEFT_OUT);
    for (what, count) in ["addresses", "peers"].into_iter().zip(seen.left_out) {
        left_out.sample(&[what], count as f64);
    }
}
