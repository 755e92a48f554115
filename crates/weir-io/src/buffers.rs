//! Read buffers. A connection borrows one only while bytes are in it: an idle connection holds none.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::{Rc, Weak};

pub use self::charges::{Charge, Held};
use self::end_site::EndSite;

mod charges;
mod end_site;

/// Size in bytes of a buffer for heads and small bodies.
pub const SMALL: usize = 16 << 10;
/// Size in bytes of a buffer for bulk transfer.
pub const LARGE: usize = 64 << 10;
/// Free buffers kept per size; further ones go back to the allocator.
const KEPT: usize = 128;
/// A client that holds no more than this, in bytes, is never refused because of its share: it is what one
/// exchange takes.
const CLIENT_LEAST: u64 = 128 << 10;

/// The buffers of one worker, within its part of the memory budget; or what one client may have of them.
pub struct Buffers {
    all: Rc<WorkerBuffers>,
    /// Whose memory is counted here; `None` for the worker's own, for which only the budget is a limit.
    client: Option<IpAddr>,
    /// The site of the client; `None` where an address is nobody's neighbour (IPv4).
    site: Option<Rc<EndSite>>,
    /// Bytes in use that were lent, charged or held by way of this.
    own_bytes: Cell<u64>,
}

/// What all clients of a worker share.
struct WorkerBuffers {
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
    in_use_bytes: Cell<u64>,
    budget_bytes: Cell<u64>,
    /// Most that one client may have.
    client_bytes: Cell<u64>,
    /// The clients that have a connection now.
    clients: RefCell<HashMap<IpAddr, Weak<Buffers>>>,
    /// The sites of these.
    sites: RefCell<HashMap<IpAddr, Weak<EndSite>>>,
    client_refusals: Cell<u64>,
}

/// How the budget of a worker is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetUse {
    /// Bytes of all lent buffers, all charges, and all memory held elsewhere.
    pub in_use_bytes: u64,
    /// Most bytes in use at once.
    pub budget_bytes: u64,
    /// Most bytes that one client may have in use.
    pub client_bytes: u64,
    /// How often a client was refused memory that the budget had, because of its share.
    pub client_refusals: u64,
    /// The client that has most in use, and how many bytes; `None` without clients.
    pub largest: Option<(IpAddr, u64)>,
}

impl WorkerBuffers {
    /// Whether somebody who has `own_bytes` may have `size` more. It may have `shares` of a client, and when
    /// memory runs short no more than what is left of three quarters of the budget, but always `least_bytes`:
    /// so those who hold most are refused first, and however many clients take what they can, something is
    /// left for one that holds little.
    ///
    /// Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    /// 1998, with a factor of 1.
    fn has_share(&self, own_bytes: u64, size: usize, shares: u64, least_bytes: u64) -> bool {
        let (budget, share) = (self.budget_bytes.get(), self.client_bytes.get());
        if share >= budget {
            return true;
        }
        let left = (budget - budget / 4).saturating_sub(self.in_use_bytes.get());
        let limit = share.saturating_mul(shares).min(left).max(least_bytes);
        let most = if size > SMALL { limit - limit / 8 } else { limit };
        own_bytes + size as u64 <= most
    }
}

impl Buffers {
    /// Hands out at most `budget_bytes` at once, and as much to a single client.
    pub fn new(budget_bytes: u64) -> Rc<Buffers> {
        let all = WorkerBuffers {
            small: RefCell::default(),
            large: RefCell::default(),
            in_use_bytes: Cell::new(0),
            budget_bytes: Cell::new(budget_bytes),
            client_bytes: Cell::new(budget_bytes),
            clients: RefCell::default(),
            sites: RefCell::default(),
            client_refusals: Cell::new(0),
        };
        Rc::new(Buffers { all: Rc::new(all), client: None, site: None, own_bytes: Cell::new(0) })
    }

    /// Hands out at most `budget_bytes` at once from now on, and at most `client_bytes` of these to one
    /// client. Buffers lent out beyond that are not revoked.
    pub fn resize(&self, budget_bytes: u64, client_bytes: u64) {
        self.all.budget_bytes.set(budget_bytes);
        self.all.client_bytes.set(client_bytes);
    }

    /// The same buffers, as far as one client may have them. `client` is whatever tells clients apart, and
    /// `site` those that may be one. What is borrowed, charged and held by way of it, on whatever connection,
    /// is that client's.
    ///
    /// Takes a look-up in a hash table: call it once for a connection.
    pub fn of_client(&self, client: IpAddr, site: Option<IpAddr>) -> Rc<Buffers> {
        let mut clients = self.all.clients.borrow_mut();
        if let Some(known) = clients.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        let site = site.map(|prefix| EndSite::of(&self.all, prefix));
        let (all, client_key, own_bytes) = (self.all.clone(), Some(client), Cell::new(0));
        let buffers = Rc::new(Buffers { all, client: client_key, site, own_bytes });
        clients.insert(client, Rc::downgrade(&buffers));
        buffers
    }

    /// A buffer of at least `size` bytes; `None` when the budget or the client's share is used up, and then
    /// the caller sheds its work.
    ///
    /// The last eighth of the budget, and of a client's share, is reserved for heads: however many bodies are
    /// stuck, requests can still be read and refused properly.
    #[inline]
    pub fn borrow(self: &Rc<Self>, size: usize) -> Option<Buffer> {
        let size = whole_size(size);
        self.has_room(size).then(|| self.lend(size))
    }

    #[inline]
    fn lend(self: &Rc<Self>, size: usize) -> Buffer {
        let size = whole_size(size);
        let kept = match size {
            SMALL => Some(&self.all.small),
            LARGE => Some(&self.all.large),
            _ => None,
        };
        self.take(size as u64);
        let bytes =
            kept.and_then(|kept| kept.borrow_mut().pop()).unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Buffer { bytes, start: 0, end: 0, owner: self.clone() }
    }

    /// A buffer with `bytes`, which were received into another one and must not be lost. It is never refused,
    /// and counts like any other.
    pub fn with_received(self: &Rc<Self>, bytes: &[u8]) -> Buffer {
        let mut buffer = self.lend(bytes.len());
        buffer.append(bytes);
        buffer
    }

    /// Whether a buffer of `size` bytes could be borrowed now.
    #[inline]
    pub fn has_room(&self, size: usize) -> bool {
        let budget = self.all.budget_bytes.get();
        let most = if size > SMALL { budget - budget / 8 } else { budget };
        if self.all.in_use_bytes.get() + size as u64 > most {
            return false;
        }
        let has_share = self.is_small_client(size as u64) || self.has_share(size);
        (has_share && self.site_has_share(size)) || self.refuse()
    }

    /// Whether the client holds so little, with `more` bytes, that its share is no question.
    #[inline]
    fn is_small_client(&self, more: u64) -> bool {
        self.own_bytes.get() + more <= CLIENT_LEAST
    }

    /// Whether the client may have `size` more bytes.
    #[inline(never)]
    fn has_share(&self, size: usize) -> bool {
        self.client.is_none() || self.all.has_share(self.own_bytes.get(), size, 1, 0)
    }

    /// Whether all clients of the site may have `size` more bytes together.
    #[inline]
    fn site_has_share(&self, size: usize) -> bool {
        self.site.as_ref().is_none_or(|site| site.has_share(size))
    }

    /// Counts a refusal, and gives false.
    #[cold]
    fn refuse(&self) -> bool {
        self.all.client_refusals.set(self.all.client_refusals.get() + 1);
        false
    }

    /// Counts `bytes` of memory that is not one of our buffers, such as what a pipe holds in the kernel,
    /// until the charge is dropped. `None` when three quarters of the budget are used up, or seven eighths of
    /// the client's share: callers charge for what makes them faster, not for what they need.
    pub fn charge(self: &Rc<Self>, bytes: u64) -> Option<Charge> {
        let budget = self.all.budget_bytes.get();
        if self.all.in_use_bytes.get() + bytes > budget - budget / 4 {
            return None;
        }
        let as_body = (bytes as usize).max(SMALL + 1);
        if !(self.is_small_client(bytes) || self.has_share(as_body)) || !self.site_has_share(as_body) {
            return None;
        }
        self.take(bytes);
        Some(Charge { bytes, owner: self.clone() })
    }

    /// Bytes of all lent buffers, all charges, and all memory held elsewhere ([`Held`]), of all clients.
    #[inline]
    pub fn in_use_bytes(&self) -> u64 {
        self.all.in_use_bytes.get()
    }

    /// Whether this is what that client may have.
    #[inline]
    pub fn is_of(&self, client: IpAddr) -> bool {
        self.client == Some(client)
    }

    /// How the budget is used. O(clients) while more than an eighth of it is in use; below that nobody is
    /// looked for.
    pub fn usage(&self) -> BudgetUse {
        let WorkerBuffers { in_use_bytes, budget_bytes, client_bytes, client_refusals, .. } = &*self.all;
        let clients = self.all.clients.borrow();
        let known = clients.iter().filter_map(|(client, buffers)| {
            Some((*client, buffers.upgrade()?.own_bytes.get())).filter(|(_, bytes)| *bytes > 0)
        });
        let is_much = in_use_bytes.get() > budget_bytes.get() / 8;
        BudgetUse {
            in_use_bytes: in_use_bytes.get(),
            budget_bytes: budget_bytes.get(),
            client_bytes: client_bytes.get().min(budget_bytes.get()),
            client_refusals: client_refusals.get(),
            largest: is_much.then(|| known.max_by_key(|(_, bytes)| *bytes)).flatten(),
        }
    }

    #[inline]
    fn take(&self, bytes: u64) {
        self.all.in_use_bytes.set(self.all.in_use_bytes.get() + bytes);
        self.own_bytes.set(self.own_bytes.get() + bytes);
        if let Some(site) = &self.site {
            site.take(bytes);
        }
    }

    #[inline]
    fn give_back(&self, bytes: u64) {
        self.all.in_use_bytes.set(self.all.in_use_bytes.get() - bytes);
        self.own_bytes.set(self.own_bytes.get() - bytes);
        if let Some(site) = &self.site {
            site.give_back(bytes);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            self.all.clients.borrow_mut().remove(client);
        }
    }
}

/// The size of the buffer for `size` bytes.
#[inline]
fn whole_size(size: usize) -> usize {
    match size {
        0..=SMALL => SMALL,
        _ if size <= LARGE => LARGE,
        _ => size,
    }
}

/// A lent buffer: bytes `start..end` are filled. It goes back to its worker when dropped.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    owner: Rc<Buffers>,
}

impl Buffer {
    /// The bytes that were received and not yet consumed.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// As [`Self::filled`], but mutable.
    #[inline]
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Whether no bytes are filled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room to receive into.
    #[inline]
    pub fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Counts `count` bytes of [`Self::free`] as filled.
    #[inline]
    pub fn fill(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.bytes.len(), "filled beyond the buffer");
    }

    /// Drops the first `count` filled bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "consumed beyond what was filled");
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Drops the filled bytes behind the first `count`.
    #[inline]
    pub fn truncate(&mut self, count: usize) {
        self.end = self.end.min(self.start + count);
    }

    /// Moves the filled bytes to the front, to make room behind them.
    #[inline]
    pub fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Appends `bytes` to the filled bytes; they must fit.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Replaces the bytes at `range` of the filled bytes by `bytes`, and moves those behind them. `false`,
    /// with nothing changed, if there is no room. O(bytes behind them).
    pub fn replace(&mut self, range: Range<usize>, bytes: &[u8]) -> bool {
        let behind = self.end - self.start - range.end;
        if self.bytes.len() < range.start + bytes.len() + behind {
            return false;
        }
        if self.bytes.len() < self.start + range.start + bytes.len() + behind {
            self.compact();
        }
        let at = self.start + range.start;
        self.bytes.copy_within(self.start + range.end..self.end, at + bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.end = at + bytes.len() + behind;
        true
    }

    /// Size in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no room is left even after [`Self::compact`].
    #[inline]
    pub fn is_full(&self) -> bool {
        self.start == 0 && self.end == self.bytes.len()
    }

    /// Counts it as memory of `owner`, a client of the same worker, from now on. That is not refused.
    pub fn counts_for(&mut self, owner: &Rc<Buffers>) {
        let bytes = self.bytes.len() as u64;
        self.owner.give_back(bytes);
        owner.take(bytes);
        self.owner = owner.clone();
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.owner.give_back(bytes.len() as u64);
        let kept = match bytes.len() {
            SMALL => &self.owner.all.small,
            LARGE => &self.owner.all.large,
            _ => return,
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < KEPT {
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_what_is_lent_and_comes_back_with_the_buffers() {
        // A large buffer must leave the eighth that is kept for heads.
        let buffers = Buffers::new(8 * SMALL as u64 + LARGE as u64);
        let large = buffers.borrow(LARGE).unwrap();
        let small: Vec<Buffer> = (0..8).map(|_| buffers.borrow(1).unwrap()).collect();
        assert!(buffers.borrow(1).is_none());
        drop((small, large));
        assert_eq!(buffers.in_use_bytes(), 0);
        assert!(buffers.borrow(LARGE).is_some());
    }

    #[test]
    fn a_smaller_budget_counts_what_is_lent_already() {
        let buffers = Buffers::new(4 * LARGE as u64);
        let lent = buffers.borrow(LARGE).unwrap();
        buffers.resize(LARGE as u64, LARGE as u64);
        assert!(buffers.borrow(1).is_none());
        drop(lent);
        assert!(buffers.borrow(1).is_some());
    }

    #[test]
    fn what_was_received_already_gets_a_buffer_beyond_the_budget() {
        let buffers = Buffers::new(SMALL as u64);
        let lent = buffers.borrow(1).unwrap();
        let kept = buffers.with_received(b"answer");
        assert_eq!((kept.filled(), buffers.in_use_bytes()), (&b"answer"[..], 2 * SMALL as u64));
        drop((lent, kept));
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn consumed_bytes_make_room_after_compaction() {
        let buffers = Buffers::new(1 << 20);
        let mut buffer = buffers.borrow(SMALL).unwrap();
        buffer.append(b"abcdef");
        buffer.consume(4);
        buffer.compact();
        assert_eq!(buffer.filled(), b"ef");
        assert_eq!(buffer.free().len(), SMALL - 2);
        buffer.consume(2);
        assert!(buffer.is_empty());
        assert_eq!(buffer.free().len(), SMALL);
    }

    #[test]
    fn bytes_in_the_middle_are_replaced_by_more_or_fewer_where_there_is_room() {
        let buffers = Buffers::new(1 << 20);
        let mut buffer = buffers.borrow(SMALL).unwrap();
        buffer.append(b"..abcdef");
        buffer.consume(2);
        assert!(buffer.replace(2..4, b"CCCDDD"));
        assert_eq!(buffer.filled(), b"abCCCDDDef");
        assert!(buffer.replace(2..8, b"") && buffer.replace(4..4, b"g"));
        assert_eq!(buffer.filled(), b"abefg");
        let room = buffer.free().len();
        buffer.fill(room);
        assert!(buffer.replace(1..2, b"BBB"), "what was consumed makes room");
        assert_eq!(buffer.filled()[..5], *b"aBBBe");
        assert!(buffer.is_full() && !buffer.replace(0..0, b"x") && buffer.replace(0..1, b"x"));
        assert_eq!(buffer.filled()[..5], *b"xBBBe");
    }

    #[test]
    fn what_is_held_elsewhere_is_counted_even_beyond_the_budget() {
        let buffers = Buffers::new(4 * SMALL as u64);
        let held = Held::new(&buffers);
        held.set(5 * SMALL as u64);
        assert!(buffers.borrow(SMALL).is_none() && buffers.charge(1).is_none());
        held.set(SMALL as u64);
        assert!(buffers.borrow(SMALL).is_some());
        drop(held);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn a_charge_grows_as_far_as_the_budget_goes_and_is_given_back_whole() {
        let buffers = Buffers::new(8 * LARGE as u64);
        let mut charge = buffers.charge(LARGE as u64).unwrap();
        assert!(charge.grow(6 * LARGE as u64));
        assert!(!charge.grow(6 * LARGE as u64 + 1), "three quarters");
        assert!(charge.grow(1), "no more than before");
        assert_eq!((charge.bytes(), buffers.in_use_bytes()), (6 * LARGE as u64, 6 * LARGE as u64));
        drop(charge);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn bodies_and_charges_leave_room_for_heads() {
        let buffers = Buffers::new(8 * LARGE as u64);
        let charge = buffers.charge(6 * LARGE as u64).unwrap();
        assert!(buffers.charge(1).is_none(), "three quarters");
        let body = buffers.borrow(LARGE).unwrap();
        assert!(buffers.borrow(LARGE).is_none(), "seven eighths");
        let heads: Vec<Buffer> = (0..LARGE / SMALL).map(|_| buffers.borrow(SMALL).unwrap()).collect();
        assert!(buffers.borrow(SMALL).is_none(), "all of it");
        drop((charge, body, heads));
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    /// The buffers of two clients of a worker with a budget of 16 MiB, of which each may have a quarter.
    fn two_clients() -> (Rc<Buffers>, Rc<Buffers>, Rc<Buffers>) {
        let all = Buffers::new(0);
        all.resize(16 << 20, 4 << 20);
        let of = |address: [u8; 4]| all.of_client(address.into(), None);
        (all.clone(), of([192, 0, 2, 1]), of([192, 0, 2, 2]))
    }

    #[test]
    fn a_client_has_its_share_and_another_client_the_rest() {
        let (all, one, other) = two_clients();
        let mut bodies: Vec<Buffer> = std::iter::from_fn(|| one.borrow(LARGE)).collect();
        assert_eq!(bodies.len(), (4 << 20) / 8 * 7 / LARGE, "an eighth of the share is for heads");
        let heads: Vec<Buffer> = std::iter::from_fn(|| one.borrow(SMALL)).collect();
        assert_eq!(one.own_bytes.get(), 4 << 20);
        assert!(one.charge(1).is_none() && !one.has_room(1));
        assert!(other.borrow(LARGE).is_some() && all.borrow(LARGE).is_some());
        assert!(all.usage().client_refusals >= 3);
        // Another connection of the same client gets nothing either.
        assert!(all.of_client([192, 0, 2, 1].into(), None).borrow(SMALL).is_none());
        bodies.pop();
        assert!(one.borrow(SMALL).is_some());
        drop((bodies, heads));
        assert_eq!((one.own_bytes.get(), all.in_use_bytes()), (0, 0));
    }

    #[test]
    fn however_many_clients_take_what_they_can_something_is_left_for_one_more() {
        let (all, ..) = two_clients();
        let clients: Vec<_> = (0..20_u8).map(|last| all.of_client([192, 0, 2, last].into(), None)).collect();
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            for client in &clients {
                taken.extend(client.borrow(LARGE).or_else(|| client.borrow(SMALL)));
            }
            if taken.len() == before {
                break;
            }
        }
        let left = (16 << 20) - all.in_use_bytes();
        assert!(left > 4 << 20, "{left} bytes are left");
        assert!(all.of_client([198, 51, 100, 1].into(), None).borrow(LARGE).is_some());
        assert!(all.charge(LARGE as u64).is_some(), "and for what makes it fast");
    }

    #[test]
    fn a_share_of_everything_is_no_limit() {
        let (all, one, _) = two_clients();
        all.resize(16 << 20, 16 << 20);
        let heads: Vec<Buffer> = std::iter::from_fn(|| one.borrow(SMALL)).collect();
        assert_eq!((heads.len() * SMALL, all.usage().client_refusals), (16 << 20, 0));
    }

    #[test]
    fn what_a_client_did_not_borrow_itself_counts_once_it_is_its_own() {
        let (all, one, other) = two_clients();
        let mut buffer = all.borrow(LARGE).unwrap();
        buffer.counts_for(&one);
        let mut held = Held::new(&all);
        held.set(4 << 20);
        assert_eq!((one.own_bytes.get(), held.most_bytes()), (LARGE as u64, 16 << 20));
        held.counts_for(&one);
        assert_eq!((one.own_bytes.get(), held.most_bytes()), ((4 << 20) + LARGE as u64, 4 << 20));
        assert_eq!(all.in_use_bytes(), (4 << 20) + LARGE as u64);
        assert!(one.borrow(SMALL).is_none() && other.borrow(SMALL).is_some());
        let largest = Some(([192, 0, 2, 1].into(), (4 << 20) + LARGE as u64));
        assert_eq!(all.usage().largest, largest);
        drop((buffer, held));
        assert_eq!((one.own_bytes.get(), all.in_use_bytes()), (0, 0));
    }

    #[test]
    fn a_client_without_connections_is_forgotten() {
        let (all, one, other) = two_clients();
        let buffer = one.borrow(SMALL).unwrap();
        drop((one, other));
        assert_eq!(all.all.clients.borrow().len(), 1, "it has a buffer");
        drop(buffer);
        assert!(all.all.clients.borrow().is_empty());
    }
}
