//! Prints what loading the program takes, and what a packet of TCP costs in the kernel, in nanoseconds: the
//! median of many short rounds of the kernel's test runner, so that a busy machine shows less. Needs root
//! with BPF.
//!
//! `cargo run --release -p weir-l4 --example packet_cost`
//!
//! The runner hands the packet of one run to the next, so there are two flows, each of which undoes what the
//! other did: to the backend and back. What is left out is what the kernel does with a redirected packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Instant;

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::layout::{Backend, BackendState, Flow, FlowKey4, FlowKey6, NextHop, TCP};
use weir_l4::program::{Program, Sizes};

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/frames.rs"]
mod frames;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/namespace.rs"]
mod namespace;

use frames::{ACK, Packet};
use namespace::{BACKENDS, CLIENTS, Namespace};

/// A packet has a hop less to go after each run.
const PER_ROUND: u32 = 250;
const ROUNDS: u32 = 4000;

/// What the program returns.
const REDIRECT: i32 = 7;
const NOT_OURS: i32 = -1;

fn main() {
    let sizes = Sizes { flows: 65_536, pools: 1, backends: 16, endpoints: 16, listeners: 1, networks: 1 };
    let begun = Instant::now();
    let mut program = Program::load(sizes).unwrap_or_else(|error| panic!("root with BPF is needed: {error}"));
    let took = begun.elapsed();
    let verified = program.classifier().info().ok().and_then(|info| info.verified_instruction_count());
    println!(
        "loaded in {} ms; the verifier went through {} instructions",
        took.as_millis(),
        verified.unwrap_or(0)
    );
    let namespace = Namespace::new();
    namespace.enter();
    println!("{:<24} {:>10} {:>10} {:>14}", "packet", "median ns", "least ns", "packets/s");
    for (family, client, listener, backend) in [
        (
            "IPv4",
            IpAddr::from(Ipv4Addr::new(198, 51, 100, 7)),
            IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)),
            IpAddr::from(Ipv4Addr::new(10, 2, 0, 11)),
        ),
        (
            "IPv6",
            Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 7).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1).into(),
            Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, 11).into(),
        ),
    ] {
        let client = SocketAddr::new(client, 40_007);
        let listener = SocketAddr::new(listener, 80);
        let backend = SocketAddr::new(backend, 8080);
        for (direction, ends, other) in [
            ("to the backend", [client, listener], [client, backend]),
            ("to the client", [backend, client], [listener, client]),
        ] {
            let is_to_client = direction == "to the client";
            remember(&mut program, ends, other, is_to_client);
            remember(&mut program, other, ends, is_to_client);
            let mut packet = Packet::new(TCP, ends[0], ends[1]).with_flags(ACK).with_hop_limit(255);
            packet.to_mac = CLIENTS.mac;
            measure(&mut program, &format!("{family} {direction}"), &packet.frame(), REDIRECT);
        }
        let mut packet = Packet::new(TCP, client, SocketAddr::new(listener.ip(), 81));
        packet.to_mac = CLIENTS.mac;
        measure(&mut program, &format!("{family} for nobody"), &packet.frame(), NOT_OURS);
        packet.to_mac[5] += 1;
        measure(&mut program, &format!("{family} for another MAC"), &packet.frame(), NOT_OURS);
    }
}

/// Writes a flow that makes packets of `ends` packets of `other`.
fn remember(program: &mut Program, ends: [SocketAddr; 2], other: [SocketAddr; 2], is_to_client: bool) {
    let backend = Backend { state: BackendState::Alive as u8, ..Backend::default() };
    program.array("backends").unwrap().set(0, backend, 0).unwrap();
    let key = FlowKey6 {
        source: ends[0].ip().into(),
        destination: ends[1].ip().into(),
        source_port: ends[0].port().to_be_bytes(),
        destination_port: ends[1].port().to_be_bytes(),
        protocol: TCP,
        zero: [0; 3],
    };
    let flow = Flow {
        source: other[0].ip().into(),
        destination: other[1].ip().into(),
        source_port: other[0].port().to_be_bytes(),
        destination_port: other[1].port().to_be_bytes(),
        direction: u8::from(is_to_client),
        next_hop: NextHop { interface: BACKENDS.interface, ..NextHop::default() },
        ..Flow::default()
    };
    if ends[0].is_ipv4() {
        program.table("flows4").unwrap().insert(FlowKey4::from(key), flow, 0).unwrap();
    } else {
        program.table("flows6").unwrap().insert(key, flow, 0).unwrap();
    }
}

fn measure(program: &mut Program, name: &str, frame: &[u8], action: i32) {
    let fd = program.classifier().fd().expect("it is loaded").try_clone().expect("a descriptor is free");
    let packet = TestPacket {
        frame,
        interface: CLIENTS.interface,
        segments: 0,
        segment_bytes: 0,
        is_summed: false,
        repeat: PER_ROUND,
    };
    let mut rounds: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let result = test_run(fd.as_fd(), &packet).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(result.action, action, "{name}");
            assert_eq!(result.frame.len(), frame.len());
            result.duration.as_nanos()
        })
        .collect();
    rounds.sort_unstable();
    let median = rounds[rounds.len() / 2];
    println!("{name:<24} {median:>10} {:>10} {:>14}", rounds[0], 1_000_000_000 / median.max(1));
}
