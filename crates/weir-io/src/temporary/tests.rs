use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::*;
use crate::buffers::Buffers;

fn limits(bytes: u64) -> Limits {
    Limits { directory: std::env::temp_dir(), bytes, files: 2, threads: 2 }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn run(test: impl AsyncFnOnce(Rc<Buffers>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(test(Buffers::new(64 << 20)));
}

/// Puts in as much as is taken.
async fn put(file: &mut TemporaryFile, bytes: &[u8]) -> usize {
    let mut taken = 0;
    poll_fn(|context| {
        while taken < bytes.len() {
            match file.poll_put(context, &bytes[taken..]) {
                Poll::Ready(count) => taken += count,
                Poll::Pending if file.is_full() => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    })
    .await;
    taken
}

async fn read(file: &mut TemporaryFile) -> Result<Vec<u8>, Lost> {
    let mut all = Vec::new();
    loop {
        let count = poll_fn(|context| {
            file.poll_next(context).map_ok(|bytes| {
                all.extend_from_slice(bytes);
                bytes.len()
            })
        })
        .await?;
        if count == 0 {
            return Ok(all);
        }
        file.consume(count);
    }
}

/// Threads close them.
fn is_empty(files: &TemporaryFiles) {
    while files.files() > 0 || files.bytes() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_is_put_in_is_read_in_order_as_often_as_it_is_asked_for() {
    run(async |buffers| {
        let files = TemporaryFiles::new(limits(64 << 20));
        let mut file = TemporaryFile::begin(&files, 64 << 20, &buffers).unwrap();
        let content = pattern(3 * BLOCK + 12345);
        assert_eq!(put(&mut file, &content).await, content.len());
        assert_eq!((file.length(), files.files(), files.made()), (content.len() as u64, 1, 1));
        for _ in 0..3 {
            assert!(read(&mut file).await.unwrap() == content);
            file.rewind();
        }
        drop(file);
        is_empty(&files);
        assert_eq!(buffers.in_use_bytes(), 0);
    });
}

#[test]
fn both_ends_move_at_once_and_a_drained_file_is_used_again() {
    run(async |buffers| {
        let files = TemporaryFiles::new(limits(64 << 20));
        let mut file = TemporaryFile::begin(&files, 1 << 20, &buffers).unwrap();
        let content = pattern(5 << 20);
        let (mut given, mut got) = (0, Vec::new());
        poll_fn(|context| {
            loop {
                let before = (given, got.len());
                if let Poll::Ready(count) = file.poll_put(context, &content[given..]) {
                    given += count;
                }
                if let Poll::Ready(bytes) = file.poll_next(context) {
                    let count = bytes.map(|bytes| bytes.len().min(50_000)).unwrap();
                    got.extend_from_slice(&bytes.unwrap()[..count]);
                    file.consume(count);
                }
                if file.unread() == 0 {
                    file.restart();
                }
                if got.len() == content.len() {
                    return Poll::Ready(());
                }
                if before == (given, got.len()) {
                    return Poll::Pending;
                }
            }
        })
        .await;
        assert!(got == content);
        assert!(files.bytes() <= 1 << 20, "{} bytes are counted", files.bytes());
    });
}

#[test]
fn what_the_disk_does_not_take_is_not_lost() {
    run(async |buffers| {
        let nowhere = Limits { directory: "/proc/nowhere".into(), ..limits(64 << 20) };
        let files = TemporaryFiles::new(nowhere);
        let mut file = TemporaryFile::begin(&files, 64 << 20, &buffers).unwrap();
        let content = pattern(5 * BLOCK);
        let taken = put(&mut file, &content).await;
        assert!(taken >= BLOCK && taken < content.len() && file.is_full());
        assert!(read(&mut file).await.unwrap() == content[..taken]);
        assert_eq!((files.refusals(FileRefusal::Disk), files.refusals(FileRefusal::Lost)), (1, 0));
        drop(file);
        is_empty(&files);
    });
}

#[test]
fn all_files_together_are_as_long_and_as_many_as_they_may_be() {
    run(async |buffers| {
        let files = TemporaryFiles::new(limits(3 * BLOCK as u64));
        let content = pattern(5 * BLOCK);
        let mut first = TemporaryFile::begin(&files, 64 << 20, &buffers).unwrap();
        assert_eq!(put(&mut first, &content[..2 * BLOCK]).await, 2 * BLOCK);
        poll_fn(|context| {
            let _ = first.poll_next(context);
            if files.bytes() == 2 * BLOCK as u64 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut second = TemporaryFile::begin(&files, 64 << 20, &buffers).unwrap();
        assert!(TemporaryFile::begin(&files, 64 << 20, &buffers).is_none());
        // One block goes to the disk, and the next stays in memory.
        assert_eq!(put(&mut second, &content).await, 2 * BLOCK);
        assert!(read(&mut second).await.unwrap() == content[..2 * BLOCK]);
        assert_eq!((files.refusals(FileRefusal::Full), files.refusals(FileRefusal::Count)), (1, 1));
        drop((first, second));
        is_empty(&files);
        assert!(TemporaryFile::begin(&files, 1, &Buffers::new(256 << 10)).is_none());
        assert_eq!(files.refusals(FileRefusal::Memory), 1);
    });
}

#[test]
fn a_file_has_no_name_and_is_its_users_alone() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let metadata = unnamed(&std::env::temp_dir()).unwrap().metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.permissions().mode() & 0o777), (0, 0o600));
}
