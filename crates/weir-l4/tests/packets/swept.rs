//! The tables of flows as the kernel holds them: read and swept a batch at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_l4::flows::{Remembered, Stage, span_of, ticks};
use weir_l4::layout::{Direction, Flow, FlowKey6, SEEN_DATA, TCP};

use crate::kinds::{Kind, TCP4, TCP6};
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
