//! Packets go on as they came, but for a hop and the MAC address, to a backend that has the listener's
//! address and answers past us.

use weir_l4::layout::{Algorithm, Forward, Settings, TCP, Verdict};

use crate::frames::{ACK, FIN, IcmpError, Packet, RST, Read};
use crate::kinds::{Kind, TCP4, TCP6, each_kind_of_dsr};
use crate::namespace::{BACKENDS, CLIENTS, NARROW, NARROW_MTU, set_neighbour};
use crate::plane::Plane;

each_kind_of_dsr! {
    a_conversation_goes_to_the_neighbour_and_nothing_else_changes
    damage_and_padding_stay
    fragments_follow_the_first
    an_error_about_an_answer_reaches_the_backend_as_it_is
    what_the_backend_answers_is_left_alone
    a_flow_settles_by_its_client_alone
    a_backend_behind_a_router_gets_nothing
    a_dead_backend_is_left
    a_hop_limit_that_ends_here_is_answered_by_the_listener
    a_packet_that_does_not_fit_is_answered
    a_train_of_segments_goes_on
    a_host_that_does_not_forward_balances_all_the_same
    a_neighbour_that_changed_is_found_anew
    a_listener_of_nat_shares_the_backend
}

/// Every packet of the client is forwarded as it is; later ones are seen to go to the neighbour.
#[track_caller]
fn goes_on(plane: &mut Plane, kind: Kind, packet: &Packet) {
    let expected = kind.at_backend(packet);
    assert_eq!(expected.destination(), packet.destination());
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &expected.frame());
}

fn a_conversation_goes_to_the_neighbour_and_nothing_else_changes(kind: Kind) {
    let mut plane = kind.flowing();
    let later = kind.later().with_payload(301);
    let macs: Vec<_> = (0..10).map(|_| plane.run(CLIENTS, &later.frame()).macs()).collect();
    assert!(macs.contains(&[BACKENDS.neighbour, BACKENDS.mac]), "{macs:02x?}");
    for hop_limit in [2, 64, 255] {
        goes_on(&mut plane, kind, &later.clone().with_hop_limit(hop_limit));
    }
    let mut odd = kind.later().with_flags(ACK | FIN);
    (odd.ip.class, odd.ip.flow_label, odd.ip.dont_fragment) = (0xb9, 0xf_abcd, false);
    goes_on(&mut plane, kind, &odd);
}

fn damage_and_padding_stay(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later().with_payload(1);
    packet.padding = 19;
    goes_on(&mut plane, kind, &packet);
    if !kind.is_summed {
        goes_on(&mut plane, kind, &kind.later().with_sum(crate::frames::Sum::Off(0x101)));
    }
    if kind.protocol != TCP {
        goes_on(&mut plane, kind, &kind.later().with_sum(crate::frames::Sum::Missing));
    }
}

fn fragments_follow_the_first(kind: Kind) {
    let mut plane = kind.plane();
    let first = kind.first().with_payload(2000);
    let expected = kind.at_backend(&first).fragments(&[800, 1600]);
    for (fragment, expected) in first.fragments(&[800, 1600]).iter().zip(expected) {
        plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
    }
    let mut other = first;
    other.ip.id = 0x4321;
    plane.run(CLIENTS, &other.fragments(&[1024])[1]).dropped(Verdict::DropFragment);
}

/// Path MTU from the backend to the client works by it.
fn an_error_about_an_answer_reaches_the_backend_as_it_is(kind: Kind) {
    let mut plane = kind.flowing();
    let quoted = kind.packet(kind.listener(0), kind.client(7)).with_payload(64).bytes();
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    let mut error = IcmpError::new(kind.router(), kind.listener(0).ip(), number, code).about(&quoted);
    error.word = 1280;
    let mut expected = error.clone();
    expected.ip.hop_limit -= 1;
    let outcome = plane.run(CLIENTS, &kind.later().framed(&error.bytes()));
    outcome.forwarded(Verdict::IcmpToBackend, &kind.later().framed(&expected.bytes()));
    plane.forget();
    plane.run(CLIENTS, &kind.later().framed(&error.bytes())).dropped(Verdict::DropIcmp);
}

/// Where this host is the backends' router, answers pass it as they would any other.
fn what_the_backend_answers_is_left_alone(kind: Kind) {
    let mut plane = kind.flowing();
    let mut answer = kind.answer();
    plane.run(BACKENDS, &answer.frame()).untouched();
    (answer.ip.source, answer.source_port) = (kind.listener(0).ip(), kind.listener(0).port());
    plane.run(BACKENDS, &answer.frame()).untouched();
    plane.run(CLIENTS, &kind.packet(kind.client(7), kind.backend(0)).frame()).untouched();
    assert_eq!(plane.remembered(), 1);
}

fn a_flow_settles_by_its_client_alone(kind: Kind) {
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

/// It would send the packet back: the listener's address is here.
fn a_backend_behind_a_router_gets_nothing(kind: Kind) {
    let mut plane = kind.plane();
    plane.backend(0, kind.host(4, 0));
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoRoute);
}

fn a_dead_backend_is_left(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::Turns);
    goes_on(&mut plane, kind, &kind.first());
    plane.change_backend(0, |backend| backend.state = 2);
    plane.pool(0, Algorithm::Turns, &[1]);
    if kind.protocol != TCP {
        goes_on(&mut plane, kind, &kind.later());
        assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
        return;
    }
    // Without payload: see `quotable` in `hop_limit`.
    if !kind.is_summed {
        let reset = Read::of(&plane.run(CLIENTS, &kind.later().frame()).answered(Verdict::Reset));
        assert_eq!((reset.source, reset.port(0)), (kind.listener(0).ip(), kind.listener(0).port()));
    }
}

fn a_hop_limit_that_ends_here_is_answered_by_the_listener(kind: Kind) {
    let packet = kind.later().with_hop_limit(1).with_payload(0);
    let read = Read::of(&kind.flowing().run(CLIENTS, &packet.frame()).answered(Verdict::TimeExceeded));
    assert_eq!((read.source, read.destination), (kind.listener(0).ip(), packet.ip.source));
}

fn a_packet_that_does_not_fit_is_answered(kind: Kind) {
    let mut plane = kind.plane();
    plane.backend(0, kind.host(3, 0));
    plane.change_backend(0, |backend| backend.interface = NARROW.interface);
    goes_on(&mut plane, kind, &kind.first());
    let head = kind.later().with_payload(0).bytes().len();
    goes_on(&mut plane, kind, &kind.later().with_payload(usize::from(NARROW_MTU) - head));
    if !kind.is_summed {
        let large = kind.later().with_payload(usize::from(NARROW_MTU) + 1 - head);
        let read = Read::of(&plane.run(CLIENTS, &large.frame()).answered(Verdict::TooBig));
        assert_eq!(read.word(4), u32::from(NARROW_MTU));
    }
}

fn a_train_of_segments_goes_on(kind: Kind) {
    let packet = kind.later().with_payload(2800);
    let outcome = kind.flowing().run_train(CLIENTS, &packet.frame(), 2, 1400);
    assert!(outcome.was_sent(), "{outcome}");
    assert_eq!(outcome.frame[14..], kind.at_backend(&packet).frame()[14..]);
    outcome.counted_packets(2);
}

fn a_host_that_does_not_forward_balances_all_the_same(kind: Kind) {
    let mut plane = kind.plane();
    plane.set_forwarding(false);
    goes_on(&mut plane, kind, &kind.first());
    goes_on(&mut plane, kind, &kind.later());
}

fn a_neighbour_that_changed_is_found_anew(kind: Kind) {
    let mut plane = kind.flowing();
    let other = [2, 0, 0, 0, 9, 9];
    set_neighbour(kind.backend(0).ip(), other);
    plane.settings(Settings { routes: 1, ..Settings::default() });
    let frame = kind.later().frame();
    let found: Vec<_> = (0..10).map(|_| plane.run(CLIENTS, &frame).macs()[0]).collect();
    set_neighbour(kind.backend(0).ip(), BACKENDS.neighbour);
    assert!(found.contains(&other) && !found.contains(&BACKENDS.neighbour), "{found:02x?}");
}

/// The client uses one port for both.
fn a_listener_of_nat_shares_the_backend(kind: Kind) {
    let mut plane = kind.flowing();
    plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
    let first = kind.packet(kind.client(7), kind.listener(1));
    let expected = first.translated(kind.client(7), kind.backend(0));
    plane.run(CLIENTS, &first.frame()).forwarded_of(1, Verdict::ToBackend, &expected.frame());
    goes_on(&mut plane, kind, &kind.later().with_flags(ACK | FIN));
    goes_on(&mut plane, kind, &kind.first());
    let answer = kind.answer();
    let expected = answer.translated(kind.listener(1), kind.client(7));
    plane.run(BACKENDS, &answer.frame()).forwarded_of(1, Verdict::ToClient, &expected.frame());
}

/// Nobody here hears the backend: a client that goes on a second later has sent no reset that was heeded.
#[test]
fn a_client_that_goes_on_after_a_reset_has_its_flow_again() {
    for kind in [TCP4.by(Forward::Dsr), TCP6.by(Forward::Dsr)] {
        let mut plane = kind.flowing();
        goes_on(&mut plane, kind, &kind.later().with_flags(RST));
        assert_eq!(plane.open_flows(0), 0);
        plane.age_opening(2);
        goes_on(&mut plane, kind, &kind.later());
        assert_eq!(plane.open_flows(0), 1);
    }
}
