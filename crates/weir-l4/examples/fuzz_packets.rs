//! Breaks packets until the time is up, or so many are through, and judges what the program makes of them by
//! a model that is written from the RFCs: `fuzz_packets --seconds 60`, or `--packets 10000000`. The seed is
//! printed; `WEIR_SEED` takes it back. Needs root with BPF.
//!
//! Ends with status 1 and the packet on standard error when one is forwarded that should not be, or as it
//! should not be.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_l4::bpf::{TestPacket, TestResult, test_run};
use weir_l4::layout::{Algorithm, Forward, HashKey};
use weir_l4::wanted::{Listener, Member, Pool, PortSpan, Wanted};

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/frames.rs"]
mod frames;
#[allow(dead_code, unused_imports, unused_macros, reason = "the tests use all of it")]
#[path = "../tests/packets/kinds.rs"]
mod kinds;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/namespace.rs"]
mod namespace;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/outcome.rs"]
mod outcome;
mod packet_model;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/plane.rs"]
mod plane;

use frames::{ACK, DESTINATION_OPTIONS, FIN, FRAGMENT, IcmpError, PSH, RST, SYN, Sum, sum_of};
use kinds::{Kind, TCP4, TCP6, UDP4, UDP6};
use namespace::{BACKENDS, CLIENTS, Device, NARROW};
use packet_model::{Expected, Told, World, is_same};
use plane::Plane;

const KINDS: [Kind; 4] = [TCP4, UDP4, TCP6, UDP6];
/// Packets between two looks at the counters.
const BATCH: u64 = 20_000;
/// Packets that a tick's share of answers is enough for.
const ANSWERED: u64 = 1_000;

/// xorshift64*, by Vigna.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let limit = |text: &str| text.parse::<u64>().ok();
    let (seconds, packets) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => (Some(10), None),
        ["--seconds", seconds] if limit(seconds).is_some() => (limit(seconds), None),
        ["--packets", packets] if limit(packets).is_some() => (None, limit(packets)),
        _ => {
            eprintln!("expected --seconds N or --packets N");
            return ExitCode::from(2);
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now);
    println!("WEIR_SEED={seed}");
    let (mut plane, mut world) = set_up();
    let mut random = Seeded(seed | 1);
    let begun = Instant::now();
    let (mut count, mut sent, mut told) = (0_u64, 0_u64, 0_u64);
    let mut verdicts = plane.counted_in_all();
    while seconds.is_none_or(|seconds| begun.elapsed() < Duration::from_secs(seconds))
        && packets.is_none_or(|packets| count < packets)
    {
        let mut ours = 0;
        for _ in 0..BATCH {
            if count % ANSWERED == 0 {
                plane.answered(0..4, [0; 2]);
            }
            let (at, frame) = broken(&mut random, &world);
            let is_summed = random.below(4) == 0;
            match judge(&mut plane, &mut world, at, &frame, is_summed) {
                Ok((action, is_told)) => {
                    ours += u64::from(action != NOT_OURS);
                    sent += u64::from(action == REDIRECT);
                    told += u64::from(is_told);
                }
                Err(fault) => {
                    eprintln!(
                        "packet {count} of seed {seed}, summed {is_summed}, at {}: {fault}",
                        at.interface
                    );
                    return ExitCode::FAILURE;
                }
            }
            count += 1;
        }
        let before = std::mem::replace(&mut verdicts, plane.counted_in_all());
        let counted = verdicts.values().sum::<u64>() - before.values().sum::<u64>();
        if counted != ours {
            eprintln!("{counted} packets were counted, {ours} were ours; seed {seed}, before packet {count}");
            return ExitCode::FAILURE;
        }
    }
    println!("{count} packets, {sent} sent on ({told} errors about outer packets), none that should not be");
    for (verdict, packets) in verdicts.iter().filter(|(_, packets)| **packets > 0) {
        println!("{:<20} {packets:>9}", verdict.word());
    }
    ExitCode::SUCCESS
}

const NOT_OURS: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;
const EBADMSG: i32 = 74;

/// Ports of the listeners at ranges.
const RANGE: RangeInclusive<u16> = 30_000..=30_007;
/// What each kind has a listener for, by number: at its own port, and from [`RANGES`] on at a range of them.
const LISTENERS: [Forward; 8] = [
    Forward::Nat,
    Forward::FullNat,
    Forward::Dsr,
    Forward::Ipip,
    Forward::Nat,
    Forward::FullNat,
    Forward::Dsr,
    Forward::Ipip,
];
const RANGES: u8 = 4;

/// A listener of NAT that takes new flows by an interface at which nothing comes.
const CONFINED: u8 = 8;

/// Listeners of each kind, each with one backend, that no other listener has whose packets get its address:
/// so that state has no say in where a packet goes. Backends of ranges have no port.
fn set_up() -> (Plane, World) {
    let mut plane = Plane::new();
    let mut world = World::default();
    (world.mtu, world.ports) = (1500, (61_000, 65_535));
    let mut wanted = Wanted::default();
    for (of_kind, kind) in (0..).zip(KINDS) {
        let source = kind.by(Forward::FullNat).source().ip();
        plane.host_address(source);
        for (number, forward) in (0..).zip(LISTENERS) {
            let is_range = number >= RANGES;
            let backend = match (is_range, forward) {
                (false, Forward::Nat) => backend_of(kind),
                (false, _) => kind.backend(4 + of_kind),
                (true, Forward::FullNat) => SocketAddr::new(kind.backend(12 + of_kind).ip(), 0),
                (true, _) => SocketAddr::new(kind.backend(8 + of_kind).ip(), 0),
            };
            let at = kind.listener(number);
            let place = match is_range {
                true => PortSpan { first: SocketAddr::new(at.ip(), *RANGE.start()), last_port: *RANGE.end() },
                false => at.into(),
            };
            for listener in place.each() {
                let port = if backend.port() == 0 { listener.port() } else { backend.port() };
                let backend = SocketAddr::new(backend.ip(), port);
                world.add((listener, kind.protocol), forward, backend, source);
            }
            let has_source = matches!(forward, Forward::FullNat | Forward::Ipip);
            let pool = format!("{backend} {}", kind.protocol);
            wanted.listeners.push(Listener {
                name: format!("{at} {}", kind.protocol),
                addresses: vec![place],
                protocol: kind.protocol,
                pool: pool.clone(),
                deny: Vec::new(),
                allow: Vec::new(),
                forward,
                sources: has_source.then_some(source).into_iter().collect(),
                asks_host: false,
                interfaces: None,
                source_ports: world.ports,
            });
            if number == 0 {
                let backend = kind.backend(16 + of_kind);
                wanted.listeners.extend(confined(&mut world, kind, backend, wanted.listeners.last()));
                wanted.pools.push(pool_of(format!("{backend} {}", kind.protocol), backend));
            }
            if wanted.pools.iter().all(|one| one.name != pool) {
                wanted.pools.push(pool_of(pool, backend));
            }
        }
    }
    plane.wants(&wanted);
    (plane, world)
}

/// A listener like another one, and confined.
fn confined(world: &mut World, kind: Kind, backend: SocketAddr, like: Option<&Listener>) -> Option<Listener> {
    let at = kind.listener(CONFINED);
    world.add_confined((at, kind.protocol), backend);
    Some(Listener {
        name: format!("{at} {}", kind.protocol),
        addresses: vec![at.into()],
        pool: format!("{backend} {}", kind.protocol),
        interfaces: Some(std::iter::once(NARROW.interface).collect()),
        ..like?.clone()
    })
}

/// A pool with one backend.
fn pool_of(name: String, address: SocketAddr) -> Pool {
    let member = Member {
        id: 1,
        address,
        weight: 100,
        is_alive: true,
        source: None,
        failures_within: std::time::Duration::ZERO,
    };
    Pool { name, algorithm: Algorithm::Hash, hash_key: HashKey::Client, members: vec![member] }
}

fn backend_of(kind: Kind) -> SocketAddr {
    kind.backend(u8::from(kind.protocol == UDP4.protocol))
}

/// Where a client sends to: a listener, or a port beside a range.
fn asked(random: &mut Seeded, kind: Kind) -> SocketAddr {
    let number = random.one_of(&[0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 7, CONFINED]);
    let at = kind.listener(number);
    match number >= RANGES && number != CONFINED {
        true => SocketAddr::new(at.ip(), RANGE.start() - 1 + random.below(RANGE.len() + 2) as u16),
        false => at,
    }
}

/// What was done, and whether a client was told of an error about an outer packet.
fn judge(
    plane: &mut Plane,
    world: &mut World,
    at: Device,
    frame: &[u8],
    is_summed: bool,
) -> Result<(i32, bool), String> {
    let packet =
        TestPacket { frame, interface: at.interface, segments: 0, segment_bytes: 0, is_summed, repeat: 1 };
    let result = test_run(plane.program().as_fd(), &packet);
    if let Some((client, listener, protocol)) = world.to_full_nat(frame)
        && let Some(port) = plane.port_of(client, listener, protocol)
        && world.learn((client, listener, protocol), port)
    {
        return Err(format!("port {port} is none of ours: {client} to {listener}"));
    }
    let expected = world.expected(frame, at.mac);
    let is_ours = result.as_ref().map_or(true, |result| result.action != NOT_OURS);
    if let Some(flow) = world.to_ipip(frame).filter(|_| is_ours) {
        world.flows_of_ipip.insert(flow);
    }
    let result = match result {
        Ok(result) => result,
        // An answer is cut, and what is cut has no sum any more.
        Err(error) if error.raw_os_error() == Some(EBADMSG) && may_be_answered(&expected) => {
            return Ok((REDIRECT, matches!(expected, Expected::MayTell(_))));
        }
        // The runner wants a whole IP header.
        Err(error) if error.raw_os_error() == Some(22) && frame.len() < 54 => return Ok((NOT_OURS, false)),
        Err(error) => return Err(format!("{error}: expected {expected:02x?} of\n{frame:02x?}")),
    };
    if is_as_expected(&result, frame, &expected) {
        let is_told = matches!(expected, Expected::MayTell(_)) && result.action == REDIRECT;
        return Ok((result.action, is_told));
    }
    Err(format!(
        "action {}\ncame {frame:02x?}\nis   {:02x?}\nexpected {expected:02x?}",
        result.action, result.frame
    ))
}

fn may_be_answered(expected: &Expected) -> bool {
    matches!(expected, Expected::Answered(_) | Expected::MayTell(_))
}

fn is_as_expected(result: &TestResult, frame: &[u8], expected: &Expected) -> bool {
    let is_untouched = result.action == NOT_OURS && result.frame == frame;
    let is_not_sent = is_untouched || result.action == SHOT;
    let is_sent = |wanted: &[u8]| result.action == REDIRECT && is_same(&result.frame, wanted);
    match expected {
        Expected::Untouched => is_untouched,
        Expected::NotSent => is_not_sent,
        Expected::Sent(wanted) => is_sent(wanted),
        Expected::MaySend(wanted) => is_not_sent || is_sent(wanted),
        Expected::MaySendOneOf(wanted) => is_not_sent || wanted.iter().any(|wanted| is_sent(wanted)),
        Expected::Answered(mtu) => {
            is_not_sent || result.action == REDIRECT && is_answer(&result.frame, frame, *mtu)
        }
        Expected::MayTell(told) => is_not_sent || result.action == REDIRECT && is_told(&result.frame, told),
    }
}

/// An error about the packet, to whom it came from, with right sums.
fn is_answer(found: &[u8], about: &[u8], mtu: u32) -> bool {
    let is_ip4 = about[12] == 8;
    let read = frames::Read::of(found);
    let source = if is_ip4 { 26..30 } else { 22..38 };
    let destination = if is_ip4 { 30..34 } else { 38..54 };
    let kinds: &[[u8; 2]] = if is_ip4 { &[[11, 0], [3, 4]] } else { &[[3, 0], [2, 0]] };
    found[destination] == about[source]
        && kinds.contains(&[read.body[0], read.body[1]])
        && about[14..].starts_with(&read.body[8..])
        && found[..6] == about[6..12]
        && ([[3, 4], [2, 0]].iter().all(|kind| !read.body.starts_with(kind)) || read.word(4) == mtu)
}

/// An error from the listener to the client, about what the client sent: a hop on, and cut.
fn is_told(found: &[u8], told: &Told) -> bool {
    let read = frames::Read::of(found);
    let quote = &read.body[8..];
    (read.source, read.destination) == (told.listener, told.client)
        && read.body[..2] == told.kind
        && read.word(4) == told.word
        && quote.len() >= if told.client.is_ipv4() { 28 } else { 48 }
        && told.quote.starts_with(quote)
}

/// A frame that is right.
fn whole(random: &mut Seeded, world: &World) -> (Device, Vec<u8>) {
    let kind = random.one_of(&KINDS);
    let client = kind.client(random.below(200) as u8 + 1);
    let asked = asked(random, kind);
    let is_answer = random.below(3) == 0;
    let port = world.ports.0 + random.below(4_500) as u16;
    let answer = world.answer((client, asked, kind.protocol), port);
    let (at, ends) = match answer {
        Some(ends) if is_answer => (BACKENDS, ends),
        // Past us.
        None if is_answer => (BACKENDS, (asked, client)),
        _ => (CLIENTS, (client, asked)),
    };
    let mut packet = kind.packet(ends.0, ends.1).with_flags(random.one_of(&[
        SYN,
        ACK,
        ACK,
        ACK | PSH,
        FIN | ACK,
        RST,
        SYN | ACK,
        0,
        0xff,
    ]));
    packet.to_mac = at.mac;
    packet.from_mac = at.neighbour;
    let bytes = random.one_of(&[0, 1, 4, 9, 64, 64, 300, 1400, 1600]);
    packet.payload = (0..bytes).map(|_| random.next() as u8).collect();
    packet.ip.hop_limit = random.one_of(&[0, 1, 2, 3, 64, 64, 64, 128, 255]);
    packet.sum = random.one_of(&[Sum::Right, Sum::Right, Sum::Right, Sum::Off(0x101)]);
    if kind.protocol == UDP4.protocol && random.below(4) == 0 {
        packet.sum = Sum::Missing;
    }
    packet.padding = random.one_of(&[0, 0, 0, 1, 6, 40]);
    packet.options = vec![1; if random.below(4) == 0 { random.below(11) * 4 } else { 0 }];
    if random.below(5) == 0 {
        if kind.is_ip4 {
            packet.ip.options = vec![1; (random.below(10) + 1) * 4];
        } else {
            for _ in 0..=random.below(7) {
                let length = random.below(3);
                let mut header = vec![0; 8 + length * 8];
                let number = random.one_of(&[0, 43, FRAGMENT, DESTINATION_OPTIONS, DESTINATION_OPTIONS]);
                header[1] = length as u8;
                if number == FRAGMENT {
                    header = vec![0; 8];
                }
                packet.ip.extensions.push((number, header));
            }
        }
    }
    packet.ip.id = random.below(4) as u32;
    match random.below(6) {
        0 => {
            let length = packet.transport().len();
            let cut = 8 * (1 + random.below(length.max(16) / 8));
            let mut pieces = packet.fragments(if cut < length { std::slice::from_ref(&cut) } else { &[] });
            (at, pieces.swap_remove(random.below(pieces.len())))
        }
        1 | 2 if world.ipip.contains_key(&(ends.1, kind.protocol)) && random.below(2) == 0 => {
            (BACKENDS, error_about_outer(random, kind, &packet, world))
        }
        1 | 2 => (at, error_about(random, kind, &packet, at)),
        _ => (at, packet.frame()),
    }
}

/// An error about a packet that went the other way than `packet`.
fn error_about(random: &mut Seeded, kind: Kind, packet: &frames::Packet, at: Device) -> Vec<u8> {
    let mut quoted = packet.translated_back();
    quoted.ip.hop_limit = 50;
    quoted.sum = packet.sum;
    let whole = quoted.bytes();
    let header = whole.len() - quoted.transport().len();
    let bytes = header + random.one_of(&[0, 3, 4, 7, 8, 8, 9, 16, 17, 18, 20, 24, 400]);
    let kinds: &[(u8, u8)] = if kind.is_ip4 {
        &[(3, 1), (3, 4), (3, 4), (11, 0), (12, 0), (4, 0), (5, 0), (8, 0)]
    } else {
        &[(1, 0), (2, 0), (2, 0), (3, 0), (4, 1), (128, 0), (135, 0), (0, 0)]
    };
    let (number, code) = random.one_of(kinds);
    let source = if random.below(2) == 0 { kind.router() } else { packet.ip.source };
    let mut error = IcmpError::new(source, quoted.ip.source, number, code);
    error.word = random.next() as u32;
    error.sum_error = random.one_of(&[0, 0, 0, 7]);
    error.ip.hop_limit = random.one_of(&[1, 2, 64, 64, 255]);
    let error = error.about(&whole[..bytes.min(whole.len())]);
    let mut frame = packet.framed(&error.bytes());
    frame[..6].copy_from_slice(&at.mac);
    frame
}

/// An error about the outer packet that `packet` goes on in.
fn error_about_outer(random: &mut Seeded, kind: Kind, packet: &frames::Packet, world: &World) -> Vec<u8> {
    let (backend, source) = world.ipip[&(packet.destination(), kind.protocol)];
    let kind = kind.by(Forward::Ipip);
    let mut quoted = packet.clone();
    quoted.ip.hop_limit = quoted.ip.hop_limit.max(2);
    let inner = kind.at_backend(&quoted).bytes();
    let whole = kind.wrapped_to(&quoted, &inner, backend).split_off(frames::ETHERNET);
    let whole = &whole[..whole.len() - packet.padding];
    let header = whole.len() - packet.transport().len();
    let bytes = header + random.one_of(&[0, 3, 4, 7, 8, 8, 17, 18, 18, 20, 24, 24, 60, 400]);
    let kinds: &[(u8, u8)] = if kind.is_ip4 {
        &[(3, 1), (3, 4), (3, 4), (3, 0), (11, 0), (12, 0), (4, 0), (5, 0), (8, 0)]
    } else {
        &[(1, 0), (2, 0), (2, 0), (3, 0), (4, 1), (128, 0), (135, 0), (0, 0)]
    };
    let (number, code) = random.one_of(kinds);
    let mut error = IcmpError::new(kind.host(2, 9).ip(), source, number, code);
    let mtu = random.next() as u32 >> random.below(32);
    error.word = random.one_of(&[68, 87, 88, 600, 1280, 1319, 1320, 1400, 1500, mtu, mtu]);
    error.sum_error = random.one_of(&[0, 0, 0, 7]);
    error.ip.hop_limit = random.one_of(&[1, 2, 64, 64, 255]);
    let mut carrier = packet.clone();
    (carrier.to_mac, carrier.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
    carrier.framed(&error.about(&whole[..bytes.min(whole.len())]).bytes())
}

/// A frame that may have faults.
fn broken(random: &mut Seeded, world: &World) -> (Device, Vec<u8>) {
    let (at, mut frame) = whole(random, world);
    for _ in 0..random.one_of(&[0, 0, 1, 1, 1, 2, 4]) {
        // Most of what decides lies in front.
        let limit = if random.below(4) > 0 { frame.len().min(80) } else { frame.len() };
        let place = random.below(limit);
        match random.below(6) {
            0 | 1 => frame[place] ^= 1 << random.below(8),
            2 => frame[place] = random.one_of(&[0, 1, 4, 5, 6, 17, 43, 44, 58, 60, 0x7f, 0x80, 0xff]),
            3 => frame[place] = random.next() as u8,
            4 => frame.truncate(place.max(54)),
            _ => frame.extend((0..random.below(24)).map(|_| 0x5a)),
        }
    }
    // A router would have dropped what has a wrong sum: behind it lie the better faults.
    if frame[12] == 8 && frame.len() >= 34 && random.below(3) > 0 {
        let header = (usize::from(frame[14] & 15) * 4).clamp(20, frame.len() - 14);
        frame[24..26].copy_from_slice(&[0, 0]);
        let sum = !sum_of(&frame[14..14 + header]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    (at, frame)
}
