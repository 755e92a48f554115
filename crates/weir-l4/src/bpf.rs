//! What aya lacks, and what it wants promised: the one file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::layout::{
    Address, Backend, BackendCounter, Counter, Endpoint, Flow, FlowKey4, FlowKey6, Listener, NextHop, Origin,
    Pool, Settings, SlotBlock,
};

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
    NextHop,
    Origin,
    Pool,
    Settings,
    SlotBlock,
);

/// A packet that the kernel is to run a program on, as if it had just come.
#[derive(Clone, Copy, Debug)]
pub struct TestPacket<'a> {
    /// From the Ethernet header on; 14 bytes at least, and less than a page.
    pub frame: &'a [u8],
    /// Index of the interface that it comes in by, in the network namespace of the calling thread. Its
    /// address decides whether the frame is for this host.
    pub interface: u32,
    /// Segments of a train; 0 when it is none.
    pub segments: u32,
    /// Bytes of payload in each segment of a train.
    pub segment_bytes: u32,
    /// Whether the device has summed the whole packet (CHECKSUM_COMPLETE). The kernel then fails the run with
    /// EBADMSG when that sum is not that of the packet afterwards.
    pub is_summed: bool,
    /// How often the program runs: each time on what the time before left.
    pub repeat: u32,
}

/// What came of a [`TestPacket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// What the program returned, as TC_ACT_*.
    pub action: i32,
    /// The frame as it is afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run.
    pub duration: Duration,
}

/// Runs a classifier on a packet. aya's `TestRun` can't have the packet summed.
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

/// Bytes of `struct __sk_buff`, and where its fields lie.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_INGRESS: usize = 36;
const SK_BUFF_INTERFACE: usize = 40;
const SK_BUFF_SEGMENTS: usize = 164;
const SK_BUFF_SEGMENT_BYTES: usize = 176;
/// No packet is longer in the runner.
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
