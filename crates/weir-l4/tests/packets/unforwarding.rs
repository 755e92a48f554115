//! Hosts that do not forward (`ip_forward` is 0): the kernel's look-up of a way says nothing there, and the
//! host's routes lead.

use std::net::IpAddr;

use weir_l4::layout::{Forward, Verdict};

use crate::frames::IcmpError;
use crate::kinds::{Kind, TCP4, TCP6, UDP4, UDP6, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS, Device, NARROW};
use crate::plane::Plane;

each_kind_of_nat! {
    an_answer_of_no_flow_goes_where_the_route_leads
    what_no_route_leads_to_is_dropped
    a_flow_goes_where_the_route_leads_by_now
    a_flow_goes_by_the_interface_that_its_backend_has_by_now
    what_leads_by_an_interface_that_is_gone_is_dropped
}

fn plane_of(kind: Kind) -> Plane {
    let mut plane = kind.plane();
    plane.set_forwarding(false);
    plane
}

/// The network of a client, behind a router.
fn has_way(kind: Kind, plane: &mut Plane) {
    plane.way(kind.client(0).ip(), if kind.is_ip4 { 24 } else { 48 }, CLIENTS, true);
    let any: IpAddr = if kind.is_ip4 { "0.0.0.0" } else { "::" }.parse().unwrap();
    plane.way(any, 0, BACKENDS, false);
}

/// It was dropped, as if no route led there.
fn an_answer_of_no_flow_goes_where_the_route_leads(kind: Kind) {
    let mut plane = plane_of(kind);
    has_way(kind, &mut plane);
    let answer = kind.answer();
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn what_no_route_leads_to_is_dropped(kind: Kind) {
    let mut plane = plane_of(kind);
    plane.way(kind.host(7, 0).ip(), if kind.is_ip4 { 24 } else { 64 }, CLIENTS, false);
    plane.run(BACKENDS, &kind.answer().frame()).dropped(Verdict::DropNoRoute);
}

/// Of 1,440 bytes and more, which only [`NARROW`] has no room for: so that it is seen by which interface they
/// are sent.
fn goes_by_the_narrow_one(kind: Kind, plane: &mut Plane) {
    let (packet, answer) = (kind.later().with_payload(1_400), kind.answer().with_payload(1_400));
    plane.run(CLIENTS, &packet.frame()).answered(Verdict::TooBig);
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

/// It went by the interface that was known when the flow began.
fn a_flow_goes_where_the_route_leads_by_now(kind: Kind) {
    let mut plane = plane_of(kind);
    kind.open(&mut plane);
    plane.way(kind.backend(0).ip(), if kind.is_ip4 { 24 } else { 64 }, NARROW, false);
    goes_by_the_narrow_one(kind, &mut plane);
    plane.way(kind.client(0).ip(), if kind.is_ip4 { 24 } else { 48 }, NARROW, true);
    let answer = kind.answer().with_payload(1_400);
    plane.run(BACKENDS, &answer.frame()).answered(Verdict::TooBig);
}

fn a_flow_goes_by_the_interface_that_its_backend_has_by_now(kind: Kind) {
    let mut plane = plane_of(kind);
    kind.open(&mut plane);
    plane.change_backend(0, |backend| backend.interface = NARROW.interface);
    goes_by_the_narrow_one(kind, &mut plane);
}

/// It was counted as forwarded.
fn what_leads_by_an_interface_that_is_gone_is_dropped(kind: Kind) {
    let mut plane = plane_of(kind);
    kind.open(&mut plane);
    plane.change_backend(0, |backend| backend.interface = 999);
    plane.run(CLIENTS, &kind.later().frame()).dropped(Verdict::DropNoRoute);
    let gone = Device { interface: 999, ..CLIENTS };
    plane.way(kind.client(0).ip(), if kind.is_ip4 { 24 } else { 48 }, gone, true);
    plane.run(BACKENDS, &kind.answer().frame()).dropped(Verdict::DropNoRoute);
}

/// A client behind a narrow way to the backends heard nothing of it.
#[test]
fn an_error_of_a_router_about_an_outer_packet_reaches_the_client() {
    for kind in [TCP4, UDP4, TCP6, UDP6] {
        let kind = kind.by(Forward::Ipip);
        let mut plane = plane_of(kind);
        has_way(kind, &mut plane);
        let first = kind.first();
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.wrapped(&first, 0));
        let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
        let mut error = IcmpError::new(kind.host(2, 9).ip(), kind.source().ip(), number, code)
            .about(&kind.wrapped(&first, 0)[14..]);
        error.word = 1400;
        let mut carrier = kind.first();
        (carrier.to_mac, carrier.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
        let outcome = plane.run(BACKENDS, &carrier.framed(&error.bytes()));
        outcome.answered(Verdict::IcmpToClient);
    }
}

/// It went to the router, which sent it back to us, or nowhere.
#[test]
fn a_backend_of_dsr_behind_a_router_gets_nothing_by_name() {
    for kind in [TCP4, UDP4, TCP6, UDP6] {
        let kind = kind.by(Forward::Dsr);
        let mut plane = plane_of(kind);
        let bits = if kind.is_ip4 { 24 } else { 64 };
        plane.way(kind.host(4, 0).ip(), bits, BACKENDS, true);
        plane.way(kind.backend(0).ip(), bits, BACKENDS, false);
        let first = kind.first();
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
        plane.forget();
        plane.backend(0, kind.host(4, 0));
        plane.run(CLIENTS, &first.frame()).dropped(Verdict::DropNoRoute);
    }
}
