//! Lists of networks: the most specific entry decides.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Allowed and denied networks, flattened into disjoint ranges: one binary search per lookup, whatever their
/// number.
#[derive(Debug)]
pub(crate) struct Addresses {
    allow: Box<[IpNet]>,
    deny: Box<[IpNet]>,
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

/// The verdict of the lists on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// This entry of the allow list is the most specific one.
    Allowed(IpNet),
    /// This entry of the deny list is the most specific one.
    Denied(IpNet),
    /// No entry contains it.
    Unlisted,
}

/// A set of networks.
#[derive(Debug)]
pub struct Networks(Addresses);

impl PartialEq for Networks {
    fn eq(&self, other: &Networks) -> bool {
        self.0.allow == other.0.allow
    }
}

impl Networks {
    /// `None` for an empty list. Takes O(n log n).
    pub fn compile(networks: &[IpNet]) -> Option<Networks> {
        Addresses::compile(networks, &[]).map(Networks)
    }

    /// The index of the smallest network of the list that contains an address; `None` if none does. Treats
    /// IPv4 addresses like [`Self::have`].
    pub fn place_of(&self, address: IpAddr) -> Option<usize> {
        let mark = self.0.mark(address);
        (mark != NOTHING).then_some((mark >> 1) as usize)
    }

    /// Whether one of them contains an address. An IPv4-mapped IPv6 address counts as the IPv4 address. O(log
    /// n); does not allocate.
    pub fn have(&self, address: IpAddr) -> bool {
        self.0.standing(address) != Standing::Unlisted
    }
}

/// Whether one of a few networks contains an address, compared one by one. Like [`Networks::have`].
pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| canonical(*network).contains(&address))
}

#[derive(Debug)]
struct Ranges<T> {
    /// The start of each range; the first is 0. A range ends where the next begins.
    starts: Box<[T]>,
    /// The mark of each range.
    marks: Box<[u32]>,
}

/// Mark of a range that no entry contains.
const NOTHING: u32 = u32::MAX;

/// One network, as numbers.
#[derive(Clone, Copy)]
struct Block {
    first: u128,
    last: u128,
    mark: u32,
}

impl Addresses {
    /// `None` when both lists are empty. Takes O(n log n).
    pub fn compile(allow: &[IpNet], deny: &[IpNet]) -> Option<Addresses> {
        if allow.is_empty() && deny.is_empty() {
            return None;
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        // The order makes a network that is in both lists denied.
        for (list, bit) in [(allow, 0), (deny, 1)] {
            for (index, network) in (0u32..).zip(list) {
                let mark = (index << 1) | bit;
                match canonical(*network) {
                    IpNet::V4(net) => v4.push(Block {
                        first: u32::from(net.network()).into(),
                        last: u32::from(net.broadcast()).into(),
                        mark,
                    }),
                    IpNet::V6(net) => {
                        v6.push(Block { first: net.network().into(), last: net.broadcast().into(), mark })
                    }
                }
            }
        }
        Some(Addresses {
            allow: allow.into(),
            deny: deny.into(),
            v4: Ranges::flatten(v4, u32::MAX.into(), |number| number as u32),
            v6: Ranges::flatten(v6, u128::MAX, |number| number),
        })
    }

    /// The verdict on an address. O(log n); does not allocate.
    pub fn standing(&self, address: IpAddr) -> Standing {
        let mark = self.mark(address);
        let entry = |list: &[IpNet]| list.get((mark >> 1) as usize).copied();
        match mark {
            NOTHING => Standing::Unlisted,
            mark if mark & 1 == 1 => entry(&self.deny).map_or(Standing::Unlisted, Standing::Denied),
            _ => entry(&self.allow).map_or(Standing::Unlisted, Standing::Allowed),
        }
    }

    /// The mark of the most specific entry; [`NOTHING`] if no entry contains the address.
    fn mark(&self, address: IpAddr) -> u32 {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.mark(address.into()),
            IpAddr::V6(address) => self.v6.mark(address.into()),
        }
    }

    /// Whether an address may pass: the most specific entry decides; without one, addresses pass if there is
    /// no allow list.
    pub fn passes(&self, address: IpAddr) -> bool {
        match self.standing(address) {
            Standing::Allowed(_) => true,
            Standing::Denied(_) => false,
            Standing::Unlisted => self.allow.is_empty(),
        }
    }

    /// Counts of entries in the allow list and in the deny list.
    pub fn counts(&self) -> (usize, usize) {
        (self.allow.len(), self.deny.len())
    }
}

/// Turns an IPv4 network written as IPv6 (`::ffff:10.0.0.0/104`) into IPv4, as is done with addresses.
fn canonical(network: IpNet) -> IpNet {
    match network {
        IpNet::V6(net) if net.prefix_len() >= 96 => match net.addr().to_ipv4_mapped() {
            Some(address) => Ipv4Net::new(address, net.prefix_len() - 96).map_or(network, IpNet::V4),
            None => network,
        },
        other => other,
    }
}

impl<T: Copy + Ord> Ranges<T> {
    /// Two networks are nested or disjoint and never overlap partially; so a stack of the open ones gives the
    /// mark between any two edges.
    fn flatten(mut blocks: Vec<Block>, highest: u128, narrow: impl Fn(u128) -> T) -> Ranges<T> {
        // A stable sort: of two equal networks the later one, denied, ends up on top.
        blocks.sort_by_key(|block| (block.first, std::cmp::Reverse(block.last)));
        let mut edges: Vec<(u128, u32)> = vec![(0, NOTHING)];
        let mut put = |start: u128, mark: u32| match edges.last_mut() {
            Some(last) if last.0 == start => last.1 = mark,
            Some(last) if last.1 == mark => {}
            _ => edges.push((start, mark)),
        };
        let mut open: Vec<Block> = Vec::new();
        let close = |open: &mut Vec<Block>, put: &mut dyn FnMut(u128, u32), until: Option<u128>| {
            while let Some(top) = open.pop_if(|top| until.is_none_or(|until| top.last < until)) {
                if top.last < highest {
                    put(top.last + 1, open.last().map_or(NOTHING, |below| below.mark));
                }
            }
        };
        for block in blocks {
            close(&mut open, &mut put, Some(block.first));
            put(block.first, block.mark);
            open.push(block);
        }
        close(&mut open, &mut put, None);
        Ranges {
            starts: edges.iter().map(|edge| narrow(edge.0)).collect(),
            marks: edges.iter().map(|edge| edge.1).collect(),
        }
    }

    fn mark(&self, address: T) -> u32 {
        let behind = self.starts.partition_point(|start| *start <= address);
        behind.checked_sub(1).and_then(|at| self.marks.get(at)).copied().unwrap_or(NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn passes(allow: &[&str], deny: &[&str], address: &str) -> bool {
        let addresses = Addresses::compile(&networks(allow), &networks(deny));
        addresses.is_none_or(|addresses| addresses.passes(address.parse().unwrap()))
    }

    #[test]
    fn a_deny_list_alone_lets_all_others_pass_and_an_allow_list_alone_nobody_else() {
        assert!(!passes(&[], &["10.0.0.0/8"], "10.255.255.255"));
        assert!(passes(&[], &["10.0.0.0/8"], "11.0.0.0"));
        assert!(passes(&["10.0.0.0/8"], &[], "10.0.0.0"));
        assert!(!passes(&["10.0.0.0/8"], &[], "9.255.255.255"));
        assert!(!passes(&["10.0.0.0/8"], &[], "2001:db8::1"));
        assert!(passes(&[], &[], "192.0.2.1"));
    }

    #[test]
    fn the_most_specific_entry_decides_and_of_equal_ones_the_denied() {
        let (allow, deny) =
            (&["10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0"][..], &["10.0.0.0/8", "10.1.2.0/24"][..]);
        for (address, expected) in [
            ("10.0.0.1", false),
            ("10.1.0.1", true),
            ("10.1.2.1", false),
            ("10.1.2.3", true),
            ("10.1.3.0", true),
            ("8.8.8.8", true),
        ] {
            assert_eq!(passes(allow, deny, address), expected, "{address}");
        }
        assert!(!passes(&["10.0.0.0/8"], &["10.0.0.0/8"], "10.0.0.1"));
    }

    #[test]
    fn an_ipv4_client_of_an_ipv6_socket_is_an_ipv4_client() {
        assert!(!passes(&[], &["10.0.0.0/8"], "::ffff:10.1.2.3"));
        assert!(!passes(&[], &["::ffff:10.0.0.0/104"], "10.1.2.3"));
        assert!(passes(&[], &["::/0"], "10.1.2.3"));
    }

    #[test]
    fn the_ends_of_the_address_space_are_listed_too() {
        assert!(!passes(&[], &["255.255.255.255/32"], "255.255.255.255"));
        assert!(!passes(&[], &["0.0.0.0/32"], "0.0.0.0"));
        assert!(passes(&[], &["0.0.0.0/32"], "0.0.0.1"));
        assert!(!passes(&[], &["ffff::/16"], "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    }

    proptest! {
        #[test]
        fn ranges_say_what_looking_at_every_network_says(
            entries in prop::collection::vec((any::<u32>(), 0u8..=32, any::<bool>()), 1..60),
            tried in prop::collection::vec(any::<u32>(), 20),
        ) {
            // Few distinct bits, so that many networks are nested.
            let squeeze = |number: u32| number & 0xe000_e0ff;
            let net = |number: u32, length: u8| IpNet::new(IpAddr::V4(squeeze(number).into()), length).unwrap().trunc();
            let pick = |denied: bool| -> Vec<IpNet> {
                entries.iter().filter(|entry| entry.2 == denied).map(|entry| net(entry.0, entry.1)).collect()
            };
            let (allow, deny) = (pick(false), pick(true));
            let addresses = Addresses::compile(&allow, &deny).unwrap();
            for address in tried.iter().map(|number| IpAddr::V4(squeeze(*number).into())) {
                let longest = |list: &[IpNet]| list.iter().filter(|net| net.contains(&address)).map(IpNet::prefix_len).max();
                let expected = match (longest(&allow), longest(&deny)) {
                    (None, None) => allow.is_empty(),
                    (allowed, denied) => allowed > denied,
                };
                prop_assert_eq!(addresses.passes(address), expected, "{}", address);
            }
        }
    }

    #[test]
    fn ten_thousand_entries_take_twenty_thousand_ranges_at_most() {
        let deny: Vec<IpNet> = (0..10_000u32)
            .map(|n| IpNet::new(IpAddr::V4((n * 0x3_1415).into()), 30).unwrap().trunc())
            .collect();
        let addresses = Addresses::compile(&[], &deny).unwrap();
        assert!(addresses.v4.starts.len() <= 20_001);
        assert!(deny.iter().all(|net| !addresses.passes(net.addr())));
    }
}
