//! Packets go on as they came, but for a hop and the MAC address, to a backend that has the listener's
//! address and answers past us.

use weir_l4::layout::{Forward, Settings, Verdict};

use crate::frames::{ACK, FIN, RST, Read};
use crate::kinds::{Kind, TCP4, TCP6, each_kind_of_dsr};
use crate::namespace::{BACKENDS, CLIENTS, NARROW, NARROW_MTU, set_neighbour};
use crate::one_way::{
    a_dead_backend_is_left, a_flow_settles_by_its_client_alone,
    a_hop_limit_that_ends_here_is_answered_by_the_listener,
    a_host_that_does_not_forward_balances_all_the_same,
    an_error_about_an_answer_reaches_the_backend as an_error_about_an_answer_reaches_the_backend_as_it_is,
    damage_and_padding_stay, fragments_follow_the_first, goes_on, later_packets_go_to_the_neighbour,
    what_the_backend_answers_is_left_alone,
};

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

fn a_conversation_goes_to_the_neighbour_and_nothing_else_changes(kind: Kind) {
    let mut plane = later_packets_go_to_the_neighbour(kind);
    let mut odd = kind.later().with_flags(ACK | FIN);
    (odd.ip.class, odd.ip.flow_label, odd.ip.dont_fragment) = (0xb9, 0xf_abcd, false);
    goes_on(&mut plane, kind, &odd);
}

/// It would send the packet back: the listener's address is here.
fn a_backend_behind_a_router_gets_nothing(kind: Kind) {
    let mut plane = kind.plane();
    plane.backend(0, kind.host(4, 0));
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoRoute);
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

/// The client uses the same port for both.
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

/// The backend's packets are not seen here: if a client goes on a second later, its reset was not heeded.
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
