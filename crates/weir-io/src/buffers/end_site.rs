//! What all clients of one end site have of a worker's memory: whoever rents a host for IPv6 often has a /48
//! (RFC 6177), which holds 65,536 clients that may all be one.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use super::WorkerBuffers;

/// All clients of a site together may have as much as so many of them.
const SHARES: u64 = 2;
/// A site that has no more than one part in this many of the budget is never refused because of its share:
/// an access network may give each of its customers a part of one /48.
const LEAST_PART: u64 = 16;

/// See the module.
pub(super) struct EndSite {
    prefix: IpAddr,
    own_bytes: Cell<u64>,
    all: Rc<WorkerBuffers>,
}

impl EndSite {
    pub(super) fn of(all: &Rc<WorkerBuffers>, prefix: IpAddr) -> Rc<EndSite> {
        let mut sites = all.sites.borrow_mut();
        if let Some(known) = sites.get(&prefix).and_then(Weak::upgrade) {
            return known;
        }
        let site = Rc::new(EndSite { prefix, own_bytes: Cell::new(0), all: all.clone() });
        sites.insert(prefix, Rc::downgrade(&site));
        site
    }

    /// Whether clients of the site may have `size` more bytes in all.
    pub(super) fn has_share(&self, size: usize) -> bool {
        let least_bytes = self.all.budget_bytes.get() / LEAST_PART;
        self.all.has_share(self.own_bytes.get(), size, SHARES, least_bytes)
    }

    pub(super) fn take(&self, bytes: u64) {
        self.own_bytes.set(self.own_bytes.get() + bytes);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.own_bytes.set(self.own_bytes.get() - bytes);
    }
}

impl Drop for EndSite {
    fn drop(&mut self) {
        self.all.sites.borrow_mut().remove(&self.prefix);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::super::{Buffer, Buffers, LARGE};

    #[test]
    fn however_many_clients_a_site_has_other_sites_have_memory() {
        let all = Buffers::new(0);
        all.resize(16 << 20, 4 << 20);
        let client = |site: u16, subnet: u16| {
            let address = |subnet| Ipv6Addr::new(0x2001, 0xdb8, site, subnet, 0, 0, 0, 0).into();
            all.of_client(address(subnet), Some(address(0)))
        };
        let mut clients: Vec<Buffer> = Vec::new();
        for subnet in 0..1000 {
            clients.extend(client(1, subnet).borrow(LARGE));
        }
        // Half of what is left is left.
        assert!((5 << 20..6 << 20).contains(&all.in_use_bytes()), "{}", all.in_use_bytes());
        assert!(client(2, 0).borrow(LARGE).is_some() && all.borrow(LARGE).is_some());
        assert!(all.of_client([192, 0, 2, 1].into(), None).borrow(LARGE).is_some());
        drop(clients);
        assert_eq!((all.in_use_bytes(), all.all.sites.borrow().len()), (0, 0));
    }

    #[test]
    fn a_site_that_has_little_is_not_refused_when_memory_is_short() {
        let all = Buffers::new(0);
        all.resize(16 << 20, 4 << 20);
        let site = "2001:db8:1::".parse().unwrap();
        let others: Vec<Buffer> =
            (0..200).map_while(|_| all.borrow(LARGE).filter(|_| all.in_use_bytes() < 13 << 20)).collect();
        assert!(others.len() > 190, "{}", others.len());
        let one = all.of_client(site, Some(site));
        assert!(one.borrow(LARGE).is_some());
    }
}
