//! Metrics of certificates and keys.

use std::sync::Arc;

use weir_control::acme::{Blame, Standing};
use weir_control::control::Control;
use weir_control::timestamp::Timestamp;
use weir_state::{Listener, Pool};
use weir_stats::expose::{self, Exposition};
use weir_stats::table::Handshake;
use weir_tls::ListFacts;

use super::counted;

/// All TLS metrics of these listeners and pools.
pub(super) fn tls(out: &mut Exposition, control: &Control, listeners: &[Arc<Listener>], pools: &[Arc<Pool>]) {
    let peers = control.snapshot().peer_keys.clone();
    handshakes(out, listeners);
    if let Some(own) = peers.as_ref().and_then(|peers| peers.own.as_ref()) {
        let mut expiry = out.family(&expose::PEERS_CERTIFICATE_EXPIRY);
        if let Some(time) = own.not_after {
            expiry.sample(&[&own.file.to_string_lossy()], time as f64);
        }
    }
    let of_peers = peers.as_ref().map_or(&[][..], |peers| &peers.lists);
    revocation_lists(out, listeners, pools, of_peers);
    ticket_keys(out, listeners);
    acme(out, control);
}

fn handshakes(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let with_tls = counted(listeners.iter().filter(|listener| listener.tls.is_some()));
    with_tls.by_word(out, &expose::TLS_HANDSHAKES, Handshake::WORDS, |cells| &cells.handshakes[..]);
    let mut expiry = out.family(&expose::CERTIFICATE_EXPIRY);
    for listener in listeners {
        for certificate in listener.tls.iter().flat_map(|tls| tls.certificates()) {
            if let Some(time) = certificate.not_after {
                let file = certificate.file.to_string_lossy();
                expiry.sample(&[&listener.config.name, &file], time as f64);
            }
        }
    }
}

fn revocation_lists(
    out: &mut Exposition,
    listeners: &[Arc<Listener>],
    pools: &[Arc<Pool>],
    of_peers: &[ListFacts],
) {
    let mut ends = out.family(&expose::CRL_EXPIRY);
    let of_listeners =
        listeners.iter().filter_map(|it| Some((&*it.config.name, "", it.tls.as_ref()?.revocations())));
    let of_pools = pools.iter().map(|it| ("", &*it.config.name, it.revocations()));
    for (listener, pool, lists) in of_listeners.chain(of_pools).chain([("", "", of_peers)]) {
        for list in lists {
            if let Some(time) = list.next_update {
                ends.sample(&[listener, pool, &list.file.to_string_lossy()], time as f64);
            }
        }
    }
}

fn ticket_keys(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mut gauge = |metric, value: fn((u64, bool)) -> f64| {
        let mut family = out.family(metric);
        for listener in listeners {
            let keys = listener.tls.as_ref().and_then(|tls| tls.shared_keys());
            keys.into_iter().for_each(|keys| family.sample(&[&listener.config.name], value(keys.state())));
        }
    };
    gauge(&expose::TICKET_KEYS_READ, |(read_at, _)| read_at as f64);
    gauge(&expose::TICKET_KEYS_GOOD, |(_, is_good)| f64::from(u8::from(is_good)));
}

fn acme(out: &mut Exposition, control: &Control) {
    let standings: Vec<_> = control.orders().standings();
    let standings = || standings.iter().map(|(file, standing)| (file.to_string_lossy(), standing));
    let mut orders = out.family(&expose::ACME_ORDERS);
    for (file, standing) in standings() {
        orders.sample(&[&file, "issued"], standing.issued_count as f64);
        for blame in Blame::ALL {
            orders.sample(&[&file, blame.word()], standing.failed_counts[blame as usize] as f64);
        }
    }
    let mut gauge = |metric, value: fn(&Standing) -> Option<f64>| {
        let mut family = out.family(metric);
        for (file, standing) in standings() {
            if let Some(value) = value(standing) {
                family.sample(&[&file], value);
            }
        }
    };
    gauge(&expose::ACME_LAST_SUCCESSFUL, |it| Some(f64::from(u8::from(it.failures_in_a_row == 0))));
    gauge(&expose::ACME_NEXT, |it| it.next.map(|next| Timestamp::of(next).unix_seconds()));
    gauge(&expose::ACME_CAME, |it| it.came.map(|came| Timestamp::of(came).unix_seconds()));
}
