//! A folder behind a file server that answers nothing, as NFS when its server is gone. Needs root.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounted over a folder: whoever looks into it waits until this is dropped.
#[derive(Debug)]
pub struct Hung {
    folder: PathBuf,
    /// The server's side, which nobody reads.
    server: Option<File>,
}

impl Hung {
    /// Takes the folder away from everybody on this machine.
    pub fn at(folder: &Path) -> Hung {
        let server = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let server = server.unwrap_or_else(|problem| panic!("/dev/fuse: {problem} (needs root)"));
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", server.as_raw_fd());
        let data = CString::from_vec_with_nul(data.into_bytes()).expect("text");
        mount("nobody", folder, "fuse", MountFlags::empty(), data.as_c_str())
            .unwrap_or_else(|problem| panic!("{}: {problem} (needs root)", folder.display()));
        Hung { folder: folder.to_owned(), server: Some(server) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Who waits gets an error.
        drop(self.server.take());
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}
