//! What readers of a broadcast get.

use std::task::Waker;

use weir_stats::table::End;

use super::*;

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn head() -> Arc<FetchedHead> {
    let origin = Origin::default();
    let (head, text) = (ResponseHead::new(), Box::default());
    Arc::new(FetchedHead {
        head,
        text,
        variant: None,
        freshness: None,
        is_personal: false,
        is_late: false,
        sticky: None,
        origin,
    })
}

fn failed(meets: Meets) -> FailedFetch {
    let end = End::RateLimited;
    FailedFetch { status: 429, end, word: "", rejected: None, retry_after_seconds: None, meets }
}

fn append(sender: &mut Sender, content: &[u8]) -> bool {
    matches!(sender.poll_append(&context(), content, 1 << 20), Poll::Ready(Ok(count)) if count == content.len())
}

fn read(reader: &Reader) -> Vec<u8> {
    let mut content = Vec::new();
    while let Poll::Ready(Piece::Content(piece)) = reader.poll_piece(&context()) {
        content.extend_from_slice(&piece);
    }
    content
}

#[test]
fn a_failure_that_is_of_who_asked_first_is_not_shared() {
    for meets in [Meets::Client, Meets::Request, Meets::All] {
        let mut sender = Sender::new(&Arc::default(), 1 << 20, Alone::GoesOn);
        let (first, other) = (sender.broadcast().join(true), sender.broadcast().join(false));
        sender.fail(failed(meets));
        assert!(matches!(first.poll_arrived(&context()), Poll::Ready(Arrived::Failed(_))));
        let arrived = other.poll_arrived(&context());
        assert_eq!(matches!(arrived, Poll::Ready(Arrived::Lost)), meets == Meets::Client);
        assert_eq!(matches!(arrived, Poll::Ready(Arrived::Failed(_))), meets != Meets::Client);
    }
}

#[test]
fn what_slow_readers_hold_is_counted_until_they_leave() {
    let gathered = Arc::new(AtomicU64::new(0));
    let counted = || gathered.load(Ordering::Relaxed);
    let mut sender = Sender::new(&gathered, 1 << 20, Alone::GoesOn);
    let (fast, slow) = (sender.broadcast().join(true), sender.broadcast().join(false));
    sender.begin(head(), true);
    assert!(append(&mut sender, &[1; 1000]) && append(&mut sender, &[2; 1000]));
    assert_eq!((read(&fast).len(), counted()), (2000, 2000));
    // The store did not take it.
    sender.finish(None, None);
    drop(sender);
    drop(fast);
    assert_eq!(counted(), 2000);
    assert_eq!(slow.broadcast.lock().piece_at(500).map(|piece| piece.len()), Some(500));
    assert!(
        matches!(slow.poll_piece(&context()), Poll::Ready(Piece::Content(piece)) if piece == [1; 1000][..])
    );
    assert_eq!(counted(), 1000);
    drop(slow);
    assert_eq!(counted(), 0);
}

#[test]
fn nothing_is_gathered_beyond_what_all_may() {
    let gathered = Arc::new(AtomicU64::new(0));
    let mut senders =
        [Sender::new(&gathered, 1500, Alone::GoesOn), Sender::new(&gathered, 1500, Alone::GoesOn)];
    let readers = senders.each_ref().map(|sender| sender.broadcast().join(true));
    for sender in &mut senders {
        sender.begin(head(), true);
        assert!(append(sender, &[0; 1000]));
    }
    assert!(senders[0].is_kept() && !senders[1].is_kept());
    assert_eq!(readers.each_ref().map(|reader| read(reader).len()), [1000, 1000]);
}

#[test]
fn what_is_not_kept_waits_for_its_slowest_reader() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _timers = runtime.enter();
    let mut sender = Sender::new(&Arc::default(), 1 << 20, Alone::GoesOn);
    let (fast, slow) = (sender.broadcast().join(true), sender.broadcast().join(true));
    sender.begin(head(), false);
    let mut sent = 0;
    while append(&mut sender, &[0; 10_000]) {
        sent += 10_000;
        read(&fast);
    }
    assert!((WINDOW_BYTES..WINDOW_BYTES + 10_000).contains(&sent), "{sent}");
    drop(slow);
    assert!(append(&mut sender, &[0; 10_000]));
    drop(fast);
    assert!(!append(&mut sender, &[0; 10_000]), "nobody is left");
}
