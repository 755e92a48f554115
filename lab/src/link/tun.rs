//! A network device whose other end is a file of this process (TUN).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{Opcode, Updater, ioctl};

/// Makes the device named in the request and ties it to the open file; `linux/if_tun.h`.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// The device carries IP packets, without Ethernet headers.
const IFF_TUN: i16 = 0x0001;
/// No header of the driver's own before each packet.
const IFF_NO_PI: i16 = 0x1000;

/// `struct ifreq` of `linux/if.h` on 64-bit Linux: the name, then a union of 24 bytes that begins with the
/// flags.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40, "struct ifreq has 40 bytes");

/// Makes the device `name` (at most 15 bytes) in the calling thread's network namespace. It is gone when the
/// file is closed, however that comes about.
///
/// The file does not block. Each read takes one IP packet that the kernel sent through the device, each write
/// delivers one. No offload is announced, so the kernel cuts what it sends into packets of at most the
/// device's MTU and finishes their checksums before they are read.
pub fn open(name: &str) -> io::Result<File> {
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    if name.is_empty() || name.len() >= request.name.len() {
        return Err(io::Error::other(format!("a device name of 1 to 15 bytes was expected, not `{name}`")));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let path = "/dev/net/tun";
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    // SAFETY: TUNSETIFF is a valid operation on this file. The kernel copies a `struct ifreq` in and out
    // again, 40 bytes on 64-bit Linux, and `InterfaceRequest` has its size and layout (asserted above) and
    // outlives the call.
    unsafe { ioctl(&device, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request)) }
        .map_err(|error| io::Error::other(format!("the device {name} could not be made: {error}")))?;
    Ok(device)
}
