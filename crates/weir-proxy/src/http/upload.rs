//! The request's body on its way to a backend.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weir_http::h1::connection::Drained;
use weir_http::{BodyLength, BodyReader, DroppedNames, Limits, Violation};
use weir_io::buffers::{Buffer, Buffers, Charge};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::temporary::TemporaryFile;

use crate::http::aside::{AsideContent, AsideLost};
use crate::http::claim::HeldClaim;
use crate::http::failure::{Awaited, Failure};
use crate::http::filed::Filed;
use crate::http::pump::{Pump, PumpError};
use crate::http::sink::Framing;
use crate::http::stream::Stream;
use crate::http::untaken::Untaken;

/// A client may be slow for this long before its rate is checked.
const RATE_GRACE: Duration = Duration::from_secs(5);

/// The request's body.
pub struct Upload {
    /// Boxed, because most requests have no body, but the struct is moved all the same.
    body: Option<Box<Body>>,
    /// What is still to be sent of the bytes that go with the head. A head without a body may be too long,
    /// too.
    untaken: Option<Box<Untaken>>,
    /// Whether the backend stopped taking the request; it may still have answered.
    refused: bool,
    /// Whether the request was given up before all of it was sent. Its backend's connection can't be used for
    /// another one then, because the backend would take that for the rest of this one.
    cut: bool,
}

/// The state of a request that has a body.
struct Body {
    pump: Pump,
    /// Whether some of it was sent after the head, so that it can't be sent again.
    streamed: bool,
    /// When the client's rate began to count, with pauses left out.
    began: Duration,
    /// Since when nobody reads the client; `None` while somebody does.
    paused_at: Option<Duration>,
    /// The part of it that waits in a file, after the bytes that are sent with the head.
    filed: Option<Box<Filed>>,
    /// Bytes sent to the last backend from a file that has been dropped since.
    filed_bytes: u64,
    /// When bytes after the head last moved on; zero if none did.
    moved_at: Duration,
}

impl Body {
    fn new(pump: Pump, began: Duration, paused_at: Option<Duration>) -> Box<Body> {
        let (filed, filed_bytes, moved_at) = (None, 0, Duration::ZERO);
        Box::new(Body { pump, streamed: false, began, paused_at, filed, filed_bytes, moved_at })
    }

    /// Whether some of it is in a file and not sent yet.
    fn is_filed(&self) -> bool {
        self.filed.as_ref().is_some_and(|filed| !filed.is_sent())
    }

    /// Whether all of it was received and sent.
    fn is_done(&self) -> bool {
        self.pump.is_done() && !self.is_filed()
    }

    /// Whether the client still has to send some of it, apart from what still has to be sent on.
    fn waits_for_client(&self) -> bool {
        !self.pump.is_done() && self.pump.waits_for_source()
    }

    /// Bytes sent to the backend after those that are sent with the head, framing included.
    fn streamed_bytes(&self) -> u64 {
        self.pump.streamed + self.filed_bytes + self.filed.as_ref().map_or(0, |filed| filed.sent())
    }

    fn pause(&mut self, now: Duration) {
        self.paused_at.get_or_insert(now);
    }

    fn resume(&mut self, now: Duration) {
        if let Some(paused_at) = self.paused_at.take() {
            self.began += now.saturating_sub(paused_at);
        }
    }

    /// Whether the client has sent less than `rate` bytes per second on average, while it was the client's
    /// turn.
    fn is_too_slow(&self, now: Duration, rate: u64) -> bool {
        let spent = now.saturating_sub(self.began);
        rate > 0
            && spent > RATE_GRACE
            && self.paused_at.is_none()
            && self.waits_for_client()
            && (self.pump.received as f64) < rate as f64 * spent.as_secs_f64()
    }
}

impl Upload {
    /// For a request without a body.
    pub fn none() -> Upload {
        Upload { body: None, untaken: None, refused: false, cut: false }
    }

    /// For a body that `pump` reads, from [`Self::resume`] on.
    pub fn of(pump: Pump, now: Duration) -> Upload {
        Upload { body: Some(Body::new(pump, now, Some(now))), ..Upload::none() }
    }

    /// Notes that the client is read from now on.
    pub fn resume(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.resume(now);
        }
    }

    /// Notes that nobody reads the client until [`Self::resume`]: that it sends nothing meanwhile is not its
    /// fault.
    pub fn pause(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.pause(now);
        }
    }

    /// Whether there is no body.
    pub fn is_none(&self) -> bool {
        self.body.is_none()
    }

    /// Whether all of it was received and sent.
    #[inline]
    pub fn is_done(&self) -> bool {
        !self.is_untaken() && self.body.as_ref().is_none_or(|body| body.is_done())
    }

    /// Whether the client has sent all of it, apart from what still has to be sent on.
    #[inline]
    pub fn has_left_client(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.pump.is_done())
    }

    /// Whether some of the bytes that go with the head still have to be sent.
    #[inline]
    fn is_untaken(&self) -> bool {
        self.untaken.as_ref().is_some_and(|untaken| !untaken.is_sent())
    }

    /// Notes that the backend has not taken this `rest` of the bytes that go with the head.
    pub fn begin_untaken(&mut self, rest: Range<usize>) {
        self.untaken = Some(Box::new(Untaken::new(rest)));
    }

    /// Called when no other backend may be asked: of the bytes that go with the head, only those that still
    /// have to be sent are kept, together with the charge for their memory. `held` gives the bytes.
    pub fn own_untaken(&mut self, charge: Option<Charge>, held: impl FnOnce() -> Vec<u8>) {
        let is_moving = !self.refused;
        let untaken = self.untaken.as_deref_mut().filter(|untaken| is_moving && !untaken.is_sent());
        if let Some(untaken) = untaken {
            untaken.own(held(), charge);
        }
    }

    /// Whether some of it is in a file and not sent yet.
    #[inline]
    fn is_filed(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_filed())
    }

    /// The part of it that is in a file.
    fn filed(&self) -> Option<&Filed> {
        self.body.as_ref()?.filed.as_deref()
    }

    /// Whether all of it is here, so that it can be sent and sent again.
    pub fn is_here(&self) -> bool {
        // The end of a stream is sent separately from the bytes that go with the head.
        self.is_done() || self.is_whole() || (self.filed().is_some() && self.is_received())
    }

    /// Notes that some of it has moved on.
    pub fn note_moved(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.moved_at = now;
        }
    }

    /// When bytes after the head last moved on; zero if none did.
    pub fn moved_at(&self) -> Duration {
        self.body.as_ref().map_or(Duration::ZERO, |body| body.moved_at)
    }

    /// Whether nothing can move until the disk has done something.
    pub fn awaits_disk(&self) -> bool {
        !self.refused && self.filed().is_some_and(|filed| filed.awaits_disk())
    }

    /// Whether the client is not being read because the disk has not taken what it sent.
    pub fn is_stuck(&self) -> bool {
        self.filed().is_some_and(|filed| filed.is_stuck())
    }

    /// Whether all of it was received.
    pub fn is_received(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.pump.is_received())
    }

    /// Whether all of it is sent with the head, or there is none; never true if a part is in a file.
    pub fn is_whole(&self) -> bool {
        let is_whole = |body: &Body| !body.streamed && body.filed.is_none() && body.pump.is_whole();
        self.body.as_deref().is_none_or(is_whole)
    }

    /// The same body for another backend, which gets it in parallel to the first; only for a body that is
    /// whole.
    pub fn twin(&self) -> Upload {
        let twin = |body: &Body| Body::new(body.pump.twin(), Duration::ZERO, None);
        Upload { body: self.body.as_deref().map(twin), ..Upload::none() }
    }

    /// Goes on with the backend of its twin.
    pub fn stand_in(&mut self, twin: Upload) {
        (self.refused, self.cut, self.untaken) = (twin.refused, twin.cut, twin.untaken);
        if let (Some(body), Some(twin)) = (&mut self.body, twin.body) {
            body.pump.stand_in(twin.pump);
        }
    }

    /// The content that is sent with the head, if a copy was kept.
    pub fn take_copy(&mut self) -> Vec<u8> {
        self.body.as_mut().map_or_else(Vec::new, |body| body.pump.take_copy())
    }

    /// The whole body, if it was set aside and is complete; empty if there is none.
    pub fn take_aside(&mut self) -> Result<AsideContent, AsideLost> {
        self.body.as_mut().map_or_else(|| Ok(AsideContent::default()), |body| body.pump.take_aside())
    }

    /// Content bytes that [`Self::poll_hold`] has moved.
    pub fn held(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.pump.held())
    }

    /// Moves what arrives to the end of `out`, where the head is, until the body is complete or `claim` has
    /// no more room.
    pub fn poll_hold(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        buffers: &Rc<Buffers>,
        out: &mut Vec<u8>,
        claim: &mut HeldClaim<'_>,
    ) -> Poll<Result<(), PumpError>> {
        match &mut self.body {
            Some(body) => body.pump.poll_hold(context, client, buffers, out, claim),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Receives into a file what follows the bytes that [`Self::poll_hold`] moved, until the body is complete
    /// or the file is full.
    pub fn poll_file(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        buffers: &Rc<Buffers>,
    ) -> Poll<Result<(), PumpError>> {
        let Some(Body { pump, filed: Some(filed), .. }) = self.body.as_deref_mut() else {
            return Poll::Ready(Ok(()));
        };
        match pump.poll(context, client, &mut **filed, buffers, &mut false) {
            Poll::Pending if filed.is_full() => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// Puts what is received from now on into this file.
    pub fn begin_file(&mut self, file: TemporaryFile) {
        if let Some(body) = &mut self.body {
            body.filed = Some(Box::new(Filed::new(file)));
        }
    }

    /// Ends receiving into the file: its content now waits for a backend.
    pub fn end_file(&mut self) {
        if let Some(body) = &mut self.body {
            body.pump.begin_behind();
        }
    }

    /// Drops the file if all of it was sent to a backend that has answered.
    pub fn leave_file(&mut self) {
        let Some(body) = &mut self.body else { return };
        if let Some(filed) = body.filed.take_if(|filed| filed.is_sent()) {
            body.filed_bytes += filed.sent();
        }
    }

    /// Whether the client still has to send some of it, as far as is known.
    pub fn is_awaited(&self) -> bool {
        let is_awaited = |body: &Body| !body.is_filed() && body.waits_for_client();
        !self.is_untaken() && self.body.as_deref().is_some_and(is_awaited)
    }

    /// The same before new data is looked at; keeps the value `was` if the backend takes no more.
    pub fn is_awaited_or(&self, was: bool) -> bool {
        if self.refused { was && !self.is_done() } else { self.is_awaited() }
    }

    /// Whether the client has announced a length, and not sent all of it.
    pub fn is_owed(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.pump.is_owed())
    }

    /// Whether everything sent so far can be sent again.
    pub fn is_replayable(&self) -> bool {
        self.body.as_ref().is_none_or(|body| !body.streamed)
    }

    /// Notes that the backend takes no more of it.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether its backend's connection can't be used for another request.
    pub fn is_cut(&self) -> bool {
        self.cut || self.is_untaken() || self.is_filed()
    }

    /// Prepares for another backend, which is sent the part that went with the head again.
    pub fn retry(&mut self, now: Duration) {
        (self.refused, self.cut, self.untaken) = (false, false, None);
        let Some(body) = &mut self.body else { return };
        body.pause(now);
        body.pump.begin_again();
        if let Some(filed) = &mut body.filed {
            filed.begin_again();
        }
    }

    /// Frames for another backend the bytes that go with the head: `held` is the body's content, which is
    /// appended, framed, to `out`. The content of a file follows it.
    pub fn frame_anew(&mut self, framing: Framing, held: &[u8], out: &mut Vec<u8>) {
        let Some(body) = &mut self.body else { return };
        let length = body.filed.as_ref().map_or(0, |filed| filed.length());
        let behind = body.pump.frame_anew(framing, held, length, out);
        if let Some(filed) = &mut body.filed {
            filed.set_behind(behind);
        }
    }

    /// Whether its framing can be changed: not while a file holds it in chunks.
    pub fn may_be_framed_anew(&self) -> bool {
        let is_fixed = |body: &Body| body.filed.is_some() && body.pump.framing() == Framing::Chunked;
        !self.body.as_deref().is_some_and(is_fixed)
    }

    /// Drops these names from its trailers from now on.
    pub fn drop_names(&mut self, names: Option<Arc<DroppedNames>>) {
        if let Some(body) = &mut self.body {
            body.pump.dropped = names;
        }
    }

    /// Changes the framing, for a backend of another pool, of the bytes `held`, which were to be sent with
    /// the head; they are appended to `out`. Nothing has been sent yet.
    pub fn move_to(
        &mut self,
        framing: Framing,
        held: Vec<u8>,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let was = self.body.as_ref().map_or(Framing::Plain, |body| body.pump.framing());
        if !self.may_be_framed_anew() {
            out.extend_from_slice(&held);
            return Ok(());
        }
        let held = match was {
            Framing::Chunked => unframed(&held, limits).map_err(Failure::BadRequest)?,
            Framing::Plain | Framing::Stream => held,
        };
        self.frame_anew(framing, &held, out);
        Ok(())
    }

    /// Whether there is more to send to a backend that takes it.
    #[inline]
    pub fn is_moving(&self) -> bool {
        !self.refused && !self.is_done()
    }

    /// Content bytes received so far.
    pub fn received_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.pump.received)
    }

    /// Bytes sent to the backend after the first send of the head, framing included.
    pub fn streamed_bytes(&self) -> u64 {
        let of_head = self.untaken.as_ref().map_or(0, |untaken| untaken.sent());
        self.body.as_ref().map_or(0, |body| body.streamed_bytes()) + of_head
    }

    /// Moves what can be moved. `Ready` when everything was moved or the backend takes no more.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        backend: &mut Stream,
        buffers: &Rc<Buffers>,
        moved: &mut bool,
    ) -> Poll<Result<(), Failure>> {
        ready!(self.poll_untaken(context, backend, &[], moved));
        if self.is_filed() && !self.refused {
            self.pause(clock::now());
            ready!(self.poll_filed(context, client, backend, moved))?;
            self.resume(clock::now());
        }
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        if self.refused {
            return Poll::Ready(Ok(()));
        }
        let mut now_moved = false;
        let polled = body.pump.poll(context, client, backend, buffers, &mut now_moved);
        body.streamed |= now_moved;
        *moved |= now_moved;
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(PumpError::SinkClosed)) => {
                self.refused = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(failure_of(error))),
        }
    }

    /// Sends the rest of the bytes that go with the head, which are part of `shared` until
    /// [`Self::own_untaken`]. `Ready` when these are sent or the backend takes no more.
    pub fn poll_untaken(
        &mut self,
        context: &mut Context<'_>,
        backend: &mut Stream,
        shared: &[u8],
        moved: &mut bool,
    ) -> Poll<()> {
        let Some(untaken) = self.untaken.as_deref_mut().filter(|untaken| !untaken.is_sent()) else {
            return Poll::Ready(());
        };
        let polled = untaken.poll_send(context, backend, shared, moved);
        if polled.is_pending() {
            self.pause(clock::now());
            return Poll::Pending;
        }
        self.refused |= matches!(polled, Poll::Ready(Err(_)));
        self.resume(clock::now());
        Poll::Ready(())
    }

    /// Tells the backend the end of a body that is completely here and that nothing else sends: the end of a
    /// stream is not sent with the head.
    pub fn poll_tell_end(&mut self, context: &mut Context<'_>, backend: &mut Stream) {
        if let Some(body) = self.body.as_deref_mut().filter(|_| !self.refused) {
            let polled = body.pump.poll_tell_end(context, backend);
            self.refused |= matches!(polled, Poll::Ready(Err(_)));
        }
    }

    /// Sends the content of the file to the backend; it may be sent again.
    fn poll_filed(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        backend: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), Failure>> {
        let Some(Body { filed: Some(filed), .. }) = self.body.as_deref_mut() else {
            return Poll::Ready(Ok(()));
        };
        match filed.poll_send(context, backend, moved) {
            Poll::Pending => {
                client.gather(context);
                Poll::Pending
            }
            Poll::Ready(Err(PumpError::SinkClosed)) => {
                self.refused = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(result) => Poll::Ready(result.map_err(failure_of)),
        }
    }

    /// Whether the client has sent less than `rate` bytes per second on average, while it was the client's
    /// turn (D1).
    pub fn is_too_slow(&self, now: Duration, rate: u64) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_too_slow(now, rate))
    }

    /// Proof that all of it was sent to the backend that was asked last; `None` if it was not.
    pub fn sent(&self) -> Option<Drained> {
        let is_sent = self.is_done() && !self.refused && !self.cut;
        is_sent.then(|| BodyReader::new(BodyLength::None, &Limits::default()).drained()).flatten()
    }

    /// The bytes that the client sent after the body, and proof that the body is over. Without a body, the
    /// session already holds all bytes after the head.
    pub fn take_rest(&mut self) -> (Option<Buffer>, Option<Drained>) {
        self.cut |= self.is_untaken();
        match self.body.take() {
            Some(body) => {
                self.cut |= body.is_filed();
                body.pump.into_rest()
            }
            None => (None, BodyReader::new(BodyLength::None, &Limits::default()).drained()),
        }
    }
}

/// The content of bytes that were framed in chunks, or of the first part of them.
fn unframed(mut framed: &[u8], limits: &Limits) -> Result<Vec<u8>, Violation> {
    let mut reader = BodyReader::new(BodyLength::Chunked, limits);
    let mut content = Vec::with_capacity(framed.len());
    while !framed.is_empty() && !reader.is_complete() {
        let step = reader.advance(framed)?;
        content.extend_from_slice(&framed[step.data]);
        if step.consumed == 0 {
            break;
        }
        framed = &framed[step.consumed..];
    }
    Ok(content)
}

/// The failure on the client's side.
pub fn failure_of(error: PumpError) -> Failure {
    match error {
        PumpError::SourceClosed => Failure::ClientClosed,
        PumpError::Malformed(violation) => Failure::BadRequest(violation),
        PumpError::TooLarge => Failure::BodyTooLarge,
        PumpError::OutOfMemory => Failure::OutOfMemory,
        PumpError::Lost => Failure::BufferLost,
        PumpError::SinkClosed => Failure::BackendClosed(Awaited::Backend),
    }
}
