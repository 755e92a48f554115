//! The networks by which clients are counted.

use std::fmt;
use std::net::IpAddr;

/// The network of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn of(client: IpAddr, v4_bits: u8, v6_bits: u8) -> Network {
        match client.to_canonical() {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(v4_bits.min(32))).unwrap_or(0);
                Network { address: IpAddr::V4((u32::from(address) & mask).into()), bits: v4_bits }
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(v6_bits.min(128))).unwrap_or(0);
                Network { address: IpAddr::V6((u128::from(address) & mask).into()), bits: v6_bits }
            }
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.address.is_ipv4() { 32 } else { 128 };
        match self.bits >= all {
            true => write!(out, "{}", self.address),
            false => write!(out, "{}/{}", self.address, self.bits),
        }
    }
}
