//! The tables of flows as the kernel holds them: read and swept a batch at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_l4::flows::{Remembered, Stage, span_of, ticks};
use weir_l4::layout::{Direction, Flow, FlowKey6, Forward, SEEN_DATA, TCP};

use crate::frames::{ACK, FIN};
use crate::kinds::{Kind, TCP4, TCP6};
use crate::namespace::CLIENTS;
use crate::plane::Plane;

/// Ticks of the clock at the last packet of the flows that these tests make.
const THEN: u32 = 1_000;

/// A flow by client's port; every second one is silent for ever, and some are opening.
fn flow(kind: Kind, port: u16) -> [(FlowKey6, Flow); 2] {
    let (client, listener, backend) = (kind.client(1), kind.listener(0), kind.backend((port % 3) as u8));
    let last_tick = if port.is_multiple_of(2) { THEN } else { THEN + ticks(Duration::from_secs(900)) };
    let there = FlowKey6 {
        source: client.ip().into(),
        destination: listener.ip().into(),
        source_port: port.to_be_bytes(),
        destination_port: listener.port().to_be_bytes(),
        protocol: TCP,
        zero: [0; 3],
    };
    let to_backend = Flow {
        source: client.ip().into(),
        destination: backend.ip().into(),
        source_port: port.to_be_bytes(),
        destination_port: backend.port().to_be_bytes(),
        backend: u32::from(port % 3),
        listener: 1,
        last_tick,
        direction: Direction::ToBackend as u8,
        seen: SEEN_DATA,
        opened: u8::from(port.is_multiple_of(6)),
        ..Flow::default()
    };
    let to_client = Flow {
        source: there.destination,
        destination: there.source,
        source_port: there.destination_port,
        destination_port: there.source_port,
        direction: Direction::ToClient as u8,
        ..to_backend
    };
    [(there, to_backend), (there.other_way(&to_backend), to_client)]
}

#[test]
fn flows_of_both_families_are_read_in_batches_and_those_silent_for_too_long_go() {
    const FLOWS: u16 = 3_000;
    let mut plane = Plane::new();
    for kind in [TCP4, TCP6] {
        (10_000..10_000 + FLOWS)
            .for_each(|port| flow(kind, port).iter().for_each(|(k, f)| plane.remember(k, f)));
    }
    let tables = plane.flow_tables();
    let now = span_of(THEN + ticks(Duration::from_secs(901)));
    let idle = |listener| Duration::from_secs(if listener == 1 { 900 } else { 1 });
    let mut seen = BTreeSet::new();
    let mut take = |one: &Remembered| {
        assert_eq!(one.stage, Stage::Open);
        assert!(seen.insert((one.key.source, one.key.source_port)), "{one:?} came twice");
        true
    };
    tables.each(now, &mut take).expect("it is read");
    assert_eq!(seen.len(), 2 * usize::from(FLOWS));
    let mut read = 0;
    let mut take_ten = |_: &Remembered| {
        read += 1;
        read < 10
    };
    tables.each(now, &mut take_ten).expect("it is read");
    assert_eq!(read, 10, "who has enough gets no more");
    let swept = tables.sweep(now, &idle, &mut || {}).expect("it is swept");
    assert_eq!(swept.by_listener.get(&1), Some(&u64::from(FLOWS)));
    assert_eq!(swept.open_by_listener.get(&1), Some(&u64::from(FLOWS)));
    assert_eq!(swept.by_backend.values().sum::<u64>(), u64::from(FLOWS));
    assert_eq!(plane.remembered(), 2 * usize::from(FLOWS), "two directions each, and half of the flows");
}

/// Nobody here hears whether its backend still sends: it counts as over, and stays open for who waits for
/// flows to end.
#[test]
fn past_the_plane_a_connection_that_its_client_has_ended_stays_open_until_that_is_silent() {
    for kind in [TCP4.by(Forward::Dsr), TCP6.by(Forward::Dsr), TCP4.by(Forward::Ipip), TCP6.by(Forward::Ipip)]
    {
        let mut plane = kind.flowing();
        for packet in [kind.later(), kind.later().with_flags(ACK | FIN)] {
            assert!(plane.run(CLIENTS, &packet.frame()).was_sent());
        }
        assert_eq!(plane.open_flows(0), 0);
        let tables = plane.flow_tables();
        let shown = |at: u32| {
            let mut found = None;
            let mut take = |one: &Remembered| found.replace(one.clone()).is_none();
            tables.each(span_of(at), &mut take).expect("it is read");
            found.expect("it is remembered")
        };
        let shown_first = shown(THEN);
        let (key, flow) = (shown_first.key, shown_first.flow);
        assert_eq!(flow.sequence, flow.last_tick, "when it was ended");
        let found = |at: u32| {
            let swept = tables.sweep(span_of(at), &|_| Duration::from_secs(900), &mut || {}).expect("swept");
            let of = |flows: &BTreeMap<u32, u64>| flows.get(&0).copied().unwrap_or(0);
            [of(&swept.by_listener), of(&swept.by_backend), of(&swept.ended_by_backend)]
        };
        assert_eq!((found(flow.last_tick), shown(flow.last_tick).stage), ([1, 1, 1], Stage::Open));
        let silent = flow.last_tick + 10;
        assert_eq!((found(silent), shown(silent).stage), ([1, 0, 0], Stage::Over));
        plane.remember(&key, &Flow { sequence: flow.last_tick - 2, ..flow });
        assert_eq!(found(flow.last_tick), [1, 1, 0], "it acknowledges a download");
    }
}
