//! What DSR and IP-in-IP have in common: the backend answers past us, so that only the client's packets of a
//! flow are seen. `dsr` and `ipip` run these cases, each its own way.

use weir_l4::layout::{Algorithm, TCP, Verdict};

use crate::frames::{ACK, FIN, IcmpError, Packet, Read, Sum};
use crate::kinds::Kind;
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

/// A client's packet is forwarded unchanged to backend 0; with IP-in-IP, in an outer packet to it.
#[track_caller]
pub fn goes_on(plane: &mut Plane, kind: Kind, packet: &Packet) {
    goes_on_to(0, plane, kind, packet);
}

#[track_caller]
fn goes_on_to(backend: u8, plane: &mut Plane, kind: Kind, packet: &Packet) {
    let expected = kind.at_backend(packet);
    assert_eq!(expected.destination(), packet.destination());
    let frame = kind.sent_on(packet, &expected.bytes(), backend);
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &frame);
}

/// Later packets go to the neighbour, whatever their hop limit. Gives the plane with their flow.
pub fn later_packets_go_to_the_neighbour(kind: Kind) -> Plane {
    let mut plane = kind.flowing();
    let later = kind.later().with_payload(301);
    let macs: Vec<_> = (0..10).map(|_| plane.run(CLIENTS, &later.frame()).macs()).collect();
    assert!(macs.contains(&[BACKENDS.neighbour, BACKENDS.mac]), "{macs:02x?}");
    for hop_limit in [2, 64, 255] {
        goes_on(&mut plane, kind, &later.clone().with_hop_limit(hop_limit));
    }
    plane
}

pub fn damage_and_padding_stay(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later().with_payload(1);
    packet.padding = 19;
    goes_on(&mut plane, kind, &packet);
    if !kind.is_summed {
        goes_on(&mut plane, kind, &kind.later().with_sum(Sum::Off(0x101)));
    }
    if kind.protocol != TCP {
        goes_on(&mut plane, kind, &kind.later().with_sum(Sum::Missing));
    }
}

pub fn fragments_follow_the_first(kind: Kind) {
    let mut plane = kind.plane();
    let first = kind.first().with_payload(2000);
    let expected = kind.at_backend(&first).fragments(&[800, 1600]);
    for (fragment, expected) in first.fragments(&[800, 1600]).iter().zip(expected) {
        let expected = kind.sent_on(&first, &expected[14..], 0);
        plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
    }
    let mut other = first;
    other.ip.id = 0x4321;
    plane.run(CLIENTS, &other.fragments(&[1024])[1]).dropped(Verdict::DropFragment);
}

/// Path MTU discovery from the backend to the client depends on it.
pub fn an_error_about_an_answer_reaches_the_backend(kind: Kind) {
    let mut plane = kind.flowing();
    let quoted = kind.packet(kind.listener(0), kind.client(7)).with_payload(64).bytes();
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    let mut error = IcmpError::new(kind.router(), kind.listener(0).ip(), number, code).about(&quoted);
    error.word = 1280;
    let mut expected = error.clone();
    expected.ip.hop_limit -= 1;
    let expected = kind.sent_on(&kind.later(), &expected.bytes(), 0);
    let outcome = plane.run(CLIENTS, &kind.later().framed(&error.bytes()));
    outcome.forwarded(Verdict::IcmpToBackend, &expected);
    plane.forget();
    plane.run(CLIENTS, &kind.later().framed(&error.bytes())).dropped(Verdict::DropIcmp);
}

/// Where this host is the backends' router, answers pass it as they would any other.
pub fn what_the_backend_answers_is_left_alone(kind: Kind) {
    let mut plane = kind.flowing();
    let mut answer = kind.answer();
    plane.run(BACKENDS, &answer.frame()).untouched();
    (answer.ip.source, answer.source_port) = (kind.listener(0).ip(), kind.listener(0).port());
    plane.run(BACKENDS, &answer.frame()).untouched();
    plane.run(CLIENTS, &kind.packet(kind.client(7), kind.backend(0)).frame()).untouched();
    assert_eq!(plane.remembered(), 1);
}

pub fn a_flow_settles_by_its_client_alone(kind: Kind) {
    let mut plane = kind.flowing();
    assert_eq!((plane.opening(), plane.settled(), plane.open_flows(0)), (1, 0, 1));
    if kind.protocol == TCP {
        // A flood may send the first segment twice.
        goes_on(&mut plane, kind, &kind.first());
        assert_eq!((plane.opening(), plane.settled(), plane.open_flows(0)), (1, 0, 1));
    }
    goes_on(&mut plane, kind, &kind.later());
    assert_eq!((plane.opening(), plane.settled(), plane.open_flows(0)), (0, 1, 1));
    goes_on(&mut plane, kind, &kind.later());
    if kind.protocol == TCP {
        goes_on(&mut plane, kind, &kind.later().with_flags(ACK | FIN));
        assert_eq!(plane.open_flows(0), 0, "nobody hears the backend's own end");
        goes_on(&mut plane, kind, &kind.later());
        goes_on(&mut plane, kind, &kind.first());
        assert_eq!(plane.open_flows(0), 1, "the port is used again");
    }
}

pub fn a_dead_backend_is_left(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::Turns);
    goes_on(&mut plane, kind, &kind.first());
    plane.change_backend(0, |backend| backend.state = 2);
    plane.pool(0, Algorithm::Turns, &[1]);
    if kind.protocol != TCP {
        goes_on_to(1, &mut plane, kind, &kind.later());
        assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
        return;
    }
    // Without payload: see `quotable` in `hop_limit`.
    if !kind.is_summed {
        let reset = Read::of(&plane.run(CLIENTS, &kind.later().frame()).answered(Verdict::Reset));
        assert_eq!((reset.source, reset.port(0)), (kind.listener(0).ip(), kind.listener(0).port()));
    }
}

pub fn a_hop_limit_that_ends_here_is_answered_by_the_listener(kind: Kind) {
    let packet = kind.later().with_hop_limit(1).with_payload(0);
    let read = Read::of(&kind.flowing().run(CLIENTS, &packet.frame()).answered(Verdict::TimeExceeded));
    assert_eq!((read.source, read.destination), (kind.listener(0).ip(), packet.ip.source));
}

pub fn a_host_that_does_not_forward_balances_all_the_same(kind: Kind) {
    let mut plane = kind.plane();
    plane.set_forwarding(false);
    goes_on(&mut plane, kind, &kind.first());
    goes_on(&mut plane, kind, &kind.later());
}
