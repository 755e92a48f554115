//! What readers of a fill get.

use std::task::Waker;

use super::*;

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn head() -> Arc<FillHead> {
    let origin = Origin::default();
    let (head, text) = (ResponseHead::new(), Box::default());
    Arc::new(FillHead { head, text, variant: None, is_personal: false, sticky: None, origin })
}

fn failed(meets: Meets) -> Failed {
    let end = End::RateLimited;
    Failed { status: 429, end, word: "", rejected: None, retry_after_seconds: None, meets }
}

fn append(filling: &mut Filling, content: &[u8]) -> bool {
    matches!(filling.poll_append(&context(), content, 1 << 20), Poll::Ready(Ok(count)) if count == content.len())
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
        let mut filling = Filling::new(&Arc::default(), 1 << 20, Alone::GoesOn);
        let (first, other) = (filling.fill().join(true), filling.fill().join(false));
        filling.fail(failed(meets));
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
    let mut filling = Filling::new(&gathered, 1 << 20, Alone::GoesOn);
    let (fast, slow) = (filling.fill().join(true), filling.fill().join(false));
    filling.begin(head(), true);
    assert!(append(&mut filling, &[1; 1000]) && append(&mut filling, &[2; 1000]));
    assert_eq!((read(&fast).len(), counted()), (2000, 2000));
    // It was not taken in.
    filling.finish(None, None);
    drop(filling);
    drop(fast);
    assert_eq!(counted(), 2000);
    assert_eq!(slow.fill.lock().piece_at(500).map(|piece| piece.len()), Some(500));
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
    let mut fillings =
        [Filling::new(&gathered, 1500, Alone::GoesOn), Filling::new(&gathered, 1500, Alone::GoesOn)];
    let readers = fillings.each_ref().map(|filling| filling.fill().join(true));
    for filling in &mut fillings {
        filling.begin(head(), true);
        assert!(append(filling, &[0; 1000]));
    }
    assert!(fillings[0].is_kept() && !fillings[1].is_kept());
    assert_eq!(readers.each_ref().map(|reader| read(reader).len()), [1000, 1000]);
}

#[test]
fn what_is_not_kept_waits_for_its_slowest_reader() {
    let mut filling = Filling::new(&Arc::default(), 1 << 20, Alone::GoesOn);
    let (fast, slow) = (filling.fill().join(true), filling.fill().join(true));
    filling.begin(head(), false);
    let mut sent = 0;
    while append(&mut filling, &[0; 10_000]) {
        sent += 10_000;
        read(&fast);
    }
    assert!((WINDOW_BYTES..WINDOW_BYTES + 10_000).contains(&sent), "{sent}");
    drop(slow);
    assert!(append(&mut filling, &[0; 10_000]));
    drop(fast);
    assert!(!append(&mut filling, &[0; 10_000]), "nobody is left");
}
