//! Addresses of the networks that a measurement creates, for IPv4 and IPv6. [`crate::wiring`] says which host
//! has which.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A version of IP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    #[default]
    Ipv4,
    Ipv6,
}

/// The first 16 bits of an IPv6 network of the private range.
const PRIVATE: u16 = 0xfd77;

fn ipv6(network: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(PRIVATE, network, 0, 0, 0, 0, 0, host).into()
}

impl Family {
    /// The virtual address `index` (from 0). Clients connect to these; they all belong to the load balancer's
    /// namespace.
    pub fn virtual_address(self, index: u8) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 77, 0, 1 + index).into(),
            Self::Ipv6 => ipv6(0, 1 + u16::from(index)),
        }
    }

    /// All virtual addresses.
    pub fn virtual_network(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.77.0.0/24",
            Self::Ipv6 => "fd77::/120",
        }
    }

    /// The client's address.
    pub fn client(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 77, 1, 2).into(),
            Self::Ipv6 => ipv6(1, 2),
        }
    }

    /// The first address of the crowd, which the client has as well.
    pub fn crowd(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 78, 0, 1).into(),
            Self::Ipv6 => Ipv6Addr::new(PRIVATE + 1, 0, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    /// The network with all of the crowd's addresses.
    pub fn crowd_network(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.78.0.0/24",
            Self::Ipv6 => "fd78::/120",
        }
    }

    /// The client's next hop.
    pub fn balancer(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 77, 1, 1).into(),
            Self::Ipv6 => ipv6(1, 1),
        }
    }

    /// The address at which endpoint `index` (from 0) listens.
    pub fn endpoint(self, index: u8) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 77, 10 + index, 2).into(),
            Self::Ipv6 => ipv6(10 + u16::from(index), 2),
        }
    }

    /// The next hop of endpoint `index`.
    pub fn gateway(self, index: u8) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 77, 10 + index, 1).into(),
            Self::Ipv6 => ipv6(10 + u16::from(index), 1),
        }
    }

    /// The unspecified address, to listen at every address of a machine.
    pub fn any(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    /// What nftables calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
        }
    }

    /// Arguments that follow a host address on the command line of ip(8). They switch off IPv6's check
    /// whether another host has the address.
    pub fn at_once(self) -> &'static str {
        match self {
            Self::Ipv4 => "",
            Self::Ipv6 => " nodad",
        }
    }
}

/// The address `index` places after `first`.
pub fn after(first: IpAddr, index: u32) -> IpAddr {
    match first {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + index).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(index)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_networks_of_their_own() {
        assert_eq!(Family::Ipv4.endpoint(0).to_string(), "10.77.10.2");
        assert_eq!(Family::Ipv4.endpoint(2).to_string(), "10.77.12.2");
        assert_eq!(Family::Ipv6.endpoint(0).to_string(), "fd77:a::2");
        assert_eq!(Family::Ipv6.gateway(2).to_string(), "fd77:c::1");
    }

    #[test]
    fn virtual_addresses_lie_side_by_side() {
        for family in [Family::Ipv4, Family::Ipv6] {
            assert_eq!(after(family.virtual_address(0), 99), family.virtual_address(99));
        }
        assert_eq!(Family::Ipv6.virtual_address(99).to_string(), "fd77::64");
    }
}
