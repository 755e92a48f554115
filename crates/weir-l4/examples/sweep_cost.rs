//! Prints what remembering flows costs: the kernel's memory for the tables, and the time of a sweep through
//! them. Needs root with BPF.
//!
//! `cargo run --release -p weir-l4 --example sweep_cost -- 1000000`

use std::time::{Duration, Instant};

use weir_l4::layout::{Direction, Flow, FlowKey4, SEEN_DATA, TCP};
use weir_l4::program::{Program, Sizes};

const IDLE: Duration = Duration::from_secs(900);

fn main() {
    let flows: u32 =
        std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number of flows"));
    let sizes = Sizes { flows: flows * 2, pools: 1, backends: 16, endpoints: 16, listeners: 1, networks: 1 };
    let mut program = Program::load(sizes).unwrap_or_else(|error| panic!("root with BPF is needed: {error}"));
    memory();
    let now = 1_000_000;
    let mut table = program.table::<FlowKey4, Flow>("flows4").expect("it is there");
    for number in 0..flows {
        let client = (0x0a00_0000 + number / 60_000).to_be_bytes();
        let port = (1024 + number % 60_000) as u16;
        let there = FlowKey4 {
            source: client,
            destination: [192, 0, 2, 1],
            source_port: port.to_be_bytes(),
            destination_port: [0, 80],
            protocol: TCP,
            zero: [0; 3],
        };
        let back = FlowKey4 {
            source: [10, 0, 0, 1],
            destination: client,
            source_port: [0, 80],
            destination_port: port.to_be_bytes(),
            ..there
        };
        let flow = |direction: Direction, from: FlowKey4, to: FlowKey4| Flow {
            source: weir_l4::layout::FlowKey6::from(from).destination,
            destination: weir_l4::layout::FlowKey6::from(to).source,
            direction: direction as u8,
            seen: SEEN_DATA,
            last_tick: now - number % 800,
            ..Flow::default()
        };
        table.insert(there, flow(Direction::ToBackend, back, back), 0).expect("there is room");
        table.insert(back, flow(Direction::ToClient, there, there), 0).expect("there is room");
    }
    let tables = program.flow_tables().expect("they are there");
    let now = Duration::from_nanos(u64::from(now) << 30);
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            let swept = tables.sweep(now, &|_| IDLE, &mut || {}).expect("it is swept");
            assert!(swept.by_listener.values().sum::<u64>() > u64::from(flows) * 9 / 10, "{swept:?}");
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("{flows} flows are swept in {} ms (median of 5)", times[2].as_millis());
}

/// Prints what the kernel says of each table of flows that this process has open.
fn memory() {
    /// BPF_MAP_TYPE_LRU_HASH of linux/bpf.h.
    const LRU_HASH: u64 = 9;
    for descriptor in std::fs::read_dir("/proc/self/fdinfo").expect("/proc is mounted").flatten() {
        let told = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        let number = |name: &str| -> Option<u64> {
            told.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.trim().parse().ok())
        };
        let (Some(LRU_HASH), Some(entries), Some(bytes)) =
            (number("map_type:"), number("max_entries:"), number("memlock:"))
        else {
            continue;
        };
        println!("a table of {entries} entries: {} MiB", bytes >> 20);
    }
}
