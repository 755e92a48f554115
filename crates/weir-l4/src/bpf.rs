//! System calls that aya lacks, and promises that it requires: the only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::layout::{
    Address, Backend, BackendCounter, Counter, Endpoint, Flow, FlowKey4, FlowKey6, Listener, Network,
    NextHop, Origin, Pool, Settings, SlotBlock, Source, Trace,
};
use crate::probes::{ProbeKey, ProbeWay};

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: `#[repr(C)]`, made of integers and arrays of them without padding: any bytes are a
            // value.
            unsafe impl aya::Pod for $name {}
        )*
    };
}

plain!(
    Address,
    Backend,
    BackendCounter,
    Counter,
    Endpoint,
    Flow,
    FlowKey4,
    FlowKey6,
    Listener,
    Network,
    NextHop,
    Origin,
    Pool,
    ProbeKey,
    ProbeWay,
    Settings,
    SlotBlock,
    Source,
    Trace,
);

/// A packet on which the kernel is to run a program, as if it had just arrived.
#[derive(Clone, Copy, Debug)]
pub struct TestPacket<'a> {
    /// From the Ethernet header on; at least 14 bytes, and less than a page.
    pub frame: &'a [u8],
    /// Index of the interface at which it arrives, in the network namespace of the calling thread. The
    /// interface's address decides whether the frame is for this host.
    pub interface: u32,
    /// Segments of a train; 0 for a single packet.
    pub segments: u32,
    /// Bytes of payload in each segment of a train.
    pub segment_bytes: u32,
    /// Whether the device has computed a checksum of the whole packet (CHECKSUM_COMPLETE). The kernel then
    /// fails the run with EBADMSG if that does not match the packet afterwards.
    pub is_summed: bool,
    /// How often the program runs, each time on the result of the time before.
    pub repeat: u32,
}

/// Result of a [`TestPacket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// What the program returned, as TC_ACT_*.
    pub action: i32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run.
    pub duration: Duration,
}

/// Runs a classifier on a packet. aya's `TestRun` can't set the checksum state.
///
/// Nothing is sent, but maps change as with any packet. Source: bpf(2), BPF_PROG_TEST_RUN, `__sk_buff` in
/// linux/bpf.h.
pub fn test_run(program: BorrowedFd<'_>, packet: &TestPacket<'_>) -> io::Result<TestResult> {
    let mut context = [0u8; SK_BUFF_BYTES];
    for (offset, value) in [
        (SK_BUFF_INGRESS, packet.interface),
        (SK_BUFF_INTERFACE, packet.interface),
        (SK_BUFF_SEGMENTS, packet.segments),
        (SK_BUFF_SEGMENT_BYTES, packet.segment_bytes),
    ] {
        context[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let mut frame = vec![0; PAGE_BYTES];
    let mut attributes = TestRunAttributes {
        program: program.as_raw_fd() as u32,
        data_in_bytes: packet.frame.len() as u32,
        data_out_bytes: frame.len() as u32,
        data_in: packet.frame.as_ptr() as u64,
        data_out: frame.as_mut_ptr() as u64,
        repeat: packet.repeat,
        context_in_bytes: context.len() as u32,
        context_in: context.as_ptr() as u64,
        flags: if packet.is_summed { BPF_F_TEST_SKB_CHECKSUM_COMPLETE } else { 0 },
        ..TestRunAttributes::default()
    };
    // SAFETY: the kernel reads and writes `size_of` bytes of `attributes`, reads frame and context, and
    // writes no more of `frame` than `data_out_bytes`; all three outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            &raw mut attributes,
            size_of::<TestRunAttributes>() as libc::c_uint,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    frame.truncate(attributes.data_out_bytes as usize);
    let duration = Duration::from_nanos(u64::from(attributes.duration_ns));
    Ok(TestResult { action: attributes.returned as i32, frame, duration })
}

/// The position in a kernel table that is read in batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchCursor {
    /// In the kernel's format; hash tables use four bytes.
    place: [u64; 8],
    is_begun: bool,
}

/// Reads the next entries of a hash table, at most as many as the vectors have room for. `Ok(false)` when
/// these were the last. Entries that are added or removed meanwhile may be missed, and none is returned twice
/// unless it was added again.
///
/// # Errors
/// ENOSPC if one bucket of the table has more entries than there is room for.
///
/// Source: bpf(2), BPF_MAP_LOOKUP_BATCH.
pub fn lookup_batch<K: aya::Pod, V: aya::Pod>(
    map: BorrowedFd<'_>,
    cursor: &mut BatchCursor,
    keys: &mut Vec<K>,
    values: &mut Vec<V>,
) -> io::Result<bool> {
    keys.clear();
    values.clear();
    let room = keys.capacity().min(values.capacity());
    let from = cursor.place;
    let mut attributes = BatchAttributes {
        from: if cursor.is_begun { from.as_ptr() as u64 } else { 0 },
        to: cursor.place.as_mut_ptr() as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: room as u32,
        map: map.as_raw_fd() as u32,
        ..BatchAttributes::default()
    };
    // SAFETY: the kernel reads `from`, and writes `to` and at most `count` keys and values, each of the size
    // that the map was made with, which is that of `K` and `V` (asserted in `layout`); all of it outlives
    // the call.
    let result = unsafe { batch(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
    let is_last = match result {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    let count = (attributes.count as usize).min(room);
    // SAFETY: the kernel has written that many, and any bytes are a valid `K` and `V` (`Pod`).
    unsafe {
        keys.set_len(count);
        values.set_len(count);
    }
    cursor.is_begun = true;
    Ok(!is_last)
}

/// Deletes entries from a hash table; missing ones are skipped.
///
/// Source: bpf(2), BPF_MAP_DELETE_BATCH.
pub fn delete_batch<K: aya::Pod>(map: BorrowedFd<'_>, mut keys: &[K]) -> io::Result<()> {
    while !keys.is_empty() {
        let mut attributes = BatchAttributes {
            keys: keys.as_ptr() as u64,
            count: keys.len() as u32,
            map: map.as_raw_fd() as u32,
            ..BatchAttributes::default()
        };
        // SAFETY: the kernel reads `count` keys, each of the size of `K`, which outlive the call.
        match unsafe { batch(BPF_MAP_DELETE_BATCH, &mut attributes) } {
            Ok(()) => return Ok(()),
            // It stops at a missing key, and counts the keys before it.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                keys = keys.get(attributes.count as usize + 1..).unwrap_or_default();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// # Safety
/// What `attributes` points to must be as the command requires.
unsafe fn batch(command: libc::c_int, attributes: &mut BatchAttributes) -> io::Result<()> {
    let bytes = size_of::<BatchAttributes>() as libc::c_uint;
    // SAFETY: the kernel reads and writes `bytes` bytes of `attributes`; the caller vouches for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What is attached to the ingress of an interface by tcx: the numbers of the programs in their order, and
/// those of their links.
///
/// Source: bpf(2), BPF_PROG_QUERY; it requires CAP_NET_ADMIN.
pub fn tcx_attached(interface: u32) -> io::Result<(Vec<u32>, Vec<u32>)> {
    let (mut programs, mut links) = (vec![0; MOST_TCX_PROGRAMS], vec![0; MOST_TCX_PROGRAMS]);
    let mut attributes = QueryAttributes {
        interface,
        attach_type: BPF_TCX_INGRESS,
        programs: programs.as_mut_ptr() as u64,
        count: MOST_TCX_PROGRAMS as u32,
        links: links.as_mut_ptr() as u64,
        ..QueryAttributes::default()
    };
    // SAFETY: the kernel reads and writes `size_of` bytes of `attributes`, and writes at most `count` numbers
    // to each of `programs` and `links`, which outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            &raw mut attributes,
            size_of::<QueryAttributes>() as libc::c_uint,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    programs.truncate(attributes.count as usize);
    links.truncate(attributes.count as usize);
    Ok((programs, links))
}

/// The kernel's limit for one hook (BPF_MPROG_MAX).
const MOST_TCX_PROGRAMS: usize = 64;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_TCX_INGRESS: u32 = 46;

/// The part of `union bpf_attr` for BPF_PROG_QUERY.
#[repr(C)]
#[derive(Default)]
struct QueryAttributes {
    interface: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;

/// The part of `union bpf_attr` for batches.
#[repr(C)]
#[derive(Default)]
struct BatchAttributes {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Size of `struct __sk_buff`, and the offsets of its fields.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_INGRESS: usize = 36;
const SK_BUFF_INTERFACE: usize = 40;
const SK_BUFF_SEGMENTS: usize = 164;
const SK_BUFF_SEGMENT_BYTES: usize = 176;
/// The longest packet for a test run.
const PAGE_BYTES: usize = 4096;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 4;

/// The part of `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRunAttributes {
    program: u32,
    returned: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch: u32,
    zero: u32,
}
