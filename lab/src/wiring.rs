//! Creates the networks of a measurement: a client, a load balancer and the endpoints behind it, each in a
//! network namespace of its own.
//!
//! ```text
//! client 10.77.1.2 ── 10.77.1.1 balancer 10.77.10.1 ── 10.77.10.2 endpoint 0
//!                     10.77.0.0/24       10.77.11.1 ── 10.77.11.2 endpoint 1
//!                     (virtual)          10.77.12.1 ── 10.77.12.2 endpoint 2
//! ```
//!
//! With IPv6 they are fd77:1::2, fd77:1::1, fd77::/120, and fd77:a::1 and fd77:a::2 for endpoint 0.
//!
//! Endpoints also accept packets for the virtual addresses: plain routing sends them there. Nothing of this
//! outlives the lab; see [`crate::namespace`].

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::addresses::Family;
use crate::link::impairment::Impairment;
use crate::link::{self, LinkCounters};
use crate::namespace::{Namespace, READY};
use crate::process::{Output, Placement, Running, own_program};

/// The numbering of the addresses allows no more.
const MOST_ENDPOINTS: u8 = 200;

/// How the line between client and load balancer is impaired.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairments {
    /// What is done to packets towards the client: what netem does on the load balancer's device.
    pub to_client: Impairment,
    /// What is done to packets towards the load balancer.
    pub to_balancer: Impairment,
    /// Seed of the losses; the emulator's only, netem has its own.
    pub seed: u64,
}

/// What impairs the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Impairer {
    /// The kernel's netem on both ends of the veth pair.
    Netem,
    /// The lab's own emulator in place of the veth pair.
    Emulator,
}

impl Impairer {
    /// netem where this kernel has it, else the emulator.
    pub fn available() -> io::Result<Self> {
        let probe = Namespace::make("probe")?;
        let netem = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"].map(str::to_owned);
        Ok(if probe.run(&netem, "").is_ok() { Self::Netem } else { Self::Emulator })
    }
}

/// A client, a load balancer and endpoints, connected.
#[derive(Debug)]
pub struct Wiring {
    /// Where the load comes from.
    pub client: Namespace,
    /// Where the contender runs.
    pub balancer: Namespace,
    /// The endpoints that it balances over.
    pub endpoints: Vec<Namespace>,
    family: Family,
    emulator: Option<Running>,
}

impl Wiring {
    /// Creates a network with `endpoints` endpoints. The emulator, if one is wanted, runs as placed; its log
    /// goes into `directory`. Takes about 0.1 s.
    pub fn build(
        family: Family,
        endpoints: u8,
        impairments: Option<(Impairer, Impairments)>,
        placement: Placement,
        directory: &Path,
    ) -> io::Result<Self> {
        if endpoints > MOST_ENDPOINTS {
            return Err(io::Error::other(format!(
                "at most {MOST_ENDPOINTS} endpoints were expected, not {endpoints}"
            )));
        }
        let client = Namespace::make("client")?;
        let balancer = Namespace::make("balancer")?;
        let names = (0..endpoints).map(|index| Namespace::make(&format!("endpoint {index}")));
        let mut wiring =
            Self { endpoints: names.collect::<io::Result<_>>()?, client, balancer, family, emulator: None };
        if family == Family::Ipv6 {
            let mut all = [&wiring.client, &wiring.balancer].into_iter().chain(&wiring.endpoints);
            all.try_for_each(Namespace::enable_ipv6)?;
        }
        match impairments {
            Some((Impairer::Emulator, impairments)) => wiring.emulate(impairments, placement, directory)?,
            Some((Impairer::Netem, impairments)) => {
                wiring.pair()?;
                wiring.impair_by_netem(impairments)?;
            }
            None => wiring.pair()?,
        }
        wiring.connect_endpoints()?;
        Ok(wiring)
    }

    /// Ends the emulator, if there is one, and returns its counters.
    pub fn finish(mut self) -> io::Result<Option<LinkCounters>> {
        let Some(emulator) = self.emulator.take() else { return Ok(None) };
        let printed = emulator.finish(Duration::from_secs(5))?;
        serde_json::from_str(printed.trim()).map(Some).map_err(|error| {
            io::Error::other(format!(
                "the emulator printed `{printed}` where its counters were expected: {error}"
            ))
        })
    }

    /// Client and load balancer on one veth pair.
    fn pair(&self) -> io::Result<()> {
        let peer = self.balancer.path();
        self.client.configure(&[format!(
            "link add {} type veth peer name {} netns {peer}",
            link::DEVICE,
            link::DEVICE
        )])?;
        self.address_client_side(&[])
    }

    /// Sets the addresses and routes of both ends of the existing device between client and load balancer.
    fn address_client_side(&self, more: &[String]) -> io::Result<()> {
        let device = link::DEVICE;
        let (family, bits, at_once) = (self.family, self.family.bits(), self.family.at_once());
        let (near, far) = (family.balancer(), family.client());
        // An IPv6 address that is added before its device is up has no route to a peer.
        let place = |own, peer| match family {
            Family::Ipv4 => format!("{own}/{bits} peer {peer}"),
            Family::Ipv6 => format!("{own}/64"),
        };
        let client = [
            format!("addr add {} dev {device}{at_once}", place(far, near)),
            format!("link set {device} up"),
            format!("route add default via {near} dev {device}"),
            format!("route add local {} dev lo", family.crowd_network()),
        ];
        let balancer = [
            format!("addr add {} dev {device}{at_once}", place(near, far)),
            format!("addr add {}/{bits} dev {device}{at_once}", family.virtual_address(0)),
            format!("link set {device} up"),
            format!("route add local {} dev lo", family.virtual_network()),
            format!("route add {} via {far} dev {device}", family.crowd_network()),
        ];
        self.client.configure(&[more, &client].concat())?;
        self.balancer.configure(&[more, &balancer].concat())
    }

    fn connect_endpoints(&self) -> io::Result<()> {
        let family = self.family;
        let (bits, at_once) = (if family == Family::Ipv4 { 24 } else { 64 }, family.at_once());
        for (index, endpoint) in (0_u8..).zip(&self.endpoints) {
            let (near, far) = (family.gateway(index), family.endpoint(index));
            self.balancer.configure(&[
                format!("link add back{index} type veth peer name back netns {}", endpoint.path()),
                format!("addr add {near}/{bits} dev back{index}{at_once}"),
                format!("link set back{index} up"),
            ])?;
            endpoint.configure(&[
                format!("addr add {far}/{bits} dev back{at_once}"),
                "link set back up".to_owned(),
                format!("route add default via {near}"),
                format!("route add local {} dev lo", family.virtual_network()),
            ])?;
        }
        Ok(())
    }

    /// The emulator's device in the place of the veth pair.
    fn emulate(
        &mut self,
        impairments: Impairments,
        placement: Placement,
        directory: &Path,
    ) -> io::Result<()> {
        let mut command = vec![own_program(), "link".to_owned(), format!("--seed={}", impairments.seed)];
        command.extend([&self.client, &self.balancer].map(|end| format!("--end={}", end.path())));
        for (way, asked) in [("forth", impairments.to_balancer), ("back", impairments.to_client)] {
            command.push(format!("--{way}-delay-us={}", asked.delay.as_micros()));
            command.push(format!("--{way}-loss={}", asked.loss));
            command.push(format!("--{way}-queue-packets={}", asked.queue_packets));
        }
        let log = directory.join("link.log");
        let mut emulator = Running::start("link emulator", placement, &command, &log, Output::Piped)?;
        emulator.expect_line(READY)?;
        self.emulator = Some(emulator);
        // The queue from which the emulator reads must hold out while the emulator has no processor.
        self.address_client_side(&[format!("link set {} txqueuelen 10000", link::DEVICE)])
    }

    fn impair_by_netem(&self, impairments: Impairments) -> io::Result<()> {
        for (end, asked) in [(&self.client, impairments.to_balancer), (&self.balancer, impairments.to_client)]
        {
            // netem decides about whole buffers; without this it would lose trains of segments as one.
            end.configure(&[format!("link set {} gso_max_segs 1", link::DEVICE)])?;
            if asked != Impairment::NONE {
                end.run(&netem_command(link::DEVICE, asked), "")?;
            }
        }
        Ok(())
    }
}

/// The tc(8) command that impairs what leaves `device` as `asked`.
fn netem_command(device: &str, asked: Impairment) -> Vec<String> {
    let words = format!(
        "tc qdisc add dev {device} root netem limit {} delay {}us loss {}%",
        asked.queue_packets,
        asked.delay.as_micros(),
        asked.loss * 100.0,
    );
    words.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netem_is_asked_for_the_same_line() {
        let asked = Impairment { delay: Duration::from_millis(25), loss: 0.02, queue_packets: 1000 };
        assert_eq!(
            netem_command("wire", asked).join(" "),
            "tc qdisc add dev wire root netem limit 1000 delay 25000us loss 2%"
        );
    }
}
