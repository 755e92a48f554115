//! Client, load balancer and endpoints in network namespaces that are new for every cell, so that no
//! connection, `TIME_WAIT` or learnt route of one contender affects the next.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::loopback::{probe, probe_with};
use super::{Cell, Options, Runner, Turn};
use crate::certificate;
use crate::contender::{Contender, Seat};
use crate::link::impairment::Impairment;
use crate::load::{Load, LoadResult};
use crate::measure;
use crate::meter::Meter;
use crate::metric::Metric;
use crate::namespace;
use crate::process::{Output, Placement, Running};
use crate::sample::Sample;
use crate::topology::{Namespaces, Topology};
use crate::wiring::{Impairer, Impairments, Wiring};

/// Where endpoints serve, and the load balancer in front of them.
const PORT: u16 = 7000;
/// Where iperf3 serves at each endpoint, and the load balancer at one virtual address for each of them.
const IPERF3_PORT: u16 = 5201;
/// Virtual addresses that a load may connect to: netperf has one for each stream.
const VIRTUAL_ADDRESSES: u8 = 128;
/// Seed of the emulator's losses, so that every contender meets the same ones.
const SEED: u64 = 0x5765_6972;

/// The runner of [`Topology::Namespaces`].
pub struct Spread {
    options: Options,
    impairer: Option<Impairer>,
}

impl Spread {
    /// Err when this user or machine cannot make network namespaces.
    pub fn new(options: &Options) -> io::Result<Self> {
        drop(namespace::Namespace::make("trial")?);
        Ok(Self { options: options.clone(), impairer: None })
    }

    /// One cell on the network that `topology` describes.
    pub fn cell_on(&mut self, topology: &Namespaces, cell: &Cell<'_>) -> io::Result<Turn> {
        let (proxy_placement, load_placement) = if topology.pinned {
            (self.options.proxy, self.options.load)
        } else {
            let free = |placement: Placement| Placement { core: None, ..placement };
            (free(self.options.proxy), free(self.options.load))
        };
        let impairments = self.impairments(topology)?;
        let wiring =
            Wiring::build(topology.family, topology.endpoints, impairments, load_placement, cell.directory)?;
        let servers = self.start_servers(topology, &wiring, load_placement, cell.directory)?;
        let load = &cell.point.load;
        let mut seat = seat(topology, &wiring);
        if load.is_encrypted() {
            seat.more.extend(certificate::make(cell.directory)?);
        }
        let home = cell.directory.join("contender");
        fs::create_dir(&home)?;
        let client = wiring.client.path();
        let probe_command = load.probe_command(&self.options.tools, seat.listen);
        let serves = || {
            from_inside(&client, || match &probe_command {
                Some(command) => probe_with(load, command),
                // Probes each endpoint in turn: one that can't be reached would fail the load.
                None => (0..topology.endpoints).try_for_each(|_| probe(seat.listen, topology.backend)),
            })
        };
        let proxy = cell.contender.start(&self.options.tools, &seat, proxy_placement, &home, &serves)?;

        if topology.crowd > 0 {
            let crowd = ["--target", &seat.listen.to_string(), "--flows", &topology.crowd.to_string()];
            let command = [&[self.options.tools.lab.as_str(), "crowd"], crowd.as_slice()].concat();
            wiring.client.run(&command.into_iter().map(str::to_owned).collect::<Vec<_>>(), "")?;
        }
        let target = target(load, &seat);
        let command = load.command(&self.options.tools, target, cell.length.seconds);
        let put = |command: &[String], seconds: u32| -> io::Result<LoadResult> {
            let log = cell.directory.join("load.log");
            let inside = wiring.client.command(command);
            let running = Running::start("load", load_placement, &inside, &log, Output::Piped)?;
            load.result(&running.finish(load.patience(seconds))?)
        };
        let warm_up_seconds = cell.length.warm_up_seconds;
        if warm_up_seconds > 0 {
            put(&load.warm_up_command(&self.options.tools, &[target], warm_up_seconds), warm_up_seconds)?;
        }
        let processes: Vec<u32> = servers.iter().map(Running::id).collect();
        let machine_before = measure::machine_time()?;
        let meter = Meter::begin(&[proxy.id()], &processes)?;
        let result = put(&command, cell.length.seconds)?;
        let mut sample = Sample::default();
        meter.end(&mut sample, &result, load_placement, None)?;
        let machine = measure::machine_time()?.saturating_sub(machine_before);
        let machine = result.machine_seconds.map_or(machine, Duration::from_secs_f64);
        put_figures(&mut sample, result, load, machine, cell.contender);
        let commands = vec![cell.contender.command_line(&self.options.tools, &seat, &home)?, command];
        drop((proxy, servers));
        if let Some(counters) = wiring.finish()? {
            let [forth, back] = [counters.forth, counters.back];
            let dropped = forth.overflowed + forth.overrun + back.overflowed + back.overrun;
            if dropped > 0 {
                let remark = format!(
                    "the emulated line had no room for {dropped} packets, beside those it was to lose"
                );
                sample.remarks.push(remark);
            }
        }
        Ok(Turn { sample, commands })
    }

    /// What impairs the line of `topology`; netem if the kernel has it.
    fn impairments(&mut self, topology: &Namespaces) -> io::Result<Option<(Impairer, Impairments)>> {
        let to_client = Impairment {
            delay: Duration::from_secs_f64(topology.delay_ms / 1e3),
            loss: topology.loss_percent / 100.0,
            ..Impairment::NONE
        };
        if to_client == Impairment::NONE && !topology.line {
            return Ok(None);
        }
        let impairer = match self.impairer {
            Some(known) => known,
            None => *self.impairer.insert(Impairer::available()?),
        };
        Ok(Some((impairer, Impairments { to_client, to_balancer: Impairment::NONE, seed: SEED })))
    }

    fn start_servers(
        &self,
        topology: &Namespaces,
        wiring: &Wiring,
        placement: Placement,
        directory: &Path,
    ) -> io::Result<Vec<Running>> {
        let mut servers = Vec::new();
        for (index, endpoint) in (0_u8..).zip(&wiring.endpoints) {
            let tools = &self.options.tools;
            let kind = topology.backend.name();
            // Plain routing sends it packets for the virtual addresses.
            let place = SocketAddr::new(topology.family.any(), PORT);
            let (ip, port) = (place.ip().to_string(), PORT.to_string());
            let backend =
                [&tools.lab, "backend", "--kind", kind, "--ip", &ip, "--port", &port].map(str::to_owned);
            let log = directory.join(format!("backend-{index}.log"));
            let mut running =
                Running::start("backend", placement, &endpoint.command(&backend), &log, Output::Piped)?;
            running.expect_line(&format!("listening on {place}"))?;
            servers.push(running);
            if topology.crowd > 0 {
                // The address that a load balancer sends to, and the one that plain routing leaves unchanged.
                let family = topology.family;
                let mut command = [&tools.lab, "answer"].map(str::to_owned).to_vec();
                for ip in [family.endpoint(index), family.virtual_address(index)] {
                    command.push(format!("--address={}", SocketAddr::new(ip, PORT)));
                }
                let log = directory.join(format!("answers-{index}.log"));
                let command = endpoint.command(&command);
                let mut running = Running::start("answers", placement, &command, &log, Output::Piped)?;
                running.expect_line("answering")?;
                servers.push(running);
            }
            if topology.iperf3 {
                let port = IPERF3_PORT.to_string();
                let iperf3 = [&tools.peers, "run", "iperf3", "--", "-s", "-p", &port].map(str::to_owned);
                let log = directory.join(format!("iperf3-{index}.log"));
                let running = Running::start(
                    "iperf3 server",
                    placement,
                    &endpoint.command(&iperf3),
                    &log,
                    Output::Log,
                )?;
                wait_for_listener(&running, IPERF3_PORT)?;
                servers.push(running);
            }
        }
        Ok(servers)
    }
}

impl Runner for Spread {
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn> {
        match &cell.point.topology {
            Topology::Namespaces(topology) => self.cell_on(topology, cell),
            other => Err(io::Error::other(format!("a topology of namespaces was expected, not {other:?}"))),
        }
    }
}

/// The contender's seat: at the virtual addresses, in front of all endpoints.
fn seat(topology: &Namespaces, wiring: &Wiring) -> Seat {
    let family = topology.family;
    let backend = |index| SocketAddr::new(family.endpoint(index), PORT);
    let virtual_at = |index, port| SocketAddr::new(family.virtual_address(index), port);
    let mut more = Vec::new();
    let mut put = |name: &str, value: &dyn std::fmt::Display| more.push((name.to_owned(), value.to_string()));
    for index in 0..topology.endpoints {
        put(&format!("bulk_listen_{}", index + 1), &virtual_at(index, IPERF3_PORT));
        put(&format!("bulk_backend_{}", index + 1), &SocketAddr::new(family.endpoint(index), IPERF3_PORT));
        put(&format!("endpoint_{}", index + 1), &family.endpoint(index));
        put(&format!("virtual_{}", index + 1), &family.virtual_address(index));
    }
    let listens: Vec<String> =
        (0..VIRTUAL_ADDRESSES).map(|index| format!("\"{}\"", virtual_at(index, PORT))).collect();
    put("listens", &listens.join(", "));
    let addresses: Vec<String> =
        (0..VIRTUAL_ADDRESSES).map(|index| family.virtual_address(index).to_string()).collect();
    put("virtual_addresses", &addresses.join(" "));
    put("listen_anywhere", &SocketAddr::new(family.any(), PORT));
    put("iperf3_port", &IPERF3_PORT);
    put("virtual", &family.virtual_address(0));
    put("virtual_network", &family.virtual_network());
    put("ip", &family.name());
    put("bits", &family.bits());
    Seat {
        listen: virtual_at(0, PORT),
        admin: SocketAddr::from(([127, 0, 0, 1], 9900)),
        backends: (0..topology.endpoints).map(backend).collect(),
        network: Some(wiring.balancer.path()),
        more,
    }
}

/// The target of `load`.
fn target(load: &Load, seat: &Seat) -> SocketAddr {
    let mut target = seat.listen;
    if matches!(load, Load::Iperf3 { .. }) {
        target.set_port(IPERF3_PORT);
    }
    target
}

/// Runs `action` in the network namespace at `path`, on a thread that ends with it.
fn from_inside(path: &str, action: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| namespace::enter(path).and_then(|()| action()));
        inside.join().map_err(|_| io::Error::other("a thread in another namespace panicked"))?
    })
}

/// Waits until a socket listens at `port` in the namespace of `running`, without connecting: iperf3 would
/// take a connection for a test.
fn wait_for_listener(running: &Running, port: u16) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let table =
            |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", running.id())).unwrap_or_default();
        if ["tcp", "tcp6"].iter().any(|name| has_listener(&table(name), port)) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other(format!("nobody listens at port {port}; its log ends:\n{}", running.log_tail())))
}

/// Whether the table of sockets (`/proc/net/tcp`) has one that listens at `port`.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let place = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1).is_some_and(|local| local.ends_with(&place)) && fields.nth(1) == Some(LISTEN)
    })
}

fn put_figures(
    sample: &mut Sample,
    mut result: LoadResult,
    load: &Load,
    machine: Duration,
    contender: &Contender,
) {
    let rate = result.requests as f64 / result.seconds;
    match load {
        Load::Netperf { test: crate::load::netperf::Test::Crr, .. } => {
            sample.put(Metric::CONNECTION_RATE, rate)
        }
        Load::Netperf { .. } => sample.put(Metric::TRANSACTION_RATE, rate),
        _ => sample.put(Metric::RATE, rate),
    }
    sample.put(Metric::THROUGHPUT, result.bytes as f64 * 8.0 / result.seconds);
    sample.put(Metric::MACHINE_CPU_PER_REQUEST, machine.as_secs_f64() * 1e6 / result.requests as f64);
    sample.put(Metric::MACHINE_CPU_PER_GIGABYTE, machine.as_secs_f64() * 1e9 / result.bytes as f64);
    if contender.is_in_kernel() {
        // Its process only waits; the kernel's work is charged to whatever process sent the packet.
        let none = [
            Metric::CPU_PER_REQUEST,
            Metric::CPU_PER_GIGABYTE,
            Metric::CPU_SHARE,
            Metric::MEMORY,
            Metric::MEMORY_PER_CONNECTION,
            Metric::USER_SHARE,
            Metric::WAIT_SHARE,
            Metric::WORKERS,
        ];
        sample.figures.retain(|metric, _| !none.contains(metric));
    }
    sample.figures.append(&mut result.figures);
    sample.errors = result.errors;
    sample.problem = result.problem;
    sample.curves = result.curves;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue\n   0: 00000000:1451 00000000:0000 0A 00000000:0\n\
                     \x20  1: 0100007F:1452 0100007F:9999 01 00000000:0\n";
        assert!(has_listener(table, 5201));
        assert!(!has_listener(table, 5202));
        assert!(!has_listener(table, 14));
    }

    fn contender(name: &str) -> Contender {
        Contender::read(Path::new(env!("CARGO_MANIFEST_DIR")), name).unwrap()
    }

    #[test]
    fn a_contender_in_the_kernel_is_not_credited_with_the_time_of_a_sleeping_process() {
        let load = Load::Netperf { connections: 1, test: crate::load::netperf::Test::Crr };
        let figures = |name: &str| {
            let mut sample = Sample::default();
            sample.put(Metric::CPU_PER_REQUEST, 0.1);
            let result = LoadResult { requests: 100, bytes: 100, seconds: 2.0, ..LoadResult::default() };
            put_figures(&mut sample, result, &load, Duration::from_millis(10), &contender(name));
            sample
        };
        let kernel = figures("nftables/s3");
        assert_eq!(kernel.figure(Metric::CPU_PER_REQUEST), None);
        assert_eq!(kernel.figure(Metric::CONNECTION_RATE), Some(50.0));
        assert_eq!(kernel.figure(Metric::MACHINE_CPU_PER_REQUEST), Some(100.0));
        assert_eq!(figures("haproxy/s3").figure(Metric::CPU_PER_REQUEST), Some(0.1));
    }
}
