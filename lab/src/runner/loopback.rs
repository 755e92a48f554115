//! Everything on one loopback device: fresh backends and a fresh load balancer for every cell, on fresh
//! ports.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{Cell, Options, Runner, Turn};
use crate::backend::{BackendKind, Counters, counters, mysql};
use crate::certificate;
use crate::cluster::member::connect;
use crate::contender::Seat;
use crate::load::users::descriptor_limit;
use crate::load::{Load, LoadResult};
use crate::meter::Meter;
use crate::metric::Metric;
use crate::process::{Output, Running};
use crate::sample::Sample;
use crate::topology::Topology;

/// The runner of [`Topology::Loopback`].
pub struct Loopback {
    options: Options,
}

impl Loopback {
    /// Nothing lasts longer than a cell, so nothing is started yet.
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone() }
    }
}

impl Runner for Loopback {
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn> {
        let Topology::Loopback { backend, backends } = cell.point.topology else {
            return Err(io::Error::other("a sweep cannot leave the loopback topology"));
        };
        let mut servers = Vec::new();
        for index in 0..backends {
            servers.push(Server::start(backend, index, &self.options, cell.directory)?);
        }
        let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        let load = &cell.point.load;
        let proxies = Proxies::start(cell, &addresses, backend, &self.options)?;
        let tools = &self.options.tools;
        let put =
            |command: &[String], seconds| put_load(load, command, seconds, &self.options, cell.directory);

        // The warm-up fills pools and caches and faults pages in; idle connections are counted from the
        // first.
        if cell.length.warm_up_seconds > 0 {
            let seconds = cell.length.warm_up_seconds;
            drop(put(&load.warm_up_command(tools, &proxies.targets, seconds), seconds)?);
        }
        let processes: Vec<u32> = servers.iter().map(|server| server.running.id()).collect();
        let counted_before = counters_of(backend, &addresses)?;
        let meter = Meter::begin(&proxies.ids(), &processes)?;
        let command = load.command_on_all(tools, &proxies.targets, cell.length.seconds);
        let (mut result, still_open) = put(&command, cell.length.seconds)?;
        let mut sample = Sample::default();
        meter.end(&mut sample, &result, self.options.load, still_open.as_ref().map(Running::id))?;
        let opened = meter.connections_opened();
        let counted = counters_of(backend, &addresses)?;
        put_reuse(&mut sample, &result, &counted_before, &counted, opened);
        if cell.contender.is_direct() {
            sample.forget_the_contender();
        }
        if let Some(idle) = still_open {
            // Gives memory that is freed only after the last request, such as idle buffers, time to be freed.
            thread::sleep(Duration::from_secs(1));
            meter.end_memory(&mut sample, result.requests);
            idle.finish(Duration::from_secs(10))?;
        }
        sample.put(Metric::RATE, result.requests as f64 / result.seconds);
        sample.put(Metric::THROUGHPUT, result.bytes as f64 * 8.0 / result.seconds);
        sample.figures.append(&mut result.figures);
        sample.errors = result.errors;
        sample.problem = result.problem;
        sample.curves = result.curves;
        sample.remarks.extend(load.remark());
        sample.remarks.extend(proxies.remark());
        let mut commands = proxies.commands;
        commands.push(command);
        Ok(Turn { sample, commands })
    }
}

/// The contender at work: one instance of it, or as many as it takes to hold all connections.
struct Proxies {
    running: Vec<Running>,
    targets: Vec<SocketAddr>,
    commands: Vec<Vec<String>>,
}

impl Proxies {
    /// Starts the contender and waits until it serves `backends`.
    ///
    /// A load with more connections than one process may have descriptors is split: over the contender's own
    /// processes if it supports that, otherwise over several instances, each on a port of its own.
    fn start(
        cell: &Cell<'_>,
        backends: &[SocketAddr],
        kind: BackendKind,
        options: &Options,
    ) -> io::Result<Self> {
        let load = &cell.point.load;
        let needed = load.proxies_needed(descriptor_limit());
        let (instances, processes) = if cell.contender.has_processes() { (1, needed) } else { (needed, 1) };
        let more = if load.is_encrypted() { certificate::make(cell.directory)? } else { Vec::new() };
        let mut proxies = Self { running: Vec::new(), targets: Vec::new(), commands: Vec::new() };
        for instance in 0..instances {
            let mut seat = Seat::on_loopback(backends.to_vec())?;
            seat.more.clone_from(&more);
            seat.more.push(("processes".to_owned(), processes.to_string()));
            let home = cell.directory.join(format!("contender-{instance}"));
            fs::create_dir(&home)?;
            // Clients connect to a backend directly if there is no load balancer.
            let target = if cell.contender.is_direct() { backends[0] } else { seat.listen };
            let serves = || match load.probe_command(&options.tools, target) {
                Some(command) => probe_with(load, &command),
                None => probe(target, kind),
            };
            let running = cell.contender.start(&options.tools, &seat, options.proxy, &home, &serves)?;
            proxies.commands.push(cell.contender.command_line(&options.tools, &seat, &home)?);
            proxies.running.push(running);
            proxies.targets.push(target);
        }
        Ok(proxies)
    }

    fn ids(&self) -> Vec<u32> {
        self.running.iter().map(Running::id).collect()
    }

    fn remark(&self) -> Option<String> {
        (self.running.len() > 1).then(|| {
            let count = self.running.len();
            format!("{count} instances shared the connections: more than one process may have here.")
        })
    }
}

/// A running backend.
struct Server {
    running: Running,
    address: SocketAddr,
}

impl Server {
    fn start(kind: BackendKind, index: usize, options: &Options, directory: &Path) -> io::Result<Self> {
        let command =
            [options.tools.lab.as_str(), "backend", "--kind", kind.name(), "--port", "0"].map(str::to_owned);
        let log = directory.join(format!("backend-{index}.log"));
        let mut running = Running::start("backend", options.load, &command, &log, Output::Piped)?;
        let line = first_line(&mut running)?;
        match line.trim().rsplit(' ').next().and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Self { running, address }),
            None => {
                Err(io::Error::other(format!("the backend said `{line}` where its address was expected")))
            }
        }
    }
}

fn first_line(running: &mut Running) -> io::Result<String> {
    let mut line = String::new();
    if let Some(output) = running.take_output() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.is_empty() {
        return Err(io::Error::other(format!("it said nothing; its log ends:\n{}", running.log_tail())));
    }
    Ok(line)
}

/// Runs the `command` of `load` and waits for its result. A load of idle connections is handed back still
/// running.
fn put_load(
    load: &Load,
    command: &[String],
    seconds: u32,
    options: &Options,
    directory: &Path,
) -> io::Result<(LoadResult, Option<Running>)> {
    let log = directory.join("load.log");
    let mut running = Running::start("load", options.load, command, &log, Output::Piped)?;
    if load.stays() {
        let result = load.result(&first_line(&mut running)?)?;
        return Ok((result, Some(running)));
    }
    let printed = running.finish(load.patience(seconds))?;
    Ok((load.result(&printed)?, None))
}

/// Checks once with the load's own program, if a plain request would not be understood.
pub fn probe_with(load: &Load, command: &[String]) -> io::Result<()> {
    let output = Command::new(&command[0]).args(&command[1..]).output()?;
    let result = load.result(&String::from_utf8_lossy(&output.stdout))?;
    match result.requests {
        0 => Err(io::Error::other(result.problem.unwrap_or_else(|| "nobody answered".to_owned()))),
        _ => Ok(()),
    }
}

/// Asks once whether the load balancer at `address` serves its backends.
pub fn probe(address: SocketAddr, backend: BackendKind) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    if matches!(backend, BackendKind::Mysql | BackendKind::MysqlTls) {
        // By a login, because a server counts a connection that is cut off before it as an error. A load
        // balancer may also learn the password from it.
        return connect(address.port(), PATIENCE)
            .map(drop)
            .map_err(|error| io::Error::other(error.to_string()));
    }
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    match backend {
        BackendKind::Bulk => stream.read_exact(&mut [0; 1]),
        BackendKind::Echo | BackendKind::EchoOnce => {
            stream.write_all(b"?")?;
            stream.read_exact(&mut [0; 1])
        }
        BackendKind::Mysql | BackendKind::MysqlTls => Ok(()),
        BackendKind::Http | BackendKind::Slow => {
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: lab\r\nconnection: close\r\n\r\n")?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"Hello World!\n") {
                return Ok(());
            }
            let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("it answered `{line}` where 200 was expected")))
        }
    }
}

/// What each backend has counted; empty for one that does not count.
fn counters_of(kind: BackendKind, addresses: &[SocketAddr]) -> io::Result<Vec<Counters>> {
    match kind {
        BackendKind::Bulk | BackendKind::Slow | BackendKind::Echo | BackendKind::EchoOnce => Ok(Vec::new()),
        BackendKind::Http => addresses.iter().map(|address| counters(*address)).collect(),
        BackendKind::Mysql | BackendKind::MysqlTls => {
            addresses.iter().map(|address| mysql::counters(*address)).collect()
        }
    }
}

/// Records how often connections were reused on both sides, and which backend served how much.
fn put_reuse(
    sample: &mut Sample,
    load: &LoadResult,
    before: &[Counters],
    after: &[Counters],
    opened: Option<u64>,
) {
    if after.is_empty() || load.requests == 0 {
        return;
    }
    let served: Vec<f64> =
        before.iter().zip(after).map(|(before, after)| (after.requests - before.requests) as f64).collect();
    let accepted: u64 =
        before.iter().zip(after).map(|(before, after)| after.connections - before.connections).sum();
    let total: f64 = served.iter().sum();
    sample.put(Metric::BACKEND_SHARE, total * 100.0 / load.requests as f64);
    // Connections opened in the warm-up and used again now are not among the new ones.
    if total > 0.0 {
        sample.put(Metric::BACKEND_REUSE, total / accepted.max(1) as f64);
    }
    if let Some(opened) = opened {
        // The lab itself opens one connection to each backend to ask for its counters.
        let by_clients = opened.saturating_sub(accepted).max(1);
        sample.put(Metric::CLIENT_REUSE, load.requests as f64 / by_clients as f64);
    }
    let [least, most] =
        [served.iter().copied().fold(f64::INFINITY, f64::min), served.iter().copied().fold(0.0, f64::max)];
    if served.len() > 1 {
        sample.put(Metric::SERVED_UNEVENLY, most / least);
    }
}
