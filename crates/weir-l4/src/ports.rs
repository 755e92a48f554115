//! Ports that nothing else on this host uses: full-NAT sends from them, and an answer to one belongs to a
//! flow.

use std::fmt;
use std::io;

/// The first and the last of consecutive ports.
pub type Ports = (u16, u16);

/// The ports that the kernel assigns to sockets that ask for any port, such as those of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPorts {
    /// `net.ipv4.ip_local_port_range`, which also applies to IPv6.
    pub range: Ports,
    /// `net.ipv4.ip_local_reserved_ports`: those in the range that it does not assign.
    pub reserved: Vec<Ports>,
}

/// No port is left, or the kernel may assign a requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The range that the kernel assigns.
    pub range: Ports,
    /// The requested ports.
    pub wanted: Option<Ports>,
}

impl fmt::Display for Taken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.range;
        match self.wanted {
            None => write!(
                out,
                "`net.ipv4.ip_local_port_range` ({first} {last}) leaves no port from 1024 on: make it smaller, or say `source_ports` and have them in `net.ipv4.ip_local_reserved_ports`"
            ),
            Some((low, high)) => write!(
                out,
                "`source_ports` {low}-{high} overlaps `net.ipv4.ip_local_port_range` ({first} {last}), whose ports the kernel gives to others, such as probes: use others, or have them in `net.ipv4.ip_local_reserved_ports`"
            ),
        }
    }
}

impl std::error::Error for Taken {}

impl LocalPorts {
    /// Reads them for the network namespace of the calling thread.
    pub fn read() -> io::Result<LocalPorts> {
        let text = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        let unexpected = || io::Error::other("`net.ipv4.ip_local_port_range` is not two numbers");
        let range = text("ip_local_port_range")?;
        let mut numbers = range.split_whitespace().map_while(|number| number.parse().ok());
        let range = numbers.next().zip(numbers.next()).ok_or_else(unexpected)?;
        Ok(LocalPorts { range, reserved: ranges(&text("ip_local_reserved_ports")?) })
    }

    /// The source ports for full-NAT: `wanted` if the kernel does not assign them, or else the longest free
    /// range.
    ///
    /// # Errors
    /// The kernel may assign some of them.
    pub fn for_sources(&self, wanted: Option<Ports>) -> Result<Ports, Taken> {
        let (first, last) = self.range;
        if let Some(wanted) = wanted {
            let is_free = (wanted.0.max(first)..=wanted.1.min(last)).all(|port| self.is_reserved(port));
            return if is_free { Ok(wanted) } else { Err(Taken { range: self.range, wanted: Some(wanted) }) };
        }
        let below = (1024, first.saturating_sub(1));
        let above = (last.saturating_add(1).max(1024), if last == u16::MAX { 0 } else { u16::MAX });
        let count = |ports: &Ports| (u32::from(ports.1) + 1).saturating_sub(u32::from(ports.0));
        let most = if count(&below) > count(&above) { below } else { above };
        if count(&most) > 0 { Ok(most) } else { Err(Taken { range: self.range, wanted: None }) }
    }

    /// How many ports the kernel assigns to sockets that ask for any port (count).
    pub fn count(&self) -> u32 {
        let (first, last) = self.range;
        let given = (first..=last).filter(|port| !self.is_reserved(*port)).count();
        u32::try_from(given).unwrap_or(u32::MAX)
    }

    fn is_reserved(&self, port: u16) -> bool {
        self.reserved.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

/// Parses a list such as `net.ipv4.ip_local_reserved_ports`: `8080,9148,61000-61999`.
fn ranges(text: &str) -> Vec<Ports> {
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(range: Ports, reserved: &str) -> LocalPorts {
        LocalPorts { range, reserved: ranges(reserved) }
    }

    #[test]
    fn the_most_ports_that_nobody_is_given_are_taken() {
        for (range, expected) in [
            ((32_768, 60_999), (1024, 32_767)),
            ((1024, 60_999), (61_000, 65_535)),
            ((10_000, 65_535), (1024, 9_999)),
            ((500, 1_000), (1_024, 65_535)),
        ] {
            assert_eq!(local(range, "\n").for_sources(None), Ok(expected), "{range:?}");
        }
        assert!(local((1024, 65_535), "").for_sources(None).is_err());
    }

    #[test]
    fn ports_that_the_kernel_gives_away_are_refused_unless_it_keeps_them() {
        let ports = local((32_768, 60_999), "40000-40099,50000\n");
        assert_eq!(ports.for_sources(Some((61_000, 62_000))), Ok((61_000, 62_000)));
        assert_eq!(ports.for_sources(Some((1_024, 32_767))), Ok((1_024, 32_767)));
        assert_eq!(ports.for_sources(Some((40_000, 40_099))), Ok((40_000, 40_099)));
        for taken in [(40_000, 40_100), (60_999, 62_000), (1_024, 65_535)] {
            let refused = ports.for_sources(Some(taken)).unwrap_err();
            assert_eq!(refused, Taken { range: (32_768, 60_999), wanted: Some(taken) });
        }
    }

    #[test]
    fn this_host_says_what_it_gives() {
        let ports = LocalPorts::read().expect("procfs has it");
        assert!(ports.range.0 <= ports.range.1);
    }
}
